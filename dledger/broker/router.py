# -*- test-case-name: tests.broker.test_router -*-
"""
The listening side of a broker: its connections, and who answers what is asked on them.

Requests go to groups of commands by their code. Sends that stand together in one read go to their group
together. What a slave asks for (see L{dledger.broker.metadata.slave_synchronize}) is answered here, on
every port.

Rule 1: every request is answered once. What a handler refuses, or fails at, is answered for it.
Rule 2: the number of connections is bounded, and who says nothing for two minutes is closed.
Rule 3: one request that fails costs its neighbours nothing.

Source: NettyRemotingAbstract.processRequestCommand, AdminBrokerProcessor (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from twisted.python.failure import Failure

from dledger.base.listening import ListeningSide
from dledger.broker.common.refusals import Code, Handler, Handlers, Refused
from dledger.broker.metadata.files import Metadata
from dledger.broker.metadata.slave_synchronize import ITEMS, metadata_answer
from protocols.rocketmq.broker import BrokerConnection, NativeSink, SendSink
from protocols.rocketmq.commands import CommandConnection
from protocols.turn import Turn
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand

#: More connections than this are closed as they come.
CONNECTIONS_MAX = 8192

#: Different failures of handlers that are logged with their traceback; the rest is counted.
_FAILURES_MAX = 256


class Commands(Protocol):
    """A group of commands. It may also have C{connection_lost(connection)} and C{drained(connection)}."""

    def handlers(self) -> Handlers:
        """What answers each code."""


#: All requests of one read that came together and go together.
Together = Callable[[CommandConnection, Sequence[RemotingCommand]], None]


class CommandRouter(ListeningSide[CommandConnection]):
    """
    A L{CommandSink} for the connections that it makes.

    @ivar native: who answers native frames of new connections; None for nobody.
    @ivar sends: who takes sends of new connections that are written as most are; None for nobody: they are
        commands like others.
    @ivar wire_errors: connections that were aborted because the other end broke the format.
    @ivar unknown: requests whose code nobody knows.
    @ivar failures: requests at which a handler failed.
    """

    def __init__(
        self, turn: Turn, *, native: NativeSink | None = None, connections_max: int = CONNECTIONS_MAX
    ) -> None:
        super().__init__(connections_max=connections_max)
        self._turn = turn
        self.native = native
        self.sends: SendSink | None = None
        self._handlers: dict[int, Handler] = {}
        self._together_codes: frozenset[int] = frozenset()
        self._together: Together | None = None
        self._lost: list[Callable[[CommandConnection], None]] = []
        self._drained: list[Callable[[CommandConnection], None]] = []
        self._failed_codes: set[tuple[int, str]] = set()
        self.wire_errors = 0
        self.unknown = 0
        self.failures = 0

    # -- who answers -----------------------------------------------------------------------------

    def add(self, commands: Commands | Any) -> None:
        """A group of commands is there. No code may have two."""
        handlers = commands.handlers()
        twice = sorted(handlers.keys() & (self._handlers.keys() | self._together_codes))
        assert not twice, f"codes {twice} have handlers already"
        self._handlers.update(handlers)
        for told, name in ((self._lost, "connection_lost"), (self._drained, "drained")):
            method = getattr(commands, name, None)
            if method is not None:
                told.append(method)

    def add_together(self, codes: Iterable[int], together: Together) -> None:
        """Requests with these codes that come together are handed over together."""
        assert self._together is None, "one group has its requests together"
        self._together_codes = frozenset(codes)
        assert not self._together_codes & self._handlers.keys()
        self._together = together

    def add_metadata(self, metadata: Metadata) -> None:
        """Answer slaves that ask for it."""

        def answer(connection: CommandConnection, request: RemotingCommand) -> None:
            body = metadata_answer(metadata, request.code)
            assert body is not None
            connection.answer(request, body=body)

        self._handlers.update({code: answer for code in ITEMS})

    @property
    def codes(self) -> tuple[int, ...]:
        """What is answered."""
        return tuple(sorted(self._handlers.keys() | self._together_codes))

    def _make_connection(self) -> CommandConnection:
        return BrokerConnection(self, self._turn, native=self.native, sends=self.sends)

    # -- CommandSink -----------------------------------------------------------------------------

    def commands_received(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        """See L{CommandSink.commands_received}."""
        together: list[RemotingCommand] = []
        for command in commands:
            if command.code in self._together_codes:
                together.append(command)
                continue
            if together:
                self._hand_over(connection, together)
                together = []
            self._handle(connection, command)
        if together:
            self._hand_over(connection, together)

    def _hand_over(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        assert self._together is not None
        try:
            self._together(connection, commands)
        except Exception:
            # Some of them may have been answered: only the end of the connection answers the rest.
            self._failed(connection, commands[0].code, Failure())
            connection.abort("a send failed in an unforeseen way")

    def _handle(self, connection: CommandConnection, command: RemotingCommand) -> None:
        handler = self._handlers.get(command.code)
        if handler is None:
            self.unknown += 1
            connection.answer_not_supported(command)
            return
        try:
            handler(connection, command)
        except Refused as refused:
            connection.answer(command, code=refused.code, remark=refused.remark)
        except Exception as error:
            self._failed(connection, command.code, Failure())
            remark = f"{type(error).__name__}: {error}"[:1000]
            connection.answer(command, code=Code.SYSTEM_ERROR, remark=remark)

    def _failed(self, connection: CommandConnection, code: int, failure: Failure) -> None:
        self.failures += 1
        kind = (code, type(failure.value).__name__)
        if kind not in self._failed_codes and len(self._failed_codes) < _FAILURES_MAX:
            self._failed_codes.add(kind)
            self.log.failure("request {code} of {address} failed (logged once)", failure,
                             code=code, address=connection.address)  # fmt: skip

    def drained(self, connection: CommandConnection) -> None:
        """See L{CommandSink.drained}."""
        for told in self._drained:
            told(connection)

    def wire_broken(self, connection: CommandConnection, error: WireError) -> None:
        """See L{CommandSink.wire_broken}."""
        self.wire_errors += 1
        self.log.warn("{address} broke the format, connection aborted: {reason}",
                      address=connection.address, reason=str(error))  # fmt: skip

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        """See L{CommandSink.connection_lost}."""
        super().connection_lost(connection, reason)
        for told in self._lost:
            told(connection)
