# -*- test-case-name: tests.protocols.test_commands -*-
"""
RocketMQ's own protocol: remoting commands in both directions on one connection.

A broker asks a name server and its master; producers and consumers ask a broker, and it may ask them. Each
side numbers its own requests; an answer has the number of its request. The owner of the connection decides
the meaning of commands.

Rule 1: the requests of one read are handed over together, in their order; all output of a reactor turn is
written in one.
Rule 2: unanswered requests are bounded: this end stops reading when it owes too many answers, and refuses
to ask when too many of its own requests are unanswered.
Rule 3: when the connection ends, all outstanding requests fail before the owner is informed.

Source: NettyRemotingAbstract, NettyDecoder (RocketMQ 4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred

from protocols.budgets import Budgets
from protocols.connection import (
    IDLE_S,
    UNANSWERED_BYTES_MAX,
    UNANSWERED_MAX,
    UNSENT_BYTES_MAX,
    AnsweringConnection,
    Connection,
)
from protocols.rocketmq.signing import Credentials, signed
from protocols.turn import Turn
from protocols.wire.errors import WireError
from protocols.wire.framing import Frame
from protocols.wire.remoting import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    FRAME_BYTES_MAX,
    NOT_SUPPORTED_REMARK,
    REQUEST_CODE_NOT_SUPPORTED,
    SYSTEM_BUSY,
    RemotingCommand,
    command_parts,
    decode_command,
    encode_command,
)

#: Code of a successful answer.
SUCCESS = 0

#: The version that we send: RocketMQ 5.3.3, whose requests we answer; its clients show it. Below 37 a name
#: server reads registrations in an old form.
VERSION = 479

#: Bytes of one read of a connection on which messages, or answers, come. With Twisted's 64 KiB a window of 64
#: messages of 1 KiB takes two reads, and its last few cost an additional put, frame to the slaves and wait.
READ_BYTES = 256 * 1024

#: Seconds without traffic after which a connection of commands is closed. Clients have the 120 s of L{IDLE_S}
#: themselves: of two equal limits each would meet connections that the other has just closed.
COMMANDS_IDLE_S = IDLE_S + 10.0

#: Frames of one piece of a read, at most, and requests among them that are decoded as commands.
FRAMES_MAX = 256
COMMANDS_MAX = 32

#: Most requests without an answer.
OUTSTANDING_MAX = 16384

#: Bytes that a request is counted for, beside its body.
REQUEST_OVERHEAD = 512


class NotAsked(Exception):
    """The request was not sent, or its answer will not come: connection lost, or too much outstanding."""


class CommandSink(Protocol):
    """Owner of connections. Does not raise."""

    def connected(self, connection: CommandConnection) -> None:
        """A connection is ready."""

    def no_place(self, connection: CommandConnection) -> str:
        """
        The first valid read has come. @return: why the connection cannot be kept; empty: it is. The reason is
        answered to its requests, and the connection ends.
        """

    def commands_received(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        """
        The requests of one read, in order. Each that is not one-way is answered once, by
        L{CommandConnection.answer}, unless the connection is lost first.
        """

    def drained(self, connection: CommandConnection) -> None:
        """The connection takes output again after C{is_congested}."""

    def wire_broken(self, connection: CommandConnection, error: WireError) -> None:
        """The peer broke the format; the connection is being aborted."""

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        """The connection has ended; later answers are dropped."""


class OnlyAsking:
    """A L{CommandSink} for connections on which only we ask."""

    def connected(self, connection: CommandConnection) -> None:
        """See L{CommandSink.connected}."""

    def no_place(self, connection: CommandConnection) -> str:
        """See L{CommandSink.no_place}: we have opened it, and keep it."""
        return ""

    def commands_received(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        """See L{CommandSink.commands_received}: every request is answered as not supported."""
        for command in commands:
            connection.answer_not_supported(command)

    def drained(self, connection: CommandConnection) -> None:
        """See L{CommandSink.drained}: no work waits for it."""

    def wire_broken(self, connection: CommandConnection, error: WireError) -> None:
        """See L{CommandSink.wire_broken}: outstanding requests fail when the connection ends."""

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        """See L{CommandSink.connection_lost}: outstanding requests have failed already."""


@attrs.define
class _Runs:
    """
    The order of one read: frames that a shortcut took, and commands.

    @ivar taken: number of frames that the shortcut took.
    @ivar commands: runs of commands, each with the number of taken frames before it.
    @ivar answers: the Deferreds of our own requests, each with its answer.
    """

    taken: int = 0
    commands: list[tuple[int, list[RemotingCommand]]] = attrs.Factory(list)
    answers: list[tuple[Deferred[RemotingCommand], RemotingCommand]] = attrs.Factory(list)

    def add(self, command: RemotingCommand) -> None:
        """The next frame is a command."""
        if not self.commands or self.commands[-1][0] != self.taken:
            self.commands.append((self.taken, []))
        self.commands[-1][1].append(command)

    def in_order(self) -> Iterator[tuple[int, list[RemotingCommand]]]:
        """Numbers of taken frames, each with the commands after them; either may be empty."""
        before = 0
        for until, commands in self.commands:
            yield until - before, commands
            before = until
        yield self.taken - before, []

    def hand_over(
        self, owe: Callable[[list[RemotingCommand]], None], shorts: Callable[[int], None],
        commands: Callable[[list[RemotingCommand]], None],
    ) -> None:
        """
        Count the commands as owed, call back who has asked, then hand over what was taken and the commands.

        @param owe, shorts, commands: called for each run of commands; for a number of taken frames; again for
            each run.
        """
        for _, requests in self.commands:
            owe(requests)
        for done, answer in self.answers:
            if not done.called:  # an earlier callback may have cancelled it
                done.callback(answer)
        for count, requests in self.in_order():
            if count:
                shorts(count)
            if requests:
                commands(requests)


def why_not_asked(connection: Connection, outstanding: int, outstanding_max: int) -> NotAsked | None:
    """Why a request is not sent; None if it is."""
    if connection.is_lost or connection.is_closing:
        return NotAsked("the connection is lost")
    if outstanding >= outstanding_max or connection.unsent_bytes >= UNSENT_BYTES_MAX:
        return NotAsked(f"{outstanding} requests are outstanding, {connection.unsent_bytes} bytes unsent")
    return None


class Asked:
    """
    The requests of one end that were sent and not answered, by number.

    A number is used again when its request has been answered.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Deferred[RemotingCommand]] = {}
        self._last_opaque = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self) -> int:
        """A number that no request has."""
        while True:
            self._last_opaque = self._last_opaque % 0x7FFFFFFF + 1
            if self._last_opaque not in self._waiting:
                return self._last_opaque

    def add(self, done: Deferred[RemotingCommand]) -> int:
        """One more request. @return: its number."""
        opaque = self.next()
        self._waiting[opaque] = done
        return opaque

    def take(self, opaque: int) -> Deferred[RemotingCommand] | None:
        """A request is answered; None if it is not known."""
        return self._waiting.pop(opaque, None)

    def forget(self, done: Deferred[RemotingCommand]) -> None:
        """A request is cancelled."""
        for opaque, one in self._waiting.items():
            if one is done:
                del self._waiting[opaque]
                return

    def fail(self, reason: str) -> None:
        """The connection has ended."""
        waiting, self._waiting = self._waiting, {}
        for done in waiting.values():
            done.errback(NotAsked(reason))


