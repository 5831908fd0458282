# -*- test-case-name: tests.client.test_conditions,tests.client.test_numbered_appends -*-
"""
Appends with a promise of their own, not through the queue of other appends: those of a body that expect an
end of the log, and those of one or many bodies that have a producer and a sequence.

Rule 1: a body that expects an end is sent again only while it is certainly not in the log, as other bodies.
Rule 2: a body with a sequence is sent again when its outcome is unknown, too: the leader answers with the
outcome of the first attempt. What is still unknown when the time is over is unknown to the program, which may
ask again for as long as the log remembers (docs/exactly-once.md).
Rule 3: of many bodies, a frame is sent when all bodies before it are stored. So the bodies without an outcome
are those of one frame, and the bodies after it are certainly not in the log.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from random import Random

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from dledger.base.sending.arguments import text, whole
from dledger.base.sending.bodies import BytesLike, as_bodies, misfit, total_bytes
from dledger.base.timing import Backoff
from dledger.client.connection import MemberLink, RequestLost, RequestRefused
from dledger.client.errors import AppendError, AppendFailed, append_error
from dledger.client.members import Members
from dledger.client.values import Appended
from dledger.values.errors import DLedgerError
from dledger.values.ledger.append_refusals import FINAL, PASSING
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, MAX_RECORD_BYTES
from protocols.wire.ledger.messages import (
    AppendIfRequest,
    AppendIfResponse,
    AppendOnceRequest,
    AppendOnceResponse,
    Request,
    Response,
)
from protocols.wire.ledger.producers import producer_problem

#: Largest body that any member can store.
BODY_BYTES_MAX = MAX_RECORD_BYTES - ENTRY_HEADER_SIZE

NO_CONDITIONS = "the leader takes no expected_end: it is a Java member"
NO_PRODUCERS = "the leader knows no producers: it is a Java member"

#: For a program that would compare the same end for ever.
END_COUNTS = "entries that members write count, too: read on to the end with tail(..., control=True)"
#: Answers that say what became of a body in the log.
_OUTCOMES = (ResponseCode.SUCCESS, ResponseCode.COMMAND_REFUSED)

#: Named values of an error.
Facts = dict[str, object]


def new_producer_id(rng: Random) -> str:
    """An id that no other producer has."""
    return f"{rng.getrandbits(96):024x}"


@attrs.frozen(kw_only=True)
class LoneAppends:
    """
    The lone appends of one client.

    @ivar find_leader: its connection; fails with L{DLedgerError} if none is found.
    @ivar is_closed: whether the client has been closed: nothing is sent again then.
    """

    members: Members
    find_leader: Callable[[], Awaitable[MemberLink]]
    clock: IReactorTime
    timeout_s: float
    answer_timeout_s: float
    is_closed: Callable[[], bool]

    def append(
        self, body: BytesLike, expected_end: int | None, producer: str | None, sequence: int | None
    ) -> Coroutine[Deferred[object], object, Appended]:
        """
        L{append_if} or L{append_once}.

        @raise TypeError: the parameters do not go together, or have a wrong type.
        """
        check_numbers(expected_end, producer, sequence)
        if producer is not None and sequence is not None and expected_end is None:
            return self.append_once(body, producer, sequence)
        if producer is None and sequence is None and expected_end is not None:
            return self.append_if(body, expected_end)
        raise TypeError("append() takes expected_end, or both producer and sequence")

    async def append_if(self, body: BytesLike, expected_end: int) -> Appended:
        """
        Append a body if the log ends at C{expected_end}; see L{dledger.client.client.LogClient.append}.

        @raise AppendError: the body was not acknowledged.
        """
        problem = ""
        if expected_end < -1:
            problem = f"expected_end={expected_end}: write the last index of the log, or -1 for an empty log"
        sent = checked_body(body, problem)

        def request_of(leader: MemberLink) -> Request:
            if not leader.is_ours:
                raise _unsupported(leader, NO_CONDITIONS)
            self.members.check_group(leader, expected_end=expected_end)
            return AppendIfRequest(
                group=self.members.group, remote_id=leader.member_id, body=sent, expected_end=expected_end
            )

        def facts_of(answer: Response) -> Facts:
            assert isinstance(answer, AppendIfResponse)
            if answer.code is not ResponseCode.CONFLICT:
                return {}
            return {"expected_end": expected_end, "end_index": answer.end_index, "reason": END_COUNTS}

        answer = await self.ask(request_of, facts_of)
        assert isinstance(answer, AppendIfResponse)
        return Appended(index=answer.index, term=answer.term, pos=answer.pos)

    async def append_once(self, body: BytesLike, producer: str, sequence: int) -> Appended:
        """
        Append a body of a producer, once however often it is called; see
        L{dledger.client.client.LogClient.append}.

        @raise AppendError: the body was not acknowledged.
        """
        sent = checked_body(body, producer_problem(producer, sequence))
        answer = await self.append_frame((sent,), producer, sequence)
        return Appended(index=answer.index, term=answer.term, pos=answer.pos)

    async def append_frame(
        self, bodies: tuple[bytes, ...], producer: str, sequence: int
    ) -> AppendOnceResponse:
        """
        Append bodies of a producer in one frame, the first of them in a remoting frame.

        @return: the answer, SUCCESS, for the first C{count} of them.
        @raise AppendError: none was acknowledged; it counts them as one.
        """
        def request_of(leader: MemberLink) -> Request:
            if not leader.is_ours:
                raise _unsupported(leader, NO_PRODUCERS)
            return AppendOnceRequest(
                group=self.members.group, remote_id=leader.member_id, producer=producer, sequence=sequence,
                bodies=bodies if leader.native else bodies[:1],
            )

        def facts_of(answer: Response) -> Facts:
            assert isinstance(answer, AppendOnceResponse)
            facts: Facts = {"producer": producer, "sequence": sequence, "last_sequence": answer.last_sequence}
            return {**facts, "index": answer.index} if answer.code is ResponseCode.SEQUENCE_TAKEN else facts

        answer = await self.ask(request_of, facts_of, is_repeatable=lambda: True)
        assert isinstance(answer, AppendOnceResponse)
        if answer.index < 0 or not 1 <= answer.count <= len(bodies):
            reason = f"count={answer.count}, index={answer.index} for {len(bodies)} bodies"
            raise append_error(ResponseCode.UNKNOWN, is_unknown=True)(
                ResponseCode.UNKNOWN, unknown=1, reason=reason
            )
        return answer

    async def ask(
        self, request_of: Callable[[MemberLink], Request], facts_of: Callable[[Response], Facts], *,
        is_repeatable: Callable[[], bool] = lambda: False,
    ) -> Response:
        """
        Ask the leader to append one body, again while that is certainly not in the log.

        @param request_of: the request to a leader; raises L{DLedgerError} if that one does not take it.
        @param facts_of: facts of the error for an answer that is a refusal.
        @param is_repeatable: asked after each unknown outcome: whether to ask again then, too.
        @return: the answer, SUCCESS or COMMAND_REFUSED.
        @raise AppendError: the body was not acknowledged.
        """
        deadline_s = self.clock.seconds() + self.timeout_s
        backoff, may_be_there = Backoff(rng=self.members.rng), False
        while True:
            answer_s = min(self.answer_timeout_s, deadline_s - self.clock.seconds())
            answer, error, is_unknown = await self._attempt(request_of, facts_of, answer_s)
            if answer is not None:
                return answer
            assert error is not None
            may_be_there = may_be_there or is_unknown
            wait_s = backoff.next_s()
            is_passing = error.code in PASSING or error.code is ResponseCode.METADATA_ERROR
            is_over = self.is_closed() or self.clock.seconds() + wait_s >= deadline_s
            is_again = is_passing or (
                is_unknown and is_repeatable() and error.code is not ResponseCode.SEQUENCE_FORGOTTEN
            )
            if is_over or not is_again:
                kind, failed = append_error(error.code, is_unknown=may_be_there), 0 if may_be_there else 1
                make: Callable[..., AppendError] = kind
                raise make(error.code, failed=failed, unknown=1 - failed, **error.facts)
            self.members.leader_id = None
            await deferLater(self.clock, wait_s)

    async def _attempt(
        self, request_of: Callable[[MemberLink], Request], facts_of: Callable[[Response], Facts],
        answer_timeout_s: float,
    ) -> tuple[Response | None, DLedgerError | None, bool]:
        """@return: the answer, or None; the error, or None; whether the body may be in the log then."""
        try:
            leader = await self.find_leader()
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
        if code in _OUTCOMES:
            return answer, None, False
        facts: Facts = {"member_id": leader.member_id, "leader_id": answer.leader_id, **facts_of(answer)}
        return None, DLedgerError(code, **facts), code not in PASSING and code not in FINAL


def check_numbers(expected_end: object, producer: object, sequence: object) -> None:
    """@raise TypeError: one has a wrong type. (Its range is checked where it is known.)"""
    for name, value in (("expected_end", expected_end), ("sequence", sequence)):
        if value is not None:
            whole(name, value, -sys.maxsize - 1, 2**64)
    if producer is not None:
        text("producer", producer)


def _unsupported(leader: MemberLink, reason: str) -> DLedgerError:
    return DLedgerError(ResponseCode.UNSUPPORTED, member_id=leader.member_id, reason=reason)


def checked_body(body: BytesLike, problem: str = "") -> bytes:
    """
    A body as bytes.

    @param problem: reason why it cannot be sent; empty: none is known yet.
    @raise AppendError: UNEXPECTED_ARGUMENT, there is one.
    """
    bodies = as_bodies((body,))
    problem = misfit(bodies, total_bytes(bodies), BODY_BYTES_MAX) or problem
    if problem:
        raise append_error(ResponseCode.UNEXPECTED_ARGUMENT, is_unknown=False)(
            ResponseCode.UNEXPECTED_ARGUMENT, failed=1, reason=problem
        )
    return bodies[0]


#: Most bodies of one frame, and their bytes. A remoting frame has one body.
FRAME_COUNT_MAX = 512
FRAME_BYTES_MAX = 1 << 20


def frame_of(bodies: Sequence[bytes], first: int) -> tuple[bytes, ...]:
    """The bodies from number C{first} on that go in one frame; one at least."""
    end, size = first, 0
    while end < min(first + FRAME_COUNT_MAX, len(bodies)) and (end == first or size < FRAME_BYTES_MAX):
        size += len(bodies[end])
        end += 1
    return tuple(bodies[first:end])


async def append_numbered(
    appends: LoneAppends, given: Sequence[BytesLike], producer: str, sequence: int,
    enclose: Callable[[Sequence[BytesLike]], Sequence[bytes]],
) -> tuple[Appended, ...]:
    """
    Append bodies of a producer, each once however often this is called; see
    L{dledger.client.client.LogClient.append_many}.

    @param sequence: of the first one.
    @param enclose: checks the bodies, and puts them into their envelopes.
    @return: the runs of consecutive indexes of the bodies, in order.
    @raise AppendError: a body was not acknowledged; it also reports the acknowledged ones.
    """
    last = max(sequence + len(given) - 1, sequence)
    problem = producer_problem(producer, sequence) or producer_problem(producer, last)
    if problem:
        raise AppendFailed(ResponseCode.UNEXPECTED_ARGUMENT, failed=len(given), reason=problem)
    bodies = enclose(given) if given else ()
    clock, runs, done = appends.clock, list[Appended](), 0
    deadline_s = clock.seconds() + appends.timeout_s
    while done < len(bodies):
        frame = frame_of(bodies, done)
        left_s = max(deadline_s - clock.seconds(), 0.01)
        try:
            answer = await attrs.evolve(appends, timeout_s=left_s).append_frame(
                frame, producer, sequence + done
            )
        except AppendError as error:
            unknown = len(frame) if error.unknown else 0
            facts: Facts = {**error.facts, "acknowledged": done}
            raise type(error)(
                error.code, appended=tuple(runs), failed=len(bodies) - done - unknown, unknown=unknown,
                **facts,
            ) from None
        _add(runs, Appended(
            index=answer.index, term=answer.term, pos=answer.pos, count=answer.count, offset=done
        ))
        done += answer.count
    return tuple(runs)


def _add(runs: list[Appended], run: Appended) -> None:
    """Add a run; two that follow each other become one."""
    last = runs[-1] if runs else None
    if last is not None and (run.index, run.term) == (last.last_index + 1, last.term):
        runs[-1] = attrs.evolve(last, count=last.count + run.count)
    else:
        runs.append(run)
