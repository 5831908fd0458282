# -*- test-case-name: tests.broker.client.test_native_tail -*-
"""
Reading a broker's commit log: whole records from an offset on, batch by batch, without a gap and without a
repeat, over any number of connections.

Rule 1: the reader keeps the next offset; a connection that brings any other offset is ended.
Rule 2: a lost broker is waited for: for ever when following a broker that has served before, else up to a
time-out.
Rule 3: at most one batch is requested ahead of the reader.

L{NativeTail} reads the log of a dledger broker. L{dledger.rocketmq.client.pull_tail.PullTail} reads
the messages that any broker's consumers see. Both are a L{Reading}.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, NotRequired, TypedDict, Unpack

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from dledger.base.sending.ahead import ReadingAhead
from dledger.base.sending.arguments import whole
from dledger.base.timing import Backoff
from dledger.rocketmq.client.link import BrokerLink, ask_native
from dledger.rocketmq.client.values import LogOffsets, LogRecords, split_records
from dledger.values.errors import DLedgerError
from protocols.rocketmq.broker import BrokerConnection
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.broker_frames import (
    PULL_OFFSET_MOVED,
    QUERY_NOT_FOUND,
    SUCCESS,
    OffsetsAnswer,
    OffsetsRequest,
    ReadAnswer,
    ReadRequest,
)

#: An offset, or one of the ends of the log.
From = int | Literal["begin", "end"]

#: Seconds before the end of the log is polled again, if the broker did not wait.
_POLL_S = 0.1


class ReadingOptions(TypedDict):
    """The options of a L{Reading}."""

    clock: IReactorTime
    rng: random.Random
    from_offset: From
    follow: bool
    timeout_s: NotRequired[float | None]
    answer_timeout_s: NotRequired[float]


class Reading(ReadingAhead[LogRecords | None]):
    """
    Base class of both readers: one batch ahead, and a broker that may be lost and return.

    @ivar next_offset: next offset to read; -1 until known.
    @ivar on_trouble: called with a sentence when the broker is lost, and with "" when it is back.
    """

    log = Logger()

    def __init__(
        self, link: BrokerLink, *, clock: IReactorTime, rng: random.Random, from_offset: From, follow: bool,
        timeout_s: float | None = 10.0, answer_timeout_s: float = 3.0,
    ) -> None:
        """
        @param link: a link that is used only here.
        @param from_offset: offset of a record; or the beginning, or the end, of the log.
        @param follow: read for ever; else end at the end of the log at the start.
        @param timeout_s: give up after that many seconds without service, unless C{follow} is set and the
            broker has served before; None: never.
        """
        super().__init__(lambda: None)
        if from_offset not in ("begin", "end"):
            from_offset = whole("from_offset", from_offset, hint="or 'begin', 'end'")
        self.next_offset = from_offset if isinstance(from_offset, int) else -1
        self.on_trouble: Callable[[str], None] = lambda _: None
        self._from = from_offset
        self._link = link
        self._clock = clock
        self._follow = follow
        self._timeout_s = timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._backoff = Backoff(rng=rng, most_s=1.0)
        self._served_s = clock.seconds()
        self._was_served = False
        self._problem: DLedgerError | None = None

    def next_batch(self) -> Deferred[LogRecords | None]:
        """
        @return: fires with at least one record; with None at the end (never when following). Fails with
            L{DLedgerError}: INDEX_LESS_THAN_LOCAL_BEGIN (expired; C{first_offset} is the first remaining
            offset, -1 if not known), INDEX_OUT_OF_RANGE (no record begins there), or the last problem of
            the broker.
        """
        return self._next_batch()

    def close(self) -> None:
        """Request nothing more, and end the connection; a waiting reader gets None."""
        super().close()
        self._link.close()

    async def _read_on(self) -> LogRecords | None:
        while not self._is_done:
            connection: BrokerConnection | None = None
            try:
                connection = await self._link.ready()
                batch = await self._serve(connection)
            except (DLedgerError, WireError) as error:
                if isinstance(error, DLedgerError) and error.code in _FINAL:
                    raise
                if connection is not None:
                    connection.abort(str(error))
                await self._left(error)
                continue
            if batch is not None:
                self.next_offset = batch.next_offset
                return batch
        self._is_done = True
        return None

    async def _serve(self, connection: BrokerConnection) -> LogRecords | None:
        """The next batch; None if there is none now, or at the end (C{_is_done})."""
        raise NotImplementedError

    def _served(self) -> None:
        self._served_s = self._clock.seconds()
        self._was_served = True
        self._backoff.reset()
        if self._problem is not None:
            self._problem = None
            self.on_trouble("")

    async def _left(self, error: DLedgerError | WireError) -> None:
        """Handle a lost broker: report it, then raise at the time-out or wait a little."""
        if not isinstance(error, DLedgerError):
            error = DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"{self._link.address}: {error}")
        if self._problem is None:
            reason = str(error.facts.get("reason", error))
            self.log.info("reading at {offset} interrupted: {reason}", offset=self.next_offset, reason=reason)
            self.on_trouble(reason)
        self._problem = error
        waited_s = self._clock.seconds() - self._served_s
        is_patient = self._timeout_s is None or (self._follow and self._was_served)
        if not is_patient and self._timeout_s is not None and waited_s >= self._timeout_s:
            raise error
        await deferLater(self._clock, self._backoff.next_s())


#: Codes of errors that waiting does not cure.
_FINAL = frozenset({
    ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, ResponseCode.INDEX_OUT_OF_RANGE, ResponseCode.UNSUPPORTED,
    ResponseCode.UNEXPECTED_ARGUMENT,
})


class NativeTail(Reading):
    """
    The commit log of a dledger broker, of any role and with the records of any writer.
    """

    def __init__(
        self, link: BrokerLink, *, batch_bytes_max: int = 1 << 20, wait_ms: int = 1_000,
        **options: Unpack[ReadingOptions],
    ) -> None:
        """
        @param batch_bytes_max: maximum bytes of records in a batch; a longer single record is also sent.
        @param wait_ms: milliseconds that the broker may wait for new records before it answers.
        @param options: options of L{Reading}.
        """
        super().__init__(link, **options)
        self._batch_bytes_max = batch_bytes_max
        self._wait_ms = wait_ms if self._follow else 0
        self._end_offset = -1
        self._is_placed = False

    async def _serve(self, connection: BrokerConnection) -> LogRecords | None:
        if self._link.wire_version < 1:
            raise DLedgerError(
                ResponseCode.UNSUPPORTED, reason=f"{self._link.address} does not understand native frames"
            )
        if not self._is_placed:
            await self._place(connection)
        if 0 <= self._end_offset <= self.next_offset:
            self._is_done = True
            return None
        request = ReadRequest(
            begin_offset=self.next_offset, max_bytes=self._batch_bytes_max, wait_ms=self._wait_ms
        )
        asked_s = self._clock.seconds()
        answer = await ask_native(
            connection, request, clock=self._clock, address=self._link.address,
            timeout_s=self._answer_timeout_s + self._wait_ms / 1000,
        )
        assert isinstance(answer, ReadAnswer)
        batch = self._judge(answer)
        if batch is None and self._follow and self._clock.seconds() - asked_s <= self._wait_ms / 2000:
            await deferLater(self._clock, _POLL_S)  # too many readers wait there already: poll
        return batch

    async def _place(self, connection: BrokerConnection) -> None:
        """Find where to begin and, unless following, where to end."""
        if self._follow and isinstance(self._from, int):
            self._is_placed = True
            return
        found = await log_offsets(connection, self._link, self._clock, self._answer_timeout_s)
        if not isinstance(self._from, int):
            self.next_offset = found.begin_offset if self._from == "begin" else found.end_offset
        if not self._follow:
            self._end_offset = found.end_offset
            if self.next_offset > found.end_offset:
                raise self._behind(found.end_offset)
        self._is_placed = True

    def _behind(self, end: int) -> DLedgerError:
        reason = f"{self._link.address}: its log ends at {end}, before offset {self.next_offset}"
        return DLedgerError(ResponseCode.INDEX_OUT_OF_RANGE, reason=reason)

    def _judge(self, answer: ReadAnswer) -> LogRecords | None:
        at, address = self.next_offset, self._link.address
        if answer.code == PULL_OFFSET_MOVED:
            first = answer.log_begin_offset
            raise DLedgerError(
                ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, first_offset=first,
                reason=f"{address}: offset {at} has expired; the log begins at {first}",
            )
        if answer.code == QUERY_NOT_FOUND:
            raise DLedgerError(ResponseCode.INDEX_OUT_OF_RANGE, reason=f"{address}: {answer.remark}")
        if answer.code != SUCCESS:
            raise DLedgerError(ResponseCode.INTERNAL_ERROR, reason=f"{address}: {answer.remark}")
        if answer.log_end_offset < at:
            error = self._behind(answer.log_end_offset)
            if not self._follow:
                raise error
            # The slave lags behind, or the log has lost its end: wait for it.
            if self._problem is None or self._problem.code is not error.code:
                self._problem = error
                self.on_trouble(str(error.facts["reason"]))
            return None
        self._served()
        if not answer.records:
            if answer.next_offset < at:
                raise WireError(f"asked for {at}, received next_offset={answer.next_offset}")
            self.next_offset = answer.next_offset
            return None
        begin = end = answer.begin_offset
        if begin < at:
            raise WireError(f"asked for {at}, received records from {begin}")
        last = self._end_offset if self._end_offset >= 0 else answer.next_offset
        for offset, record in split_records(answer.records):
            if offset != end:
                raise WireError(f"the record at {end} has offset {offset}")
            if end >= last:  # written after the start of the read
                self._is_done = True
                break
            end += len(record)
        following = end if self._is_done else answer.next_offset
        return LogRecords(next_offset=following, data=answer.records[: end - begin])


async def log_offsets(
    connection: BrokerConnection, link: BrokerLink, clock: IReactorTime, timeout_s: float
) -> LogOffsets:
    """
    Extent of a dledger broker's log.

    @raise DLedgerError: the broker does not answer, or answers with an error.
    """
    answer = await ask_native(
        connection, OffsetsRequest(), clock=clock, address=link.address, timeout_s=timeout_s
    )
    assert isinstance(answer, OffsetsAnswer)
    if answer.code != SUCCESS:
        raise DLedgerError(ResponseCode.INTERNAL_ERROR, reason=f"{link.address}: {answer.remark}")
    return LogOffsets(
        begin_offset=answer.begin_offset, end_offset=answer.end_offset, flushed_offset=answer.flushed_offset,
        file_size=answer.file_size, broker_id=answer.broker_id, broker_name=answer.broker_name,
        role=answer.broker_role,
    )
