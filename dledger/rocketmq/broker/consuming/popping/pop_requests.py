# -*- test-case-name: tests.broker.popping.test_pops -*-
"""
Reads the requests POP_MESSAGE and NOTIFICATION, and refuses those that this broker does not answer.

The checks and their texts are those of RocketMQ, except the ones for a slave, for a topic of retries, and for
the bounds of attempts and of names.

Source: PopMessageProcessor.processRequest, NotificationProcessor.processRequest (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dledger.rocketmq.answering.refusals import Code, Fields, Refused
from dledger.rocketmq.broker.consuming.popping.check_points import MESSAGES_MAX
from dledger.rocketmq.broker.consuming.popping.in_order import ATTEMPT_CHARACTERS_MAX
from dledger.rocketmq.broker.consuming.popping.retries import RetryTopics
from dledger.rocketmq.broker.consuming.pull_reading import is_matched
from dledger.rocketmq.broker.consuming.subscriptions import SUB_ALL, TAG, filter_of, parse_subscription
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.options.groups import find_group
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.puts import PutPipeline
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import PERM_READ, RETRY_PREFIX
from protocols.wire.fastjson import shown_bare

#: Value of C{initMode}: a group without an offset begins at the first message of a queue. With any other
#: value it begins at the last one, except in a young queue (L{FirstOffsets}).
FROM_FIRST = 0
#: The longest time for which a popped message can be invisible, in milliseconds.
INVISIBLE_MS_MAX = 12 * 3600 * 1000


class PopRequest(NamedTuple):
    """
    The fields of a request that is not refused.

    @ivar queue_id: number of the only queue that is meant; negative: all queues of the topic.
    @ivar count_max: the most messages that are wanted.
    @ivar invisible_ms: for how long the messages are invisible to other consumers of the group.
    @ivar init_mode: L{FROM_FIRST}, or another number.
    @ivar codes: hash codes of the tags that are wanted; None: all messages.
    @ivar matches: whether a record is wanted; None: C{codes} alone decides.
    @ivar takes: whether messages are wanted (POP_MESSAGE), not only whether there are any (NOTIFICATION).
    @ivar in_order: messages of a queue go to one consumer of the group at a time.
    @ivar attempt: names the attempt of a consumer that pops in order; the same attempt, asked again, gets the
        same messages. Empty: it has no name.
    """

    topic: str
    group: str
    queue_id: int
    count_max: int
    invisible_ms: int
    init_mode: int
    codes: frozenset[int] | None
    matches: Callable[[bytes], bool] | None
    takes: bool = True
    in_order: bool = False
    attempt: str = ""


def read_pop(
    fields: Fields, config: BrokerConfig, metadata: Metadata, retries: RetryTopics, *, takes: bool,
    topic_characters_max: int, now_ms: int,
) -> PopRequest:
    """
    Read the fields of a request.

    @param takes: the request is POP_MESSAGE.
    @param topic_characters_max: characters of a topic's name that the log can store.
    @param now_ms: milliseconds since 1970.
    @raise Refused: the broker is a slave, a field is wrong, the topic or the group does not exist or may not
        be popped, or the retries of the group could not be stored.
    """
    group, topic = fields.text("consumerGroup"), fields.text("topic")
    queue_id = fields.number("queueId")
    if config.role.is_slave:
        raise Refused(Code.SLAVE_NOT_AVAILABLE, "a slave gives no messages by POP: ask the master")
    if not config.broker_permission & PERM_READ:
        raise Refused(Code.NO_PERMISSION, f"the broker[{config.broker_ip1}] pop message is forbidden")
    in_order, attempt = fields.flag("order", False), fields.text("attemptId", "")
    if len(attempt) > ATTEMPT_CHARACTERS_MAX:
        raise Refused(Code.INVALID_PARAMETER, f"attemptId has {len(attempt)} characters, "
                                              f"{ATTEMPT_CHARACTERS_MAX} are allowed")
    _check_topic(metadata, topic, group, queue_id)
    _check_group(config, metadata, group, now_ms)
    why = retries.why_unstorable(topic, group, topic_characters_max)
    if why:
        raise Refused(Code.INVALID_PARAMETER, why)
    if not takes:
        return PopRequest(topic, group, queue_id, 1, 0, FROM_FIRST, None, None, False, in_order, attempt)
    subscription = parse_subscription(
        topic, fields.text("exp", SUB_ALL) or SUB_ALL, kind=fields.text("expType", TAG)
    )
    expression = filter_of(subscription, is_enabled=config.enable_property_filter)
    return PopRequest(
        topic, group, queue_id, fields.number("maxMsgNums", least=1, most=MESSAGES_MAX),
        fields.number("invisibleTime", least=0, most=INVISIBLE_MS_MAX),
        fields.number("initMode", FROM_FIRST), subscription.codes,
        None if expression is None else partial(is_matched, expression), in_order=in_order,
        attempt=attempt,
    )


def _check_topic(metadata: Metadata, topic: str, group: str, queue_id: int) -> None:
    """@raise Refused: the topic has no such queue, or this group may not pop it."""
    if topic.startswith(RETRY_PREFIX) and topic != RETRY_PREFIX + group:
        raise Refused(Code.INVALID_PARAMETER, f"topic[{shown_bare(topic)}] has retries: pop their first "
                                              "topic, they come with its messages")
    found = metadata.topics.get(topic)
    if found is None:
        raise Refused(Code.TOPIC_NOT_EXIST, f"topic[{shown_bare(topic)}] not exist, apply first please!")
    if not found.can_read:
        raise Refused(Code.NO_PERMISSION, f"the topic[{topic}] popping message is forbidden")
    if queue_id >= found.read_queue_nums:
        raise Refused(Code.INVALID_PARAMETER, f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                                              f"readQueueNums:[{found.read_queue_nums}]")


def _check_group(config: BrokerConfig, metadata: Metadata, name: str, now_ms: int) -> None:
    """@raise Refused: the group does not exist and is not made on first use, or it may not consume."""
    group = find_group(metadata, config, name, now_ms)
    if group is None:
        raise Refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST,
                      f"subscription group [{shown_bare(name)}] does not exist")
    if not group.consume_enable:
        raise Refused(Code.NO_PERMISSION, f"subscription group no permission, {name}")


class PopReading:
    """Reads requests by the rules of one broker, as its tables are at that time."""

    def __init__(self, inside: BrokerInside, pipeline: PutPipeline, retries: RetryTopics) -> None:
        """@param pipeline: stores retries."""
        self._config = inside.config
        self._metadata = inside.metadata
        self._pipeline = pipeline
        self._retries = retries
        self._wall_ms = inside.wall_ms

    def read(self, fields: Fields, *, takes: bool = True) -> PopRequest:
        """See L{read_pop}. @raise Refused: see there."""
        return read_pop(
            fields, self._config, self._metadata, self._retries, takes=takes,
            topic_characters_max=self._pipeline.topic_characters_max, now_ms=self._wall_ms(),
        )
