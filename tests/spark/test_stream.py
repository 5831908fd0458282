# -*- test-case-name: tests.spark.test_stream -*-
"""
C{spark.readStream.format("dledger")}: every entry once, in order of batches, within the limits, to the end.

Queries run with C{availableNow}: they end by themselves, so nothing here waits for time to pass.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from dledger.spark.log import DataLossError, ReadError
from dledger.spark.scan import Scan
from dledger.spark.source import LogStreamReader
from tests.spark.ledgers import plain_rows
from tests.spark.sessions import SparkCase, patiently, rows_of
from tests.spark.test_scan import LedgerCase


class ReaderTests(LedgerCase):
    """The reader itself, without Spark: what the engine relies on."""

    def reader(self, **options: object) -> LogStreamReader:
        """A new one, closed at the end."""
        given = {"path": self.path, **{name: str(value) for name, value in options.items()}}
        reader = LogStreamReader(Scan.of(given, is_stream=True))
        self.addCleanup(reader.stop)
        return reader

    def setUp(self) -> None:
        super().setUp()
        self.ledger.fill(100)
        self.ledger.commit(79)

    def test_beginning(self) -> None:
        """C{latest} unless told otherwise, as in Kafka's source."""
        self.assertEqual(self.reader().initialOffset(), {"default": 80})
        self.assertEqual(self.reader(startingOffsets="earliest").initialOffset(), {"default": 0})
        self.assertEqual(self.reader(startingOffsets=7, group="g").initialOffset(), {"g": 7})

    def test_grows(self) -> None:
        """Every look sees what was committed since, over new files too; never what is not committed."""
        reader = self.reader()
        self.assertEqual(reader.latestOffset({"default": 5}, ReadAllAvailable()), {"default": 80})
        self.ledger.commit(99)
        self.assertEqual(reader.latestOffset({"default": 80}, ReadAllAvailable()), {"default": 100})
        self.ledger.fill(200)
        self.assertEqual(reader.latestOffset({"default": 100}, ReadAllAvailable()), {"default": 100})
        self.ledger.commit()
        self.assertEqual(reader.latestOffset({"default": 100}, ReadAllAvailable()), {"default": 300})

    def test_never_back(self) -> None:
        """A member that is behind has nothing new; that is no data loss."""
        self.assertEqual(self.reader().latestOffset({"default": 90}, ReadAllAvailable()), {"default": 90})
        self.assertEqual(self.reader().partitions({"default": 90}, {"default": 90}), [])

    def test_limits(self) -> None:
        """By number, by bytes (one entry at least), by both; the engine's word stands above the options."""
        rows = plain_rows(self.path)
        start = {"default": 10}
        reader = self.reader(maxOffsetsPerTrigger=30)
        self.assertEqual(reader.getDefaultReadLimit(), ReadMaxRows(30))
        self.assertEqual(reader.latestOffset(start, reader.getDefaultReadLimit()), {"default": 40})
        self.assertEqual(reader.latestOffset({"default": 70}, ReadMaxRows(30)), {"default": 80})
        self.assertEqual(reader.latestOffset(start, ReadAllAvailable()), {"default": 80})
        limit = rows[20][2] - rows[10][2]
        reader = self.reader(maxBytesPerTrigger=limit)
        self.assertEqual(reader.getDefaultReadLimit(), ReadMaxBytes(limit))
        self.assertEqual(reader.latestOffset(start, ReadMaxBytes(limit)), {"default": 20})
        self.assertEqual(reader.latestOffset(start, ReadMaxBytes(limit - 1)), {"default": 19})
        self.assertEqual(reader.latestOffset(start, ReadMaxBytes(1)), {"default": 11})
        reader = self.reader(maxBytesPerTrigger=limit, maxOffsetsPerTrigger=30)
        self.assertEqual(reader.latestOffset(start, reader.getDefaultReadLimit()), {"default": 20})
        reader = self.reader(maxBytesPerTrigger=limit, maxOffsetsPerTrigger=4)
        self.assertEqual(reader.latestOffset(start, reader.getDefaultReadLimit()), {"default": 14})

    def test_available_now(self) -> None:
        """The target is what was committed at the beginning."""
        reader = self.reader(startingOffsets="earliest")
        reader.prepareForTriggerAvailableNow()
        self.ledger.commit(99)
        self.assertEqual(reader.latestOffset({"default": 3}, ReadAllAvailable()), {"default": 80})
        self.assertEqual(reader.latestOffset({"default": 80}, ReadAllAvailable()), {"default": 80})
        # A checkpoint that is further than this member knows.
        self.assertEqual(reader.latestOffset({"default": 95}, ReadAllAvailable()), {"default": 95})

    def test_older_pyspark(self) -> None:
        """4.0 and 4.1 ask without arguments: all there is."""
        self.assertEqual(self.reader(maxOffsetsPerTrigger=3).latestOffset(), {"default": 80})

    def test_partitions(self) -> None:
        """Parts of the range, and the same rows from any process, any number of times."""
        reader = self.reader(minPartitions=3)
        parts = reader.partitions({"default": 5}, {"default": 75})
        self.assertGreaterEqual(len(parts), 3)
        copied = pickle.loads(pickle.dumps((reader, parts)))
        for other, some in ((reader, parts), copied, copied):
            indexes = [index for part in some for batch in other.read(part)
                       for index in batch.column(0).to_pylist()]
            self.assertEqual(indexes, list(range(5, 75)))
        self.assertEqual(list(reader.read(InputPartition(None))), [])

    def test_data_loss(self) -> None:
        """Entries that expired before a query came to read them."""
        for name in sorted(os.listdir(f"{self.path}/data"))[:2]:
            os.unlink(f"{self.path}/data/{name}")
        first = plain_rows(self.path)[0][0]
        self.assertGreater(first, 3)
        error = self.assertRaises(DataLossError, self.reader().partitions, {"default": 3}, {"default": 60})
        self.assertIn(f"offsets 3..{first - 1} have expired", str(error))
        said = self.warned()
        reader = self.reader(failOnDataLoss="false")
        parts = reader.partitions({"default": 3}, {"default": 60})
        indexes = [index for part in parts for batch in reader.read(part)
                   for index in batch.column(0).to_pylist()]
        self.assertEqual((indexes, len(said)), (list(range(first, 60)), 1))
        self.assertEqual(reader.partitions({"default": 0}, {"default": 2}), [])

    def test_another_checkpoint(self) -> None:
        """Offsets of another group are not taken for ours."""
        error = self.assertRaises(ReadError, self.reader(group="g").latestOffset, {"h": 3},
                                  ReadAllAvailable())
        self.assertIn("the checkpoint is of group 'h', option group is 'g'", str(error))


