# -*- test-case-name: tests.broker.sending.test_sends -*-
"""
Reads, puts and answers the sends of RocketMQ's producers.

    request -> PlainSends.read, or decoded and LongSends.read -> PutPipeline.put -> SendAnswers

The sends of one read of a connection are one put. Each request is answered once; refusals come first.

Rule 1: messages are stored in the order of their requests.
Rule 2: a refused request stores nothing, and does not affect other requests.
Rule 3: while the broker refuses all messages, no request creates a topic.

Source: SendMessageProcessor (4.9.8).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.producing.answers import LongSend, PlainSend, SendAnswers, put_refusal
from dledger.rocketmq.broker.producing.puts import NotPut, PutPipeline
from dledger.rocketmq.broker.producing.sending.long_sends import SEND_CODES, LongSends
from dledger.rocketmq.broker.producing.sending.plain_sends import PlainSends
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.plain_records import PlainMessage
from protocols.rocketmq.broker import AnySend, BrokerConnection
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand, decode_command


@attrs.define
class _Read:
    """
    The sends of one read that can be stored.

    @ivar messages: the messages of all of them, in order.
    @ivar body_bytes: total size of the plain requests' bodies.
    """

    messages: list[PlainMessage] = attrs.Factory(list)
    plain: list[PlainSend] = attrs.Factory(list)
    long: list[LongSend] = attrs.Factory(list)
    body_bytes: int = 0


class Sends:
    """
    A L{SendSink}, and the group of commands for sends of connections without the shortcut.

    @ivar codes: L{SEND_CODES}.
    """

    log = Logger()
    codes = SEND_CODES

    def __init__(
        self, pipeline: PutPipeline, plain: PlainSends, long: LongSends, answers: SendAnswers
    ) -> None:
        self._pipeline = pipeline
        self._plain = plain
        self._long = long
        self._answers = answers

    # -- reading ---------------------------------------------------------------------------------

    def received(self, connection: CommandConnection, requests: Sequence[RemotingCommand]) -> None:
        """See L{dledger.rocketmq.broker.access.router.SendCommands.received}."""
        read = _Read()
        for request in requests:
            self._read_long(connection, request, read)
        self._put(connection, read)

    def sends_received(self, connection: BrokerConnection, requests: Sequence[AnySend]) -> None:
        """See L{SendSink.sends_received}."""
        try:
            self._received(connection, requests)
        except Exception:
            # Some requests may have an answer already: only closing the connection answers the rest.
            self.log.failure("a send of {address} failed", Failure(), address=connection.address)
            connection.abort("a send failed unexpectedly")

    def _received(self, connection: BrokerConnection, requests: Sequence[AnySend]) -> None:
        read = _Read()
        messages, plain, read_plain = read.messages, read.plain, self._plain.read
        body_bytes = 0
        for request in requests:
            if isinstance(request, RemotingCommand):
                self._read_long(connection, request, read)
                continue
            message = read_plain(connection, request)
            if message is None:
                self._read_long(connection, decode_command(request.frame), read)
                continue
            plain.append((request.opaque, message.queue_id, len(messages)))
            messages.append(message)
            body_bytes += len(message.body)
        read.body_bytes = body_bytes
        self._put(connection, read)

    def _read_long(self, connection: CommandConnection, request: RemotingCommand, read: _Read) -> None:
        """Read a request of any kind; answer it if it is refused."""
        answers = self._answers
        refused = self._pipeline.refusal()
        if refused is not None:
            answers.refuse(connection, request, *put_refusal(refused))
            return
        try:
            send = self._long.read(connection, request)
            messages = self._pipeline.checked(send.messages)
            if send.later is not None:
                self._pipeline.checked([send.later])
        except Refused as error:
            answers.refuse(connection, request, error.code, error.remark)
        except ValueError as error:
            answers.refuse(connection, request, Code.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
        else:
            first = len(read.messages)
            read.messages += messages
            waits = send.waits or self._pipeline.always_waits
            read.long.append(LongSend(
                request, send.queue_id, first, len(read.messages), waits, send.transaction_id,
                send.recall_handle,
            ))

    # -- putting ---------------------------------------------------------------------------------

    def _put(self, connection: CommandConnection, read: _Read) -> None:
        if not read.messages:
            return
        answers, plain = self._answers, read.plain
        later = [send for send in read.long if send.waits] if read.long else []
        try:
            placed, done, is_placed = self._pipeline.put(read.messages, waits=bool(plain or later))
        except NotPut as error:
            self._refuse_all(connection, read, read.long, *put_refusal(error))
            return
        for send in read.long:
            if not send.waits:
                answers.answer(connection, send, placed, PutStatus.PUT_OK)
        if not (plain or later):
            return
        # The wait for slaves or the disk leaves time to write the expected answers.
        may_prepare = is_placed and not done.called
        ready = answers.stored_frames(plain, placed, PutStatus.PUT_OK) if may_prepare else []
        read.messages.clear()  # release the bodies during the wait

        def answer(status: PutStatus) -> None:
            if not status.is_stored:
                self._refuse_all(connection, read, later, status.remoting_code, status.name)
                return
            if plain:
                is_ready = ready and status is PutStatus.PUT_OK
                frames = ready if is_ready else answers.stored_frames(plain, placed, status)
                self._write(connection, frames, read.body_bytes)
            for send in later:
                answers.answer(connection, send, placed, status)

        done.addCallback(answer)

    def _refuse_all(
        self, connection: CommandConnection, read: _Read, sends: Sequence[LongSend], code: int, remark: str
    ) -> None:
        if read.plain:
            frames = self._answers.refused_frames(read.plain, code, remark)
            self._write(connection, frames, read.body_bytes)
        for send in sends:
            self._answers.refuse(connection, send.request, code, remark)

    def _write(self, connection: CommandConnection, frames: Sequence[bytes], body_bytes: int) -> None:
        assert isinstance(connection, BrokerConnection), "plain requests arrive only over such a connection"
        connection.answer_sends(frames, body_bytes)
