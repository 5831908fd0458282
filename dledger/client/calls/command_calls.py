# -*- test-case-name: tests.client.test_machines -*-
"""
Commands to the state machine of a group, each applied once.

A command has a producer and a sequence, as appends may have (docs/exactly-once.md). The program gives both,
or the client numbers its commands itself: in lanes, each a producer of its own in which one command is under
way, so that commands need no order among them.

Rule 1: a command is sent again after an unknown outcome, too: each leader answers with the result of the
first entry. To a leader that takes no commands of producers it is sent without one, and then it is sent again
only while it is certainly not in the log, as any append.
Rule 2: a lane whose command has no known outcome at the end is not used again.
"""

from __future__ import annotations

from collections import deque

import attrs
from twisted.internet.defer import Deferred, succeed

from dledger.base.sending.bodies import BytesLike
from dledger.client.answers.errors import OutOfSequence, failure_of
from dledger.client.answers.values import AppendFailed
from dledger.client.calls.lone_appends import Facts, LoneAppends, checked_body, new_producer_id
from dledger.client.links.connection import MemberLink, RequestLost
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import SkipRequest, SkipResponse, SubmitRequest, SubmitResponse
from protocols.wire.ledger.messages import BeginStateRequest, BeginStateResponse, Request, Response
from protocols.wire.ledger.producers import producer_problem

#: Commands of one client that are under way at once, at most: others wait. A log remembers 2048 producers.
LANES_MAX = 256


def check_machine(member: MemberLink) -> None:
    """@raise DLedgerError: the member runs no machine."""
    if not member.has_machine:
        raise DLedgerError(ResponseCode.UNSUPPORTED, member_id=member.member_id, reason=(
            f"{member.member_id} runs no state machine: it is a Java member, of an older version, or was "
            "started without --machine"
        ))


@attrs.define
class _Lane:
    """A producer. @ivar sequence: of its next command."""

    producer: str
    sequence: int = 0


