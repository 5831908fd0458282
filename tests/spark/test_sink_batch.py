# -*- test-case-name: tests.spark.test_sink_batch -*-
"""One batch in a log in memory: what it reads, what it refuses, and when it waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.basics.log import ScanWarning
from dledger.spark.sink.batch_append import SinkError, TakenOverError
from tests.spark.sink_logs import SETTLE_S, SINK, Crash, MemoryLog, unknown

ROWS = (b"a", b"b", b"c")


class BatchTests(SynchronousTestCase):
    """A log."""

    def setUp(self) -> None:
        self.log = MemoryLog()

    def refused(self, run: Callable[[], object], said: str) -> None:
        """The batch ends with a sentence."""
        error = self.assertRaises(SinkError, run)
        self.assertIn(said, str(error))

    def die(self, number: int, count: int, batch: int = 0) -> None:
        """The driver dies at a request of which C{count} bodies come into the log."""
        self.log.appends = 0
        self.log.fault = lambda at, _: (count, Crash()) if at == number else None
        self.assertRaises(Crash, self.log.driver(ROWS, batch).run)

    def test_no_rows(self) -> None:
        """A batch without rows leaves no trace."""
        self.log.restart((), 5)
        self.assertEqual(len(self.log.entries), 1)

    def test_reads_back_to_the_last_end(self) -> None:
        """No further than to the batch before, and for a new name not at all; the first batch reads all."""
        self.log.other(*[b"x"] * 5000)
        self.log.restart(ROWS, 0)
        self.assertGreater(self.log.reads, 5000)
        self.log.other(*[b"x"] * 100)
        self.log.reads = 0
        self.log.restart(ROWS, 1)
        self.assertLess(self.log.reads, 1100)
        self.log.other(*[b"x"] * 100)
        self.log.reads = 0
        self.log.restart(ROWS, 0, sink="other", is_new=True)
        self.assertEqual(self.log.reads, 0)
        self.log.restart(ROWS, 0, sink="third", search_from=len(self.log.entries) - 10)
        self.assertEqual(self.log.reads, 10)

    def test_another_sink(self) -> None:
        """Batches of other sinks do not count."""
        self.log.restart(ROWS, 7, sink="other")
        self.assertEqual(self.log.restart(ROWS, 0).appended, 3)

    def test_done(self) -> None:
        """A batch in the log is left alone, in any order of rows; another one under its number is not."""
        self.log.restart(ROWS, 3)
        self.assertEqual(self.log.restart(ROWS[::-1], 3).appended, 0)
        self.refused(lambda: self.log.restart((b"a", b"b", b"d"), 3), "is in the log with 3 rows")
        self.refused(lambda: self.log.restart(ROWS[:2], 3), "and now has 2")
        self.assertEqual(self.log.restart(ROWS[:2], 3, is_strict=False).appended, 0)
        self.assertEqual(len(self.flushWarnings()), 1)
        self.assertEqual(self.log.bodies(), list(ROWS))

    def test_older(self) -> None:
        """A batch behind a later one of the same sink."""
        self.log.restart(ROWS, 3)
        self.refused(lambda: self.log.restart(ROWS, 2), "comes behind batch 3, which is in the log at index")

    def test_other_rows(self) -> None:
        """A batch that was begun with rows that it does not have any more."""
        self.die(1, 4)
        self.refused(lambda: self.log.restart((b"a", b"x"), 0), "2 rows that an earlier run has appended")
        outcome = self.log.restart((b"a", b"x"), 0, is_strict=False)
        self.assertEqual((outcome.appended, outcome.doubled), (1, 0))
        self.assertEqual([warning["category"] for warning in self.flushWarnings()], [ScanWarning])
        self.assertEqual(self.log.bodies(), [*ROWS, b"x"])

    def test_expired(self) -> None:
        """
        Without the end of the batch before it is not known what of this one has expired; of the first batch
        it is, if no marker is left.
        """
        self.log.restart(ROWS, 4)
        self.log.first = len(self.log.entries)
        self.log.other(b"y")
        self.assertEqual(self.log.restart(ROWS, 0, sink="other").appended, 3)
        self.refused(lambda: self.log.restart(ROWS, 5), "the end of the batch before it has expired")
        self.assertEqual(self.log.restart(ROWS, 5, is_strict=False).appended, 3)
        self.assertEqual(len(self.flushWarnings()), 1)

    def test_expired_in_the_middle(self) -> None:
        """A batch whose rows are all there goes on, although the end of the batch before has expired."""
        self.log.restart(ROWS, 4)
        self.die(1, 3, batch=5)
        self.log.first = len(self.log.entries) - 5
        self.assertEqual(self.log.restart(ROWS, 5).appended, 1)

    def test_waits(self) -> None:
        """Once, and only if a request may be under way."""
        waits: list[float] = []
        self.log.restart(ROWS, 0, sleep=waits.append)
        self.assertEqual(waits, [])
        self.die(1, 1, batch=1)
        self.log.restart(ROWS, 1, sleep=waits.append)
        self.assertEqual(waits, [SETTLE_S])
        self.log.restart(ROWS, 1, sleep=waits.append)
        self.assertEqual(waits, [SETTLE_S])

    def test_waits_again(self) -> None:
        """As long as the other run goes on during the pause."""
        self.die(1, 1)
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) < 3:
                self.assertRaises(Crash, other.run)

        self.log.fault, other = lambda *_: None, self.log.driver(ROWS, sleep=self.die_at_once)
        self.log.restart(ROWS, sleep=sleep)
        self.assertEqual(len(waits), 3)
        self.assertEqual(self.log.bodies(), list(ROWS))

    def die_at_once(self, _seconds: float) -> None:
        """Instead of a pause."""
        raise Crash

    def test_own_late_begin(self) -> None:
        """A BEGIN of an earlier attempt of the same process takes nothing over."""
        late: list[bytes] = []

        def fault(at: int, bodies: Sequence[bytes]) -> tuple[int, BaseException] | None:
            late.extend(bodies if at == 0 else ())
            return (0, unknown()) if at == 0 else None

        self.log.fault = fault
        self.log.between = lambda at: self.log.put([late.pop()]) if at == 3 else None
        self.assertEqual(self.log.driver(ROWS, frame_bytes=1).run().doubled, 0)
        self.assertEqual(self.log.bodies(), list(ROWS))

    def test_far_apart(self) -> None:
        """Markers are found behind any number of other entries, also when an END comes late."""
        others = [b"x"] * 3000
        ends: list[bytes] = []

        def fault(at: int, bodies: Sequence[bytes]) -> tuple[int, BaseException] | None:
            ends.extend(bodies if at == 2 else ())
            return (0, Crash()) if at == 2 else None

        self.log.appends, self.log.fault = 0, fault
        self.assertRaises(Crash, self.log.driver(ROWS, 0).run)
        self.log.restart(ROWS, 0)
        for number in (1, 2, 3):
            self.log.appends = 0
            # A batch that goes on has a second BEGIN in front of its rows.
            self.log.fault = lambda at, bodies, number=number: (  # type: ignore[misc]
                (len(bodies), Crash()) if at == min(number, 2) else None)
            self.assertRaises(Crash, self.log.driver(ROWS, 1, frame_bytes=1).run)
            self.log.put(ends)
            self.log.other(*others)
        self.assertEqual(self.log.restart(ROWS, 1).appended, 0)
        self.assertEqual(self.log.lacking(ROWS, ROWS), (Counter(), Counter()))

    def test_late_rows_of_the_batch_before(self) -> None:
        """Rows that come behind the end of their batch are counted by the next one, wherever they come."""
        for moment in (-1, 1, 2, 3):
            self.log = MemoryLog()
            late: list[Sequence[bytes]] = []

            def fault(
                at: int, bodies: Sequence[bytes], late: list[Sequence[bytes]] = late
            ) -> tuple[int, BaseException] | None:
                late.extend([bodies] if at == 1 else ())
                return (0, Crash()) if at == 1 else None

            self.log.fault = fault
            self.assertRaises(Crash, self.log.driver(ROWS, 0).run)
            self.assertEqual(self.log.restart(ROWS, 0).late, 0)
            if moment < 0:
                self.log.put(late.pop())
            self.log.appends = 0
            self.log.between = lambda at, moment=moment, late=late: (  # type: ignore[misc]
                self.log.put(late.pop()) if at == moment else None)
            outcome = self.log.driver(ROWS[:2], 1, frame_bytes=1).run()
            self.assertEqual((outcome.late, outcome.doubled), (len(ROWS), 0), moment)
            self.assertEqual(self.log.restart(ROWS, 2).late, 0)
            self.assertEqual(self.log.lacking(ROWS, ROWS[:2], ROWS), (Counter(), Counter(ROWS)))

    def test_gives_up(self) -> None:
        """After a number of requests without an outcome."""
        self.log.fault = lambda *_: (0, unknown("no answer"))
        run = self.log.driver(ROWS, attempts_max=3).run
        self.refused(run, "gave up after 3 attempts, the last one: no answer")
        self.assertEqual(self.log.ran, 3)

    def test_taken_over(self) -> None:
        """A foreign BEGIN ends the run, also that of an earlier batch."""
        self.log.between = lambda at: at == 2 and self.log.restart(ROWS, 1)
        error = self.assertRaises(TakenOverError, self.log.driver(ROWS, 0, frame_bytes=1).run)
        self.assertIn(f"sink {SINK!r}: another run of the sink (000000000000000", str(error))
