# -*- test-case-name: tests.core.test_replica -*-
"""
What the core may ask of the world: reads of the ledger, nothing else.

Reads are calls on a view, writes are effects. A view shows what was written (not necessarily
fsynced); the core never sees its own writes before C{EntriesWritten} told it.
"""

from __future__ import annotations

from typing import Protocol

from protocols.wire.ledger.messages import EntryBatch


class LedgerView(Protocol):
    """
    A readable ledger. Every method may raise L{dledger.base.errors.StoreError}: the member stops.
    """

    @property
    def ledger_begin_index(self) -> int:
        """First index present; -1 when the ledger is empty and never held an entry."""

    @property
    def ledger_end_index(self) -> int:
        """Last index present; -1 when empty."""

    @property
    def ledger_end_term(self) -> int:
        """Term of the last entry; -1 when empty."""

    def term_of(self, index: int) -> int:
        """Term of the entry at C{index}, which must be present."""

    def position_of(self, index: int) -> int:
        """
        Stream offset in bytes of the record at C{index}; for C{ledger_end_index + 1} the offset
        just behind the last record.
        """

    def read_batch(self, first_index: int, *, max_count: int, max_bytes: int) -> EntryBatch:
        """
        Records from C{first_index} (which must be present) on: at least one, and never more than
        C{max_count} entries, C{max_bytes} bytes (but for the first), or one term.
        """

    def holds(self, entry: EntryBatch) -> bool:
        """
        Whether the ledger has an entry equal to the single one in C{entry}: size, magic, index,
        term, channel, pos and body; C{chainCrc} and C{bodyCrc} unless C{entry} does not record them.
        """
