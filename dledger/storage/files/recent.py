# -*- test-case-name: tests.storage.test_recent -*-
"""
The latest entries in memory, so that the live tail is read without a system call.

L{RecentEntries} keeps position and term of each entry. L{RecentBatches} keeps the bytes that were written
last, as batches, bounded in bytes and number.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from protocols.wire.ledger.batches import EntryBatch

ENTRIES_KEPT = 65_536
BATCHES_KEPT = 1024
BATCH_BYTES_KEPT = 8 * 1024 * 1024
PIECE_BYTES = 128 * 1024


class RecentEntries:
    """
    Position and term of the latest entries.

    Invariant: C{positions} is dense from C{first_index} on. C{_term_starts} rise; the first is not above
    C{first_index}, unless no entry is known.

    @ivar positions: offsets of the records from C{first_index} on.
    """

    def __init__(self) -> None:
        self.first_index = 0
        self.positions: array[int] = array("q")
        self._term_starts: list[int] = []
        self._terms: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Whether no entry is known."""
        return not self.positions

    def reset(self, first_index: int) -> None:
        """Forget everything; the next entry is C{first_index}."""
        self.first_index = first_index
        self.positions = array("q")
        self._term_starts = []
        self._terms = []

    def extend(self, positions: list[int], terms: list[tuple[int, int]], term_before: int = -1) -> None:
        """
        Add entries after the last one.

        @param terms: index and term at each change of term.
        @param term_before: of the entry before them; -1: there is none, or it is known here.
        """
        if term_before >= 0 and not self.positions:
            terms = [(self.first_index, term_before), *terms]  # nothing is known that they could continue
        for index, term in terms:
            if not self._terms or self._terms[-1] != term:
                self._term_starts.append(index)
                self._terms.append(term)
        self.positions.extend(positions)
        if len(self.positions) > 2 * ENTRIES_KEPT:
            gone = len(self.positions) - ENTRIES_KEPT
            del self.positions[:gone]
            self.first_index += gone
            keep = bisect_right(self._term_starts, self.first_index) - 1
            del self._term_starts[:keep], self._terms[:keep]

    def cut(self, next_index: int) -> None:
        """Forget the entries from C{next_index} on."""
        if next_index <= self.first_index:
            self.reset(next_index)
            return
        del self.positions[next_index - self.first_index :]
        keep = bisect_left(self._term_starts, next_index)
        del self._term_starts[keep:], self._terms[keep:]

    def position(self, index: int) -> int:
        """Stream offset of an entry; -1 if not known."""
        at = index - self.first_index
        return self.positions[at] if 0 <= at < len(self.positions) else -1

    def term(self, index: int) -> int:
        """Term of an entry; -1 if not known."""
        if not self.first_index <= index < self.first_index + len(self.positions):
            return -1
        return self._terms[bisect_right(self._term_starts, index) - 1]


class RecentBatches:
    """
    The batches written last, by first index. Invariant: they are consecutive.

    @ivar held_bytes: size of their records.
    @ivar by_index: the batches by their first index.
    """

    def __init__(self) -> None:
        self.by_index: dict[int, EntryBatch] = {}
        self.held_bytes = 0

    def add(self, batch: EntryBatch) -> None:
        """Add a batch of one term after the last one, in one piece."""
        size = len(batch.records)
        if size > BATCH_BYTES_KEPT // 4:
            self.clear()
            return
        self.by_index[batch.first_index] = batch
        self.held_bytes += size
        while self.held_bytes > BATCH_BYTES_KEPT or len(self.by_index) > BATCHES_KEPT:
            oldest = next(iter(self.by_index))
            self.held_bytes -= len(self.by_index.pop(oldest).records)

    def add_written(self, batch: EntryBatch, sizes: list[int]) -> None:
        """
        Add a batch of one term after the last one; C{sizes}: bytes of each of its records.

        A long batch is stored in pieces: only whole batches are given out, and the proposals of one
        turn may exceed the size of a push.
        """
        if len(batch.records) <= PIECE_BYTES:
            self.add(batch)
            return
        start = end = done = 0
        for number, size in enumerate(sizes, 1):
            end += size
            if end - start >= PIECE_BYTES or number == len(sizes):
                self.add(EntryBatch(first_index=batch.first_index + done, count=number - done,
                                    term=batch.term, records=batch.records[start:end]))
                start, done = end, number

    def clear(self) -> None:
        """Forget all batches: entries were cut, or one was not added."""
        self.by_index.clear()
        self.held_bytes = 0

    def read(self, first_index: int, *, max_count: int, max_bytes: int) -> EntryBatch | None:
        """
        The whole batches of one term from C{first_index} on that fit both limits; None if none fits.
        """
        batches = self.by_index
        if first_index not in batches:
            return None
        batch = batches[first_index]
        if batch.count > max_count or len(batch.records) > max_bytes:
            return None
        if first_index + batch.count not in batches:
            return batch
        following: EntryBatch | None = batches[first_index + batch.count]
        count, size, term = batch.count, len(batch.records), batch.term
        pieces = [batch.records]
        while following is not None and following.term == term:
            if count + following.count > max_count or size + len(following.records) > max_bytes:
                break
            pieces.append(following.records)
            count += following.count
            size += len(following.records)
            following = self.by_index.get(first_index + count)
        if len(pieces) == 1:
            return batch
        return EntryBatch(first_index=first_index, count=count, term=term, records=b"".join(pieces))
