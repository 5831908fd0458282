# -*- test-case-name: tests.machine.test_skips -*-
"""
Entries that no machine applies, because an order in the log says so
(L{protocols.wire.ledger.own.machine_entries}).

An order comes after its entry. So a state is right at an order if it was made without the entry: a member
whose state has it makes another one, from an older snapshot, and passes over the entry.

Rule 1: what a machine does with an entry before it knows of the order is void; what counts is the order.
Rule 2: the entries that a state was made without are a part of its snapshots, also when it has passed the
order: there may be another one for the same entry.
Rule 3: a snapshot between an entry and the order for it is of use only if it was made without the entry, and
says so. After an order each member takes one, so that there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import attrs

from dledger.machine.state_machine import RefusedAnswer
from dledger.storage.files.snapshot_file import SnapshotRefused
from protocols.wire.errors import WireError
from protocols.wire.ledger.entry import EntryHeader
from protocols.wire.ledger.own.machine_entries import decode_skip
from protocols.wire.ledger.own.own_entries import MACHINE_CHANNEL

#: Result of a command that is skipped.
SKIPPED = RefusedAnswer(b"skipped: the machine could not apply it, and an operator gave the order to go on")
#: In place of an order that was not seen: far after all entries.
UNSEEN = 1 << 62
#: Entries of which a state knows that it was made without them, at most: those with the highest indexes.
SKIPS_MAX = 1024


def order_of(header: EntryHeader, body: bytes) -> int:
    """Index of the entry that this entry orders to skip; -1: it is no such order."""
    if header.channel != MACHINE_CHANNEL or not header.chain_crc:
        return -1
    try:
        index = decode_skip(body)
    except WireError:
        return -1  # (The CRC of the record is right: it was written so, and nobody can obey.)
    return index if index < header.index else -1


@attrs.define
class Skips:
    """
    @ivar ordered: entries that are skipped, each with the first order for it that this process has seen; or
        L{UNSEEN}, if only a snapshot has reported it.
    @ivar left_out: those of them that the state was made without.
    """

    ordered: dict[int, int] = attrs.Factory(dict)
    left_out: set[int] = attrs.Factory(set)
    _has_passed: bool = False

    def look(self, batch: Sequence[tuple[EntryHeader, bytes]], applied_index: int) -> int:
        """
        Find the orders in entries that come next, or later.

        @return: an entry in the state that one of them says to skip; -1: there is none.
        """
        for header, body in batch:
            index = order_of(header, body)
            if index >= 0:
                self.ordered[index] = min(self.ordered.get(index, UNSEEN), header.index)
                if index <= applied_index and index not in self.left_out:
                    return index
        return -1

    def begin_again(self, index: int) -> None:
        """There is no state: the next one is made without C{index}, if that is no -1."""
        if index >= 0:
            self.ordered.setdefault(index, UNSEEN)
        self.left_out.clear()

    def results_in(self, batch: Sequence[tuple[EntryHeader, bytes]]) -> dict[int, bytes]:
        """Entries are in the state, or left out. @return: results of those that are left out, by index."""
        results: dict[int, bytes] = {}
        for header, body in batch:
            if header.index in self.ordered:
                self.left_out.add(header.index)
                results[header.index] = SKIPPED
            if order_of(header, body) >= 0:
                self._has_passed = True
        while len(self.left_out) > SKIPS_MAX:
            index = min(self.left_out)
            self.left_out.discard(index)
            self.ordered.pop(index, None)
        return results

    def has_passed(self) -> bool:
        """Whether the state has passed an order since the last call."""
        has_passed, self._has_passed = self._has_passed, False
        return has_passed

    def check(self, left_out: Collection[int], last_index: int) -> None:
        """
        Whether the state of a snapshot is of use.

        @param left_out: entries that it says it was made without. @param last_index: the last one in it.
        @raise SnapshotRefused: it may have an entry that is skipped.
        """
        for index, order_index in sorted(self.ordered.items()):
            if index <= last_index < order_index < UNSEEN and index not in left_out:
                raise SnapshotRefused(f"it may have the entry {index}, which is skipped")

    def restored(self, left_out: Iterable[int], last_index: int) -> None:
        """The state is that of a snapshot; see L{check}."""
        passed = {index for index, order_index in self.ordered.items() if order_index <= last_index}
        self.left_out = passed.union(left_out)
        for index in self.left_out:
            self.ordered.setdefault(index, UNSEEN)
