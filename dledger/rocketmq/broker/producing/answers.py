# -*- test-case-name: tests.broker.sending.test_sends -*-
"""
The answers to producers that send remoting commands.

The usual answers are written from a form (L{SentAnswers}), all others as commands; the bytes are the same.

Source: SendMessageProcessor.handlePutMessageResult (4.9.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dledger.rocketmq.answering.refusals import RefusalCounts
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.puts import NotPut
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.plain_records import Placed
from protocols.rocketmq.commands import VERSION, CommandConnection
from protocols.wire.remoting import FLAG_RESPONSE, JSON, RemotingCommand, encode_command
from protocols.wire.rocketmq.send_request import SentAnswers

#: Request code of plain requests.
SEND_MESSAGE_V2 = 310

#: The facts about a plain request that its answer needs: number of the request; queue; which of the messages
#: of its put it is. A bare tuple, unpacked where it is read: a NamedTuple costs 3 % of a message.
PlainSend = tuple[int, int, int]


class LongSend(NamedTuple):
    """
    A request whose messages can be stored.

    @ivar queue_id: the queue in the answer; a delayed message waits in another queue.
    @ivar first, end: its messages are those of the put from C{first} to C{end - 1}.
    @ivar transaction_id: of a half message.
    @ivar waits: whether the producer waits for slaves and disk.
    """

    request: RemotingCommand
    queue_id: int
    first: int
    end: int
    waits: bool
    transaction_id: str = ""
    recall_handle: str = ""


class SendAnswers:
    """
    Writes answers, and counts those that are no plain success. Each contains the region and the trace switch
    of the broker.

    @ivar reported: these two, by the names of their fields.
    """

    def __init__(self, inside: BrokerInside, refusals: RefusalCounts) -> None:
        self._own = inside.own
        self._refusals = refusals
        config = inside.config
        self.reported = {"MSG_REGION": config.region_id, "TRACE_ON": str(config.trace_on).lower()}
        self._form = SentAnswers(self.reported, language="PYTHON", version=VERSION)

    def stored_frames(self, sends: Sequence[PlainSend], placed: Placed, status: PutStatus) -> list[bytes]:
        """Answers to plain requests whose messages are stored."""
        if status is not PutStatus.PUT_OK:
            code = status.remoting_code
            self._refusals.refused("producers", SEND_MESSAGE_V2, code, status.name, len(sends))
        return self._form.frames(
            sends, status.remoting_code, self._own.id_start, placed.offsets, placed.queue_offsets
        )

    def refused_frames(self, sends: Sequence[PlainSend], code: int, remark: str) -> list[bytes]:
        """Answers to plain requests whose messages are not stored, or whose outcome is unknown."""
        self._refusals.refused("producers", SEND_MESSAGE_V2, code, remark, len(sends))
        return [
            encode_command(RemotingCommand(
                code=code, opaque=opaque, flag=FLAG_RESPONSE, version=VERSION, remark=remark,
                ext_fields=self.reported,
            ))
            for opaque, _, _ in sends
        ]

    def answer(
        self, connection: CommandConnection, send: LongSend, placed: Placed, status: PutStatus
    ) -> None:
        """Answer a request; the ids of the messages of a batch are in one field."""
        if not status.is_stored:
            self.refuse(connection, send.request, status.remoting_code, status.name)
            return
        offsets, request = placed.offsets[send.first : send.end], send.request
        if len(offsets) == 1 and request.serialize_type == JSON and not (
            send.transaction_id or send.recall_handle
        ):
            plain = (request.opaque, send.queue_id, send.first)
            connection.answer_made(request, *self.stored_frames((plain,), placed, status))
            return
        start = self._own.id_start.decode()
        ids = {"transactionId": send.transaction_id} if send.transaction_id else {}
        if send.recall_handle:
            ids["recallHandle"] = send.recall_handle
        connection.answer(request, code=status.remoting_code, ext_fields={
            **self.reported, **ids, "msgId": ",".join([f"{start}{offset:016X}" for offset in offsets]),
            "queueId": str(send.queue_id), "queueOffset": str(placed.queue_offsets[send.first]),
        })

    def refuse(self, connection: CommandConnection, request: RemotingCommand, code: int, remark: str) -> None:
        """Answer a request whose messages are not stored."""
        self._refusals.refused(connection.address, request.code, code, remark)
        connection.answer(request, code=int(code), remark=remark, ext_fields=self.reported)


def put_refusal(error: NotPut) -> tuple[int, str]:
    """
    The answer to a request whose messages were not put.

    @return: code and remark. RocketMQ has the same words before the colon.
    """
    status = error.status
    remark = error.reason
    if status is PutStatus.SERVICE_NOT_AVAILABLE:
        remark = f"service not available now: {error.reason}"
    elif status is PutStatus.OS_PAGE_CACHE_BUSY:
        remark = f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {error.reason}"
    elif status is PutStatus.UNKNOWN_ERROR:
        remark = f"UNKNOWN_ERROR: {error.reason}"
    return status.remoting_code, remark
