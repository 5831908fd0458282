# -*- test-case-name: tests.client.test_client,tests.client.test_changes,tests.client.test_chain_marks -*-
"""
Questions to the members, and changes of the group, that are asked again, also on another connection, until
one answers or time is over.

Rule: a change of the members that is in force is not a change, so it is asked for again, also when its
outcome is unknown. If the time is over then, the error says that it may be in force, whatever the last answer
was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from dledger.base.timing import Backoff, Gathering
from dledger.client.connection import MemberLink, RequestLost, RequestRefused
from dledger.client.errors import UnknownChange, failure_of, reported
from dledger.client.members import Members
from dledger.client.rivals import Rivals
from dledger.client.values import ChainMark, MemberInfo, entries_of
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, decode_header
from protocols.wire.ledger.messages import (
    GetRequest,
    GetResponse,
    LeadershipTransferRequest,
    MembershipRequest,
    MembershipResponse,
    Request,
    Response,
)

#: A read or a change that fails with one of these codes is asked for again.
ASKED_AGAIN = frozenset({
    ResponseCode.TIMEOUT, ResponseCode.NETWORK_ERROR, ResponseCode.METADATA_ERROR, ResponseCode.NOT_LEADER,
    ResponseCode.TERM_CHANGED, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, ResponseCode.LEADER_PENDING_FULL,
    ResponseCode.LEADER_NOT_READY, ResponseCode.LEADER_TRANSFERRING, ResponseCode.TOO_MANY_CLIENTS,
})
#: Answers of a leader that has written the change.
_WRITTEN = frozenset({ResponseCode.TERM_CHANGED, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT})
_TRANSFER_TIMEOUT_S = 10.0


@attrs.frozen(kw_only=True)
class GroupChanges:
    """
    The changes that one client asks for.

    @ivar find_leader: its connection; fails with L{DLedgerError} if none is found.
    @ivar leader_info: its status; fails if no leader answers in time.
    """

    members: Members
    find_leader: Callable[[], Awaitable[MemberLink]]
    leader_info: Callable[[], Awaitable[MemberInfo]]
    clock: IReactorTime
    timeout_s: float
    answer_timeout_s: float

    async def transfer(self, to: str, term: int | None) -> int:
        """
        See L{dledger.client.client.LogClient.transfer}. A leader that has taken over a moment ago, or hands
        over already, refuses it for some seconds: it is asked again meanwhile.
        """
        deadline_s = self.clock.seconds() + self.timeout_s
        backoff = Backoff(rng=self.members.rng)
        while True:
            try:
                return await self._hand_over(to, term)
            except DLedgerError as error:
                wait_s = backoff.next_s()
                is_late = self.clock.seconds() + wait_s >= deadline_s
                if error.code is not ResponseCode.LEADER_TRANSFERRING or is_late:
                    raise
            await deferLater(self.clock, wait_s)

    async def _hand_over(self, to: str, term: int | None) -> int:
        if to not in self.members.addresses:
            await self.members.ask_all(2.0)
        if to not in self.members.addresses:
            raise DLedgerError(
                ResponseCode.UNKNOWN_MEMBER,
                reason=f"{to!r} is not a member; members are {', '.join(sorted(self.members.addresses))}",
            )
        info = await self.leader_info()
        if info.member_id == to:
            return info.term
        if term is None:
            term = info.term
        if term < 0 and info.wire_version < 1:  # a member of ours accepts -1 for its current term
            raise DLedgerError(
                ResponseCode.UNEXPECTED_ARGUMENT,
                reason=f"leader {info.member_id} does not report its term (a Java member): name the term",
            )
        leader = await self.find_leader()
        request = LeadershipTransferRequest(
            group=self.members.group, remote_id=leader.member_id, leader_id=leader.member_id, term=term,
            transfer_id=leader.member_id, transferee_id=to,
        )
        self.members.leader_id = None
        answer: Response
        try:
            answer = await leader.ask(request, _TRANSFER_TIMEOUT_S)
        except RequestLost as lost:
            raise failure_of(ResponseCode.NETWORK_ERROR, reason=str(lost)) from None
        if answer.code is ResponseCode.FORBIDDEN:
            raise failure_of(
                answer.code, member_id=leader.member_id, transferee_id=to,
                reason=f"{leader.member_id} takes changes of the group only from those with the role admin; "
                "without TLS and tokens, from its own machine's loopback interface and from the hosts in its "
                "option change_hosts",
            )
        if answer.code is ResponseCode.LEADER_TRANSFERRING:
            raise failure_of(
                answer.code, member_id=leader.member_id, transferee_id=to,
                reason=f"{leader.member_id} hands over now, or has tried to, or has taken over, some seconds "
                "ago: ask again later",
            )
        if answer.code is not ResponseCode.SUCCESS:
            raise failure_of(answer.code, member_id=leader.member_id, transferee_id=to)
        return answer.term

    async def change(self, request: MembershipRequest) -> MembershipResponse:
        """See L{dledger.client.client.LogClient.change_members}; the leader's id is filled in here."""
        deadline_s = self.clock.seconds() + self.timeout_s
        backoff, may_be_made = Backoff(rng=self.members.rng), False
        while True:
            answer, error, is_sent = await self._attempt(request)
            if answer is not None:
                return answer
            assert error is not None
            may_be_made = may_be_made or (is_sent and not request.is_dry)
            self.members.leader_id = None
            wait_s = backoff.next_s()
            if error.code not in ASKED_AGAIN or self.clock.seconds() + wait_s >= deadline_s:
                if may_be_made:
                    raise UnknownChange(error.code, **error.facts)
                raise reported(error)
            await deferLater(self.clock, wait_s)

    async def _attempt(
        self, request: MembershipRequest
    ) -> tuple[MembershipResponse | None, DLedgerError | None, bool]:
        """@return: the answer, SUCCESS, or None; the error, or None; whether the change may be written."""
        try:
            leader = await self.find_leader()
        except DLedgerError as error:
            return None, error, False
        try:
            answer: Response = await leader.ask(
                attrs.evolve(request, remote_id=leader.member_id), self.answer_timeout_s
            )
        except RequestRefused as refused:
            return None, refused, False
        except RequestLost as lost:
            return None, DLedgerError(ResponseCode.NETWORK_ERROR, reason=str(lost)), True
        except DLedgerError as late:
            return None, late, True
        if isinstance(answer, MembershipResponse) and answer.code is ResponseCode.SUCCESS:
            return answer, None, False
        reason = getattr(answer, "reason", "")
        return None, DLedgerError(answer.code, reason=reason), answer.code in _WRITTEN


