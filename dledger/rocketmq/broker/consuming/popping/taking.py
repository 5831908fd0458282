# -*- test-case-name: tests.broker.popping.test_pops -*-
"""
Finds the messages that a pop can have: in the queues of its topic, and in those of the group's retries.

Rule 1: no two pops at once take messages of a queue for a group; see L{PopTaking.locked}.
Rule 2: a group holds at most about L{UNACKED_MAX} messages of a queue; then it gets none until some are done.

Source: PopMessageProcessor.popMsgFromQueue (5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.consuming.popping.check_points import CheckPoint, PopKey, kind_of
from dledger.rocketmq.broker.consuming.popping.first_offsets import FirstOffsets
from dledger.rocketmq.broker.consuming.popping.given import Taken
from dledger.rocketmq.broker.consuming.popping.in_order import InOrder
from dledger.rocketmq.broker.consuming.popping.pop_requests import FROM_FIRST, PopRequest
from dledger.rocketmq.broker.consuming.popping.popped import GroupQueue
from dledger.rocketmq.broker.consuming.popping.retries import RetryTopics
from dledger.rocketmq.broker.consuming.popping.revive import ReviveService
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.store.queries import GetStatus, Got, get_messages
from dledger.values.errors import StoreError

#: With this many messages of a queue not acknowledged by a group, the group gets no more of it
#: (C{popInflightMessageThreshold}).
UNACKED_MAX = 10_000
#: The most queues from which one request reads messages.
READS_MAX = 32
#: The most queues for which one request commits the first offset of its group. (A topic may have 65,535
#: queues, and every client may name a new group.)
FIRSTS_MAX = 256
#: One search in this number begins with the topics of retries (C{popFromRetryProbability}).
RETRIES_FIRST = 5


class PopTaking:
    """
    The queues of a broker, for pops.

    @ivar begins: where a group begins that pops a queue for the first time.
    @ivar locked: the queues of groups of which a check point is being stored; their owner adds and removes
        them.
    """

    def __init__(
        self, inside: BrokerInside, revive: ReviveService, in_order: InOrder, retries: RetryTopics
    ) -> None:
        self._config = inside.config
        self._store = inside.store
        self._metadata = inside.metadata
        self._revive = revive
        self._in_order = in_order
        self._retries = retries
        self._wall_ms = inside.wall_ms
        self.begins = FirstOffsets(inside)
        self._searches = 0
        self.locked: set[GroupQueue] = set()

    def queues(self, pop: PopRequest) -> Iterator[tuple[GroupQueue, int, int]]:
        """
        The queues that have messages for a request now, or in which the offset of the group is after the end.
        Each search begins with another queue of the topic, so that all queues get their turn.

        @return: the queue, the offset of the first message to take, and the offset after its last message.
        """
        self._searches += 1
        firsts = 0
        retries = () if pop.in_order else self._retries.read(pop.topic, pop.group)
        topics = ((pop.topic, pop.queue_id), *((name, -1) for name in retries))
        for topic, wanted in reversed(topics) if self._searches % RETRIES_FIRST == 0 else topics:
            found = self._metadata.topics.get(topic)
            count = 0 if found is None else found.read_queue_nums
            numbers: Iterable[int] = (wanted,) if wanted >= 0 else range(count)
            for number in numbers:
                queue_id = number if wanted >= 0 else (number + self._searches) % count
                key = (topic, pop.group, queue_id)
                if key in self.locked or self._revive.table.count(key) >= UNACKED_MAX:
                    continue
                if pop.in_order and self._in_order.blocks(key, pop.attempt):
                    continue
                at = self._metadata.consumer_offsets.query(pop.group, topic, queue_id)
                if at is not None and kind_of(topic):
                    # If the topic was deleted and made again, its earlier retries are over.
                    at = max(at, self.begins.of(key, is_first=True))
                elif at is None:
                    at = self.begins.of(key, is_first=pop.init_mode == FROM_FIRST)
                    firsts += 1
                    if pop.takes and not kind_of(topic) and firsts <= FIRSTS_MAX:
                        # The group keeps this place, so that it gets the messages that arrive until its
                        # next pop.
                        offsets, now_ms = self._metadata.consumer_offsets, self._wall_ms()
                        offsets.commit(pop.group, topic, queue_id, at, now_ms)
                queue = self._store.queues.get(topic, queue_id)
                if queue is not None and at != queue.next_index:
                    yield key, at, queue.next_index

    def take(self, pop: PopRequest) -> tuple[list[Taken], int, bool]:
        """
        Read messages for a request, from one queue after the other until it has enough.

        If a filter passes over all messages that were read of a queue, the offset of the group moves past
        them.

        @return: the messages of each queue; about how many messages are left in the queues; and whether the
            request should be examined again soon, because offsets have moved and not all messages were read.
        @raise Refused: messages cannot be read.
        """
        taken: list[Taken] = []
        count, rest, reads, is_cut, has_moved = pop.count_max, 0, 0, False, False
        bytes_max, now_ms = self._config.max_transfer_bytes_on_message_in_memory, self._wall_ms()
        for (topic, group, queue_id), at, end in self.queues(pop):
            if not count or bytes_max <= 0 or reads >= READS_MAX:
                rest += max(end - at, 0)
                is_cut = True
                continue
            reads += 1
            got = self._get(pop, topic, queue_id, at, count, bytes_max)
            if not got.records:
                if got.next_offset != at:
                    self._metadata.consumer_offsets.commit(group, topic, queue_id, got.next_offset, now_ms)
                    has_moved, is_cut = True, is_cut or got.end_offset > got.next_offset
                rest += max(got.end_offset - got.next_offset, 0)
                continue
            offsets = tuple(int.from_bytes(record[20:28], "big") for record in got.records)
            # The check point begins at the first message that was read: before it, from the offset of the
            # group on, messages may have expired, or the filter may have passed over them.
            key = PopKey(topic, group, queue_id, offsets[0], now_ms, self._config.broker_name)
            taken.append(Taken(
                CheckPoint(key, pop.invisible_ms, offsets), got.records, got.next_offset,
                self._metadata.consumer_offsets.query(group, topic, queue_id),
            ))
            count -= len(offsets)
            bytes_max -= sum(map(len, got.records))
            rest += max(got.end_offset - got.next_offset, 0)
        return taken, rest, is_cut and has_moved

    def _get(self, pop: PopRequest, topic: str, queue_id: int, at: int, count: int, bytes_max: int) -> Got:
        """
        Read messages of one queue; from the nearest offset that is in the queue, if C{at} is not.

        @raise Refused: they cannot be read.
        """
        matches = self._retries.belongs(topic, pop.group, codes=pop.codes, matches=pop.matches) or pop.matches
        try:
            for _attempt in range(2):
                got = get_messages(
                    self._store, topic, queue_id, at, tags_codes=pop.codes, matches=matches,
                    is_slave=False, count_max=count, bytes_max=bytes_max,
                )
                if got.status not in (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY):
                    break
                at = got.next_offset
            return got
        except StoreError as error:
            raise Refused(Code.SYSTEM_ERROR, str(error)) from error
