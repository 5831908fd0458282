# -*- test-case-name: tests.spark.test_source -*-
"""C{spark.read.format("dledger")}: rows, columns, options, and errors as a user sees them."""

from __future__ import annotations

import os
import random
import subprocess
import sys

from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as sql
from pyspark.sql.types import _parse_datatype_string
from twisted.trial.unittest import SynchronousTestCase

import dledger.spark
from dledger.spark.ledger.columns import ENTRY_COLUMNS, ddl_of
from dledger.spark.rocketmq.messages import MESSAGE_COLUMNS
from dledger.spark.source import DLedgerDataSource, LogBatchReader, LogStreamReader
from protocols.wire.ledger.envelopes import envelope_head
from tests.processes.members import ROOT
from tests.spark.ledgers import Ledger, plain_rows, scanned
from tests.spark.sessions import SparkCase, rows_of
from tests.spark.test_commit_log import BrokerLog
from tests.spark.test_messages import append_messages, message_at

ALL = [column.name for column in ENTRY_COLUMNS]


class ImportTests(SynchronousTestCase):
    """Spark starts several Pythons for one query; each imports the source before it does anything."""

    def test_pandas(self) -> None:
        """The source does not import pandas, which takes a third of a second."""
        said = "import sys, dledger.spark.source; print('pandas' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=True, timeout=100
        )
        self.assertEqual(done.stdout, "False\n")


class ReadTests(SparkCase):
    """Batch."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger.fill(200)
        self.ledger.append([b"uncommitted"])
        self.ledger.commit(199)
        self.rows = plain_rows(self.path, 200)

    def test_value_by_value(self) -> None:
        """All columns of all committed entries, found by the format's name alone, in several partitions."""
        frame = self.read(self.path, minPartitions=3)
        self.assertEqual(rows_of(frame, "index"), self.rows)
        self.assertEqual(frame.rdd.getNumPartitions(), 3)
        self.assertEqual(frame.schema, _parse_datatype_string(ddl_of(ENTRY_COLUMNS)))

    def test_registered(self) -> None:
        """C{register} does what is else done by the name of a package."""
        dledger.spark.register(self.spark)
        self.assertEqual(self.read(self.path).count(), 200)

    def test_projection(self) -> None:
        """A schema takes some of the columns, in its order."""
        frame = self.read(self.path, "body BINARY, index BIGINT")
        self.assertEqual(rows_of(frame, "index"), [(row[7], row[0]) for row in self.rows])
        frame = self.read(self.path, "term BIGINT")
        self.assertEqual(frame.agg(sql.sum("term")).first()[0], sum(row[1] for row in self.rows))

    def test_query(self) -> None:
        """Filters, joins and grouping see the right rows, also when one data frame is used twice."""
        frame = self.read(self.path)
        low = frame.where("index < 10")
        self.assertEqual((low.count(), frame.count(), low.crossJoin(frame).count()), (10, 200, 2000))
        frame.createOrReplaceTempView("ledger")
        found = self.spark.sql("SELECT term, count(*) n FROM ledger GROUP BY term ORDER BY term").collect()
        self.assertEqual([tuple(row) for row in found], [(term, 25) for term in range(1, 9)])
        bad = frame.where("body_crc <> 0 AND crc32(body) <> (body_crc & 4294967295)")
        self.assertEqual(bad.count(), 0)

    def test_snapshot(self) -> None:
        """A loaded data frame keeps its range; loading again shows what came since."""
        frame = self.read(self.path)
        self.assertEqual(frame.count(), 200)
        self.ledger.fill(10)
        self.ledger.commit()
        self.assertEqual((frame.count(), self.read(self.path).count()), (200, 211))

    def test_envelopes(self) -> None:
        """With option C{envelopes}: bodies of programs, times and headers; rows and columns alike."""
        self.ledger.append([envelope_head(1767323045678, {"type": b"order"}) + b"a", b"plain"])
        self.ledger.commit()
        given = {"envelopes": True, "startingOffsets": 201}
        frame = self.read(self.path, **given)
        self.assertEqual(frame.schema.names, [*ALL, "timestamp", "headers", "key"])
        text = frame.selectExpr(
            "index", "body", "cast(timestamp as string)", "cast(headers['type'] as string)"
        )
        self.assertEqual([row[1:] for row in rows_of(text, "index")],
                         [(b"a", "2026-01-02 03:04:05.678", "order"), (b"plain", None, None)])
        self.assertEqual(frame.where("timestamp >= '2026-01-02'").count(), 1)
        self.assertEqual(frame.where("map_keys(headers) = array('type')").count(), 1)
        some = self.read(self.path, "timestamp TIMESTAMP, body BINARY", **given)
        self.assertEqual(sorted(row[1] for row in rows_of(some)), [b"a", b"plain"])

    def test_offsets(self) -> None:
        """Of a batch."""
        frame = self.read(self.path, startingOffsets=5, endingOffsets='{"default": 8}')
        self.assertEqual([row[0] for row in rows_of(frame, "index")], [5, 6, 7])
        self.assertEqual(self.read(self.path, startingOffsets="latest").count(), 0)

    def test_parquet(self) -> None:
        """There and back."""
        target = os.path.abspath(self.mktemp())
        self.read(self.path).write.parquet(target)
        self.assertEqual(rows_of(self.spark.read.parquet(target), "index"), self.rows)

    def test_empty(self) -> None:
        """A ledger without entries is a data frame without rows."""
        self.assertEqual(rows_of(self.read(self.make().path)), [])


