# -*- test-case-name: tests.client.test_conditions -*-
"""
Appends that expect an end of the log, and others that go one at a time, not through the queue of appends.

Rule: as with other appends, a body is sent again only while it is certainly not in the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from dledger.base.append_refusals import FINAL, PASSING
from dledger.base.bodies import BytesLike, as_bodies, misfit, total_bytes
from dledger.base.errors import DLedgerError
from dledger.base.timing import Backoff
from dledger.client.appender import BODY_BYTES_MAX
from dledger.client.connection import MemberLink, RequestLost, RequestRefused
from dledger.client.errors import append_error
from dledger.client.members import Members
from dledger.client.values import Appended
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.ledger.messages import AppendIfRequest, AppendIfResponse, Request, Response

#: Named values of an error.
Facts = dict[str, object]


async def append_if(
    members: Members, find_leader: Callable[[], Awaitable[MemberLink]], body: BytesLike, expected_end: int, *,
    clock: IReactorTime, timeout_s: float, answer_timeout_s: float, is_closed: Callable[[], bool],
) -> Appended:
    """
    Append one body if the log ends at C{expected_end}; see L{dledger.client.client.LogClient.append}.

    @param find_leader: its connection; fails with L{DLedgerError} if none is found.
    @param is_closed: whether the client has been closed: nothing is sent again then.
    @raise AppendError: the body was not acknowledged.
    """
    bodies = as_bodies((body,))
    problem = misfit(bodies, total_bytes(bodies), BODY_BYTES_MAX)
    if not problem and expected_end < -1:
        problem = f"expected_end={expected_end}: write the last index of the log, or -1 for an empty log"
    if problem:
        raise append_error(ResponseCode.UNEXPECTED_ARGUMENT, is_unknown=False)(
            ResponseCode.UNEXPECTED_ARGUMENT, failed=1, reason=problem
        )

    def request_of(leader: MemberLink) -> Request:
        if leader.takes_conditions:
            return AppendIfRequest(
                group=members.group, remote_id=leader.member_id, body=bodies[0], expected_end=expected_end
            )
        raise DLedgerError(
            ResponseCode.UNSUPPORTED, member_id=leader.member_id,
            reason="the leader takes no expected_end: it is a Java member, or of an older version",
        )

    def facts_of(answer: Response) -> Facts:
        assert isinstance(answer, AppendIfResponse)
        if answer.code is not ResponseCode.CONFLICT:
            return {}
        return {"expected_end": expected_end, "end_index": answer.end_index}

    answer = await append_alone(
        members, find_leader, request_of, facts_of, clock=clock, timeout_s=timeout_s,
        answer_timeout_s=answer_timeout_s, is_closed=is_closed,
    )
    assert isinstance(answer, AppendIfResponse)
    return Appended(index=answer.index, term=answer.term, pos=answer.pos)


async def append_alone(
    members: Members, find_leader: Callable[[], Awaitable[MemberLink]],
    request_of: Callable[[MemberLink], Request], facts_of: Callable[[Response], Facts], *,
    clock: IReactorTime, timeout_s: float, answer_timeout_s: float, is_closed: Callable[[], bool],
) -> Response:
    """
    Ask the leader to append one body, again while that is certainly not in the log.

    @param find_leader, is_closed: as of L{append_if}.
    @param request_of: the request to a leader; raises L{DLedgerError} if that one does not take it.
    @param facts_of: facts of the error for an answer that is a refusal.
    @return: the answer, SUCCESS.
    @raise AppendError: the body was not acknowledged.
    """
    deadline_s = clock.seconds() + timeout_s
    backoff = Backoff(rng=members.rng)
    while True:
        answer_s = min(answer_timeout_s, deadline_s - clock.seconds())
        answer, error, is_unknown = await _attempt(find_leader, request_of, facts_of, answer_s)
        if answer is not None:
            return answer
        assert error is not None
        wait_s = backoff.next_s()
        is_passing = error.code in PASSING or error.code is ResponseCode.METADATA_ERROR
        is_over = is_closed() or clock.seconds() + wait_s >= deadline_s
        if is_unknown or not is_passing or is_over:
            kind, failed = append_error(error.code, is_unknown=is_unknown), 0 if is_unknown else 1
            facts: dict[str, Any] = error.facts
            raise kind(error.code, failed=failed, unknown=1 - failed, **facts)
        members.leader_id = None
        await deferLater(clock, wait_s)


async def _attempt(
    find_leader: Callable[[], Awaitable[MemberLink]], request_of: Callable[[MemberLink], Request],
    facts_of: Callable[[Response], Facts], answer_timeout_s: float,
) -> tuple[Response | None, DLedgerError | None, bool]:
    """@return: the answer, or None; the error, or None; whether the body may be in the log nevertheless."""
    try:
        leader = await find_leader()
        request = request_of(leader)
    except DLedgerError as error:
        return None, error, False
    try:
        answer: Response = await leader.ask(request, max(0.01, answer_timeout_s))
    except RequestRefused as refused:
        return None, refused, False
    except RequestLost as lost:
        return None, DLedgerError(ResponseCode.NETWORK_ERROR, reason=str(lost)), True
    except DLedgerError as late:
        leader.abort("an append was not answered")
        return None, late, True
    code = answer.code
    if code is ResponseCode.SUCCESS:
        return answer, None, False
    facts: Facts = {"member_id": leader.member_id, "leader_id": answer.leader_id, **facts_of(answer)}
    return None, DLedgerError(code, **facts), code not in PASSING and code not in FINAL
