# -*- test-case-name: tests.spark.test_columnar -*-
"""
The extension of Spark reads the columns that a query uses, and its rows are those of a scan without it.

The session of these tests has the extension, as every session of L{dledger.spark.session}, so the other tests
of batches run with it, too.
"""

from __future__ import annotations

import os
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from dledger.spark.jvm import EXTENSION, JAR, SETTING, SPARK_SERIES, with_extension
from dledger.spark.jvm.build import build, compiler, digest, recorded
from dledger.spark.ledger.columns import ENTRY_COLUMNS
from tests.spark.ledgers import plain_rows
from tests.spark.sessions import SparkCase, rows_of
from tests.spark.test_messages import append_messages, message_at

_VERSION = f"{SPARK_SERIES}0"


def classes_of(jar: Path) -> list[str]:
    """Names of the files in a jar."""
    with zipfile.ZipFile(jar) as archive:
        return sorted(archive.namelist())


class JarTests(SynchronousTestCase):
    """The file that is installed."""

    def test_source(self) -> None:
        """It was built of the source beside it. Else: python -m dledger.spark.jvm.build"""
        self.assertEqual(recorded(JAR)["Source-SHA-256"], digest())
        self.assertTrue(recorded(JAR)["Spark-Version"].startswith(SPARK_SERIES))

    def test_built_again(self) -> None:
        """The source compiles to the same classes; the same compiler makes the same bytes of it."""
        if shutil.which("javac") is None:
            raise SkipTest("there is no javac")
        again = Path(self.mktemp())
        build(again)
        self.assertEqual(classes_of(again), classes_of(JAR))
        if compiler() == recorded(JAR)["Built-With"]:
            self.assertEqual(again.read_bytes(), JAR.read_bytes())

    def test_compiler(self) -> None:
        """The version of the compiler, whatever the JVM says about its options."""
        if shutil.which("javac") is None:
            raise SkipTest("there is no javac")
        version = compiler()
        with mock.patch.dict(os.environ, {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}):
            self.assertEqual(compiler(), version)
        self.assertRegex(version, r"^\d+\.")


class SettingsTests(SynchronousTestCase):
    """Which sessions have the extension."""

    def test_added(self) -> None:
        """Jars and extensions of the user's are kept; nothing is added twice."""
        given = {"spark.jars": "a.jar,b.jar", "spark.sql.extensions": "some.Extension", "spark.x": "y"}
        found = with_extension(given, _VERSION)
        self.assertEqual(found, {
            "spark.jars": f"a.jar,b.jar,{JAR}", "spark.sql.extensions": f"some.Extension,{EXTENSION}",
            "spark.x": "y",
        })
        self.assertEqual(with_extension(found, _VERSION), found)
        self.assertEqual(with_extension({}, _VERSION)["spark.sql.extensions"], EXTENSION)

    def test_not_added(self) -> None:
        """A Spark of another series, whose inner parts may differ, and a user who declines it, have none."""
        for version in ("4.2.1", "4.30.0", "5.0.0", "4.4.0"):
            self.assertEqual(with_extension({"a": "b"}, version), {"a": "b"})
        self.assertEqual(with_extension({SETTING: "false"}, _VERSION), {SETTING: "false"})


