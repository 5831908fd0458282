# -*- test-case-name: tests.client.test_connection -*-
"""
One connection to one member: sends requests, and matches answers to them by number.

Rule 1: every request's C{done} is called exactly once, with the response or an exception.
Rule 2: an answer without a waiting request is dropped; bytes that are not frames end the connection.
Rule 3: when a request failed with L{RequestLost}, its bytes may have reached the member.

This module knows nothing of leaders, order or retries.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.errors import DLedgerError
from protocols.framing import Frame, FrameBuffer, FrameError
from protocols.ledger.push import NativeReader
from protocols.outlet import Outlet, read_directly
from protocols.wire.errors import BodyError, WireError
from protocols.wire.ledger.codes import RequestCode, ResponseCode
from protocols.wire.ledger.json_bodies import decode_response, encode_request
from protocols.wire.ledger.messages import MetadataResponse, Request, Response
from protocols.wire.ledger.push import encode_request_frame
from protocols.wire.remoting import (
    REMOTING_SUCCESS,
    REQUEST_CODE_NOT_SUPPORTED,
    SYSTEM_BUSY,
    RemotingCommand,
    decode_command,
    encode_command,
)

#: Called once with the answer, or with the reason for its absence.
Done = Callable[[Response | Exception], None]

_OPAQUE_MASK = 0x7FFFFFFF


class RequestLost(Exception):
    """The request has no valid answer: it is unknown whether the member executed it."""


class RequestRefused(DLedgerError):
    """The remoting layer of the member refused the request before any handler saw it."""


class MemberConnection(Protocol):
    """
    The client's side of a connection.

    @ivar member_id: id of the member that requests are addressed to.
    @ivar native: whether requests are written as native frames.
    @ivar metadata: the member's last METADATA answer; None before the first.
    @ivar turn_ended: called after all answers of one read were handed out.
    @ivar lost: called once, after the connection has ended and every request has failed.
    """

    log = Logger()

    def __init__(self, member_id: str, clock: IReactorTime, *, native: bool = False) -> None:
        self.member_id = member_id
        self.native = native
        self.metadata: MetadataResponse | None = None
        self.turn_ended: Callable[[], None] | None = None
        self.lost: Callable[[MemberConnection], None] | None = None
        self.is_connected = False
        self._clock = clock
        self._outlet: Outlet | None = None
        self._frames = FrameBuffer()
        self._reader = NativeReader()
        self._opaque = 0
        self._waiting: dict[int, tuple[RequestCode, Done]] = {}
        self._ended_because = ""
        self.last_used_s = clock.seconds()

    @property
    def outstanding(self) -> int:
        """Number of requests without an answer."""
        return len(self._waiting)

    @property
    def wire_version(self) -> int:
        """Native wire version that the member advertised; 0 for a Java member."""
        return self.metadata.wire_version if self.metadata is not None else 0

    def connectionMade(self) -> None:
        """Set up the transport: small frames are sent without delay."""
        self.is_connected = True
        assert self.transport is not None
        self._outlet = Outlet(self.transport)
        read_directly(self.transport, self)
        set_no_delay = getattr(self.transport, "setTcpNoDelay", None)
        if set_no_delay is not None:
            set_no_delay(True)

    def request(self, message: Request, done: Done) -> None:
        """
        Write C{message}; C{done} is called once with its answer, or with L{RequestLost} or
        L{RequestRefused}.
        """
        assert self.is_connected, "an ended connection takes no requests"
        opaque = self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        self._waiting[opaque] = (message.kind, done)
        self.last_used_s = self._clock.seconds()
        assert self._outlet is not None
        if self.native:
            self._outlet.send(encode_request_frame(message, opaque))
        else:
            command = RemotingCommand(code=int(message.kind), opaque=opaque, body=encode_request(message))
            self._outlet.send(encode_command(command))

    def ask(self, message: Request, timeout_s: float) -> Deferred[Response]:
        """
        As L{request}, with a Deferred and a time-out.

        @return: fires with the answer; fails with L{RequestLost}, L{RequestRefused}, or
            L{DLedgerError} TIMEOUT after C{timeout_s} seconds. Cancelling discards the answer.
        """
        if not self.is_connected:
            return fail(RequestLost(f"{self.member_id}: {self._ended_because or 'not connected'}"))
        waiter: Deferred[Response] = Deferred(lambda _: deadline.cancel())
        deadline = self._clock.callLater(timeout_s, self._too_late, waiter, message.kind, timeout_s)

        def done(result: Response | Exception) -> None:
            if deadline.active():
                deadline.cancel()
            if waiter.called:
                return
            if isinstance(result, Exception):
                waiter.errback(result)
            else:
                waiter.callback(result)

        self.request(message, done)
        return waiter

    def _too_late(self, waiter: Deferred[Response], kind: RequestCode, timeout_s: float) -> None:
        if not waiter.called:
            waiter.errback(
                DLedgerError(
                    ResponseCode.TIMEOUT,
                    reason=f"{self.member_id} did not answer {kind.name} within {timeout_s:g} s",
                )
            )

    def dataReceived(self, data: bytes) -> None:
        """Hand out all answers of one read, then call C{turn_ended} once."""
        try:
            self._hand_out(self._frames.feed(data))
        except FrameError as error:
            self._broken(error, error.frames)
        except WireError as error:
            self._broken(error, [])
        if self.turn_ended is not None:
            self.turn_ended()

    def _broken(self, error: WireError, sound: list[Frame]) -> None:
        # Whole answers before the malformed bytes still count.
        with suppress(WireError):
            self._hand_out(sound)
        self.abort(f"malformed bytes: {error}")

    def _hand_out(self, frames: list[Frame]) -> None:
        for kind, frame in frames:
            if kind == "native":
                opaque, message = self._reader.read(frame)
                waiting = self._waiting.pop(opaque, None) if isinstance(message, Response) else None
                if waiting is None or not isinstance(message, Response):
                    continue
                result: Response | Exception = message
            else:
                command = decode_command(frame)
                waiting = self._waiting.pop(command.opaque, None) if command.is_response else None
                if waiting is None:
                    continue
                result = self._remoting_result(waiting[0], command)
            if isinstance(result, Response) and result.kind is not waiting[0]:
                result = RequestLost(f"{self.member_id} answered {waiting[0].name} with {result.kind.name}")
            waiting[1](result)

    def _remoting_result(self, kind: RequestCode, command: RemotingCommand) -> Response | Exception:
        if command.code in (SYSTEM_BUSY, REQUEST_CODE_NOT_SUPPORTED):
            is_busy = command.code == SYSTEM_BUSY
            return RequestRefused(
                ResponseCode.LEADER_PENDING_FULL if is_busy else ResponseCode.UNSUPPORTED,
                reason=f"{self.member_id}: {(command.remark or 'refused').strip()}",
            )
        if command.code != REMOTING_SUCCESS:
            # SYSTEM_ERROR: a handler failed while it worked, so the outcome is unknown.
            return RequestLost(f"{self.member_id}: remoting error {command.code}: {command.remark}")
        try:
            return decode_response(kind, command.body)
        except BodyError as error:
            return RequestLost(f"{self.member_id}: {error}")

    def abort(self, reason: str) -> None:
        """End the connection now; requests without an answer fail with C{reason}."""
        if not self._ended_because:
            self._ended_because = reason
            self.log.warn("connection to {peer_id} ended: {reason}", peer_id=self.member_id, reason=reason)
        if self.is_connected:
            self.is_connected = False
            transport: Any = self.transport
            transport.abortConnection()

    def close(self) -> None:
        """End the connection without logging."""
        self._ended_because = self._ended_because or "closed"
        if self.is_connected:
            self.is_connected = False
            transport: Any = self.transport
            transport.loseConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Fail every request without an answer, in the order of sending."""
        self.is_connected = False
        why = self._ended_because or reason.getErrorMessage()
        self._ended_because = why
        waiting, self._waiting = self._waiting, {}
        for _kind, done in waiting.values():
            done(RequestLost(f"{self.member_id}: {why}"))
        turn_ended, self.turn_ended = self.turn_ended, None
        lost, self.lost = self.lost, None
        if lost is not None:
            lost(self)
        if turn_ended is not None:
            turn_ended()
