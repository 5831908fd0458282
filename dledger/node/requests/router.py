# -*- test-case-name: tests.node.test_router,tests.node.test_turned_away -*-
"""
Routes each request of a connection to the part that answers it, by a table of their classes::

    METADATA               L{DLedgerCore.metadata}
    APPEND, APPEND_IF,
    APPEND_ONCE            L{AppendRequests}, L{AppendGate}
    SUBMIT, QUERY, SKIP    L{MachineRequests}
    BEGIN_STATE            L{StateOrders}
    RESET_TIMES            L{TimeOrders}
    READER                 L{ReaderHandler}
    SNAPSHOT               L{SnapshotHandler}
    GET, PULL, SEQUENCE    L{Reads}
    VOTE, HEART_BEAT, PUSH,
    LEADERSHIP_TRANSFER,
    MEMBERSHIP             the core, by L{CoreQuestions}

Rule 1: a request for another member is refused (401) before one for another group (400), as in Java.
Rule 2: what is said in the name of a member counts only on that member's connection
(L{dledger.node.connections.access}).
Rule 3: the first METADATA of a member names its group and its list of members; if they are not ours, it is
answered, and the connection ends before its next request (L{dledger.node.connections.greeting}).
Rule 4: a request beyond the rights of its connection is answered FORBIDDEN (440).
L{dledger.node.connections.access} decides it. Roles are judged before anything else; in a group without
certificates and tokens, the address of a change is judged when the change reaches the part that makes it. An
event reports who asked for a change of the members, and from where.
Rule 5: every request is answered exactly once, with a code in a body, unless its connection is lost: then the
core receives C{RequestAbandoned} for those that it has not answered.

Source: DLedgerServer.handle*, DLedgerRpcNettyService.processRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.core.state.effects import Reply, Report
from dledger.core.state.inputs import (
    Input,
    Origin,
    PeerDisconnected,
    PeerIncompatible,
    RequestAbandoned,
    RequestReceived,
)
from dledger.node.connections.access import ENDED, PEERS_ONLY, Access, Claim, Refuse, Speakers
from dledger.node.connections.greeting import Greeting
from dledger.node.reporting.status import count
from dledger.node.requests.about import Reported
from dledger.node.requests.appends import AppendGate
from dledger.node.requests.machine_requests import MachineRequests
from dledger.node.requests.merging import Merged, merge
from dledger.node.requests.places import EndlessPlaces, Places
from dledger.node.requests.readers import Asker, ReaderHandler
from dledger.node.requests.refusals import Refusals
from dledger.node.requests.snapshots import SnapshotHandler
from dledger.node.requests.state_orders import StateOrders
from dledger.node.requests.time_orders import TimeOrders
from dledger.node.work.inside import MemberInside
from dledger.node.work.reads import Reading, Reads
from dledger.values.errors import DLedgerError
from dledger.values.rights import ClientRole
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError, IncompatibleError, WireError
from protocols.wire.ledger.machines import QueryRequest, SkipRequest, SnapshotRequest, SubmitRequest
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    AppendIfRequest,
    AppendOnceRequest,
    AppendRequest,
    BeginStateRequest,
    GetRequest,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    ReaderRequest,
    Request,
    ResetTimesRequest,
    Response,
    SequenceRequest,
    VoteResponse,
)
from protocols.wire.ledger.own.own_entries import HIDDEN_MAGIC
from protocols.wire.ledger.producers import producer_problem

#: The origin of a request to the core: one request, or several merged ones.
_Asked = tuple[ServerConnection, Ticket | Merged]


class CoreQuestions:
    """
    Invariant: C{_questions}, and C{_callers} of this process, have the tokens that the core has not answered;
    C{_tokens} has those of each open connection.
    """

    def __init__(self, inside: MemberInside, next_token: Callable[[], int]) -> None:
        """@param next_token: makes a number for each question."""
        self._group = inside.config.group
        self._core = inside.core
        self._feed = inside.feed
        self._counters = inside.counters
        self._next_token = next_token
        self._questions: dict[int, _Asked] = {}
        self._callers: dict[int, Deferred[Response]] = {}
        self._tokens: dict[ServerConnection, set[int]] = {}

    @property
    def unanswered(self) -> int:
        """Number of requests that the core has not answered."""
        return len(self._questions) + len(self._callers)

    def connected(self, connection: ServerConnection) -> None:
        """A connection has begun."""
        self._tokens[connection] = set()

    def lost(self, connection: ServerConnection) -> set[int]:
        """A connection has ended. @return: its requests without an answer, for L{abandon}."""
        tokens = self._tokens.pop(connection, set())
        for token in tokens:
            del self._questions[token]
        return tokens

    def abandon(self, tokens: set[int]) -> None:
        """Inform the core that nobody waits for these answers any more."""
        if tokens:
            self._counters.requests_abandoned += len(tokens)
            # In the order of their arrival.
            self._feed(*[RequestAbandoned(token=token) for token in sorted(tokens)])

    def ask(self, connection: ServerConnection, asked: list[tuple[Ticket, Request]]) -> None:
        """Ask the core for a connection."""
        questions: list[Input] = []
        tokens = self._tokens[connection]
        merged: Iterable[tuple[Ticket | Merged, Request]]
        merged = asked if len(asked) == 1 else merge(asked, self._core.ledger_end_index + 1)
        for whence, request in merged:
            token = self._next_token()
            self._questions[token] = (connection, whence)
            tokens.add(token)
            questions.append(RequestReceived(token=token, request=request, channel=connection.serial))
        self._feed(*questions)

    def ask_here(self, request: Request) -> Deferred[Response]:
        """Ask the core for a local caller. Cancelling forgets the request."""
        token = self._next_token()

        def forget(_: Deferred[Response]) -> None:
            self._callers.pop(token, None)

        waiter: Deferred[Response] = Deferred(forget)
        self._callers[token] = waiter
        self._feed(RequestReceived(token=token, request=request))
        return waiter

    def reply(self, effect: Reply) -> None:
        """Pass on the core's answer; an unknown token is ignored."""
        token, response = effect.token, effect.response
        if token not in self._questions:
            if token in self._callers:
                self._callers.pop(token).callback(response)
            return
        connection, whence = self._questions.pop(token)
        self._tokens[connection].discard(token)
        if type(response) is VoteResponse:
            count(self._counters.votes, response.vote_result.name)
        if response.code is not ResponseCode.SUCCESS:
            asked_times = len(whence.parts) if isinstance(whence, Merged) else 1
            count(self._counters.refusals, response.code.name, asked_times)
        if type(whence) is Merged:
            for ticket, answer in whence.answers(response):
                connection.answer(ticket, answer)
        else:
            assert type(whence) is Ticket
            connection.answer(whence, response)

    def stop(self) -> None:
        """The member has stopped: answer the requests that the core left unanswered."""
        questions, self._questions = self._questions, {}
        for connection, whence in questions.values():
            self._tokens[connection].clear()
            tickets = [part[0] for part in whence.parts] if isinstance(whence, Merged) else [whence]
            for ticket in tickets:
                connection.answer(ticket, MESSAGES[ticket.kind][1](
                    code=ResponseCode.ILLEGAL_MEMBER_STATE, group=self._group
                ))
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            caller.errback(DLedgerError(ResponseCode.ILLEGAL_MEMBER_STATE, reason="the member has stopped"))


