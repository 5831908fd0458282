# -*- test-case-name: tests.node.test_appends -*-
"""
Merges the appends of one reactor turn, from all connections and local callers, into one input of the
core, and routes its answers back to the callers.

Consecutive appends share a proposal, so that a thousand small requests cost the core as little per
entry as one big request. They also share its outcome, so a proposal is kept small: a refusal hits few
callers.

An append to an idle member does not wait for the end of the turn: it is proposed as soon as the bytes
read from its connection have been handled.

Rule 1: every caller is answered exactly once; successful callers in log order.
Rule 2: an append not yet proposed when the member stops is certainly not in the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import attrs
from twisted.internet.defer import Deferred

from dledger.core.state.effects import AnswerAppend
from dledger.core.state.inputs import AppendProposed, Origin, Proposal
from dledger.node.reporting.status import Counters, count
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import AppendIfResponse, AppendOnceResponse, AppendResponse

#: A proposal is closed when it has this many bodies, or bodies of this many bytes in total.
SHARED_COUNT_MAX = 64
SHARED_BYTES_MAX = 256 * 1024

#: When a turn has gathered this many bytes of bodies, they are proposed before it ends.
TURN_BYTES_MAX = 4 * 1024 * 1024


@attrs.frozen(kw_only=True)
class AppendResult:
    """
    The result of a local append: its bodies are committed.

    @ivar index: index of the first entry.
    @ivar count: number of entries; their indexes are consecutive.
    @ivar term: term in which they were written.
    @ivar pos: stream offset in bytes of the first entry's record.
    @ivar is_repeated: a producer's body that was in the log before.
    """

    index: int
    count: int
    term: int
    pos: int
    is_repeated: bool = False


class _Claim(NamedTuple):
    """
    A caller, and its part of a proposal.

    @ivar connection, ticket: of a request; None for a local caller.
    @ivar waiter: of a local caller; None for a request.
    @ivar bodies, size: number of its bodies, and their total bytes.
    """

    connection: ServerConnection | None
    ticket: Ticket | None
    waiter: Deferred[AppendResult] | None
    bodies: int
    size: int


def _answer_class(ticket: Ticket) -> type[AppendResponse]:
    answer_class = MESSAGES[ticket.kind][1]
    assert issubclass(answer_class, AppendResponse)
    return answer_class


class AppendGate:
    """
    Invariant: a claim is in C{_claims} (not proposed yet), in C{_pending} (proposed), or answered.

    @param propose: feeds the core.
    @param seconds: a monotonic clock; asked once for each turn and each proposal, never for each append.
    """

    def __init__(
        self,
        *,
        group: str,
        ledger: FileStore,
        propose: Callable[[AppendProposed], None],
        turn: Turn,
        next_token: Callable[[], int],
        seconds: Callable[[], float],
        counters: Counters,
        shared_count_max: int = SHARED_COUNT_MAX,
    ) -> None:
        self._group = group
        self._ledger = ledger
        self._propose = propose
        self._at_end_of_turn = turn.work
        self._at_end_of_read = turn.soon
        self._next_token = next_token
        self._seconds = seconds
        self._counters = counters
        self._shared_count_max = shared_count_max
        self._is_end_asked = False
        self._turn_bytes = 0
        self._proposals: list[Proposal] = []
        self._bodies: list[bytes] = []
        self._bytes = 0
        self._claims: list[_Claim] = []
        self._pending: dict[int, list[_Claim]] = {}
        self._proposed_s: dict[int, float] = {}

    def append_for(
        self, connection: ServerConnection | None, ticket: Ticket | None, bodies: tuple[bytes, ...],
        waiter: Deferred[AppendResult] | None = None,
    ) -> None:
        """Append for a request on a connection. @param waiter: of a local caller."""
        if len(bodies) == 1:
            size = len(bodies[0])
            self._bodies.append(bodies[0])
        else:
            size = sum(map(len, bodies))
            self._bodies += bodies
        self._claims.append(_Claim(connection, ticket, waiter, len(bodies), size))
        self._bytes += size
        if len(self._bodies) >= self._shared_count_max or self._bytes >= SHARED_BYTES_MAX:
            self._seal()
            if self._turn_bytes >= TURN_BYTES_MAX:
                self._end_of_turn()
        if not self._is_end_asked:
            self._is_end_asked = True
            (self._at_end_of_turn if self._pending else self._at_end_of_read)(self._end_of_turn)

    def append_if(
        self, connection: ServerConnection, ticket: Ticket, bodies: tuple[bytes, ...], expected_end: int
    ) -> None:
        """Append for a request on a connection, if the log ends at C{expected_end}."""
        self._propose_alone(connection, ticket, bodies, expected_end, None)

    def append_once(
        self, connection: ServerConnection, ticket: Ticket, bodies: tuple[bytes, ...], origin: Origin
    ) -> None:
        """Append for a request on a connection, unless the log has the bodies."""
        self._propose_alone(connection, ticket, bodies, None, origin)

    def append_command(self, body: bytes, origin: Origin | None) -> Deferred[AppendResult]:
        """
        Append one body for a local caller, in a proposal of its own: it is answered in the step that commits
        it, before anybody has read it from the log. Cancelling stops the wait, not the append.

        @param origin: unless the log has it.
        """
        waiter: Deferred[AppendResult] = Deferred(lambda _: None)
        self._propose_alone(None, None, (body,), None, origin, waiter)
        return waiter

    def _propose_alone(
        self, connection: ServerConnection | None, ticket: Ticket | None, bodies: tuple[bytes, ...],
        expected_end: int | None, origin: Origin | None, waiter: Deferred[AppendResult] | None = None,
    ) -> None:
        self._ask_end()
        if self._claims:
            self._seal()
        self._bodies.extend(bodies)
        self._bytes = sum(map(len, bodies))
        self._claims.append(_Claim(connection, ticket, waiter, len(bodies), self._bytes))
        self._seal(expected_end, origin)
        if self._turn_bytes >= TURN_BYTES_MAX:
            self._end_of_turn()

    def append(self, bodies: tuple[bytes, ...]) -> Deferred[AppendResult]:
        """Append for a local caller. Cancelling stops the wait, not the append."""
        waiter: Deferred[AppendResult] = Deferred(lambda _: None)
        self.append_for(None, None, bodies, waiter)
        return waiter

    def append_own(self, channel: int, body: bytes) -> Deferred[AppendResult]:
        """
        Append one of the log's own entries, alone in its write. Cancelling stops the wait, not the append.
        """
        self._end_of_turn()
        waiter: Deferred[AppendResult] = Deferred(lambda _: None)
        token = self._next_token()
        self._pending[token] = [_Claim(None, None, waiter, 1, len(body))]
        self._propose(AppendProposed((Proposal(token=token, bodies=(body,), channel=channel),)))
        return waiter

    def _ask_end(self) -> None:
        if not self._is_end_asked:
            self._is_end_asked = True
            (self._at_end_of_turn if self._pending else self._at_end_of_read)(self._end_of_turn)

    def _seal(self, expected_end: int | None = None, origin: Origin | None = None) -> None:
        """Close the open proposal."""
        token = self._next_token()
        self._proposals.append(Proposal(
            token=token, bodies=tuple(self._bodies), requests=len(self._claims), expected_end=expected_end,
            origin=origin,
        ))
        self._pending[token] = self._claims
        self._turn_bytes += self._bytes
        self._bodies = []
        self._claims = []
        self._bytes = 0

    def _end_of_turn(self) -> None:
        self._is_end_asked = False
        if self._bodies or self._claims:
            self._seal()
        if self._proposals:
            proposals, self._proposals, self._turn_bytes = self._proposals, [], 0
            now_s, bodies = self._seconds(), 0
            for proposal in proposals:
                self._proposed_s[proposal.token] = now_s
                bodies += len(proposal.bodies)
            self._counters.batches.observe(bodies)
            self._propose(AppendProposed(tuple(proposals)))

    def answered(self, answer: AnswerAppend) -> None:
        """The core's answer to one proposal."""
        claims = self._pending.pop(answer.token, None)
        proposed_s = self._proposed_s.pop(answer.token, None)
        if claims is None:
            return
        if answer.is_repeated:
            self._notify_once(answer, claims[0])
        elif answer.code is ResponseCode.SUCCESS:
            if proposed_s is not None:
                self._counters.append_s.observe(self._seconds() - proposed_s)
            ticket = claims[0].ticket
            if ticket is not None and ticket.kind is RequestCode.APPEND_ONCE:
                self._notify_once(answer, claims[0])
            else:
                self._notify_committed(answer, claims)
        else:
            count(self._counters.refusals, answer.code.name, len(claims))
            self._notify_failed(
                claims, answer.code, term=answer.term, index=answer.first_index, leader_id=answer.leader_id,
                end_index=answer.end_index, last_sequence=answer.last_sequence,
            )

    def _notify_once(self, answer: AnswerAppend, claim: _Claim) -> None:
        """Inform a producer where its bodies are, or the first ones of them."""
        if not answer.is_repeated:
            self._counters.appends += answer.count
            self._counters.append_bytes += claim.size
        if claim.connection is None:
            if claim.waiter is not None and not claim.waiter.called:
                claim.waiter.callback(AppendResult(
                    index=answer.first_index, count=answer.count, term=answer.term, pos=answer.pos,
                    is_repeated=answer.is_repeated,
                ))
            return
        assert claim.ticket is not None
        claim.connection.answer(claim.ticket, AppendOnceResponse(
            group=self._group, leader_id=answer.leader_id, term=answer.term, index=answer.first_index,
            pos=answer.pos, count=answer.count, is_repeated=answer.is_repeated,
        ))

    def _notify_committed(self, answer: AnswerAppend, claims: list[_Claim]) -> None:
        index, term, pos = answer.first_index, answer.term, answer.pos
        self._counters.appends += answer.count
        group, leader_id = self._group, answer.leader_id
        is_dense = len(claims) == 1 or self._is_dense(answer, claims)
        for connection, ticket, waiter, bodies, size in claims:
            if not is_dense:
                pos = self._ledger.position_of(index)
            self._counters.append_bytes += size
            if connection is not None:
                assert ticket is not None
                if ticket.is_native:
                    connection.answer_appended(ticket, term, index, pos, bodies)
                else:
                    answer_class = _answer_class(ticket)
                    connection.answer(ticket, answer_class(
                        group=group, leader_id=leader_id, term=term, index=index, pos=pos
                    ))
            elif waiter is not None and not waiter.called:
                waiter.callback(AppendResult(index=index, count=bodies, term=term, pos=pos))
            index += bodies
            pos += size + ENTRY_HEADER_SIZE * bodies

    def _is_dense(self, answer: AnswerAppend, claims: list[_Claim]) -> bool:
        """
        Whether the positions of all claims follow from their sizes. A blank at the end of a file shifts all
        later records. If arithmetic gives the right position for the last claim, there is no blank in
        between, and the positions before it are right too.
        """
        span = sum([claim.size + ENTRY_HEADER_SIZE * claim.bodies for claim in claims[:-1]])
        last_index = answer.first_index + answer.count - claims[-1].bodies
        return self._ledger.position_of(last_index) == answer.pos + span

    def _notify_failed(
        self, claims: list[_Claim], code: ResponseCode, *, term: int, index: int, leader_id: str | None,
        end_index: int = -2, last_sequence: int = -1,
    ) -> None:
        for connection, ticket, waiter, bodies, _ in claims:
            if connection is not None:
                assert ticket is not None
                answer = _answer_class(ticket)(
                    code=code, group=self._group, leader_id=leader_id, term=term, index=index, count=bodies
                )
                if isinstance(answer, AppendIfResponse):
                    answer = attrs.evolve(answer, end_index=end_index)
                elif isinstance(answer, AppendOnceResponse):
                    answer = attrs.evolve(answer, last_sequence=last_sequence)
                connection.answer(ticket, answer)
            elif waiter is not None and not waiter.called:
                reported = {"last_sequence": last_sequence} if last_sequence >= 0 else {}
                waiter.errback(DLedgerError(code, leader_id=leader_id, term=term, index=index, **reported))
            if index >= 0:
                index += bodies

    def stop(self) -> None:
        """The member has stopped: fail all appends that still wait."""
        unproposed = [*self._claims]
        for proposal in self._proposals:
            unproposed = self._pending.pop(proposal.token, []) + unproposed
        self._claims = []
        self._bodies = []
        self._proposals = []
        self._notify_failed(unproposed, ResponseCode.NOT_LEADER, term=-1, index=-1, leader_id=None)
        self._proposed_s.clear()
        pending, self._pending = self._pending, {}
        for claims in pending.values():
            self._notify_failed(claims, ResponseCode.TERM_CHANGED, term=-1, index=-1, leader_id=None)
