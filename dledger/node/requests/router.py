# -*- test-case-name: tests.node.test_router -*-
"""
Routes each request of a connection to the part that answers it; the only place where a
L{DLedgerError} becomes a response code::

    METADATA               L{DLedgerCore.metadata}
    APPEND, APPEND_IF,
    APPEND_ONCE            L{AppendGate}
    SUBMIT, QUERY          L{MachineDesk}
    READER                 L{ReaderDesk}
    SNAPSHOT               L{SnapshotDesk}
    GET, PULL              L{Reads}
    VOTE, HEART_BEAT, PUSH,
    LEADERSHIP_TRANSFER,
    MEMBERSHIP             the core, as RequestReceived

Rule 1: a request for another member is refused first (401), then one for another group (400), as in
Java.
Rule 2: VOTE, HEART_BEAT, PUSH and a leader's LEADERSHIP_TRANSFER count only on the connection of the
member that they name, and while that member's own address answers; the first message that names its sender
introduces the connection.
Rule 3: the first METADATA of a member tells its group and its list of members; if they are not ours, it is
answered, and the connection ends before any other of its requests is heard
(L{dledger.node.connections.greeting}).
Rule 4: a request beyond the rights of its connection is answered FORBIDDEN (440):
L{dledger.node.connections.door} decides, before anything else, or, without TLS, here about changes; a
connection that claims to be a member that it may not speak for ends. The log tells from where a change of the
members was asked for.
Rule 5: every request is answered exactly once, with a code in a body, unless its connection is lost;
then the core receives C{RequestAbandoned} for its unanswered requests.

Source: DLedgerServer.handle*, DLedgerRpcNettyService.processRequest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred

from dledger.core.state.effects import Report
from dledger.core.state.inputs import (
    Input,
    Origin,
    PeerDisconnected,
    PeerIncompatible,
    RequestAbandoned,
    RequestReceived,
    StoreFailed,
)
from dledger.node.connections.door import Door
from dledger.node.connections.greeting import Greeting, KnownMembers
from dledger.node.connections.server import Note
from dledger.node.reporting.status import Counters, count
from dledger.node.requests.appends import AppendGate
from dledger.node.requests.machine_requests import MachineDesk
from dledger.node.requests.merging import Merged, merge
from dledger.node.requests.readers import ReaderDesk
from dledger.node.requests.seats import EndlessSeats, Seats
from dledger.node.requests.snapshots import SnapshotDesk
from dledger.node.run.reads import Reads
from dledger.values.errors import DLedgerError, StoreError
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError, IncompatibleError, WireError
from protocols.wire.ledger.codes import WIRE_VERSION, RequestCode
from protocols.wire.ledger.messages import (
    MESSAGES,
    AppendIfRequest,
    AppendOnceRequest,
    AppendRequest,
    GetRequest,
    LeadershipTransferRequest,
    MembershipRequest,
    MembershipResponse,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    QueryRequest,
    ReaderRequest,
    Request,
    Response,
    SkipRequest,
    SnapshotRequest,
    SubmitRequest,
    VoteRequest,
    VoteResponse,
)
from protocols.wire.ledger.producers import producer_problem

#: Requests that only a peer sends.
_PEERS_ONLY = frozenset({RequestCode.VOTE, RequestCode.HEART_BEAT, RequestCode.PUSH})


class CoreView(Protocol):
    """The part of the core needed here."""

    @property
    def leader_id(self) -> str | None:
        """Leader of the current term, if known."""

    @property
    def is_diverged(self) -> bool:
        """Whether this member and its leader cannot agree on the ledger."""

    @property
    def ledger_end_index(self) -> int:
        """Last index of this member's ledger, inclusive; -1 if it is empty."""

    @property
    def members(self) -> KnownMembers:
        """The members of the group."""

    def metadata(self, request: MetadataRequest) -> MetadataResponse:
        """The members and the leader."""


#: The origin of a request to the core: one request, or several merged ones.
_Asked = tuple[ServerConnection, Ticket | Merged]

#: As longest body: the member takes no appends of clients.
NO_APPENDS = -1


class Claim(Protocol):
    """Claims a connection for a peer, see L{dledger.node.connections.server.MemberServer.claim}."""

    def __call__(self, connection: ServerConnection, peer_id: str, *, is_binding: bool) -> bool:
        """@return: whether it is the peer's; if not, it was aborted, or its request was not binding."""


