# -*- test-case-name: tests.broker.popping.test_acks -*-
"""
ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151): popped messages are done. CHANGE_MESSAGE_INVISIBLETIME
(200053): one stays invisible for another time, from now. And the requests of POP that are refused.

Rule 1: an ack is answered with success when it is stored; then the message is never delivered again. That of
a message whose time is over, so that it is delivered again, is answered with NO_MESSAGE (208). (Java answers
it with success.)
Rule 2: a new time is a new check point and an ack of the old one, in one put, in this order.
Rule 3: acks and new times of messages that were given in order need no put: see
L{dledger.rocketmq.broker.consuming.popping.in_order}. On a raft log they are answered when a next master has
them.

Source: AckMessageProcessor, ChangeInvisibleTimeProcessor (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from twisted.internet.defer import Deferred

from dledger.rocketmq.answering.java_json import read_request, to_long
from dledger.rocketmq.answering.refusals import LONG_MAX, Code, CommandGroup, Fields, Handlers, Refused
from dledger.rocketmq.broker.consuming.popping.check_points import (
    MESSAGES_MAX,
    ORDER_QUEUE,
    OWN_QUEUE,
    REVIVE_QUEUES,
    Ack,
    CheckPoint,
    PopKey,
    Receipt,
    ack_message,
    check_point_message,
    normal_topic,
    pop_retry_topic,
)
from dledger.rocketmq.broker.consuming.popping.in_order import InOrder
from dledger.rocketmq.broker.consuming.popping.pop_requests import INVISIBLE_MS_MAX
from dledger.rocketmq.broker.consuming.popping.revive import ReviveService
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.answers import put_refusal
from dledger.rocketmq.broker.producing.puts import NotPut, Put, PutPipeline
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.records import NewMessage
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import shown, to_bytes
from protocols.wire.remoting import RemotingCommand

ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_INVISIBLE = 200_051, 200_151, 200_053
#: Acks of one request.
BATCH_MAX = 4_096

#: Requests that are refused, and the words for their clients.
REFUSED = {
    200_052: "PEEK_MESSAGE is not supported: use PULL_MESSAGE (11), which takes nothing",
    200_056: "POP_ROLLBACK is not supported: what is not acknowledged is delivered again after its time",
}


class PopAcks(CommandGroup):
    """
    The group of commands.

    @ivar acknowledged, changed: numbers of messages so far.
    """

    small_codes = frozenset({ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_INVISIBLE})

    def __init__(
        self, inside: BrokerInside, pipeline: PutPipeline, revive: ReviveService, in_order: InOrder, *,
        freed: Callable[[str, str], None], settled: Callable[[], Deferred[None]],
    ) -> None:
        """
        @param freed: called with a topic and a group that may get more messages in order now.
        @param settled: see L{dledger.rocketmq.broker.replication.Replication.settled}.
        """
        self._in_order = in_order
        self._freed = freed
        self._settled = settled
        self._config = inside.config
        self._pipeline = pipeline
        self._revive = revive
        self._own = inside.own
        self._wall_ms = inside.wall_ms
        self.acknowledged = self.changed = 0

    def handlers(self) -> Handlers:
        """By request code."""
        refused = {code: partial(_refuse, remark) for code, remark in REFUSED.items()}
        return {
            ACK_MESSAGE: self._ack, BATCH_ACK_MESSAGE: self._batch, CHANGE_INVISIBLE: self._change, **refused
        }

    # -- acks ------------------------------------------------------------------------------------

    def _ack(self, connection: CommandConnection, request: RemotingCommand) -> None:
        ack, receipt = self._read(Fields(request.ext_fields))
        if receipt.revive_queue == ORDER_QUEUE:
            self._acknowledge_in_order(connection, request, [ack])
        else:
            self._store(connection, request, {ack: receipt.revive_queue})

    def _acknowledge_in_order(
        self, connection: CommandConnection, request: RemotingCommand, acks: Sequence[Ack]
    ) -> None:
        self.acknowledged += self._in_order.acknowledge(acks)
        for topic, group in dict.fromkeys((ack.key.topic, ack.key.group) for ack in acks):
            self._freed(topic, group)
        self._answer_settled(connection, request)

    def _answer_settled(
        self, connection: CommandConnection, request: RemotingCommand, **fields: object
    ) -> None:
        named = {name: str(value) for name, value in fields.items()}
        self._settled().addCallbacks(
            lambda _: connection.answer(request, ext_fields=named),
            lambda failure: connection.answer(
                request, code=Code.SYSTEM_ERROR, remark=failure.getErrorMessage()
            ),
        )

    def _read(self, fields: Fields) -> tuple[Ack, Receipt]:
        """@raise Refused: a field is missing or wrong."""
        self._refuse_slave()
        topic, group = fields.text("topic"), fields.text("consumerGroup")
        queue_id = fields.number("queueId", least=0)
        offset = fields.number("offset", least=0, most=LONG_MAX)
        try:
            receipt = Receipt.read(fields.text("extraInfo"))
        except ValueError as error:
            raise Refused(Code.MESSAGE_ILLEGAL, str(error)) from error
        if receipt.revive_queue >= REVIVE_QUEUES and receipt.revive_queue != ORDER_QUEUE:
            raise Refused(Code.MESSAGE_ILLEGAL, f"the receipt names queue {receipt.revive_queue} of check "
                                                f"points, 0 to {REVIVE_QUEUES - 1} are allowed")
        if receipt.kind == 2:  # clients before 5.2 do not know these names
            topic = pop_retry_topic(normal_topic(topic, group), group)
        key = PopKey(topic, group, queue_id, receipt.start, receipt.pop_ms, receipt.broker)
        return Ack(key, (offset,)), receipt

    def _refuse_slave(self) -> None:
        if self._config.role.is_slave:
            raise Refused(Code.SLAVE_NOT_AVAILABLE, "a slave takes no acks of POP: ask the master")

    def _batch(self, connection: CommandConnection, request: RemotingCommand) -> None:
        self._refuse_slave()
        try:
            acks = batch_acks(request.body, self._config.broker_name)
        except BodyError as error:
            raise Refused(Code.MESSAGE_ILLEGAL, f"batch of acks: {error}") from error
        if not acks:
            raise Refused(Code.NO_MESSAGE, "the batch has no acks")
        others = {ack: queue_id for ack, queue_id in acks.items() if queue_id != ORDER_QUEUE}
        if len(others) < len(acks):
            in_order = [ack for ack, queue_id in acks.items() if queue_id == ORDER_QUEUE]
            if not others:
                self._acknowledge_in_order(connection, request, in_order)
                return
            self.acknowledged += self._in_order.acknowledge(in_order)
        known = {
            ack: queue_id for ack, queue_id in others.items()
            if not self._revive.is_loaded or self._revive.table.has(ack)
        }
        if not known:
            raise Refused(Code.NO_MESSAGE, _late(next(iter(others))))
        self._store(connection, request, known)

    def _store(
        self, connection: CommandConnection, request: RemotingCommand, acks: Mapping[Ack, int]
    ) -> None:
        """@param acks: and their queues in the revive topic."""
        now_ms = self._wall_ms()
        messages = [
            ack_message(self._revive.topic, ack, self._own.host, now_ms, queue_id=queue_id)
            for ack, queue_id in acks.items()
        ]
        count = sum(len(ack.offsets) for ack in acks)
        put = self._settle(list(acks), messages)

        def done(status: PutStatus) -> None:
            if status.is_stored:
                self.acknowledged += count
                connection.answer(request)
            else:
                connection.answer(request, code=status.remoting_code, remark=status.name)

        put.done.addCallback(done)

    def _settle(self, acks: Sequence[Ack], messages: Sequence[NewMessage]) -> Put:
        """
        Store messages, the acks among them.

        @return: its C{done} fires when the table has heard of the end.
        @raise Refused: a message is unknown, or nothing can be stored.
        """
        revive, table = self._revive, self._revive.table
        settling: list[Ack] = []
        is_loaded = revive.is_loaded
        try:
            for ack in acks if is_loaded else ():
                if not table.settle(ack):
                    raise Refused(Code.NO_MESSAGE, _late(ack))
                settling.append(ack)
            revive.keep_topic()
            put = self._pipeline.put([
                plain for message in messages for plain in self._pipeline.checked([message])
            ])
        except Exception as error:
            for ack in settling:
                table.settled(ack, is_stored=False)
            if isinstance(error, NotPut):
                raise Refused(*put_refusal(error)) from error
            if isinstance(error, ValueError):
                raise Refused(Code.MESSAGE_ILLEGAL, str(error)) from error
            raise

        def done(status: PutStatus) -> PutStatus:
            for ack in settling:
                table.settled(ack, is_stored=status.is_stored)
            if status.is_stored:
                for message, offset in zip(messages, put.placed.queue_offsets, strict=True):
                    table.passed(message.queue_id, offset)
            if not is_loaded and status.is_stored:
                for ack in acks:
                    if revive.is_loaded:
                        revive.table.finish(ack)
                    elif not revive.early(ack):
                        return PutStatus.SERVICE_NOT_AVAILABLE
            return status

        put.done.addCallback(done)
        return put

    # -- another time ------------------------------------------------------------------------------

    def _change(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        ack, receipt = self._read(fields)
        invisible_ms = fields.number("invisibleTime", least=0, most=INVISIBLE_MS_MAX)
        if receipt.revive_queue == ORDER_QUEUE:
            since_ms = self._in_order.change(ack.key, ack.offsets[0], invisible_ms)
            self.changed += 1
            self._freed(ack.key.topic, ack.key.group)
            self._answer_settled(connection, request, popTime=receipt.pop_ms, invisibleTime=since_ms,
                                 reviveQid=ORDER_QUEUE)
            return
        revive = self._revive
        if not revive.is_loaded:
            raise Refused(Code.SYSTEM_BUSY, "this master still reads what was popped before: try again")
        if revive.is_over(ack.key):  # a new check point would look like one of the topic that comes next
            raise Refused(Code.NO_MESSAGE, _late(ack))
        table, (offset,), now_ms = revive.table, ack.offsets, self._wall_ms()
        # Not the name of the old check point, which is done.
        key = ack.key._replace(start=offset, pop_ms=max(now_ms, receipt.pop_ms + 1))
        point = CheckPoint(key, invisible_ms, (offset,))
        put = self._settle([ack], [
            check_point_message(revive.topic, point, self._own.host, now_ms),
            ack_message(revive.topic, ack, self._own.host, now_ms, queue_id=receipt.revive_queue),
        ])

        def done(status: PutStatus) -> None:
            if not status.is_stored:
                connection.answer(request, code=status.remoting_code, remark=status.name)
                return
            if table is revive.table:
                table.add(point, OWN_QUEUE, put.placed.queue_offsets[0])
            self.changed += 1
            connection.answer(request, ext_fields={
                "popTime": str(key.pop_ms), "invisibleTime": str(invisible_ms), "reviveQid": str(OWN_QUEUE),
            })

        revive.follow(put, 1, done)


def batch_acks(body: bytes, own_broker: str) -> dict[Ack, int]:
    """
    The acks of a batch, and their queues in the revive topic.

    @param own_broker: if the batch names none.
    @raise BodyError: it is malformed.
    """
    document = read_request(body)
    broker, items = document.get("brokerName") or own_broker, document.get("acks")
    if not isinstance(items, list) or not isinstance(broker, str) or len(items) > BATCH_MAX:
        raise BodyError(f"acks is not an array of at most {BATCH_MAX}, or brokerName is not a text")
    found = {}
    for item in (to_object(one, "item of acks") for one in items):
        topic, group, retry = item.get("t"), item.get("c"), item.get("r") or "0"
        if not (isinstance(topic, str) and isinstance(group, str) and isinstance(retry, str)):
            raise BodyError("an ack names no topic or group")
        queue_id = to_long(item.get("rq"), "rq")
        if not 0 <= queue_id < REVIVE_QUEUES and queue_id != ORDER_QUEUE:
            raise BodyError(f"rq={queue_id}, 0 to 7 are allowed, and {ORDER_QUEUE}")
        bits = to_bytes(item.get("b"), "b") or b""
        start = to_long(item.get("so"), "so")
        if len(bits) > 8192:
            raise BodyError(f"b has {len(bits)} bytes, 8192 are allowed")
        offsets = tuple(start + bit for bit in range(8 * len(bits)) if bits[bit >> 3] >> (bit & 7) & 1)
        if len(offsets) > MESSAGES_MAX:
            raise BodyError(f"b has {len(offsets)} bits, {MESSAGES_MAX} are allowed")
        real = pop_retry_topic(topic, group, version=int(retry)) if retry in ("1", "2") else topic
        key = PopKey(real, group, to_long(item.get("q"), "q"), start, to_long(item.get("pt"), "pt"), broker)
        if offsets:
            found[Ack(key, offsets)] = queue_id
    return found


def read_batch_names(body: bytes) -> list[tuple[str, str]]:
    """
    Topic and group of each ack of a batch.

    @raise Refused: it is malformed.
    """
    try:
        return [(ack.key.topic, ack.key.group) for ack in batch_acks(body, "")]
    except BodyError as error:
        raise Refused(Code.MESSAGE_ILLEGAL, f"batch of acks: {error}") from error


def _late(ack: Ack) -> str:
    key = ack.key
    return (f"the message at {ack.offsets[0]} of {shown(key.topic)}, queue {key.queue_id}, is not given to "
            f"{shown(key.group)} (any more): its time is over, or it is acknowledged")


def _refuse(remark: str, connection: CommandConnection, request: RemotingCommand) -> None:
    raise Refused(Code.REQUEST_CODE_NOT_SUPPORTED, remark)
