# -*- test-case-name: tests.broker.sending.test_sends -*-
"""
Checks whether a producer may send to a topic; creates it on first use, as RocketMQ does.

Every reader of messages uses these checks, so that all refuse the same.

Source: AbstractSendMessageProcessor.msgCheck, TopicValidator, TopicConfigManager (4.9.8).
"""

from __future__ import annotations

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.options.groups import may_add_retries
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.metadata.tables import (
    AUTO_CREATE_TOPIC,
    PERM_READ,
    PERM_WRITE,
    RETRY_PREFIX,
    TopicConfig,
)
from dledger.rocketmq.store.queues.consume_queues import is_topic
from dledger.rocketmq.store.records.events import BrokerEvents
from protocols.wire.checksums import crc32
from protocols.wire.fastjson import shown
from protocols.wire.rocketmq.layout import (
    DELETED_TOPIC,
    METADATA_TOPIC,
    TERM_START_TOPIC,
    TIMED_DONE_TOPIC,
    TIMED_TOPIC,
)

TOPIC_CHARACTERS_MAX = 127

DLQ_PREFIX = "%DLQ%"

#: Topics in which the broker keeps its own messages.
FORBIDDEN = frozenset({
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", TERM_START_TOPIC, METADATA_TOPIC,
    TIMED_TOPIC, TIMED_DONE_TOPIC, DELETED_TOPIC,
})
#: Topics of check points and acks of POP begin so.
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"

#: Bits of C{topicSysFlag}: units, and subscriptions of units.
_UNIT, _UNIT_SUB = 0x1, 0x2


class TopicChecks:
    """
    The checks of one broker.

    @ivar topics: the table of topics.
    """

    def __init__(self, inside: BrokerInside, *, events: BrokerEvents) -> None:
        """@param events: hears when a topic was created."""
        self.topics = inside.metadata.topics
        self._metadata = inside.metadata
        self._config = inside.config
        self._wall_ms = inside.wall_ms
        self._turn = crc32(inside.config.broker_name.encode())
        self._events = events

    def writable(
        self, name: str, *, default_topic: str = AUTO_CREATE_TOPIC, queue_nums: int | None = None,
        is_unit: bool = False,
    ) -> TopicConfig:
        """
        The topic of a producer's message; created if that is allowed.

        @param default_topic: topic whose settings a new one inherits.
        @param queue_nums: number of queues of a new topic; None: as the default topic.
        @raise Refused: the topic does not exist, or is not writable.
        """
        found = self.topics.entries.get(name)
        if found is None:
            found = self._make(name, default_topic, queue_nums, is_unit)
        elif is_own(name):
            raise Refused(Code.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        if not found.perm & PERM_WRITE:
            raise Refused(Code.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        if found.order and not self._config.broker_permission & PERM_WRITE:
            raise Refused(Code.NO_PERMISSION,
                          f"the broker[{self._config.broker_ip1}] sending message is forbidden")
        return found

    def _make(self, name: str, default_topic: str, queue_nums: int | None, is_unit: bool) -> TopicConfig:
        refuse_name(name)
        if is_own(name):
            raise Refused(Code.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        most = self._config.topics_max
        if len(self.topics.entries) >= most:
            raise Refused(Code.SYSTEM_ERROR,
                          f"topic[{name}] not exist, and there are {most} already, as topics_max allows")
        is_retry = name.startswith(RETRY_PREFIX)
        sys_flag = (_UNIT_SUB if is_retry else _UNIT) if is_unit else None
        made = None
        if default_topic != AUTO_CREATE_TOPIC or self._config.auto_create_topic_enable:
            default = self.topics.entries.get(default_topic)
            wanted = queue_nums if queue_nums is not None else default.write_queue_nums if default else 0
            made = self.topics.create_on_send(
                name, default_topic=default_topic, queue_nums=wanted, now_ms=self._wall_ms(),
                topic_sys_flag=sys_flag,
            )
        if made is None and is_retry:
            return self.made_for_retries(name, sys_flag=sys_flag or 0)
        if made is None:
            raise Refused(Code.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
        self._events.topics_changed()
        return made

    def made_for_retries(self, name: str, *, queue_nums: int = 1, sys_flag: int = 0) -> TopicConfig:
        """
        The topic for a group's retries or dead letters; created if missing.

        @raise Refused: there are too many topics.
        """
        found = self.topics.entries.get(name)
        if found is None:
            if not may_add_retries(self._metadata, self._config):
                raise Refused(
                    Code.SYSTEM_ERROR, f"topic[{name}] not exist, and there are {len(self.topics.entries)} "
                    "already: twice topics_max, as far as topics for retries and dead letters may go",
                )
            found = TopicConfig(
                topic_name=name, read_queue_nums=queue_nums, write_queue_nums=queue_nums,
                perm=PERM_READ | PERM_WRITE, topic_sys_flag=sys_flag,
            )
            self.topics.put(found, self._wall_ms())
            self._events.topics_changed()
        return found

    def plain_queues(self, name: str) -> int:
        """
        The number of queues of an existing topic without special settings, which L{writable} would accept for
        every producer; 0 for any other topic.
        """
        found = self.topics.entries.get(name)
        if found is None or name.startswith("%") or is_own(name) or "\0" in name:
            return 0
        if not found.can_write or found.order or found.topic_filter_type != "SINGLE_TAG":
            return 0
        return max(found.write_queue_nums, found.read_queue_nums)

    def queue_of(self, topic: TopicConfig, queue_id: int, producer: str) -> int:
        """
        The queue of a producer's message; round-robin if the producer names none.

        @raise Refused: the queue does not exist.
        """
        queues = topic.write_queue_nums
        if queue_id < 0:
            if queues < 1:
                raise Refused(Code.NO_PERMISSION, f"the topic[{topic.topic_name}] has no queue to write to")
            self._turn += 1
            return self._turn % queues
        if queue_id >= max(queues, topic.read_queue_nums):
            raise Refused(
                Code.SYSTEM_ERROR,
                f"request queueId[{queue_id}] is illegal, topic {topic.topic_name} has "
                f"writeQueueNums={queues}, readQueueNums={topic.read_queue_nums} Producer: {producer}",
            )
        return queue_id


def used_queues(topic: TopicConfig) -> int:
    """Number of queues that are written and read, at least 1: others are coming or going."""
    return max(min(topic.read_queue_nums, topic.write_queue_nums), 1)


def queue_now(topic: TopicConfig, queue_id: int) -> int:
    """The queue for a message that has waited; another one if the topic has fewer queues by now."""
    if queue_id < max(topic.read_queue_nums, topic.write_queue_nums):
        return queue_id
    return queue_id % used_queues(topic)


def is_own(name: str) -> bool:
    """Whether it is a topic in which the broker keeps its own messages."""
    return name in FORBIDDEN or name.startswith(REVIVE_PREFIX)


def refuse_name(name: str) -> None:
    """@raise Refused: the name is not allowed for a topic. The words are RocketMQ's."""
    if not name.strip():
        raise Refused(Code.SYSTEM_ERROR, "The specified topic is blank.")
    if len(name) > TOPIC_CHARACTERS_MAX:
        raise Refused(Code.SYSTEM_ERROR, f"The specified topic is longer than topic max length: "
                                         f"{shown(name)}, {TOPIC_CHARACTERS_MAX} are allowed")
    if not is_topic(name) or "+" in name:
        raise Refused(Code.SYSTEM_ERROR, "The specified topic contains illegal characters, allowing only "
                                         f"^[%|a-zA-Z0-9_-]+$: {shown(name)}")