@attrs.frozen
class Told:
    """
    What METADATA tells about a member besides the core's facts.

    @ivar admin: C{host:port} of the HTTP administration; empty for none.
    @ivar health: reason why the member does not serve; empty if it serves.
    @ivar machine: its state machine as a text; empty for none.
    """

    admin: str
    health: str
    machine: str = ""


class Refusals:
    """Answers requests that are refused, for the router and for the parts that it routes to."""

    def __init__(self, core: CoreView, feed: Callable[..., None], counters: Counters) -> None:
        self._core = core
        self._feed = feed
        self._counters = counters

    def refuse(
        self, connection: ServerConnection, ticket: Ticket, request: Request, error: DLedgerError
    ) -> None:
        """Answer with a refusal: base fields of the request, the code, and the leader if known."""
        count(self._counters.refusals, error.code.name)
        connection.answer(ticket, self.refusal_of(request, error))
        if isinstance(error, StoreError):
            self._feed(StoreFailed(reason=str(error)))

    def refusal_of(self, request: Request, error: DLedgerError) -> Response:
        """The answer that carries C{error}."""
        response_class = MESSAGES[request.kind][1]
        refusal = response_class(
            code=error.code, group=request.group, remote_id=request.remote_id, local_id=request.local_id,
            leader_id=self._core.leader_id, term=request.term, wire_version=WIRE_VERSION,
        )
        if isinstance(refusal, MetadataResponse) and error.code is ResponseCode.TOO_MANY_CLIENTS:
            return attrs.evolve(refusal, health=str(error.facts.get("reason", "")))
        if isinstance(refusal, MetadataResponse) and error.code is ResponseCode.NOT_LEADER:
            # This member stops: it may be the last one of those that the client knows.
            return attrs.evolve(refusal, peers=self._core.members.membership.addresses)
        if isinstance(refusal, MembershipResponse):
            return attrs.evolve(refusal, reason=str(error.facts.get("reason", "")))
        return refusal


