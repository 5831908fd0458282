# -*- test-case-name: tests.broker.transactions.test_check -*-
"""
How far a master has examined the half messages, and read the op messages, which report their ends.

The broker's own offsets in the two queues, which slaves and other masters know, move past what has ended; a
question may be repeated after a crash.

Source: TransactionalMessageServiceImpl.check, fillOpRemoveMap (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections import deque

from twisted.logger import Logger

from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.halves import (
    HALF_QUEUE,
    HALF_TOPIC,
    OP_TOPIC,
    TRANSACTION_GROUP,
    ended_offsets,
)
from dledger.rocketmq.broker.producing.transactions.topics import keep_topics
from dledger.rocketmq.store.queues.queue_begins import index_at
from dledger.rocketmq.store.queues.queue_files import Unit
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.message import Message, decode_message

#: The most op messages of one turn.
TURN_OPS = 128
#: Ends that are remembered; more op messages are read when half messages have been passed.
ENDED_MAX = 1_000_000


class HalfProgress:
    """
    Invariant: half messages before C{half_at} have ended, and so have those that the op messages before
    C{op_at} report.

    @ivar half_at: number of the first half message to examine; -1: L{find_begin} was not called.
    @ivar op_at: number of the first op message that is still needed.
    @ivar ended: numbers of half messages that op messages report as ended.
    @ivar reached: those of them, and of first half messages, that are not needed once this turn has passed.
    """

    log = Logger()

    def __init__(self, inside: BrokerInside) -> None:
        self._store = inside.store
        self._metadata = inside.metadata
        self._wall_ms = inside.wall_ms
        self.forget()

    def forget(self) -> None:
        """Begin at the offsets that are known, in the log as it is now."""
        self._bound = self._store.log.record_end
        self.half_at = self.op_at = self._op_read_at = -1
        self._is_first = True
        self.ended: set[int] = set()
        self.reached: list[int] = []
        self._ops: deque[tuple[int, int]] = deque()

    @property
    def waiting(self) -> int:
        """
        Half messages from the first that has not ended on, without those that the last round has seen end; 0
        before it.
        """
        if self.half_at < 0:
            return 0
        begin, end = self.bounds(HALF_TOPIC)
        return max(0, end - max(self.half_at, begin) - len(self.ended))

    def bounds(self, topic: str) -> tuple[int, int]:
        """First and next number of a queue."""
        queue = self._store.queues.get(topic, HALF_QUEUE)
        return (0, 0) if queue is None else (queue.begin_index, queue.next_index)

    def find_begin(self) -> None:
        """Begin where the broker's own offsets say, but not before the first messages of the queues."""
        if self.half_at < 0:
            offsets = self._metadata.consumer_offsets
            for topic in (HALF_TOPIC, OP_TOPIC):
                queue = self._store.queues.get(topic, HALF_QUEUE)
                begin = 0 if queue is None else queue.begin_index
                # A former master may have been further than the log of this one: what came since this one
                # began has the numbers of messages that are lost.
                end = 0 if queue is None else index_at(queue, self._bound)
                known = offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE)
                at = begin if known is None else min(max(known, begin), end)
                if topic == HALF_TOPIC:
                    self.half_at = at
                else:
                    self.op_at = self._op_read_at = at
        self.half_at = max(self.half_at, self.bounds(HALF_TOPIC)[0])
        self._op_read_at = max(self._op_read_at, self.bounds(OP_TOPIC)[0])

    def read_ops(self) -> bool:
        """Read some op messages. @return: whether there are more to read before half messages."""
        queue = self._store.queues.get(OP_TOPIC, HALF_QUEUE)
        if queue is None or self._op_read_at >= queue.next_index or len(self.ended) >= ENDED_MAX:
            self._is_first = False
            return False
        for unit in queue.read(self._op_read_at, TURN_OPS):
            op = self.read(unit)
            numbers = [] if op is None else ended_offsets(op)
            for number in numbers:
                if number >= self.half_at or self._is_first:
                    self.ended.add(number)
            self._ops.append((unit.queue_offset, max(numbers, default=-1)))
            self._op_read_at = unit.queue_offset + 1
        return True

    def read(self, unit: Unit) -> Message | None:
        """The message of a unit; None if it is not in the log, or is damaged."""
        record = self._store.sound.at(unit.offset)
        try:
            return None if record is None else decode_message(record)
        except WireError as error:
            self.log.error("skipping the message of a transaction at {offset}: {reason}",
                           offset=unit.offset, reason=str(error))
            return None

    def passed(self, following: int) -> None:
        """All half messages before C{following} have ended, or have a copy."""
        self.half_at = following
        self.ended.difference_update(self.reached)
        while self._ops and self._ops[0][1] < following:
            self.op_at = self._ops.popleft()[0] + 1
        if not self._ops:
            self.op_at = self._op_read_at
        offsets, now_ms = self._metadata.consumer_offsets, self._wall_ms()
        for topic, at in ((HALF_TOPIC, self.half_at), (OP_TOPIC, self.op_at)):
            if at > 0 and offsets.query(TRANSACTION_GROUP, topic, HALF_QUEUE) != at:
                offsets.commit(TRANSACTION_GROUP, topic, HALF_QUEUE, at, now_ms)

    def keep_topics(self) -> None:
        """Have the topics for copies, before one is stored."""
        keep_topics(self._metadata, self._wall_ms())
