# -*- test-case-name: tests.broker.test_service -*-
"""
Topics that a crash took from the table of topics.

The table is written once a second, and a message in a new topic is answered before. So a start looks for
topics that have messages and are not in the table. A topic that an administrator has deleted is not one of
them: the deletion is written before it is answered, and the messages of the topic are older.
"""

from __future__ import annotations

import attrs

from dledger.rocketmq.broker.metadata.tables import BEGINS_AT, TopicConfig
from dledger.rocketmq.broker.store.queries import offset_at
from dledger.rocketmq.broker.store.store import MessageStore


def lost_topics(
    store: MessageStore, known: frozenset[str], *, table_ms: int, queue_nums: int
) -> list[TopicConfig]:
    """
    The topics with a message that was stored after the table was changed last, in order of names.

    @param known: names in the table.
    @param table_ms: time of the table's last change before it was written, ms since 1970.
    @param queue_nums: number of queues, at least; a topic for retries or dead letters has one, at least.
    @raise StoreError: the log or a queue cannot be read.
    """
    queues: dict[str, list[int]] = {}
    for topic, queue_id in store.queues.keys():
        if topic not in known:
            queues.setdefault(topic, []).append(queue_id)
    found = []
    for name, ids in sorted(queues.items()):
        if any(_has_since(store, name, queue_id, table_ms) for queue_id in ids):
            found.append(lost_topic(name, max(ids), queue_nums=queue_nums))
    return found


def lost_topic(name: str, queue_id: int, *, queue_nums: int) -> TopicConfig:
    """A topic that has this queue, as L{lost_topics} makes it."""
    count = max(queue_id + 1, 1 if name.startswith("%") else queue_nums)
    rest = {BEGINS_AT: 0}  # its messages are there already
    return TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count, rest=rest)


@attrs.frozen
class TopicsAtStart:
    """
    What a broker knew when it became a master, before it added topics.

    @ivar known: names in the table of topics.
    @ivar table_ms: time of the table's last change, ms since 1970.
    @ivar end_offset: end of the log; later messages are in topics that this broker knows, or has deleted.
    @ivar began_ms: when it became one, ms since 1970.
    """

    known: frozenset[str] = frozenset()
    table_ms: int = 0
    end_offset: int = 0
    began_ms: int = 0

    def lost(self, topic: str, offset: int, stored_ms: int) -> bool:
        """Whether the topic of a message, at this place and of this time, was lost."""
        return offset < self.end_offset and stored_ms >= self.table_ms and topic not in self.known

    def lost_half(self, topic: str, stored_ms: int) -> bool:
        """
        Whether the topic that a half message is for was lost.

        The first storing decides: a half message is stored again with each question about it.
        """
        return self.table_ms <= stored_ms < self.began_ms and topic not in self.known


def _has_since(store: MessageStore, topic: str, queue_id: int, since_ms: int) -> bool:
    queue = store.queues.get(topic, queue_id)
    return queue is not None and offset_at(store, topic, queue_id, since_ms) < queue.next_index