#: As longest body: the member takes no appends of clients.
NO_APPENDS = -1


class AppendRequests:
    """
    Judges the requests that append, and hands them to the append gate or the state machine.

    @ivar body_bytes_max: longest body, or L{NO_APPENDS}.
    """

    def __init__(
        self, appends: AppendGate, machine: MachineRequests, refuse: Refuse,
        report: Callable[[Report], None], body_bytes_max: int, owner_of: Callable[[ServerConnection], str],
    ) -> None:
        """
        @param owner_of: of a connection, see L{protocols.wire.ledger.owners}.
        """
        self._owner_of = owner_of
        self._appends = appends
        self._machine = machine
        self._refuse = refuse
        self._report = report
        self.body_bytes_max = body_bytes_max

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
            return len(bodies[0]) <= self.body_bytes_max
        return bool(bodies) and max(map(len, bodies)) <= self.body_bytes_max

    def refuse(
        self, connection: ServerConnection, ticket: Ticket, request: Request, bodies: tuple[bytes, ...]
    ) -> None:
        """Refuse a request whose bodies L{may_append} does not allow."""
        if self.body_bytes_max == NO_APPENDS:
            error = DLedgerError(
                ResponseCode.UNSUPPORTED, reason="a broker alone appends to this log: send it messages"
            )
        elif bodies:
            longest = max(map(len, bodies))
            self._report(Report(event="append-too-large", facts={
                "body_bytes": longest, "body_bytes_max": self.body_bytes_max, "address": connection.address,
            }))
            error = DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, body_bytes=longest)
        elif ticket.is_native:
            error = DLedgerError(ResponseCode.REQUEST_WITH_EMPTY_BODYS)
        else:
            error = DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason="body is missing")
        self._refuse(connection, ticket, request, error)


