# -*- test-case-name: tests.client.test_appender,tests.client.test_append_order -*-
"""
The append path of a client: one queue, frames in flight to one leader, outcomes::

    call -> queue -> frame in flight -> committed | unknown | refused for good
              ^                |
              +---- refused ---+   only when no later frame of ours can be in the log

Rule 1: bodies are written in the order of the calls. A refused frame is held until every frame sent
after it is settled; it is sent again only if all of those were refused too. If a later frame was, or may
have been, written, sending the refused one again would break the order, so its bodies fail.
Rule 2: only bodies that are certainly not in the log are sent again. A lost connection, a time-out, 502,
501 and every code that is not known to precede the write mean "unknown", and unknown is never retried.
Rule 3: a frame to a leader that did not advertise our wire waits for the frame before it: Java's
server handles requests of one connection in four threads, in any order.
Rule 4: everything is bounded: pending bodies and bytes, waiting calls, frames and bytes in flight.

An append whose outcome is unknown may still reach the log behind later appends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.errors import DLedgerError
from dledger.base.timing import Backoff
from dledger.client.connection import MemberConnection, RequestRefused
from dledger.client.frames import (
    BODY_BYTES_MAX,
    FINAL,
    PASSING,
    AppendLimits,
    Call,
    Done,
    Frame,
    outcome_of,
)
from dledger.client.members import Members
from dledger.client.rivals import SILENT_S, Rivals
from dledger.client.values import Appended, AppendFailed
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.ledger.messages import AppendRequest, AppendResponse, Response

_SWEEP_S = 0.1
#: Longest pause, before jitter, between two searches for a leader: elections take about a second.
_PAUSE_MAX_S = 0.25

class Appender:
    """
    Queues, sends and settles the appends of one client.

    Invariants: C{_frames} holds the unsettled frames in the order of sending; C{_unanswered} counts
    those that are not held as refused; nothing is sent while a frame is held; C{_passed} is the
    number of the last frame that is or may be in the log.
    """

    log = Logger()

    def __init__(
        self,
        members: Members,
        rivals: Rivals,
        *,
        clock: IReactorTime,
        limits: AppendLimits,
        timeout_s: float,
        answer_timeout_s: float,
        is_ordered: bool = True,
    ) -> None:
        self.pending_count = 0
        self.pending_bytes = 0
        self._members = members
        self._rivals = rivals
        self._clock = clock
        self._limits = limits
        self._timeout_s = timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._is_ordered = is_ordered
        self._queue: deque[Call] = deque()
        self._overflow: deque[Call] = deque()
        self._frames: deque[Frame] = deque()
        self._unanswered = 0
        self._frame_number = 0
        self._passed = 0
        self._in_flight_bytes = 0
        self._frame_count_max = limits.frame_count_max
        self._leader: MemberConnection | None = None
        self._hint: str | None = None
        self._seeking: Deferred[MemberConnection | None] | None = None
        self._is_held = False
        self._is_in_turn = False
        self._pumping: IDelayedCall | None = None
        self._resuming: IDelayedCall | None = None
        self._sweeping: IDelayedCall | None = None
        self._backoff = Backoff(rng=members.rng, most_s=_PAUSE_MAX_S)
        self._refusal: DLedgerError | None = None
        self._is_closed = False

    # Calls

    def submit(self, bodies: Sequence[bytes], done: Done) -> None:
        """
        Append C{bodies} in order. C{done} is called once, and within this call only if C{bodies} is
        empty or refused here. The sequence must not be changed afterwards.
        """
        count = len(bodies)
        if not count:
            done(())
            return
        size = sum(map(len, bodies))
        problem = self._misfit(bodies, size)
        if problem is not None:
            done(AppendFailed(ResponseCode.UNEXPECTED_ARGUMENT, failed=count, reason=problem))
            return
        if self._is_closed:
            done(AppendFailed(ResponseCode.NETWORK_ERROR, failed=count, reason="the client is closed"))
            return
        call = Call(bodies, size, done, self._clock.seconds() + self._timeout_s)
        if self._overflow or not self._fits(call):
            self._put_off(call)
            return
        self._admit(call)
        if not self._is_in_turn and self._pumping is None:
            self._pumping = self._clock.callLater(0, self._pump_now)

    @staticmethod
    def _misfit(bodies: Sequence[bytes], size: int) -> str | None:
        if len(bodies) == 1 and type(bodies[0]) is bytes and size <= BODY_BYTES_MAX:
            return None
        for kind in set(map(type, bodies)):
            if kind is not bytes:
                return f"a body must be bytes, not {kind.__name__}"
        if size > BODY_BYTES_MAX and max(map(len, bodies)) > BODY_BYTES_MAX:
            return f"a body has {max(map(len, bodies))} bytes; at most {BODY_BYTES_MAX} can be stored"
        return None

    def _fits(self, call: Call) -> bool:
        limits = self._limits
        return (
            self.pending_count + len(call.bodies) <= limits.pending_count_max
            and self.pending_bytes + call.size <= limits.pending_bytes_max
        ) or not self.pending_count

    def _put_off(self, call: Call) -> None:
        limits = self._limits
        if limits.when_full == "wait" and len(self._overflow) < limits.waiting_calls_max:
            self._overflow.append(call)
            self._watch()
            return
        call.done(
            AppendFailed(
                ResponseCode.LEADER_PENDING_FULL,
                failed=len(call.bodies),
                reason=f"{self.pending_count} bodies of {self.pending_bytes} bytes are pending in this "
                f"client; at most {limits.pending_count_max} of {limits.pending_bytes_max} bytes are allowed",
            )
        )

    def _admit(self, call: Call) -> None:
        call.is_admitted = True
        self._queue.append(call)
        self.pending_count += len(call.bodies)
        self.pending_bytes += call.size
        self._watch()

    # Sending

    def _pump_now(self) -> None:
        self._pumping = None
        self._pump()

    def _turn_ended(self) -> None:
        self._is_in_turn = False
        self._pump()

    def _pump(self) -> None:
        while self._overflow and self._fits(self._overflow[0]):
            self._admit(self._overflow.popleft())
        if not self._queue or self._is_held or self._is_closed or self._resuming is not None:
            return
        leader = self._leader
        if leader is None or not leader.is_connected:
            self._seek()
            return
        limits = self._limits
        frames_max = limits.frames_in_flight_max
        if not leader.native:
            frames_max = limits.remoting_in_flight_max
            if self._is_ordered and leader.wire_version < 1:
                frames_max = 1
        while (
            self._queue
            and self._unanswered < frames_max
            and self._in_flight_bytes < limits.in_flight_bytes_max
        ):
            if not self._send_frame(leader):
                return

    def _send_frame(self, leader: MemberConnection) -> bool:
        count_max = self._frame_count_max if leader.native else 1
        bodies, parts, size = self._cut(count_max, self._limits.frame_bytes_max)
        if not parts:
            return False
        self._frame_number += 1
        frame = Frame(self._frame_number, leader, parts, len(bodies), size, self._clock.seconds())
        self._frames.append(frame)
        self._unanswered += 1
        self._in_flight_bytes += size
        request = AppendRequest(group=self._members.group, remote_id=leader.member_id, bodies=tuple(bodies))
        leader.request(request, partial(self._answered, frame))
        return True

    def _cut(
        self, count_max: int, bytes_max: int
    ) -> tuple[list[bytes], list[tuple[Call, int, int]], int]:
        """The next bodies of the queue: at least one unless it is empty, then up to both bounds."""
        bodies: list[bytes] = []
        parts: list[tuple[Call, int, int]] = []
        size = 0
        queue = self._queue
        while queue and len(bodies) < count_max:
            call = queue[0]
            if call.is_finished or call.error is not None:
                queue.popleft()
                continue
            room = count_max - len(bodies)
            taken: Sequence[bytes]
            if not call.sent and len(call.bodies) <= room and size + call.size <= bytes_max:
                taken, taken_size = call.bodies, call.size
            else:
                taken, taken_size = self._some(call, room, bytes_max - size, at_least=0 if bodies else 1)
                if not taken:
                    break
            bodies += taken
            size += taken_size
            parts.append((call, call.sent, len(taken)))
            call.sent += len(taken)
            call.open += len(taken)
            if call.sent < len(call.bodies):
                break
            queue.popleft()
        return bodies, parts, size

    @staticmethod
    def _some(call: Call, room: int, bytes_max: int, at_least: int) -> tuple[Sequence[bytes], int]:
        size = 0
        end = call.sent
        last = min(len(call.bodies), call.sent + room)
        while end < last:
            size_with_next = size + len(call.bodies[end])
            if size_with_next > bytes_max and end - call.sent >= at_least:
                break
            size = size_with_next
            end += 1
        return call.bodies[call.sent : end], size

    # Answers

    def _answered(self, frame: Frame, result: Response | Exception) -> None:
        self._is_in_turn = True
        if frame.is_settled:
            return  # its calls and its connection were given up
        self._unanswered -= 1
        self._in_flight_bytes -= frame.size
        if isinstance(result, RequestRefused):
            self._refused(frame, result)
        elif isinstance(result, Exception):
            self._settle_unknown(frame, DLedgerError(ResponseCode.NETWORK_ERROR, reason=str(result)))
        else:
            assert isinstance(result, AppendResponse)
            self._judge(frame, result)
        self._resolve_held()

    def _judge(self, frame: Frame, answer: AppendResponse) -> None:
        code = answer.code
        leader = frame.leader
        if code is ResponseCode.SUCCESS:
            if answer.count != frame.count or answer.index < 0:
                reason = f"count={answer.count}, index={answer.index} for {frame.count} bodies"
                leader.abort(reason)
                self._settle_unknown(frame, DLedgerError(ResponseCode.UNKNOWN, reason=reason))
            else:
                self._settle_appended(frame, answer)
            return
        error = DLedgerError(code, member_id=leader.member_id, leader_id=answer.leader_id)
        if code in PASSING or code in FINAL:
            self._refused(frame, error)
            if code is ResponseCode.NOT_LEADER:
                self._hint = answer.leader_id
                self._doubt(leader)
        else:
            self._doubt(leader)
            self._settle_unknown(frame, error)

    def _doubt(self, leader: MemberConnection) -> None:
        """Look for the leader again before the next frame."""
        if self._leader is leader:
            self._leader = None

    def _refused(self, frame: Frame, error: DLedgerError) -> None:
        if error.code not in PASSING or frame.number < self._passed:
            # The refusal is final, or a later frame is or may be in the log: do not send this one again.
            self._settle_failed(frame, error)
            return
        frame.refusal = self._refusal = error
        self._is_held = True
        if error.code is ResponseCode.LEADER_PENDING_FULL:
            self._frame_count_max = max(1, frame.count // 2)

    def _settle_appended(self, frame: Frame, answer: AppendResponse) -> None:
        self._backoff.reset()
        self._refusal = None
        if self._frame_count_max < self._limits.frame_count_max:
            self._frame_count_max = min(self._limits.frame_count_max, self._frame_count_max * 2)
        overtaken = self._remove(frame)
        index, pos = answer.index, answer.pos
        finished: list[Call] = []
        for call, offset, count in frame.parts:
            if not call.is_finished:
                call.outcomes.append(
                    Appended(index=index, term=answer.term, pos=pos, count=count, offset=offset)
                )
                self._close_part(call, count, finished)
            index += count
            pos = -1
        self._fail_overtaken(overtaken, finished)
        self._tell(finished)

    def _settle_failed(self, frame: Frame, error: DLedgerError) -> None:
        self._remove_only(frame)
        finished: list[Call] = []
        self._fail_parts(frame, error, finished)
        self._tell(finished)

    def _settle_unknown(self, frame: Frame, error: DLedgerError) -> None:
        overtaken = self._remove(frame)
        finished: list[Call] = []
        for call, _offset, count in frame.parts:
            if not call.is_finished:
                call.unknown += count
                call.error = call.error or error
                self._close_part(call, count, finished)
        self._fail_overtaken(overtaken, finished)
        self._tell(finished)

    def _remove(self, frame: Frame) -> list[Frame]:
        """Remove a frame that is or may be in the log; returns the refused frames that it overtook."""
        self._passed = max(self._passed, frame.number)
        if self._frames[0] is frame:
            self._frames.popleft()
            frame.is_settled = True
            return []
        overtaken: list[Frame] = []
        kept: deque[Frame] = deque()
        for other in self._frames:
            if other is frame:
                break
            (kept if other.refusal is None else overtaken).append(other)
        for _ in range(len(kept) + len(overtaken) + 1):
            self._frames.popleft()
        self._frames.extendleft(reversed(kept))
        frame.is_settled = True
        return overtaken

    def _remove_only(self, frame: Frame) -> None:
        self._frames.remove(frame)
        frame.is_settled = True

    def _fail_overtaken(self, overtaken: list[Frame], finished: list[Call]) -> None:
        for frame in overtaken:
            assert frame.refusal is not None
            frame.is_settled = True
            self._fail_parts(frame, frame.refusal, finished)

    def _fail_parts(self, frame: Frame, error: DLedgerError, finished: list[Call]) -> None:
        for call, _offset, count in frame.parts:
            if not call.is_finished:
                call.failed += count
                call.error = call.error or error
                self._close_part(call, count, finished)

    def _close_part(self, call: Call, count: int, finished: list[Call]) -> None:
        call.open -= count
        if not call.open and (call.error is not None or call.sent == len(call.bodies)):
            self._finish(call, finished)

    def _finish(self, call: Call, finished: list[Call]) -> None:
        call.failed += len(call.bodies) - call.sent  # the rest of a failed call is not sent
        call.is_finished = True
        if call.is_admitted:
            self.pending_count -= len(call.bodies)
            self.pending_bytes -= call.size
        finished.append(call)

    def _resolve_held(self) -> None:
        """Once every sent frame is settled or refused, put the refused bodies back in order."""
        if not self._is_held or self._unanswered:
            return
        self._is_held = False
        finished: list[Call] = []
        while self._frames:
            frame = self._frames.pop()
            frame.is_settled = True
            for call, offset, count in reversed(frame.parts):
                if call.is_finished:
                    continue
                if call.error is not None:
                    call.failed += count
                    self._close_part(call, count, finished)
                    continue
                call.sent = offset
                call.open -= count
                if not self._queue or self._queue[0] is not call:
                    self._queue.appendleft(call)
        self._wait_then_pump()
        self._tell(finished)

    def _wait_then_pump(self) -> None:
        if self._resuming is not None or self._is_closed:
            return
        # Follow the first redirect at once: it is the usual way to find the leader.
        redirected = self._hint is not None and not self._backoff.attempts
        wait_s = self._backoff.next_s()
        self._resuming = self._clock.callLater(0 if redirected else wait_s, self._resume)

    def _resume(self) -> None:
        self._resuming = None
        self._pump()

    def _tell(self, finished: list[Call]) -> None:
        for call in finished:
            try:
                call.done(outcome_of(call))
            except Exception:
                self.log.failure("the callback of an append raised an error")

    # The leader

    def _seek(self) -> None:
        if self._seeking is not None:
            return
        hint, self._hint = self._hint, None
        self._seeking = self._members.leader(hint)
        self._seeking.addCallbacks(self._found, self._not_found)

    def _found(self, leader: MemberConnection | None) -> None:
        self._seeking = None
        if leader is None or not leader.is_connected:
            self._wait_then_pump()
            return
        self._leader = leader
        leader.turn_ended = self._turn_ended
        self._pump()

    def _not_found(self, _cancelled: Failure) -> None:
        self._seeking = None

    # Deadlines

    def _watch(self) -> None:
        if self._sweeping is None:
            self._sweeping = self._clock.callLater(_SWEEP_S, self._sweep)

    def _calls(self) -> Iterator[Call]:
        in_frames = (call for frame in self._frames for call, _offset, _count in frame.parts)
        return chain(in_frames, self._queue, self._overflow)

    def _sweep(self) -> None:
        self._sweeping = None
        now_s = self._clock.seconds()
        finished: list[Call] = []
        refused: dict[Call, int] | None = None
        for call in self._calls():
            # Calls are in the order of their deadlines: the first one with time left ends the loop.
            if not call.is_finished:
                if call.deadline_s > now_s:
                    break
                refused = refused if refused is not None else self._held_counts()
                self._give_up(call, refused, finished)
        for calls in (self._queue, self._overflow):
            while calls and calls[0].is_finished:
                calls.popleft()
        oldest = next((frame for frame in self._frames if frame.refusal is None), None)
        self._tell(finished)
        if oldest is not None:
            waited_s = now_s - oldest.sent_s
            if waited_s >= self._answer_timeout_s:
                oldest.leader.abort(f"an append was not answered within {self._answer_timeout_s:g} s")
            elif waited_s >= SILENT_S:
                self._rivals.look(oldest.leader)
        if self._queue or self._frames or self._overflow:
            self._watch()

    def _held_counts(self) -> dict[Call, int]:
        """Number of bodies of each call in held frames."""
        counts: dict[Call, int] = {}
        for frame in self._frames:
            if frame.refusal is not None:
                for call, _offset, count in frame.parts:
                    counts[call] = counts.get(call, 0) + count
        return counts

    def _give_up(self, call: Call, held_counts: dict[Call, int], finished: list[Call]) -> None:
        """Finish a call at its deadline: bodies in unanswered frames are unknown, the rest have failed."""
        held = held_counts.get(call, 0)
        call.failed += held
        call.unknown += call.open - held
        waited = f"gave up after {self._timeout_s:g} s"
        if call.unknown:
            call.error = DLedgerError(ResponseCode.TIMEOUT, reason=f"{waited}; the leader did not answer")
        elif self._refusal is not None:
            call.error = DLedgerError(self._refusal.code, reason=waited, **self._refusal.facts)
        else:
            problems = "; ".join(f"{who}: {why}" for who, why in sorted(self._members.problems.items()))
            reason = f"{waited}; no leader found" + (f" ({problems})" if problems else "")
            call.error = DLedgerError(ResponseCode.METADATA_ERROR, reason=reason)
        self._finish(call, finished)

    def close(self) -> None:
        """Fail every call: bodies in unanswered frames are unknown, the rest are not in the log."""
        if self._is_closed:
            return
        self._is_closed = True
        for timer in (self._pumping, self._resuming, self._sweeping):
            if timer is not None and timer.active():
                timer.cancel()
        self._pumping = self._resuming = self._sweeping = None
        if self._seeking is not None:
            self._seeking.cancel()
        finished: list[Call] = []
        self._refusal = DLedgerError(ResponseCode.NETWORK_ERROR, cause="the client was closed")
        held_counts = self._held_counts()
        for call in list(self._calls()):
            if not call.is_finished:
                self._give_up(call, held_counts, finished)
        self._queue.clear()
        self._overflow.clear()
        self._tell(finished)
