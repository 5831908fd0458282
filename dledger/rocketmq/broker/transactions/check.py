# -*- test-case-name: tests.broker.transactions.test_check -*-
"""
Asks producers about half messages that nobody has ended (CHECK_TRANSACTION_STATE, 39).

A round begins every C{transaction_check_interval}. It reads the op messages, then walks through the half
messages from the first that has not ended:

    ended, or gone from the log         the next
    asked C{transaction_check_max} times, or older than the log's files are kept
                                        copied to L{DISCARDED_TOPIC}
    younger than its immunity           the round ends; one with an immunity of its own is copied to the end
                                        of the queue, so that others after it are asked about
    else                                copied to the end of the queue; its producer is asked about the copy

A copy counts as the end of the earlier half message, and names the first one. The broker's own offsets in the
two queues, which slaves and other masters know, move past what has ended; a question may be repeated after
a crash.

Rule 1: only a master asks. Rule 2: work is bounded in each turn of the reactor, and so is memory.
Rule 3: nothing is passed before its copy is stored.
Rule 4: ages are those of the broker's clock, from the first half message on. When a master begins it reads
which transactions have ended (L{dledger.rocketmq.broker.transactions.ends}), before the first round.

Source: TransactionalMessageServiceImpl.check, AbstractTransactionalMessageCheckListener (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from dledger.rocketmq.broker.common.config import BrokerConfig
from dledger.rocketmq.broker.common.own_address import OwnAddress
from dledger.rocketmq.broker.consuming.producers import Member, ProducerRights, ProducerTable, reads
from dledger.rocketmq.broker.ha.put_status import PutStatus
from dledger.rocketmq.broker.metadata.files import Metadata
from dledger.rocketmq.broker.puts.halves import (
    CHECK_TIMES,
    DISCARDED_TOPIC,
    FIRST_OFFSET,
    FIRST_STORED,
    HALF_QUEUE,
    HALF_TOPIC,
    IMMUNITY,
    OP_TOPIC,
    PRODUCER_GROUP,
    REAL_TOPIC,
    TRANSACTION_GROUP,
    UNIQUE_KEY,
    age_ms,
    copied,
    ended_offsets,
    first_of,
    number_in,
    real_place,
)
from dledger.rocketmq.broker.puts.puts import NotPut, Put, PutPipeline
from dledger.rocketmq.broker.store.queries import record_at
from dledger.rocketmq.broker.store.queues.queue_files import Unit
from dledger.rocketmq.broker.store.records.plain_records import PlainMessage
from dledger.rocketmq.broker.store.records.records import NewMessage
from dledger.rocketmq.broker.store.store import MessageStore
from dledger.rocketmq.broker.transactions.commands import immunity_ms
from dledger.rocketmq.broker.transactions.ends import TransactionEnds
from dledger.rocketmq.broker.transactions.ends_reading import EndsReading, first_place
from dledger.rocketmq.broker.transactions.topics import keep_topics
from dledger.values.errors import StoreError
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message, decode_message, encode_message, encode_properties

CHECK_TRANSACTION_STATE = 39

#: The most op messages, half messages, and bytes of copies of one turn.
TURN_OPS = TURN_HALVES = 128
TURN_BYTES = 1024 * 1024
#: Pause between two looks whether all messages are in their queues.
LOOK_S = 0.1
#: Ends that are remembered; more op messages are read when half messages have been passed.
ENDED_MAX = 1_000_000


class _Copy(NamedTuple):
    """
    A half message that is stored again.

    @ivar plain: C{message}, checked.
    @ivar asks: its producer is asked about the copy.
    """

    half: Message
    message: NewMessage
    plain: PlainMessage
    asks: bool


class TransactionCheckService:
    """
    Invariant: C{_call} is the scheduled turn, or None: it does not run, or a put is under way. Half messages
    before C{_half_at} have ended, and so have those that the op messages before C{_op_at} report.

    @ivar asked, discarded: numbers of half messages so far.
    """

    log = Logger()

    def __init__(
        self, config: BrokerConfig, store: MessageStore, metadata: Metadata, pipeline: PutPipeline,
        producers: ProducerTable, ends: TransactionEnds, *, own: OwnAddress, clock: IReactorTime,
        wall_ms: Callable[[], int],
        rights: ProducerRights | None = None,
    ) -> None:
        """
        @param wall_ms: milliseconds since 1970.
        @param rights: of the accounts; None: every producer may be asked.
        """
        self._rights = rights
        self._ends = ends
        self._config = config
        self._store = store
        self._metadata = metadata
        self._pipeline = pipeline
        self._producers = producers
        self._own = own
        self._clock = clock
        self._wall_ms = wall_ms
        self._call: IDelayedCall | None = None
        self._is_running = False
        self._runs = 0
        self._problem = ""
        self.asked = self.discarded = 0
        self._forget()

    def _forget(self) -> None:
        self._half_at = self._op_at = self._op_read_at = -1
        self._is_first = True
        self._round_end = 0
        self._ended: set[int] = set()
        self._reached: list[int] = []
        self._ops: deque[tuple[int, int]] = deque()

    @property
    def waiting(self) -> int:
        """
        Half messages from the first that has not ended on, without those that the last round has seen end; 0
        before it.
        """
        if self._half_at < 0:
            return 0
        begin, end = self._bounds(HALF_TOPIC)
        return max(0, end - max(self._half_at, begin) - len(self._ended))

    def start(self) -> None:
        """This broker is a master: ask from now on."""
        self._is_running = True
        self._runs += 1
        self._forget()
        self._reading = EndsReading(self._store, self._ends)
        self._call = self._clock.callLater(0, self._load)

    def stop(self) -> None:
        """Ask no more."""
        self._is_running = False
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _load(self) -> None:
        """Read some of the ends of before."""
        self._call = None
        try:
            if not self._reading.is_begun:
                if not self._store.has_dispatched(self._reading.bound):
                    self._call = self._clock.callLater(LOOK_S, self._load)
                    return
                self._find_begin()
                self._reading.begin(self._half_at, self._op_at)
            if self._reading.go_on():
                self._next_round()
                return
        except (StoreError, OSError) as error:
            self.log.warn("the ends of transactions cannot be read: {reason}", reason=str(error))
            self._call = self._clock.callLater(LOOK_S, self._load)
            return
        self._call = self._clock.callLater(0, self._load)

    def _next_round(self) -> None:
        self._call = self._clock.callLater(self._config.transaction_check_interval / 1000, self._round)

    def _round(self) -> None:
        self._round_end = self._bounds(HALF_TOPIC)[1]  # what is stored from here on has time
        self._turn()

    def _turn(self) -> None:
        self._call = None
        if self._pipeline.is_closed:
            return
        try:
            self._find_begin()
            if self._read_ops():
                self._call = self._clock.callLater(0, self._turn)
                return
            following, copies, is_over = self._walk()
            if copies:
                self._put(following, copies, is_over)
            else:
                self._passed(following, is_over)
        except (NotPut, StoreError, OSError, ValueError) as error:
            self._failed(str(error))

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self.log.warn("half messages have to wait: {reason}", reason=problem)
        if self._is_running:
            self._next_round()

    # -- offsets ---------------------------------------------------------------------------------

    def _bounds(self, topic: str) -> tuple[int, int]:
        queue = self._store.queues.get(topic, HALF_QUEUE)
        return (0, 0) if queue is None else (queue.begin_index, queue.next_index)

    def _find_begin(self) -> None:
        if self._half_at < 0:
            offsets = self._metadata.consumer_offsets
            for topic in (HALF_TOPIC, OP_TOPIC):
                begin, end = self._bounds(topic)
                known = offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE)
                at = begin if known is None else min(max(known, begin), end)
                if topic == HALF_TOPIC:
                    self._half_at = at
                else:
                    self._op_at = self._op_read_at = at
        self._half_at = max(self._half_at, self._bounds(HALF_TOPIC)[0])
        self._op_read_at = max(self._op_read_at, self._bounds(OP_TOPIC)[0])

    def _passed(self, following: int, is_over: bool) -> None:
        """All half messages before C{following} have ended, or have a copy."""
        self._half_at = following
        self._ended.difference_update(self._reached)
        while self._ops and self._ops[0][1] < following:
            self._op_at = self._ops.popleft()[0] + 1
        if not self._ops:
            self._op_at = self._op_read_at
        offsets, now_ms = self._metadata.consumer_offsets, self._wall_ms()
        for topic, at in ((HALF_TOPIC, self._half_at), (OP_TOPIC, self._op_at)):
            if at > 0 and offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE) != at:
                offsets.commit(TRANSACTION_GROUP, topic, HALF_QUEUE, at, now_ms)
        if self._problem:
            self._problem = ""
            self.log.info("half messages are examined again")
        if is_over:
            self._next_round()
        else:
            self._call = self._clock.callLater(0, self._turn)

    # -- op messages -----------------------------------------------------------------------------

    def _read_ops(self) -> bool:
        """Read some op messages. @return: whether there are more to read before half messages."""
        queue = self._store.queues.get(OP_TOPIC, HALF_QUEUE)
        if queue is None or self._op_read_at >= queue.next_index or len(self._ended) >= ENDED_MAX:
            self._is_first = False
            return False
        for unit in queue.read(self._op_read_at, TURN_OPS):
            op = self._read(unit)
            numbers = [] if op is None else ended_offsets(op)
            for number in numbers:
                if number >= self._half_at or self._is_first:
                    self._ended.add(number)
            self._ops.append((unit.queue_offset, max(numbers, default=-1)))
            self._op_read_at = unit.queue_offset + 1
        return True

    # -- half messages ---------------------------------------------------------------------------

    def _walk(self) -> tuple[int, list[_Copy], bool]:
        """
        Examine some half messages.

        @return: offset after them, the copies to store before it is passed, and whether the round is over.
        """
        queue = self._store.queues.get(HALF_TOPIC, HALF_QUEUE)
        copies: list[_Copy] = []
        at, size = self._half_at, 0
        self._reached = []
        if queue is None or at >= self._round_end:
            return at, [], True
        for unit in queue.read(at, min(TURN_HALVES, self._round_end - at)):
            if unit.queue_offset in self._ended:
                self._reached.append(unit.queue_offset)
                at = unit.queue_offset + 1
                continue
            if copies and size + unit.size > TURN_BYTES:
                return at, copies, False
            half = self._read(unit)
            if half is not None:
                found = self._examined(half)
                if found is None:
                    return at, copies, True
                if isinstance(found, _Copy):
                    copies.append(found)
                    size += unit.size
            at = unit.queue_offset + 1
        return at, copies, at >= self._round_end

    def _read(self, unit: Unit) -> Message | None:
        """The message of a unit; None if it is not in the log, or is damaged."""
        record = record_at(self._store, unit.offset)
        try:
            return None if record is None else decode_message(record)
        except WireError as error:
            self.log.error("skipping the message of a transaction at {offset}: {reason}",
                           offset=unit.offset, reason=str(error))
            return None

    def _examined(self, half: Message) -> _Copy | bool | None:
        """@return: the copy that it needs; True: none; None: it is too young, and so are those after it."""
        named, now_ms, config = half.properties, self._wall_ms(), self._config
        first = first_of(half)
        if self._ends.kind_of(first) is not None:
            self._reached.append(first)
            return True
        if first_place(self._store, half) < self._metadata.topics.begins_at(named.get(REAL_TOPIC, "")):
            self._reached.append(first)
            self.log.info("the half message at {offset} is over: its topic was deleted, and made again",
                          offset=half.physical_offset)
            return True
        count = number_in(named.get(CHECK_TIMES)) or 0
        age = age_ms(half, now_ms)  # below 0: the clock was set back, and nobody waits for it
        if count >= config.transaction_check_max or age > config.store.file_reserved_time_h * 3_600_000:
            self._reached.append(first)
            return self._discarded(half)
        named[FIRST_OFFSET], named[FIRST_STORED] = str(first), str(now_ms - age)
        if 0 <= age < immunity_ms(named.get(IMMUNITY), config.transaction_time_out):
            if not named.get(IMMUNITY):
                return None
            return self._copy(half, named, asks=False)
        self._reached.append(first)
        named[CHECK_TIMES] = str(count + 1)
        return self._copy(half, named, asks=True)

    def _copy(self, half: Message, named: dict[str, str], *, asks: bool) -> _Copy | bool:
        """A copy with these properties; one that would be too long with them is discarded."""
        try:
            message = copied(half, self._own.host, encode_properties(named))
            (plain,) = self._pipeline.checked([message])
        except ValueError:
            return self._discarded(half)
        return _Copy(half, message, plain, asks)

    def _discarded(self, half: Message) -> _Copy | bool:
        message = attrs.evolve(copied(half, self._own.host, half.properties_data), topic=DISCARDED_TOPIC)
        try:
            (plain,) = self._pipeline.checked([message])
        except ValueError as error:  # as after a change of the limits
            self.log.error("skipping the half message at {offset}: it cannot be stored again: {reason}",
                           offset=half.physical_offset, reason=str(error))
            return True
        return _Copy(half, message, plain, False)

    def _put(self, following: int, copies: list[_Copy], is_over: bool) -> None:
        keep_topics(self._metadata, self._wall_ms())
        put = self._pipeline.put([one.plain for one in copies])
        put.done.addCallback(self._stored, put, following, copies, is_over, self._runs)

    def _stored(
        self, status: PutStatus, put: Put, following: int, copies: list[_Copy], is_over: bool, run: int
    ) -> None:
        if not self._is_running or run != self._runs:
            return
        if not status.is_stored:
            self._failed(status.name)
            return
        for one, offset, queue_offset in zip(
            copies, put.placed.offsets, put.placed.queue_offsets, strict=True
        ):
            first = first_of(one.half)
            if one.message.topic == HALF_TOPIC:
                self._ends.copied(first, queue_offset)
            if one.asks:
                if self._ends.kind_of(first) is None:
                    self.asked += 1
                    self._ask(one, offset, queue_offset)
            elif one.message.topic == DISCARDED_TOPIC:
                self._ends.given_up(first)
                self.discarded += 1
                self.log.warn("the half message at {offset} has no end; it is kept in {topic}",
                              offset=one.half.physical_offset, topic=DISCARDED_TOPIC)
        self._passed(following, is_over)

    def _ask(self, copy: _Copy, offset: int, queue_offset: int) -> None:
        """
        Ask a producer of the group that may send to the topic: it gets the message. Without one, or without
        an answer, the next round asks again.
        """
        named, rights = copy.half.properties, self._rights
        try:
            topic, queue_id = real_place(copy.half)
        except ValueError:
            return  # after some rounds it is discarded

        def may_know(member: Member) -> bool:
            return rights is None or rights.may_publish(member, topic)

        member = self._producers.one_of(named.get(PRODUCER_GROUP, ""), may_know)
        if member is None or not reads(member):
            return
        body = encode_message(attrs.evolve(
            copy.half, topic=topic, queue_id=queue_id, properties_data=copy.message.properties_data,
            queue_offset=queue_offset, physical_offset=offset, store_timestamp=self._wall_ms(),
        ))
        key = named.get(UNIQUE_KEY, "")
        member.tell(RemotingCommand(code=CHECK_TRANSACTION_STATE, opaque=0, body=body, ext_fields={
            "tranStateTableOffset": str(queue_offset), "commitLogOffset": str(offset), "msgId": key,
            "transactionId": key, "topic": topic, "bname": self._config.broker_name,
            "offsetMsgId": f"{self._own.id_start.decode()}{offset:016X}",
        }))

