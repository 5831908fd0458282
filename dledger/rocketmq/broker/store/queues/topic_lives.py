# -*- test-case-name: tests.broker.store.test_topic_lives -*-
"""
Whether a topic was deleted and made again, as far as the queues of a slave show it.

A topic of the master that begins later in the log than it did was made again; or the master has lost it in a
crash, and knows only that it began after something else
(L{dledger.rocketmq.broker.lost_topics}). In the second case its queues here neither have a message of before
that place, nor have they begun anew.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger.rocketmq.broker.store.queues.consume_queue import ConsumeQueue
from dledger.rocketmq.broker.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.broker.store.queues.queue_begins import index_at
from dledger.rocketmq.broker.store.queues.queue_list import QueueKey


class TopicLives:
    """Rule: what this process did not see is taken for another life, until L{note} is called once."""

    def __init__(self, queues: ConsumeQueues) -> None:
        self._queues = queues
        self._begun_anew: dict[QueueKey, int] | None = None

    def note(self) -> None:
        """The table of topics is the master's now: what the queues have shown until now counts no more."""
        self._begun_anew = {key: queue.begun_anew for key, queue in self._all()}

    def has_ended(self, topic: str, begins_at: int) -> bool:
        """
        Whether there was a topic of this name before the one that begins at an offset of the log; also if a
        queue cannot be read.
        """
        known = self._begun_anew
        queues = [(key, queue) for key, queue in self._all() if key[0] == topic]
        if known is None or not queues:
            return True
        try:
            return any(
                queue.begun_anew > known.get(key, 0) or index_at(queue, begins_at) > queue.begin_index
                for key, queue in queues
            )
        except OSError:
            return True

    def _all(self) -> Iterator[tuple[QueueKey, ConsumeQueue]]:
        for topic, queue_id in self._queues.keys():
            queue = self._queues.get(topic, queue_id)
            if queue is not None:
                yield (topic, queue_id), queue
