# -*- test-case-name: tests.broker.popping.test_pops -*-
"""
Reads POP_MESSAGE and NOTIFICATION: whether their sender may pop, and the messages that it wants.

A request that waits is read again each time that it is taken up: topic, group and rights may have changed.

Source: PopMessageProcessor, NotificationProcessor (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from dledger.rocketmq.answering.refusals import Code, Fields, Refused
from dledger.rocketmq.broker.common.config import BrokerConfig
from dledger.rocketmq.broker.common.groups import find_group
from dledger.rocketmq.broker.consuming.pull_reading import is_matched
from dledger.rocketmq.broker.consuming.subscriptions import SUB_ALL, TAG, filter_of, parse_subscription
from dledger.rocketmq.broker.metadata.files import Metadata
from dledger.rocketmq.broker.metadata.tables import PERM_READ, RETRY_PREFIX
from dledger.rocketmq.broker.popping.check_points import MESSAGES_MAX
from dledger.rocketmq.broker.popping.in_order import ATTEMPT_CHARACTERS_MAX
from dledger.rocketmq.broker.popping.retries import RetryTopics
from dledger.rocketmq.broker.puts.puts import PutPipeline
from protocols.wire.fastjson import shown_bare

#: Value of C{initMode}: a group that is new begins at the first message of a queue, else at the last.
FROM_FIRST = 0
#: The longest time for which a message can be invisible.
INVISIBLE_MS_MAX = 12 * 3600 * 1000


class Pop(NamedTuple):
    """
    The parameters of a request.

    @ivar queue_id: -1: all.
    @ivar codes, matches: see L{get_messages}.
    @ivar takes: it is not a notification.
    @ivar in_order: messages of a queue go to one consumer at a time.
    @ivar attempt: see L{dledger.rocketmq.broker.metadata.order_info.OrderInfo}.
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


class PopReading:
    """The rules for requests."""

    def __init__(
        self, config: BrokerConfig, metadata: Metadata, pipeline: PutPipeline, retries: RetryTopics, *,
        wall_ms: Callable[[], int],
    ) -> None:
        """@param pipeline: stores retries. @param wall_ms: milliseconds since 1970."""
        self._config = config
        self._metadata = metadata
        self._pipeline = pipeline
        self._retries = retries
        self._wall_ms = wall_ms

    def read(self, fields: Fields, *, takes: bool = True) -> Pop:
        """@raise Refused: a field, a permission or the subscription forbids an answer with messages."""
        config = self._config
        group_name, topic = fields.text("consumerGroup"), fields.text("topic")
        queue_id = fields.number("queueId")
        if config.is_slave:
            raise Refused(Code.SLAVE_NOT_AVAILABLE, "a slave gives no messages by POP: ask the master")
        if not config.broker_permission & PERM_READ:
            raise Refused(Code.NO_PERMISSION, f"the broker[{config.broker_ip1}] pop message is forbidden")
        in_order, attempt = fields.flag("order", False), fields.text("attemptId", "")
        if len(attempt) > ATTEMPT_CHARACTERS_MAX:
            raise Refused(Code.INVALID_PARAMETER, f"attemptId has {len(attempt)} characters, "
                                                  f"{ATTEMPT_CHARACTERS_MAX} are allowed")
        if topic.startswith(RETRY_PREFIX) and topic != RETRY_PREFIX + group_name:
            raise Refused(Code.INVALID_PARAMETER, f"topic[{shown_bare(topic)}] has retries: pop their first "
                                                  "topic, they come with its messages")
        found = self._metadata.topics.get(topic)
        if found is None:
            raise Refused(Code.TOPIC_NOT_EXIST, f"topic[{shown_bare(topic)}] not exist, apply first please!")
        if not found.can_read:
            raise Refused(Code.NO_PERMISSION, f"the topic[{topic}] popping message is forbidden")
        if queue_id >= found.read_queue_nums:
            raise Refused(Code.INVALID_PARAMETER, f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                                                  f"readQueueNums:[{found.read_queue_nums}]")
        group = find_group(self._metadata, config, group_name, self._wall_ms())
        if group is None:
            raise Refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST,
                          f"subscription group [{shown_bare(group_name)}] does not exist")
        if not group.consume_enable:
            raise Refused(Code.NO_PERMISSION, f"subscription group no permission, {group_name}")
        why = self._retries.why_unstorable(topic, group_name, self._pipeline.topic_characters_max)
        if why:
            raise Refused(Code.INVALID_PARAMETER, why)
        if not takes:
            return Pop(topic, group_name, queue_id, 1, 0, FROM_FIRST, None, None, False, in_order, attempt)
        subscription = parse_subscription(
            topic, fields.text("exp", SUB_ALL) or SUB_ALL, kind=fields.text("expType", TAG)
        )
        expression = filter_of(subscription, is_enabled=config.enable_property_filter)
        return Pop(
            topic, group_name, queue_id, fields.number("maxMsgNums", least=1, most=MESSAGES_MAX),
            fields.number("invisibleTime", least=0, most=INVISIBLE_MS_MAX),
            fields.number("initMode", FROM_FIRST), subscription.codes,
            None if expression is None else partial(is_matched, expression), in_order=in_order,
            attempt=attempt,
        )
