# -*- test-case-name: tests.spark.test_benchmark -*-
"""The benchmark's ledger and its yardstick are sound; nothing is timed."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from benchmarks import spark_sink
from benchmarks.spark_scan import QUERIES, build, serving, show
from tests.spark.ledgers import plain_rows, scanned
from tests.spark.sessions import spark


class BenchmarkTests(SynchronousTestCase):
    """A small ledger."""

    def test_ledger(self) -> None:
        """Entries of one size, in two segments, all committed; a member gives the same ones."""
        log = build(Path(self.mktemp()).absolute(), 2**20, 100)
        rows = plain_rows(str(log.path))
        self.assertEqual((len(rows), {len(row[-1]) for row in rows}), (log.entries, {100}))
        self.assertEqual(sum(row[3] for row in rows), log.size)
        self.assertEqual({row[2] // 2**19 for row in rows}, {0, 1})
        self.assertEqual(scanned({"path": str(log.path)}), rows)
        with serving(log) as bootstrap:
            self.assertEqual(scanned({"bootstrap": bootstrap, "endingOffsets": log.entries}), rows)

    def test_sink(self) -> None:
        """All ways append the bodies; a round in front does not count."""
        log = build(Path(self.mktemp()).absolute(), 2**20, 100)
        with serving(log) as bootstrap:
            found = spark_sink.measure(spark(), bootstrap, 50, 20, 1)
            rows = scanned({"bootstrap": bootstrap, "startingOffsets": log.entries})
        self.assertEqual([one["rows"] for one in found], [50, 50, 50])
        bodies = sorted(b"%d" % at for at in range(50))
        self.assertEqual(sorted(row[-1].lstrip(b"x") for row in rows if row[-1]), sorted(bodies * 6))

    def test_verdicts(self) -> None:
        """An aim that is missed is said to be."""
        said: list[str] = []
        self.patch(show.__globals__["console"], "print", lambda text, **_more: said.append(str(text)))
        ways = ("Spark, Parquet", "Spark, path", "Spark, bootstrap", "numpy -> Arrow", "Spark, RocketMQ",
                *(f"{way}: {query}" for query in QUERIES for way in ("Parquet", "path")))
        for path_s, verdict in ((1.0, "reached"), (1.1, "MISSED")):
            del said[:]
            show([
                {"what": way, "body_bytes": 100, "entries": 10, "bytes": 2_000_000_000, "cpu_seconds": 1.0,
                 "seconds": path_s if way == "Spark, path" else 1.0}
                for way in ways
            ])
            self.assertTrue(any(line.startswith("100 B: Spark, path / Spark, Parquet") and verdict in line
                                for line in said), said)
            self.assertTrue(any("2,000 MB/s, aim 1,000: reached" in line for line in said), said)
