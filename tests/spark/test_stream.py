# -*- test-case-name: tests.spark.test_stream -*-
"""
C{spark.readStream.format("dledger")}: every entry once, in order of batches, within the limits, to the end.

Queries run with C{availableNow}: they end by themselves, so nothing here waits for time to pass.
"""

from __future__ import annotations

import os
import pickle
import shutil
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from twisted.internet.task import Clock

from dledger.spark.formats.log import DataLossError, LogPart, NotCommittedError, ReadError
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.scans.scan import Scan
from dledger.spark.source import LogStreamReader
from protocols.wire.fastjson import JsonObject
from protocols.wire.ledger.envelopes import envelope_head
from tests.processes.members import ROOT
from tests.spark.archives import ship
from tests.spark.ledgers import Ledger, plain_rows, set_group
from tests.spark.sessions import SparkCase, patiently, rows_of
from tests.spark.test_scan import LedgerCase


class ReaderTests(LedgerCase):
    """The reader itself, without Spark: its promises to the engine."""

    def reader(self, **options: object) -> LogStreamReader:
        """A new one, closed at the end."""
        given = {"path": self.path, **{name: str(value) for name, value in options.items()}}
        reader = LogStreamReader(Scan.of(given, is_stream=True))
        self.addCleanup(reader.stop)
        return reader

    def latest(self, reader: LogStreamReader, start: JsonObject, limit: object = ReadAllAvailable()) -> int:
        """The number of the latest offset; it has a proof, unless it is the start itself."""
        found = reader.latestOffset(start, limit)
        (group, *_) = start
        if found != start:
            self.assertEqual(list(found), [group, f"proof.{group}"])
        number = found[group]
        assert isinstance(number, int)
        return number

    def setUp(self) -> None:
        super().setUp()
        self.ledger.fill(100)
        self.ledger.commit(79)

    def test_beginning(self) -> None:
        """C{latest} unless set otherwise, as in Kafka's source."""
        self.assertEqual(self.reader().initialOffset()["default"], 80)
        self.assertEqual(self.reader(startingOffsets="earliest").initialOffset()["default"], 0)
        self.assertEqual(self.reader(startingOffsets=7, group="g").initialOffset()["g"], 7)

    def test_grows(self) -> None:
        """Every look sees what was committed since, over new files too; never what is not committed."""
        reader = self.reader()
        self.assertEqual(self.latest(reader, {"default": 5}, ReadAllAvailable()), 80)
        self.ledger.commit(99)
        self.assertEqual(self.latest(reader, {"default": 80}, ReadAllAvailable()), 100)
        self.ledger.fill(200)
        self.assertEqual(self.latest(reader, {"default": 100}, ReadAllAvailable()), 100)
        self.ledger.commit()
        self.assertEqual(self.latest(reader, {"default": 100}, ReadAllAvailable()), 300)

    def test_least_batch(self) -> None:
        """A batch waits for C{minOffsetsPerTrigger} records, at most C{maxTriggerDelay}, except the first."""
        clock = Clock()
        scan = Scan.of({"path": self.path, "minOffsetsPerTrigger": "10", "maxTriggerDelay": "90s"},
                       is_stream=True)
        reader = LogStreamReader(scan, clock.seconds)
        self.addCleanup(reader.stop)
        start = reader.latestOffset({"default": 78}, ReadAllAvailable())
        self.assertEqual(start["default"], 80)
        self.ledger.commit(88)
        self.assertEqual(reader.latestOffset(start, ReadAllAvailable()), start)
        clock.advance(89)
        self.assertEqual(reader.latestOffset(start, ReadAllAvailable()), start)
        clock.advance(1)
        start = reader.latestOffset(start, ReadAllAvailable())
        self.assertEqual(start["default"], 89)
        self.ledger.commit(92)
        self.assertEqual(reader.latestOffset(start, ReadAllAvailable()), start)

    def test_least_batch_is_reached(self) -> None:
        """As many records as are wanted do not wait, nor does a query that ends by itself."""
        reader = self.reader(minOffsetsPerTrigger=10)
        start = reader.latestOffset({"default": 78}, ReadAllAvailable())
        self.ledger.commit(88)
        self.assertEqual(self.latest(reader, start), 80)
        self.ledger.commit(89)
        start = reader.latestOffset(start, ReadAllAvailable())
        self.assertEqual(start["default"], 90)
        self.ledger.commit(90)
        self.assertEqual(self.latest(reader, start), 90)
        reader.prepareForTriggerAvailableNow()
        self.assertEqual(self.latest(reader, start), 91)

    def test_never_back(self) -> None:
        """A member that is behind is given time; then it is an error, or nothing new if one says so."""
        start = {"default": 90}
        error = self.assertRaises(DataLossError, self.reader(requestTimeoutMs=50).latestOffset, start)
        self.assertIn("it ends at 80, and has not reached them for 50 ms", str(error))
        said = self.warned()
        loose = self.reader(requestTimeoutMs=50, failOnDataLoss="false")
        for _ in range(2):
            self.assertEqual(loose.latestOffset(start, ReadAllAvailable()), start)
        self.assertEqual(sum("it ends at 80" in text for text in said), 1)
        self.assertEqual(self.reader().partitions(start, start), [])
        self.ledger.commit(99)
        self.assertEqual(self.latest(loose, start), 100)

    def test_limits(self) -> None:
        """By number, by bytes (one entry at least), by both; the engine's word counts before the options."""
        rows = plain_rows(self.path)
        start = {"default": 10}
        reader = self.reader(maxOffsetsPerTrigger=30)
        self.assertEqual(reader.getDefaultReadLimit(), ReadMaxRows(30))
        self.assertEqual(self.latest(reader, start, reader.getDefaultReadLimit()), 40)
        self.assertEqual(self.latest(reader, {"default": 70}, ReadMaxRows(30)), 80)
        self.assertEqual(self.latest(reader, start, ReadAllAvailable()), 80)
        limit = rows[20][2] - rows[10][2]
        reader = self.reader(maxBytesPerTrigger=limit)
        self.assertEqual(reader.getDefaultReadLimit(), ReadMaxBytes(limit))
        self.assertEqual(self.latest(reader, start, ReadMaxBytes(limit)), 20)
        self.assertEqual(self.latest(reader, start, ReadMaxBytes(limit - 1)), 19)
        self.assertEqual(self.latest(reader, start, ReadMaxBytes(1)), 11)
        reader = self.reader(maxBytesPerTrigger=limit, maxOffsetsPerTrigger=30)
        self.assertEqual(self.latest(reader, start, reader.getDefaultReadLimit()), 20)
        reader = self.reader(maxBytesPerTrigger=limit, maxOffsetsPerTrigger=4)
        self.assertEqual(self.latest(reader, start, reader.getDefaultReadLimit()), 14)

    def test_available_now(self) -> None:
        """The target is what was committed at the beginning."""
        reader = self.reader(startingOffsets="earliest")
        reader.prepareForTriggerAvailableNow()
        self.ledger.commit(99)
        self.assertEqual(self.latest(reader, {"default": 3}, ReadAllAvailable()), 80)
        self.assertEqual(self.latest(reader, {"default": 80}, ReadAllAvailable()), 80)
        # A checkpoint that is further than the target.
        self.assertEqual(self.latest(reader, {"default": 95}, ReadAllAvailable()), 95)

    def test_older_pyspark(self) -> None:
        """4.0 and 4.1 ask without arguments: all there is."""
        self.assertEqual(self.reader(maxOffsetsPerTrigger=3).latestOffset()["default"], 80)

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
        first = self.ledger.expire(2)
        self.assertGreater(first, 3)
        error = self.assertRaises(DataLossError, self.reader().partitions, {"default": 3}, {"default": 60})
        self.assertIn(f"offsets 3..{first - 1} have expired", str(error))
        said = self.warned()
        reader = self.reader(failOnDataLoss="false")
        parts = reader.partitions({"default": 3}, {"default": 60})
        indexes = [index for part in parts for batch in reader.read(part)
                   for index in batch.column(0).to_pylist()]
        self.assertEqual((indexes, len([text for text in said if "expired" in text])),
                         (list(range(first, 60)), 1))
        self.assertEqual(reader.partitions({"default": 0}, {"default": 2}), [])

    def test_another_checkpoint(self) -> None:
        """Offsets of another group are not taken for ours."""
        error = self.assertRaises(ReadError, self.reader(group="g").latestOffset, {"h": 3},
                                  ReadAllAvailable())
        self.assertIn("the checkpoint is of group 'h', option group is 'g'", str(error))

    def test_a_checkpoint_without_offsets(self) -> None:
        """Anything but an object with offsets is a damaged file."""
        damaged: list[Any] = [[1], 7, "x", {}, None]
        for value in damaged:
            with self.subTest(value=value):
                error = self.assertRaises(ReadError, self.reader().partitions, value, {"default": 60})
                self.assertIn("an object is expected. The file was changed by hand", str(error))
                if value is not None:  # then the stream begins
                    self.assertRaises(ReadError, self.reader().latestOffset, value, ReadAllAvailable())

    def test_an_offset_changed_by_hand(self) -> None:
        """A value that is no offset is named, and nothing is read from a place that it does not name."""
        for value in ("80", None, True, -1, 7.0, [80]):
            with self.subTest(value=value):
                error = self.assertRaises(ReadError, self.reader().latestOffset, {"default": value},
                                          ReadAllAvailable())
                self.assertIn(f"offset {value!r} of group 'default': a number from 0 on", str(error))


