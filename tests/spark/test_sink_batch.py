# -*- test-case-name: tests.spark.test_sink_batch -*-
"""One batch in a log in memory: its reads, its refusals, and the run that goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.log import ScanWarning
from dledger.spark.sink.markers import MarkerKind, decode_marker
from dledger.spark.sink.sink_log import (
    OutOfStepError,
    SinkError,
    TakenOverError,
    digest_of_all,
    producer_of,
)
from protocols.wire.ledger.producers import PRODUCER_ID_BYTES_MAX
from tests.spark.sink_logs import SINK, Crash, MemoryLog, NoAnswer

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

    def read_of_others(self) -> set[int]:
        """Indexes of bodies of others that were read since the last call."""
        read, self.log.read = self.log.read, set()
        return {index for index in read if self.log.entries[index].body == b"x"}

    def kinds(self) -> list[MarkerKind]:
        """Of the markers in the log."""
        found = [decode_marker(entry.body) for entry in self.log.entries]
        return [marker.kind for marker in found if marker is not None]

    def test_no_rows(self) -> None:
        """A batch without rows leaves no trace."""
        self.log.restart((), 5)
        self.assertEqual(len(self.log.entries), 1)

    def test_one_request(self) -> None:
        """A small batch is one request: its rows between the two markers."""
        self.log.restart(ROWS)
        self.assertEqual(self.log.appends, 1)
        self.assertEqual(self.kinds(), [MarkerKind.PIECE, MarkerKind.DONE])
        self.assertEqual(self.log.bodies(), list(ROWS))

    def test_reads_nothing_of_others(self) -> None:
        """
        Of what others appended no batch reads anything: neither the first one of a sink, nor a later one, nor
        one that is run again. An interrupted one reads its own rows.
        """
        for batch in (0, 1, 2, 2):
            self.log.other(*[b"x"] * 3000)
            self.log.restart(ROWS, batch)
            self.assertLess(len(self.log.read), 2)
            self.assertEqual(self.read_of_others(), set())
        self.assertEqual(self.log.restart(ROWS, 2).appended, 0)
        self.log.restart(ROWS, 0, sink="other", is_new=True)
        self.assertEqual(len(self.log.bodies()) - len(self.log.others), 4 * len(ROWS))

    def test_another_sink(self) -> None:
        """Batches of other sinks do not count."""
        self.log.restart(ROWS, 7, sink="other")
        self.assertEqual(self.log.restart(ROWS, 0).appended, 3)

    def test_done(self) -> None:
        """A batch in the log is left alone, in any order of rows; another one under its number is not."""
        self.log.restart(ROWS, 3)
        self.assertEqual(self.log.restart(ROWS[::-1], 3).appended, 0)
        before, done = len(self.log.entries), len(self.log.entries) - 1
        said = f"is in the log with 3 rows (digest {digest_of_all(ROWS):016x}), up to index {done}, and now"
        self.refused(lambda: self.log.restart((b"a", b"b", b"d"), 3), said)
        self.refused(lambda: self.log.restart(ROWS[:2], 3), "and now has 2")
        self.assertEqual(self.log.restart(ROWS[:2], 3, is_strict=False).appended, 0)
        self.assertEqual(len(self.flushWarnings()), 1)
        self.assertEqual(len(self.log.entries), before)

    def test_older(self) -> None:
        """A batch after a later one of the same sink, complete or not."""
        self.log.restart(ROWS, 3)
        self.refused(lambda: self.log.restart(ROWS, 2), "comes after batch 3, which is in the log at index")
        self.die(1, 2, batch=4)
        self.refused(lambda: self.log.restart(ROWS, 3), "comes after batch 4, which is in the log at index")

    def test_next(self) -> None:
        """A batch after one that nobody has completed."""
        self.die(0, 2, batch=4)
        self.assertEqual(self.log.restart(ROWS, 5).appended, 3)
        self.assertEqual(self.log.bodies(), [b"a", *ROWS])

    def test_other_rows(self) -> None:
        """A batch that was begun with rows that it does not have any more."""
        self.die(0, 4)
        before, piece = len(self.log.entries), len(self.log.entries) - 5
        said = f"2 rows that an earlier run has appended, its last marker at index {piece}, are not in"
        self.refused(lambda: self.log.restart((b"a", b"x"), 0), said)
        self.assertEqual(len(self.log.entries), before)
        outcome = self.log.restart((b"a", b"x"), 0, is_strict=False)
        self.assertEqual(outcome.appended, 1)
        self.assertEqual([warning["category"] for warning in self.flushWarnings()], [ScanWarning])
        self.assertEqual(self.log.bodies(), [*ROWS, b"x"])

    def test_expired(self) -> None:
        """
        Where the last entries of the sink have expired, it is not known what of this batch has; nor where
        pieces of the batch have.
        """
        self.log.restart(ROWS, 4)
        self.log.first = len(self.log.entries)
        self.log.other(b"y")
        self.assertEqual(self.log.restart(ROWS, 0, sink="other").appended, 3)
        self.refused(lambda: self.log.restart(ROWS, 5), "the end of the batch before it has expired")
        self.assertEqual(self.log.restart(ROWS, 5, is_strict=False).appended, 3)
        self.assertEqual(len(self.flushWarnings()), 1)
        self.log.appends = 0
        self.log.fault = lambda at, _: (2, Crash()) if at == 3 else None
        self.assertRaises(Crash, self.log.driver(ROWS, 6, frame_bytes=1).run)
        pieces = [index for index, entry in enumerate(self.log.entries)
                  if (found := decode_marker(entry.body)) is not None and found.batch == 6]
        self.log.first = pieces[-1]
        self.refused(lambda: self.log.restart(ROWS, 6), "the end of the batch before it has expired")
        self.log.first = pieces[0]
        self.assertEqual(self.log.restart(ROWS, 6).appended, 0)

    def test_forgotten(self) -> None:
        """
        A sink that the group has forgotten goes on only if the user says that nothing of the batch is there;
        so a sink that begins with a batch other than 0. Batch 0 is that of a new sink.
        """
        self.log.restart(ROWS, 4)
        self.die(0, 2, batch=5)
        self.log.forget_all()
        before = len(self.log.entries)
        for batch, sink in ((4, SINK), (5, SINK), (1, "other")):
            self.refused(partial(self.log.restart, ROWS, batch, sink=sink),
                         "the group does not know the sink, or has forgotten it (producers_expire_hours)")
        self.assertEqual(len(self.log.entries), before)
        self.assertEqual(self.log.restart(ROWS, 0, sink="new").appended, 3)
        self.assertEqual(self.log.restart(ROWS, 5, is_strict=False).appended, 3)
        self.assertEqual(len(self.flushWarnings()), 1)
        self.assertEqual(self.log.restart(ROWS[::-1], 5).appended, 0)
        self.assertEqual(self.log.restart(ROWS, 6).appended, 3)

    def test_forgotten_in_between(self) -> None:
        """Between two requests of a batch: it ends, and says so."""
        self.log.between = lambda at: at == 1 and self.log.forget_all()
        self.refused(self.log.driver(ROWS, frame_bytes=1).run, "the log lacks entries that were acknowledged")

    def test_looks_in_vain(self) -> None:
        """An entry that goes while it is asked for: the one in its place is passed by."""
        self.log.other(*[b"x"] * 3000)
        self.die(0, 2)
        self.read_of_others()
        self.log.other(*[b"x"] * 10)
        real = self.log.last_sequence(producer_of(SINK))
        self.log.last_sequence = lambda _: real + 1  # type: ignore[method-assign]
        self.log.restart(ROWS)
        self.assertEqual(self.log.lacking(ROWS), (Counter(), Counter()))
        self.assertLess(len(self.read_of_others()), 3)
        self.assertEqual(self.kinds(), [MarkerKind.PIECE, MarkerKind.LOOK, MarkerKind.PIECE, MarkerKind.DONE])
        del self.log.last_sequence
        self.assertEqual(self.log.restart(ROWS).appended, 0)

    def test_gives_up(self) -> None:
        """After a number of attempts that are disturbed."""
        self.log.fault = lambda *_: (0, OutOfStepError("the last one is 7"))
        run = self.log.driver(ROWS, attempts_max=3).run
        self.refused(run, "gave up after 3 attempts, the last one: the last one is 7")
        self.assertEqual(self.log.ran, 3)

    def test_taken_over(self) -> None:
        """After its first request a driver that finds its number taken ends; the other one goes on."""
        self.log.between = lambda at: at == 1 and self.log.restart(ROWS, 0, frame_bytes=1)
        error = self.assertRaises(TakenOverError, self.log.driver(ROWS, 0, frame_bytes=1).run)
        self.assertIn(f"sink {SINK!r}: another run of the sink has begun at index 4: two drivers", str(error))
        self.assertEqual(self.log.bodies(), list(ROWS))

    def test_taken_over_long_ago(self) -> None:
        """A driver that sleeps in a batch until the group does not know the index of its number any more."""
        def between(at: int) -> None:
            if at == 1:
                for batch in range(20):
                    self.log.other(b"x")
                    self.log.restart(ROWS, batch)

        self.log.between = between
        error = self.assertRaises(TakenOverError, self.log.driver(ROWS, 0, frame_bytes=1).run)
        self.assertIn("another run of the sink has begun long ago: two drivers", str(error))
        self.assertEqual(self.log.lacking(ROWS * 20), (Counter(), Counter()))

    def rival_comes(self, rows: tuple[bytes, ...], batch: int, bodies: int) -> None:
        """
        The next request has no outcome, and nothing of it is in the log; before it is sent again, another
        driver appends C{bodies} bodies of its only request, and dies.
        """
        def fault(_at: int, _bodies: object) -> tuple[int, BaseException]:
            self.log.fault = lambda *_: (bodies, Crash())
            self.assertRaises(Crash, self.log.driver(rows, batch, frame_bytes=len(rows)).run)
            self.log.fault = lambda *_: None
            return 0, NoAnswer()

        self.log.fault = fault

    def test_others_under_its_number(self) -> None:
        """After a request without an outcome, as many entries of another query are not taken for its own."""
        self.rival_comes((b"y", b"z", b"w"), 0, 3)
        self.refused(lambda: self.log.driver(ROWS[:1], 0).run(), "2 rows that an earlier run has appended")
        self.log = MemoryLog()
        self.rival_comes(ROWS, 0, 2)
        self.assertEqual(self.log.driver(ROWS, 0, frame_bytes=1).run().appended, 2)
        self.assertEqual(self.log.bodies(), list(ROWS))

    def test_taken_over_in_the_same_words(self) -> None:
        """The same rows under the same numbers, after a request without an outcome, are another driver's."""
        def fault(at: int, _bodies: object) -> tuple[int, BaseException] | None:
            if at != 1:
                return None
            self.log.restart(ROWS, 0, frame_bytes=1)
            return 0, NoAnswer()

        self.log.fault = fault
        error = self.assertRaises(TakenOverError, self.log.driver(ROWS, 0, frame_bytes=1).run)
        self.assertIn("has begun at index 4: two drivers", str(error))
        self.assertEqual(self.log.bodies(), list(ROWS))

    def test_first_request_disturbed(self) -> None:
        """Rows of a driver that died come late: they are counted, and not appended again."""
        self.log.restart(ROWS, 0)
        rival = self.log.driver(ROWS[::-1], 1, frame_bytes=1)
        self.log.appends, self.log.between = 0, lambda at: at == 1 and self.log.restart(ROWS, 1)
        self.assertEqual(rival.run().appended, 0)
        self.assertEqual(self.log.bodies(), list(ROWS) * 2)

    def test_producers(self) -> None:
        """No two names have one producer, and each id is short enough."""
        names = ["x", "x" * 59, "x" * 60, "x" * 64, "x" * 63 + "y", "y" + "x" * 63]
        found = {producer_of(name) for name in names}
        self.assertEqual(len(found), len(names))
        self.assertLessEqual(max(map(len, found)), PRODUCER_ID_BYTES_MAX)
        self.assertEqual(producer_of("orders"), "sink:orders")
