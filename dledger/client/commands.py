# -*- test-case-name: tests.client.test_machines -*-
"""
Commands to the state machine of a group, each applied once, and queries to it.

A command has a producer and a sequence, as appends may have (docs/exactly-once.md). The program gives both,
or the client numbers its commands itself, with one producer for all of them: L{CommandSender} sends them as
L{Appender} sends bodies with numbers.

Rule 1: a command is sent again after an unknown outcome, too: each leader answers with the result of the
first entry.
Rule 2: commands of one client are in the log in the order of the calls, and L{COMMANDS_MAX} are under way at
once.
Rule 3: a command that ends without a known outcome, or is refused for good, ends its producer. Commands after
it that may be in the log have no known outcome then, either; the others get a new producer.
Rule 4: a query changes nothing: it is asked again until the deadline. With a bound on the age of the state,
any member is asked first, then the leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from dledger.base.sending.bodies import BytesLike, as_bodies, misfit, total_bytes
from dledger.base.sending.send_queue import SendCall, SentFrame
from dledger.base.timing import Backoff
from dledger.client.appender import Appender, AppendOutcome
from dledger.client.connect_options import ConnectOptions
from dledger.client.connection import MemberLink, RequestLost, RequestRefused
from dledger.client.enveloping import Enveloping
from dledger.client.errors import AppendError, failure_of
from dledger.client.lone_appends import BODY_BYTES_MAX, Facts, LoneAppends, checked_body
from dledger.client.members import Members
from dledger.client.rivals import Rivals
from dledger.client.values import Appended
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import (
    QueryRequest,
    QueryResponse,
    SkipRequest,
    SkipResponse,
    SubmitRequest,
    SubmitResponse,
)
from protocols.wire.ledger.messages import (
    BeginStateRequest,
    BeginStateResponse,
    Request,
    ResetTimesRequest,
    Response,
)
from protocols.wire.ledger.producers import RUNS_MAX, producer_problem

#: Commands of one client that are under way at once, at most: others wait. The log remembers the places of
#: this number of runs of a producer, and a machine as many results: so each can be sent again, whoever writes
#: in between.
COMMANDS_MAX = RUNS_MAX


def check_machine(member: MemberLink) -> None:
    """@raise DLedgerError: the member runs no machine."""
    if not member.has_machine:
        raise DLedgerError(ResponseCode.UNSUPPORTED, member_id=member.member_id, reason=(
            f"{member.member_id} runs no state machine: it is a Java member, or was started without --machine"
        ))


class CommandSender(Appender):
    """
    Sends the commands of one client, one in each frame.

    Invariant: C{_answers} has the answers of calls that are not finished.
    """

    NOUN = "commands"
    OUTCOMES = frozenset({ResponseCode.SUCCESS, ResponseCode.COMMAND_REFUSED})

    def __init__(
        self, members: Members, rivals: Rivals, options: ConnectOptions, *, clock: IReactorTime,
        enveloping: Enveloping,
    ) -> None:
        limits = attrs.evolve(
            options.limits, frame_count_max=1, frames_in_flight_max=COMMANDS_MAX,
            remoting_in_flight_max=COMMANDS_MAX,
        )
        super().__init__(members, rivals, attrs.evolve(options, exactly_once=True, limits=limits),
                         clock=clock, enveloping=enveloping)
        self._answers: dict[SendCall[Appended], SubmitResponse] = {}

    def submit_command(self, command: bytes) -> Deferred[bytes]:
        """
        Submit a command.

        @return: fires with the result; fails as L{LogClient.submit_command
            <dledger.client.client.LogClient.submit_command>} does. Cancelling stops the wait, not the append.
        """
        waiter: Deferred[bytes] = Deferred(lambda _: None)
        call: SendCall[Appended] = SendCall(
            (command,), len(command), lambda outcome: self._notify(call, waiter, outcome),
            self._clock.seconds() + self._timeout_s,
        )
        self.sender.submit(call)
        return waiter

    def _notify(self, call: SendCall[Appended], waiter: Deferred[bytes], outcome: AppendOutcome) -> None:
        answer = self._answers.pop(call, None)
        if waiter.called:
            return
        if isinstance(outcome, AppendError):
            waiter.errback(outcome)
            return
        assert answer is not None
        try:
            result = _result_of(answer)
        except DLedgerError as refused:
            waiter.errback(refused)
        else:
            waiter.callback(result)

    def _numbered(self, leader: MemberLink, frame: SentFrame[Appended], bodies: list[bytes]) -> Request:
        try:
            check_machine(leader)
        except DLedgerError as error:
            raise RequestRefused(error.code, **error.facts) from None
        call, first, _ = frame.parts[0]
        return SubmitRequest(
            group=self._members.group, remote_id=leader.member_id, command=bodies[0], producer=call.producer,
            sequence=call.base + first, is_again=self.sender.is_maybe(frame),
        )

    def _facts_of(self, answer: Response) -> Facts:
        assert isinstance(answer, SubmitResponse)
        return {"reason": answer.reason, "index": answer.index}

    def _stored(self, leader: MemberLink, frame: SentFrame[Appended], answer: Response) -> None:
        assert isinstance(answer, SubmitResponse)
        if self.sender.is_behind_held(frame):
            later = DLedgerError(ResponseCode.LEADER_NOT_READY, reason="earlier commands come first")
            self.sender.hold_unknown(frame, later)  # (Its answer comes again, in order.)
            self.sender.resolve_held()
            return
        call, first, _ = frame.parts[0]
        if not call.is_finished:
            self._answers[call] = answer
        self._acknowledged()
        self.sender.settle_stored(frame, [Appended(index=answer.index, term=answer.term, offset=first)])


class CommandCalls:
    """
    The commands of one client.

    Implements L{dledger.client.client.LogClient}.

    @ivar appends: send those with numbers of the program.
    """

    def __init__(self, appends: LoneAppends, sender: CommandSender) -> None:
        """@param sender: sends those that the client numbers."""
        self.appends = appends
        self._sender = sender

    async def submit(
        self, command: BytesLike, producer: str | None = None, sequence: int | None = None
    ) -> bytes:
        """
        See L{dledger.client.client.LogClient.submit_command}.

        @raise CommandRefused: the machine has refused it.
        @raise AppendError: there is no result. @raise TypeError: the parameters do not go together.
        """
        body = checked_body(command, "a command has at least one byte" if len(command) == 0 else "")
        if producer is None and sequence is None:
            return await self._sender.submit_command(body)
        if producer is None or sequence is None:
            raise TypeError("submit() takes both producer and sequence, or none of them")
        return _result_of(await self._ask(checked_body(body, producer_problem(producer, sequence)), producer,
                                          sequence))

    def close(self) -> None:
        """Give up the commands that are under way."""
        self._sender.close()

    async def _ask(self, body: bytes, producer: str, sequence: int) -> SubmitResponse:
        appends, group = self.appends, self.appends.members.group
        was_lost = False

        def request_of(leader: MemberLink) -> Request:
            check_machine(leader)
            return SubmitRequest(
                group=group, remote_id=leader.member_id, command=body, producer=producer, sequence=sequence,
                is_again=was_lost,
            )

        def is_repeatable() -> bool:
            nonlocal was_lost
            was_lost = True
            return True

        def facts_of(answer: Response) -> Facts:
            assert isinstance(answer, SubmitResponse)
            reported: Facts = {"reason": answer.reason, "index": answer.index}
            return reported if answer.last_sequence < 0 else {**reported,
                                                              "last_sequence": answer.last_sequence}

        answer = await appends.ask(request_of, facts_of, is_repeatable=is_repeatable)
        assert isinstance(answer, SubmitResponse)
        return answer

    async def skip(self, index: int) -> int:
        leader = await self.appends.find_leader()
        check_machine(leader)
        request = SkipRequest(group=self.appends.members.group, remote_id=leader.member_id, index=index)
        try:
            answer: Response = await leader.ask(request, self.appends.answer_timeout_s)
        except RequestLost as lost:
            raise failure_of(ResponseCode.NETWORK_ERROR, reason=str(lost)) from None
        assert isinstance(answer, SkipResponse)
        if answer.code is not ResponseCode.SUCCESS:
            raise failure_of(answer.code, member_id=leader.member_id, reason=answer.reason)
        return answer.index

    async def order(self, request: BeginStateRequest | ResetTimesRequest) -> int:
        """Give the leader an order about the state of the group. @return: index of its entry."""
        leader = await self.appends.find_leader()
        if not leader.is_ours:
            raise failure_of(ResponseCode.UNSUPPORTED, member_id=leader.member_id, reason=(
                f"{leader.member_id} is a Java member, which has no state of the group: let one of ours lead"
            ))
        request = attrs.evolve(request, group=self.appends.members.group, remote_id=leader.member_id)
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
