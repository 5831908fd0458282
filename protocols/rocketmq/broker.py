# -*- test-case-name: tests.protocols.test_broker -*-
"""
RocketMQ's commands and our native frames on one connection with a broker, frame by frame.

Rule 1: an answer comes in the format of its request. Rule 2: the plain sends at the beginning of a read
are handed over in one call (if there is a L{SendSink}), then its commands in one, then its native requests
in one. Rule 3: a native request counts as unanswered like a command, with the bytes of its frame.

A native request fails with L{NotAsked} if it was not sent, and with L{AnswerLost} if the connection ended
after it was sent: then its outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from protocols.budgets import Budgets
from protocols.rocketmq.commands import (
    OUTSTANDING_MAX,
    REQUEST_OVERHEAD,
    CommandConnection,
    CommandSink,
    why_not_asked,
)
from protocols.rocketmq.signing import Credentials
from protocols.turn import Turn
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand
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
from protocols.wire.rocketmq.send_request import SendMessageRequest, SendReader

_REQUESTS = (PutRequest, ReadRequest, OffsetsRequest)


class AnswerLost(Exception):
    """The connection ended after the request was sent: its outcome is unknown."""


class NativeTicket(NamedTuple):
    """
    The facts about a request that its answer needs.

    @ivar opaque: number of the request.
    @ivar size: bytes of the request's frame.
    """

    opaque: int
    size: int


#: Called once with the answer, or with L{NotAsked} or L{AnswerLost}.
NativeDone = Callable[[BrokerAnswer | Exception], None]
NativeRequests = list[tuple[NativeTicket, BrokerRequest]]


class NativeSink(Protocol):
    """Answers native requests. Does not raise."""

    def natives_received(self, connection: BrokerConnection, requests: NativeRequests) -> None:
        """
        The native requests of one read, in order. Each is answered once, by
        L{BrokerConnection.answer_native}, unless the connection is lost first.
        """


#: A send in the usual form, or decoded as a command.
AnySend = SendMessageRequest | RemotingCommand


class SendSink(Protocol):
    """Answers sends. Does not raise."""

    @property
    def codes(self) -> frozenset[int]:
        """The request codes of sends."""

    def sends_received(self, connection: BrokerConnection, requests: Sequence[AnySend]) -> None:
        """
        Consecutive sends of one read, in order: those in the usual form (L{SendReader}) as they are, the
        others as commands. Each is answered once: by L{BrokerConnection.answer_sends}, or as the command that
        L{protocols.wire.remoting.decode_command} decodes from its frame.
        """


class _Sends:
    """
    The sends of one read that have not been handed over.

    @param command_of: decodes a frame.
    """

    def __init__(self, sink: SendSink, command_of: Callable[[bytes], RemotingCommand]) -> None:
        self.sink = sink
        self._codes = sink.codes
        self._command_of = command_of
        self._read = SendReader().read
        self._all: list[AnySend] = []
        self._has_long = False

    def take(self, frame: bytes) -> RemotingCommand | None:
        """@return: the command, if the frame is not a send. @raise WireError: it is malformed."""
        request = self._read(frame)
        if request is None:
            command = self._command_of(frame)
            if command.is_response or command.code not in self._codes:
                return command
            self._has_long = True
            self._all.append(command)
        else:
            self._all.append(request)
        return None

    def next(
        self, count: int
    ) -> tuple[list[AnySend], Sequence[AnySend], Sequence[RemotingCommand]]:
        """The oldest C{count} sends, in order; those in the usual form; the others."""
        sends, self._all = self._all[:count], self._all[count:]
        if not self._has_long:
            return sends, sends, ()
        self._has_long = bool(self._all)
        long = [send for send in sends if isinstance(send, RemotingCommand)]
        return sends, [send for send in sends if not isinstance(send, RemotingCommand)], long


class _Natives:
    """The native requests of one end that were sent and not answered, by number."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[BrokerKind, NativeDone]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, kind: BrokerKind, done: NativeDone) -> int:
        """One more. @return: its number."""
        while True:
            opaque = self._last = self._last % 0x7FFFFFFF + 1
            if opaque not in self._waiting:
                break
        self._waiting[opaque] = (kind, done)
        return opaque

    def forget(self, opaque: int) -> None:
        """Nobody waits for it."""
        self._waiting.pop(opaque, None)

    def take(self, opaque: int, answer: BrokerAnswer) -> NativeDone | None:
        """A request is answered; None if it is not known. @raise WireError: not with that."""
        asked = self._waiting.get(opaque)
        if asked is None:
            return None
        kind, done = asked
        if kind is not answer.kind:
            raise WireError(f"native frame: a {answer.kind.name} answer came for {kind.name}")
        del self._waiting[opaque]
        return done

    def fail(self, reason: str) -> None:
        """The connection has ended: the outcomes are unknown."""
        waiting, self._waiting = self._waiting, {}
        for _, done in waiting.values():
            done(AnswerLost(reason))


