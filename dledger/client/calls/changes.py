# -*- test-case-name: tests.client.test_changes -*-
"""
Changes of the group: of its leader and of its members.

Rule: a change of the members that is in force is not a change, so it is asked for again, also when its
outcome is unknown. If the time is over then, the error says that it may be in force, whatever the last answer
was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from dledger.base.timing import Backoff
from dledger.client.answers.errors import UnknownChange, failure_of, reported
from dledger.client.answers.values import MemberInfo
from dledger.client.links.connection import MemberLink, RequestLost, RequestRefused
from dledger.client.links.members import Members
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import (
    LeadershipTransferRequest,
    MembershipRequest,
    MembershipResponse,
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
