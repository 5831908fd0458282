# -*- test-case-name: tests.machine.test_runner -*-
"""
The committed entries that were read and are not in the state of a machine yet, in batches.

Batches grow and shrink so that one takes about L{TURN_S}.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from dledger.node.node import Node
from protocols.wire.ledger.entry import EntryHeader, iterate_records

#: Seconds that a batch should take, about; without a thread, a turn of the reactor.
TURN_S = 0.005
#: Bytes of records that are read at once, and entries that one batch has at most.
READ_BYTES = 256 * 1024
BATCH_COUNT_MAX = 1024

#: Entries with their bodies.
Entries = list[tuple[EntryHeader, bytes]]


class ReadAhead:
    """
    Reads committed entries before the state machine needs them, and gives them out in batches.

    Its length is the number of entries that were read and not yet given out.
    """

    def __init__(self, entries: Node) -> None:
        self._entries = entries
        self._ahead: deque[tuple[EntryHeader, bytes]] = deque()
        self._batch_count = 64

    def __len__(self) -> int:
        return len(self._ahead)

    def read(self, first_index: int) -> None:
        """Read entries from C{first_index} on. @raise DLedgerError: the log has lost them."""
        batch = self._entries.read_committed(first_index, max_bytes=READ_BYTES)
        if batch is not None:
            self._ahead.extend(iterate_records(batch))

    def batch(self, most: int | None = None) -> Entries:
        """The entries of the next batch, which stay here until L{took}. @param most: no more than these."""
        count = self._batch_count if most is None else min(self._batch_count, most)
        return list(islice(self._ahead, count))

    def took(self, count: int) -> None:
        """The first C{count} entries are in the state."""
        for _ in range(count):
            self._ahead.popleft()

    def paced(self, spent_s: float) -> None:
        """A batch took C{spent_s}: the next one is smaller or bigger."""
        count = self._batch_count
        if spent_s > TURN_S:
            self._batch_count = max(1, count // 2)
        elif spent_s < TURN_S / 4:
            self._batch_count = min(BATCH_COUNT_MAX, count * 2)

    def clear(self) -> None:
        """Forget what was read."""
        self._ahead.clear()
