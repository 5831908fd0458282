# -*- test-case-name: tests.client.test_machines -*-
"""
Queries to the state machine of a group.

Rule: a query changes nothing: it is asked again until the deadline. With a bound on the age of the state, any
member is asked first, then the leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from dledger.base.sending.bodies import BytesLike, as_bodies, misfit, total_bytes
from dledger.base.timing import Backoff
from dledger.client.answers.errors import failure_of
from dledger.client.calls.command_calls import check_machine
from dledger.client.calls.lone_appends import BODY_BYTES_MAX
from dledger.client.links.connection import MemberLink, RequestLost
from dledger.client.links.members import Members
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import QueryRequest, QueryResponse
from protocols.wire.ledger.messages import Response

#: Finds a connection; fails with L{DLedgerError} if there is none.
FindMember = Callable[[], Awaitable[MemberLink]]
#: A query that fails with one of these codes is asked again.
_PASSING = frozenset({
    ResponseCode.TIMEOUT, ResponseCode.NETWORK_ERROR, ResponseCode.METADATA_ERROR, ResponseCode.NOT_LEADER,
    ResponseCode.TERM_CHANGED, ResponseCode.LEADER_PENDING_FULL, ResponseCode.LEADER_NOT_READY,
    ResponseCode.LEADER_TRANSFERRING, ResponseCode.FALL_BEHIND_TOO_MUCH, ResponseCode.TOO_MANY_CLIENTS,
})
#: Seconds: a query with a higher bound has none.
MAX_AGE_S = 1e6


async def query_machine(
    members: Members, find_leader: FindMember, find_any: FindMember, query: BytesLike,
    max_age_s: float | None, *, clock: IReactorTime, timeout_s: float, answer_timeout_s: float,
    is_closed: Callable[[], bool],
) -> bytes:
    """
    Ask the machine; see L{dledger.client.client.LogClient.query}.

    @param find_any: finds any member.
    @raise DLedgerError: no member has answered.
    """
    (body,) = bodies = as_bodies((query,))
    problem = misfit(bodies, total_bytes(bodies), BODY_BYTES_MAX)
    if not problem and max_age_s is not None and not 0 <= max_age_s <= MAX_AGE_S:
        problem = f"max_age={max_age_s}: write seconds, from 0 to {MAX_AGE_S:g}"
    if problem:
        raise failure_of(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)
    deadline_s = clock.seconds() + timeout_s
    backoff = Backoff(rng=members.rng)
    find = find_leader if max_age_s is None else find_any
    while True:
        member: MemberLink | None = None
        try:
            member = await find()
            check_machine(member)
            answer: Response = await member.ask(QueryRequest(
                group=members.group, remote_id=member.member_id, query=body,
                max_age_ms=-1 if max_age_s is None else int(max_age_s * 1000),
            ), max(0.01, min(answer_timeout_s, deadline_s - clock.seconds())))
            assert isinstance(answer, QueryResponse)
            if answer.code is ResponseCode.SUCCESS:
                return answer.result or b""
            error = DLedgerError(answer.code, reason=answer.reason, member_id=member.member_id)
        except RequestLost as lost:
            error = DLedgerError(ResponseCode.NETWORK_ERROR, reason=str(lost))
        except DLedgerError as refused:
            error = refused
            if refused.code is ResponseCode.TIMEOUT and member is not None:
                member.abort("a query was not answered")
        if find is not find_leader:
            find = find_leader  # a member that cannot say, or has no machine: the leader may have one
            continue
        members.leader_id = None
        wait_s = backoff.next_s()
        if error.code not in _PASSING or is_closed() or clock.seconds() + wait_s >= deadline_s:
            raise failure_of(error.code, **error.facts)
        await deferLater(clock, wait_s)
