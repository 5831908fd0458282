# -*- test-case-name: tests.broker.sending.test_sends -*-
"""
Reads every request with messages of a RocketMQ producer, with long or short field names:

    10   SEND_MESSAGE          310  SEND_MESSAGE_V2, the same with short names
    320  SEND_BATCH_MESSAGE    (each of the others may declare a batch, too)
    324  SEND_REPLY_MESSAGE    325  SEND_REPLY_MESSAGE_V2: see L{dledger.rocketmq.broker.replies}

Rule: the rules are applied in the order of RocketMQ; the answer names the first that the request breaks.

Source: SendMessageProcessor, AbstractSendMessageProcessor, SendMessageRequestHeader(V2) (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs

from dledger.rocketmq.answering.refusals import INT_MIN, LONG_MAX, LONG_MIN, Code, Fields, Refused
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.broker.options.own_address import OwnAddress
from dledger.rocketmq.broker.producing.delays.recall_handle import HANDLE_CHARACTERS_MAX, RecallHandle
from dledger.rocketmq.broker.producing.delays.timed import OUT_MS, REAL_TOPIC, TIMED_TOPIC, timed
from dledger.rocketmq.broker.producing.halves import half_message, longest_form
from dledger.rocketmq.broker.producing.rules import PutRules, host_of
from dledger.rocketmq.broker.producing.send_properties import (
    delay_level,
    has_timer,
    is_prepared,
    waits,
    without_delay,
)
from dledger.rocketmq.broker.producing.topic_checks import DLQ_PREFIX
from dledger.rocketmq.broker.producing.unique_ids import UniqueIds, find_unique_key
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import RETRY_PREFIX
from dledger.rocketmq.store.records.records import NewMessage
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.errors import WireError
from protocols.wire.fastjson import shown
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.layout import TRANSACTION_MASK, SysFlag
from protocols.wire.rocketmq.message import decode_batch, decode_properties

SEND_MESSAGE = 10
SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320
SEND_REPLY, SEND_REPLY_V2 = 324, 325
SEND_CODES = frozenset({SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE})

#: A client below this version does not send the maximum number of tries.
_V3_4_9 = 121

NO_TIMERS = "a message of a transaction cannot have a delivery time"

_MULTI_TAGS = int(SysFlag.MULTI_TAGS)


#: Names of the fields; the short names are the letters from a on, in this order.
_LONG = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
    "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch",
)
_SHORT = dict(zip(_LONG, "abcdefghijklm", strict=True))
_NAMES = {
    SEND_MESSAGE: {name: name for name in _LONG}, SEND_MESSAGE_V2: _SHORT, SEND_BATCH_MESSAGE: _SHORT,
    SEND_REPLY: {name: name for name in _LONG}, SEND_REPLY_V2: _SHORT,
}


class ReadSend(NamedTuple):
    """
    A request that breaks no rule.

    @ivar messages: one, or those of a batch, which go into one file.
    @ivar queue_id: the queue in the answer; a delayed message waits in another queue.
    @ivar waits: whether the producer waits for slaves and disk.
    @ivar transaction_id: of a half message.
    @ivar recall_handle: with which the producer may recall a message that waits for its time.
    @ivar later: a form in which a half message must be storable, too; None for other messages.
    """

    messages: Sequence[NewMessage]
    queue_id: int
    waits: bool
    transaction_id: str = ""
    later: NewMessage | None = None
    recall_handle: str = ""


class LongSends:
    """Reads requests of any kind, for one broker."""

    def __init__(
        self, rules: PutRules, metadata: Metadata, config: BrokerConfig, *, own: OwnAddress,
        wall_ms: Callable[[], int], ids: UniqueIds, may_time: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        @param wall_ms: milliseconds since 1970.
        @param may_time: called before a message waits for a time of its own; returns whether it may.
        """
        self._may_time = may_time
        self._rules = rules
        self._checks = rules.checks
        self._groups = metadata.groups
        self._config = config
        self._own = own
        self._ids = ids
        self._wall_ms = wall_ms
        self._no_transactions = f"the broker[{config.broker_ip1}] sending transaction message is forbidden"

    def read(self, connection: CommandConnection, request: RemotingCommand) -> ReadSend:
        """
        Read the messages of a request.

        @raise Refused: policy forbids them.
        @raise ValueError: they are malformed.
        """
        fields, names = Fields(request.ext_fields), _NAMES[request.code]
        topic = self._checks.writable(
            fields.text(names["topic"]), default_topic=fields.text(names["defaultTopic"]),
            queue_nums=fields.number(names["defaultTopicQueueNums"]),
            is_unit=fields.flag(names["unitMode"], False),
        )
        queue_id = self._checks.queue_of(topic, fields.number(names["queueId"]), connection.address)
        fields.text(names["producerGroup"])
        properties = fields.text(names["properties"], "").encode("utf-8")
        is_batch = fields.flag(names["batch"], False)
        added = self._rules.added + (b"" if is_batch else self._id_for(properties))
        stored = self._rules.stored(properties, topic=topic.topic_name, added=added)
        sys_flag = fields.number(names["sysFlag"])
        if topic.topic_filter_type == "MULTI_TAG":
            sys_flag |= _MULTI_TAGS
        message = NewMessage(
            topic=topic.topic_name, queue_id=queue_id, body=request.body, properties_data=stored,
            flag=fields.number(names["flag"]), sys_flag=sys_flag,
            born_timestamp=fields.number(names["bornTimestamp"], least=LONG_MIN, most=LONG_MAX),
            born_host=host_of(connection), store_host=self._own.host,
            reconsume_times=fields.number(names["reconsumeTimes"], 0),
        )
        if is_batch:
            return ReadSend(self._batch_of(message), queue_id, waits(properties))
        # A consumer sends back what was committed, with all its properties.
        is_retry = message.topic.startswith(RETRY_PREFIX) or (
            message.reconsume_times > 0 and delay_level(properties) > 0
        )
        if is_prepared(properties) and not is_retry:
            return self._half_of(message, properties)
        self._rules.refuse_transaction(
            b"" if is_retry else properties, is_flagged=bool(sys_flag & TRANSACTION_MASK),
            remark=f"{self._no_transactions}: its flags say that it is one, and TRAN_MSG=true is missing",
        )
        if message.topic.startswith(RETRY_PREFIX):
            message = self._retried(message, request, fields.number(names["maxReconsumeTimes"], INT_MIN))
        elif delay_level(message.properties_data) <= 0:
            message = self._timed(message)
        handle = self._handle_of(message) if message.topic == TIMED_TOPIC else ""
        message = self._rules.delayed(message, delay_level(message.properties_data))
        return ReadSend((message,), queue_id, waits(properties), recall_handle=handle)

    def _handle_of(self, message: NewMessage) -> str:
        """For its recall; empty if its key is so long that no recall would take the handle."""
        named = decode_properties(message.properties_data)
        text = RecallHandle(
            named[REAL_TOPIC], self._config.broker_name, int(named[OUT_MS]), named["UNIQ_KEY"]
        ).text()
        return text if len(text) <= HANDLE_CHARACTERS_MAX else ""

    def _timed(self, message: NewMessage) -> NewMessage:
        """The message, or its form in which it waits for its time. @raise Refused: there is no room."""
        found = timed(message, self._config, self._wall_ms())
        if found is not message and not self._may_time():
            raise Refused(Code.SYSTEM_BUSY, "too many messages wait for a time of their own")
        return found

    def _id_for(self, properties: bytes) -> bytes:
        """The unique key that a message without one gets, as a property."""
        return b"" if find_unique_key(properties) else self._ids.property()

    def _half_of(self, message: NewMessage, properties: bytes) -> ReadSend:
        """
        The first half of a transaction.

        @raise Refused: there are none at this broker.
        @raise ValueError: it has a delay, which its end would not keep.
        """
        if self._config.reject_transaction_message:
            raise Refused(Code.NO_PERMISSION, self._no_transactions)
        self._rules.refuse_timer(properties, NO_TIMERS)
        if delay_level(properties) > 0:
            raise ValueError("a message of a transaction cannot be delayed")
        half, transaction_id = half_message(message)
        later = longest_form(half, message.topic)
        return ReadSend((half,), message.queue_id, waits(properties), transaction_id, later)

    def _batch_of(self, batch: NewMessage) -> list[NewMessage]:
        """The messages of a batch; the properties of the batch are appended to those of each message."""
        if batch.topic.startswith(RETRY_PREFIX):
            raise ValueError(f"batch request does not support retry group {batch.topic}")
        if batch.sys_flag & TRANSACTION_MASK:
            raise ValueError("a batch cannot be part of a transaction")
        _refuse_in_batch(batch.properties_data)
        body_max = self._config.store.max_message_size
        if len(batch.body) > body_max:
            raise ValueError(f"batch of {len(batch.body)} bytes; max_message_size={body_max}")
        try:
            items = decode_batch(batch.body)
        except WireError as error:
            raise ValueError(str(error)) from None
        if not items:
            raise ValueError("a batch without messages")
        added, messages = batch.properties_data, []
        for item in items:
            _refuse_in_batch(item.properties_data)
            own = added + self._id_for(item.properties_data)
            stored = self._rules.stored(item.properties_data, topic=batch.topic, added=own)
            messages.append(attrs.evolve(batch, body=item.body, flag=item.flag, properties_data=stored))
        return messages

    def _retried(self, message: NewMessage, request: RemotingCommand, reconsumed_max: int) -> NewMessage:
        """A message that a consumer itself sends back; a dead letter if it has no tries left."""
        name = message.topic[len(RETRY_PREFIX) :]
        group = self._groups.get(name)
        if group is None and self._config.auto_create_subscription_group:
            group = self._groups.find(name, self._wall_ms())
        if group is None:
            raise Refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {shown(name)}")
        most = group.retry_max_times
        if request.version >= _V3_4_9 and reconsumed_max != INT_MIN:
            most = reconsumed_max
        if message.reconsume_times < most:
            return message
        dead = self._checks.made_for_retries(DLQ_PREFIX + name)
        properties = without_delay(message.properties_data)
        return attrs.evolve(message, topic=dead.topic_name, queue_id=0, properties_data=properties)


def _refuse_in_batch(properties: bytes) -> None:
    """
    @param properties: of a batch, or of one of its messages: all are stored at once, for everybody to see.
    @raise ValueError: they ask for something else.
    """
    if is_prepared(properties):
        raise ValueError("a batch cannot be part of a transaction")
    if delay_level(properties) > 0:
        raise ValueError("a batch cannot be delayed")
    if has_timer(properties):
        raise ValueError("a batch cannot have a delivery time")
