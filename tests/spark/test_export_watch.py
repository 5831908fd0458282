# -*- test-case-name: tests.spark.test_export_watch -*-
"""The lag of an export that follows a log, and when it is in order."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.export import watch as watch_module
from dledger.spark.export.engine import ExportPlan
from dledger.spark.export.watch import ExportWatch
from dledger.values.exports import ExportProgress, ExportStatus
from protocols.wire.ledger.envelopes import envelope_head
from tests.spark.test_export import ExportCase


def progress(visible: int, end: int, **more: Any) -> ExportProgress:
    """Of a log whose entries have ten bytes."""
    found = ExportProgress(begin=0, next=end, end=end, rows=0, log_bytes=0, visible=visible,
                           lag_bytes=10 * (end - visible))
    return attrs.evolve(found, **more)


class WatchTests(SynchronousTestCase):
    """Each number, on a clock of our own."""

    def setUp(self) -> None:
        """Ten seconds are allowed."""
        self.watch = ExportWatch(max_lag_ms=10_000)

    def status(self, now_ms: int) -> ExportStatus:
        """Now, a thousand seconds after 1970 when the clock says 0."""
        return self.watch.status(now_ms, 1000 + now_ms / 1000)

    def test_begin(self) -> None:
        """An export that has not looked at the log is not in order."""
        self.assertEqual(self.status(0).problems, ("the log has not been read yet",))

    def test_lag(self) -> None:
        """Entries, bytes, and seconds since the oldest was first seen; a commit ends it for those in it."""
        self.watch.read(progress(0, 0), 0)
        self.assertEqual((self.status(0).lag_entries, self.status(0).lag_s), (0, 0.0))
        self.watch.read(progress(0, 5), 1000)
        self.watch.read(progress(0, 8), 4000)
        status = self.status(6000)
        self.assertEqual((status.lag_entries, status.lag_bytes, status.lag_s), (8, 80, 5.0))
        self.watch.committed(4, 5, "3", 1006.0)
        status = self.status(7000)
        self.assertEqual((status.next, status.lag_entries, status.lag_s), (5, 3, 3.0))
        self.assertEqual((status.commits, status.rows, status.last_commit_s), (1, 5, 1006.0))
        self.assertEqual((status.last_offset, status.version), (4, "3"))
        self.watch.committed(7, 3, "4", 1007.0)
        self.assertEqual((self.status(9000).lag_s, self.status(9000).lag_bytes), (0.0, 0))

    def test_own_time(self) -> None:
        """By the log's own time where one is known, until these rows are visible."""
        self.watch.read(progress(0, 5, oldest_ms=400_000), 0)
        self.assertEqual(self.status(0).lag_s, 600.0)
        self.watch.committed(1, 1, "", 1000.0)
        self.assertEqual(self.status(2000).lag_s, 2.0)

    def test_bytes(self) -> None:
        """Offsets of a broker's commit log are no entries."""
        self.watch.read(progress(0, 500, are_bytes=True, lag_bytes=500), 0)
        self.assertEqual((self.status(0).lag_entries, self.status(0).lag_bytes), (None, 500))

    def test_ready(self) -> None:
        """A long lag, long trouble, and long silence each are a reason; shorter ones are not."""
        self.watch.read(progress(0, 5), 0)
        self.watch.read(progress(0, 5), 10_000)
        self.assertEqual(self.status(10_000).problems, ())
        self.assertIn("10 s old, and 10 s are allowed", self.status(10_400).problems[0])
        self.watch.committed(4, 5, "", 1010.0)
        self.watch.read(progress(5, 5), 11_000)
        self.watch.failed(OSError("gone"), 12_000)
        self.watch.failed(OSError("away"), 13_000)
        self.assertEqual(self.status(21_000).problems, ())
        self.assertEqual(self.status(22_500).problems, ("for 10 s nothing can be exported: away",))
        self.assertEqual((self.status(22_500).errors, self.status(22_500).failing_s), (2, 10.5))
        self.watch.read(progress(5, 5), 23_000)
        self.assertEqual((self.status(23_000).problems, self.status(23_000).failing_s), ((), 0.0))
        self.watch.failed(ValueError("compaction"), 24_000, stops=False)
        self.assertEqual(self.status(33_500).problems, ("for 10 s the export has not looked at the log",))

    def test_any_lag(self) -> None:
        """Parts without a time at which they end: no lag is too long, trouble is."""
        self.watch = ExportWatch(max_lag_ms=0)
        self.watch.read(progress(0, 5, oldest_ms=1), 0)
        self.assertEqual(self.status(60_000).problems, ())
        self.assertEqual(len(self.status(60_500).problems), 1)

    def test_bounded(self) -> None:
        """Many ends of the log are remembered as few, and no lag becomes shorter than it is."""
        self.patch(watch_module, "_SEEN_MAX", 3)
        for number in range(1, 50):
            self.watch.read(progress(0, number), 1000 * number)
        self.assertEqual(self.status(50_000).lag_s, 49.0)
        self.watch.committed(2, 3, "", 0.0)
        self.assertGreaterEqual(self.status(50_000).lag_s, 47.0)
        self.watch.committed(40, 38, "", 0.0)
        self.assertGreaterEqual(self.status(50_000).lag_s, 9.0)
        self.watch.committed(48, 8, "", 0.0)
        self.assertEqual(self.status(50_000).lag_s, 0.0)


class RunTests(ExportCase):
    """What a run says of itself."""

    def test_run(self) -> None:
        """Rows that were read and are not visible count, with the log's own times; tables have versions."""
        given = {"to": ["delta"], "option": ["envelopes=true"], "max_delay": ["5"]}
        plan = ExportPlan.of(self.ledger.path, self.out, given, follows=True)
        self.assertEqual(plan.max_lag_ms, 600_000)
        with plan.open() as run:
            self.assertEqual(len(run.status(0).problems), 1)
            self.ledger.append([envelope_head(7_000, {}) + b"x" * 10, b"y"])
            self.ledger.commit()
            run.turn(0)
            status = run.status(1000)
            self.assertEqual((status.next, status.end, status.lag_entries), (0, 2, 2))
            self.assertEqual(status.lag_bytes, self.ledger.store.end_position)
            self.assertGreater(status.lag_s, 10**9)
            run.turn(5_000)
            status = run.status(5_000)
            self.assertEqual((status.next, status.lag_entries, status.lag_bytes), (2, 0, 0))
            self.assertEqual(status.lag_s, 0.0)
            self.assertEqual((status.commits, status.version, status.last_offset), (1, "1", 1))

    def test_max_lag(self) -> None:
        """Not given it follows from the longest delay; parts that end where they are full have none."""
        for given, expected in (
            ({"max_delay": ["600"]}, 6_000_000), ({"max_delay": ["0"]}, 0), ({"max_lag": ["2.5"]}, 2_500),
        ):
            plan = ExportPlan.of(self.ledger.path, self.out, given, follows=True)
            self.assertEqual(plan.max_lag_ms, expected)