class RequestRouter:
    """
    Invariant: C{_questions} has the tokens that the core has not answered; C{_tokens} has those of
    each open connection.

    @ivar door: the rights of connections.
    """

    def __init__(
        self,
        *,
        self_id: str,
        group: str,
        body_bytes_max: int,
        core: CoreView,
        feed: Callable[..., None],
        is_running: Callable[[], bool],
        broken: Callable[[BaseException], None],
        report: Callable[[Report], None],
        next_token: Callable[[], int],
        counters: Counters,
        refusals: Refusals,
        appends: AppendGate,
        reads: Reads,
        desk: MachineDesk,
        reader_desk: ReaderDesk,
        snapshot_desk: SnapshotDesk,
        note: Note,
        greeting: Greeting,
        told: Callable[[], Told],
        greeted: Callable[[MetadataRequest], None],
    ) -> None:
        """
        @param told: what METADATA tells about this member besides the core's facts.
        @param greeted: called when a member has greeted, and may belong here.
        """
        self._greeting = greeting
        self._note = note
        self._broken = broken
        self._report = report
        self._self_id = self_id
        self._group = group
        self._greeted = greeted
        self._body_bytes_max = body_bytes_max
        self._core = core
        self._feed = feed
        self._is_running = is_running
        self._next_token = next_token
        self._counters = counters
        self._questions: dict[int, _Asked | Deferred[Response]] = {}
        self._tokens: dict[ServerConnection, set[int]] = {}
        self._refuse = refusals.refuse
        self.door = Door(group, refusals.refuse, note)
        self._appends = appends
        self._reads = reads
        self._desk = desk
        self._snapshot_desk = snapshot_desk
        self._claim: Claim = lambda connection, peer_id, *, is_binding: True
        self._vouches: Callable[[str], bool] = lambda peer_id: True
        self._seats: Seats = EndlessSeats()
        self._told = told
        #: What only clients ask, except L{AppendRequest}: that is the most frequent one.
        self._of_clients: dict[type[Request], Callable[..., None]] = {
            AppendIfRequest: self._append_if, AppendOnceRequest: self._append_once,
            SubmitRequest: self._submit, ReaderRequest: reader_desk.ask, SkipRequest: self._skip,
            GetRequest: self._read, PullRequest: self._read, QueryRequest: self._read,
        }

    def claim_with(self, claim: Claim, vouches: Callable[[str], bool], seats: Seats) -> None:
        """
        Set the functions that claim connections for peers, and that know which peers are present.

        @param seats: the places of clients.
        """
        self._claim, self._vouches, self._seats = claim, vouches, seats

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        answer, told = self._greeting.answer(request, self._core.metadata(request)), self._told()
        flags = self._snapshot_desk.wire_flags
        if flags:
            answer = attrs.evolve(answer, wire_version=answer.wire_version | flags)
        if not (told.admin or told.health or told.machine):
            return answer
        return attrs.evolve(answer, admin=told.admin, health=told.health, machine=told.machine)

    @property
    def unanswered(self) -> int:
        """Number of requests that the core has not answered."""
        return len(self._questions)

    # -- RequestSink --------------------------------------------------------------------------

    def connected(self, connection: ServerConnection) -> None:
        """See L{protocols.ledger.interfaces.RequestSink.connected}."""
        self._tokens[connection] = set()

    def requests_received(
        self, connection: ServerConnection, requests: list[tuple[Ticket, Request]]
    ) -> None:
        """See L{protocols.ledger.interfaces.RequestSink.requests_received}."""
        try:
            self._route(connection, requests)
        except Exception as error:
            # Otherwise Twisted would only drop the connection.
            self._broken(error)

    def _route(self, connection: ServerConnection, requests: list[tuple[Ticket, Request]]) -> None:
        self._counters.requests += len(requests)
        if self.door.is_guarded:
            requests = self.door.allowed(connection, requests)
            if not requests:
                return
        if connection.peer_id is None:
            self._counters.client_requests += len(requests)
        self_id, group, append_for = self._self_id, self._group, self._appends.append_for
        if not (connection.account.is_proven or self._is_settled(connection, requests)):
            return
        for_core: list[tuple[Ticket, Request]] = []
        is_running = self._is_running()
        for ticket, request in requests:
            if request.remote_id != self_id or request.group != group or not is_running:
                self._refuse_stranger(connection, ticket, request)
            elif isinstance(request, AppendRequest):
                if self._may_append(request.bodies):
                    append_for(connection, ticket, request.bodies)
                else:
                    self._refuse_append(connection, ticket, request, request.bodies)
            elif (answer := self._of_clients.get(type(request))) is not None:
                answer(connection, ticket, request)
            elif not self._admit(connection, request):
                return  # the connection was refused, and with it the rest of its requests
            elif isinstance(request, SnapshotRequest):
                self._snapshot_desk.answer(connection, ticket, request)
            elif isinstance(request, MetadataRequest):
                connection.answer(ticket, self._metadata(request))
                is_greeting = request.members and self._is_greeting(connection, request)
                if is_greeting and self._turned_away(connection, request):
                    return
            elif (refusal := self._refusal_for_core(connection, request)) is not None:
                self._refuse(connection, ticket, request, refusal)
            else:
                for_core.append((ticket, request))
        if for_core:
            self._ask_core(connection, for_core)

    def _is_settled(
        self, connection: ServerConnection, requests: list[tuple[Ticket, Request]]
    ) -> bool:
        """
        Give the connection of a newcomer its place, if it is one that knows this member.

        @return: whether its requests are heard; if not, they are answered, and it ends.
        """
        here = self._self_id, self._group
        first = next((one for _, one in requests if (one.remote_id, one.group) == here), None)
        if first is None or not self._is_running() or not self.door.is_known(connection):
            return True
        is_of_client = type(first) in self._of_clients or isinstance(first, AppendRequest)
        if not (is_of_client or self._seats.has_place(connection) or self._admit(connection, first)):
            return False
        reason = "" if connection.peer_id is not None else self._seats.no_place(connection)
        if not reason:
            connection.account.prove()
            return True
        for ticket, request in requests:
            refused = DLedgerError(ResponseCode.TOO_MANY_CLIENTS, reason=reason)
            self._refuse(connection, ticket, request, refused)
        connection.close()
        return False

    def _ask_core(self, connection: ServerConnection, asked: list[tuple[Ticket, Request]]) -> None:
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
        self.door.lost(connection)
        tokens = self._tokens.pop(connection, set())
        for token in tokens:
            del self._questions[token]
        self._reads.connection_lost(connection)
        if tokens:
            self._counters.requests_abandoned += len(tokens)
            # In the order of their arrival.
            self._feed(*[RequestAbandoned(token=token) for token in sorted(tokens)])
        if connection.peer_id is not None:
            self._feed(PeerDisconnected(peer_id=connection.peer_id))

    # -- requests -----------------------------------------------------------------------------

    def _speaks_for(self, connection: ServerConnection, peer_id: str, *, is_binding: bool) -> bool:
        """Whether the connection goes on: it is claimed for a member, or its request binds nobody."""
        rights = self.door.rights(connection)
        if rights.speak_for(peer_id):
            return self._claim(connection, peer_id, is_binding=is_binding) or connection.is_open
        reason = f"the certificate is of {rights.who or 'nobody'}"
        self._note("claim-refused", {"peer_id": peer_id, "address": connection.address, "reason": reason})
        connection.abort(f"not taken for {peer_id}: {reason}")
        return False

    def _refuse_stranger(self, connection: ServerConnection, ticket: Ticket, request: Request) -> None:
        if request.remote_id != self._self_id:
            code = ResponseCode.UNKNOWN_MEMBER
        elif request.group != self._group:
            code = ResponseCode.UNKNOWN_GROUP
        elif request.kind in _PEERS_ONLY:
            code = ResponseCode.ILLEGAL_MEMBER_STATE
        else:
            code = ResponseCode.NOT_LEADER
        self._refuse(connection, ticket, request, DLedgerError(code))

    def _append_if(self, connection: ServerConnection, ticket: Ticket, request: AppendIfRequest) -> None:
        bodies = () if request.body is None else (request.body,)
        if self._may_append(bodies):
            self._appends.append_if(connection, ticket, bodies, request.expected_end)
        else:
            self._refuse_append(connection, ticket, request, bodies)

    def _append_once(
        self, connection: ServerConnection, ticket: Ticket, request: AppendOnceRequest
    ) -> None:
        problem = producer_problem(request.producer, request.sequence)
        if problem:
            error = DLedgerError(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)
            self._refuse(connection, ticket, request, error)
        elif self._may_append(request.bodies):
            origin = Origin(request.producer, request.sequence)
            self._appends.append_once(connection, ticket, request.bodies, origin)
        else:
            self._refuse_append(connection, ticket, request, request.bodies)

    def _submit(self, connection: ServerConnection, ticket: Ticket, request: SubmitRequest) -> None:
        if request.command and not self._may_append((request.command,)):
            self._refuse_append(connection, ticket, request, (request.command,))
        else:
            self._desk.ask(connection, ticket, request)

    def _skip(self, connection: ServerConnection, ticket: Ticket, request: SkipRequest) -> None:
        refusal = self.door.refusal_of_change(connection, request)
        if refusal is not None:
            self._refuse(connection, ticket, request, refusal)
        else:
            self._desk.ask(connection, ticket, request)

    def _may_append(self, bodies: tuple[bytes, ...]) -> bool:
        if len(bodies) == 1:
            return len(bodies[0]) <= self._body_bytes_max
        return bool(bodies) and max(map(len, bodies)) <= self._body_bytes_max

    def _refuse_append(
        self, connection: ServerConnection, ticket: Ticket, request: Request, bodies: tuple[bytes, ...]
    ) -> None:
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

    def _read(
        self, connection: ServerConnection, ticket: Ticket, request: GetRequest | PullRequest | QueryRequest
    ) -> None:
        if self._core.is_diverged:
            self._refuse(connection, ticket, request, DLedgerError(ResponseCode.ILLEGAL_MEMBER_STATE))
        elif isinstance(request, QueryRequest):
            self._desk.ask(connection, ticket, request)
        elif isinstance(request, GetRequest) or ticket.is_native:
            self._reads.ask(connection, ticket, request)
        else:
            error = DLedgerError(ResponseCode.UNSUPPORTED, reason="PULL needs native frames")
            self._refuse(connection, ticket, request, error)

    def _admit(self, connection: ServerConnection, request: Request) -> bool:
        """Whether the connection may continue; a connection from a peer is claimed for it."""
        speaker = request.local_id
        if speaker is None and request.kind in _PEERS_ONLY:
            speaker = request.leader_id  # DLedger 0.2 names itself only there
        if speaker is not None and speaker != connection.peer_id and self._core.members.knows(speaker):
            is_binding = request.kind is not RequestCode.METADATA
            if not self._speaks_for(connection, speaker, is_binding=is_binding):
                return False
        named = self._named_by(request)
        if named is None or named == connection.peer_id or not self._core.members.knows(named):
            return True
        self._note("claim-refused", {"peer_id": named, "address": connection.address,
                                     "reason": f"the connection speaks for {connection.peer_id}"})
        connection.abort(f"{request.kind.name} in the name of {named}")
        return False

    def _is_greeting(self, connection: ServerConnection, request: MetadataRequest) -> bool:
        """Whether a member speaks for itself; not if another connection is taken for that member."""
        return connection.peer_id == request.local_id or not self._core.members.knows(request.local_id)

    def _turned_away(self, connection: ServerConnection, request: MetadataRequest) -> bool:
        """Whether the connection was ended, because the member that greets is of another group."""
        problem = self._greeting.problem_of_call(request)
        if problem:
            self._note("foreign-member", {"peer_id": request.local_id, "address": connection.address,
                                          "reason": problem})
            connection.close()
        else:
            self._greeted(request)
        return bool(problem)

    def _refusal_for_core(self, connection: ServerConnection, request: Request) -> DLedgerError | None:
        """
        Why the core does not hear a request: a binding one comes in the name of a member that is not present
        (L{Peers.vouches}), or its sender may not change the group.

        Otherwise whoever speaks for a member that is down could depose leaders, or seem to lead for ever.
        """
        named = self._named_by(request)
        if named is None:
            refusal = self.door.refusal_of_change(connection, request)
            if refusal is None and isinstance(request, MembershipRequest) and not request.is_dry:
                self._note("change-asked", {
                    "address": connection.address, "change": request.change, "member_id": request.member_id,
                    "member_address": request.address, "is_forced": request.is_forced,
                    "configuration": self._core.members.membership.index,
                })
            return refusal
        if (isinstance(request, VoteRequest) and request.pre_vote) or self._vouches(named):
            return None
        if self._core.members.knows(named):
            self._note("sender-absent", {"sender_id": named, "kind": request.kind.name,
                                         "address": connection.address})
        return DLedgerError(ResponseCode.ILLEGAL_MEMBER_STATE)

    def _named_by(self, request: Request) -> str | None:
        """The member in whose name a request is binding; None if it binds nobody."""
        if request.kind in _PEERS_ONLY:
            return request.leader_id
        if isinstance(request, LeadershipTransferRequest) and request.transfer_id != self._self_id:
            return request.transfer_id
        return None

    # -- answers ------------------------------------------------------------------------------

    def ask(self, request: Request) -> Deferred[Response]:
        """Ask the core for a local caller. Cancelling forgets the request."""
        token = self._next_token()

        def forget(_: Deferred[Response]) -> None:
            self._questions.pop(token, None)

        waiter: Deferred[Response] = Deferred(forget)
        self._questions[token] = waiter
        self._feed(RequestReceived(token=token, request=request))
        return waiter

    def reply(self, token: int, response: Response) -> None:
        """Pass on the core's answer; an unknown token is ignored."""
        asked = self._questions.pop(token, None)
        if asked is None:
            return
        if isinstance(response, VoteResponse):
            count(self._counters.votes, response.vote_result.name)
        if isinstance(asked, Deferred):
            asked.callback(response)
            return
        connection, whence = asked
        self._tokens[connection].discard(token)
        if response.code is not ResponseCode.SUCCESS:
            asked_times = len(whence.parts) if isinstance(whence, Merged) else 1
            count(self._counters.refusals, response.code.name, asked_times)
        if isinstance(whence, Merged):
            for ticket, answer in whence.answers(response):
                connection.answer(ticket, answer)
        else:
            connection.answer(whence, response)

    def stop(self) -> None:
        """The member has stopped: answer the requests that the core left unanswered."""
        questions, self._questions = self._questions, {}
        for asked in questions.values():
            if isinstance(asked, Deferred):
                error = DLedgerError(ResponseCode.ILLEGAL_MEMBER_STATE, reason="the member has stopped")
                asked.errback(error)
            else:
                connection, whence = asked
                self._tokens[connection].clear()
                tickets = [part[0] for part in whence.parts] if isinstance(whence, Merged) else [whence]
                for ticket in tickets:
                    connection.answer(ticket, MESSAGES[ticket.kind][1](
                        code=ResponseCode.ILLEGAL_MEMBER_STATE, group=self._group
                    ))
