# -*- test-case-name: tests.client.test_tail,tests.client.test_tail_losses -*-
"""The forms in which a program reads the committed entries of a log: one by one, in lists, and in batches."""

from __future__ import annotations

from collections import deque
from itertools import chain

from twisted.internet.interfaces import IReactorTime

from dledger.client.answers.tail_batch import ScannedPart, TailBatch, scan
from dledger.client.answers.values import Entry, entries_after
from dledger.client.links.members import Members
from dledger.client.reading.tail_options import TailOptions
from dledger.client.reading.tail_reading import TailReading
from protocols.wire.ledger.batches import EntryBatch


class Tail(TailReading[list[Entry]]):
    """An asynchronous iterator over entries; also usable batch by batch."""

    def __init__(self, members: Members, clock: IReactorTime, options: TailOptions) -> None:
        super().__init__(members, clock, options)
        self._buffer: deque[Entry] = deque()

    def __aiter__(self) -> Tail:
        return self

    async def __anext__(self) -> Entry:
        while not self._buffer:
            self._buffer.extend(await self.next_batch())
            if not self._buffer:
                raise StopAsyncIteration
        return self._buffer.popleft()

    @staticmethod
    def _nothing() -> list[Entry]:
        return []

    def _opened(self, batches: list[EntryBatch]) -> tuple[list[Entry], Entry]:
        entries: list[Entry] = []
        for batch in batches:
            entries += entries_after(entries[-1] if entries else self._before, batch)
        return _shown(entries, control=self.options.control), entries[-1]


def _shown(entries: list[Entry], *, control: bool) -> list[Entry]:
    return entries if control else [entry for entry in entries if not entry.is_control]


class BatchTail(TailReading[TailBatch]):
    """An asynchronous iterator over batches of entries, for programs that read many small ones."""

    def __aiter__(self) -> BatchTail:
        return self

    async def __anext__(self) -> TailBatch:
        batch = await self.next_batch()
        if not batch:
            raise StopAsyncIteration
        return batch

    @staticmethod
    def _nothing() -> TailBatch:
        return TailBatch((), (), -1, list)

    def _opened(self, batches: list[EntryBatch]) -> tuple[TailBatch, Entry]:
        before, control = self._before, self.options.control
        scans: list[ScannedPart] = []
        for batch in batches:
            scans.append(scan(batch, scans[-1].last if scans else before, control=control))

        def make() -> list[Entry]:
            found: list[Entry] = []
            for batch in batches:
                found += entries_after(found[-1] if found else before, batch)
            return _shown(found, control=control)

        bodies, indexes = scans[0].bodies, scans[0].indexes
        if len(scans) > 1:
            bodies = [body for one in scans for body in one.bodies]
            indexes = list(chain.from_iterable(one.indexes for one in scans))
        return TailBatch(bodies, indexes, batches[-1].last_index + 1, make), scans[-1].last
