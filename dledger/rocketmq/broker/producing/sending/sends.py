# -*- test-case-name: tests.broker.sending -*-
"""
Reads, puts and answers the sends of RocketMQ's producers::

    request -> PlainSends.read, or decoded and LongSends.read -> PutPipeline.put -> SendAnswers

L{PlainSends} reads the most frequent requests of Java producers: one message, to a queue of a topic that
exists, without properties that a broker acts on. Requests of one shape
(L{protocols.wire.rocketmq.send_request}) share a plan, the form of their records
(L{dledger.rocketmq.store.records.plain_records}), until the topics change. L{LongSends} reads all requests,
with long or short field names, and makes the same message of a plain one::

    10   SEND_MESSAGE          310  SEND_MESSAGE_V2, the same with short names
    320  SEND_BATCH_MESSAGE    (each of the others may declare a batch, too)
    324  SEND_REPLY_MESSAGE    325  SEND_REPLY_MESSAGE_V2: see L{dledger.rocketmq.broker.replies}

The sends of one read of a connection are one put, or those of a turn (L{Sends}). Each request is answered
once; refusals come first.

Rule 1: messages are stored in the order of their requests.
Rule 2: a refused request stores nothing, and does not affect other requests.
Rule 3: while the broker refuses all messages, no request creates a topic.
Rule 4: the rules for a message are applied in the order of RocketMQ; the answer names the first that the
request breaks.

Source: SendMessageProcessor, AbstractSendMessageProcessor, SendMessageRequestHeader(V2) (4.9.8).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from time import localtime, mktime
from typing import NamedTuple

import attrs
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.rocketmq.answering.refusals import INT_MIN, LONG_MAX, LONG_MIN, Code, Fields, Refused
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.options.own_address import OwnAddress
from dledger.rocketmq.broker.producing.answers import LongSend, PlainSend, SendAnswers, put_refusal
from dledger.rocketmq.broker.producing.delays.recall_handle import HANDLE_CHARACTERS_MAX, RecallHandle
from dledger.rocketmq.broker.producing.delays.timed import OUT_MS, REAL_TOPIC, TIMED_TOPIC, timed
from dledger.rocketmq.broker.producing.halves import half_message, longest_form
from dledger.rocketmq.broker.producing.puts import NotPut, PutPipeline
from dledger.rocketmq.broker.producing.rules import PutRules, host_of
from dledger.rocketmq.broker.producing.send_properties import (
    delay_level,
    has_timer,
    is_prepared,
    plain_properties,
    waits,
    without_delay,
)
from dledger.rocketmq.broker.producing.topic_checks import DLQ_PREFIX
from dledger.rocketmq.metadata.tables import RETRY_PREFIX
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.plain_records import PlainForm, PlainMessage
from dledger.rocketmq.store.records.records import NewMessage
from dledger.rocketmq.store.records.store_config import RECORD_OVERHEAD_MAX
from protocols.rocketmq.broker import AnySend, BrokerConnection
from protocols.rocketmq.commands import CommandConnection
from protocols.turn import Turn
from protocols.wire.errors import WireError
from protocols.wire.fastjson import shown
from protocols.wire.remoting import RemotingCommand, decode_command
from protocols.wire.rocketmq.layout import TRANSACTION_MASK, SysFlag
from protocols.wire.rocketmq.message import decode_batch, decode_properties
from protocols.wire.rocketmq.send_request import SendMessageRequest, SendShape

UNIQUE_KEY = b"UNIQ_KEY\x01"
#: At most, of a key from L{UniqueIds}, with what separates properties.
_ID_BYTES = len(UNIQUE_KEY) + 2 * 28 + 2

#: Finds the unique key of a message in its properties: an empty one is none, nor is one with a longer name.
find_unique_key = re.compile(rb"(?:\A|\x02)UNIQ_KEY\x01[^\x02]").search


class UniqueIds:
    """
    The unique key that a broker gives to a message whose producer has set none, in the form of RocketMQ's
    clients::

        address   4 bytes, or 16     of this broker
        process   2 bytes            random here
        class     4 bytes            random here
        time      4 bytes            milliseconds since the first of the month, local time
        count     2 bytes

    in hexadecimal. Tools read the time from it to bound their search.

    Source: MessageClientIDSetter, SendMessageProcessor (5.3.3).
    """

    def __init__(self, own: OwnAddress, *, wall_ms: Callable[[], int], rng: Random) -> None:
        """@param wall_ms: milliseconds since 1970."""
        self._own = own
        self._wall_ms = wall_ms
        self._process = rng.getrandbits(48).to_bytes(6, "big")
        self._count = rng.getrandbits(16)
        self._month_ms = self._next_ms = 0
        self._host = own.host
        self._start = b""

    def property(self) -> bytes:
        """One more key, as a property with its 0x02."""
        now_ms = self._wall_ms()
        if not self._month_ms <= now_ms < self._next_ms or self._own.host is not self._host:
            self._month_ms, self._next_ms = _month(now_ms)
            self._host = self._own.host
            self._start = UNIQUE_KEY + (self._host.address + self._process).hex().upper().encode()
        self._count = self._count + 1 & 0xFFFF
        return b"%b%08X%04X\x02" % (self._start, now_ms - self._month_ms, self._count)


def _month(now_ms: int) -> tuple[int, int]:
    """Begin and end of the month of a time, ms since 1970."""
    now = localtime(now_ms / 1000)
    year, month = now.tm_year, now.tm_mon
    begin = mktime((year, month, 1, 0, 0, 0, 0, 0, -1))
    end = mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(begin) * 1000, int(end) * 1000


SEND_MESSAGE = 10
SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320
SEND_REPLY, SEND_REPLY_V2 = 324, 325
SEND_CODES = frozenset({SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE})

#: A client below this version does not send the maximum number of tries.
_V3_4_9 = 121

#: Most messages of a batch: they are stored together, in one turn, which takes 50 ms for these. Lists that
#: are split at 1 MB, as in the examples of RocketMQ, have fewer unless messages are below 250 bytes.
BATCH_MAX = 4096

#: Messages, and bytes of bodies, that are put before the turn ends.
TOGETHER_MAX, TOGETHER_BYTES_MAX = 1024, 1024 * 1024

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
        self, inside: BrokerInside, rules: PutRules, *, ids: UniqueIds,
        may_time: Callable[[], bool] = lambda: True,
    ) -> None:
        """@param may_time: called before a message waits for a time of its own; returns whether it may."""
        self._may_time = may_time
        self._rules = rules
        self._checks = rules.checks
        self._groups = inside.metadata.groups
        self._config = inside.config
        self._own = inside.own
        self._ids = ids
        self._wall_ms = inside.wall_ms
        self._no_transactions = (
            f"the broker[{inside.config.broker_ip1}] sending transaction message is forbidden"
        )

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
        if not 0 < len(items) <= BATCH_MAX:
            raise ValueError(
                f"a batch of {len(items)} messages: write 1 to {BATCH_MAX}" if items
                else "a batch without messages"
            )
        added, messages = batch.properties_data, []
        for item in items:
            _refuse_in_batch(item.properties_data)
            own = added + self._id_for(item.properties_data)
            stored = self._rules.stored(item.properties_data, topic=batch.topic, added=own)
            messages.append(NewMessage(  # (attrs.evolve takes twice as long)
                topic=batch.topic, queue_id=batch.queue_id, body=item.body, properties_data=stored,
                flag=item.flag, sys_flag=batch.sys_flag, born_timestamp=batch.born_timestamp,
                born_host=batch.born_host, store_host=batch.store_host,
                reconsume_times=batch.reconsume_times,
                prepared_transaction_offset=batch.prepared_transaction_offset,
            ))
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


_INT_MAX = 2**31 - 1


@attrs.frozen
class _Plan:
    """
    The facts that hold for requests of one shape.

    @ivar version: version of the topics from which it was made.
    @ivar form: form of their records; None: the requests are not plain.
    """

    version: object
    form: PlainForm | None = None
    queues: int = 0


class PlainSends:
    """Reads plain requests, for one broker."""

    def __init__(self, inside: BrokerInside, rules: PutRules, *, ids: UniqueIds, record_max: int) -> None:
        """@param record_max: bytes of a record that the log takes."""
        self._checks = rules.checks
        self._topics = rules.checks.topics
        self._added = rules.added
        self._ids = ids
        self._own = inside.own
        # Within these bounds a message passes L{CommitLog.check}; up to the last, its body alone shows that.
        store = inside.config.store
        self._body_max = store.max_message_size
        self._record_max = record_max - len(self._added) - _ID_BYTES
        self._sure_max = min(self._body_max, record_max - RECORD_OVERHEAD_MAX)

    def read(self, connection: BrokerConnection, request: SendMessageRequest) -> PlainMessage | None:
        """The message of a plain request; None: it is not plain."""
        shape, _, _, queue_id, born_timestamp, properties, body = request
        plan = shape.note
        if type(plan) is not _Plan or plan.version is not self._topics.version:
            plan = shape.note = self._plan(shape, connection)
        form = plan.form
        if form is None or queue_id >= plan.queues or len(body) > self._sure_max and (
            len(body) > self._body_max or form.overhead + len(body) + len(properties) > self._record_max
        ):
            return None
        stored = plain_properties(properties, self._added)
        if stored is not None and not find_unique_key(properties):
            stored += self._ids.property()
        return None if stored is None else PlainMessage(form, queue_id, born_timestamp, stored, body)

    def _plan(self, shape: SendShape, connection: BrokerConnection) -> _Plan:
        version = self._topics.version
        get = shape.command.ext_fields.get
        sys_flag, flag = int(get("f", "0")), int(get("h", "0"))
        queues = self._checks.plain_queues(get("b", ""))
        if (
            not queues or sys_flag & TRANSACTION_MASK
            or not 0 <= sys_flag <= _INT_MAX or not 0 <= flag <= _INT_MAX
            or get("j", "0") != "0" or get("k", "false") != "false" or get("m", "false") != "false"
        ):
            return _Plan(version)
        like = NewMessage(
            topic=get("b", ""), queue_id=0, body=b"", properties_data=b"", flag=flag, sys_flag=sys_flag,
            born_timestamp=0, born_host=host_of(connection), store_host=self._own.host,
        )
        return _Plan(version, PlainForm(like), queues)


@attrs.define(eq=False)
class _Read:
    """
    The sends of one read of a connection that can be stored.

    @ivar body_bytes: total size of the plain requests' bodies.
    @ivar waits: whether the producer of one of them waits for slaves and disk.
    """

    connection: CommandConnection
    plain: list[PlainSend]
    long: list[LongSend]
    body_bytes: int = 0
    waits: bool = False


class Sends:
    """
    A L{SendSink}, and the group of commands for sends of connections without the shortcut.

    While several connections send, their sends of one turn of the reactor are one put. A connection that
    sends alone does not wait for the end of the turn.

    Invariant: C{_reads} are those of this turn that are not put, C{_messages} their messages, in order, with
    C{_bytes} of bodies; they are put when it ends.

    @ivar codes: L{SEND_CODES}.
    """

    log = Logger()
    codes = SEND_CODES

    def __init__(
        self, pipeline: PutPipeline, plain: PlainSends, long: LongSends, answers: SendAnswers, turn: Turn
    ) -> None:
        self._pipeline = pipeline
        self._plain = plain
        self._long = long
        self._answers = answers
        self._turn = turn
        self._messages: list[PlainMessage] = []
        self._reads: list[_Read] = []
        self._bytes = 0
        self._last: CommandConnection | None = None

    # -- reading ---------------------------------------------------------------------------------

    def received(self, connection: CommandConnection, requests: Sequence[RemotingCommand]) -> None:
        """See L{dledger.rocketmq.broker.access.router.SendCommands.received}."""
        messages: list[PlainMessage] = []
        read = _Read(connection, [], [])
        for request in requests:
            self._read_long(request, read, messages)
        self._put(messages, [read])

    def sends_received(self, connection: BrokerConnection, requests: Sequence[AnySend]) -> None:
        """See L{SendSink.sends_received}."""
        messages, read_plain, plain = self._messages, self._plain.read, list[PlainSend]()
        read = _Read(connection, plain, [])
        first = at = len(messages)
        body_bytes = long_bytes = 0
        try:
            for request in requests:
                match request:  # (unlike isinstance, without a call)
                    case RemotingCommand():
                        self._read_long(request, read, messages)
                        at = len(messages)
                        long_bytes += len(request.body)
                        continue
                message = read_plain(connection, request)
                if message is None:
                    self._read_long(decode_command(request.frame), read, messages)
                    at = len(messages)
                    long_bytes += len(request.body)
                    continue
                plain.append((request.opaque, message.queue_id, at))
                messages.append(message)
                at += 1
                body_bytes += len(message.body)
        except Exception:
            del messages[first:]
            self._failed(connection)
            return
        if plain:
            read.body_bytes = body_bytes
            read.waits = True
        self._reads.append(read)
        self._bytes += body_bytes + long_bytes
        last, self._last = self._last, connection
        is_alone = last is connection or last is None
        if not is_alone and at < TOGETHER_MAX and self._bytes < TOGETHER_BYTES_MAX:
            if len(self._reads) == 1:
                self._turn.work(self.put_together)
                self._pipeline.before = self.put_together
        else:
            self.put_together()

    def _failed(self, connection: CommandConnection) -> None:
        # Some requests may have an answer already: only closing the connection answers the rest.
        self.log.failure("a send of {address} failed", Failure(), address=connection.address)
        connection.abort("a send failed unexpectedly")

    def _read_long(self, request: RemotingCommand, read: _Read, messages: list[PlainMessage]) -> None:
        """Read a request of any kind; answer it if it is refused."""
        answers, connection = self._answers, read.connection
        refused = self._pipeline.refusal()
        if refused is not None:
            answers.refuse(connection, request, *put_refusal(refused))
            return
        try:
            send = self._long.read(connection, request)
            found = self._pipeline.checked(send.messages)
            if send.later is not None:
                self._pipeline.checked([send.later])
        except Refused as error:
            answers.refuse(connection, request, error.code, error.remark)
        except ValueError as error:
            answers.refuse(connection, request, Code.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
        else:
            first = len(messages)
            messages += found
            waits = send.waits or self._pipeline.always_waits
            read.waits |= waits
            read.long.append(LongSend(
                request, send.queue_id, first, len(messages), waits, send.transaction_id, send.recall_handle,
            ))

    # -- putting ---------------------------------------------------------------------------------

    def put_together(self) -> None:
        """Put what was read and waits for the end of the turn."""
        messages, self._messages = self._messages, []
        reads, self._reads = self._reads, []
        self._bytes = 0
        self._pipeline.before = None
        try:
            self._put(messages, reads)
        except Exception:
            for read in reads:
                self._failed(read.connection)

    def _put(self, messages: list[PlainMessage], reads: Sequence[_Read]) -> None:
        if not messages:
            return
        answers, waits = self._answers, False
        for read in reads:
            waits = waits or read.waits
        try:
            placed, done, is_placed = self._pipeline.put(messages, waits=waits)
        except NotPut as error:
            for read in reads:
                self._refuse_all(read, read.long, *put_refusal(error))
            return
        for read in reads:
            for send in read.long:
                if not send.waits:
                    answers.answer(read.connection, send, placed, PutStatus.PUT_OK)
        if not waits:
            return
        # The wait for slaves or the disk leaves time to write the expected answers.
        ready: list[list[bytes]] = []
        if is_placed and not done.called:
            ready = [answers.stored_frames(read.plain, placed, PutStatus.PUT_OK) for read in reads]
        messages.clear()  # release the bodies during the wait

        def answer(status: PutStatus) -> None:
            for number, read in enumerate(reads):
                later = [send for send in read.long if send.waits] if read.long else []
                try:
                    if not status.is_stored:
                        self._refuse_all(read, later, status.remoting_code, status.name)
                        continue
                    if read.plain:
                        is_ready = ready and status is PutStatus.PUT_OK
                        frames = ready[number] if is_ready else answers.stored_frames(
                            read.plain, placed, status)
                        self._write(read, frames)
                    for send in later:
                        answers.answer(read.connection, send, placed, status)
                except Exception:  # the others get theirs
                    self._failed(read.connection)

        done.addCallback(answer)

    def _refuse_all(self, read: _Read, sends: Sequence[LongSend], code: int, remark: str) -> None:
        if read.plain:
            self._write(read, self._answers.refused_frames(read.plain, code, remark))
        for send in sends:
            self._answers.refuse(read.connection, send.request, code, remark)

    def _write(self, read: _Read, frames: Sequence[bytes]) -> None:
        connection = read.connection
        assert isinstance(connection, BrokerConnection), "plain requests arrive only over such a connection"
        connection.answer_sends(frames, read.body_bytes)
