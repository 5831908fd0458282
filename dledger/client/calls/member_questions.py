# -*- test-case-name: tests.client.test_client -*-
"""
Questions to the members that are asked again, also on another connection, until one answers or time is over.

Nothing is asked here that changes the log.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twisted.internet.defer import CancelledError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from dledger.base.timing import Backoff
from dledger.client.answers.errors import reported
from dledger.client.answers.values import MemberInfo, entries_of
from dledger.client.calls.changes import ASKED_AGAIN
from dledger.client.links.connection import MemberLink, RequestLost
from dledger.client.links.members import Members
from dledger.client.links.rivals import Rivals
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.messages import GetResponse, Request, Response


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
