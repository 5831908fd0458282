# -*- test-case-name: tests.broker.test_topics_made_again -*-
"""
Topics that have messages and are not in the table of topics.

The table is written once a second, and a message in a new topic is answered before; the file may be lost, or
be that of another log: an empty broker that got the log of its slave, a backup. So a start adds each topic
that has a message which no deletion covers (L{dledger.rocketmq.store.deleted_topics}), and so does a
delayed, timed or half message that goes to one. How old the table is says nothing about what is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from twisted.logger import Logger

from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.topic_checks import is_own
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.store.queries import offset_at
from dledger.rocketmq.store.store import MessageStore
from dledger.values.errors import StoreError


def lost_topics(
    store: MessageStore, known: Collection[str], *, queue_nums: int, since_ms: int = 0
) -> list[TopicConfig]:
    """
    The topics with a message that no deletion covers, in order of names.

    @param known: names in the table.
    @param queue_nums: see L{lost_topic}.
    @param since_ms: only those with a message that was stored since then, ms since 1970.
    @raise StoreError: the log or a queue cannot be read.
    """
    queues: dict[str, list[int]] = {}
    for topic, queue_id in store.queues.keys():
        if topic not in known:
            queues.setdefault(topic, []).append(queue_id)
    return [
        lost_topic(name, max(ids), queue_nums=queue_nums) for name, ids in sorted(queues.items())
        if any(_has_message(store, name, queue_id, since_ms) for queue_id in ids)
    ]


def _has_message(store: MessageStore, topic: str, queue_id: int, since_ms: int) -> bool:
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return False
    if since_ms > 0:
        return offset_at(store, topic, queue_id, since_ms) < queue.next_index
    try:
        return store.deleted.begin_of(topic, queue) < queue.next_index
    except OSError as error:
        raise StoreError(f"reading {topic}, queue {queue_id}: {error}") from error


def lost_topic(name: str, queue_id: int, *, queue_nums: int) -> TopicConfig:
    """
    A topic that has this queue.

    @param queue_nums: number of queues, at least; a topic for retries or dead letters, or of the broker's own
        messages, has one, at least.
    """
    count = max(queue_id + 1, 1 if name.startswith("%") or is_own(name) else queue_nums)
    return TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count)


class LostTopics:
    """Adds the topics that the table lacks, when the store is ready, and when a message goes to one."""

    log = Logger()

    def __init__(self, inside: BrokerInside, *, changed: Callable[[], None]) -> None:
        """@param changed: called when a topic was added later."""
        self._config = inside.config
        self._store = inside.store
        self._topics = inside.metadata.topics
        self._offsets = inside.metadata.consumer_offsets
        self._wall_ms = inside.wall_ms
        self._changed = changed

    def restore(self) -> None:
        """
        Called when the store is ready, and when this broker becomes a master: add the topics with messages
        (L{lost_topics}). A slave only shows them, until it has its master's table.

        @raise StoreError: the log or a queue cannot be read.
        """
        topics, config = self._topics, self._config
        lost = lost_topics(self._store, topics.entries, queue_nums=config.default_topic_queue_nums)
        if config.role.is_slave:
            topics.show(lost)
            return
        for topic in lost:
            topics.put(topic, self._wall_ms())
        others = self._offsets.forget_other_logs(self._store.log.begin_offset)
        if others:
            self.log.warn(
                "{count} topics have offsets of consumers from after a deletion that the log does not have, "
                "as it is an older copy, or another one. They are forgotten: {names}",
                count=len(others), names=", ".join(others[:10]),
            )
        if lost:
            self.log.warn(
                "{count} topics have messages that no deletion covers, and are not in {file}: they are added "
                "to it: {names}", count=len(lost), file=topics.file_name,
                names=", ".join(topic.topic_name for topic in lost[:10]),
            )

    def found(self, topic: str, queue_id: int, offset: int) -> TopicConfig | None:
        """
        The topic of a message that has waited, and goes to this queue now; one that is not in the table, and
        was not deleted since, is added.

        @param offset: where the message was stored first, in bytes of the log.
        @return: None: the message is over: its topic was deleted.
        @raise OSError: reading failed.
        """
        if offset < self._store.deleted.place_of(topic):
            return None
        known = self._topics.get(topic)
        if known is None:
            nums = self._config.default_topic_queue_nums
            known = lost_topic(topic, queue_id, queue_nums=nums)
            self._topics.put(known, self._wall_ms())
            self.log.warn("topic {topic} is not in {file}, and has a message that waited for it: it is added",
                          topic=topic, file=self._topics.file_name)
            self._changed()
        return known
