# -*- test-case-name: tests.spark.test_sink_crashes -*-
"""
Every way to die: the driver ends, or an outcome is lost, at every request and with every part of it in the
log; then the batch is run again, and may die once more. In the end each row is there once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.sink.markers import decode_marker
from dledger.spark.sink.sink_log import SinkError, producer_of
from tests.spark.sink_logs import SINK, Crash, MemoryLog, NoAnswer

#: Two rows are equal, one is empty, one is longer than a frame.
ROWS = (b"aa", b"bb", b"aa", b"", b"0123456789", b"c", b"d", b"aa")
FORMER = (b"aa", b"x")
NONE: Counter[bytes] = Counter()
#: A batch has a question and three requests; one that goes on may have another question, and a further frame.
_REQUESTS = 6
_BODIES_MAX = 6


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


def hidden_in(bodies: Sequence[bytes]) -> tuple[int, ...]:
    """Numbers of the markers in a request."""
    return tuple(number for number, body in enumerate(bodies) if decode_marker(body) is not None)


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
        """Rows are in their order, after each other where nobody else writes."""
        log = fresh()
        self.assertEqual(log.restart(ROWS, 1).appended, len(ROWS))
        self.assertEqual(tuple(log.bodies()[-len(ROWS) :]), ROWS)
        self.assertEqual(log.appends, 4)

    def test_driver_dies(self) -> None:
        """
        At each request, with each part of it in the log; then it is restarted, in another order of rows, and
        dies again.
        """
        deaths = 0
        for first in faults():
            for second in (None, *faults()):
                log = fresh()
                for fault, rows in ((first, ROWS), (second, ROWS[::-1])):
                    if fault is not None:
                        strike(log, *fault, Crash())
                        deaths += self.dies(log.driver(rows, 1).run)
                log.restart(ROWS[3:] + ROWS[:3], 1)
                self.check(log, (first, second))
                self.assertEqual(log.restart(ROWS, 1).appended, 0)
                self.check(log, (first, second))
        self.assertGreater(deaths, 1000)

    def test_no_outcome(self) -> None:
        """The driver lives, and goes on by itself; in another order of rows after a crash."""
        for first in faults():
            log = fresh()
            strike(log, *first, NoAnswer())
            log.driver(ROWS, 1).run()
            self.check(log, first)
            strike(log, *first, Crash())
            self.dies(log.driver(ROWS[::-1], 2).run)
            log.restart(ROWS, 2)
            self.check(log, first, ROWS * 2)

    def test_late(self) -> None:
        """
        A request of a driver that died comes at any time: while the next run asks, between its requests, or
        after its end. It appends nothing, or rows that the next run counts.
        """
        for number in range(_REQUESTS):
            for moment in range(_REQUESTS):
                log = fresh()

                def fault(at: int, bodies: Sequence[bytes], number: int = number, log: MemoryLog = log
                          ) -> tuple[int, BaseException] | None:
                    if at != number:
                        return None
                    sequence = log.last_sequence(producer_of(SINK)) + 1
                    log.late.append((producer_of(SINK), sequence, list(bodies), hidden_in(bodies)))
                    return 0, Crash()

                log.appends, log.fault = 0, fault
                self.dies(log.driver(ROWS, 1).run)
                log.fault, log.appends = lambda *_: None, 0
                log.between = lambda at, log=log, moment=moment: (  # type: ignore[misc]
                    log.deliver() if at == moment else None)
                log.driver(ROWS[::-1], 1).run()
                log.deliver()
                log.restart(ROWS, 2)
                self.check(log, (number, moment), ROWS * 2)

    def test_two_drivers(self) -> None:
        """
        A driver that wakes up while another one runs, or has run, the same batch ends without a row of its
        own; whichever of the two goes on, each row is there once.
        """
        ended = 0
        for asleep in range(_REQUESTS):
            log = fresh()
            log.appends, other = 0, log.driver(ROWS, 1)

            def between(number: int, asleep: int = asleep, log: MemoryLog = log) -> None:
                if number == asleep:
                    log.appends = 100
                    log.between = lambda _: None
                    log.driver(ROWS[::-1], 1).run()

            log.between = between
            try:
                other.run()
            except SinkError as error:
                self.assertIn("two drivers write with the same sinkId", str(error))
                ended += 1
            self.check(log, asleep)
        self.assertGreater(ended, 1)

    def test_foreign_producer(self) -> None:
        """
        A program that appends under the id of the sink's producer, at any time, also where a request was cut:
        its entries are no rows of the batch, and no row is missing or there twice.
        """
        ended = 0
        for fault in (None, *faults()):
            for moment in range(_REQUESTS):
                log = fresh()
                if fault is not None:
                    strike(log, *fault, Crash())
                    log.between = lambda _: None
                    self.dies(log.driver(ROWS, 1).run)

                def between(number: int, log: MemoryLog = log, moment: int = moment) -> None:
                    if number == moment:
                        name = producer_of(SINK)
                        log.numbered(name, log.last_sequence(name) + 1, [b"aa"], ())
                        log.others.append(b"aa")

                log.fault, log.between, log.appends = lambda *_: None, between, 0
                try:
                    log.driver(ROWS[::-1], 1).run()
                except SinkError as error:
                    self.assertIn("another run of the sink has begun at index", str(error))
                    ended += 1
                log.restart(ROWS, 1)
                self.check(log, (fault, moment))
        self.assertGreater(ended, 20)
