# -*- test-case-name: tests.aio.test_log,tests.aio.test_readers,tests.aio.test_tail -*-
"""
A group's log for programs with an asyncio event loop.

A L{AsyncLog} belongs to the loop in which it was opened, asyncio's or uvloop's, and to its process; it has no
thread, and no second reactor. Cancelling a call stops the wait, not the append: its outcome is then unknown
to the program::

    async with dledger.AsyncLog("n0-host:20911;n1-host:20911;n2-host:20911") as log:
        index = (await log.append(b"hello")).index
        async for entry in log.tail(index, follow=True):
            ...

Rule 1: an error or a cancellation ends the wait for entries, not the iterator: the next call goes on, and
leaves nothing out.
Rule 2: an iterator that was closed, or whose end was reached, stays at its end. One that is no longer needed
is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, TypeVar, Unpack

from twisted.internet.defer import Deferred

from dledger.base.forks import OpenedHere
from dledger.base.sending.bodies import BytesLike
from dledger.client.appender import AppendOutcome
from dledger.client.client import LogClient
from dledger.client.connect_options import AppendLimits, LogKeywords, checked_keywords
from dledger.client.enveloping import Headers, keyed
from dledger.client.event_loop import LoopClock, LoopConnections
from dledger.client.places import Place
from dledger.client.readers import NamedReader
from dledger.client.tail_batch import TailBatch
from dledger.client.tails import TailReading
from dledger.client.values import Appended, Entry, LastSequence, MemberInfo
from dledger.values.addresses import DEFAULT_MEMBERS
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.readers import ReaderInfo

_T = TypeVar("_T")
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


#: Seconds that L{AsyncLog.close} waits for the end of the connections.
_CLOSE_S = 2.0


class AsyncLog:
    """
    A group's log. Use it with C{async with}, or L{close} it.
    """

    def __init__(
        self,
        peers: str | Mapping[str, str] = DEFAULT_MEMBERS,
        group: str = "default",
        timeout: float = 10.0,
        wire: str = "auto",
        limits: AppendLimits | None = None,
        **options: Unpack[LogKeywords],
    ) -> None:
        """
        @param peers: C{n0-host:port;n1-host:port}; some of the members are enough. Default: the group of one
            that C{twistd dledger} starts without options, C{n0-127.0.0.1:20911}.
        @param timeout: seconds in which a call has an outcome, retries included.
        @param limits: bounds of appends; by default, a call beyond them waits.
        @param group, wire, options: C{answer_timeout_s}, C{is_ordered}, C{exactly_once}, C{envelope},
            C{tls}, C{token}: see L{ConnectOptions<dledger.client.connect_options.ConnectOptions>}.
        @raise RuntimeError: no event loop runs here.
        @raise ValueError: C{peers} is malformed, or a file of C{tls} is not sound.
        """
        checked_keywords(options)
        self._loop = asyncio.get_running_loop()
        self._opened = OpenedHere()
        self._connections = LoopConnections(self._loop, min(timeout, 2.0))
        self._is_closed = False
        self._client = LogClient(
            peers, reactor=LoopClock(self._loop), endpoint_for=self._connections.endpoint_for, group=group,
            timeout_s=timeout, wire=wire, limits=limits or AppendLimits(when_full="wait"), **options,
        )

    async def append(
        self, body: BytesLike, *, expected_end: int | None = None, producer: str | None = None,
        sequence: int | None = None, headers: Headers = None, key: BytesLike | None = None,
    ) -> Appended:
        """
        Append one entry; returns when it is committed. Calls of one task are in order; many tasks may append
        at once, and their bodies share frames.

        @param body: 0 to 4194256 bytes.
        @param expected_end: append only if this is the last index of the log; see L{LogClient.append}.
        @param producer, sequence: append only if the log has none of both; see L{LogClient.append}.
        @param headers, key: shown to readers beside the body; see L{LogClient.append}.
        @raise Conflict: the log does not end at C{expected_end}.
        @raise OutOfSequence: C{sequence} does not follow the last one of the producer.
        @raise AppendFailed: the entry is certainly not in the log.
        @raise UnknownOutcome: the entry may be in the log, now or later.
        """
        if key is not None:
            headers = keyed(headers, key)
        if expected_end is not None or producer is not None or sequence is not None:
            return await self._wait(lambda: self._client.append(
                body, expected_end=expected_end, producer=producer, sequence=sequence, headers=headers
            ))
        (appended,) = await self._append((body,), headers)
        return appended

    async def append_many(
        self, bodies: Sequence[BytesLike], *, producer: str | None = None, sequence: int | None = None,
        headers: Headers = None, key: BytesLike | None = None,
    ) -> tuple[Appended, ...]:
        """
        Append C{bodies} in order.

        @param producer, sequence: both or none: of the first body; see L{LogClient.append_many}.
        @param headers, key: of each body; see L{LogClient.append}.
        @return: the runs of consecutive indexes of the bodies, in order; entries of other writers may lie
            between two runs.
        @raise AppendError: a body was not acknowledged; the error names the others. L{UnknownOutcome
            <dledger.client.errors.UnknownOutcome>} if any body may be in the log without an
            acknowledgement.
        """
        if key is not None:
            headers = keyed(headers, key)
        if producer is not None or sequence is not None:
            return await self._wait(lambda: self._client.append_many(
                bodies, producer=producer, sequence=sequence, headers=headers
            ))
        return await self._append(bodies, headers)

    async def _append(self, bodies: Sequence[BytesLike], headers: Headers) -> tuple[Appended, ...]:
        self._check()
        waiter: asyncio.Future[tuple[Appended, ...]] = self._loop.create_future()
        self._client.submit(bodies, partial(_notify, waiter), headers=headers)
        return await waiter

    async def submit(
        self, command: BytesLike, *, producer: str | None = None, sequence: int | None = None
    ) -> bytes:
        """
        Append a command for the state machine of the group, which applies it once; returns what the machine
        made of it.

        @param producer, sequence: the program numbers its commands, see L{LogClient.submit_command}.
        @raise CommandRefused: the machine has refused the command, which is in the log.
        @raise AppendFailed: the command is certainly not in the log.
        @raise UnknownOutcome: it may be in the log, now or later.
        """
        return await self._wait(
            lambda: self._client.submit_command(command, producer=producer, sequence=sequence)
        )

    async def query(self, query: BytesLike, *, max_age: float | None = None) -> bytes:
        """
        Ask the state machine of the group. See L{LogClient.query}.

        @param max_age: seconds by which the state may be old; None: it has all that was committed before.
        """
        return await self._wait(lambda: self._client.query(query, max_age_s=max_age))

    async def get(self, index: int, consistency: Consistency | str = Consistency.LINEARIZABLE) -> Entry:
        """
        Read one entry; see L{LogClient.get}.

        @raise DLedgerError: INDEX_OUT_OF_RANGE, INDEX_LESS_THAN_LOCAL_BEGIN, or the last error before the
            deadline.
        """
        return await self._wait(lambda: self._client.get(index, consistency))

    def tail(
        self, from_index: int = 0, follow: bool = False, timeout: float | None = None, *,
        control: bool = False,
    ) -> AsyncEntries:
        """
        Committed entries from C{from_index} on::

            async for entry in log.tail(-10, follow=True):
                ...

        @param from_index: first index; a negative one counts back from the committed end.
        @param follow: read for ever; else end at the committed index of the start.
        @param timeout: raise an error after that many seconds without a serving member. Default: never when
            following, else the time-out of the log. For the time without a new entry use C{asyncio.timeout}
            around C{anext}; the next one goes on where this one was.
        @param control: also show the log's own entries; see L{LogClient.tail}.
        @raise Restored: the members have another group's log than before.
        """
        tail = self._client.tail(from_index, follow, timeout_s=timeout, control=control)
        return AsyncEntries(AsyncBatches(self._wait, tail, self._drop))

    def tail_batches(
        self, from_index: int = 0, follow: bool = False, timeout: float | None = None, *,
        control: bool = False,
    ) -> AsyncBatches[TailBatch]:
        """As L{tail}, many entries at a time; see L{LogClient.tail_batches}."""
        tail = self._client.tail_batches(from_index, follow, timeout_s=timeout, control=control)
        return AsyncBatches(self._wait, tail, self._drop)

    def _drop(self, close: Callable[[], None]) -> None:
        """Close a tail that nobody has any more; called in any thread."""
        if self._opened.is_here:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(close)

    def reader(
        self, name: str, *, begin: Place = 0, share: int = 0, lease_s: float = 10.0, follow: bool = True,
        timeout: float | None = None, holder: str = "",
    ) -> AsyncReader:
        """
        Read as a named reader: from the entry after the last one that a process of this name has committed::

            async with log.reader("billing") as reader:
                async for entry in reader:
                    ...
                    await reader.commit()

        @param timeout: seconds to wait while other processes have the entries.
        @param begin, share, lease_s, follow, holder: see L{LogClient.reader}.
        @raise DLedgerError: UNEXPECTED_ARGUMENT: the name or the holder is malformed.
        """
        self._check()
        return AsyncReader(self._wait, self._client.reader(
            name, begin=begin, share=share, lease_s=lease_s, follow=follow, timeout_s=timeout, holder=holder
        ))

    async def readers(self) -> tuple[ReaderInfo, ...]:
        """The named readers of the group and their lag, by name."""
        return await self._wait(self._client.readers)

    async def last_sequence(self, producer: str) -> LastSequence | None:
        """The last sequence of a producer; None: it never had one. See L{LogClient.last_sequence}."""
        return await self._wait(lambda: self._client.last_sequence(producer))

    async def find_time(self, moment: datetime) -> int:
        """Find the entries of a time. See L{LogClient.find_time}."""
        return await self._wait(lambda: self._client.find_time(moment))

    async def move_reader(self, name: str, index: Place) -> int:
        """Put a named reader to an entry, forward or back. See L{LogClient.move_reader}."""
        return await self._wait(lambda: self._client.move_reader(name, index))

    async def forget_reader(self, name: str) -> None:
        """Forget a named reader. See L{LogClient.forget_reader}."""
        await self._wait(lambda: self._client.forget_reader(name))

    async def status(self) -> tuple[MemberInfo, ...]:
        """The status of each member; a member that does not answer within 2 s has a C{problem}."""
        return await self._wait(self._client.status)

    async def metadata(self) -> MemberInfo:
        """The leader's own status. @raise DLedgerError: no leader answered in time."""
        return await self._wait(self._client.metadata)

    async def transfer(self, to: str, term: int | None = None) -> int:
        """Hand leadership over to member C{to}; returns the new term. See L{LogClient.transfer}."""
        return await self._wait(lambda: self._client.transfer(to, term=term))

    async def close(self) -> None:
        """End every connection; calls that wait in other tasks fail, their appends may be unknown."""
        if self._is_closed or not self._opened.is_here:
            return
        self._is_closed = True
        self._client.close()
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._connections.closed()
        except TimeoutError:
            self._connections.abort()

    async def __aenter__(self) -> AsyncLog:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _wait(self, call: Callable[[], Deferred[_T]]) -> Awaitable[_T]:
        self._check()
        return call().asFuture(self._loop)

    def _check(self) -> None:
        self._opened.check()
        if asyncio.get_running_loop() is not self._loop:
            raise DLedgerError(
                ResponseCode.UNSUPPORTED,
                reason="opened in another event loop: open a log in each loop that uses one",
            )
        if self._is_closed:
            raise DLedgerError(ResponseCode.NETWORK_ERROR, reason="the log is closed")


def _notify(waiter: asyncio.Future[tuple[Appended, ...]], outcome: AppendOutcome) -> None:
    if waiter.done():
        return  # the caller was cancelled
    if isinstance(outcome, Exception):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)
