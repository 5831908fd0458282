# -*- test-case-name: tests.broker.popping.test_revive,tests.broker.test_topics_made_again -*-
"""
What a check point of POP was followed by: whether its group has moved past its messages, and whether they are
no more.

Rule 1: our check points say it by their place: the table of offsets has the place of the last one whose group
has moved. RocketMQ's say it by their time.
Rule 2: messages are before their check point in the log. So they have expired if it has, and they are of a
deleted topic if it is before the place where the topic of that name begins.

Source: PopReviveService (5.3.3); the rules are ours.
"""

from __future__ import annotations

from dledger.rocketmq.answering.refusals import LONG_MAX
from dledger.rocketmq.broker.consuming.popping.check_points import (
    OWN_QUEUE,
    REVIVE_QUEUES,
    CheckPoint,
    normal_topic,
    revive_topic,
)
from dledger.rocketmq.broker.consuming.popping.popped import Popped
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.topic_checks import REVIVE_PREFIX


class PastPoints:
    """
    Judges check points.

    @ivar _moved_ms: RocketMQ's check points that are older than this have moved their groups, ms since 1970.
    """

    def __init__(self, inside: BrokerInside) -> None:
        self._queues = inside.store.queues
        self._deleted = inside.store.deleted
        self._metadata = inside.metadata
        self._topic = ""
        self._moved_ms = 0

    def topic_of(self, cluster: str) -> str:
        """
        The topic with the check points, when a master starts: that of its cluster; but if that one has none,
        and a topic of another cluster has some, that one. Somebody has renamed the cluster since, and what
        was popped before must come again.
        """
        own = revive_topic(cluster)
        for names in (self._queues.topics(), set(self._metadata.topics.entries)):
            found = sorted(name for name in names if name.startswith(REVIVE_PREFIX))
            if found:
                return own if own in found else found[-1]
        return own

    def note_table(self, topic: str) -> None:
        """
        The table of offsets is that with which a master starts.

        @param topic: the one with the check points.
        """
        self._topic = topic
        offsets = self._metadata.consumer_offsets
        self._moved_ms = LONG_MAX if offsets.version is None else offsets.version.timestamp
        if not any(True for _ in offsets.rows()):
            self._moved_ms = -1  # There was no table: no group has moved.

    def is_moved(self, point: CheckPoint, queue_id: int, queue_offset: int, *, known: int | None) -> bool:
        """
        Whether the table of offsets has the move past these messages; an administrator may have set the
        offset since. (The time of the table says nothing about ours: consumers may have committed offsets at
        this broker before it was the master.)

        @param queue_id, queue_offset: where the check point is.
        @param known: the table has the moves past our check points before this one; None: it has none.
        """
        are_ours = known is not None or not any(
            self._queues.bounds(self._topic, other) for other in range(REVIVE_QUEUES) if other != OWN_QUEUE
        )
        if queue_id == OWN_QUEUE and are_ours:
            return queue_offset < (known or 0)
        return point.key.pop_ms < self._moved_ms

    def is_over(self, popped: Popped) -> bool:
        """
        Whether the messages of a check point are no more: their topic was deleted after they were popped (it
        may have been made again), or it has expired. What is at their places in the queue then are messages
        of a later topic.

        @raise OSError: reading failed.
        """
        key, (queue_id, at) = popped.point.key, popped.at
        topic = normal_topic(key.topic, key.group)
        is_gone, queue = self._metadata.topics.get(topic) is None, self._queues.get(self._topic, queue_id)
        if is_gone or queue is None or at >= queue.next_index:
            return is_gone
        if at < queue.begin_index:
            return True
        begins_at = self._deleted.place_of(topic)
        return begins_at > 0 and queue.read(at, 1)[0].offset < begins_at