class QueryTests(SparkCase):
    """Whole queries."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger.fill(300)
        self.ledger.commit(249)
        self.out = os.path.abspath(self.mktemp())
        self.checkpoint = os.path.abspath(self.mktemp())

    def run_query(self, **options: Any) -> list[int]:
        """Run to the end of what there is; how many rows each batch had."""
        return patiently(lambda: self.run_once(**options))

    def run_once(self, **options: Any) -> list[int]:
        """As L{run_query}, once."""
        reader = self.spark.readStream.format("dledger").option("startingOffsets", "earliest")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        query = (
            reader.load(self.path).writeStream.format("parquet").option("path", self.out)
            .option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()
        )
        try:
            self.assertTrue(query.awaitTermination(240))
            return [progress["numInputRows"] for progress in query.recentProgress]
        finally:
            query.stop()

    def test_to_the_end_and_on(self) -> None:
        """Batches within the limit; a second run goes on where the first one ended, over new files."""
        sizes = self.run_query(maxOffsetsPerTrigger=100, minPartitions=2)
        self.assertEqual([size for size in sizes if size], [100, 100, 50])
        self.ledger.fill(150, seed=3)
        self.ledger.commit()
        sizes = self.run_query()
        self.assertEqual([size for size in sizes if size], [200])
        self.assertEqual(rows_of(self.spark.read.parquet(self.out), "index"), plain_rows(self.path))

    def test_data_loss(self) -> None:
        """A query that comes too late ends with an error that says so; with the option it goes on."""
        self.run_query()
        self.ledger.fill(200, seed=3)
        self.ledger.commit()
        kept_from = plain_rows(self.path)[-100][2] - self.ledger.config.mapped_file_size_for_entry_data
        for name in sorted(os.listdir(f"{self.path}/data")):
            if int(name) < kept_from:
                os.unlink(f"{self.path}/data/{name}")
        first = plain_rows(self.path)[0][0]
        error = self.assertRaises(StreamingQueryException, self.run_query)
        self.assertIn(f"offsets 250..{first - 1} have expired", str(error))
        self.run_query(failOnDataLoss="false")
        found = [row[0] for row in rows_of(self.spark.read.parquet(self.out), "index")]
        self.assertEqual(found, [*range(250), *range(first, 500)])

    def test_wrong_options(self) -> None:
        """A stream has no end."""
        error = self.assertRaises(StreamingQueryException, self.run_query, endingOffsets="5")
        self.assertIn("endingOffsets is for batches; a stream has no end", str(error))