class ColumnarTests(SparkCase):
    """Scans."""

    def without(self, frame_of: Any) -> DataFrame:
        """A data frame that is loaded without the extension."""
        self.spark.conf.set(SETTING, "false")
        self.addCleanup(self.spark.conf.unset, SETTING)
        found: DataFrame = frame_of()
        self.spark.conf.unset(SETTING)
        return found

    def plan_of(self, frame: DataFrame) -> str:
        """The physical plan."""
        return str(frame._jdf.queryExecution().executedPlan().toString())

    def test_columns_of_a_query(self) -> None:
        """Only the columns that are used are read; of none a narrow one; nothing is read by rows."""
        self.ledger.fill(60)
        self.ledger.commit()
        frame = self.read(self.path)
        self.assertIn("struct<term:bigint>", self.plan_of(frame.where("term % 3 = 2").selectExpr("count(*)")))
        self.assertIn("struct<size:int>", self.plan_of(frame.selectExpr("sum(1)")))
        self.assertIn("struct<index:bigint,body:binary>", self.plan_of(frame.select("body", "index")))
        self.assertIn("ColumnarToRow", self.plan_of(frame.select("body")))
        self.assertNotIn("ColumnarToRow", self.plan_of(self.without(lambda: self.read(self.path))))

    def test_same_rows(self) -> None:
        """All columns, some, and another order, with and without the extension."""
        self.ledger.fill(90, seed=4)
        self.ledger.commit()
        expected = plain_rows(self.path)
        other = self.without(lambda: self.read(self.path))
        frame = self.read(self.path, minPartitions=3)
        names = [column.name for column in ENTRY_COLUMNS]
        self.assertEqual(rows_of(frame, "index"), expected)
        self.assertEqual(rows_of(other, "index"), expected)
        self.assertEqual(rows_of(frame.select(*reversed(names)), "index"), [row[::-1] for row in expected])
        self.assertEqual(frame.count(), 90)
        self.assertEqual(rows_of(frame.where("term = 2").select("pos")),
                         [(row[2],) for row in expected if row[1] == 2])
        self.assertEqual(frame.alias("a").join(frame.alias("b"), "index").count(), 90)

    def test_same_messages(self) -> None:
        """With times, texts and maps, which are null for an entry without a message."""
        ledger = self.make(mapped_file_size_for_entry_data=64 * 1024)
        append_messages(ledger, 60, lambda pos, number: message_at(
            pos, number, chance=random.Random(number)))
        ledger.append([b""])
        ledger.commit()
        options = {"format": "rocketmq", "includeInternal": True}
        other = rows_of(self.without(lambda: self.read(ledger.path, **options)), "index")
        frame = self.read(ledger.path, **options)
        self.assertEqual(rows_of(frame, "index"), other)
        self.assertIn(None, [row[2] for row in other])
        self.assertEqual(frame.where("tags is not null").count(), sum(row[7] is not None for row in other))

    def test_schema_of_the_user(self) -> None:
        """Columns of the user's schema are pruned, too, and an empty log has no rows."""
        self.assertEqual(self.read(self.path, schema="body BINARY, index BIGINT").count(), 0)
        self.ledger.fill(10)
        self.ledger.commit()
        frame = self.read(self.path, schema="body BINARY, index BIGINT")
        self.assertIn("struct<index:bigint>", self.plan_of(frame.select("index")))
        self.assertEqual((frame.count(), frame.columns), (10, ["body", "index"]))

    def test_snapshot(self) -> None:
        """A data frame keeps the range of its first use, also for other columns; a new one reads further."""
        self.ledger.fill(30)
        self.ledger.commit()
        frame = self.read(self.path)
        self.assertEqual(frame.count(), 30)
        self.ledger.fill(20, seed=2)
        self.ledger.commit()
        self.assertEqual(len(frame.select("body").collect()), 30)
        self.assertEqual(frame.selectExpr("max(index)").collect()[0][0], 29)
        self.assertEqual(self.read(self.path).count(), 50)

    def test_view(self) -> None:
        """SQL over a temporary view."""
        self.ledger.fill(30)
        self.ledger.commit()
        self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW entries USING dledger OPTIONS (path '{self.path}')")
        self.assertEqual(rows_of(self.spark.sql("SELECT count(*), sum(length(body)) FROM entries")),
                         [(30, sum(len(row[-1]) for row in plain_rows(self.path)))])

    def test_errors(self) -> None:
        """Wrong options and damage are the same errors as without it, whatever columns are read."""
        self.ledger.fill(30)
        self.ledger.commit()
        with self.assertRaisesRegex(PySparkException, "unknown option"):
            self.read(self.path, unheardOf=1).count()
        index = sorted((Path(self.path) / "index").iterdir())[0]
        data = bytearray(index.read_bytes())
        data[32 * 7 + 4] ^= 0xFF
        index.write_bytes(data)
        for columns in ("count(*)", "body", "term"):
            with self.assertRaisesRegex(PySparkException, "entry 7 cannot be read"):
                self.read(self.path).selectExpr(columns).collect()
