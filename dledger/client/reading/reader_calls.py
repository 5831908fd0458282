# -*- test-case-name: tests.client.test_readers -*-
"""
The requests of named readers to the leader of their group.

Rule: every request can be sent again: the leader answers a repeated one as the first.
"""

from __future__ import annotations

import attrs
from twisted.internet.task import deferLater

from dledger.base.timing import Backoff
from dledger.client.answers.errors import failure_of
from dledger.client.calls.lone_appends import LoneAppends
from dledger.client.links.connection import MemberLink, RequestLost
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import ReaderRequest, ReaderResponse, Response
from protocols.wire.ledger.readers import ReaderInfo, decode_readers, reader_name_problem

#: More readers than a group has room for.
READERS_MAX = 50_000
#: A request that fails with one of these codes is sent again until the deadline.
_PASSING = frozenset({
    ResponseCode.TIMEOUT, ResponseCode.NETWORK_ERROR, ResponseCode.METADATA_ERROR, ResponseCode.NOT_LEADER,
    ResponseCode.TERM_CHANGED, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, ResponseCode.LEADER_PENDING_FULL,
    ResponseCode.LEADER_NOT_READY, ResponseCode.LEADER_TRANSFERRING, ResponseCode.DISK_FULL,
    ResponseCode.TOO_MANY_CLIENTS,
})


@attrs.frozen
class ReaderCalls:
    """
    The requests of the readers of one client.

    @ivar client: how that one finds its leader, and how long it waits.
    """

    client: LoneAppends

    async def ask(self, request: ReaderRequest) -> ReaderResponse:
        """
        Ask the leader until the deadline.

        @raise DLedgerError: it has refused, or nobody has answered; the change may have been made then.
        """
        client, clock, members = self.client, self.client.clock, self.client.members
        deadline_s = clock.seconds() + client.timeout_s
        backoff, has_looked_again = Backoff(rng=members.rng), False
        while True:
            leader: MemberLink | None = None
            try:
                leader = await client.find_leader()
                answer = await self._answer_of(leader, request, deadline_s)
                if answer.code is ResponseCode.SUCCESS:
                    return answer
                error = DLedgerError(answer.code, reason=answer.reason, member_id=leader.member_id)
            except RequestLost as lost:
                error = DLedgerError(ResponseCode.NETWORK_ERROR, reason=str(lost))
            except DLedgerError as refused:
                error = refused
                if refused.code is ResponseCode.TIMEOUT and leader is not None:
                    leader.abort("a reader was not answered")
            if error.code in _PASSING or error.code is ResponseCode.UNSUPPORTED:
                members.leader_id = None
            if error.code is ResponseCode.UNSUPPORTED and not has_looked_again and not client.is_closed():
                has_looked_again = True  # (It may lead no more, which a Java member does not say.)
                continue
            wait_s = backoff.next_s()
            is_over = client.is_closed() or clock.seconds() + wait_s >= deadline_s
            if is_over or error.code not in _PASSING:
                raise failure_of(error.code, **error.facts)
            await deferLater(clock, wait_s)

    async def _answer_of(
        self, leader: MemberLink, request: ReaderRequest, deadline_s: float
    ) -> ReaderResponse:
        if not leader.is_ours:
            raise DLedgerError(ResponseCode.UNSUPPORTED, member_id=leader.member_id, reason=(
                f"{leader.member_id} keeps no readers: it is a Java member. Let a "
                "member of ours lead (dledger transfer)"
            ))
        if request.does != "list":
            self.client.members.check_group(leader, name=request.name)
        asked = attrs.evolve(request, group=self.client.members.group, remote_id=leader.member_id)
        left_s = min(self.client.answer_timeout_s, deadline_s - self.client.clock.seconds())
        answer: Response = await leader.ask(asked, max(0.01, left_s))
        assert isinstance(answer, ReaderResponse)
        return answer

    async def infos(self) -> tuple[ReaderInfo, ...]:
        """
        The readers of the group, by name. They come in pages, so one that is moved, begun or forgotten
        meanwhile is shown as before or after.

        @raise DLedgerError: no leader has reported.
        """
        found: list[ReaderInfo] = []
        while True:
            last = found[-1].name if found else ""
            answer = await self.ask(ReaderRequest(does="list", name=last))
            page = decode_readers(answer.readers)
            names = [last, *(one.name for one in page)]
            if names != sorted(set(names)) or (answer.more and not page) or len(found) > READERS_MAX:
                raise failure_of(ResponseCode.INTERNAL_ERROR, reason="the list of readers has no order")
            found += page
            if not answer.more:
                return tuple(found)

    async def move(self, name: str, index: int) -> int:
        """See L{dledger.client.client.LogClient.move_reader}."""
        refuse_problem(reader_name_problem(name))
        return (await self.ask(ReaderRequest(does="move", name=name, index=index))).next_index

    async def forget(self, name: str) -> None:
        """See L{dledger.client.client.LogClient.forget_reader}."""
        refuse_problem(reader_name_problem(name))
        await self.ask(ReaderRequest(does="forget", name=name))


def refuse_problem(problem: str) -> None:
    """@raise DLedgerError: UNEXPECTED_ARGUMENT, for a problem that is not empty."""
    if problem:
        raise failure_of(ResponseCode.UNEXPECTED_ARGUMENT, reason=problem)
