# -*- test-case-name: tests.broker.popping.test_pops -*-
"""
Where a group begins to pop a queue that it has never asked for.

It may ask for the first message, or for the last. RocketMQ's proxy always asks for the last: so that a new
consumer gets what was sent since it began, RocketMQ begins at the first all the same while the whole queue
may be in memory. The first pop commits the place: no message until the next one is passed over.

Source: PopMessageProcessor.getInitOffset, DefaultMessageStore.checkInMemByConsumeOffset (5.3.3).
"""

from __future__ import annotations

from dledger.rocketmq.broker.consuming.popping.check_points import kind_of, normal_topic
from dledger.rocketmq.broker.consuming.popping.popped import GroupQueue
from dledger.rocketmq.broker.consuming.pulls import usual_slow_bytes
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.store.queues.consume_queue import ConsumeQueue
from dledger.rocketmq.store.queues.queue_begins import begin_from


class FirstOffsets:
    """Those of one broker."""

    def __init__(self, inside: BrokerInside) -> None:
        self._config = inside.config
        self._store = inside.store
        self._memory_bytes = usual_slow_bytes()

    def of(self, key: GroupQueue, *, is_first: bool) -> int:
        """
        @param is_first: whether the group asks for the first message, else for the last.
        @return: a queue offset; 0 for a queue without messages.
        @raise OSError: reading failed.
        """
        topic, group, queue_id = key
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            return 0
        begin, end = self._store.deleted.begin_of(topic, queue), queue.next_index
        if kind_of(topic):
            # Retries of a deleted topic of this name are over, too.
            begins_at = self._store.deleted.place_of(normal_topic(topic, group))
            return max(begin, begin_from(queue, begins_at)) if begins_at else begin
        if is_first or self._is_young(queue, begin):
            return begin
        return max(end - 1, begin)

    def _is_young(self, queue: ConsumeQueue, begin: int) -> bool:
        """Whether all its messages, from C{begin} on, may be in memory."""
        if 0 < begin == queue.begin_index:
            return False
        units = queue.read(begin, 1)
        return not units or self._store.log.record_end - units[0].offset <= self._memory_bytes
