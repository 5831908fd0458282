# -*- test-case-name: tests.base.test_sender -*-
"""The sender by itself: windows, keys, outcomes; its order is tested with the client's appends."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.sending.bodies import misfit
from dledger.base.sending.send_queue import SendCall, SendLimits, SentFrame, Window
from dledger.base.sending.sender import WindowedSender, fire_all, fire_one
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from tests.protocols.fakes import turn_of

BUSY = DLedgerError(ResponseCode.LEADER_PENDING_FULL)


class Target:
    """Keeps the frames that it is to send."""

    def __init__(self) -> None:
        self.present: Window | None = Window(2, 1000, 3)
        self.sent: list[tuple[SentFrame[int], list[bytes]]] = []
        self.refuses: WindowedSender[int] | None = None
        self.silences: list[float] = []

    def window(self) -> Window | None:
        """As C{present} says."""
        return self.present

    def transmit(self, frame: SentFrame[int], bodies: list[bytes]) -> None:
        """Remember the frame, or refuse it at once."""
        self.sent.append((frame, bodies))
        if self.refuses is not None:
            self.refuses.answered(frame)
            self.refuses.settle_failed(frame, BUSY)

    def is_silent(self, frame: SentFrame[int], waited_s: float) -> None:
        """Remember the time."""
        self.silences.append(round(waited_s, 3))

    def pause_s(self) -> float:
        """Always the same."""
        return 0.5

    def overdue(self, call: SendCall[int]) -> DLedgerError:
        """Always the same."""
        return DLedgerError(ResponseCode.TIMEOUT)

    def outcome(self, call: SendCall[int]) -> object:
        """Everything that is known."""
        code = None if call.error is None else call.error.code
        return code, tuple(call.results), call.failed, call.unknown


class SenderCase(SynchronousTestCase):
    """A sender that leaves no timer."""

    limits = SendLimits()

    def setUp(self) -> None:
        self.clock = Clock()
        self.target = Target()
        self.sender: WindowedSender[int] = WindowedSender(
            self.target, clock=self.clock, turn=turn_of(self.clock), limits=self.limits
        )
        self.reported: list[Any] = []
        self.addCleanup(self.close)

    def close(self) -> None:
        """Nothing is left."""
        self.sender.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual((self.sender.pending_count, self.sender.pending_bytes), (0, 0))

    def submit(self, *bodies: bytes, key: object = None, stream: object = None) -> None:
        """One call; its outcome goes into C{reported}."""
        deadline_s = self.clock.seconds() + 5.0
        size = sum(map(len, bodies))
        self.sender.submit(SendCall(bodies, size, self.reported.append, deadline_s, key, stream))

    def answer(self, at: int, result: int | None = None, error: DLedgerError | None = None) -> None:
        """Settle a frame: stored with the same result for all parts, or unknown."""
        frame, _ = self.target.sent[at]
        if self.sender.answered(frame):
            if error is not None:
                self.sender.settle_unknown(frame, error)
            else:
                assert result is not None
                self.sender.settle_stored(frame, [result] * len(frame.parts))
            self.sender.resolve_held()
        self.sender.turn_ended()

    @property
    def frames(self) -> list[list[bytes]]:
        """Bodies of each frame."""
        return [bodies for _, bodies in self.target.sent]


class WindowTests(SenderCase):
    """What is sent when."""

    def test_window(self) -> None:
        """Frames are bounded in number and count; bodies gather meanwhile; calls of a turn share frames."""
        for at in range(8):
            self.submit(b"%d" % at)
        self.assertEqual(self.frames, [])
        self.clock.advance(0)
        self.assertEqual(self.frames, [[b"0", b"1", b"2"], [b"3", b"4", b"5"]])
        self.answer(0, 7)
        self.assertEqual(self.frames[2:], [[b"6", b"7"]])
        self.assertEqual(self.reported, [(None, (7,), 0, 0)] * 3)

    def test_one_after_the_other(self) -> None:
        """A program that waits for each call does not wait for the end of the turn, from the second on."""
        self.submit(b"a")
        self.assertEqual(self.frames, [])  # others may follow
        self.clock.advance(0)
        self.answer(0, 1)
        self.submit(b"b")
        self.assertEqual(self.frames, [[b"a"], [b"b"]])
        self.answer(1, 2)
        # Those that come while one is under way share a frame, and then a turn counts again.
        self.submit(b"c")
        self.submit(b"d")
        self.submit(b"e")
        self.assertEqual(self.frames[2:], [[b"c"]])
        self.clock.advance(0)
        self.assertEqual(self.frames[2:], [[b"c"], [b"d", b"e"]])
        self.answer(2, 3)
        self.answer(3, 4)
        self.submit(b"f")
        self.assertEqual(self.frames[4:], [])
        self.clock.advance(0)
        self.assertEqual(self.frames[4:], [[b"f"]])
        self.answer(4, 5)
        self.assertEqual([reported[1] for reported in self.reported], [(1,), (2,), (3,), (4,), (4,), (5,)])

    def test_bytes(self) -> None:
        """Frames are bounded in bytes without an answer, too."""
        self.target.present = Window(9, 10, 3)
        for _ in range(3):
            self.submit(b"x" * 6, key=object())
        self.clock.advance(0)
        self.assertEqual(len(self.frames), 2)

    def test_keys(self) -> None:
        """Neighbours with equal keys share a frame; nothing is overtaken."""
        self.target.present = Window(9, 1000, 9)
        for key in "aabba":
            self.submit(key.encode(), key=(key, 1))
        self.clock.advance(0)
        self.assertEqual(self.frames, [[b"a", b"a"], [b"b", b"b"], [b"a"]])

    def test_no_connection(self) -> None:
        """Without a window nothing is sent, until the target says that there is one."""
        self.target.present = None
        self.submit(b"a")
        self.clock.advance(0)
        self.assertEqual((self.frames, self.sender.has_unsent), ([], True))
        self.target.present = Window(1, 1, 1)
        self.sender.pump()
        self.assertEqual((self.frames, self.sender.has_unsent), ([[b"a"]], False))

    def test_refused_at_once(self) -> None:
        """A frame that fails while it is handed over does not end the sending."""
        self.target.refuses = self.sender
        self.submit(b"a", b"b", b"c", b"d")
        self.submit(b"e", b"f", b"g")
        self.clock.advance(0)
        self.assertEqual(self.frames, [[b"a", b"b", b"c"], [b"e", b"f", b"g"]])
        self.assertEqual([failed for _, _, failed, _ in self.reported], [4, 3])
        self.target.refuses = None
        self.submit(b"h")
        self.clock.advance(0)
        self.assertEqual(self.frames[2:], [[b"h"]])

    def test_silence(self) -> None:
        """The target is informed of the oldest frame without an answer, and of no held one."""
        self.submit(b"a")
        self.clock.advance(0)
        self.clock.advance(0.1)
        self.assertEqual(self.target.silences, [0.1])
        frame, _ = self.target.sent[0]
        self.sender.answered(frame)
        self.assertTrue(self.sender.hold(frame, BUSY))
        self.clock.advance(0.1)
        self.assertEqual(self.target.silences, [0.1])


class OutcomeTests(SenderCase):
    """What callers hear."""

    def test_held(self) -> None:
        """Refused bodies are sent again after a pause, in order; not if a later frame may be in the log."""
        self.submit(b"a", b"b", b"c", b"d")
        self.clock.advance(0)
        for at in (1, 0):
            frame, _ = self.target.sent[at]
            self.assertTrue(self.sender.answered(frame) and self.sender.hold(frame, BUSY))
        self.sender.resolve_held()
        self.sender.turn_ended()
        self.clock.advance(0.4)
        self.assertEqual(len(self.frames), 2)
        self.clock.advance(0.1)
        self.assertEqual(self.frames[2:], [[b"a", b"b", b"c"], [b"d"]])
        self.answer(3, 9)
        frame, _ = self.target.sent[2]
        self.assertTrue(self.sender.answered(frame))
        self.assertFalse(self.sender.hold(frame, BUSY))
        self.assertEqual(self.reported, [(ResponseCode.LEADER_PENDING_FULL, (9,), 3, 0)])

    def test_stream(self) -> None:
        """After an unknown body nothing more of its stream is sent; other calls go on."""
        self.target.present = Window(1, 1000, 1)
        mine = object()
        for body, stream in ((b"a", mine), (b"b", mine), (b"c", None), (b"d", mine)):
            self.submit(body, stream=stream)
        self.submit(b"e", b"f", stream=mine)
        self.clock.advance(0)
        self.answer(0, error=DLedgerError(ResponseCode.NETWORK_ERROR))
        self.answer(1, 7)
        self.assertEqual(self.frames, [[b"a"], [b"c"]])
        lost = ResponseCode.NETWORK_ERROR
        self.assertEqual(self.reported, [
            (lost, (), 1, 0), (lost, (), 1, 0), (lost, (), 2, 0), (lost, (), 0, 1), (None, (7,), 0, 0),
        ])

    def test_stream_that_is_partly_sent(self) -> None:
        """A later call that has begun is settled by its frames; its rest fails."""
        self.target.present = Window(2, 1000, 1)
        mine = object()
        self.submit(b"a", stream=mine)
        self.submit(b"b", b"c", stream=mine)
        self.clock.advance(0)
        self.answer(0, error=DLedgerError(ResponseCode.NETWORK_ERROR))
        self.assertEqual(self.reported, [(ResponseCode.NETWORK_ERROR, (), 0, 1)])
        self.answer(1, 7)
        self.assertEqual(self.reported[1:], [(ResponseCode.NETWORK_ERROR, (7,), 1, 0)])
        self.assertEqual(self.frames, [[b"a"], [b"b"]])

    def test_stream_past_its_deadline(self) -> None:
        """An unknown outcome for want of time ends the stream, too."""
        self.target.present = Window(1, 1000, 1)
        mine = object()
        self.submit(b"a", stream=mine)
        self.clock.advance(0)
        self.clock.advance(4.0)
        self.submit(b"b", stream=mine)
        self.clock.advance(1.2)
        self.assertEqual(self.reported, [
            (ResponseCode.TIMEOUT, (), 1, 0), (ResponseCode.TIMEOUT, (), 0, 1),
        ])

    def test_deadline(self) -> None:
        """Bodies in frames are unknown, the rest have failed; a late answer is ignored."""
        self.target.present = Window(1, 1000, 3)
        self.submit(b"a", b"b", b"c", b"d", b"e")
        self.clock.advance(0)
        self.clock.pump([0.1] * 51)
        self.assertEqual(self.reported, [(ResponseCode.TIMEOUT, (), 2, 3)])
        self.answer(0, 1)
        self.assertEqual(len(self.reported), 1)

    def test_callback_that_raises(self) -> None:
        """It is logged, and the others are informed."""

        def broken(_outcome: object) -> None:
            raise RuntimeError("planted")

        self.sender.submit(SendCall((b"a",), 1, broken, 5.0))
        self.submit(b"b")
        self.clock.advance(0)
        self.answer(0, 3)
        self.assertEqual(self.reported, [(None, (3,), 0, 0)])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_closed(self) -> None:
        """Calls are given up, later ones are refused, and closing again does nothing."""
        self.submit(b"a")
        self.clock.advance(0)
        self.submit(b"b", b"c", b"d", key=1)
        self.sender.close()
        self.sender.close()
        self.submit(b"e")
        self.assertEqual([(code, failed, unknown) for code, _, failed, unknown in self.reported], [
            (ResponseCode.TIMEOUT, 0, 1), (ResponseCode.TIMEOUT, 3, 0), (ResponseCode.NETWORK_ERROR, 1, 0),
        ])


class WaitingTests(SenderCase):
    """Calls beyond the bounds that may wait."""

    limits = SendLimits(pending_count_max=2, when_full="wait", waiting_calls_max=1)

    def test_waiting(self) -> None:
        """One waits, the next is refused; the first is sent when there is room."""
        for body in (b"a", b"b", b"c", b"d"):
            self.submit(body)
        self.assertEqual(self.reported, [(ResponseCode.LEADER_PENDING_FULL, (), 1, 0)])
        self.clock.advance(0)
        self.answer(0, 1)
        self.assertEqual(self.frames, [[b"a", b"b"], [b"c"]])

    def test_one_that_fails_while_it_waits(self) -> None:
        """It takes no room: the next call is sent."""
        for body in (b"a", b"b", b"c"):
            self.submit(body)
        calls = self.sender._pending
        calls.waiting[0].is_finished = True
        calls.admit_waiting()
        self.assertEqual((calls.count, len(calls.waiting)), (2, 0))


class HelperTests(SynchronousTestCase):
    """The small functions."""

    def test_misfit(self) -> None:
        """Types and sizes."""
        self.assertEqual(misfit((b"abc",), 3, 3), "")
        self.assertEqual(misfit((b"abc", b""), 3, 3), "")
        self.assertEqual(misfit((b"abc", b"d"), 4, 3), "")
        self.assertIn("has 4 bytes; at most 3", misfit((b"abcd",), 4, 3))
        self.assertIn("has 4 bytes; at most 3", misfit((b"a", b"abcd"), 5, 3))
        self.assertIn("not str", misfit(("a",), 1, 3))  # type: ignore[arg-type]
        self.assertIn("not bytearray", misfit((b"a", bytearray(b"a")), 2, 3))  # type: ignore[arg-type]

    def test_fired(self) -> None:
        """Deferreds of one and of many results."""
        one: Deferred[int] = Deferred()
        fire_one(one, (1,))
        self.assertEqual(self.successResultOf(one), 1)
        many: Deferred[tuple[int, ...]] = Deferred()
        fire_all(many, (1, 2))
        self.assertEqual(self.successResultOf(many), (1, 2))
        for fire in (fire_one, fire_all):
            waiter: Deferred[Any] = Deferred()
            fire(waiter, BUSY)
            self.assertIs(self.failureResultOf(waiter, DLedgerError).value, BUSY)
