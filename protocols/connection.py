# -*- test-case-name: tests.protocols.test_connection -*-
"""
The two ends of a connection between members, or between a client and a member.

Both formats are welcome on one connection, frame by frame; an answer comes in the format of its
request. Requests may be pipelined and answered in any order.

Rule 1: all frames of one read are handed over in one call; all output of a reactor turn is written
in one call.
Rule 2: what is unanswered is bounded: a server stops reading, a client refuses to ask.
Rule 3: when the connection ends, by whichever side, its owner is told once, and everything
outstanding is failed before that.

Nothing here starts a timer: owners call C{sweep}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.interfaces import IPushProducer, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from protocols.framing import Frame, FrameBuffer, FrameError
from protocols.ledger.interfaces import AnswerSink, Dialect, RequestSink, Ticket
from protocols.ledger.push import NativeDialect, NativeReader, appended
from protocols.ledger.remoting import KNOWN_CODES, RemotingDialect, not_supported
from protocols.outlet import Outlet, read_directly
from protocols.turn import Turn
from protocols.wire.errors import BodyError, IncompatibleError, WireError
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.json_bodies import decode_request, decode_response
from protocols.wire.ledger.messages import Request, Response
from protocols.wire.remoting import FRAME_BYTES_MAX, decode_command

#: A connection without a byte in either direction for so long is closed, as Java does.
IDLE_S = 120.0

#: Requests, and bytes of their frames, that one connection may have unanswered at a server. More than a
#: leader lets wait for the commit by default (10,000, as Java): who asks for too much is to hear
#: LEADER_PENDING_FULL at once, rather than nothing until others are answered.
UNANSWERED_MAX = 16384
UNANSWERED_BYTES_MAX = 32 * 1024 * 1024

#: Requests that a client may have outstanding, and bytes that wait for a transport that is held up.
OUTSTANDING_MAX = 65536
UNSENT_BYTES_MAX = 32 * 1024 * 1024

_NATIVE = "native"
_native_dialect: Dialect = NativeDialect()
_remoting_dialect: Dialect = RemotingDialect()


@implementer(IPushProducer)
class Connection(Protocol):
    """
    What both ends share: frames in, gathered output out, and when either last happened.

    @ivar is_lost: nothing can be sent and nothing that comes is looked at.
    @ivar is_congested: the transport holds more output than it wants.
    @ivar unsent_bytes: handed to the transport since it was last known to be drained.
    """

    def __init__(self, turn: Turn, *, frame_bytes_max: int = FRAME_BYTES_MAX, idle_s: float = IDLE_S) -> None:
        self._turn = turn
        self._buffer = FrameBuffer(frame_bytes_max=frame_bytes_max)
        self._reader = NativeReader()
        self._idle_s = idle_s
        self._out: list[bytes] = []
        self._is_flush_asked = False
        self._was_active = True
        self._was_heard = False
        self._active_s = turn.seconds()
        self._is_closing = False
        self._outlet: Outlet | None = None
        self.is_lost = False
        self.is_congested = False
        self.unsent_bytes = 0

    # Twisted types it as the smallest interface; ours is a stream that knows producers.
    transport: Any = None

    @property
    def address(self) -> str:
        """The other end, for logs."""
        peer = self.transport.getPeer() if self.transport is not None else None
        host, port = getattr(peer, "host", None), getattr(peer, "port", None)
        return f"{host}:{port}" if host is not None else str(peer)

    def connectionMade(self) -> None:
        """See L{Protocol.connectionMade}."""
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        self._outlet = Outlet(self.transport)
        read_directly(self.transport, self)

    def dataReceived(self, data: bytes) -> None:
        """See L{Protocol.dataReceived}."""
        if self.is_lost or self._is_closing:
            return
        self._was_active = self._was_heard = True
        self._turn.read(self._deal_with, data)

    def _deal_with(self, data: bytes) -> None:
        broken: WireError | None = None
        try:
            frames = self._buffer.feed(data)
        except FrameError as error:
            frames, broken = error.frames, error
        if frames:
            # What stands before the damage was said, whether or not it came in the same read.
            broken = self._frames_received(frames) or broken
        if broken is not None and not self.is_lost:
            self._wire_broken(broken)
            self.abort(f"broken format: {broken}")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """See L{Protocol.connectionLost}."""
        self._lose(reason.getErrorMessage())

    def close(self) -> None:
        """End the connection once everything said has been sent; what still comes is not looked at."""
        if not (self.is_lost or self._is_closing) and self.transport is not None:
            self._flush()
            self._is_closing = True
            # A transport with a producer would wait for it.
            self.transport.unregisterProducer()
            self.transport.loseConnection()

    def abort(self, reason: str) -> None:
        """End the connection now; what is not sent yet is lost. The owner is told before this returns."""
        if not self.is_lost and self.transport is not None:
            self._lose(reason)
            self.transport.abortConnection()

    def pauseProducing(self) -> None:
        """See L{IPushProducer}: the transport holds more than it wants."""
        self.is_congested = True

    def resumeProducing(self) -> None:
        """See L{IPushProducer}: the transport has sent everything."""
        self.is_congested = False
        self.unsent_bytes = 0
        if not self._is_closing and getattr(self.transport, "disconnecting", False):
            self._is_closing = True
            # Somebody else called loseConnection; with a producer it would never end.
            self.transport.unregisterProducer()

    def stopProducing(self) -> None:
        """See L{IPushProducer}: C{connectionLost} follows."""

    def is_idle(self, now_s: float) -> bool:
        """Whether nothing went in or out since longer than the idle time. To be asked regularly."""
        if self._was_active:
            self._was_active = False
            self._active_s = now_s
        return now_s - self._active_s >= self._idle_s

    def _write(self, parts: Sequence[bytes]) -> None:
        self._out += parts
        if not self._is_flush_asked:
            self._is_flush_asked = True
            self._turn.output(self._flush)

    def _flush(self) -> None:
        self._is_flush_asked = False
        out, self._out = self._out, []
        if self.is_lost or not out:
            return
        if not self.is_congested:
            self.unsent_bytes = 0
        self._was_active = True
        assert self._outlet is not None, "no connection yet"
        self.unsent_bytes += self._outlet.send(*out)

    def _lose(self, reason: str) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._out.clear()
            self._ended(reason)

    def _frames_received(self, frames: list[Frame]) -> WireError | None:
        raise NotImplementedError

    def _wire_broken(self, error: WireError) -> None:
        raise NotImplementedError

    def _ended(self, reason: str) -> None:
        raise NotImplementedError


class AnsweringConnection(Connection):
    """
    An end that is asked. It reads no more while too much is unanswered, or while nobody reads the answers.

    Whoever inherits counts what comes in and what is answered, and calls C{_regulate} after each read.

    @ivar unanswered: requests that came and are not answered.
    @ivar unanswered_bytes: what they hold on to, about.
    """

    #: Owner of the connection: here it is told C{drained} and C{wire_broken}.
    _sink: Any

    def __init__(
        self, turn: Turn, *, unanswered_max: int, unanswered_bytes_max: int, frame_bytes_max: int,
        idle_s: float,
    ) -> None:
        super().__init__(turn, frame_bytes_max=frame_bytes_max, idle_s=idle_s)
        self._unanswered_max = unanswered_max
        self._unanswered_bytes_max = unanswered_bytes_max
        self._is_reading = True
        self.unanswered = 0
        self.unanswered_bytes = 0

    def resumeProducing(self) -> None:
        """See L{IPushProducer}."""
        super().resumeProducing()
        if not self.is_lost:
            self._sink.drained(self)
            self._regulate()

    def pauseProducing(self) -> None:
        """See L{IPushProducer}: who does not read answers may not ask further."""
        super().pauseProducing()
        self._regulate()

    def sweep(self, now_s: float) -> None:
        """Close the connection when it is idle. Called regularly."""
        if self.is_idle(now_s):
            self.abort(f"idle for {self._idle_s:g} s")

    def _flush(self) -> None:
        super()._flush()
        if not self.is_lost:
            self._regulate()

    def _regulate(self) -> None:
        wanted = not (
            self.is_congested
            or self.unanswered >= self._unanswered_max
            or self.unanswered_bytes >= self._unanswered_bytes_max
        )
        if wanted != self._is_reading and not (self.is_lost or self._is_closing):
            self._is_reading = wanted
            if wanted:
                self.transport.resumeProducing()
            else:
                self.transport.pauseProducing()

    def _wire_broken(self, error: WireError) -> None:
        self._sink.wire_broken(self, error)


class ServerConnection(AnsweringConnection):
    """
    The end that is asked.

    @ivar serial: rises with each connection that the listening side accepted.
    @ivar peer_id: the member that speaks here, once it said so; None for clients.
    """

    def __init__(
        self,
        sink: RequestSink,
        turn: Turn,
        *,
        serial: int = 0,
        unanswered_max: int = UNANSWERED_MAX,
        unanswered_bytes_max: int = UNANSWERED_BYTES_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        idle_s: float = IDLE_S,
    ) -> None:
        super().__init__(
            turn, unanswered_max=unanswered_max, unanswered_bytes_max=unanswered_bytes_max,
            frame_bytes_max=frame_bytes_max, idle_s=idle_s,
        )  # fmt: skip
        self._sink: RequestSink = sink
        self.serial = serial
        self.peer_id: str | None = None

    def connectionMade(self) -> None:
        """See L{Protocol.connectionMade}."""
        super().connectionMade()
        self._sink.connected(self)

    def answer(self, ticket: Ticket, response: Response) -> None:
        """Answer a request in the format that it came in. Nothing happens on a lost connection."""
        if self.is_lost:
            return
        opaque, is_native, _, size = ticket
        self.unanswered -= 1
        self.unanswered_bytes -= size
        self._write((_native_dialect if is_native else _remoting_dialect).response_parts(response, opaque))

    def answer_appended(self, ticket: Ticket, term: int, index: int, pos: int, count: int) -> None:
        """Answer an append that came in a native frame with success."""
        if self.is_lost:
            return
        self.unanswered -= 1
        self.unanswered_bytes -= ticket[3]
        self._out.append(appended(ticket[0], term, index, pos, count))
        if not self._is_flush_asked:
            self._is_flush_asked = True
            self._turn.output(self._flush)

    def _frames_received(self, frames: list[Frame]) -> WireError | None:
        requests: list[tuple[Ticket, Request]] = []
        refused: list[tuple[Ticket, BodyError]] = []
        read = self._reader.read
        broken = None
        try:
            for form, frame in frames:
                if form == _NATIVE:
                    opaque, message = read(frame)
                    if isinstance(message, Request):
                        requests.append(((opaque, True, message.kind, len(frame)), message))
                else:
                    self._remoting_frame(frame, requests, refused)
        except WireError as error:
            broken = error
        self.unanswered += len(requests) + len(refused)
        self.unanswered_bytes += sum([ticket[3] for ticket, _ in requests])
        self.unanswered_bytes += sum([ticket[3] for ticket, _ in refused])
        if requests:
            self._sink.requests_received(self, requests)
        for ticket, refusal in refused:
            self._sink.body_refused(self, ticket, refusal)
        self._regulate()
        return broken

    def _remoting_frame(
        self,
        frame: bytes,
        requests: list[tuple[Ticket, Request]],
        refused: list[tuple[Ticket, BodyError]],
    ) -> None:
        command = decode_command(frame)
        if command.is_response:
            return  # nobody here waits for one
        kind = KNOWN_CODES.get(command.code)
        if kind is None:
            self._write((not_supported(command.opaque, command.code),))
            return
        ticket = (command.opaque, False, kind, len(frame))
        try:
            requests.append((ticket, decode_request(kind, command.body)))
        except BodyError as error:
            refused.append((ticket, error))

    def _ended(self, reason: str) -> None:
        self._sink.connection_lost(self, reason)


class ClientConnection(Connection):
    """
    The end that asks.

    @param wire: C{auto}: native frames once the other end advertised them in an answer;
        C{remoting}: never; C{binary}: always.
    @ivar peer_wire_version: what the other end advertised in an answer; -1 before any.
    """

    def __init__(
        self,
        sink: AnswerSink,
        turn: Turn,
        *,
        wire: str = "auto",
        outstanding_max: int = OUTSTANDING_MAX,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        idle_s: float = IDLE_S,
    ) -> None:
        assert wire in ("auto", "remoting", "binary"), wire
        super().__init__(turn, frame_bytes_max=frame_bytes_max, idle_s=idle_s)
        self._sink = sink
        self._wire = wire
        self._outstanding: dict[int, tuple[int, RequestCode, float]] = {}
        self._outstanding_max = outstanding_max
        self._unsent_bytes_max = unsent_bytes_max
        self._next_opaque = 1
        self._heard_s = turn.seconds()
        self.is_native = wire == "binary"
        self.peer_wire_version = -1

    @property
    def outstanding(self) -> int:
        """Requests without an answer so far."""
        return len(self._outstanding)

    def connectionMade(self) -> None:
        """See L{Protocol.connectionMade}."""
        super().connectionMade()
        self._heard_s = self._turn.seconds()
        self._sink.connected(self)

    def ask(self, request: Request, token: int) -> bool:
        """
        Send a request behind those before it.

        @param token: comes back with the answer or the failure.
        @return: False if it was not sent and nothing will come back: the connection is lost, or
            too much is outstanding or unsent.
        """
        if (
            self.is_lost
            or self._is_closing
            or len(self._outstanding) >= self._outstanding_max
            or (self.is_congested and self.unsent_bytes >= self._unsent_bytes_max)
        ):
            return False
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 if opaque < 0x7FFFFFFF else 1
        self._outstanding[opaque] = (token, request.kind, self._turn.seconds())
        self._write((_native_dialect if self.is_native else _remoting_dialect).request_parts(request, opaque))
        return True

    def sweep(self, now_s: float, time_out_s: float) -> None:
        """
        Fail what is older than C{time_out_s}; end a connection that has been silent all that time.
        Called regularly.
        """
        if self._was_heard:
            self._was_heard = False
            self._heard_s = now_s
        late = []
        for opaque, (_, _, sent_s) in self._outstanding.items():
            if now_s - sent_s < time_out_s:
                break
            late.append(opaque)
        if not late:
            return
        tokens = [self._outstanding.pop(opaque)[0] for opaque in late]
        self._sink.requests_failed(self, tokens, f"no answer in {time_out_s:g} s")
        if now_s - self._heard_s >= time_out_s:
            self.abort(f"silent for {time_out_s:g} s with requests outstanding")

    def _frames_received(self, frames: list[Frame]) -> WireError | None:
        answers: list[tuple[int, Response]] = []
        failed: list[tuple[int, str, bool]] = []
        broken = None
        try:
            for form, frame in frames:
                if form == _NATIVE:
                    self._native_frame(frame, answers)
                else:
                    self._remoting_frame(frame, answers, failed)
        except WireError as error:
            broken = error
        if answers:
            self._learn(answers)
            self._sink.answers_received(self, answers)
        for token, reason, is_incompatible in failed:
            self._sink.requests_failed(self, [token], reason, is_incompatible=is_incompatible)
        return broken

    def _native_frame(self, frame: bytes, answers: list[tuple[int, Response]]) -> None:
        opaque, message = self._reader.read(frame)
        found = self._outstanding.get(opaque)
        if found is None:
            return
        if not isinstance(message, Response) or message.kind != found[1]:
            raise WireError(f"native frame: what came for {opaque} is no answer to {found[1].name}")
        del self._outstanding[opaque]
        answers.append((found[0], message))

    def _remoting_frame(
        self, frame: bytes, answers: list[tuple[int, Response]], failed: list[tuple[int, str, bool]]
    ) -> None:
        command = decode_command(frame)
        if not command.is_response:
            return  # nobody asks us on a connection that we made
        found = self._outstanding.pop(command.opaque, None)
        if found is None:
            return
        token, kind, _ = found
        try:
            answers.append((token, decode_response(kind, command.body)))
        except BodyError as error:
            reason = f"{error} (header code {command.code}, remark {command.remark!r})"
            failed.append((token, reason, isinstance(error, IncompatibleError)))

    def _learn(self, answers: list[tuple[int, Response]]) -> None:
        version = max(answer.wire_version for _, answer in answers)
        if version > self.peer_wire_version:
            self.peer_wire_version = version
            self.is_native = self._wire == "binary" or (self._wire == "auto" and version >= 1)

    def _wire_broken(self, error: WireError) -> None:
        self._sink.wire_broken(self, error)

    def _ended(self, reason: str) -> None:
        tokens = [token for token, _, _ in self._outstanding.values()]
        self._outstanding.clear()
        if tokens:
            self._sink.requests_failed(self, tokens, f"connection lost: {reason}")
        self._sink.connection_lost(self, reason)
