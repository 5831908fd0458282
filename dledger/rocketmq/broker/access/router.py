# -*- test-case-name: tests.broker.test_router -*-
"""
The listening side of a broker: its connections, and the groups of commands that answer requests.

A request goes to the group that has its code. Consecutive sends of one read go to their group in one call.
Every port answers the same requests.

Rule 1: every request is answered once. The router answers for a handler that refuses a request or fails.
Rule 2: the number of connections is bounded, and an idle connection is closed after a while.
Rule 3: a request that fails does not affect other requests.
Rule 4: what was sent and answered before is in its queue when another request is handled.

Source: NettyRemotingAbstract.processRequestCommand, AdminBrokerProcessor (4.9.8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
from twisted.python.failure import Failure

from dledger.base.serving.client_places import SHARE_PERCENT
from dledger.rocketmq.answering.answering import CONNECTIONS_MAX, AnsweringSide, RequestGate
from dledger.rocketmq.answering.refusals import CommandGroup, RefusalCounts
from protocols.rocketmq.broker import BrokerConnection, NativeSink, SendSink
from protocols.rocketmq.commands import CommandConnection
from protocols.turn import Turn
from protocols.wire.remoting import RemotingCommand


class SendCommands(Protocol):
    """The group that receives all sends of one read in one call: one read is one put."""

    @property
    def codes(self) -> frozenset[int]:
        """The request codes."""

    def received(self, connection: CommandConnection, requests: Sequence[RemotingCommand]) -> None:
        """Requests of one read, in order. Each is answered once, now or later."""


@attrs.frozen(kw_only=True)
class SendHandlers:
    """
    Who takes the sends of producers, which come in three forms.

    @ivar together: the group of sends that are decoded as commands.
    @ivar plain: takes the usual sends before they are decoded as commands; None: decode all sends.
    @ivar native: answers native frames; None: native frames are format errors.
    """

    together: SendCommands
    plain: SendSink | None = None
    native: NativeSink | None = None


class CommandRouter(AnsweringSide):
    """An L{AnsweringSide} that also takes sends and native frames."""

    def __init__(
        self, turn: Turn, groups: Sequence[CommandGroup], sends: SendHandlers, *,
        refusals: RefusalCounts | None = None, gate: RequestGate | None = None,
        connections_max: int = CONNECTIONS_MAX, share_percent: int = SHARE_PERCENT,
        show: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param show: called before each request that is not a send: sent messages become visible.
        @param groups: no code is in two of them. They hear of connections in this order.
        @param refusals: shared with other parts; by default a new one.
        @param gate: asked before every handler, but not about plain sends and native frames. None: everybody
            may do everything.
        """
        super().__init__(
            turn, groups, refusals=refusals, gate=gate, connections_max=connections_max,
            share_percent=share_percent,
        )
        self._together = together = sends.together
        self._together_codes = together.codes
        self._plain = sends.plain
        self._send_gate = gate if gate is not None and gate.judges_sends else None
        self._native = sends.native
        self._show = show
        twice = sorted(self.handlers_by_code.keys() & together.codes)
        assert not twice, f"codes {twice} have handlers already"

    @property
    def codes(self) -> tuple[int, ...]:
        """Request codes that have a handler."""
        return tuple(sorted(self.handlers_by_code.keys() | self._together_codes))

    def _make_connection(self) -> CommandConnection:
        return BrokerConnection(
            self, self._turn, native=self._native, sends=self._plain, budgets=self.budgets
        )

    def _next(self, connection: CommandConnection, commands: deque[RemotingCommand]) -> None:
        """See L{AnsweringSide._next}: sends that follow one another belong together."""
        together = []
        while commands and commands[0].code in self._together_codes:
            together.append(commands.popleft())
        if together:
            self._send(connection, together)
        else:
            self._show()
            self._handle(connection, commands.popleft())

    def _pass_over(self, connection: CommandConnection, commands: deque[RemotingCommand]) -> None:
        """See L{AnsweringSide._pass_over}: a send that waited could be overtaken by a later one."""
        sends = [command for command in commands if command.code in self._together_codes]
        if sends:
            others = [command for command in commands if command.code not in self._together_codes]
            commands.clear()
            commands.extend(others)
            self._send(connection, sends)

    def _send(self, connection: CommandConnection, sends: list[RemotingCommand]) -> None:
        gate = self._send_gate
        if gate is not None:
            sends = [command for command in sends if self._passes(gate, connection, command)]
        if sends:
            self._hand_over(connection, sends)

    def _passes(self, gate: RequestGate, connection: CommandConnection, command: RemotingCommand) -> bool:
        """Whether the gate allows a request; if not, it is answered."""
        try:
            gate.check(connection, command)
        except Exception as error:
            self._refuse(connection, command, error)
            return False
        return True

    def _hand_over(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        try:
            self._together.received(connection, commands)
        except Exception:
            # Some requests may have an answer already: only closing the connection answers the rest.
            self._failed(connection, commands[0].code, Failure())
            connection.abort("a send failed unexpectedly")
