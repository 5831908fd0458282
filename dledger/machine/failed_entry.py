# -*- test-case-name: tests.machine.test_skips -*-
"""The entry at which a machine failed, and the look into the log after it for an order to skip it."""

from __future__ import annotations

from dledger.machine.reading_ahead import READ_BYTES
from dledger.machine.skips import Skips
from dledger.node.node import Node
from dledger.values.errors import DLedgerError
from protocols.wire.ledger.entry import iterate_records

#: Reads of the log in one look for an order to skip an entry.
SCANS = 16


class FailedEntry:
    """
    Invariant: the log up to C{_scanned_to} has no order to skip the entry at C{index}.

    @ivar index: -1: the machine did not fail at an entry.
    """

    def __init__(self, entries: Node, skips: Skips) -> None:
        self.index = -1
        self._entries = entries
        self._skips = skips
        self._scanned_to = -1

    def note(self, index: int) -> None:
        """The machine has failed at this entry; -1: it begins again."""
        self.index = index
        if index >= 0:
            self._scanned_to = index

    def skipped(self, applied_index: int) -> int | None:
        """
        Look whether there is an order by now.

        @param applied_index: last entry in the state.
        @return: the entry without which the state is to be made; None: there is no order yet; -1: the log
            begins after entries that may have it, as that of a leader does which this member has taken: only
            a snapshot of another member shows it.
        """
        try:
            for _ in range(SCANS):
                batch = self._entries.read_committed(self._scanned_to + 1, max_bytes=READ_BYTES)
                if batch is None:
                    return None
                found = list(iterate_records(batch))
                self._scanned_to = found[-1][0].index
                made_with = self._skips.look(found, applied_index)
                if made_with < 0 and self.index in self._skips.ordered:
                    made_with = self.index
                if made_with >= 0:
                    return made_with
        except DLedgerError as error:  # damaged, or gone
            begin_index = error.facts.get("ledger_begin_index")
            if isinstance(begin_index, int) and begin_index > self._scanned_to + 1:
                return -1
        return None
