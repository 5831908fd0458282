# -*- test-case-name: tests.broker.test_router,tests.namesrv.test_service -*-
"""
The listening side of any server of RocketMQ's commands: each request goes to the group that has its code.

Rule 1: every request is answered once. This side answers for a handler that refuses a request or fails.
Rule 2: a request that fails does not affect other requests.
Rule 3: when the reads of a turn have taken their time, or made enough bytes of answers, the other requests of
a connection wait for a later turn, in their order, and with them what the connection sends after them: many
expensive requests that one client asks at once do not stop the others.
Rule 4: they also wait while the client does not read its answers, and while the budget of the process has no
room for an answer that may be large. The connection counts what is written to it, so a handler does nothing
for this rule, unless it answers later: then it asks C{connection.may_answer} when it makes a large answer.
Answers to a code may be large, unless its group says that they are small.

Rule 5: a handler that returns a generator is run in pieces (L{dledger.rocketmq.answering.pieces}). A request
whose body is longer than its group allows is refused before anything reads it.

Source: NettyRemotingAbstract.processRequestCommand (4.9.8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from twisted.python.failure import Failure

from dledger.base.serving.client_places import SHARE_PERCENT
from dledger.base.serving.listening import ListeningSide
from dledger.rocketmq.answering.pieces import LongRequests
from dledger.rocketmq.answering.refusals import (
    BODY_BYTES_MAX,
    Code,
    CommandGroup,
    Handler,
    RefusalCounts,
    Refused,
)
from protocols.budgets import Budgets
from protocols.rocketmq.commands import CommandConnection
from protocols.turn import Turn
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand

#: At most this many connections are open.
CONNECTIONS_MAX = 8192

#: At most this many kinds of failures are logged with their traceback; all are counted.
_FAILURES_MAX = 256


class RequestGate(Protocol):
    """Decides who may make which request."""

    @property
    def judges_sends(self) -> bool:
        """Whether it may refuse sends of messages."""

    def check(self, connection: CommandConnection, request: RemotingCommand) -> None:
        """@raise Refused: the sender may not make it."""


class AnsweringSide(ListeningSide[CommandConnection]):
    """
    A L{protocols.rocketmq.commands.CommandSink} for the connections that it makes.

    Invariant: while requests of a connection wait, its reads are held; the requests are in a call of the
    turn, or, until there is room for their answers, in C{unread}, or, while it has a long one, in C{_after}.

    Implements L{protocols.rocketmq.commands.CommandSink}.

    @ivar unread: the requests that wait for room, by connection.
    @ivar handlers_by_code: what answers each request code.
    @ivar small_codes: the request codes whose answers are always small.
    @ivar budgets: the memory that the connections share.
    @ivar wire_errors: connections that were aborted because the peer broke the format.
    @ivar unknown: requests without a handler.
    @ivar refusals: counts the requests that are refused.
    @ivar failures: requests at which a handler failed.
    """

    def __init__(
        self, turn: Turn, groups: Sequence[CommandGroup], *, refusals: RefusalCounts | None = None,
        gate: RequestGate | None = None, connections_max: int = CONNECTIONS_MAX,
        share_percent: int = SHARE_PERCENT,
    ) -> None:
        """
        @param groups: no code is in two of them. They hear of connections in this order.
        @param refusals: shared with other parts; by default a new one.
        @param gate: asked before every handler; None: everybody may do everything.
        @param share_percent: see L{ListeningSide}.
        """
        super().__init__(turn, connections_max=connections_max, share_percent=share_percent)
        self.budgets = Budgets()
        self._groups = tuple(groups)
        self._gate = gate
        self.handlers_by_code: dict[int, Handler] = {}
        self.small_codes = frozenset[int]().union(*(group.small_codes for group in groups))
        for group in groups:
            handlers = group.handlers()
            twice = sorted(handlers.keys() & self.handlers_by_code.keys())
            assert not twice, f"codes {twice} have handlers already"
            self.handlers_by_code.update(handlers)
        self._bodies_max: dict[int, int] = {}
        for group in groups:
            self._bodies_max.update(group.body_bytes_max)
        self._long = LongRequests(turn, ended=self._long_ended, failed=self._refuse)
        self._after: dict[CommandConnection, deque[RemotingCommand]] = {}
        self._failed_codes: set[tuple[int, str]] = set()
        self.unread: dict[CommandConnection, deque[RemotingCommand]] = {}
        self.wire_errors = 0
        self.unknown = 0
        self.refusals = refusals or RefusalCounts()
        self.failures = 0

    @property
    def codes(self) -> tuple[int, ...]:
        """Request codes that have a handler."""
        return tuple(sorted(self.handlers_by_code))

    def _make_connection(self) -> CommandConnection:
        return CommandConnection(self, self._turn, budgets=self.budgets)

    # -- CommandSink -----------------------------------------------------------------------------

    def commands_received(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        self._go_on(connection, deque(commands))

    def _go_on(self, connection: CommandConnection, commands: deque[RemotingCommand]) -> None:
        """Handle requests until there are none left, the turn is over, or the answers are too large."""
        is_over = False
        while commands and not connection.is_lost:
            if is_over or not self._may_handle(connection, commands[0]):
                self._pass_over(connection, commands)
                if commands:
                    connection.put_off.hold()
                    self._wait(connection, commands)
                return
            self._next(connection, commands)
            if connection in self._long:
                self._pass_over(connection, commands)
                connection.put_off.hold()
                self._after[connection] = commands
                return
            is_over = self._turn.is_over

    def _long_ended(self, connection: CommandConnection) -> None:
        """The long request of a connection is answered: go on with those after it."""
        commands = self._after.pop(connection)
        if commands:
            self._wait(connection, commands)
        else:
            connection.put_off.release()

    def _may_handle(self, connection: CommandConnection, command: RemotingCommand) -> bool:
        """Whether there is room for the answer to a request; those to unknown codes are small."""
        if connection.is_clogged:
            return False
        is_small = command.code in self.small_codes or command.code not in self.handlers_by_code
        return is_small or connection.may_answer

    def _next(self, connection: CommandConnection, commands: deque[RemotingCommand]) -> None:
        """Take the first request, or several that belong together, and handle it."""
        self._handle(connection, commands.popleft())

    def _pass_over(self, connection: CommandConnection, commands: deque[RemotingCommand]) -> None:
        """Take those requests, and handle them, that do not wait with the others."""

    def _wait(self, connection: CommandConnection, commands: deque[RemotingCommand]) -> None:
        go_on = partial(self._handle_later, connection, commands)
        self._turn.put_off(go_on, connection.spent_s, is_short=False)

    def _handle_later(self, connection: CommandConnection, commands: deque[RemotingCommand]) -> None:
        if connection.is_lost:
            return
        if not self._may_handle(connection, commands[0]):
            connection.is_waited_for = True
            self.unread[connection] = commands
            return
        connection.spent_s += self._turn.read(lambda _: self._go_on(connection, commands), b"")
        if not (commands or connection.is_lost or connection in self._long):
            connection.put_off.release()

    def _handle(self, connection: CommandConnection, command: RemotingCommand) -> None:
        handler = self.handlers_by_code.get(command.code)
        if handler is None:
            self.unknown += 1
            self.refusals.refused(
                connection.address, command.code, Code.REQUEST_CODE_NOT_SUPPORTED, "not supported"
            )
            connection.answer_not_supported(command)
            return
        try:
            if len(command.body) > BODY_BYTES_MAX:
                self._check_body(command)
            if self._gate is not None:
                self._gate.check(connection, command)
            pieces = handler(connection, command)
            if pieces is not None:
                self._long.begin(connection, command, pieces)
        except Exception as error:
            self._refuse(connection, command, error)

    def _check_body(self, command: RemotingCommand) -> None:
        most = self._bodies_max.get(command.code, BODY_BYTES_MAX)
        if len(command.body) > most:
            raise Refused(
                Code.SYSTEM_ERROR,
                f"the body of request {command.code} has {len(command.body)} bytes, {most} are allowed",
            )

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
                             code=code, address=connection.address)

    def drained(self, connection: CommandConnection) -> None:
        unread = self.unread.pop(connection, None)
        if unread is not None:
            self._wait(connection, unread)
        for group in self._groups:
            group.drained(connection)

    def sweep(self, now_s: float) -> None:
        """See L{ListeningSide.sweep}; also looks whether there is room again."""
        super().sweep(now_s)
        unread, self.unread = self.unread, {}
        for connection, commands in unread.items():
            if not connection.is_lost:
                self._wait(connection, commands)

    def wire_broken(self, connection: CommandConnection, error: WireError) -> None:
        self.wire_errors += 1
        repeated = self.folding.happened(("format broken",))
        if repeated is not None:
            self.log.warn("{address} broke the format, connection aborted: {reason}",
                          address=connection.address, reason=str(error), **repeated)

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        super().connection_lost(connection, reason)
        self.unread.pop(connection, None)
        self._after.pop(connection, None)
        self._long.lost(connection)
        for group in self._groups:
            group.connection_lost(connection)