class CommandConnection(AnsweringConnection):
    """
    Either end of a connection.

    @ivar _short: a shortcut for remoting frames: takes the frame, or returns the command.
    """

    _short: Callable[[bytes], RemotingCommand | None] | None = None
    _frames_max = FRAMES_MAX

    def __init__(
        self, sink: CommandSink, turn: Turn, *, unanswered_max: int = UNANSWERED_MAX,
        outstanding_max: int = OUTSTANDING_MAX, frame_bytes_max: int = FRAME_BYTES_MAX,
        idle_s: float = COMMANDS_IDLE_S, budgets: Budgets | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """@param credentials: sign our requests with them."""
        super().__init__(
            turn, unanswered_max=unanswered_max, unanswered_bytes_max=UNANSWERED_BYTES_MAX,
            frame_bytes_max=frame_bytes_max, idle_s=idle_s, budgets=budgets,
        )
        self._sink: CommandSink = sink
        self._outstanding_max = outstanding_max
        self._credentials = credentials
        self._asked = Asked()
        self._reads_much = False

    def connectionMade(self) -> None:
        super().connectionMade()
        self._sink.connected(self)

    def _read_much(self) -> None:
        """Read more at once: this end has asked, or the other end sends messages."""
        self._reads_much = True
        self.transport.bufferSize = READ_BYTES

    # -- asking ----------------------------------------------------------------------------------

    def ask(self, command: RemotingCommand) -> Deferred[RemotingCommand]:
        """
        Send a request; this method sets its number.

        @return: fires with the answer, with any code. Fails with L{NotAsked}. Cancelling forgets the
            request, so C{addTimeout} sets a deadline.
        """
        done: Deferred[RemotingCommand] = Deferred(self._asked.forget)
        refused = why_not_asked(self, len(self._asked), self._outstanding_max)
        if refused is not None:
            done.errback(refused)
        else:
            self.account.prove()
            if not self._reads_much:
                self._read_much()
            self.write((self._encoded(command, self._asked.add(done), 0),))
        return done

    def notify(self, command: RemotingCommand) -> None:
        """Send a one-way request. Nothing happens on a lost connection."""
        if not (self.is_lost or self.is_closing):
            self.write((self._encoded(command, self._asked.next(), FLAG_ONEWAY),))

    def _encoded(self, command: RemotingCommand, opaque: int, flag: int) -> bytes:
        if self._credentials is not None:
            command = signed(command, self._credentials)
        return encode_command(attrs.evolve(command, opaque=opaque, flag=flag, version=VERSION))

    # -- answering -------------------------------------------------------------------------------

    def answer(
        self, request: RemotingCommand, *, code: int = SUCCESS, remark: str | None = None,
        ext_fields: Mapping[str, str] | None = None, body: bytes = b"",
    ) -> None:
        """Answer a request. Nothing happens on a lost connection, or if the request was one-way."""
        if not (self.is_lost or request.is_oneway):
            self.answer_made(request, *command_parts(RemotingCommand(
                code=code, opaque=request.opaque, flag=FLAG_RESPONSE, version=VERSION, remark=remark,
                ext_fields=ext_fields or {}, serialize_type=request.serialize_type, body=body,
            )))

    def answer_made(self, request: RemotingCommand, *parts: bytes) -> None:
        """As L{answer}, with the parts of an encoded frame."""
        if self.is_lost or request.flag & FLAG_ONEWAY:
            return
        self.unanswered -= 1
        self.unanswered_bytes -= len(request.body) + REQUEST_OVERHEAD
        self.write(parts)

    def answer_not_supported(self, request: RemotingCommand) -> None:
        """Send Java's answer to an unknown request code."""
        self.answer(
            request, code=REQUEST_CODE_NOT_SUPPORTED, remark=NOT_SUPPORTED_REMARK.format(request.code)
        )

    # -- frames received -------------------------------------------------------------------------

    def _frames_received(self, frames: list[Frame]) -> WireError | None:
        runs = _Runs()
        broken, left = None, COMMANDS_MAX
        take = self._short or self._loose.command
        try:
            for number, (form, frame) in enumerate(frames):
                if left <= 0:
                    self._buffer.put_back(frames[number:], taken=number)
                    break
                if form != "remoting":
                    left -= self._native_received(frame)
                    continue
                command = take(frame)
                if command is None:
                    runs.taken += 1
                elif not command.is_response:
                    left -= 1
                    runs.add(command)
                elif (done := self._asked.take(command.opaque)) is not None:
                    runs.answers.append((done, command))
        except WireError as error:
            broken = error
        if not self.account.is_proven and broken is None:
            if reason := self._sink.no_place(self):
                _turn_away(self, _commands_of(frames), reason)
                return None
            self.account.prove()
        if runs.commands or runs.answers:
            runs.hand_over(self._owe, self._shorts_received, partial(self._sink.commands_received, self))
        elif runs.taken:
            self._shorts_received(runs.taken)
        self._rest_received()
        self.regulate()
        return broken

    def _native_received(self, frame: bytes) -> int:
        """
        @return: its part of L{COMMANDS_MAX}.
        @raise WireError: the frame is malformed, or not accepted here.
        """
        raise WireError("a native frame on a connection for remoting only")

    def _owe(self, requests: Iterable[RemotingCommand]) -> None:
        for request in requests:
            if not request.is_oneway:
                self.unanswered += 1
                self.unanswered_bytes += len(request.body) + REQUEST_OVERHEAD

    def _shorts_received(self, count: int) -> None:
        """After the last frame of a read: hand over the oldest C{count} frames that C{_short} took."""

    def _rest_received(self) -> None:
        """Called when the commands of a read have been handed over."""

    def _ended(self, reason: str) -> None:
        self._asked.fail(f"the connection was lost: {reason}")
        self._sink.connection_lost(self, reason)


def _commands_of(frames: list[Frame]) -> list[RemotingCommand]:
    """
    The requests of a read whose frames are sound. Native requests are none of them: nobody sends one before
    the answer to another request.
    """
    commands = [decode_command(frame) for form, frame in frames if form == "remoting"]
    return [command for command in commands if not command.is_response]


def _turn_away(connection: CommandConnection, requests: list[RemotingCommand], reason: str) -> None:
    """Answer that there is no place for the connection, and end it."""
    connection._owe(requests)
    for request in requests:
        connection.answer(request, code=SYSTEM_BUSY, remark=reason)
    connection.close()


def hosts_of(connection: CommandConnection) -> tuple[str, str]:
    """The addresses of the other end and of this end of a connection, without their ports."""
    peer, here = connection.transport.getPeer(), connection.transport.getHost()
    return str(getattr(peer, "host", peer)), str(getattr(here, "host", here))
