# -*- test-case-name: tests.spark.test_sink_earlier -*-
"""A sink that its group does not know: an earlier version has appended its batches, or it was forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from dledger.ledger.producers import NotedRun
from dledger.spark.sink.markers import MarkerKind, decode_marker
from dledger.spark.sink.sink_log import SinkError
from tests.spark.sink_logs import NEWEST, SETTLE_S, EarlierSink, MemoryLog

ROWS = (b"a", b"b", b"c")
NONE: Counter[bytes] = Counter()


class EarlierTests(SynchronousTestCase):
    """A log with batches of an earlier version."""

    def setUp(self) -> None:
        self.log = MemoryLog()
        self.earlier = EarlierSink(self.log)

    def refused(self, run: Callable[[], object], said: str) -> None:
        """The batch ends with a sentence."""
        error = self.assertRaises(SinkError, run)
        self.assertIn(said, str(error))

    def test_goes_on(self) -> None:
        """After the last batch; what was complete is not appended again, and other rows are refused."""
        self.earlier.whole(4, ROWS)
        self.assertEqual(self.log.restart(ROWS[::-1], 4).appended, 0)
        self.refused(lambda: self.log.restart(ROWS[:2], 4), "is in the log with 3 rows")
        self.refused(lambda: self.log.restart(ROWS, 3), "comes after batch 4, which is in the log at index")
        self.assertEqual(self.log.restart(ROWS, 5).appended, 3)
        self.log.read.clear()
        self.assertEqual(self.log.restart(ROWS, 6).appended, 3)
        self.assertEqual(len(self.log.read), 1)
        self.assertEqual(self.log.lacking(ROWS * 3), (NONE, NONE))

    def test_interrupted(self) -> None:
        """Rows of the batch that are there are not appended again, also when a leader died in them."""
        for taken in (-1, 1, 2):
            self.setUp()
            self.earlier.whole(4, ROWS)
            self.earlier.begin(5)
            self.earlier.rows(5, b"c")
            self.log.other(b"a", b"b")
            self.earlier.rows(5, b"b", b"a", taken=taken)
            self.log.restart(ROWS, 5)
            self.assertEqual(self.log.lacking(ROWS * 2), (NONE, NONE), taken)
            self.assertEqual(self.log.restart(ROWS, 5).appended, 0)

    def test_waits(self) -> None:
        """For a request of the earlier version that may be under way; not where none is."""
        self.earlier.begin(5)
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) < 3:
                self.earlier.rows(5, ROWS[len(waits)])

        self.log.restart(ROWS, 5, sleep=sleep)
        self.assertEqual(waits, [SETTLE_S] * 3)
        self.assertEqual(self.log.lacking(ROWS), (NONE, NONE))
        self.log.restart(ROWS, 6, sleep=waits.append)
        EarlierSink(self.log, sink="other").whole(7, ROWS)
        self.log.restart(ROWS, 8, sink="other", sleep=waits.append)
        self.assertEqual(len(waits), 3)

    def test_ends_a_driver(self) -> None:
        """An earlier version that sees the marker of this one after its own ends, as of any other run."""
        self.earlier.begin(5)
        self.log.restart(ROWS, 5)
        found = [decode_marker(body) for _, body in self.log.entries]
        begins = [one for one in found if one is not None and one.kind is MarkerKind.BEGIN]
        self.assertEqual(len({one.run for one in begins}), 3)

    def test_reads_back_to_the_last_end(self) -> None:
        """No further than to the batch before."""
        self.log.other(*[b"x"] * 5000)
        self.earlier.whole(4, ROWS)
        self.log.other(*[b"x"] * 100)
        self.log.restart(ROWS, 5)
        self.assertLess(len(self.log.read), 1100)

    def test_expired(self) -> None:
        """Without the end of the batch before it is not known what of this one has expired."""
        self.earlier.whole(4, ROWS)
        self.log.first = len(self.log.entries)
        self.log.other(b"y")
        self.refused(lambda: self.log.restart(ROWS, 5), "the end of the batch before it has expired")
        self.assertEqual(self.log.restart(ROWS, 5, is_strict=False).appended, 3)
        self.assertEqual(len(self.flushWarnings()), 1)
        self.assertEqual(self.log.restart(ROWS, 1, sink="new", search_from=self.log.first).appended, 3)

    def test_pieces_expired(self) -> None:
        """Nor where the first rows of the batch have."""
        self.earlier.begin(5)
        self.earlier.rows(5, b"a")
        self.log.first = len(self.log.entries)
        self.earlier.rows(5, b"b")
        self.refused(lambda: self.log.restart(ROWS, 5), "the end of the batch before it has expired")

    def test_first_batch(self) -> None:
        """Of batch 0 an earlier version is looked for where the option says from where on."""
        self.earlier.whole(0, ROWS)
        self.assertEqual(self.log.restart(ROWS, 0, search_from=0).appended, 0)
        self.assertEqual(self.log.restart(ROWS, 1).appended, 3)

    def test_first_batch_by_itself(self) -> None:
        """Where a marker of the sink is among the newest entries, without the option."""
        self.log.other(*[b"x"] * 2 * NEWEST)
        self.earlier.begin(0)
        self.earlier.rows(0, b"c")
        self.log.other(*[b"x"] * (NEWEST // 2))
        self.assertEqual(self.log.restart(ROWS, 0).appended, 2)
        self.assertEqual(self.log.lacking(ROWS), (NONE, NONE))
        self.setUp()
        self.earlier.whole(3, ROWS)
        self.refused(lambda: self.log.restart(ROWS, 0), "comes after batch 3, which is in the log at index")

    def test_first_batch_of_others(self) -> None:
        """Markers of other sinks do not count, nor do those in front of the newest entries."""
        EarlierSink(self.log, sink="other").whole(0, ROWS)
        self.assertEqual(self.log.restart(ROWS, 0).appended, 3)
        self.assertNotIn(MarkerKind.BEGIN, [
            marker.kind for _, body in self.log.entries if (marker := decode_marker(body)) is not None
            and marker.sink != "other"
        ])
        self.assertLess(len(self.log.read), NEWEST + 1)

    def test_doubled(self) -> None:
        """Rows that the earlier version has left twice are reported."""
        self.earlier.begin(5)
        self.earlier.rows(5, b"a", b"b")
        self.earlier.rows(5, b"b")
        outcome = self.log.restart(ROWS, 5)
        self.assertEqual((outcome.appended, outcome.doubled), (1, 1))

    def test_forgotten(self) -> None:
        """A sink whose producer the group has forgotten is found by its markers, complete or not."""
        self.log.restart(ROWS, 4)
        self.forget()
        self.refused(lambda: self.log.restart(ROWS[:2], 4), "is in the log with 3 rows")
        self.assertEqual(self.log.restart(ROWS, 4).appended, 0)
        self.forget()
        self.assertEqual(self.log.restart(ROWS, 5).appended, 3)
        self.log.fault = lambda at, _: (3, KeyError()) if at == 1 else None
        self.log.appends = 0
        self.assertRaises(KeyError, self.log.driver(ROWS * 2, 6).run)
        self.forget()
        self.log.restart(ROWS * 2, 6)
        self.assertEqual(self.log.lacking(ROWS * 4), (NONE, NONE))

    def forget(self) -> None:
        """Other producers append, more than the group remembers."""
        for number in range(self.log.producers.producers_max):
            index = len(self.log.entries)
            self.log.producers.note(NotedRun(f"p{number}", number, index, 1, index - 1))
            self.log.other(b"x")