#: Answers a request of a client.
_Answer = Callable[..., None]
_Order = TypeVar("_Order", BeginStateRequest, ResetTimesRequest)
#: Answers a request that names its sender. @return: whether the connection goes on.
_AnswerNamed = Callable[..., bool]


@attrs.frozen(kw_only=True)
class Answerers:
    """
    The parts that answer requests, besides the core.

    @ivar machine: the requests to the state machine.
    @ivar readers: those of named readers.
    @ivar snapshots: those for snapshots, of other members.
    @ivar state_orders, time_orders: those of operators about the state of the group, about its times.
    """

    appends: AppendGate
    reads: Reads
    machine: MachineRequests
    readers: ReaderHandler
    snapshots: SnapshotHandler
    state_orders: StateOrders
    time_orders: TimeOrders


@attrs.frozen(kw_only=True)
class Introductions:
    """
    What is exchanged before everything else.

    @ivar greeting: judges which members belong to this group.
    @ivar greeted: called when a member has greeted, and may belong here.
    @ivar reported: what METADATA says about this member besides the core's facts.
    """

    greeting: Greeting
    greeted: Callable[[MetadataRequest], None]
    reported: Callable[[], Reported]


class RequestRouter:
    """
    @ivar access: the rights of connections.
    @ivar questions: the requests that the core answers.
    """

    def __init__(
        self, inside: MemberInside, answerers: Answerers, refusals: Refusals, introductions: Introductions,
        *, next_token: Callable[[], int], takes_appends: bool = True,
    ) -> None:
        """
        @param next_token: makes the numbers of questions to the core.
        @param takes_appends: no: a broker alone appends.
        """
        config, reporter = inside.config, inside.reporter
        self._inside = inside
        self._feed = inside.feed
        self._self_id = config.self_id
        self._group = config.group
        self._counters = inside.counters
        self._core = inside.core
        self._introductions = introductions
        self._reads = answerers.reads
        self._machine = answerers.machine
        self._snapshots = answerers.snapshots
        self._readers = answerers.readers
        self._append_for = answerers.appends.append_for
        self._refuse = refusals.refuse
        self._places: Places = EndlessPlaces()
        self.access = Access(config.group, refusals.refuse, reporter.note)
        self.questions = CoreQuestions(inside, next_token)
        self._speakers = Speakers(config.self_id, inside.core.member, self.access, reporter.note)
        self._appends = appends = AppendRequests(
            answerers.appends, answerers.machine, refusals.refuse, reporter.report,
            config.body_bytes_max if takes_appends else NO_APPENDS, self.access.owner_of,
        )
        #: What only clients ask, except L{AppendRequest}: that is the most frequent one.
        self._of_clients: dict[type[Request], _Answer] = {
            AppendIfRequest: appends.append_if, AppendOnceRequest: appends.append_once,
            SubmitRequest: appends.submit, ReaderRequest: self._reader, SkipRequest: self._skip,
            BeginStateRequest: partial(self._order, answerers.state_orders.begin_anew),
            ResetTimesRequest: partial(self._order, answerers.time_orders.reset),
            GetRequest: self._read, PullRequest: self._read, SequenceRequest: self._read,
            QueryRequest: self._read,
        }
        #: What members ask, too, and the core does not answer.
        self._of_members: dict[type[Request], _AnswerNamed] = {
            SnapshotRequest: self._snapshot, MetadataRequest: self._notify,
        }

    def claim_with(self, claim: Claim, vouches: Callable[[str], bool], places: Places) -> None:
        """
        Set the functions that claim connections for peers, and that know which peers are present.

        @param places: the places of clients.
        """
        self._speakers.claim_with(claim, vouches)
        self._places = places

    # -- RequestSink --------------------------------------------------------------------------

    def connected(self, connection: ServerConnection) -> None:
        """See L{protocols.ledger.interfaces.RequestSink.connected}."""
        self.questions.connected(connection)

    def requests_received(
        self, connection: ServerConnection, requests: list[tuple[Ticket, Request]]
    ) -> None:
        """See L{protocols.ledger.interfaces.RequestSink.requests_received}."""
        number = len(requests)
        self._counters.requests += number
        try:
            if self.access.is_guarded:
                requests = self.access.allowed(connection, requests)
                if not requests:
                    return
                number = len(requests)
            if connection.peer_id is None:
                self._counters.client_requests += number
            if not (connection.account.is_proven or self._is_settled(connection, requests)):
                return
            for_core: list[tuple[Ticket, Request]] = []
            self_id, group, append_for = self._self_id, self._group, self._append_for
            is_stopped, appends = self._inside.driver.is_stopped, self._appends
            body_max = appends.body_bytes_max
            for ticket, request in requests:
                if request.remote_id != self_id or request.group != group or is_stopped:
                    self._refuse_stranger(connection, ticket, request)
                elif type(request) is AppendRequest:
                    bodies = request.bodies
                    if len(bodies) == 1 and len(bodies[0]) <= body_max or appends.may_append(bodies):
                        append_for(connection, ticket, bodies)
                    else:
                        appends.refuse(connection, ticket, request, bodies)
                elif type(request) in self._of_clients:
                    self._of_clients[type(request)](connection, ticket, request)
                elif type(request) in self._of_members:
                    if not (
                        self._speakers.admit(connection, request)
                        and self._of_members[type(request)](connection, ticket, request)
                    ):
                        return  # the connection was refused, and with it the rest of its requests
                elif (refusal := self._speakers.refusal_for_core(connection, request)) is None:
                    for_core.append((ticket, request))
                elif refusal is ENDED:
                    return
                else:
                    self._refuse(connection, ticket, request, refusal)
            if for_core:
                self.questions.ask(connection, for_core)
        except Exception as error:
            # Otherwise Twisted would only drop the connection.
            self._inside.reporter.broken(error)

    def _is_settled(
        self, connection: ServerConnection, requests: list[tuple[Ticket, Request]]
    ) -> bool:
        """
        Give the connection of a newcomer its place, if it is one that knows this member.

        @return: whether its requests are heard; if not, they are answered, and it ends.
        """
        here = self._self_id, self._group
        first = next((one for _, one in requests if (one.remote_id, one.group) == here), None)
        if first is None or not self._inside.is_running or not self.access.is_known(connection):
            return True
        is_of_client = type(first) in self._of_clients or isinstance(first, AppendRequest)
        if not (
            is_of_client or self._places.has_place(connection)
            or self._speakers.admit(connection, first)
        ):
            return False
        reason = "" if connection.peer_id is not None else self._places.no_place(connection)
        if not reason:
            connection.account.prove()
            return True
        for ticket, request in requests:
            refused = DLedgerError(ResponseCode.TOO_MANY_CLIENTS, reason=reason)
            self._refuse(connection, ticket, request, refused)
        connection.close()
        return False

    def body_refused(self, connection: ServerConnection, ticket: Ticket, error: BodyError) -> None:
        """See L{protocols.ledger.interfaces.RequestSink.body_refused}."""
        count(self._counters.refusals, ResponseCode.UNEXPECTED_ARGUMENT.name)
        if isinstance(error, IncompatibleError) and connection.peer_id is not None:
            self._feed(PeerIncompatible(peer_id=connection.peer_id))
        response_class = MESSAGES[ticket.kind][1]
        connection.answer(ticket, response_class(
            code=ResponseCode.UNEXPECTED_ARGUMENT, group=self._group, leader_id=self._core.leader_id
        ))

    def drained(self, connection: ServerConnection) -> None:
        """See L{protocols.ledger.interfaces.RequestSink.drained}."""
        self._reads.drained(connection)

    def wire_broken(self, connection: ServerConnection, error: WireError) -> None:
        """See L{protocols.ledger.interfaces.RequestSink.wire_broken}; C{connection_lost} follows."""

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        """See L{protocols.ledger.interfaces.RequestSink.connection_lost}."""
        self.access.lost(connection)
        tokens = self.questions.lost(connection)
        self._reads.connection_lost(connection)
        self.questions.abandon(tokens)
        if connection.peer_id is not None:
            self._feed(PeerDisconnected(peer_id=connection.peer_id))

    # -- requests -----------------------------------------------------------------------------

    def _refuse_stranger(self, connection: ServerConnection, ticket: Ticket, request: Request) -> None:
        if request.remote_id != self._self_id:
            code = ResponseCode.UNKNOWN_MEMBER
        elif request.group != self._group:
            code = ResponseCode.UNKNOWN_GROUP
        elif request.kind in PEERS_ONLY:
            code = ResponseCode.ILLEGAL_MEMBER_STATE
        else:
            code = ResponseCode.NOT_LEADER
        self._refuse(connection, ticket, request, DLedgerError(code))

    def _reader(self, connection: ServerConnection, ticket: Ticket, request: ReaderRequest) -> None:
        access = self.access
        refusal = access.refusal_of_change(connection, request)
        if refusal is not None:
            self._refuse(connection, ticket, request, refusal)
            return
        is_admin = not access.is_guarded or ClientRole.ADMIN in access.rights(connection).roles
        self._readers.ask(connection, ticket, request, Asker(access.owner_of(connection), is_admin))

    def _skip(self, connection: ServerConnection, ticket: Ticket, request: SkipRequest) -> None:
        refusal = self.access.refusal_of_change(connection, request)
        if refusal is not None:
            self._refuse(connection, ticket, request, refusal)
        else:
            self._machine.ask(connection, ticket, request)

    def _order(
        self, give: Callable[[_Order], Deferred[Response]], connection: ServerConnection, ticket: Ticket,
        request: _Order,
    ) -> None:
        refusal = self.access.refusal_of_change(connection, request)
        if refusal is not None:
            self._refuse(connection, ticket, request, refusal)
        else:
            give(request).addCallback(partial(connection.answer, ticket)).addErrback(self._broken)

    def _broken(self, failure: Failure) -> None:
        assert failure.value is not None
        self._inside.reporter.broken(failure.value)

    def _read(
        self, connection: ServerConnection, ticket: Ticket, request: Reading | QueryRequest
    ) -> None:
        if self._core.is_diverged:
            self._refuse(connection, ticket, request, DLedgerError(ResponseCode.ILLEGAL_MEMBER_STATE))
        elif isinstance(request, QueryRequest):
            self._machine.ask(connection, ticket, request)
        elif not isinstance(request, PullRequest) or ticket.is_native:
            self._reads.ask(connection, ticket, request)
        else:
            error = DLedgerError(ResponseCode.UNSUPPORTED, reason="PULL needs native frames")
            self._refuse(connection, ticket, request, error)

    def _snapshot(self, connection: ServerConnection, ticket: Ticket, request: SnapshotRequest) -> bool:
        self._snapshots.answer(connection, ticket, request)
        return True

    def _notify(self, connection: ServerConnection, ticket: Ticket, request: MetadataRequest) -> bool:
        """Inform the members and the leader. @return: whether the connection goes on."""
        connection.answer(ticket, self._metadata(request))
        is_greeting = request.members and self._speakers.is_greeting(connection, request)
        return not (is_greeting and self._turned_away(connection, request))

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        introductions = self._introductions
        answer = introductions.greeting.answer(request, self._core.metadata(request))
        reported = introductions.reported()
        flags = self._snapshots.wire_flags
        if flags:
            answer = attrs.evolve(answer, wire_version=answer.wire_version | flags)
        return attrs.evolve(
            answer, admin=reported.admin, health=reported.health, machine=reported.machine,
            has_times=reported.has_times, time_resets=reported.time_resets,
            state_digest=reported.state_digest, version=reported.version,
        )

    def _turned_away(self, connection: ServerConnection, request: MetadataRequest) -> bool:
        """Whether the connection was ended, because the member that greets is of another group."""
        problem = self._introductions.greeting.problem_of_call(request)
        if problem:
            self._inside.reporter.note("foreign-member", {
                "peer_id": request.local_id, "address": connection.address, "reason": problem,
            })
            connection.close()
        else:
            self._introductions.greeted(request)
        return bool(problem)

    # -- answers ------------------------------------------------------------------------------

    def ask(self, request: Request) -> Deferred[Response]:
        """Ask the core for a local caller. Cancelling forgets the request."""
        return self.questions.ask_here(request)

    def stop(self) -> None:
        """The member has stopped: answer the requests that the core left unanswered."""
        self.questions.stop()
