# -*- test-case-name: tests.spark.test_cores -*-
"""The benchmark of one core and two reads its own rows; nothing is timed."""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from benchmarks import spark_cores
from dledger.spark.scans.scan import Scan
from tests.spark.sessions import spark


class CoresTests(SynchronousTestCase):
    """Small logs of both formats."""

    def setUp(self) -> None:
        self.sources = spark_cores.sources(Path(self.mktemp()).absolute(), 4)

    def test_logs(self) -> None:
        """Records of the size that the figures are made of, in parts for two readers."""
        for source in self.sources:
            scan = Scan.of(source.options)
            parts = scan.plan()
            self.assertGreater(len(parts), 2, source.name)
            self.assertLess(abs(sum(part.size_bytes for part in parts) - source.size), 1000, source.name)

    def test_all_rows(self) -> None:
        """However many readers there are, together they read each row once."""
        for source in self.sources:
            rows = sum(batch.num_rows for batch in Scan.of(source.options).reader())
            for cores in range(1, min(len(os.sched_getaffinity(0)), 2) + 1):
                spent_s, _cpu_s, found = spark_cores.read_bare(source, cores)
                self.assertEqual((found, spent_s > 0), (rows, True), source.name)

    def test_memory(self) -> None:
        """The peak is that of a worker below this process."""
        spark().read.format("dledger").options(**self.sources[0].options).load().collect()
        self.assertGreater(spark_cores.worker_peak_bytes(), 40 * spark_cores.MIB)