class MemberQuestions:
    """Asks members, and asks again after failures, until one answers or the time of the question is over."""

    def __init__(
        self, members: Members, rivals: Rivals, clock: IReactorTime, timeout_s: float,
        is_closed: Callable[[], bool],
    ) -> None:
        """
        @param timeout_s: seconds in which a question has an outcome.
        @param is_closed: whether the client is closed: then nothing is asked again.
        """
        self._members = members
        self._rivals = rivals
        self._clock = clock
        self._timeout_s = timeout_s
        self._is_closed = is_closed

    async def ask(
        self, request_for: Callable[[str], Request], answer_timeout_s: float, *, at_leader: bool
    ) -> Response:
        """Ask until a member answers SUCCESS or a final refusal, or the time is over."""
        deadline_s = self._clock.seconds() + self._timeout_s
        backoff = Backoff(rng=self._members.rng)
        error: DLedgerError
        while True:
            connection: MemberLink | None = None
            try:
                connection = await (self.leader() if at_leader else self.any_member())
                self._members.check_group(connection)
                left_s = deadline_s - self._clock.seconds()
                ask = partial(self._rivals.ask, connection) if at_leader else connection.ask
                answer = await ask(
                    request_for(connection.member_id), max(0.01, min(answer_timeout_s, left_s))
                )
                if answer.code is ResponseCode.SUCCESS:
                    return _checked(answer)
                error = DLedgerError(answer.code, member_id=connection.member_id, leader_id=answer.leader_id)
                if answer.code is ResponseCode.NOT_LEADER:
                    at_leader = True  # a Java follower serves no reads
                    self._members.leader_id = None
                    if answer.leader_id is not None and await self._members.leader(answer.leader_id):
                        if not backoff.attempts:
                            backoff.next_s()
                            continue
            except (RequestLost, WireError) as lost:
                error = DLedgerError(ResponseCode.NETWORK_ERROR, reason=str(lost))
                if connection is not None:
                    connection.abort(str(lost))
            except DLedgerError as refused:
                error = refused
                if refused.code is ResponseCode.TIMEOUT and connection is not None:
                    connection.abort("a read was not answered")
            if error.code not in ASKED_AGAIN:
                raise error
            wait_s = backoff.next_s()
            if self._is_closed() or self._clock.seconds() + wait_s >= deadline_s:
                raise error
            await deferLater(self._clock, wait_s)

    async def leader(self) -> MemberLink:
        """A connection to the leader. @raise DLedgerError: METADATA_ERROR: none is found."""
        leader_id = self._members.leader_id
        leader = self._members.connected(leader_id) if leader_id is not None else None
        if leader is None:
            leader = await self._members.leader(leader_id)
        if leader is None:
            problems = "; ".join(f"{who}: {why}" for who, why in sorted(self._members.problems.items()))
            raise DLedgerError(
                ResponseCode.METADATA_ERROR, reason="no leader found" + (f" ({problems})" if problems else "")
            )
        return leader

    async def any_member(self) -> MemberLink:
        """A connection to a member, to one that follows if there is a choice."""
        member_ids = list(self._members.addresses)
        self._members.rng.shuffle(member_ids)
        for member_id in member_ids:
            connection = self._members.connected(member_id)
            if connection is not None and member_id != self._members.leader_id:
                return connection
        for member_id in member_ids:
            try:
                return await self._members.connection(member_id)
            except CancelledError:
                raise
            except Exception:
                continue  # noted in problems
        return await self.leader()

    async def leader_info(self) -> MemberInfo:
        """The own status of the leader. @raise DLedgerError: no leader has answered in time."""
        deadline_s = self._clock.seconds() + self._timeout_s
        backoff = Backoff(rng=self._members.rng)
        while True:
            try:
                leader = await self.leader()
                answer = await self._members.ask(leader.member_id)
                if answer.leader_id == leader.member_id:
                    return self._members.info(leader.member_id, answer)
                self._members.leader_id = None
                error = DLedgerError(ResponseCode.METADATA_ERROR, reason="no leader found")
            except DLedgerError as refused:
                error = refused
            except RequestLost as lost:
                error = DLedgerError(ResponseCode.NETWORK_ERROR, reason=str(lost))
            wait_s = backoff.next_s()
            if error.code not in ASKED_AGAIN or self._clock.seconds() + wait_s >= deadline_s:
                raise reported(error)
            await deferLater(self._clock, wait_s)