class BrokerConnection(CommandConnection):
    """
    Either end of a connection with a broker.

    @ivar read_ended: called when all frames of one read have been handed over.
    """

    def __init__(
        self, sink: CommandSink, turn: Turn, *, native: NativeSink | None = None,
        sends: SendSink | None = None, outstanding_max: int = OUTSTANDING_MAX,
        budgets: Budgets | None = None, credentials: Credentials | None = None, **options: int,
    ) -> None:
        """
        @param native: answers native requests; None if a native request is a format error.
        @param sends: answers sends; None if they are handed over as commands.
        @param options: further options of L{CommandConnection}.
        """
        super().__init__(sink, turn, outstanding_max=outstanding_max, budgets=budgets,
                         credentials=credentials, **options)
        self._native = native
        self._natives = _Natives()
        self._requests: NativeRequests = []
        self._answers: list[tuple[NativeDone, BrokerAnswer]] = []
        self.read_ended: Callable[[], None] | None = None
        self._sends = None if sends is None else _Sends(sends, self._loose.command)
        if self._sends is not None:
            self._short = self._sends.take

    # -- asking ----------------------------------------------------------------------------------

    @property
    def native_outstanding(self) -> int:
        """Number of native requests without an answer."""
        return len(self._natives)

    def request(self, request: BrokerRequest, done: NativeDone) -> int:
        """
        Send a request after the earlier ones. C{done} is called once; before this returns only with
        L{NotAsked}.

        @return: the number of the request, for L{forget_native}; 0 if it was not sent.
        """
        refused = why_not_asked(self, len(self._natives), self._outstanding_max)
        if refused is not None:
            done(refused)
            return 0
        opaque = self._natives.add(request.kind, done)
        self.account.prove()
        if not self._reads_much:
            self._read_much()
        self.write(request_parts(request, opaque))
        return opaque

    def forget_native(self, number: int) -> None:
        """Forget a request: C{done} will not be called."""
        self._natives.forget(number)

    # -- answering -------------------------------------------------------------------------------

    def answer_native(self, ticket: NativeTicket, answer: BrokerAnswer) -> None:
        """Answer a native request. Nothing happens on a lost connection."""
        self.answer_natives_made((ticket,), answer_parts(answer, ticket.opaque))

    def answer_natives_made(self, tickets: Sequence[NativeTicket], parts: Sequence[bytes]) -> None:
        """
        Answer several native requests with encoded frames. Nothing happens on a lost connection.

        @param parts: all frames, from L{protocols.wire.rocketmq.broker_frames.answer_parts}.
        """
        if self.is_lost:
            return
        self.unanswered -= len(tickets)
        self.unanswered_bytes -= sum([ticket.size for ticket in tickets]) + REQUEST_OVERHEAD * len(tickets)
        self.write(parts)

    def answer_sends(self, frames: Sequence[bytes], body_bytes: int) -> None:
        """
        Answer sends. Nothing happens on a lost connection.

        @param frames: frames of the answers.
        @param body_bytes: total bytes of the bodies of the requests.
        """
        if self.is_lost:
            return
        self.unanswered -= len(frames)
        self.unanswered_bytes -= body_bytes + REQUEST_OVERHEAD * len(frames)
        self.write(frames)

    # -- frames received -------------------------------------------------------------------------

    def _native_received(self, frame: bytes) -> int:
        opaque, message = decode_broker_frame(frame)
        if isinstance(message, _REQUESTS):
            if self._native is None:
                raise WireError(f"a native request ({message.kind.name}) is not accepted here")
            self.unanswered += 1
            self.unanswered_bytes += len(frame) + REQUEST_OVERHEAD
            self._requests.append((NativeTicket(opaque, len(frame)), message))
            if not isinstance(message, PutRequest):
                return 1
            if not self._reads_much:
                self._read_much()
            return 0
        done = self._natives.take(opaque, message)
        if done is not None:
            self._answers.append((done, message))
        return 0

    def _shorts_received(self, count: int) -> None:
        assert self._sends is not None
        if not self._reads_much:
            self._read_much()
        sends, plain, long = self._sends.next(count)
        if long:
            self._owe(long)
        shorts = count - len(long) if long else count
        size = shorts * REQUEST_OVERHEAD
        for send in plain:
            size += len(send.body)
        self.unanswered += shorts
        self.unanswered_bytes += size
        self._sends.sink.sends_received(self, sends)

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
        self._natives.fail(f"the connection was lost: {reason}")
        super()._ended(reason)
