# -*- test-case-name: tests.broker.test_service -*-
"""
Topics that a crash took from the table of topics.

The table is written once a second, and a message in a new topic is answered before. So a start looks for
topics that have messages and are not in the table. A topic that an administrator has deleted is not one of
them: the deletion is written before it is answered, and the messages of the topic are older. If a message has
made it again since, it begins with the first message after the table; so does a topic that is made after the
start and may have been lost, for delayed and half messages may wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
from twisted.logger import Logger

from dledger.rocketmq.broker.common.config import BrokerConfig
from dledger.rocketmq.broker.metadata.tables import BEGINS_AT, TopicConfig, Topics
from dledger.rocketmq.broker.puts.halves import HALF_TOPIC
from dledger.rocketmq.broker.store.commit_log_store import CommitLogStore
from dledger.rocketmq.broker.store.queries import offset_at
from dledger.rocketmq.broker.store.queues.queue_list import QueueKey
from dledger.rocketmq.broker.store.records.records import SCHEDULE_TOPIC
from dledger.rocketmq.broker.store.store import MessageStore
from protocols.wire.rocketmq.layout import TIMED_TOPIC

#: Messages of other topics wait there.
WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TIMED_TOPIC, HALF_TOPIC})
#: Names of deleted topics that are remembered; then the earliest is forgotten.
DELETED_MAX = 65_536


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
        begin = _first_since(store, ((name, queue_id) for queue_id in ids), table_ms)
        if begin is not None:
            begin = min(begin, first_waiting(store, table_ms))
            found.append(lost_topic(name, max(ids), queue_nums=queue_nums, begins_at=begin))
    return found


def lost_topic(name: str, queue_id: int, *, queue_nums: int, begins_at: int) -> TopicConfig:
    """
    A topic that has this queue, as L{lost_topics} makes it.

    @param begins_at: its messages are there already, from this offset of the log on.
    """
    count = max(queue_id + 1, 1 if name.startswith("%") else queue_nums)
    return TopicConfig(
        topic_name=name, read_queue_nums=count, write_queue_nums=count, rest={BEGINS_AT: begins_at}
    )


def first_waiting(store: MessageStore, since_ms: int) -> int:
    """
    Offset in the log of the first message that waits to be delivered or committed, and was stored after this
    time; the end of the log if there is none.

    @raise StoreError: the log or a queue cannot be read.
    """
    keys = (key for key in store.queues.keys() if key[0] in WAITING_TOPICS)
    begin = _first_since(store, keys, since_ms)
    return store.log.record_end if begin is None else begin


@attrs.frozen
class TopicsAtStart:
    """
    What a broker knew when it became a master, before it added topics.

    @ivar known: names in the table of topics.
    @ivar table_ms: time of the table's last change, ms since 1970.
    @ivar end_offset: end of the log; later messages are in topics that this broker knows, or has deleted.
    @ivar began_ms: when it became one, ms since 1970.
    @ivar waiting_at: see L{first_waiting}, since C{table_ms}.
    """

    known: frozenset[str] = frozenset()
    table_ms: int = 0
    end_offset: int = 0
    began_ms: int = 0
    waiting_at: int = 0

    def lost(self, topic: str, offset: int, stored_ms: int) -> bool:
        """Whether the topic of a message, at this place and of this time, was lost."""
        return offset < self.end_offset and stored_ms >= self.table_ms and topic not in self.known

    def lost_half(self, topic: str, stored_ms: int) -> bool:
        """
        Whether the topic that a half message is for was lost.

        The first storing decides: a half message is stored again with each question about it.
        """
        return self.table_ms <= stored_ms < self.began_ms and topic not in self.known


def _first_since(store: MessageStore, keys: Iterable[QueueKey], since_ms: int) -> int | None:
    """
    Offset in the log of the first message of these queues that was stored since a time, ms since 1970; None
    if there is none. 0, the beginning of every log, for all of them.
    """
    found: list[int] = []
    for topic, queue_id in keys:
        queue = store.queues.get(topic, queue_id)
        at = offset_at(store, topic, queue_id, since_ms)
        if queue is not None and at < queue.next_index:
            found += [unit.offset for unit in queue.read(at, 1)] if since_ms > 0 else [0]
    return min(found, default=None)


class LostTopics:
    """
    Adds the topics that a crash took, when this broker becomes a master, and when a message goes to one.

    Invariant: C{_table_ms} is the time of the table before this broker added something. C{_deleted} has the
    topics that were deleted since: they are not lost.
    """

    log = Logger()

    def __init__(
        self, config: BrokerConfig, store: MessageStore, topics: Topics, *, wall_ms: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        """
        @param topics: as read from the file, before something is added.
        @param changed: called when a topic was added later.
        """
        self._config = config
        self._store = store
        self._topics = topics
        self._wall_ms = wall_ms
        self._changed = changed
        self._at_start = TopicsAtStart()
        self._table_ms = 0
        self._deleted: dict[str, None] = {}
        self.note_table()

    def note_table(self) -> None:
        """The table is as it was read, or copied from the last master."""
        self._table_ms = self._topics.version.timestamp if self._topics.entries else 0

    def restore(self) -> None:
        """
        Called when the store is ready: a master adds the topics that a crash took (L{lost_topics}). A
        slave of a plain log adds those of its queues, until it has its master's table, and serves them. (A
        raft log keeps the queues of deleted topics.)

        @raise StoreError: the log or a queue cannot be read.
        """
        topics, config = self._topics, self._config
        self._deleted = {}
        if config.is_slave:
            if isinstance(self._store, CommitLogStore):
                nums = config.default_topic_queue_nums
                topics.show(lost_topics(self._store, frozenset(topics.entries), table_ms=0, queue_nums=nums))
            return
        for name in topics.begin_within(self._store.log.record_end, self._wall_ms()):
            self.log.warn("topic {topic} would begin after the end of the log: it is shown whole", topic=name)
        self._at_start = TopicsAtStart(
            frozenset(topics.entries), self._table_ms, self._store.log.end_offset, self._wall_ms(),
            first_waiting(self._store, self._table_ms),
        )
        lost = lost_topics(
            self._store, self._at_start.known, table_ms=self._table_ms,
            queue_nums=config.default_topic_queue_nums,
        )
        for topic in lost:
            topics.put(topic, self._wall_ms())
        if lost:
            self.log.warn(
                "{count} topics have messages that are younger than {file}, as after a crash; they are added "
                "to it: {names}", count=len(lost), file=topics.file_name,
                names=", ".join(topic.topic_name for topic in lost[:10]),
            )
        topics.log_end = self._begin_of

    def _begin_of(self, topic: str) -> int:
        """
        Where a new topic begins: after all that was written, committed or not; but a crash may have taken it,
        and messages wait for it.
        """
        end, is_known = self._store.written_end, topic in self._at_start.known or topic in self._deleted
        return end if is_known else min(end, self._at_start.waiting_at)

    def deleted(self, topic: str) -> None:
        """Messages that still wait for a deleted topic must not make it again, nor come up in the next."""
        if topic not in self._at_start.known:
            self._deleted[topic] = None
            if len(self._deleted) > DELETED_MAX:
                del self._deleted[next(iter(self._deleted))]

    def delivers(self, topic: str, queue_id: int, offset: int, stored_ms: int) -> None:
        """A delayed message, which was stored at this time, goes to this queue."""
        if self._at_start.lost(topic, offset, stored_ms):
            self._add_lost(topic, queue_id, "delayed")

    def commits(self, topic: str, queue_id: int, stored_ms: int) -> None:
        """A half message, which was first stored at this time, goes to this queue."""
        if self._at_start.lost_half(topic, stored_ms):
            self._add_lost(topic, queue_id, "half")

    def _add_lost(self, topic: str, queue_id: int, kind: str) -> None:
        topics = self._topics
        if topic not in topics.entries and topic not in self._deleted:
            nums, begin = self._config.default_topic_queue_nums, self._at_start.waiting_at
            topics.put(lost_topic(topic, queue_id, queue_nums=nums, begins_at=begin), self._wall_ms())
            self.log.warn("topic {topic} was lost, and has a {kind} message: it is added",
                          topic=topic, kind=kind)
            self._changed()