def _checked(answer: Response) -> Response:
    if isinstance(answer, GetResponse) and answer.entries is not None:
        entries = entries_of(answer.entries)
        if len(entries) != 1:
            raise WireError(f"GET was answered with {len(entries)} entries")
    return answer


async def ask_chain_marks(
    members: Members, clock: IReactorTime, deadline_s: float
) -> tuple[ChainMark, ...]:
    """
    The marks of all members, in order of ids, at the highest index that all who answer know to be committed.

    @param deadline_s: seconds for each of the two questions.
    """
    infos = await members.ask_all(deadline_s)
    index = min((info.committed_index for info in infos if not info.problem), default=-1)
    begin = max((info.begin_index for info in infos if not info.problem), default=-1)
    marks = {
        info.member_id: ChainMark(
            member_id=info.member_id, index=max(index, -1), problem=info.problem,
            is_leader=info.role == "leader",
        )
        for info in infos
    }
    if index < max(begin, 0):
        return tuple(marks.values())
    asked = {
        member_id: Deferred.fromCoroutine(_ask_mark(members, mark, deadline_s))
        for member_id, mark in marks.items() if not mark.problem
    }
    answers = await Gathering(clock, asked, deadline_s=2 * deadline_s).outcome
    return tuple(_answered(mark, answers.get(member_id), member_id in asked)
                 for member_id, mark in marks.items())


def _answered(mark: ChainMark, answer: ChainMark | Failure | None, was_asked: bool) -> ChainMark:
    if not was_asked:
        return mark
    if isinstance(answer, ChainMark):
        return answer
    why = "no answer in time" if answer is None else answer.getErrorMessage()
    return attrs.evolve(mark, problem=why)


async def _ask_mark(members: Members, mark: ChainMark, deadline_s: float) -> ChainMark:
    connection = await members.connection(mark.member_id)
    answer = await connection.ask(
        GetRequest(group=members.group, remote_id=mark.member_id, begin_index=mark.index,
                   consistency=Consistency.COMMITTED),
        deadline_s,
    )
    assert isinstance(answer, GetResponse)
    if answer.code is not ResponseCode.SUCCESS or answer.entries is None:
        return attrs.evolve(mark, problem=f"entry {mark.index} was answered {answer.code.name}")
    if len(answer.entries.records) < ENTRY_HEADER_SIZE or answer.entries.first_index != mark.index:
        raise WireError(f"asked for entry {mark.index}, received another record")
    header = decode_header(answer.entries.records[:ENTRY_HEADER_SIZE])
    return attrs.evolve(mark, term=header.term, chain_crc=header.chain_crc)
