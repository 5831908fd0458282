# -*- test-case-name: tests.broker.sending.test_sends -*-
"""
Messages that RocketMQ's producers send, and what they are told.

    10   SEND_MESSAGE          310  SEND_MESSAGE_V2, the same with short names
    320  SEND_BATCH_MESSAGE    (each of the others may say that it is a batch)

All that one read brings is put together; each is answered by itself, those that were refused before the rest.

Rule 1: what is refused was not stored, and costs its neighbours nothing. Rule 2: a slave makes no topics.

Source: SendMessageProcessor, AbstractSendMessageProcessor, SendMessageRequestHeader(V2) (4.9.8); differs: no
transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import attrs

from dledger.broker.common.config import BrokerConfig
from dledger.broker.common.refusals import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, Code, Fields, Refused
from dledger.broker.ha.put_status import PutStatus
from dledger.broker.metadata.files import Metadata
from dledger.broker.metadata.tables import RETRY_PREFIX, SCHEDULE_TOPIC
from dledger.broker.sending.plain_topics import PlainTopics
from dledger.broker.sending.puts import NotPut, PutPipeline
from dledger.broker.sending.send_properties import (
    cluster_property,
    delay_level,
    for_schedule,
    has_timer,
    is_prepared,
    plain_properties,
    stored_properties,
    waits,
    without_delay,
)
from dledger.broker.sending.topic_checks import DLQ_PREFIX, TopicChecks
from dledger.broker.store.commit_log import Appended
from dledger.broker.store.records import NewMessage
from dledger.broker.store.store_config import RECORD_OVERHEAD_MAX
from protocols.rocketmq.commands import VERSION, CommandConnection
from protocols.wire.errors import WireError
from protocols.wire.fastjson import shown
from protocols.wire.remoting import (
    FLAG_RESPONSE,
    FRAME_START,
    HEADER_WORD_SIZE,
    JSON,
    RemotingCommand,
    encode_command,
)
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX, TRANSACTION_MASK, SysFlag
from protocols.wire.rocketmq.message import Host, decode_batch

SEND_MESSAGE = 10
SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320
SEND_CODES = frozenset({SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE})

#: Below this a client does not say how often a message may be tried.
_V3_4_9 = 121

NO_TIMERS = "accurate timer message is not enabled: there are delay levels only (DELAY)"

_MULTI_TAGS = int(SysFlag.MULTI_TAGS)
_PREPARED = int(SysFlag.PREPARED)
_NOT_PLAIN = TRANSACTION_MASK


class _Names(NamedTuple):
    """What the fields of a request are called."""

    group: str
    topic: str
    default_topic: str
    default_queues: str
    queue_id: str
    sys_flag: str
    born: str
    flag: str
    properties: str
    reconsumed: str
    unit: str
    reconsumed_max: str
    batch: str


_LONG = _Names(
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
    "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch",
)  # fmt: skip
_SHORT = _Names(*"abcdefghijklm")
_NAMES: Mapping[int, _Names] = {SEND_MESSAGE: _LONG, SEND_MESSAGE_V2: _SHORT, SEND_BATCH_MESSAGE: _SHORT}


class _Send(NamedTuple):
    """
    A request that can be stored.

    @ivar queue_id: what the producer is told; a message that waits for its delay stands in another.
    """

    request: RemotingCommand
    messages: tuple[NewMessage, ...]
    queue_id: int
    waits: bool


class Sends:
    """
    @ivar store_host: who stores; part of every message and of its name.
    """

    def __init__(
        self, pipeline: PutPipeline, checks: TopicChecks, metadata: Metadata, config: BrokerConfig, *,
        store_host: Host, wall_ms: Callable[[], int],
    ) -> None:
        self._pipeline = pipeline
        self._checks = checks
        self._groups = metadata.groups
        self._config = config
        self._wall_ms = wall_ms
        self._cluster = cluster_property(config.broker_cluster_name)
        self._levels = len(config.store.delay_levels_ms)
        self._body_max = config.store.max_message_size
        self._told = {"MSG_REGION": config.region_id, "TRACE_ON": str(config.trace_on).lower()}
        self.store_host = store_host
        self._id_start = (store_host.address + store_host.port.to_bytes(4, "big")).hex().upper()
        self._answer_start, self._answer_end = _answer_form(self._told, self._id_start)
        self._plain_topics = PlainTopics(metadata.topics)
        self._plain_body_max = min(
            config.store.max_message_size, config.store.mapped_file_size_commit_log - RECORD_OVERHEAD_MAX
        )

    # -- all of one read -------------------------------------------------------------------------

    def received(self, connection: CommandConnection, requests: Sequence[RemotingCommand]) -> None:
        """Requests of L{SEND_CODES} that came together. Each is answered once, now or later."""
        refused = self._pipeline.refusal()
        if refused is not None:
            for request in requests:
                self._refuse(connection, request, *told_of(refused))
            return
        born_host = host_of(connection)
        sends: list[_Send] = []
        for request in requests:
            plain = self._plain(request, born_host)
            if plain is not None:
                sends.append(plain)
                continue
            try:
                send = self._prepared(request, born_host, connection)
                self._pipeline.check(send.messages)
            except Refused as error:
                self._refuse(connection, request, error.code, error.remark)
            except ValueError as error:
                self._refuse(connection, request, Code.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
            else:
                sends.append(send)
        if sends:
            self._put(connection, sends)

    def _put(self, connection: CommandConnection, sends: list[_Send]) -> None:
        waiting = [send.waits for send in sends]
        try:
            appended, done = self._pipeline.put([send.messages for send in sends], waits=any(waiting))
        except NotPut as error:
            for send in sends:
                self._refuse(connection, send.request, *told_of(error))
            return
        later = []
        for send, stored in zip(sends, appended, strict=True):
            if send.waits:
                later.append((send, stored))
            else:
                self._answer(connection, send, stored, PutStatus.PUT_OK)

        def answer(status: PutStatus) -> None:
            for send, stored in later:
                self._answer(connection, send, stored, status)

        if later:
            done.addCallback(answer)

    # -- answers ---------------------------------------------------------------------------------

    def _answer(
        self, connection: CommandConnection, send: _Send, stored: tuple[Appended, ...], status: PutStatus
    ) -> None:
        if not status.is_stored:
            self._refuse(connection, send.request, status.remoting_code, status.name)
            return
        if not status.remoting_code and len(stored) == 1 and send.request.serialize_type == JSON:
            connection.answer_made(send.request, self._success(send, stored[0]))
            return
        start = self._id_start
        ids = ",".join([f"{start}{one.offset:016X}" for one in stored])
        connection.answer(send.request, code=status.remoting_code, ext_fields={
            **self._told, "msgId": ids, "queueId": str(send.queue_id),
            "queueOffset": str(stored[0].queue_offset),
        })  # fmt: skip

    def _success(self, send: _Send, stored: Appended) -> bytes:
        """The frame of the answer to a message that is where it should be."""
        header = (
            f'{self._answer_start}{stored.offset:016X}","queueId":"{send.queue_id}","queueOffset":"'
            f'{stored.queue_offset}"}},"flag":1,"language":"PYTHON","opaque":{send.request.opaque}'
            f"{self._answer_end}"
        ).encode()
        return FRAME_START.pack(HEADER_WORD_SIZE + len(header), len(header)) + header

    def _refuse(
        self, connection: CommandConnection, request: RemotingCommand, code: int, remark: str
    ) -> None:
        connection.answer(request, code=int(code), remark=remark, ext_fields=self._told)

    # -- one request -----------------------------------------------------------------------------

    def _plain(self, request: RemotingCommand, born_host: Host) -> _Send | None:
        """
        The short road for a request as most are: one message, to a queue of a topic that is there, nothing
        special in it. None: it is none of these, or something is wrong with it; see L{_prepared}.
        """
        fields = request.ext_fields
        try:
            queue, sys_flag, born, flag = fields["e"], fields["f"], fields["g"], fields["h"]
            numbers = queue + sys_flag + born + flag + fields["d"]
            if not (numbers.isdecimal() and numbers.isascii() and "a" in fields and "c" in fields):
                return None
            queue_id, flags, born_ms, own_flag = int(queue), int(sys_flag), int(born), int(flag)
            topic = fields["b"]
        except (KeyError, ValueError):
            return None
        get = fields.get
        if (
            queue_id >= self._plain_topics.queues_of(topic) or request.code != SEND_MESSAGE_V2
            or flags & _NOT_PLAIN or flags > INT_MAX or own_flag > INT_MAX or born_ms > LONG_MAX
            or len(request.body) > self._plain_body_max or get("j", "0") != "0"
            or get("k", "false") != "false" or get("m", "false") != "false"
        ):  # fmt: skip
            return None
        properties = plain_properties(get("i", ""), self._cluster)
        if properties is None:
            return None
        message = NewMessage(
            topic=topic, queue_id=queue_id, body=request.body, properties_data=properties[0], flag=own_flag,
            sys_flag=flags, born_timestamp=born_ms, born_host=born_host, store_host=self.store_host,
        )
        return _Send(request, (message,), queue_id, properties[1])

    def _prepared(self, request: RemotingCommand, born_host: Host, connection: CommandConnection) -> _Send:
        """@raise Refused: it must not be stored. @raise ValueError: nor can it."""
        fields = Fields(request.ext_fields)
        names = _NAMES[request.code]
        topic = self._checks.writable(
            fields.text(names.topic), default_topic=fields.text(names.default_topic),
            queue_nums=fields.number(names.default_queues), is_unit=fields.flag(names.unit, False),
        )  # fmt: skip
        queue_id = self._checks.queue_of(topic, fields.number(names.queue_id), connection.address)
        fields.text(names.group)
        properties = fields.text(names.properties, "").encode("utf-8")
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise ValueError(f"properties of {len(properties)} bytes; {PROPERTIES_BYTES_MAX} are allowed")
        sys_flag = fields.number(names.sys_flag)
        if topic.topic_filter_type == "MULTI_TAG":
            sys_flag |= _MULTI_TAGS
        message = NewMessage(
            topic=topic.topic_name, queue_id=queue_id, body=request.body,
            properties_data=stored_properties(properties, self._cluster), flag=fields.number(names.flag),
            sys_flag=sys_flag, born_timestamp=fields.number(names.born, least=LONG_MIN, most=LONG_MAX),
            born_host=born_host, store_host=self.store_host,
            reconsume_times=fields.number(names.reconsumed, 0),
        )  # fmt: skip
        if fields.flag(names.batch, False):
            return _Send(request, self._batch_of(message), queue_id, waits(properties))
        if sys_flag & TRANSACTION_MASK == _PREPARED or is_prepared(properties):
            raise Refused(Code.NO_PERMISSION, f"the broker[{self._config.broker_ip1}] sending transaction "
                                              "message is forbidden: there are none here")  # fmt: skip
        if message.topic.startswith(RETRY_PREFIX):
            message = self._retried(message, request, fields.number(names.reconsumed_max, INT_MIN))
        elif has_timer(properties):
            raise Refused(Code.SYSTEM_ERROR, NO_TIMERS)
        level = delay_level(message.properties_data)
        if level > 0:
            message = self._delayed(message, min(level, self._levels))
        return _Send(request, (message,), queue_id, waits(properties))

    def _batch_of(self, batch: NewMessage) -> tuple[NewMessage, ...]:
        """The messages in a batch, each with the properties of the batch behind its own."""
        if batch.topic.startswith(RETRY_PREFIX):
            raise ValueError(f"batch request does not support retry group {batch.topic}")
        if batch.sys_flag & TRANSACTION_MASK or is_prepared(batch.properties_data):
            raise ValueError("a batch cannot be part of a transaction")
        if delay_level(batch.properties_data) > 0:
            raise ValueError("a batch cannot be delayed")
        if len(batch.body) > self._body_max:
            raise ValueError(f"batch of {len(batch.body)} bytes; max_message_size={self._body_max}")
        try:
            items = decode_batch(batch.body)
        except WireError as error:
            raise ValueError(str(error)) from None
        if not items:
            raise ValueError("a batch without messages")
        added = batch.properties_data
        return tuple([
            attrs.evolve(batch, body=item.body, flag=item.flag,
                         properties_data=stored_properties(item.properties_data, added))
            for item in items
        ])  # fmt: skip

    def _retried(self, message: NewMessage, request: RemotingCommand, reconsumed_max: int) -> NewMessage:
        """A message that a consumer sends back by itself; a dead letter when it was tried often enough."""
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

    def _delayed(self, message: NewMessage, level: int) -> NewMessage:
        properties = for_schedule(
            message.properties_data, topic=message.topic, queue_id=message.queue_id, level=level
        )
        return attrs.evolve(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties_data=properties)


def _answer_form(told: Mapping[str, str], id_start: str) -> tuple[str, str]:
    """What stands before and behind the numbers in the header of an answer of success."""
    number = 1_234_567_891
    whole = encode_command(RemotingCommand(
        code=0, opaque=number, flag=FLAG_RESPONSE, version=VERSION,
        ext_fields={**told, "msgId": id_start, "queueId": "", "queueOffset": ""},
    ))[FRAME_START.size :].decode("utf-8")  # fmt: skip
    start = whole.index(f'"msgId":"{id_start}') + len(f'"msgId":"{id_start}')
    end = whole.index(f'"opaque":{number}') + len(f'"opaque":{number}')
    return whole[:start], whole[end:]


def told_of(error: NotPut) -> tuple[int, str]:
    """Code and remark. The words before the colon are RocketMQ's."""
    status = error.status
    remark = error.reason
    if status is PutStatus.SERVICE_NOT_AVAILABLE:
        remark = f"service not available now: {error.reason}"
    elif status is PutStatus.OS_PAGE_CACHE_BUSY:
        remark = f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {error.reason}"
    elif status is PutStatus.UNKNOWN_ERROR:
        remark = f"UNKNOWN_ERROR: {error.reason}"
    return status.remoting_code, remark


def host_of(connection: CommandConnection) -> Host:
    """Whose messages they are; 0.0.0.0 where that is no address."""
    peer = connection.transport.getPeer()
    host, port = getattr(peer, "host", None), getattr(peer, "port", 0)
    try:
        return Host.of(host or "0.0.0.0", port)
    except ValueError:
        return Host.of("0.0.0.0", 0)

