# -*- test-case-name: tests.aio.test_readers -*-
"""
A named reader for programs with an asyncio event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol, TypeVar

from twisted.internet.defer import Deferred

from dledger.client.answers.values import Entry
from dledger.client.reading.readers import NamedReader
from dledger.values.errors import DLedgerError

_T = TypeVar("_T")


class WaitInLoop(Protocol):
    """Waits for a Deferred in the event loop of the log."""

    def __call__(self, call: Callable[[], Deferred[_T]]) -> Awaitable[_T]:
        """@return: its result."""


class AsyncReader:
    """
    An asynchronous iterator of the entries that no process of this name has committed. Use it with C{async
    with}, or L{close} it. The event loop must not stand still for the time of its lease.
    """

    def __init__(self, wait: WaitInLoop, reader: NamedReader) -> None:
        self._wait = wait
        self._reader = reader
        self._ready: deque[Entry] = deque()
        self._ahead: asyncio.Future[list[Entry]] | None = None

    @property
    def name(self) -> str:
        """Of the reader."""
        return self._reader.name

    @property
    def holder(self) -> str:
        """Id of this process."""
        return self._reader.holder

    @property
    def token(self) -> int:
        """Fencing token of the lease; see L{NamedReader.token}."""
        return self._reader.token

    def __aiter__(self) -> AsyncReader:
        return self

    async def __anext__(self) -> Entry:
        """
        The next entry; waits for it. Cancelling stops the wait.

        @raise LeaseLost: another process has the entries of this one, or may get them.
        @raise LeaseHeld: other processes had them until the time-out.
        @raise Expired: expiry has deleted the next entry. L{commit} of a later one goes on.
        """
        while True:
            if self._reader.must_check:
                await self._wait(self._reader.check_lease)
            while self._ready:
                entry = self._ready.popleft()
                if entry.index > self._reader.done_index:
                    self._reader.handed_index = entry.index
                    return entry
            if not await self._read_on():
                raise StopAsyncIteration

    async def _read_on(self) -> bool:
        """
        Wait for entries. If the wait is cancelled, the question stays, and the next call has its answer: who
        uses C{wait_for} leaves nothing out.
        """
        if self._ahead is None:
            self._ahead = asyncio.ensure_future(self._wait(self._reader.next_batch))
        ahead = self._ahead
        try:
            entries = await asyncio.shield(ahead)
        except BaseException:
            if ahead.cancelled() or (ahead.done() and ahead.exception() is not None):
                self._ahead = None
            raise
        self._ahead = None
        self._ready.extend(entries)
        return bool(entries)

    async def commit(self, index: int | None = None, *, wait: bool = True) -> int:
        """
        All entries up to one are done; see L{NamedReader.commit}.

        @param index: the last one; None: the last one that was handed out.
        @param wait: False: return at once; the place is committed within about a second, together with those
            that follow, and by L{close}. After a crash, what was done since is handed out again.
        @return: the next index of the reader: all before it is done.
        @raise LeaseLost: nothing was committed: another process has these entries, or may get them.
        @raise NotYet: it is not in the log.
        @raise Timeout: it may have been committed: commit again.
        """
        return await self._wait(lambda: self._reader.commit(index, wait=wait))

    async def close(self) -> None:
        """
        Read no more, and give the lease back. Nothing is committed, but what L{commit} was given with
        C{wait=False}. After the log was closed, there is nothing left to do.
        """
        self._ready.clear()
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody asks for it
        with contextlib.suppress(DLedgerError):
            await self._wait(self._reader.close)

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