class ProofTests(LedgerCase):
    """Offsets are of one log: another one is noticed, and nothing that is not committed is shown."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger.fill(100)
        self.ledger.commit()
        first = self.reader(self.ledger)
        self.start = first.initialOffset()
        self.end = first.latestOffset(self.start, ReadAllAvailable())
        self.assertEqual((self.start["default"], self.end["default"]), (0, 100))

    def reader(self, ledger: Ledger, **options: object) -> LogStreamReader:
        """Of C{ledger}; closed at the end."""
        given = {"path": ledger.path, "startingOffsets": "earliest", "requestTimeoutMs": "50",
                 **{name: str(value) for name, value in options.items()}}
        reader = LogStreamReader(Scan.of(given, is_stream=True))
        self.addCleanup(reader.stop)
        return reader

    def other(self, count: int, *, seed: int = 2) -> Ledger:
        """Another log, of C{count} entries."""
        ledger = self.make()
        ledger.fill(count, seed=seed)
        ledger.commit()
        return ledger

    def rows(self, reader: LogStreamReader, start: JsonObject, end: JsonObject) -> list[int]:
        """The indexes of a batch."""
        return [index for part in reader.partitions(start, end) for batch in reader.read(part)
                for index in batch.column(0).to_pylist()]

    def test_the_same_log(self) -> None:
        """It grows, and its entries expire: it is still the same."""
        self.ledger.fill(50, seed=3)
        self.ledger.commit()
        reader = self.reader(self.ledger)
        end = reader.latestOffset(self.end, ReadAllAvailable())
        self.assertEqual(self.rows(reader, self.end, end), list(range(100, 150)))
        gone = sum(int(name) <= plain_rows(self.ledger.path)[100][2]
                   for name in os.listdir(f"{self.ledger.path}/data"))
        first = self.ledger.expire(gone - 1)
        self.assertLessEqual(first, 100)
        self.assertEqual(self.rows(self.reader(self.ledger), self.end, end), list(range(100, 150)))

    def test_made_anew(self) -> None:
        """Shorter, as long, or longer: another log is noticed, also by a query that has run all the time."""
        running = self.reader(self.ledger)
        running.latestOffset(self.end, ReadAllAvailable())
        another = "is not the log that was read before: at offset 100"
        for count, words in ((60, "it ends at 60"), (100, another), (150, another)):
            other = self.other(count)
            error = self.assertRaises(DataLossError, self.reader(other).latestOffset, self.end)
            self.assertIn(words, str(error))
            shutil.rmtree(self.ledger.path)
            shutil.copytree(other.path, self.ledger.path)
            error = self.assertRaises(DataLossError, running.latestOffset, self.end)
            self.assertIn(words, str(error))

    def test_on_request(self) -> None:
        """With C{failOnDataLoss=false} it is said once, and reading continues at the number."""
        said = self.warned()
        reader = self.reader(self.other(150), failOnDataLoss="false")
        end = reader.latestOffset(self.end, ReadAllAvailable())
        self.assertEqual(self.rows(reader, self.end, end), list(range(100, 150)))
        self.assertEqual(len(said), 1)
        self.assertIn("reading continues at offset 100 of this log", said[0])

    def test_another_group(self) -> None:
        """The id of the group distinguishes logs whose records are the same, or have expired."""
        proof = {**self.end["proof.default"], "group_id": "a" * 32}
        for at in (100, 0):
            set_group(self.ledger.path, "b" * 32)
            start = {"default": at, "proof.default": proof if at else {"group_id": "a" * 32}}
            error = self.assertRaises(DataLossError, self.reader(self.ledger).latestOffset, start)
            self.assertIn(f"group_id {'a' * 32}, and now has group_id {'b' * 32}", str(error))
            set_group(self.ledger.path, "a" * 32)
            self.reader(self.ledger).latestOffset(start, ReadAllAvailable())
        self.ledger.commit()
        found = self.reader(self.ledger).latestOffset(self.start, ReadAllAvailable())
        self.assertEqual(found["proof.default"]["group_id"], "a" * 32)

    def test_replay(self) -> None:
        """A batch that was planned elsewhere is shown when it is committed here, and if it is the same."""
        behind = self.make()
        behind.fill(100)
        behind.commit(49)
        reader = self.reader(behind)
        error = self.assertRaises(NotCommittedError, reader.partitions, self.start, self.end)
        self.assertIn("it ends at 50", str(error))
        behind.commit()
        self.assertEqual(self.rows(reader, self.start, self.end), list(range(100)))
        reader = self.reader(self.other(100))
        error = self.assertRaises(DataLossError, reader.partitions, self.start, self.end)
        self.assertIn("at offset 100", str(error))

    def test_tasks(self) -> None:
        """A task that runs where its range is not committed says so."""
        behind = self.make()
        behind.fill(100)
        behind.commit(49)
        scan = Scan.of({"path": behind.path, "requestTimeoutMs": "50"})
        part = LogPart(begin=40, end=60, size_bytes=0)
        self.assertRaises(NotCommittedError, lambda: list(scan.batches(part)))
        behind.commit(59)
        self.assertEqual(sum(batch.num_rows for batch in scan.batches(part)), 20)

    def test_back(self) -> None:
        """A batch that ends before its beginning."""
        reader = self.reader(self.ledger)
        self.assertRaises(DataLossError, reader.partitions, self.end, self.start)

    def test_behind_the_end(self) -> None:
        """A new query cannot begin where nothing is."""
        error = self.assertRaises(OptionError, self.reader(self.ledger, startingOffsets=101).initialOffset)
        self.assertIn("startingOffsets=101 is after the committed end", str(error))

    def test_java(self) -> None:
        """Records without checksums are distinguished by their bytes."""
        pair = []
        for word in (b"one", b"two"):
            ledger = self.make()
            ledger.append_without_checksums([word] * 20)
            ledger.commit()
            pair.append(ledger)
        reader = self.reader(pair[0])
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        self.assertRaises(DataLossError, self.reader(pair[1]).latestOffset, end)


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

    def test_archive(self) -> None:
        """The recipe of the reference, and a stream that begins in the archive and ends in the log."""
        text = (ROOT / "docs" / "spark-reference.md").read_text(encoding="utf-8")
        section = text[text.index("\n## Archives\n") : text.index("\n## TLS\n")]
        archive = f"{self.path}-archive"
        end = ship(self.path, archive).end_index + 1
        self.ledger.expire(end // 20)
        lines = [line.strip().replace('"dledger-data/dledger-n0"', repr(self.path)).replace(
            'load("archive")', f"load({archive!r})").replace(', "archive")', f", {archive!r})")
            for line in section.splitlines() if " = spark." in line]
        found: dict[str, Any] = {"spark": self.spark}
        exec("\n".join(lines), found)
        self.assertEqual([row[0] for row in rows_of(found["archived"].select("index"), "index")],
                         list(range(end)))
        self.assertEqual(found["whole"].count(), 250)
        self.run_query(archive=archive, maxOffsetsPerTrigger=200)
        written = rows_of(self.spark.read.parquet(self.out).select("index"), "index")
        self.assertEqual([row[0] for row in written], list(range(250)))

    def test_envelopes(self) -> None:
        """A stream has times and headers with option C{envelopes}."""
        self.ledger.append([envelope_head(1767323045678, {"type": b"order"}) + b"a"])
        self.ledger.commit()
        last = self.ledger.store.ledger_end_index
        self.run_query(envelopes="true")
        found = self.spark.read.parquet(self.out).where(f"index = {last}")
        self.assertEqual(rows_of(found.selectExpr("body", "unix_millis(timestamp)", "headers")),
                         [(b"a", 1767323045678, {"type": bytearray(b"order")})])

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
        names = os.listdir(f"{self.path}/data")
        first = self.ledger.expire(sum(int(name) < kept_from for name in names))
        error = self.assertRaises(StreamingQueryException, self.run_query)
        self.assertIn(f"offsets 250..{first - 1} have expired", str(error))
        self.run_query(failOnDataLoss="false")
        found = [row[0] for row in rows_of(self.spark.read.parquet(self.out), "index")]
        self.assertEqual(found, [*range(250), *range(first, 500)])

    def test_made_anew(self) -> None:
        """A query does not go on with another log in the same place: longer, or shorter."""
        self.run_query()
        for count, words in ((300, "is not the log that was read before: at offset 250"),
                             (60, "it ends at 60, and has not reached them for 100 ms")):
            other = self.make()
            other.fill(count, seed=9)
            other.commit()
            shutil.rmtree(self.path)
            shutil.copytree(other.path, self.path)
            error = self.assertRaises(StreamingQueryException, self.run_query, requestTimeoutMs=100)
            self.assertIn(words, str(error))
        self.assertEqual(self.spark.read.parquet(self.out).count(), 250)

    def test_wrong_options(self) -> None:
        """C{endingOffsets} is refused for a stream."""
        error = self.assertRaises(StreamingQueryException, self.run_query, endingOffsets="5")
        self.assertIn("endingOffsets is for batches; a stream has no end", str(error))
