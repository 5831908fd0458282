# -*- test-case-name: tests.core.test_replica -*-
"""
The port of the core: reads of the ledger.

Reads are calls on a view, writes are effects. A view shows written entries (not necessarily
fsynced); the core reads its own writes only after C{EntriesWritten}.
"""

from __future__ import annotations

from typing import Protocol

from dledger.values.ledger.chunks import ChunkSum
from dledger.values.ledger.group_state import GroupFold
from dledger.values.ledger.holes import Hole
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.batches import EntryBatch, EntryChunk


class LedgerEnds(Protocol):
    """Where a ledger begins and ends."""

    @property
    def begin_index(self) -> int:
        """First index present; -1 if the ledger is empty and never held an entry."""

    @property
    def end_index(self) -> int:
        """Last index present; -1 if the ledger is empty."""

    @property
    def end_term(self) -> int:
        """Term of the last entry; -1 if the ledger is empty."""


class LedgerView(Protocol):
    """
    A readable ledger. Every method may raise L{dledger.values.errors.StoreError}; then the member stops. A
    method that is asked about an entry may raise L{dledger.values.errors.DamagedEntryError}: that one cannot
    be read, and lies in a hole from now on, unless a second look found nothing wrong.
    """

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Damaged entries between sound ones, in order."""

    @property
    def holes_end_index(self) -> int:
        """Last index of the last hole; -1 without any."""

    @property
    def ends(self) -> LedgerEnds:
        """Where it begins and ends, always as it is now."""

    @property
    def is_end_proven(self) -> bool:
        """
        Whether the C{chainCrc} of the last entry is known, from which a leader's entries continue. After a
        start it is not if the entry before is damaged; index and term of the last entry are known all the
        same.
        """

    @property
    def membership(self) -> Membership | None:
        """That of the last configuration entry in the ledger; None without any: the start list counts."""

    @property
    def memberships(self) -> tuple[Membership, ...]:
        """Those of the configuration entries up to the last one, as far as they are remembered."""

    @property
    def group(self) -> GroupFold | None:
        """
        What the ledger says of producers and readers, up to its end; None: not known, as entries are damaged,
        or the ledger begins after some that count.
        """

    @property
    def last_program_index(self) -> int:
        """Index of the last entry that is neither the log's own nor a marker; -1: there is none."""

    def term_of(self, index: int) -> int:
        """Term of the entry at C{index}, which must be present."""

    def position_of(self, index: int) -> int:
        """
        Stream offset in bytes of the record at C{index}; for C{end_index + 1} the offset of
        the end of the last record.
        """

    def read_batch(self, first_index: int, *, max_count: int, max_bytes: int) -> EntryBatch:
        """
        Records from C{first_index} (which must be present) on: at least one, all of one term, at most
        C{max_count} entries and C{max_bytes} bytes (the first record may be longer).
        """

    def chunk_from(self, index: int) -> ChunkSum | None:
        """
        The first chunk with recorded checksums that begins with the entry at C{index}, which must be present,
        or after it in the same data file; None if there is none.
        """

    def read_chunk(self, chunk: ChunkSum) -> EntryChunk | None:
        """The entries of a chunk; None if they are not those that its checksums were made of."""

    def holds(self, entry: EntryBatch) -> bool:
        """
        Whether the ledger has an entry equal to the single one in C{entry}: size, magic, index,
        term, channel, pos and body; also C{chainCrc} and C{bodyCrc} if C{entry} records them.
        """
