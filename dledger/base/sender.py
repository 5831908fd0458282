# -*- test-case-name: tests.base.test_sender,tests.client.test_append_order -*-
"""
Sends the bodies of many calls through a window of frames, and settles each call once::

    call -> pending -> frame in flight -> stored | unknown | failed
               ^              |
               +--- held -----+   only when no later frame of ours can be in the log

Rule 1: bodies are sent in the order of the calls; neighbours with the same key share a frame.
Rule 2: a held (refused) frame waits until every frame sent after it is settled. Its bodies are sent again
only if all of those were refused, too; else they fail, as sending them again would break the order.
Rule 3: only bodies that are certainly not in the log fail or are sent again.
Rule 4: calls of one stream belong together: when a body of one is unknown or has failed, the bodies of the
stream that are in no frame fail, too. So nothing follows a hole that the program does not know yet.
Rule 5: everything is bounded: pending bodies and bytes, waiting calls, frames in flight.

The target (L{SendTarget}) has the connections and the codec, and it judges the answers: its rule tells
whether a frame is stored, unknown, failed or held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from dledger.base.errors import DLedgerError
from dledger.base.timing import Alarm
from protocols.turn import Turn
from protocols.wire.ledger.codes import ResponseCode

_SWEEP_S = 0.1

_R = TypeVar("_R")


@attrs.frozen(kw_only=True)
class SendLimits:
    """
    Bounds of one sender.

    @ivar pending_count_max, pending_bytes_max: number and bytes of bodies without an outcome.
    @ivar when_full: C{fail}: a call beyond these bounds fails at once with LEADER_PENDING_FULL;
        C{wait}: it waits, and at most C{waiting_calls_max} calls wait.
    @ivar frame_count_max, frame_bytes_max: bodies in one native frame, and their bytes.
    @ivar frames_in_flight_max: native frames without an answer; bodies gather meanwhile.
    """

    pending_count_max: int = 100_000
    pending_bytes_max: int = 64 * 1024 * 1024
    when_full: str = attrs.field(default="fail", validator=attrs.validators.in_(("fail", "wait")))
    waiting_calls_max: int = 1_000
    frame_count_max: int = 512
    frame_bytes_max: int = 128 * 1024
    frames_in_flight_max: int = 8


class SendCall(Generic[_R]):
    """One call: its bodies, the number of them in frames, and their outcomes."""

    __slots__ = (
        "bodies", "deadline_s", "done", "error", "failed", "is_admitted", "is_finished", "key", "open",
        "results", "sent", "size", "stream", "unknown",
    )  # fmt: skip

    def __init__(
        self, bodies: Sequence[bytes], size: int, done: Callable[[Any], None], deadline_s: float,
        key: object = None, stream: object = None,
    ) -> None:
        self.bodies = bodies
        self.size = size  # bytes of all bodies
        self.done = done  # called once, with the outcome that the target makes
        self.deadline_s = deadline_s
        self.stream = stream  # of several calls in order; None: on its own
        self.key = key  # neighbours share a frame only if their keys are equal
        self.sent = 0  # bodies that are or were in frames; the next to send is bodies[sent]
        self.open = 0  # bodies in frames without an outcome
        self.results: list[_R] = []
        self.failed = 0
        self.unknown = 0
        self.error: DLedgerError | None = None
        self.is_admitted = False  # counted as pending; False while the call waits for room
        self.is_finished = False


#: A call, the number of its first body in the frame, and the number of its bodies there.
FramePart = tuple[SendCall[_R], int, int]


class SentFrame(Generic[_R]):
    """Bodies that are sent together; C{refusal} is set while a refused frame is held."""

    __slots__ = ("connection", "count", "is_settled", "number", "parts", "refusal", "sent_s", "size")

    def __init__(self, number: int, parts: list[FramePart[_R]], count: int, size: int, sent_s: float) -> None:
        self.number = number  # in the order of sending
        self.parts = parts
        self.count = count
        self.size = size
        self.sent_s = sent_s
        self.connection: object = None  # set by the target
        self.refusal: DLedgerError | None = None
        self.is_settled = False


class Window(NamedTuple):
    """
    The bounds of frames to the present connection.

    @ivar frames_max, bytes_max: frames without an answer, and bytes of their bodies.
    @ivar count_max: bodies in one frame.
    """

    frames_max: int
    bytes_max: int
    count_max: int


class SendTarget(Protocol[_R]):
    """The receiving end of a sender, and its rules."""

    def window(self) -> Window | None:
        """The present window; None without a connection: then L{WindowedSender.pump} is called later."""

    def transmit(self, frame: SentFrame[_R], bodies: list[bytes]) -> None:
        """Send a frame on the connection for which L{window} was asked last; its answer settles it."""

    def is_silent(self, frame: SentFrame[_R], waited_s: float) -> None:
        """The oldest frame without an answer has waited for C{waited_s} seconds."""

    def pause_s(self) -> float:
        """Seconds to wait before bodies are sent again."""

    def overdue(self, call: SendCall[_R]) -> DLedgerError:
        """The error of a call that is given up; C{unknown} and C{failed} of the call are set."""

    def outcome(self, call: SendCall[_R]) -> object:
        """The argument of C{done}."""


def fire_all(waiter: Deferred[tuple[_R, ...]], outcome: tuple[_R, ...] | Exception) -> None:
    """Fire a Deferred with the outcome of a call."""
    if isinstance(outcome, Exception):
        waiter.errback(outcome)
    else:
        waiter.callback(outcome)


def fire_one(waiter: Deferred[_R], outcome: tuple[_R, ...] | Exception) -> None:
    """Fire a Deferred with the outcome of a call with one body."""
    if isinstance(outcome, Exception):
        waiter.errback(outcome)
    else:
        waiter.callback(outcome[0])


class _Pending(Generic[_R]):
    """
    The calls with unsent bodies, and the count of all bodies without an outcome.

    @ivar queue: admitted calls. @ivar waiting: calls that wait for room; both in the order of the calls.
    """

    def __init__(self, limits: SendLimits, noun: str) -> None:
        self._limits = limits
        self._noun = noun
        self.queue: deque[SendCall[_R]] = deque()
        self.waiting: deque[SendCall[_R]] = deque()
        self.count = 0
        self.bytes = 0

    def admit(self, call: SendCall[_R]) -> bool:
        """Queue a call; False if there is no room. A call of any size fits if nothing is pending."""
        count, size = self.count + len(call.bodies), self.bytes + call.size
        limits = self._limits
        if self.count and (count > limits.pending_count_max or size > limits.pending_bytes_max):
            return False
        call.is_admitted = True
        self.queue.append(call)
        self.count, self.bytes = count, size
        return True

    def put_off(self, call: SendCall[_R]) -> str:
        """Let a call wait for room. @return: the reason why it may not wait, or empty."""
        limits = self._limits
        if limits.when_full == "wait" and len(self.waiting) < limits.waiting_calls_max:
            self.waiting.append(call)
            return ""
        return (f"{self.count} {self._noun} of {self.bytes} bytes are pending in this client; at most "
                f"{limits.pending_count_max} of {limits.pending_bytes_max} bytes are allowed")  # fmt: skip

    def admit_waiting(self) -> None:
        """Queue the waiting calls for which there is room."""
        while self.waiting and self.admit(self.waiting[0]):
            self.waiting.popleft()

    def of_stream(self, stream: object) -> list[SendCall[_R]]:
        """The calls of a stream that have unsent bodies."""
        return [call for call in chain(self.queue, self.waiting) if call.stream is stream]

    def forget_finished(self) -> None:
        """Drop finished calls at the beginning of both queues."""
        for calls in (self.queue, self.waiting):
            while calls and calls[0].is_finished:
                calls.popleft()

    def cut(self, count_max: int) -> tuple[list[bytes], list[FramePart[_R]], int]:
        """
        Take the next bodies with the same key: at least one unless nothing is queued, then up to both bounds.

        @return: the bodies, their parts, and their size in bytes.
        """
        bodies: list[bytes] = []
        parts: list[FramePart[_R]] = []
        size, bytes_max = 0, self._limits.frame_bytes_max
        queue = self.queue
        while queue and len(bodies) < count_max:
            call = queue[0]
            if call.is_finished or call.error is not None:
                queue.popleft()
                continue
            if parts and call.key != parts[0][0].key:
                break
            room = count_max - len(bodies)
            taken: Sequence[bytes]
            if not call.sent and len(call.bodies) <= room and size + call.size <= bytes_max:
                taken, taken_size = call.bodies, call.size
            else:
                taken, taken_size = _some(call, room, bytes_max - size, at_least=0 if bodies else 1)
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

    def put_back(self, call: SendCall[_R], first: int, count: int) -> None:
        """Queue bodies again that were cut; called for the last frame first."""
        call.sent = first
        call.open -= count
        if not self.queue or self.queue[0] is not call:
            self.queue.appendleft(call)


def _some(call: SendCall[_R], room: int, bytes_max: int, at_least: int) -> tuple[Sequence[bytes], int]:
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


class _Flight(Generic[_R]):
    """
    The frames that are sent and not settled.

    Invariants: C{frames} is in the order of sending; C{unanswered} and C{bytes} count those that are not
    held; C{passed} is the number of the last frame that is or may be in the log.
    """

    def __init__(self) -> None:
        self.frames: deque[SentFrame[_R]] = deque()
        self.unanswered = 0
        self.bytes = 0
        self.passed = 0
        self.is_held = False
        self._last_number = 0

    def sent(self, parts: list[FramePart[_R]], count: int, size: int, now_s: float) -> SentFrame[_R]:
        """A new frame."""
        self._last_number += 1
        frame = SentFrame(self._last_number, parts, count, size, now_s)
        self.frames.append(frame)
        self.unanswered += 1
        self.bytes += size
        return frame

    def take(self, frame: SentFrame[_R]) -> list[SentFrame[_R]]:
        """Remove a frame that is or may be in the log. @return: the held frames that it overtook."""
        self.passed = max(self.passed, frame.number)
        frame.is_settled = True
        if self.frames[0] is frame:
            self.frames.popleft()
            return []
        overtaken: list[SentFrame[_R]] = []
        kept: list[SentFrame[_R]] = []
        while (other := self.frames.popleft()) is not frame:
            (kept if other.refusal is None else overtaken).append(other)
        self.frames.extendleft(reversed(kept))
        return overtaken

    def held_counts(self) -> dict[SendCall[_R], int]:
        """Number of bodies of each call in held frames."""
        counts: dict[SendCall[_R], int] = {}
        for frame in self.frames:
            if frame.refusal is not None:
                for call, _first, count in frame.parts:
                    counts[call] = counts.get(call, 0) + count
        return counts


class WindowedSender(Generic[_R]):
    """
    Queues, sends and settles the calls for one target.

    Invariant: nothing is sent while a frame is held.
    """

    log = Logger()

    def __init__(
        self, target: SendTarget[_R], *, clock: IReactorTime, turn: Turn, limits: SendLimits,
        noun: str = "bodies",
    ) -> None:
        """
        @param turn: of the target's connections.
        @param noun: word for bodies, for errors.
        """
        self._target = target
        self._clock = clock
        self._pending: _Pending[_R] = _Pending(limits, noun)
        self._flight: _Flight[_R] = _Flight()
        # Frames of one pump leave together, without another round of the reactor.
        self._pumping = Alarm(clock, partial(turn.act, self.pump))
        self._resuming = Alarm(clock, partial(turn.act, self.pump))
        self._sweeping = Alarm(clock, self._sweep)
        self._is_in_turn = False  # turn_ended will be called
        self._is_closed = False

    @property
    def pending_count(self) -> int:
        """Number of bodies without an outcome."""
        return self._pending.count

    @property
    def pending_bytes(self) -> int:
        """Their bytes."""
        return self._pending.bytes

    @property
    def has_unsent(self) -> bool:
        """Whether a call has bodies that are not in a frame."""
        return bool(self._pending.queue or self._pending.waiting)

    @property
    def is_closed(self) -> bool:
        """Whether calls are refused."""
        return self._is_closed

    # Sending

    def submit(self, call: SendCall[_R]) -> None:
        """Send a call that has at least one body. C{done} is called in this call only if it is refused."""
        if self._is_closed:
            self.refuse(call, ResponseCode.NETWORK_ERROR, "the client is closed")
            return
        if self._pending.waiting or not self._pending.admit(call):
            problem = self._pending.put_off(call)
            if problem:
                self.refuse(call, ResponseCode.LEADER_PENDING_FULL, problem)
                return
        if not self._sweeping.is_set:
            self._sweeping.set(_SWEEP_S)
        if not (self._is_in_turn or self._pumping.is_set):
            self._pumping.set(0)

    def refuse(self, call: SendCall[_R], code: ResponseCode, reason: str) -> None:
        """Fail a call that was not submitted."""
        call.error = DLedgerError(code, reason=reason)
        call.failed = len(call.bodies)
        call.done(self._target.outcome(call))

    def turn_ended(self) -> None:
        """All answers of one read have been settled: send the bodies that gathered meanwhile."""
        self._is_in_turn = False
        self.pump()

    def pump(self) -> None:
        """Send as many frames as the window allows."""
        pending, flight = self._pending, self._flight
        if pending.waiting:
            pending.admit_waiting()
        if not pending.queue or self._waits():
            return
        window = self._target.window()
        if window is None:
            return
        while pending.queue and flight.unanswered < window.frames_max and flight.bytes < window.bytes_max:
            bodies, parts, size = pending.cut(window.count_max)
            if not parts:
                return
            frame = flight.sent(parts, len(bodies), size, self._clock.seconds())
            was_in_turn = self._is_in_turn
            self._target.transmit(frame, bodies)
            self._is_in_turn = was_in_turn  # a frame that is refused at once is answered outside a turn
            if self._waits():
                return

    def _waits(self) -> bool:
        return self._flight.is_held or self._resuming.is_set or self._is_closed

    def pause(self) -> None:
        """Send nothing for C{pause_s} seconds of the target."""
        if not (self._resuming.is_set or self._is_closed):
            self._resuming.set(self._target.pause_s())

    # Outcomes

    def answered(self, frame: SentFrame[_R]) -> bool:
        """An answer to a frame has come, or will never come. @return: False if it is settled already."""
        self._is_in_turn = True
        if frame.is_settled:
            return False
        self._flight.unanswered -= 1
        self._flight.bytes -= frame.size
        return True

    def settle_stored(self, frame: SentFrame[_R], results: Sequence[_R]) -> None:
        """The frame is in the log. @param results: one result for each part."""
        overtaken = self._flight.take(frame)
        finished: list[SendCall[_R]] = []
        for (call, _first, count), result in zip(frame.parts, results, strict=True):
            if not call.is_finished:
                call.results.append(result)
                self._close_part(call, count, finished)
        self._fail_overtaken(overtaken, finished)
        self._tell(finished)

    def settle_unknown(self, frame: SentFrame[_R], error: DLedgerError) -> None:
        """The frame may be in the log, now or later."""
        overtaken = self._flight.take(frame)
        finished: list[SendCall[_R]] = []
        for call, _first, count in frame.parts:
            if not call.is_finished:
                call.unknown += count
                self._break(call, error, finished)
                self._close_part(call, count, finished)
        self._fail_overtaken(overtaken, finished)
        self._tell(finished)

    def settle_failed(self, frame: SentFrame[_R], error: DLedgerError) -> None:
        """The frame is not in the log, and is not sent again."""
        self._flight.frames.remove(frame)
        finished: list[SendCall[_R]] = []
        self._fail(frame, error, finished)
        self._tell(finished)

    def hold(self, frame: SentFrame[_R], error: DLedgerError) -> bool:
        """
        The frame is not in the log. Hold it until L{resolve_held}.

        @return: False if it may not be sent again, and has failed: a later frame is or may be in the log.
        """
        if frame.number < self._flight.passed:
            self.settle_failed(frame, error)
            return False
        frame.refusal = error
        self._flight.is_held = True
        return True

    def resolve_held(self) -> None:
        """Once every sent frame is settled or held, put the held bodies back in order, and pause."""
        flight = self._flight
        if not flight.is_held or flight.unanswered:
            return
        flight.is_held = False
        finished: list[SendCall[_R]] = []
        while flight.frames:
            frame = flight.frames.pop()
            frame.is_settled = True
            for call, first, count in reversed(frame.parts):
                if call.is_finished:
                    continue
                if call.error is None:
                    self._pending.put_back(call, first, count)
                else:
                    call.failed += count
                    self._close_part(call, count, finished)
        self.pause()
        self._tell(finished)

    def _fail_overtaken(self, overtaken: list[SentFrame[_R]], finished: list[SendCall[_R]]) -> None:
        for frame in overtaken:
            assert frame.refusal is not None
            self._fail(frame, frame.refusal, finished)

    def _fail(self, frame: SentFrame[_R], error: DLedgerError, finished: list[SendCall[_R]]) -> None:
        frame.is_settled = True
        for call, _first, count in frame.parts:
            if not call.is_finished:
                call.failed += count
                self._break(call, error, finished)
                self._close_part(call, count, finished)

    def _break(self, call: SendCall[_R], error: DLedgerError, finished: list[SendCall[_R]]) -> None:
        """A body of a call was not stored: nothing more of the call is sent, nor of its stream."""
        had_error, call.error = call.error is not None, call.error or error
        if had_error or call.stream is None:
            return
        for later in self._pending.of_stream(call.stream):
            if later.error is None and not later.is_finished:
                later.error = error
                if not later.open:
                    self._finish(later, finished)

    def _close_part(self, call: SendCall[_R], count: int, finished: list[SendCall[_R]]) -> None:
        call.open -= count
        if not call.open and (call.error is not None or call.sent == len(call.bodies)):
            self._finish(call, finished)

    def _finish(self, call: SendCall[_R], finished: list[SendCall[_R]]) -> None:
        call.failed += len(call.bodies) - call.sent  # the rest of a failed call is not sent
        call.is_finished = True
        if call.is_admitted:
            self._pending.count -= len(call.bodies)
            self._pending.bytes -= call.size
        finished.append(call)

    def _tell(self, finished: list[SendCall[_R]]) -> None:
        for call in finished:
            try:
                call.done(self._target.outcome(call))
            except Exception:
                self.log.failure("the callback of a call raised an error")

    # Deadlines and the end

    def _calls(self) -> Iterator[SendCall[_R]]:
        in_frames = (call for frame in self._flight.frames for call, _first, _count in frame.parts)
        return chain(in_frames, self._pending.queue, self._pending.waiting)

    def _sweep(self) -> None:
        now_s = self._clock.seconds()
        finished: list[SendCall[_R]] = []
        held: dict[SendCall[_R], int] | None = None
        for call in self._calls():
            # Calls are in the order of their deadlines: the first one with time left ends the loop.
            if not call.is_finished:
                if call.deadline_s > now_s:
                    break
                held = held if held is not None else self._flight.held_counts()
                self._give_up(call, held, finished)
        self._pending.forget_finished()
        oldest = next((frame for frame in self._flight.frames if frame.refusal is None), None)
        self._tell(finished)
        if oldest is not None:
            self._target.is_silent(oldest, now_s - oldest.sent_s)
        if (self.has_unsent or self._flight.frames) and not self._is_closed:
            self._sweeping.set(_SWEEP_S)

    def _give_up(
        self, call: SendCall[_R], held_counts: dict[SendCall[_R], int],
        finished: list[SendCall[_R]],
    ) -> None:
        """Finish a call: bodies in frames without an answer are unknown, the rest have failed."""
        held = held_counts.get(call, 0)
        call.failed += held
        call.unknown += call.open - held
        error = self._target.overdue(call)
        self._break(call, error, finished)
        call.error = error
        self._finish(call, finished)

    def close(self) -> None:
        """Give up every call, and refuse further ones."""
        if self._is_closed:
            return
        self._is_closed = True
        for alarm in (self._pumping, self._resuming, self._sweeping):
            alarm.cancel()
        finished: list[SendCall[_R]] = []
        held_counts = self._flight.held_counts()
        for call in list(self._calls()):
            if not call.is_finished:
                self._give_up(call, held_counts, finished)
        self._pending.queue.clear()
        self._pending.waiting.clear()
        self._tell(finished)
