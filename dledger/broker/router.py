# -*- test-case-name: tests.broker.test_router -*-
"""
The listening side of a broker: its connections, and the groups of commands that answer requests.

A request goes to the group that has its code. Consecutive sends of one read go to their group in one call.
Every port answers the same requests.

Rule 1: every request is answered once. The router answers for a handler that refuses a request or fails.
Rule 2: the number of connections is bounded, and a connection idle for two minutes is closed.
Rule 3: a request that fails does not affect other requests.

Source: NettyRemotingAbstract.processRequestCommand, AdminBrokerProcessor (4.9.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from twisted.python.failure import Failure

from dledger.base.listening import ListeningSide
from dledger.broker.common.refusals import Code, CommandGroup, Handler, RefusalCounts, Refused
from protocols.budgets import Budgets
from protocols.rocketmq.broker import BrokerConnection, NativeSink, SendSink
from protocols.rocketmq.commands import CommandConnection
from protocols.turn import Turn
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand

#: At most this many connections are open; further ones are closed at once.
CONNECTIONS_MAX = 8192

#: At most this many kinds of failures are logged with their traceback; all are counted.
_FAILURES_MAX = 256


class SendCommands(Protocol):
    """The group that receives all sends of one read in one call: one read is one put."""

    @property
    def codes(self) -> frozenset[int]:
        """The request codes."""

    def received(self, connection: CommandConnection, requests: Sequence[RemotingCommand]) -> None:
        """Requests of one read, in order. Each is answered once, now or later."""


class RequestGate(Protocol):
    """Decides who may make which request."""

    def check(self, connection: CommandConnection, request: RemotingCommand) -> None:
        """@raise Refused: the sender may not make it."""


class CommandRouter(ListeningSide[CommandConnection]):
    """
    A L{CommandSink} for the connections that it makes.

    @ivar budgets: the memory that the connections share.
    @ivar wire_errors: connections that were aborted because the peer broke the format.
    @ivar unknown: requests without a handler.
    @ivar refusals: counts the requests that are refused.
    @ivar failures: requests at which a handler failed.
    """

    def __init__(
        self, turn: Turn, groups: Sequence[CommandGroup], *, together: SendCommands,
        plain: SendSink | None = None, native: NativeSink | None = None,
        refusals: RefusalCounts | None = None, gate: RequestGate | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """
        @param groups: no code is in two of them. They hear of connections in this order.
        @param together: the group of sends that are decoded as commands.
        @param plain: takes the usual sends before they are decoded as commands; None: decode all sends.
        @param native: answers native frames; None: native frames are format errors.
        @param refusals: shared with other parts; by default a new one.
        @param gate: asked before every handler; C{plain} and C{native} are not asked here. None: everybody
            may do everything.
        """
        super().__init__(turn, connections_max=connections_max)
        self.budgets = Budgets()
        self._groups = tuple(groups)
        self._together = together
        self._together_codes = together.codes
        self._plain = plain
        self._gate = gate
        self._native = native
        self._handlers: dict[int, Handler] = {}
        for group in groups:
            handlers = group.handlers()
            twice = sorted(handlers.keys() & (self._handlers.keys() | together.codes))
            assert not twice, f"codes {twice} have handlers already"
            self._handlers.update(handlers)
        self._failed_codes: set[tuple[int, str]] = set()
        self.wire_errors = 0
        self.unknown = 0
        self.refusals = refusals or RefusalCounts()
        self.failures = 0

    @property
    def codes(self) -> tuple[int, ...]:
        """Request codes that have a handler."""
        return tuple(sorted(self._handlers.keys() | self._together_codes))

    def _make_connection(self) -> CommandConnection:
        return BrokerConnection(
            self, self._turn, native=self._native, sends=self._plain, budgets=self.budgets
        )

    # -- CommandSink -----------------------------------------------------------------------------

    def commands_received(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        """See L{CommandSink.commands_received}."""
        together: list[RemotingCommand] = []
        for command in commands:
            if command.code in self._together_codes:
                if self._gate is None or self._passes(self._gate, connection, command):
                    together.append(command)
                continue
            if together:
                self._hand_over(connection, together)
                together = []
            self._handle(connection, command)
        if together:
            self._hand_over(connection, together)

    def _hand_over(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        try:
            self._together.received(connection, commands)
        except Exception:
            # Some requests may have an answer already: only closing the connection answers the rest.
            self._failed(connection, commands[0].code, Failure())
            connection.abort("a send failed unexpectedly")

    def _handle(self, connection: CommandConnection, command: RemotingCommand) -> None:
        handler = self._handlers.get(command.code)
        if handler is None:
            self.unknown += 1
            self.refusals.refused(
                connection.address, command.code, Code.REQUEST_CODE_NOT_SUPPORTED, "not supported"
            )
            connection.answer_not_supported(command)
            return
        if self._gate is not None and not self._passes(self._gate, connection, command):
            return
        try:
            handler(connection, command)
        except Exception as error:
            self._refuse(connection, command, error)

    def _passes(self, gate: RequestGate, connection: CommandConnection, command: RemotingCommand) -> bool:
        """Whether the gate allows a request; if not, it is answered."""
        try:
            gate.check(connection, command)
        except Exception as error:
            self._refuse(connection, command, error)
            return False
        return True

    def _refuse(self, connection: CommandConnection, command: RemotingCommand, error: Exception) -> None:
        if isinstance(error, Refused):
            self.refusals.refused(connection.address, command.code, error.code, error.remark)
            connection.answer(command, code=error.code, remark=error.remark)
            return
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
        for group in self._groups:
            group.drained(connection)

    def wire_broken(self, connection: CommandConnection, error: WireError) -> None:
        """See L{CommandSink.wire_broken}."""
        self.wire_errors += 1
        repeated = self.folding.happened(("format broken",))
        if repeated is not None:
            self.log.warn("{address} broke the format, connection aborted: {reason}",
                          address=connection.address, reason=str(error), **repeated)  # fmt: skip

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        """See L{CommandSink.connection_lost}."""
        super().connection_lost(connection, reason)
        for group in self._groups:
            group.connection_lost(connection)