class CommandCalls:
    """
    The commands of one client.

    Invariant: C{_used} lanes are under way; nobody waits while fewer than L{LANES_MAX} are.

    @ivar appends: send them.
    """

    def __init__(self, appends: LoneAppends) -> None:
        self.appends = appends
        self._free: list[_Lane] = []
        self._used = 0
        self._waiting: deque[Deferred[None]] = deque()

    async def submit(
        self, command: BytesLike, producer: str | None = None, sequence: int | None = None
    ) -> bytes:
        """
        See L{dledger.client.client.LogClient.submit_command}.

        @raise CommandRefused: the machine has refused it.
        @raise AppendError: there is no result. @raise TypeError: the parameters do not go together.
        """
        body = checked_body(command, "a command has at least one byte" if len(command) == 0 else "")
        if producer is not None and sequence is not None:
            body = checked_body(body, producer_problem(producer, sequence))
            return _result_of(await self._ask(body, _Lane(producer, sequence), is_own=False))
        if producer is not None or sequence is not None:
            raise TypeError("submit() takes both producer and sequence, or none of them")
        await self._turn()
        self._used += 1
        lane: _Lane | None = None
        try:
            while True:
                lane = self._free.pop() if self._free else self._new_lane()
                try:
                    answer = await self._ask(body, lane, is_own=True)
                except OutOfSequence:
                    if not lane.sequence:
                        raise
                    continue  # (The log has forgotten the lane: the command is certainly not in it.)
                except AppendFailed:
                    self._free.append(lane)
                    raise
                lane.sequence += 1
                self._free.append(lane)
                return _result_of(answer)
        finally:
            self._used -= 1
            self._next()

    def _new_lane(self) -> _Lane:
        return _Lane(new_producer_id(self.appends.members.rng))

    def _turn(self) -> Deferred[None]:
        """@return: fires when one more command may be under way."""
        if self._used < LANES_MAX and not self._waiting:
            return succeed(None)
        waiter: Deferred[None] = Deferred()
        self._waiting.append(waiter)
        return waiter.addTimeout(self.appends.timeout_s, self.appends.clock).addErrback(self._late, waiter)

    def _late(self, failure: object, waiter: Deferred[None]) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
        self._next()
        raise AppendFailed(ResponseCode.TIMEOUT, failed=1, reason=(
            f"{LANES_MAX} commands of this client are under way, and none has ended in time"
        ))

    def _next(self) -> None:
        while self._waiting and self._used < LANES_MAX:
            waiter = self._waiting.popleft()
            if not waiter.called:
                waiter.callback(None)
                return

    async def _ask(self, body: bytes, lane: _Lane, *, is_own: bool) -> SubmitResponse:
        appends, group = self.appends, self.appends.members.group
        was_lost = sent_once = False

        def request_of(leader: MemberLink) -> Request:
            nonlocal sent_once
            check_machine(leader)
            if leader.takes_commands_once:
                sent_once = True
                return SubmitRequest(
                    group=group, remote_id=leader.member_id, command=body, producer=lane.producer,
                    sequence=lane.sequence, is_again=was_lost,
                )
            if sent_once or not is_own:
                raise DLedgerError(ResponseCode.UNSUPPORTED, member_id=leader.member_id, reason=(
                    f"{leader.member_id} takes no commands of producers: it is of an older version"
                ))
            return SubmitRequest(group=group, remote_id=leader.member_id, command=body)

        def is_repeatable() -> bool:
            nonlocal was_lost
            was_lost = True
            return sent_once

        def facts_of(answer: Response) -> Facts:
            assert isinstance(answer, SubmitResponse)
            told: Facts = {"reason": answer.reason, "index": answer.index}
            return told if answer.last_sequence < 0 else {**told, "last_sequence": answer.last_sequence}

        answer = await appends.ask(request_of, facts_of, is_repeatable=is_repeatable)
        assert isinstance(answer, SubmitResponse)
        return answer

    async def skip(self, index: int) -> int:
        """See L{dledger.client.client.LogClient.skip}."""
        leader = await self.appends.find_leader()
        check_machine(leader)
        if not leader.takes_commands_once:
            raise failure_of(ResponseCode.UNSUPPORTED, member_id=leader.member_id, reason=(
                f"{leader.member_id} skips no entries: it is of an older version"
            ))
        request = SkipRequest(group=self.appends.members.group, remote_id=leader.member_id, index=index)
        try:
            answer: Response = await leader.ask(request, self.appends.answer_timeout_s)
        except RequestLost as lost:
            raise failure_of(ResponseCode.NETWORK_ERROR, reason=str(lost)) from None
        assert isinstance(answer, SkipResponse)
        if answer.code is not ResponseCode.SUCCESS:
            raise failure_of(answer.code, member_id=leader.member_id, reason=answer.reason)
        return answer.index

    async def begin_state(self, insists: bool) -> int:
        """See L{dledger.client.client.LogClient.begin_state}."""
        leader = await self.appends.find_leader()
        if not leader.takes_producers:
            raise failure_of(ResponseCode.UNSUPPORTED, member_id=leader.member_id, reason=(
                f"{leader.member_id} is a Java member, which has no state of the group: let one of ours lead"
            ))
        request = BeginStateRequest(
            group=self.appends.members.group, remote_id=leader.member_id, insists=insists
        )
        try:
            answer: Response = await leader.ask(request, self.appends.answer_timeout_s)
        except RequestLost as lost:
            raise failure_of(ResponseCode.NETWORK_ERROR, reason=str(lost)) from None
        assert isinstance(answer, BeginStateResponse)
        if answer.code is not ResponseCode.SUCCESS:
            raise failure_of(answer.code, member_id=leader.member_id, reason=answer.reason)
        return answer.index


def _result_of(answer: SubmitResponse) -> bytes:
    """@raise CommandRefused: the machine has refused it."""
    if answer.code is ResponseCode.COMMAND_REFUSED:
        raise failure_of(answer.code, reason=answer.reason, index=answer.index)
    return answer.result or b""
