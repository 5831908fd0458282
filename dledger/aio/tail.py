# -*- test-case-name: tests.aio.test_tail -*-
"""
The entries of a log from an index on, for programs with an asyncio event loop.

Rule 1: an error or a cancellation ends the wait for entries, not the iterator: the
next call goes on, and leaves nothing out.
Rule 2: an iterator that was closed, or whose end was reached, stays at its end. One that is no longer needed
is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from dledger.aio.reader import WaitInLoop
from dledger.client.answers.values import Entry
from dledger.client.reading.tail_reading import TailReading
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode

_B = TypeVar("_B", bound=Sequence[Entry])


class AsyncBatches(Generic[_B]):
    """An asynchronous iterator of batches; one task uses it. @ivar tail: reads them."""

    def __init__(
        self, wait: WaitInLoop, tail: TailReading[_B], drop: Callable[[Callable[[], None]], None]
    ) -> None:
        """@param drop: calls the method in the loop soon, from any thread, if that is still possible."""
        self._wait = wait
        self.tail = tail
        self._drop = drop
        self._ahead: asyncio.Future[_B] | None = None
        self._is_over = False

    def __aiter__(self) -> AsyncBatches[_B]:
        return self

    async def __anext__(self) -> _B:
        if self._is_over:
            raise StopAsyncIteration
        if self._ahead is None:
            self._ahead = asyncio.ensure_future(self._wait(self.tail.next_batch))
            self._ahead.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may be left
        ahead = self._ahead
        try:
            batch = await asyncio.shield(ahead)
        except BaseException:
            if ahead.cancelled() or (ahead.done() and ahead.exception() is not None):
                self._ahead = None
            raise
        self._ahead = None
        if batch:
            return batch
        self._is_over = True
        if self.tail.is_closed:
            raise DLedgerError(ResponseCode.NETWORK_ERROR, reason="the log was closed")
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Read no more."""
        self._is_over = True
        self.tail.close()

    def __del__(self) -> None:
        if not self._is_over:
            self._drop(self.tail.close)


class AsyncEntries:
    """An asynchronous iterator of entries; one task uses it. @ivar batches: those that have them."""

    def __init__(self, batches: AsyncBatches[list[Entry]]) -> None:
        self.batches = batches
        self._ready: Iterator[Entry] = iter(())

    def __aiter__(self) -> AsyncEntries:
        return self

    async def __anext__(self) -> Entry:
        for entry in self._ready:  # the rest of a batch
            return entry
        self._ready = iter(await anext(self.batches))
        return next(self._ready)

    async def aclose(self) -> None:
        """Read no more."""
        self._ready = iter(())
        await self.batches.aclose()
