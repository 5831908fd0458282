# -*- test-case-name: tests.protocols.test_turn -*-
"""What a turn gathers is done once, in order, and a turn always ends."""

from __future__ import annotations

from functools import partial

from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from protocols.turn import ANSWERS_BYTES, READS_S, Turn


class TurnTests(SynchronousTestCase):
    """Work before output, everything in the order asked for, one timed call."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.failures: list[Failure] = []
        self.turn = Turn(self.clock, self.failures.append)
        self.done: list[str] = []

    def test_nothing_runs_at_once(self) -> None:
        """A call waits for the end of the turn."""
        self.turn.work(lambda: self.done.append("a"))
        self.assertEqual(self.done, [])
        self.clock.advance(0)
        self.assertEqual(self.done, ["a"])

    def test_work_before_output(self) -> None:
        """Output asked for first still runs after all work."""
        self.turn.output(lambda: self.done.append("out"))
        self.turn.work(lambda: self.done.append("one"))
        self.turn.work(lambda: self.done.append("two"))
        self.clock.advance(0)
        self.assertEqual(self.done, ["one", "two", "out"])

    def test_output_of_work_belongs_to_the_turn(self) -> None:
        """What work writes is written in the same turn."""
        self.turn.work(lambda: self.turn.output(lambda: self.done.append("out")))
        self.clock.advance(0)
        self.assertEqual(self.done, ["out"])

    def test_soon_within_soon(self) -> None:
        """It runs in the next turn; it does not wait for another read."""
        self.turn.read(lambda: self.turn.soon(lambda: self.turn.soon(lambda: self.done.append("late"))))
        self.clock.advance(0)
        self.assertEqual(self.done, ["late"])

    def test_one_timed_call(self) -> None:
        """However many calls are asked for."""
        for _ in range(100):
            self.turn.work(lambda: None)
            self.turn.output(lambda: None)
        self.assertEqual(len(self.clock.getDelayedCalls()), 1)
        self.clock.advance(0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_late(self) -> None:
        """Reads that take long put off the next ones; each turn handles some, in order."""

        def slow(data: bytes) -> None:
            self.done.append(data.decode())
            self.clock.rightNow += 1.5 * READS_S

        self.assertFalse(self.turn.is_late)
        self.turn.read(slow, b"one")
        self.assertTrue(self.turn.is_late)
        for name in (b"two", b"three"):
            self.turn.put_off(lambda name=name: self.turn.read(slow, name), 0.0)  # type: ignore[misc]
        self.assertEqual(self.done, ["one"])
        turns = 0
        while self.clock.getDelayedCalls():
            (call,) = self.clock.getDelayedCalls()
            call.func()
            self.clock.calls.remove(call)
            turns += 1
        self.assertEqual((self.done, turns), (["one", "two", "three"], 3))
        self.assertFalse(self.turn.is_late)

    def test_cheap_reads_come_first(self) -> None:
        """A connection that has cost much waits for those that have cost little."""
        self.turn.is_late = True
        for name, cost_s in (("dear", 0.5), ("cheap", 0.0), ("also cheap", 0.0)):
            self.turn.put_off(lambda name=name: self.done.append(name), cost_s)  # type: ignore[misc]
        self.turn.next_reads()
        self.assertEqual(self.done, ["cheap", "also cheap", "dear"])

    def test_newcomers_do_not_starve_a_client(self) -> None:
        """A read that has waited for as long as its connection has cost comes before new ones."""
        self.turn.is_late = True
        self.turn.put_off(lambda: self.done.append("client"), 0.1)
        for _ in range(4):
            self.clock.rightNow += 0.04
            self.turn.put_off(lambda: self.done.append("new"), 0.0)
        self.clock.advance(0)
        self.assertEqual(self.done, ["new", "new", "client", "new", "new"])

    def test_put_off_in_time(self) -> None:
        """A read that waits for something else runs in the next turn, also if this one is not late."""
        self.turn.put_off(lambda: self.done.append("one"), 0.0)
        self.turn.put_off(lambda: self.done.append("two"), 0.0)
        (_call,) = self.clock.getDelayedCalls()
        self.clock.advance(0)
        self.assertEqual(self.done, ["one", "two"])
        self.turn.put_off(lambda: self.done.append("three"), 0.0)
        self.clock.advance(0)
        self.assertEqual(self.done[2:], ["three"])

    def test_short_reads_come_first(self) -> None:
        """They wait for one long read, whatever it costs; and a long one waits for one turn of short ones."""

        def slow(data: bytes) -> None:
            self.done.append(data.decode())
            self.clock.rightNow += 1.5 * READS_S

        self.turn.read(slow, b"")
        for name, is_short in ((b"long", False), (b"longer", False), (b"short", True), (b"shorter", True)):
            read = partial(self.turn.read, slow, name)
            self.turn.put_off(read, float(is_short), is_short=is_short)
        turns = []
        while self.clock.getDelayedCalls():
            (call,) = self.clock.getDelayedCalls()
            self.clock.calls.remove(call)
            self.done.clear()
            call.func()
            turns.append(list(self.done))
        self.assertEqual(turns, [["short", "long"], ["shorter", "longer"], []])

    def test_quick_reads_are_never_late(self) -> None:
        """However many there are, if the reactor waits in between."""
        for _ in range(1000):
            self.turn.read(lambda _: None, b"")
            self.clock.advance(READS_S * 1.1)
        self.assertFalse(self.turn.is_late)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_work_for_work_waits_for_the_next_turn(self) -> None:
        """Work that asks for work gets the next turn, and the reactor its own in between."""
        timed: list[float] = []

        def again() -> None:
            self.done.append("again")
            if len(self.done) < 3:
                self.turn.work(again)
                timed.append(len(self.clock.getDelayedCalls()))

        self.turn.work(again)
        self.turn.output(lambda: self.done.append("out"))
        self.clock.advance(0)
        # Each round was a timed call of its own, and the first round's output came before the second.
        self.assertEqual(self.done, ["again", "out", "again"])
        self.assertEqual(timed, [1])

    def test_a_failure_stops_nobody_else(self) -> None:
        """The other calls run, and the owner is informed."""

        def wrong() -> None:
            raise ValueError("wrong")

        self.turn.work(wrong)
        self.turn.work(lambda: self.done.append("work"))
        self.turn.output(wrong)
        self.turn.output(lambda: self.done.append("output"))
        self.clock.advance(0)
        self.assertEqual(self.done, ["work", "output"])
        self.assertEqual([failure.type for failure in self.failures], [ValueError, ValueError])
        self.turn.work(lambda: self.done.append("next"))
        self.clock.advance(0)
        self.assertEqual(self.done[-1], "next")

    def test_seconds_are_the_clocks(self) -> None:
        """The turn has no time of its own."""
        self.clock.advance(5)
        self.assertEqual(self.turn.seconds(), 5)

    def test_output_of_a_read(self) -> None:
        """Does not wait for the turn, and needs no timed call; it runs after the read, once."""

        def deal_with(data: bytes) -> None:
            self.turn.output(lambda: self.done.append("out"))
            self.done.append(data.decode())

        self.turn.read(deal_with, b"data")
        self.assertEqual(self.done, ["data", "out"])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_work_of_a_read(self) -> None:
        """Waits for the end of the turn, with the work of other reads; so does its output."""

        def deal_with(data: bytes) -> None:
            self.turn.work(lambda: self.turn.output(lambda: self.done.append(data.decode())))

        self.turn.read(deal_with, b"a")
        self.turn.read(deal_with, b"b")
        self.assertEqual(self.done, [])
        self.clock.advance(0)
        self.assertEqual(self.done, ["a", "b"])

    def test_soon(self) -> None:
        """At the end of the read and before its output; without a read it is work."""

        def deal_with(data: bytes) -> None:
            self.turn.output(lambda: self.done.append("out"))
            self.turn.soon(lambda: self.turn.output(lambda: self.done.append("out of soon")))
            self.turn.soon(lambda: self.done.append("soon"))
            self.done.append(data.decode())

        self.turn.read(deal_with, b"data")
        self.assertEqual(self.done, ["data", "soon", "out", "out of soon"])
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.turn.soon(lambda: self.done.append("later"))
        self.assertEqual(self.done[-1], "out of soon")
        self.clock.advance(0)
        self.assertEqual(self.done[-1], "later")

    def test_read_within_a_read(self) -> None:
        """The outermost one counts."""

        def outer(data: bytes) -> None:
            self.turn.read(lambda data: self.turn.output(lambda: self.done.append("out")), data)
            self.done.append("outer")

        self.turn.read(outer, b"")
        self.assertEqual(self.done, ["outer", "out"])

    def test_read_that_fails(self) -> None:
        """Output from before the exception still goes out."""

        def deal_with(data: bytes) -> None:
            self.turn.output(lambda: self.done.append("out"))
            raise ValueError("wrong")

        self.assertRaises(ValueError, self.turn.read, deal_with, b"")
        self.assertEqual(self.done, ["out"])
        self.turn.output(lambda: self.done.append("later"))
        self.clock.advance(0)
        self.assertEqual(self.done, ["out", "later"])

    def test_answers_of_a_turn(self) -> None:
        """Many bytes of answers end a turn like a long time."""
        rooms: list[bool] = []

        def large(data: bytes) -> None:
            rooms.append(self.turn.has_room())
            self.turn.made(ANSWERS_BYTES)
            rooms.append(self.turn.has_room())
            rooms.append(self.turn.is_over)

        self.turn.read(large, b"")
        self.assertEqual((rooms, self.turn.is_late), ([True, False, True], True))
        self.turn.next_reads()
        self.turn.read(lambda _: rooms.append(self.turn.has_room()), b"")
        self.assertEqual((rooms[-1], self.turn.is_late), (True, False))

    def test_pieces_end_in_time(self) -> None:
        """A piece begins only if one that takes as long as the last has room in the turn."""
        pieces: list[bool] = []

        def deal(data: bytes) -> None:
            while not pieces or pieces[-1]:
                self.clock.rightNow += 0.4 * READS_S
                pieces.append(self.turn.has_room())

        self.turn.read(deal, b"")
        self.assertEqual(pieces, [True, False])
