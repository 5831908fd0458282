# -*- test-case-name: tests.spark.test_scale -*-
"""Planning on large logs: its cost grows with the parts, not with the entries or the segments."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.spark_scale import MIB, PER_SEGMENT, Planned, make_archive, make_directory, plan
from dledger.spark.scans.scan import Scan


class PlanningTests(SynchronousTestCase):
    """Sparse logs of many GiB."""

    def setUp(self) -> None:
        """A place."""
        held = TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.home = Path(held.name)

    def planned(self, name: str, mib: int) -> Planned:
        """The cost for one size of parts."""
        return plan({"path": str(self.home / name), "partitionBytes": str(mib * MIB)})

    def test_directory(self) -> None:
        """All entries, in parts of the wanted size; a few reads for each part, and none for each segment."""
        for segments in (80, 160):
            make_directory(self.home / str(segments), segments)
            parts = Scan.of({"path": str(self.home / str(segments))}).plan()
            self.assertEqual((parts[0].begin, parts[-1].end), (0, segments * PER_SEGMENT))
            self.assertTrue(all(one.size_bytes <= 192 * MIB for one in parts))
            self.assertLess(self.planned(str(segments), 128).calls["pread"], 2 * len(parts) + 10)
        few, many = self.planned("80", 1024 * 80), self.planned("160", 1024 * 160)
        self.assertEqual((few.parts, many.parts), (1, 1))
        self.assertEqual(few.calls, many.calls)

    def test_archive(self) -> None:
        """Planning reads the manifest, and asks for no segment."""
        for segments in (80, 160):
            make_archive(self.home / str(segments), segments)
        few, many = self.planned("80", 1024), self.planned("160", 1024)
        self.assertEqual((few.parts, many.parts), (80, 160))
        self.assertEqual(few.calls, many.calls)
        self.assertLess(sum(many.calls.values()), 10)
