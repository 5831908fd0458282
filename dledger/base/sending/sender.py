# -*- test-case-name: tests.base.test_sender,tests.client.test_append_order -*-
"""
Sends the bodies of many calls through a window of frames, and settles each call once::

    call -> pending -> frame in flight -> stored | unknown | failed
               ^              |
               +--- held -----+   only when no later frame of ours can be in the log

Rule 1: bodies are sent in the order of the calls; neighbours with the same key share a frame.
Rule 2: a held (refused) frame waits until every frame sent after it is settled. Its bodies are sent again
only if all of those were refused, too; else they fail, as sending them again would break the order.
Rule 3: only bodies that are certainly not in the log fail or are sent again. With L{Numbers} the log itself
takes no body twice: then those that may be in it are sent again, too, and the frames after them after them.
Rule 4: calls of one stream belong together: when a body of one is unknown or has failed, the bodies of the
stream that are in no frame fail, too. So nothing follows a hole that the program does not know yet.
Rule 5: everything is bounded: pending bodies and bytes, waiting calls, frames in flight.
Rule 6: calls of one turn share frames. A call of a program that seems to wait for each does not wait for the
end of the turn: nothing is pending, and the call before it was answered before another one came.

The target (L{SendTarget}) has the connections and the codec, and it judges the answers: its rule says
whether a frame is stored, unknown, failed or held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from dledger.base.sending.send_queue import (
    Flight,
    FramePart,
    Numbers,
    PendingCalls,
    SendCall,
    SendLimits,
    SentFrame,
    Window,
)
from dledger.base.timing import Alarm
from dledger.values.errors import DLedgerError
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode

_SWEEP_S = 0.1

_R = TypeVar("_R")


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


class WindowedSender(Generic[_R]):
    """
    Queues, sends and settles the calls for one target.

    Invariant: nothing is sent while a frame is held.
    """

    log = Logger()

    def __init__(
        self, target: SendTarget[_R], *, clock: IReactorTime, turn: Turn, limits: SendLimits,
        noun: str = "bodies", numbers: Numbers | None = None,
    ) -> None:
        """
        @param turn: of the target's connections.
        @param noun: word for bodies, for errors.
        @param numbers: of bodies that the log takes once; None: a body that may be in it is not sent again.
        """
        self._target = target
        self._clock = clock
        self._pending: PendingCalls[_R] = PendingCalls(limits, noun, numbers)
        self._numbers = numbers
        self._producer = "" if numbers is None else numbers.producer
        self._flight: Flight[_R] = Flight()
        # Frames of one pump leave together, without another round of the reactor.
        self._pumping = Alarm(clock, partial(turn.read, self.pump))
        self._resuming = Alarm(clock, partial(turn.read, self.pump))
        self._sweeping = Alarm(clock, self._sweep)
        self._turn = turn
        self._is_in_turn = False  # turn_ended will be called
        self._since_idle = 0  # calls since nothing was pending
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

    def submit(self, call: SendCall[_R], *, at_once: bool = False) -> None:
        """
        Send a call that has at least one body. C{done} is called in this call only if it is refused.

        @param at_once: do not wait for further calls of this turn.
        """
        if self._is_closed:
            self.refuse(call, ResponseCode.NETWORK_ERROR, "the client is closed")
            return
        if not self._pending.count:
            at_once = at_once or self._since_idle == 1
            self._since_idle = 0
        self._since_idle += 1
        if self._pending.waiting or not self._pending.admit(call):
            problem = self._pending.put_off(call)
            if problem:
                self.refuse(call, ResponseCode.LEADER_PENDING_FULL, problem)
                return
        if not self._sweeping.is_set:
            self._sweeping.set(_SWEEP_S)
        if self._is_in_turn or self._pumping.is_set:
            return
        if at_once:
            self._turn.read(self.pump)
        else:
            self._pumping.set(0)

    def refuse(self, call: SendCall[_R], code: ResponseCode, reason: str) -> None:
        """Fail a call that was not submitted."""
        call.error = DLedgerError(code, reason=reason)
        call.failed = call.count
        call.done(self._target.outcome(call))

    def turn_ended(self) -> None:
        """All answers of one read have been settled: send the bodies that gathered meanwhile."""
        self._is_in_turn = False
        if self._pending.queue or self._pending.waiting:
            self.pump()

    def pump(self) -> None:
        """Send as many frames as the window allows."""
        pending, flight = self._pending, self._flight
        if pending.waiting:
            pending.admit_waiting()
        if not pending.queue or flight.is_held or self._resuming.is_set or self._is_closed:
            return
        window = self._target.window()
        if window is None:
            return
        numbers = self._numbers
        while pending.queue and flight.unanswered < window.frames_max and flight.bytes < window.bytes_max:
            if numbers is not None and numbers.producer != self._producer:
                self._producer = numbers.producer
                self._give_up_lost(numbers)
            bodies, parts, size = pending.cut(window.count_max)
            if not parts:
                return
            frame = flight.sent(parts, len(bodies), size, self._clock.seconds())
            was_in_turn = self._is_in_turn
            self._target.transmit(frame, bodies)
            self._is_in_turn = was_in_turn  # a frame that is refused at once is answered outside a turn
            if pending.queue and self._waits():
                return

    def _give_up_lost(self, numbers: Numbers) -> None:
        """Bodies that may be in the log under numbers of an earlier producer can be sent no more."""
        finished: list[SendCall[_R]] = []
        for call in list(self._pending.queue):
            if call.is_finished or call.sent >= call.maybe or call.producer == numbers.producer:
                continue
            reason = "an earlier append of this client was given up; this one may be in the log"
            self._break(call, DLedgerError(ResponseCode.UNKNOWN, reason=reason), finished)
            call.unknown += call.maybe - call.sent
            call.sent = call.maybe
            if not call.open:
                self._finish(call, finished)
        self._notify(finished)

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
        """
        The frame is in the log; then L{resolve_held}.

        @param results: one result for each part.
        """
        overtaken = self._flight.take(frame)
        finished: list[SendCall[_R]] = []
        pending = self._pending
        whole = size = 0
        for (call, _first, count), result in zip(frame.parts, results, strict=True):
            if count == call.count and call.error is None:  # the whole call, as most are
                call.results = (result,)
                call.is_finished = True
                whole += count
                size += call.size
                finished.append(call)
            elif not call.is_finished:
                call.results = (*call.results, result)
                self._close_part(call, count, finished)
        pending.count -= whole
        pending.bytes -= size
        if overtaken:
            self._fail_overtaken(overtaken, finished)
        self._notify(finished)
        if self._flight.is_held:
            self.resolve_held()

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
        self._notify(finished)

    def settle_failed(self, frame: SentFrame[_R], error: DLedgerError) -> None:
        """The frame is not in the log, and is not sent again."""
        self._flight.frames.remove(frame)
        finished: list[SendCall[_R]] = []
        self._fail(frame, error, finished)
        self._notify(finished)

    def hold(self, frame: SentFrame[_R], error: DLedgerError) -> bool:
        """
        The frame is not in the log. Hold it until L{resolve_held}.

        @return: False if it may not be sent again, and has failed: a later frame is or may be in the log.
        """
        if self._numbers is None and frame.number < self._flight.passed:
            self.settle_failed(frame, error)
            return False
        frame.refusal = error
        self._flight.is_held = True
        return True

    def hold_unknown(self, frame: SentFrame[_R], error: DLedgerError) -> None:
        """A frame with numbers may be in the log. Hold it until L{resolve_held}, and send it again then."""
        assert self._numbers is not None
        for call, first, count in frame.parts:
            call.maybe = max(call.maybe, first + count)
        self.hold(frame, error)

    def is_behind_held(self, frame: SentFrame[_R]) -> bool:
        """Whether a frame that was sent before this one is held."""
        return self._flight.is_held and any(
            other.refusal is not None and other.number < frame.number for other in self._flight.frames
        )

    @staticmethod
    def is_maybe(frame: SentFrame[_R]) -> bool:
        """Whether a body of a frame may be in the log by an earlier attempt."""
        return any(first < call.maybe for call, first, _count in frame.parts)

    def is_oldest(self, frame: SentFrame[_R]) -> bool:
        """Whether no earlier frame is without an outcome."""
        return self._flight.frames[0] is frame

    def hold_rest(self, frame: SentFrame[_R], count: int, error: DLedgerError) -> None:
        """An answer is about the first bodies of a frame only: hold the rest as one of its own."""
        parts: list[FramePart[_R]] = []
        kept: list[FramePart[_R]] = []
        left = count
        for call, first, number in frame.parts:
            taken = min(left, number)
            left -= taken
            if taken:
                kept.append((call, first, taken))
            if taken < number:
                parts.append((call, first + taken, number - taken))
        rest = SentFrame(frame.number, parts, frame.count - count, 0, frame.sent_s)
        frame.parts = kept
        frame.count = count
        self._flight.frames.insert(self._flight.frames.index(frame) + 1, rest)
        self.hold_unknown(rest, error)

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
                    self._not_stored(call, first, count)
                    self._close_part(call, count, finished)
        self.pause()
        self._notify(finished)

    @staticmethod
    def _not_stored(call: SendCall[_R], first: int, count: int) -> None:
        if first < call.maybe:
            call.unknown += count
        else:
            call.failed += count

    def _fail_overtaken(self, overtaken: list[SentFrame[_R]], finished: list[SendCall[_R]]) -> None:
        for frame in overtaken:
            assert frame.refusal is not None
            self._fail(frame, frame.refusal, finished)

    def _fail(self, frame: SentFrame[_R], error: DLedgerError, finished: list[SendCall[_R]]) -> None:
        frame.is_settled = True
        for call, first, count in frame.parts:
            if not call.is_finished:
                self._not_stored(call, first, count)
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
        if not call.open and (call.error is not None or call.sent == call.count):
            self._finish(call, finished)

    def _finish(self, call: SendCall[_R], finished: list[SendCall[_R]]) -> None:
        call.failed += call.count - call.sent  # the rest of a failed call is not sent
        call.is_finished = True
        if call.error is not None and self._numbers is not None:
            self._numbers.given_up(call)
        if not call.is_waiting:
            self._pending.count -= call.count
            self._pending.bytes -= call.size
        finished.append(call)

    def _notify(self, finished: list[SendCall[_R]]) -> None:
        outcome = self._target.outcome
        for call in finished:
            try:
                call.done(outcome(call))
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
        self._notify(finished)
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
        stored, sent = call.sent - call.open, max(call.sent, call.maybe)
        if call.maybe > stored:
            call.unknown += sent - stored
            call.sent = sent
        else:
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
        self._notify(finished)
