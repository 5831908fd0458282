# -*- test-case-name: tests.node.test_router -*-
"""
The requests of clients that append: what may be appended goes to the L{AppendGate}, commands go to the state
machine, and the others are refused with a reason.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.core.state.effects import Report
from dledger.core.state.inputs import Origin
from dledger.node.connections.door import Refuse
from dledger.node.requests.appends import AppendGate
from dledger.node.requests.machine_requests import MachineRequests
from dledger.values.errors import DLedgerError
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import SubmitRequest
from protocols.wire.ledger.messages import AppendIfRequest, AppendOnceRequest, Request
from protocols.wire.ledger.own.own_entries import HIDDEN_MAGIC
from protocols.wire.ledger.producers import producer_problem

#: As longest body: the member takes no appends of clients.
NO_APPENDS = -1


class AppendRequests:
    """Judges the requests that append, and hands them to the append gate or the state machine."""

    def __init__(
        self, appends: AppendGate, machine: MachineRequests, refuse: Refuse,
        report: Callable[[Report], None], body_bytes_max: int, owner_of: Callable[[ServerConnection], str],
    ) -> None:
        """
        @param body_bytes_max: longest body, or L{NO_APPENDS}.
        @param owner_of: of a connection, see L{protocols.wire.ledger.owners}.
        """
        self._owner_of = owner_of
        self._appends = appends
        self._machine = machine
        self._refuse = refuse
        self._report = report
        self._body_bytes_max = body_bytes_max

    def append_if(self, connection: ServerConnection, ticket: Ticket, request: AppendIfRequest) -> None:
        """Append if the log ends where the client expects."""
        bodies = () if request.body is None else (request.body,)
        if self.may_append(bodies):
            self._appends.append_if(connection, ticket, bodies, request.expected_end)
        else:
            self.refuse(connection, ticket, request, bodies)

    def append_once(
        self, connection: ServerConnection, ticket: Ticket, request: AppendOnceRequest
    ) -> None:
        """Append what a producer numbers."""
        problem = producer_problem(request.producer, request.sequence)
        if not all(request.bodies[number].startswith(HIDDEN_MAGIC) for number in request.hidden):
            problem = f"a body that readers are to leave out does not begin with {HIDDEN_MAGIC.decode()}"
        if problem:
            error = DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)
            self._refuse(connection, ticket, request, error)
        elif self.may_append(request.bodies):
            origin = Origin(request.producer, request.sequence, request.hidden, self._owner_of(connection))
            self._appends.append_once(connection, ticket, request.bodies, origin)
        else:
            self.refuse(connection, ticket, request, request.bodies)

    def submit(self, connection: ServerConnection, ticket: Ticket, request: SubmitRequest) -> None:
        """Append a command of the state machine, or ask for the outcome of one."""
        if request.command and not self.may_append((request.command,)):
            self.refuse(connection, ticket, request, (request.command,))
        else:
            self._machine.ask(connection, ticket, request, self._owner_of(connection))

    def may_append(self, bodies: tuple[bytes, ...]) -> bool:
        """Whether these bodies may be appended: there is one, and none is too long."""
        if len(bodies) == 1:
            return len(bodies[0]) <= self._body_bytes_max
        return bool(bodies) and max(map(len, bodies)) <= self._body_bytes_max

    def refuse(
        self, connection: ServerConnection, ticket: Ticket, request: Request, bodies: tuple[bytes, ...]
    ) -> None:
        """Refuse a request whose bodies L{may_append} does not allow."""
        if self._body_bytes_max == NO_APPENDS:
            error = DLedgerError(
                ResponseCode.UNSUPPORTED, reason="a broker alone appends to this log: send it messages"
            )
        elif bodies:
            longest = max(map(len, bodies))
            self._report(Report(event="append-too-large", facts={
                "body_bytes": longest, "body_bytes_max": self._body_bytes_max, "address": connection.address,
            }))
            error = DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, body_bytes=longest)
        elif ticket.is_native:
            error = DLedgerError(ResponseCode.REQUEST_WITH_EMPTY_BODYS)
        else:
            error = DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason="body is missing")
        self._refuse(connection, ticket, request, error)
