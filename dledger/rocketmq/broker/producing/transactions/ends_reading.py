# -*- test-case-name: tests.broker.transactions.test_ends -*-
"""
Reads which transactions have ended, when a broker becomes a master: half messages, then op messages, some in
each call.

A crash, or a change of leaders, may have left a committed message at the end of the log, and not its op
message. Consumers have it, so its transaction has ended: the new master stores the op message.
"""

from __future__ import annotations

from twisted.logger import Logger

from dledger.rocketmq.broker.producing.halves import (
    END_KIND,
    HALF_QUEUE,
    HALF_TOPIC,
    OP_TOPIC,
    ended_offsets,
    first_of,
    number_in,
)
from dledger.rocketmq.broker.producing.transactions.ends import COMMIT, ROLLBACK, UNKNOWN_END, TransactionEnds
from dledger.rocketmq.store.store import MessageStore
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import TRANSACTION_MASK, SysFlag
from protocols.wire.rocketmq.message import Message, decode_message

#: Messages that one call reads, and those before the first that has not ended, for ends that come twice.
TURN_MESSAGES = 128
BEFORE = 4096


def first_place(store: MessageStore, half: Message) -> int:
    """
    Offset in the log of the first half message of a transaction: it says to which life of its topic the
    transaction belongs, for a copy may be stored when that life is over. Without the first one in its queue:
    that of the copy.

    @raise StoreError, OSError: reading failed.
    """
    first, queue = first_of(half), store.queues.get(HALF_TOPIC, HALF_QUEUE)
    if first == half.queue_offset or queue is None or not queue.begin_index <= first < queue.next_index:
        return half.physical_offset
    (unit,) = queue.read(first, 1)
    return unit.offset


class EndsReading:
    """
    Invariant: messages of a topic before the number in C{_at} are read.

    @ivar bound: end of the log when this broker became a master.
    @ivar is_begun: whether L{begin} was called.
    @ivar lacking: queue offsets of the half messages of a transaction that has ended without an op message.
    """

    log = Logger()

    def __init__(self, store: MessageStore, ends: TransactionEnds) -> None:
        """@param ends: begins empty, and is filled."""
        self._store = store
        self._ends = ends
        self._firsts: dict[int, int] = {}
        self._half_at = 0
        self._at: dict[str, int] = {}
        self._end: dict[str, int] = {}
        self.bound = store.log.record_end
        self._last = store.queues.last()
        self.is_begun = False
        self.lacking: list[int] = []
        ends.forget()

    def begin(self, half_at: int, op_at: int) -> None:
        """@param half_at, op_at: queue offsets: half messages before have ended, or have a copy after it."""
        self.is_begun = True
        self._ends.floor = self._half_at = half_at
        for topic, at in ((HALF_TOPIC, half_at), (OP_TOPIC, op_at)):
            queue = self._store.queues.get(topic, HALF_QUEUE)
            self._at[topic] = at if queue is None else max(at - BEFORE, queue.begin_index)
            self._end[topic] = at if queue is None else queue.next_index

    def go_on(self) -> bool:
        """
        Read some messages. @return: whether all are read.

        @raise StoreError, OSError: reading failed.
        """
        for topic, take in ((HALF_TOPIC, self._take_half), (OP_TOPIC, self._take_op)):
            queue = self._store.queues.get(topic, HALF_QUEUE)
            # What has expired meanwhile is passed over.
            at, end = max(self._at[topic], 0 if queue is None else queue.begin_index), self._end[topic]
            if at >= end:
                continue
            assert queue is not None, topic
            for unit in queue.read(at, min(TURN_MESSAGES, end - at)):
                record = self._store.sound.at(unit.offset)
                self._at[topic] = unit.queue_offset + 1
                try:
                    if record is not None:
                        take(decode_message(record, verify_body=False))
                except WireError as error:
                    self.log.error("a message of a transaction, at {offset}, is not read: {reason}",
                                   offset=unit.offset, reason=str(error))
            return False
        self._firsts = {}
        self._end_last()
        self._ends.is_loaded = True
        return True

    def _end_last(self) -> None:
        """The last message of the log was committed, and nothing says that its transaction has ended."""
        if self._last is None:
            return
        queue, index = self._last
        for unit in queue.read(index, 1) if queue.begin_index <= index < queue.next_index else ():
            record = self._store.sound.at(unit.offset)
            try:
                message = None if record is None else decode_message(record, verify_body=False)
                if message is None or message.sys_flag & TRANSACTION_MASK != SysFlag.COMMIT:
                    continue
                record = self._store.sound.at(message.prepared_transaction_offset)
                half = None if record is None else decode_message(record, verify_body=False)
            except WireError:
                continue
            if half is None or half.topic != HALF_TOPIC:
                continue
            first = first_of(half)
            copy = self._ends.copy_of(first)
            is_known = first >= self._ends.floor or copy is not None
            if is_known and self._ends.kind_of(first) is None:
                self.lacking = sorted({half.queue_offset, half.queue_offset if copy is None else copy})
                self._ends.add(first, COMMIT)

    def _take_half(self, half: Message) -> None:
        first = first_of(half)
        if first != half.queue_offset:
            self._firsts[half.queue_offset] = first
            if half.queue_offset >= self._half_at:
                self._ends.copied(first, half.queue_offset)

    def _take_op(self, op: Message) -> None:
        kind = number_in(op.properties.get(END_KIND))
        for offset in ended_offsets(op):
            known = kind if kind in (COMMIT, ROLLBACK) else UNKNOWN_END
            self._ends.add(self._firsts.get(offset, offset), known)
