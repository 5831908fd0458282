# -*- test-case-name: tests.client.test_conditions -*-
"""
Appends that expect an end of the log: one at a time, not through the queue of other appends.

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
from protocols.wire.ledger.messages import AppendIfRequest, AppendIfResponse


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
    deadline_s = clock.seconds() + timeout_s
    backoff = Backoff(rng=members.rng)
    while True:
        error, is_unknown, appended = await _attempt(
            members, find_leader, bodies[0], expected_end, min(answer_timeout_s, deadline_s - clock.seconds())
        )
        if appended is not None:
            return appended
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
    members: Members, find_leader: Callable[[], Awaitable[MemberLink]], body: bytes,
    expected_end: int, answer_timeout_s: float,
) -> tuple[DLedgerError | None, bool, Appended | None]:
    """@return: the error, or None; whether the body may be in the log nevertheless; the entry, or None."""
    try:
        leader = await find_leader()
    except DLedgerError as error:
        return error, False, None
    if not leader.takes_conditions:
        return DLedgerError(
            ResponseCode.UNSUPPORTED, member_id=leader.member_id,
            reason="the leader takes no expected_end: it is a Java member, or of an older version",
        ), False, None
    request = AppendIfRequest(
        group=members.group, remote_id=leader.member_id, body=body, expected_end=expected_end
    )
    try:
        answer = await leader.ask(request, max(0.01, answer_timeout_s))
    except RequestRefused as refused:
        return refused, False, None
    except RequestLost as lost:
        return DLedgerError(ResponseCode.NETWORK_ERROR, reason=str(lost)), True, None
    except DLedgerError as late:
        leader.abort("an append was not answered")
        return late, True, None
    assert isinstance(answer, AppendIfResponse)
    code = answer.code
    if code is ResponseCode.SUCCESS:
        return None, False, Appended(index=answer.index, term=answer.term, pos=answer.pos)
    facts: dict[str, object] = {"member_id": leader.member_id, "leader_id": answer.leader_id}
    if code is ResponseCode.CONFLICT:
        facts |= {"expected_end": expected_end, "end_index": answer.end_index}
    return DLedgerError(code, **facts), code not in PASSING and code not in FINAL, None
