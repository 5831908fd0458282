# -*- test-case-name: tests.client.test_connection -*-
"""
The client's side of a connection to one member.

Rule 1: every request's C{done} is called exactly once, with the response or an exception.
Rule 2: when a request failed with L{RequestLost}, its bytes may have reached the member.

This module knows nothing of leaders, order or retries.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from dledger.values.errors import DLedgerError
from protocols.connection import IDLE_S
from protocols.ledger.connection import ClientConnection
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.codes import (
    WIRE_FLAG_MACHINE,
    WIRE_VERSION_MASK,
    RequestCode,
)
from protocols.wire.ledger.messages import MetadataResponse, Request, Response
from protocols.wire.remoting import REQUEST_CODE_NOT_SUPPORTED, SYSTEM_BUSY, RemotingCommand

#: Called once with the answer, or with the reason for its absence.
AnswerDone = Callable[[Response | Exception], None]
_REFUSALS = {
    SYSTEM_BUSY: ResponseCode.LEADER_PENDING_FULL, REQUEST_CODE_NOT_SUPPORTED: ResponseCode.UNSUPPORTED,
}


class RequestLost(Exception):
    """The request has no valid answer: it is unknown whether the member executed it."""


class RequestRefused(DLedgerError):
    """The request reached no handler: it was not sent, or the remoting layer of the member refused it."""


class MemberLink:
    """
    A connection to one member, and its requests: the token of a request is its C{done}.

    @ivar protocol: the connection itself.
    @ivar member_id: id of the member that requests are addressed to.
    @ivar metadata: the member's last METADATA answer; None before the first.
    @ivar was_used: whether there was a request since the owner last looked, see
        L{dledger.client.members}.
    @ivar turn_ended: each is called after all answers of one read were handed out.
    @ivar lost: called once, after the connection has ended and every request has failed.
    """

    log = Logger()

    def __init__(
        self, member_id: str, clock: IReactorTime, turn: Turn, *, wire: str = "auto", idle_s: float = IDLE_S
    ) -> None:
        """@param wire, idle_s: see L{ClientConnection}."""
        self.protocol: ClientConnection[AnswerDone] = ClientConnection(self, turn, wire=wire, idle_s=idle_s)
        self.member_id = member_id
        self.metadata: MetadataResponse | None = None
        self.was_used = False
        self.turn_ended: list[Callable[[], None]] = []
        self.lost: Callable[[MemberLink], None] | None = None
        self._clock = clock
        self._turn = turn
        self._ended_because = ""

    @property
    def is_connected(self) -> bool:
        """Whether it takes requests."""
        return self.protocol.is_open

    @property
    def native(self) -> bool:
        """Whether requests are written as native frames."""
        return self.protocol.is_native

    @property
    def outstanding(self) -> int:
        """Number of requests without an answer."""
        return self.protocol.outstanding

    @property
    def wire_version(self) -> int:
        """Native wire version that the member advertised; 0 for a Java member."""
        return self.metadata.wire_version if self.metadata is not None else 0

    @property
    def is_ours(self) -> bool:
        """Whether the member is one of ours, which takes every request of ours."""
        return self.wire_version & WIRE_VERSION_MASK >= 1

    @property
    def has_machine(self) -> bool:
        """Whether the member runs a state machine."""
        return bool(self.wire_version & WIRE_FLAG_MACHINE)

    def request(self, message: Request, done: AnswerDone) -> None:
        """
        Send C{message}; C{done} is called once with its answer, or with L{RequestLost} or
        L{RequestRefused}; within this call only if it was not sent.
        """
        self.was_used = True
        if not self.protocol.ask(message, done):
            assert self.is_connected, "an ended connection takes no requests"
            done(RequestRefused(
                ResponseCode.LEADER_PENDING_FULL,
                reason=f"{self.member_id}: too many requests are outstanding, or too many bytes unsent",
            ))

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

        self._turn.act(partial(self.request, message, done))
        return waiter

    def _too_late(self, waiter: Deferred[Response], kind: RequestCode, timeout_s: float) -> None:
        if not waiter.called:
            waiter.errback(
                DLedgerError(
                    ResponseCode.TIMEOUT,
                    reason=f"{self.member_id} did not answer {kind.name} within {timeout_s:g} s",
                )
            )

    def abort(self, reason: str) -> None:
        """End the connection now; requests without an answer fail with C{reason} before this returns."""
        if not self._ended_because:
            self._ended_because = reason
            self.log.warn("connection to {peer_id} ended: {reason}", peer_id=self.member_id, reason=reason)
        self.protocol.abort(reason)

    def close(self) -> None:
        """End the connection without logging, when all output has been sent."""
        self._ended_because = self._ended_because or "closed"
        self.protocol.close()

    # -- AnswerSink ------------------------------------------------------------------------------

    def connected(self, connection: ClientConnection[AnswerDone]) -> None:
        """Nothing to do: the caller of C{connect} goes on."""

    def answers_received(
        self, connection: ClientConnection[AnswerDone], answers: list[tuple[AnswerDone, Response]]
    ) -> None:
        """Hand out the answers."""
        for done, answer in answers:
            done(answer)

    def requests_failed(
        self, connection: ClientConnection[AnswerDone], tokens: list[AnswerDone], reason: str, *,
        is_incompatible: bool = False, answer: RemotingCommand | None = None,
    ) -> None:
        """Say which requests are certainly not executed: those that the remoting layer refused."""
        for done in tokens:
            if answer is not None and answer.code in _REFUSALS:
                remark = (answer.remark or "refused").strip()
                done(RequestRefused(_REFUSALS[answer.code], reason=f"{self.member_id}: {remark}"))
            else:
                done(RequestLost(f"{self.member_id}: {reason}"))

    def read_ended(self, connection: ClientConnection[AnswerDone]) -> None:
        """Inform the owner."""
        for turn_ended in self.turn_ended:
            turn_ended()

    def wire_broken(self, connection: ClientConnection[AnswerDone], error: WireError) -> None:
        """Log the error; the connection ends afterwards."""
        self._ended_because = f"malformed bytes: {error}"
        self.log.warn(
            "connection to {peer_id} ended: {reason}", peer_id=self.member_id, reason=self._ended_because
        )

    def connection_lost(self, connection: ClientConnection[AnswerDone], reason: str) -> None:
        """Inform the owner, once."""
        self._ended_because = self._ended_because or reason
        enders, self.turn_ended = self.turn_ended, []
        lost, self.lost = self.lost, None
        if lost is not None:
            lost(self)
        for turn_ended in enders:
            turn_ended()
