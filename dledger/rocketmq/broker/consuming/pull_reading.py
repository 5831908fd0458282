# -*- test-case-name: tests.broker.consuming.test_pulls -*-
"""
Reads PULL_MESSAGE: whether its sender may pull, and the messages that it wants and may see.

A request that waits is read again at its deadline: permissions and subscriptions may have changed.

Source: PullMessageProcessor (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs

from dledger.rocketmq.answering.refusals import LONG_MAX, LONG_MIN, Code, Fields, Refused
from dledger.rocketmq.broker.consuming.commits import CommitJudge
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.sql92 import SqlFilter
from dledger.rocketmq.broker.consuming.subscriptions import (
    BROADCASTING,
    SUB_ALL,
    TAG,
    Subscription,
    filter_of,
    parse_subscription,
)
from dledger.rocketmq.broker.consuming.visible import Visible, VisibleTo, all_visible
from dledger.rocketmq.broker.options.groups import find_group
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.metadata.tables import PERM_READ, GroupConfig
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.errors import WireError
from protocols.wire.fastjson import shown_bare
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import decode_message

#: Bits of C{sysFlag}.
FLAG_COMMIT_OFFSET, FLAG_SUSPEND, FLAG_SUBSCRIPTION = 1, 2, 4

#: The longest wait; consumers ask for 15 s or 20 s.
SUSPEND_MS_MAX = 600_000
#: The wait without long polling.
SHORT_POLLING_MS = 1_000

#: Topic and number of a queue.
Key = tuple[str, int]


@attrs.frozen(kw_only=True)
class Pull:
    """
    The parameters of a request.

    @ivar codes: hashes of the requested tags; None for any.
    @ivar matches: whether a record is wanted; None for any.
    @ivar suspend_ms: longest time to hold it; 0: do not hold it.
    @ivar commit: the offset that the group has consumed; negative: it says nothing.
    """

    group: GroupConfig
    key: Key
    offset: int
    count_max: int
    bytes_max: int
    codes: frozenset[int] | None
    matches: Callable[[bytes], bool] | None
    suspend_ms: int
    commit: int


class PullReading:
    """The rules for requests. @ivar commits: as given."""

    def __init__(
        self, inside: BrokerInside, table: ConsumerTable, commits: CommitJudge, *,
        visible: VisibleTo = all_visible, retries_of: Callable[[str], Visible | None] = lambda topic: None,
    ) -> None:
        """
        @param commits: judges what consumers commit with a pull.
        @param visible: what the sender of a request may see of its topic.
        @param retries_of: which records of a topic of retries are not over; None: all.
        """
        self.commits = commits
        self._retries_of = retries_of
        self._config = inside.config
        self._metadata = inside.metadata
        self._table = table
        self._wall_ms = inside.wall_ms
        self._visible = visible

    def read(self, connection: CommandConnection, request: RemotingCommand) -> Pull:
        """@raise Refused: a field, a permission or the subscription forbids an answer with messages."""
        config, fields = self._config, Fields(request.ext_fields)
        group_name, topic = fields.text("consumerGroup"), fields.text("topic")
        queue_id, flags = fields.number("queueId"), fields.number("sysFlag")
        if not config.broker_permission & PERM_READ:
            raise Refused(Code.NO_PERMISSION, f"the broker[{config.broker_ip1}] pulling message is forbidden")
        group = find_group(self._metadata, config, group_name, self._wall_ms())
        if group is None:
            raise Refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST,
                          f"subscription group [{shown_bare(group_name)}] does not exist")
        if not group.consume_enable:
            raise Refused(Code.NO_PERMISSION, f"subscription group no permission, {group_name}")
        self._check_queue(topic, queue_id)
        subscription = self._subscription(fields, group, topic, flags)
        expression = filter_of(subscription, is_enabled=config.enable_property_filter)
        suspend_ms = 0
        if flags & FLAG_SUSPEND:
            asked_ms = fields.number("suspendTimeoutMillis", 0, least=LONG_MIN, most=LONG_MAX)
            suspend_ms = min(max(asked_ms, 0), SUSPEND_MS_MAX)
            if not config.long_polling_enable:
                suspend_ms = min(suspend_ms, SHORT_POLLING_MS)
        bytes_max = config.max_transfer_bytes_on_message_in_memory
        wanted_bytes = fields.number("maxMsgBytes", -1)  # of 5.x
        commit = fields.number("commitOffset", 0, least=LONG_MIN, most=LONG_MAX)
        return Pull(
            group=group, key=(topic, queue_id), codes=subscription.codes, suspend_ms=suspend_ms,
            matches=_both(expression, _each(
                self._visible(connection, request, topic), self._retries_of(topic)
            )),
            offset=fields.number("queueOffset", least=LONG_MIN, most=LONG_MAX),
            count_max=min(fields.number("maxMsgNums"), config.max_transfer_count_on_message_in_memory),
            bytes_max=min(wanted_bytes, bytes_max) if wanted_bytes > 0 else bytes_max,
            commit=commit if flags & FLAG_COMMIT_OFFSET else -1,
        )

    def _check_queue(self, topic: str, queue_id: int) -> None:
        found = self._metadata.topics.get(topic)
        if found is None:
            raise Refused(Code.TOPIC_NOT_EXIST, f"topic[{shown_bare(topic)}] not exist, apply first please!")
        if not found.can_read:
            raise Refused(Code.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= queue_id < found.read_queue_nums:
            raise Refused(
                Code.SYSTEM_ERROR,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] readQueueNums:[{found.read_queue_nums}]",
            )

    def _subscription(self, fields: Fields, group: GroupConfig, topic: str, flags: int) -> Subscription:
        if flags & FLAG_SUBSCRIPTION:
            return parse_subscription(
                topic, fields.text("subscription", SUB_ALL), kind=fields.text("expressionType", TAG)
            )
        data = self._table.data_of(group.group_name)
        if data is None:
            raise Refused(Code.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if data.message_model == BROADCASTING and not group.consume_broadcast_enable:
            raise Refused(
                Code.NO_PERMISSION,
                f"the consumer group[{group.group_name}] can not consume by broadcast way",
            )
        found = self._table.subscription_of(group.group_name, topic)
        if found is None:
            raise Refused(Code.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if found.version < fields.number("subVersion", 0, least=LONG_MIN, most=LONG_MAX):
            raise Refused(Code.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return found


def _both(expression: SqlFilter | None, visible: Visible | None) -> Visible | None:
    if expression is None:
        return visible
    if visible is None:
        return partial(is_matched, expression)
    return lambda record: visible(record) and is_matched(expression, record)


def _each(one: Visible | None, other: Visible | None) -> Visible | None:
    if one is None or other is None:
        return one or other
    return lambda record: one(record) and other(record)


def is_matched(expression: SqlFilter, record: bytes) -> bool:
    """Whether a record is a message whose properties match."""
    try:
        return expression.matches(decode_message(record, verify_body=False).properties)
    except WireError:
        return False
