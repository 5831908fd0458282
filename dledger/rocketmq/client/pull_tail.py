# -*- test-case-name: tests.broker.client.test_pull_tail -*-
"""
The messages of any RocketMQ broker in the order of their log offsets, read with a consumer's requests.

A RocketMQ broker does not show its log. Its consumers pull queues, and each record contains its log offset,
so this module merges the queues. Rounds make the result complete: first the broker reports to which offset
its queues are built, then every queue is read to that offset::

    28 GET_BROKER_RUNTIME_INFO -> how far   21 GET_ALL_TOPIC_CONFIG -> which queues
    30, 31 -> ends of a queue               11 PULL_MESSAGE -> records

Rule 1: a record is handed out when no queue can bring a record with a lower offset.
Rule 2: of each queue at most the records of one answer are held.

Messages outside of queues (half messages of transactions) are not shown. No offset is committed.

Source: PullMessageProcessor, AdminBrokerProcessor (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Unpack

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.defer import TimeoutError as DeferTimeoutError
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from dledger.rocketmq.client.link import BrokerLink
from dledger.rocketmq.client.native_tail import Reading, ReadingOptions
from dledger.rocketmq.client.values import LogRecords, split_records
from dledger.values.errors import DLedgerError
from protocols.rocketmq.broker import BrokerConnection
from protocols.rocketmq.commands import NotAsked
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError, WireError
from protocols.wire.fastjson import read_object
from protocols.wire.remoting import RemotingCommand

_PULL, _TOPICS, _RUNTIME_INFO = 11, 21, 28
_MAX_OFFSET, _MIN_OFFSET = 30, 31

#: Codes of answers to PULL_MESSAGE.
_FOUND, _NO_TOPIC, _NOT_FOUND, _RETRY, _MOVED = 0, 17, 19, 20, 21

#: Bit in the permissions of a topic.
_PERM_READ = 4

#: A consumer group that every broker knows from the start; no offsets are kept for it.
GROUP = "TOOLS_CONSUMER"
_PULLED_AT_ONCE = 32
#: Maximum number of requests under way.
_ASKED_AT_ONCE = 64
_QUEUES_MAX = 65_536
_POLL_S = 0.5


#: An action on each queue.
_Story = Callable[["_Queue"], Coroutine[Deferred[object], object, None]]


@attrs.define(eq=False)
class _Queue:
    """
    State of one queue in a round.

    @ivar following: next queue offset to read; -1: not known yet.
    @ivar held: offset and bytes of records that were not handed out yet.
    @ivar is_read: whether the queue brings no more records in this round beyond C{held}.
    """

    topic: str
    queue_id: int
    following: int = -1
    is_read: bool = False
    held: deque[tuple[int, bytes]] = attrs.Factory(deque)


class PullTail(Reading):
    """
    The messages that a RocketMQ broker's consumers see.

    @ivar topics: topics to read; None for all.
    """

    def __init__(
        self, link: BrokerLink, *, topics: Sequence[str] | None = None, batch_bytes_max: int = 1 << 20,
        **options: Unpack[ReadingOptions],
    ) -> None:
        """
        @param options: options of L{Reading}. C{from_offset} may be any offset; messages before it are
            left out.
        """
        super().__init__(link, **options)
        self.topics = None if topics is None else tuple(topics)
        self._batch_bytes_max = batch_bytes_max
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._bound = -1
        self._is_first = True

    # -- rounds ----------------------------------------------------------------------------------

    async def _serve(self, connection: BrokerConnection) -> LogRecords | None:
        if self._bound < 0:
            await self._begin_round(connection)
        await self._fill(connection)
        self._served()
        batch = self._merged()
        if batch is None:
            self._bound = -1
            if not self._follow:
                self._is_done = True
                return None
            await deferLater(self._clock, _POLL_S)
        return batch

    async def _begin_round(self, connection: BrokerConnection) -> None:
        """Ask to which offset the queues are built, and only then list the queues, to miss none."""
        if self._from == "end" and self.next_offset < 0:
            # Read the ends before the bound: messages that arrive in between are found as new ones.
            await self._find_queues(connection)
            await self._each(
                list(self._queues.values()), lambda queue: self._go_to(connection, queue, _MAX_OFFSET)
            )
        info = _table((await self._ask(connection, RemotingCommand(code=_RUNTIME_INFO, opaque=0))).body)
        begin, end = _number(info, "commitLogMinOffset"), _number(info, "commitLogMaxOffset")
        # The broker reads its end before it counts the bytes to dispatch, so the bound is never too high.
        bound = max(0, end - _number(info, "dispatchBehindBytes"))
        if self._is_first and isinstance(self._from, int) and self._from < begin:
            raise self._expired(f"offset {self._from}", f"the log begins at {begin}", begin)
        if self.next_offset < 0:
            self.next_offset = begin if self._from == "begin" else bound
        await self._find_queues(connection)
        new = [queue for queue in self._queues.values() if queue.following < 0]
        await self._each(new, lambda queue: self._place(connection, queue))
        for queue in self._queues.values():
            queue.is_read = False
        self._bound = bound
        self._is_first = False

    async def _find_queues(self, connection: BrokerConnection) -> None:
        body = (await self._ask(connection, RemotingCommand(code=_TOPICS, opaque=0))).body
        topics = _object(_read(body).get("topicConfigTable"), "topicConfigTable")
        missing = [name for name in self.topics or () if name not in topics]
        if missing and not self._follow:
            raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT,
                               reason=f"{self._link.address} has no topic {', '.join(missing)}")
        for name, config in topics.items():
            if self.topics is not None and name not in self.topics:
                continue
            settings = _object(config, name)
            if not _number(settings, "perm") & _PERM_READ:
                if self.topics is None:
                    continue  # brokers of 5.x have such internal topics
                raise DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT,
                                   reason=f"{self._link.address}: topic {name} must not be read")
            count = max(_number(settings, "readQueueNums"), _number(settings, "writeQueueNums"))
            for queue_id in range(min(count, _QUEUES_MAX)):
                self._queues.setdefault((name, queue_id), _Queue(name, queue_id))
        if len(self._queues) > _QUEUES_MAX:
            raise DLedgerError(
                ResponseCode.UNEXPECTED_ARGUMENT,
                reason=f"{self._link.address} has more than {_QUEUES_MAX} queues: name the topics to read",
            )

    async def _place(self, connection: BrokerConnection, queue: _Queue) -> None:
        """Find the first message of a queue at or after the wanted offset."""
        low = await self._end_of(connection, queue, _MIN_OFFSET)
        if self._from == "begin" or not self._is_first:
            queue.following = low
            return
        high = await self._end_of(connection, queue, _MAX_OFFSET)
        while low < high:
            middle = (low + high) // 2
            records, following = await self._pull(connection, queue, middle, count=1)
            if records and records[0][0] < self.next_offset:
                low = max(following, middle + 1)
            elif records or not middle < following <= high:
                high = middle
            else:
                low = following  # messages before it have expired
        queue.following = low

    async def _go_to(self, connection: BrokerConnection, queue: _Queue, code: int) -> None:
        queue.following = await self._end_of(connection, queue, code)

    async def _end_of(self, connection: BrokerConnection, queue: _Queue, code: int) -> int:
        fields = {"topic": queue.topic, "queueId": str(queue.queue_id)}
        answer = await self._ask(connection, RemotingCommand(code=code, opaque=0, ext_fields=fields))
        return max(0, _number(answer.ext_fields, "offset"))

    # -- reading ---------------------------------------------------------------------------------

    async def _fill(self, connection: BrokerConnection) -> None:
        """Pull until each queue holds records, or brings no more in this round."""
        while True:
            empty = [queue for queue in self._queues.values() if not (queue.held or queue.is_read)]
            if not empty:
                return
            await self._each(empty, lambda queue: self._pull_more(connection, queue))

    async def _pull_more(self, connection: BrokerConnection, queue: _Queue) -> None:
        asked = queue.following
        records, following = await self._pull(connection, queue, asked, count=_PULLED_AT_ONCE)
        if following < 0:  # the topic has been deleted
            queue.is_read = True
            return
        if not records and following <= asked:
            queue.is_read = True
        queue.following = max(following, asked)
        queue.held += [one for one in records if one[0] >= self.next_offset]

    async def _pull(
        self, connection: BrokerConnection, queue: _Queue, offset: int, *, count: int
    ) -> tuple[list[tuple[int, bytes]], int]:
        """Offset and bytes of records, and the next queue offset to read; -1: the queue was deleted."""
        fields = {
            "consumerGroup": GROUP, "topic": queue.topic, "queueId": str(queue.queue_id),
            "queueOffset": str(offset), "maxMsgNums": str(count), "sysFlag": "4", "commitOffset": "0",
            "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        }
        command = RemotingCommand(code=_PULL, opaque=0, ext_fields=fields)
        answer = await self._ask(connection, command, also=(_NOT_FOUND, _RETRY, _MOVED, _NO_TOPIC))
        if answer.code == _NO_TOPIC:
            return [], -1
        following = _number(answer.ext_fields, "nextBeginOffset")
        first = _number(answer.ext_fields, "minOffset")
        if offset < first and count > 1:
            where = f"message {offset} of {queue.topic}, queue {queue.queue_id},"
            raise self._expired(where, f"the first remaining message is {first}", -1)
        if answer.code != _FOUND:
            return [], following
        if following <= offset:
            raise WireError(f"{queue.topic}, queue {queue.queue_id}: nextBeginOffset={following} at {offset}")
        return list(split_records(answer.body)), following

    def _merged(self) -> LogRecords | None:
        """The records to hand out: no queue can bring a record with a lower offset. None if none."""
        parts: list[bytes] = []
        size, last = 0, -1
        heap = [(queue.held[0][0], at, queue) for at, queue in enumerate(self._queues.values()) if queue.held]
        heapify(heap)
        while heap and size < self._batch_bytes_max and heap[0][0] < self._bound:
            last, at, queue = heap[0]
            record = queue.held.popleft()[1]
            parts.append(record)
            size += len(record)
            if queue.held:
                heapreplace(heap, (queue.held[0][0], at, queue))
            elif queue.is_read:
                heappop(heap)
            else:
                break  # the next record of this queue may precede those of the others
        if not parts:
            return None
        return LogRecords(next_offset=last + len(parts[-1]), data=b"".join(parts))

    def _expired(self, what: str, instead: str, first_offset: int) -> DLedgerError:
        return DLedgerError(
            ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, first_offset=first_offset,
            reason=f"{self._link.address}: {what} has expired; {instead}",
        )

    # -- asking ----------------------------------------------------------------------------------

    async def _each(self, queues: Sequence[_Queue], story: _Story) -> None:
        """Run C{story} for every queue, C{_ASKED_AT_ONCE} at a time; the first error fails all."""
        for at in range(0, len(queues), _ASKED_AT_ONCE):
            stories = [Deferred.fromCoroutine(story(queue)) for queue in queues[at : at + _ASKED_AT_ONCE]]
            try:
                await gatherResults(stories, consumeErrors=True)
            except Exception as error:
                failure = getattr(error, "subFailure", None)  # twisted.internet.defer.FirstError
                for one in stories:
                    one.addErrback(lambda _: None)
                    one.cancel()
                if isinstance(failure, Failure):
                    failure.raiseException()
                raise

    async def _ask(
        self, connection: BrokerConnection, command: RemotingCommand, also: Sequence[int] = ()
    ) -> RemotingCommand:
        """@raise DLedgerError: there is no answer, or its code is neither 0 nor in C{also}."""
        address = self._link.address
        try:
            answer = await connection.ask(command).addTimeout(self._answer_timeout_s, self._clock)
        except DeferTimeoutError:
            reason = f"{address} did not answer {command.code} within {self._answer_timeout_s:g} s"
            raise DLedgerError(ResponseCode.TIMEOUT, reason=reason) from None
        except NotAsked as error:
            raise DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"{address}: {error}") from None
        if answer.code and answer.code not in also:
            raise DLedgerError(
                ResponseCode.INTERNAL_ERROR, broker_code=answer.code,
                reason=f"{address} answers {command.code} with {answer.code}: {answer.remark}",
            )
        return answer


def _read(body: bytes) -> dict[str, object]:
    try:
        return read_object(body)
    except BodyError as error:
        raise WireError(str(error)) from None


def _object(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise WireError(f"{name} is not an object")
    return value


def _table(body: bytes) -> dict[str, object]:
    return _object(_read(body).get("table"), "table")


def _number(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise WireError(f"{name}={str(value)[:80]!r} is not a number")
    return int(text)
