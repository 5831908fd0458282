# -*- test-case-name: tests.protocols.test_broker -*-
"""
RocketMQ's commands and our native frames on one connection with a broker, frame by frame.

Rule 1: an answer comes in the format of its request. Rule 2: the plain sends with which a read begins are
handed over in one call (if somebody wants these), then its commands in one, then its native requests in one.
Rule 3: a native request counts as unanswered like a command, with the bytes of its frame.

A request fails with L{NotAsked} when none of its bytes was handed to the transport, and with L{AnswerLost}
when some were: what came of it is not known then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from protocols.connection import UNSENT_BYTES_MAX
from protocols.rocketmq.commands import (
    OUTSTANDING_MAX,
    REQUEST_OVERHEAD,
    CommandConnection,
    CommandSink,
    NotAsked,
)
from protocols.turn import Turn
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.broker_frames import (
    BrokerAnswer,
    BrokerRequest,
    OffsetsRequest,
    PutRequest,
    ReadRequest,
    answer_parts,
    decode_broker_frame,
    request_parts,
)
from protocols.wire.rocketmq.broker_layout import BrokerKind
from protocols.wire.rocketmq.send_request import SendReader, SendRequest

_REQUESTS = (PutRequest, ReadRequest, OffsetsRequest)


class AnswerLost(Exception):
    """The connection ended after the request was sent: whether it was acted on is not known."""


class NativeTicket(NamedTuple):
    """
    What an answer needs of its request.

    @ivar size: bytes of the request's frame.
    """

    opaque: int
    size: int


#: Called once with the answer, or with L{NotAsked} or L{AnswerLost}.
NativeDone = Callable[[BrokerAnswer | Exception], None]
NativeRequests = list[tuple[NativeTicket, BrokerRequest]]


class NativeSink(Protocol):
    """Who answers native requests. Does not raise."""

    def natives_received(self, connection: BrokerConnection, requests: NativeRequests) -> None:
        """
        The native requests of one read, in order. Each is answered once, by
        L{BrokerConnection.answer_native}, unless the connection is lost first.
        """


class SendSink(Protocol):
    """Who answers sends that are written as most are. Does not raise."""

    def sends_received(self, connection: BrokerConnection, requests: Sequence[SendRequest]) -> None:
        """
        The sends of one read, in order. Each is answered once, by L{BrokerConnection.answer_sends}, or like
        the command that L{protocols.wire.remoting.decode_command} makes of its frame.
        """


class BrokerConnection(CommandConnection):
    """
    Either end.

    @ivar read_ended: called when all that one read brought has been handed out.
    """

    def __init__(
        self, sink: CommandSink, turn: Turn, *, native: NativeSink | None = None,
        sends: SendSink | None = None, outstanding_max: int = OUTSTANDING_MAX, **options: int,
    ) -> None:
        """
        @param native: None where nobody may ask: a native request breaks the connection.
        @param sends: None: sends are commands like others.
        @param options: further ones of L{CommandConnection}.
        """
        super().__init__(sink, turn, outstanding_max=outstanding_max, **options)
        self._native = native
        self._native_asked: dict[int, tuple[BrokerKind, NativeDone]] = {}
        self._native_max = outstanding_max
        self._last_native = 0
        self._requests: NativeRequests = []
        self._answers: list[tuple[NativeDone, BrokerAnswer]] = []
        self.read_ended: Callable[[], None] | None = None
        self._send_sink = sends
        self._send_reader = SendReader()
        self._sends: list[SendRequest] = []
        if sends is not None:
            self._short = self._take_send

    # -- asking ----------------------------------------------------------------------------------

    @property
    def native_outstanding(self) -> int:
        """Native requests without an answer so far."""
        return len(self._native_asked)

    def request(self, request: BrokerRequest, done: NativeDone) -> int:
        """
        Send a request behind those before it. C{done} is called once; from in here only with L{NotAsked}.

        @return: its number, for L{forget_native}.
        """
        if self.is_lost or self._is_closing:
            done(NotAsked("the connection is lost"))
            return 0
        if len(self._native_asked) >= self._native_max or self.unsent_bytes >= UNSENT_BYTES_MAX:
            done(NotAsked(f"{len(self._native_asked)} requests are outstanding, "
                          f"{self.unsent_bytes} bytes unsent"))  # fmt: skip
            return 0
        while True:
            opaque = self._last_native = self._last_native % 0x7FFFFFFF + 1
            if opaque not in self._native_asked:
                break
        self._native_asked[opaque] = (request.kind, done)
        self._write(request_parts(request, opaque))
        return opaque

    def forget_native(self, number: int) -> None:
        """The answer to that request is not waited for any more; C{done} is not called."""
        self._native_asked.pop(number, None)

    # -- answering -------------------------------------------------------------------------------

    def answer_native(self, ticket: NativeTicket, answer: BrokerAnswer) -> None:
        """Answer a native request. Nothing happens on a lost connection."""
        if self.is_lost:
            return
        self.unanswered -= 1
        self.unanswered_bytes -= ticket.size + REQUEST_OVERHEAD
        self._write(answer_parts(answer, ticket.opaque))

    def answer_natives_made(self, tickets: Sequence[NativeTicket], parts: Sequence[bytes]) -> None:
        """
        The same of several, whose frames have been made already. Nothing happens on a lost connection.

        @param parts: all of their frames, by L{protocols.wire.rocketmq.broker_frames.answer_parts}.
        """
        if self.is_lost:
            return
        self.unanswered -= len(tickets)
        self.unanswered_bytes -= sum([ticket.size for ticket in tickets]) + REQUEST_OVERHEAD * len(tickets)
        self._write(parts)

    def answer_sends(self, frames: Sequence[bytes], body_bytes: int) -> None:
        """
        Answer sends. Nothing happens on a lost connection.

        @param frames: of the answers.
        @param body_bytes: of the bodies of their requests, together.
        """
        if self.is_lost:
            return
        self.unanswered -= len(frames)
        self.unanswered_bytes -= body_bytes + REQUEST_OVERHEAD * len(frames)
        self._write(frames)

    # -- what comes in ---------------------------------------------------------------------------

    def _native_received(self, frame: bytes) -> None:
        opaque, message = decode_broker_frame(frame)
        if isinstance(message, _REQUESTS):
            if self._native is None:
                raise WireError(f"a native request ({message.kind.name}) where nobody may ask")
            self.unanswered += 1
            self.unanswered_bytes += len(frame) + REQUEST_OVERHEAD
            self._requests.append((NativeTicket(opaque, len(frame)), message))
            return
        asked = self._native_asked.get(opaque)
        if asked is None:
            return
        if asked[0] is not message.kind:
            raise WireError(f"native frame: a {message.kind.name} answer came for {asked[0].name}")
        del self._native_asked[opaque]
        self._answers.append((asked[1], message))

    def _take_send(self, frame: bytes) -> bool:
        request = self._send_reader.read(frame)
        if request is None:
            return False
        self._sends.append(request)
        return True

    def _shorts_received(self) -> None:
        if self._sends:
            sends, self._sends = self._sends, []
            self.unanswered += len(sends)
            self.unanswered_bytes += sum([len(request.body) + REQUEST_OVERHEAD for request in sends])
            assert self._send_sink is not None
            self._send_sink.sends_received(self, sends)

    def _rest_received(self) -> None:
        answers, self._answers = self._answers, []
        requests, self._requests = self._requests, []
        for done, answer in answers:
            done(answer)
        if requests and self._native is not None:
            self._native.natives_received(self, requests)
        if self.read_ended is not None:
            self.read_ended()

    def _ended(self, reason: str) -> None:
        asked, self._native_asked = self._native_asked, {}
        for _, done in asked.values():
            done(AnswerLost(f"the connection was lost: {reason}"))
        super()._ended(reason)