class MessageTests(SparkCase):
    """C{format=rocketmq}: Spark takes every column, and gives the values that Arrow has."""

    def check(self, path: str, count: int) -> None:
        """Spark against the scan, which has tests of its own."""
        options = {"path": path, "format": "rocketmq"}
        frame = self.read(**options, minPartitions=2)
        self.assertEqual(frame.schema, _parse_datatype_string(ddl_of(MESSAGE_COLUMNS)))
        found = frame.drop("bornTimestamp", "storeTimestamp").orderBy("physicalOffset").collect()
        plain = [column for column in MESSAGE_COLUMNS if not column.name.endswith("Timestamp")]
        expected = scanned(options, [(column.name, column.ddl) for column in plain])
        self.assertEqual(len(expected), count)
        at = [column.name for column in plain].index("properties")
        self.assertEqual([(*row[:-1], bytes(row[-1])) for row in found],
                         [(*row[:at], dict(row[at]), *row[at + 1 :]) for row in expected])
        times = frame.selectExpr("unix_millis(bornTimestamp)", "unix_millis(storeTimestamp)",
                                 "physicalOffset")
        arrow = scanned(options, [(name, "timestamp") for name in ("bornTimestamp", "storeTimestamp")])
        self.assertEqual(
            [tuple(row)[:2] for row in times.orderBy("physicalOffset").collect()],
            [tuple(round(value.timestamp() * 1000) for value in row) for row in arrow],
        )

    def test_entries(self) -> None:
        """Of a broker in DLedger mode."""
        ledger = self.make(mapped_file_size_for_entry_data=20_000)
        ledger.append([b""])
        append_messages(ledger, 60, lambda at, number: message_at(at, number, chance=random.Random(number)))
        ledger.commit()
        self.check(ledger.path, 60)

    def test_commit_log(self) -> None:
        """Of any other; and a query as one would ask it."""
        path = os.path.abspath(self.mktemp())
        log = BrokerLog(f"{path}/commitlog")
        for number in range(80):
            log.append(number)
        self.check(path, 80)
        frame = self.read(path, format="rocketmq")
        tagged = frame.where("tags = 'TagA' and properties['TAGS'] = tags").count()
        self.assertEqual(tagged, sum(1 for row in log.rows() if row[7] == "TagA"))
        self.assertGreater(tagged, 0)


