# -*- test-case-name: tests.base.test_sender -*-
"""
The state of a L{dledger.base.sending.sender.WindowedSender}: calls with unsent bodies, frames in flight,
numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

import attrs

from dledger.values.errors import DLedgerError

_R = TypeVar("_R")


#: Most bodies that a frame may have: of those of a broker, which takes fewer than a member.
FRAME_COUNT_MAX = 2048


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
    frame_count_max: int = attrs.field(default=512, validator=attrs.validators.le(FRAME_COUNT_MAX))
    frame_bytes_max: int = 128 * 1024
    frames_in_flight_max: int = 8


class SendCall(Generic[_R]):
    """
    One call: its bodies, the number of them in frames, and their outcomes.

    @ivar bodies, count, size: the bodies, their number, and the bytes of all.
    @ivar done: called once, with the outcome that the target makes.
    @ivar stream: of several calls in order; None: on its own.
    @ivar key: neighbours share a frame only if their keys are equal.
    @ivar sent: bodies that are or were in frames; the next to send is C{bodies[sent]}.
    @ivar open: bodies in frames without an outcome.
    @ivar results: of the parts that are stored.
    @ivar failed, unknown: bodies that are certainly not stored, and that may be.
    @ivar is_waiting: for room; it does not count as pending.
    @ivar producer, base: that gave numbers to its bodies, and the number of the first; empty: none did yet.
    @ivar maybe: bodies before this one may be in the log though no answer has said so.
    """

    # (Most calls never have one of their own.)
    results: tuple[_R, ...] = ()
    failed = unknown = base = maybe = 0
    producer = ""
    is_waiting = False

    def __init__(
        self, bodies: Sequence[bytes], size: int, done: Callable[..., None], deadline_s: float,
        key: object = None, stream: object = None,
    ) -> None:
        self.bodies = bodies
        self.count = len(bodies)
        self.size = size
        self.done = done
        self.deadline_s = deadline_s
        self.stream = stream
        self.key = key
        self.sent = self.open = 0
        self.error: DLedgerError | None = None
        self.is_finished = False


class Numbers:
    """
    Numbers the bodies of a sender, so that the log takes each of them once (docs/exactly-once.md).

    A number is given when a body is sent for the first time. When a numbered body is given up, its number may
    stay free for ever, and the log takes none after it: a new producer begins.

    @ivar producer: its id.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._next = 0
        self.producer = new_id()

    def of(self, call: SendCall[_R]) -> tuple[str, int]:
        """Producer and number of the next body of a call to be sent."""
        if call.producer != self.producer:
            call.producer = self.producer
            call.base = self._next - call.sent
        return call.producer, call.base + call.sent

    def used(self, number: int) -> None:
        """The numbers before this one were sent."""
        self._next = max(self._next, number)

    def given_up(self, call: SendCall[_R]) -> None:
        """Not all bodies of a call will be sent."""
        if call.producer == self.producer:
            self.producer = self._new_id()
            self._next = 0


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


class PendingCalls(Generic[_R]):
    """
    The calls with unsent bodies, and the count of all bodies without an outcome.

    @ivar queue: admitted calls. @ivar waiting: calls that wait for room; both in the order of the calls.
    """

    def __init__(self, limits: SendLimits, noun: str, numbers: Numbers | None) -> None:
        self._limits = limits
        self._count_max = limits.pending_count_max
        self._bytes_max = limits.pending_bytes_max
        self._noun = noun
        self._numbers = numbers
        self.queue: deque[SendCall[_R]] = deque()
        self.waiting: deque[SendCall[_R]] = deque()
        self.count = 0
        self.bytes = 0

    def admit(self, call: SendCall[_R]) -> bool:
        """Queue a call; False if there is no room. A call of any size fits if nothing is pending."""
        before = self.count
        count, size = before + call.count, self.bytes + call.size
        if (count > self._count_max or size > self._bytes_max) and before:
            return False
        self.queue.append(call)
        self.count = count
        self.bytes = size
        return True

    def put_off(self, call: SendCall[_R]) -> str:
        """Let a call wait for room. @return: the reason why it may not wait, or empty."""
        limits = self._limits
        if limits.when_full == "wait" and len(self.waiting) < limits.waiting_calls_max:
            call.is_waiting = True
            self.waiting.append(call)
            return ""
        return (f"{self.count} {self._noun} of {self.bytes} bytes are pending in this client; at most "
                f"{limits.pending_count_max} of {limits.pending_bytes_max} bytes are allowed")

    def admit_waiting(self) -> None:
        """Queue the waiting calls for which there is room."""
        while self.waiting and (self.waiting[0].is_finished or self.admit(self.waiting[0])):
            self.waiting.popleft().is_waiting = False

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
        size, room, bytes_max = 0, count_max, self._limits.frame_bytes_max
        queue, numbers, key = self.queue, self._numbers, None
        while queue and room > 0:
            call = queue[0]
            if call.error is not None:  # it is finished, or will be
                queue.popleft()
                continue
            if not parts:
                key = call.key
            elif call.key != key or (numbers is not None and not self._follows(call, parts, numbers)):
                break
            first, count, whole_size = call.sent, call.count, size + call.size
            if not first and count <= room and whole_size <= bytes_max:
                bodies += call.bodies
                size = whole_size
                queue.popleft()
            else:
                taken, taken_size = _some(call, room, bytes_max - size, at_least=0 if bodies else 1)
                if not taken:
                    break
                count = len(taken)
                bodies += taken
                size += taken_size
                if first + count == call.count:
                    queue.popleft()
                else:
                    room = 0
            room -= count
            parts.append((call, first, count))
            if numbers is not None:
                numbers.used(numbers.of(call)[1] + count)
            call.sent = first + count
            call.open += count
        return bodies, parts, size

    @staticmethod
    def _follows(call: SendCall[_R], parts: list[FramePart[_R]], numbers: Numbers) -> bool:
        """Whether the numbers of a call go on where a frame ends."""
        last, first, count = parts[-1]
        return numbers.of(call) == (last.producer, last.base + first + count)

    def put_back(self, call: SendCall[_R], first: int, count: int) -> None:
        """Queue bodies again that were cut; called for the last frame first."""
        call.sent = first
        call.open -= count
        if not self.queue or self.queue[0] is not call:
            self.queue.appendleft(call)


def _some(call: SendCall[_R], room: int, bytes_max: int, at_least: int) -> tuple[Sequence[bytes], int]:
    size = 0
    end = call.sent
    last = min(call.count, call.sent + room)
    while end < last:
        size_with_next = size + len(call.bodies[end])
        if size_with_next > bytes_max and end - call.sent >= at_least:
            break
        size = size_with_next
        end += 1
    return call.bodies[call.sent : end], size


class Flight(Generic[_R]):
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
        if frame.number > self.passed:
            self.passed = frame.number
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
