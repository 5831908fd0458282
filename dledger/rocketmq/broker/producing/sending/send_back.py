# -*- test-case-name: tests.broker.sending.test_send_back -*-
"""
CONSUMER_SEND_MSG_BACK (36): a consumer returns a message for a later retry.

The message is stored again, in the group's topic for retries, with a delay that grows with each try; the
first delay has level 3 (10 s). When no tries are left, or the consumer asks for it (a level below 0), the
message goes to the group's dead letters, which no consumer reads by default.

Rule 1: the copy goes into a queue that the topic for retries has. (In RocketMQ into one of as many as the
group's C{retryQueueNums}, which an operator may have raised: nobody reads the others.)
Rule 2: the copy has all fields of the message; C{RETRY_TOPIC} and C{ORIGIN_MESSAGE_ID} name the original
topic and message, and its number of tries has risen by one.
Rule 3: a message of a topic that was deleted has no retries: it is answered as stored.

Source: AbstractSendMessageProcessor.consumerSendMsgBack (5.3.3), SendMessageProcessor (4.9.8).
"""

from __future__ import annotations

import random
from collections.abc import Callable

from twisted.internet.defer import Deferred

from dledger.rocketmq.answering.refusals import (
    LONG_MAX,
    LONG_MIN,
    Code,
    CommandGroup,
    Fields,
    Handlers,
    Refused,
)
from dledger.rocketmq.broker.options.groups import find_group
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.puts import NotPut, PutPipeline
from dledger.rocketmq.broker.producing.rules import PutRules
from dledger.rocketmq.broker.producing.send_properties import name_retry_topic
from dledger.rocketmq.broker.producing.topic_checks import DLQ_PREFIX, used_queues
from dledger.rocketmq.metadata.tables import PERM_WRITE, RETRY_PREFIX, GroupConfig, TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.plain_records import one_try_more
from dledger.rocketmq.store.records.records import NewMessage
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.errors import WireError
from protocols.wire.fastjson import shown
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message, decode_message, encode_properties

CONSUMER_SEND_MSG_BACK = 36

#: Delay level of the first retry.
FIRST_LEVEL = 3

#: From this version on the client's own maximum of tries applies.
_V3_4_9 = 121


class SendBack(CommandGroup):
    """The group of commands."""

    small_codes = frozenset({CONSUMER_SEND_MSG_BACK})

    def __init__(
        self, inside: BrokerInside, pipeline: PutPipeline, rules: PutRules, *, rng: random.Random,
        is_over: Callable[[Message], bool],
    ) -> None:
        """
        @param rng: chooses among the queues for retries.
        @param is_over: whether a message is of a topic that was deleted: it has no retries.
        """
        self._is_over = is_over
        self._config = inside.config
        self._store = inside.store
        self._metadata = inside.metadata
        self._pipeline = pipeline
        self._rules = rules
        self._own = inside.own
        self._wall_ms = inside.wall_ms
        self._rng = rng

    def handlers(self) -> Handlers:
        """By request code."""
        return {CONSUMER_SEND_MSG_BACK: self._send_back}

    def _send_back(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        name = fields.text("group")
        group = find_group(self._metadata, self._config, name, self._wall_ms())
        if group is None:
            raise Refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {shown(name)}")
        if not self._config.broker_permission & PERM_WRITE:
            raise Refused(Code.NO_PERMISSION,
                          f"the broker[{self._config.broker_ip1}] sending message is forbidden")
        if group.retry_queue_nums > 0:  # a group without queues for retries has no retries
            refused = self._pipeline.refusal()
            if refused is not None:
                raise Refused(Code.SYSTEM_ERROR, str(refused))
            try:
                message = self._find(fields.number("offset", least=LONG_MIN, most=LONG_MAX))
                if self._is_over(message):
                    connection.answer(request)
                    return
                done = self._put(self._copy(message, fields, request, group))
            except (ValueError, OSError, WireError, NotPut) as error:
                raise Refused(Code.SYSTEM_ERROR, str(error)) from error
            done.addCallback(self._answer, connection, request)
        else:
            connection.answer(request)

    def _answer(self, status: PutStatus, connection: CommandConnection, request: RemotingCommand) -> None:
        if status.is_stored:
            connection.answer(request)
        else:
            connection.answer(request, code=Code.SYSTEM_ERROR, remark=status.name)

    def _copy(
        self, message: Message, fields: Fields, request: RemotingCommand, group: GroupConfig
    ) -> NewMessage:
        level, most = fields.number("delayLevel"), group.retry_max_times
        if request.version >= _V3_4_9:
            most = fields.number("maxReconsumeTimes", most)
        properties = message.properties
        name_retry_topic(properties, message.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", message.message_id)
        properties["WAIT"] = "false"
        properties.pop("DELAY", None)
        if level < 0 or message.reconsume_times >= most:
            topic = self._rules.checks.made_for_retries(DLQ_PREFIX + group.group_name)
            return self._made(message, _writable(topic), 0, encode_properties(properties))
        topic = self._rules.checks.made_for_retries(
            RETRY_PREFIX + group.group_name, queue_nums=group.retry_queue_nums,
            sys_flag=_UNIT_SUB if fields.flag("unitMode", False) else 0,
        )
        queue_id = self._rng.randrange(min(group.retry_queue_nums, used_queues(topic)))
        copy = self._made(message, _writable(topic), queue_id, encode_properties(properties))
        return self._rules.delayed(copy, level or FIRST_LEVEL + message.reconsume_times)

    def _find(self, offset: int) -> Message:
        try:
            record = self._store.sound.at(offset)
        except OSError as error:
            raise Refused(Code.SYSTEM_ERROR, f"reading the message at {offset}: {error}") from error
        if record is None:
            raise Refused(Code.SYSTEM_ERROR, f"look message by offset failed, {offset}")
        return decode_message(record)

    def _made(self, message: Message, topic: str, queue_id: int, properties: bytes) -> NewMessage:
        return NewMessage(
            topic=topic, queue_id=queue_id, body=message.body, properties_data=properties, flag=message.flag,
            sys_flag=message.sys_flag, born_timestamp=message.born_timestamp, born_host=message.born_host,
            store_host=self._own.host, reconsume_times=one_try_more(message.reconsume_times),
        )

    def _put(self, message: NewMessage) -> Deferred[PutStatus]:
        """
        Store the copy, without a wait for slaves or the disk: the message exists already.

        @return: fires with the result, now unless the log always waits.
        @raise ValueError: it cannot be stored.
        @raise NotPut: the broker refuses messages now.
        """
        return self._pipeline.put(self._pipeline.checked([message], are_copies=True), waits=False).done


#: Bit of C{topicSysFlag}: subscriptions of units.
_UNIT_SUB = 0x2


def _writable(topic: TopicConfig) -> str:
    """@raise Refused: the topic is not writable."""
    if not topic.can_write:
        raise Refused(Code.NO_PERMISSION, f"the topic[{topic.topic_name}] sending message is forbidden")
    return topic.topic_name
