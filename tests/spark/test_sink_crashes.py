# -*- test-case-name: tests.spark.test_sink_crashes -*-
"""
Every way to die: the driver ends, or an outcome is lost, at every request and with every part of it in the
log; then the batch is run again, and may die once more. In the end each row is there once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.sink.batch_append import SinkError
from tests.spark.sink_logs import Crash, MemoryLog, unknown

#: Two rows are equal, one is empty, one is longer than a frame.
ROWS = (b"aa", b"bb", b"aa", b"", b"0123456789", b"c", b"d", b"aa")
FORMER = (b"aa", b"x")
NONE: Counter[bytes] = Counter()
#: A batch has five requests; a batch that goes on has a second BEGIN, and may have a further frame.
_REQUESTS = 7
_BODIES_MAX = 5


def fresh() -> MemoryLog:
    """A batch is in the log, and another writer's bodies, which are equal to rows."""
    log = MemoryLog()
    log.other(b"aa", b"bb")
    log.restart(FORMER)
    log.other(b"", b"aa")
    return log


def strike(log: MemoryLog, number: int, count: int, error: BaseException) -> None:
    """Request C{number} fails; another writer appends the twin of a row in front of each."""
    log.appends = 0
    log.fault = lambda at, bodies: (min(count, len(bodies)), error) if at == number else None
    log.between = lambda _: log.other(b"aa")


def faults() -> Iterator[tuple[int, int]]:
    """Numbers of requests, and how many of their bodies come into the log."""
    for number in range(_REQUESTS):
        for count in range(_BODIES_MAX):
            yield number, count


class CrashTests(SynchronousTestCase):
    """Rows at the end."""

    def check(self, log: MemoryLog, what: object, rows: Sequence[bytes] = ROWS) -> None:
        """Each row once, besides those of the batch before and of the other writer."""
        self.assertEqual(log.lacking(FORMER, rows), (NONE, NONE), what)

    def dies(self, run: Callable[[], object]) -> bool:
        """Whether the driver died."""
        try:
            run()
        except Crash:
            return True
        return False

    def test_no_fault(self) -> None:
        """Rows are in their order, behind each other where nobody else writes."""
        log = fresh()
        outcome = log.restart(ROWS, 1)
        self.assertEqual((outcome.appended, outcome.doubled), (len(ROWS), 0))
        self.assertEqual(tuple(log.bodies()[-len(ROWS) :]), ROWS)
        self.assertEqual(log.appends, 5)

    def test_driver_dies(self) -> None:
        """At each request, with each part of it in the log; then it is restarted, and dies again."""
        deaths = 0
        for first in faults():
            for second in (None, *faults()):
                log = fresh()
                for fault in (first, second):
                    if fault is not None:
                        strike(log, *fault, Crash())
                        deaths += self.dies(log.driver(ROWS, 1).run)
                outcome = log.restart(ROWS, 1)
                self.assertEqual(outcome.doubled, 0)
                self.check(log, (first, second))
                self.assertEqual(log.restart(ROWS, 1).appended, 0)
                self.check(log, (first, second))
        self.assertGreater(deaths, 1000)

    def test_no_outcome(self) -> None:
        """The driver lives, and goes on by itself; in another order of rows after a crash."""
        for first in faults():
            log = fresh()
            strike(log, *first, unknown())
            self.assertEqual(log.driver(ROWS, 1).run().doubled, 0)
            self.check(log, first)
            strike(log, *first, Crash())
            self.dies(log.driver(ROWS[::-1], 2).run)
            log.restart(ROWS, 2)
            self.check(log, first, ROWS * 2)

    def test_late(self) -> None:
        """A request that comes while the next run waits is counted, after each request."""
        for number in range(_REQUESTS):
            for error in (Crash(), unknown()):
                log = fresh()

                def fault(at: int, bodies: Sequence[bytes], number: int = number, log: MemoryLog = log,
                          error: BaseException = error) -> tuple[int, BaseException] | None:
                    if at != number:
                        return None
                    log.late.append(list(bodies))
                    log.new_term()
                    return 0, error

                log.appends, log.fault = 0, fault
                if self.dies(log.driver(ROWS, 1).run):
                    log.restart(ROWS, 1)
                log.deliver()
                self.check(log, (number, error))

    def test_too_late(self) -> None:
        """
        A request that comes later than the pause puts its rows there twice: the outcome says how many, every
        row is there, and no later run is in doubt.
        """
        for number in range(1, 4):
            for moment in range(1, 5):
                log = fresh()
                kept: list[list[bytes]] = []

                def fault(at: int, bodies: Sequence[bytes], number: int = number,
                          kept: list[list[bytes]] = kept) -> tuple[int, BaseException] | None:
                    if at == number:
                        kept.append(list(bodies))
                        return 0, Crash()
                    return None

                log.appends, log.fault = 0, fault
                self.assertTrue(self.dies(log.driver(ROWS, 1).run))
                log.fault, log.appends = lambda *_: None, 0
                log.between = lambda at, log=log, kept=kept, moment=moment: (  # type: ignore[misc]
                    log.put(kept.pop()) if at == moment and kept else None)
                outcome = log.driver(ROWS, 1).run()
                missing, surplus = log.lacking(FORMER, ROWS)
                self.assertEqual(missing, NONE)
                self.assertEqual(outcome.doubled, surplus.total(), (number, moment))
                self.assertEqual(log.restart(ROWS, 1).appended, 0)

    def test_two_drivers(self) -> None:
        """
        A driver that wakes up while another one runs, or has run, the same batch ends without a row of its
        own; whichever of the two goes on, each row is there once.
        """
        for asleep in range(_REQUESTS):
            log = fresh()
            log.appends, other = 0, log.driver(ROWS, 1)

            def between(number: int, asleep: int = asleep, log: MemoryLog = log) -> None:
                if number == asleep:
                    log.appends = 100
                    log.between = lambda _: None
                    self.assertEqual(log.driver(ROWS, 1).run().doubled, 0)

            log.between = between
            try:
                other.run()
            except SinkError as error:
                self.assertIn("two drivers write with the same sinkId", str(error))
            doubled = log.lacking(FORMER, ROWS)[1]
            # The one request that it was about to send when it fell asleep is all that can be doubled.
            self.assertLessEqual(doubled.total(), 4 if 1 <= asleep <= 3 else 0, asleep)
            self.assertEqual(log.lacking(FORMER, ROWS)[0], NONE)