class ErrorTests(SparkCase):
    """Our sentence for the user is at the end of Spark's own words."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger.fill(50)
        self.ledger.commit()

    def refused(self, words: str, schema: str = "", path: str = "", **options: object) -> None:
        """Loading fails so."""
        def load() -> None:
            self.read(path or self.path, schema, **options).count()

        error = self.assertRaises(AnalysisException, load)
        self.assertIn(words, str(error))

    def test_options(self) -> None:
        """An option that does not exist or makes no sense."""
        self.refused("unknown option startingoffest (did you mean startingOffsets?)", startingOffest="1")
        self.refused("endingOffsets=99 is after the committed end 50", endingOffsets=99)
        self.refused("maxOffsetsPerTrigger and maxBytesPerTrigger are for streams", maxOffsetsPerTrigger=1)

    def test_schema(self) -> None:
        """A column that does not exist, or has another type."""
        self.refused("unknown column offset", schema="offset BIGINT")
        self.refused("column index is BIGINT, not INT", schema="index INT")
        self.refused("column body is BINARY, not STRING", schema="body STRING")
        self.refused("column index is NOT NULL in the schema", schema="index BIGINT NOT NULL")

    def test_places(self) -> None:
        """A directory that is none, and several."""
        self.refused("does not exist: name a member's directory", path=self.path + "x")
        reader = self.spark.read.format("dledger")
        error = self.assertRaises(AnalysisException, lambda: reader.load([self.path, self.path]).count())
        self.assertIn("several directories", str(error))

    def test_damage(self) -> None:
        """File and offset reach the user through the worker; with the option the rest is read."""
        row = plain_rows(self.path)[20]
        size = self.ledger.config.mapped_file_size_for_entry_data
        name = f"{self.path}/data/{row[2] // size * size:020d}"
        with open(name, "r+b") as file:
            file.seek(row[2] % size + 8)
            file.write(bytes(8))
        error = self.assertRaises(PythonException, self.read(self.path).collect)
        self.assertIn(f"entry 20 is damaged: {name} at {row[2] % size}", str(error))
        frame = self.read(self.path, failOnDamage=False)
        self.assertEqual([found[0] for found in rows_of(frame, "index")], [*range(20), *range(21, 50)])

    def test_damage_at_the_ends(self) -> None:
        """The first header, and the last data file: an error, never fewer rows."""
        names = sorted(os.listdir(f"{self.path}/data"))
        first, last = (f"{self.path}/data/{name}" for name in (names[0], names[-1]))
        with open(first, "r+b") as file:
            file.write(b"\xff")
        error = self.assertRaises(AnalysisException, self.read(self.path).collect)
        self.assertIn(f"{first} at 0: the first header of the ledger", str(error))
        with open(first, "r+b") as file:
            file.write(b"\0")
        os.rename(last, f"{self.path}/elsewhere")
        error = self.assertRaises(PythonException, self.read(self.path).collect)
        self.assertIn("the data file that it names is not there", str(error))

    def test_data_loss(self) -> None:
        """Entries that expire between planning and reading."""
        strict, loose = self.read(self.path), self.read(self.path, failOnDataLoss=False)
        for frame in (strict, loose):
            self.assertEqual(frame.count(), 50)  # planned now
        first = self.ledger.expire(3)
        self.assertGreater(first, 0)
        error = self.assertRaises(PythonException, strict.collect)
        self.assertIn(f"offsets 0..{first - 1} have expired", str(error))
        self.assertEqual([row[0] for row in rows_of(loose, "index")], list(range(first, 50)))


class SkinTests(SynchronousTestCase):
    """What is promised of the classes themselves."""

    def test_no_filters_are_pushed(self) -> None:
        """See the rule in L{dledger.spark.source}; the upstream bug is watched by C{test_upstream}."""
        self.assertNotIn("pushFilters", vars(LogBatchReader))
        self.assertNotIn("pushFilters", vars(LogStreamReader))

    def test_found_by_name(self) -> None:
        """The package that Spark looks for holds the class."""
        import pyspark_dledger

        self.assertIs(pyspark_dledger.DefaultSource, DLedgerDataSource)
        self.assertEqual(DLedgerDataSource.name(), "dledger")

    def test_older_pyspark(self) -> None:
        """PySpark 4.0 and 4.1 have no limits: the source is there, and a stream takes all there is."""
        code = (
            "import sys\n"
            "import pyspark.sql.datasource\n"
            "import pyspark.sql.streaming.datasource as newer\n"
            "del newer.ReadMaxRows\n"
            "from pyspark_dledger import DefaultSource\n"
            "from dledger.spark.source import HAS_LIMITS, LogStreamReader\n"
            "from dledger.spark.scans.scan import Scan\n"
            "reader = LogStreamReader(Scan.of({'path': sys.argv[1], 'maxOffsetsPerTrigger': '3'}, "
            "is_stream=True))\n"
            "print(HAS_LIMITS, DefaultSource.name(), reader.latestOffset()['default'])\n"
        )
        ledger = Ledger(self.mktemp())
        self.addCleanup(ledger.close)
        ledger.append([b"x"] * 7)
        ledger.commit()
        done = subprocess.run([sys.executable, "-c", code, ledger.path], cwd=ROOT, capture_output=True,
                              text=True, timeout=60, check=False)
        self.assertEqual((done.stderr, done.stdout), ("", "False dledger 7\n"))

    def test_executors_need_no_twisted(self) -> None:
        """What runs on executors drags neither Twisted nor the command line in."""
        code = ("import sys, pyspark_dledger, dledger.spark.scans.scan\n"
                "print([m for m in ('twisted', 'klein', 'click', 'rich') if m in sys.modules])")
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual((done.stderr, done.stdout), ("", "[]\n"))
