# -*- test-case-name: tests.machine.test_skips -*-
"""
Entries that no machine applies, because an order in the log says so
(L{protocols.wire.ledger.machine_entries}).

An order comes behind its entry. So a state is right at an order if it was made without the entry: a member
whose state has it makes another one, from an older snapshot, and passes over the entry.

Rule 1: what a machine does with an entry before it knows of the order is void; what counts is the order.
Rule 2: the entries that a state was made without are a part of its snapshots, until the order is passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from dledger.machine.state_machine import RefusedAnswer
from protocols.wire.errors import WireError
from protocols.wire.ledger.entry import EntryHeader
from protocols.wire.ledger.machine_entries import decode_skip, is_machine_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL

#: Result of a command that is skipped.
SKIPPED = RefusedAnswer(b"skipped: the machine could not apply it, and an operator gave the order to go on")


def order_of(header: EntryHeader, body: bytes) -> int:
    """Index of the entry that this entry orders to skip; -1: it is no such order."""
    if header.channel != PRODUCER_CHANNEL or not is_machine_entry(body):
        return -1
    try:
        index = decode_skip(body)
    except WireError:
        return -1  # (The CRC of the record is right: it was written so, and nobody can obey.)
    return index if index < header.index else -1


@attrs.define
class Skips:
    """
    @ivar ordered: entries for which an order is known that the state has not passed.
    @ivar left_out: those of them that the state was made without.
    @ivar order_index: of the last order that a state did not obey: snapshots of others in front of it may be
        made with the entry, too.
    """

    ordered: set[int] = attrs.Factory(set)
    left_out: set[int] = attrs.Factory(set)
    order_index: int = -1

    def look(self, batch: Sequence[tuple[EntryHeader, bytes]], applied_index: int) -> int:
        """
        Find the orders in entries that come next, or later.

        @return: an entry in the state that one of them says to skip; -1: there is none.
        """
        for header, body in batch:
            index = order_of(header, body) if header.channel else -1
            if index >= 0:
                if index <= applied_index and index not in self.left_out:
                    self.order_index = max(self.order_index, header.index)
                    return index
                self.ordered.add(index)
        return -1

    def begin_again(self, index: int) -> None:
        """There is no state: the next one is made without C{index}."""
        self.ordered.add(index)
        self.left_out.clear()

    def results_in(self, batch: Sequence[tuple[EntryHeader, bytes]]) -> dict[int, bytes]:
        """Entries are in the state, or left out. @return: results of those that are left out, by index."""
        results: dict[int, bytes] = {}
        for header, body in batch:
            if header.index in self.ordered:
                self.left_out.add(header.index)
                results[header.index] = SKIPPED
            index = order_of(header, body) if header.channel else -1
            if index in self.left_out:
                self.left_out.discard(index)
                self.ordered.discard(index)
        return results

    def restored(self, left_out: Iterable[int]) -> None:
        """The state is that of a snapshot that was made without these."""
        self.left_out = set(left_out)
        self.ordered |= self.left_out
