# -*- test-case-name: tests.broker.client.test_blocking -*-
"""
A broker's client for programs without a reactor: put messages, read the log; every call blocks::

    with Broker("host:10911") as broker:
        broker.put("orders", b"hello", properties={"TAGS": "new"})
        for batch in broker.tail("begin"):
            for offset, record in batch.records(): ...

Times are in seconds. Programs with a reactor use L{dledger.rocketmq.client.producer.BrokerProducer}
and L{dledger.rocketmq.client.native_tail.NativeTail}.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import cast

import attrs
from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from dledger.base.reactor_thread import ReactorThread
from dledger.base.sending.arguments import seconds, whole
from dledger.base.sending.blocking_batches import BlockingBatches
from dledger.base.sending.bodies import BytesLike, as_body
from dledger.base.timing import Backoff
from dledger.base.tls.securing import dialling
from dledger.rocketmq.client.link import BrokerLink, broker_endpoints
from dledger.rocketmq.client.native_tail import From, NativeTail, Reading, ReadingOptions, log_offsets
from dledger.rocketmq.client.producer import BrokerProducer, PutLimits
from dledger.rocketmq.client.pull_tail import PullTail
from dledger.rocketmq.client.values import (
    LogOffsets,
    LogRecords,
    PutError,
    PutRefused,
    PutUnknown,
    Stored,
)
from dledger.values.addresses import parse_address
from dledger.values.errors import DLedgerError
from dledger.values.tls_files import TlsFiles
from protocols.rocketmq.broker import BrokerConnection
from protocols.rocketmq.signing import Credentials
from protocols.wire.codes import ResponseCode

_CONNECT_TIMEOUT_S = 3.0
#: Maximum number of messages in one call to the reactor; a window has several calls under way.
_CHUNK = 256


@attrs.frozen(kw_only=True)
class PutSummary:
    """
    Result of L{Broker.put_many}.

    @ivar count: number of messages, all of them stored.
    @ivar statuses: status to the number of messages with it.
    @ivar seconds: seconds from the start of the call to the last answer.
    """

    count: int
    statuses: Mapping[str, int]
    seconds: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.count / self.seconds if self.seconds > 0 else 0.0


class _Stream:
    """
    The messages of one L{Broker.put_many}, on the reactor's thread. After a message that was not
    acknowledged it sends nothing more, so the program knows of every hole.
    """

    def __init__(
        self, producer: BrokerProducer, topic: str, queue_id: int, properties: Mapping[str, str] | bytes,
        flag: int,
    ) -> None:
        self._put = partial(producer.put_many, topic, queue_id=queue_id, properties=properties, flag=flag,
                            stream=self)
        self._error: PutError | None = None

    def put(self, bodies: Sequence[bytes]) -> Deferred[tuple[Stored, ...]]:
        """See L{BrokerProducer.put_many}."""
        if self._error is not None:
            reason = "an earlier message was not acknowledged"
            return fail(PutRefused(self._error.code, refused=len(bodies), reason=reason))
        return self._put(bodies).addErrback(self._failed)

    def _failed(self, failure: Failure) -> Failure:
        if isinstance(failure.value, PutError):
            self._error = self._error or failure.value
        return failure


class Broker:
    """A client of one broker. Use it as a context manager, or L{close} it."""

    def __init__(
        self, address: str, timeout: float = 10.0, limits: PutLimits | None = None,
        credentials: Credentials | None = None, tls: TlsFiles | None = None,
    ) -> None:
        """
        @param address: C{host:port} of the broker's listen port.
        @param timeout: seconds in which a call has an outcome.
        @param credentials: of an account of a broker with access control.
        @param tls: connect by TLS; None: without.
        @raise ValueError: C{address} is malformed, or a file of C{tls} is not sound.
        """
        parse_address(address)
        timeout = seconds("timeout", timeout)
        dialling(tls)  # before a thread is started
        self._tls = tls
        self._credentials = credentials
        self.address = address
        self._timeout_s = timeout
        self._rng = random.Random()
        self._thread = ReactorThread(f"dledger-{address}")
        self._closing: list[Callable[[], None]] = []
        self._producer = BrokerProducer(
            self._link(), clock=self._thread.reactor, rng=self._rng, timeout_s=timeout, limits=limits
        )
        closing = self._closing
        closing.append(self._producer.close)
        self._thread.when_forgotten(lambda: [close() for close in closing])

    def _link(self) -> BrokerLink:
        reactor = self._thread.reactor
        endpoint = broker_endpoints(reactor, _CONNECT_TIMEOUT_S, self._tls)(self.address)
        return BrokerLink(self.address, endpoint, clock=reactor, credentials=self._credentials)

    # -- putting ---------------------------------------------------------------------------------

    def put(
        self, topic: str, body: BytesLike, *, queue_id: int = -1,
        properties: Mapping[str, str] | bytes = b"", flag: int = 0,
    ) -> Stored:
        """
        Store one message; see L{BrokerProducer.put}.

        @raise PutRefused: the message is certainly not stored.
        @raise PutUnknown: the message may be stored.
        """
        return self._thread.wait(
            lambda: self._producer.put(topic, body, queue_id=queue_id, properties=properties, flag=flag)
        )

    def put_many(
        self, topic: str, bodies: Iterable[BytesLike], *, window: int = 1000, queue_id: int = -1,
        properties: Mapping[str, str] | bytes = b"", flag: int = 0,
    ) -> PutSummary:
        """
        Store every body that C{bodies} yields, in order, with up to C{window} under way.

        @raise PutError: a message was not acknowledged. The call then pulls no more bodies, sends nothing
            more, and waits for the messages under way. L{PutUnknown} if any message may be stored without an
            acknowledgement, else L{PutRefused}. The fact C{acknowledged} is the number of stored messages.
        """
        window = whole("window", window, 1)
        started_s = time.monotonic()
        chunk_size = max(1, min(_CHUNK, window // 4))
        under_way: deque[tuple[int, Future[tuple[Stored, ...]]]] = deque()
        statuses: dict[str, int] = {}
        failures: list[PutError] = []
        pending = 0

        stream = _Stream(self._producer, topic, queue_id, properties, flag)

        def send(chunk: Sequence[bytes]) -> Future[tuple[Stored, ...]]:
            return self._thread.start(lambda: stream.put(chunk))

        def settle() -> int:
            count, future = under_way.popleft()
            try:
                runs = future.result()
            except PutError as error:
                failures.append(error)
                runs = error.stored
            for run in runs:
                statuses[run.status] = statuses.get(run.status, 0) + run.count
            return count

        for chunk in _chunks(bodies, chunk_size):
            while under_way and pending + len(chunk) > window:
                pending -= settle()
            if failures:
                break
            under_way.append((len(chunk), send(chunk)))
            pending += len(chunk)
        while under_way:
            settle()
        if failures:
            raise _joined(failures, sum(statuses.values()))
        return PutSummary(count=sum(statuses.values()), statuses=statuses,
                          seconds=time.monotonic() - started_s)

    # -- reading ---------------------------------------------------------------------------------

    def tail(
        self, from_offset: From = "begin", *, follow: bool = False, topics: Sequence[str] | None = None,
        on_trouble: Callable[[str], None] | None = None, batch_bytes_max: int = 1 << 20,
    ) -> BlockingBatches[LogRecords]:
        """
        Records of the commit log from an offset on, whole and in order.

        From a dledger broker, all records of its log. From a RocketMQ broker, only messages that its
        consumers see.

        @param follow: read for ever; else end at the end of the log at the start.
        @param topics: topics to read from a RocketMQ broker; None for all. A dledger broker ignores them,
            so the caller must filter the records.
        @param on_trouble: called, in the reactor's thread, with a sentence when the broker is lost and with
            an empty string when it is back.
        @return: after an error, or Ctrl-C, the next call goes on where it was.
        @raise DLedgerError: see L{Reading.next_batch}.
        """
        tail = _OpenedTail(lambda: self._open_tail(
            from_offset, follow, topics, on_trouble or (lambda _: None), batch_bytes_max
        ), self._closing)
        return BlockingBatches(self._thread, tail, tail.close)

    async def _open_tail(
        self, from_offset: From, follow: bool, topics: Sequence[str] | None,
        on_trouble: Callable[[str], None], batch_bytes_max: int,
    ) -> Reading:
        batch_bytes_max = whole("batch_bytes_max", batch_bytes_max, 1, (1 << 31) - 1)
        link = self._link()
        clock = self._thread.reactor
        await _connected(link, clock, self._rng, self._timeout_s)
        options: ReadingOptions = {
            "clock": clock, "rng": self._rng, "from_offset": from_offset, "follow": follow,
            "timeout_s": self._timeout_s,
        }
        tail: Reading
        if link.wire_version >= 1:
            tail = NativeTail(link, batch_bytes_max=batch_bytes_max, **options)
        else:
            tail = PullTail(link, topics=topics, batch_bytes_max=batch_bytes_max, **options)
        tail.on_trouble = on_trouble
        return tail

    def offsets(self) -> LogOffsets:
        """
        Extent of a dledger broker's log.

        @raise DLedgerError: the broker does not answer; UNSUPPORTED: it is not a dledger broker.
        """
        return self._thread.wait(lambda: Deferred.fromCoroutine(self._offsets()))

    async def _offsets(self) -> LogOffsets:
        link = self._link()
        try:
            connection = await _connected(link, self._thread.reactor, self._rng, self._timeout_s)
            if link.wire_version < 1:
                reason = f"{self.address} does not understand native frames"
                raise DLedgerError(ResponseCode.UNSUPPORTED, reason=reason)
            return await log_offsets(connection, link, self._thread.reactor, self._timeout_s)
        finally:
            link.close()

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End every connection; calls that wait in other threads fail."""

        def close_all() -> None:
            for close in tuple(self._closing):
                close()

        self._thread.stop(close_all)

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _OpenedTail:
    """
    A tail that is opened when it is first asked for a batch; the reactor's thread uses it.

    @ivar is_closed: L{close} was called.
    """

    def __init__(
        self, opens: Callable[[], Awaitable[Reading]], closing: list[Callable[[], None]]
    ) -> None:
        """@param closing: has what is to be called when the broker's client is closed."""
        self._opens = opens
        self._closing = closing
        self._tail: Reading | None = None
        self.is_closed = False

    def next_batch(self) -> Deferred[LogRecords]:
        """See L{Reading.next_batch}; None at the end."""
        return cast("Deferred[LogRecords]", Deferred.fromCoroutine(self._next_batch()))

    async def _next_batch(self) -> LogRecords | None:
        if self._tail is None:
            tail = await self._opens()
            if self.is_closed:
                tail.close()
                return None
            self._tail = tail
            self._closing.append(self.close)
        return await self._tail.next_batch()

    def close(self) -> None:
        """Request nothing more."""
        self.is_closed = True
        tail, self._tail = self._tail, None
        if tail is not None:
            self._closing.remove(self.close)
            tail.close()


async def _connected(
    link: BrokerLink, clock: IReactorTime, rng: random.Random, timeout_s: float
) -> BrokerConnection:
    """A connection, with retries until the time is over."""
    backoff = Backoff(rng=rng)
    started_s = clock.seconds()
    while True:
        try:
            return await link.ready()
        except DLedgerError:
            if clock.seconds() - started_s >= timeout_s:
                raise
        await deferLater(clock, backoff.next_s())


def _chunks(bodies: Iterable[BytesLike], size: int) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    for body in bodies:
        chunk.append(as_body(body))
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _joined(failures: Sequence[PutError], stored: int) -> PutError:
    first = failures[0]
    refused, unknown = sum(one.refused for one in failures), sum(one.unknown for one in failures)
    kind = PutUnknown if unknown else PutRefused
    make: Callable[..., PutError] = kind
    return make(first.code, refused=refused, unknown=unknown, **{**first.facts, "acknowledged": stored})
