# -*- test-case-name: tests.spark.test_catalog -*-
"""Logs as tables of a catalog: a query by name gives the rows of the same query by options."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, IllegalArgumentException, UnsupportedOperationException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dledger.spark.jvm import CATALOG, SETTING
from dledger.spark.ledger.columns import ENTRY_COLUMNS
from tests.processes.ledgers import read_records
from tests.spark.archives import ship
from tests.spark.members import FakeMember
from tests.spark.sessions import SparkCase, patiently, rows_of
from tests.spark.test_commit_log import BrokerLog


class CatalogCase(SparkCase):
    """A catalog with a table C{billing} of 60 entries."""

    def setUp(self) -> None:
        super().setUp()
        self.set("spark.sql.catalog.log", CATALOG)
        self.ledger.fill(60)
        self.ledger.commit()
        self.table("billing", path=self.path)

    def set(self, name: str, value: object) -> None:
        """A setting of the session, until the end of the test."""
        self.spark.conf.set(name, str(value))
        self.addCleanup(self.spark.conf.unset, name)

    def table(self, name: str, **options: object) -> None:
        """Configure a table."""
        for option, value in options.items():
            self.set(f"spark.sql.catalog.log.{name}.{option}", value)

    def sql(self, text: str, *order: str) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        return rows_of(self.spark.sql(text), *order)

    def grow(self) -> None:
        """Ten entries more."""
        self.ledger.fill(10, seed=2)
        self.ledger.commit()


class RowTests(CatalogCase):
    """Rows by name."""

    def assertSame(self, name: str, order: str, count: int, **options: object) -> None:
        """All columns, row by row, of the table C{name} and of a frame with these options."""
        self.table(name, **options)
        found, wanted = self.spark.table(f"log.{name}"), self.read(**options)
        self.assertEqual(found.schema, wanted.schema)
        rows = rows_of(found, order)
        self.assertEqual(len(rows), count)
        self.assertEqual(rows, rows_of(wanted, order))

    def test_directory_and_members(self) -> None:
        """With and without the extension."""
        self.assertSame("files", "index", 60, path=self.path)
        member = FakeMember("n0", [record.raw for record in read_records(Path(self.path))])
        self.addCleanup(member.close)
        options = {"bootstrap": f"n0-{member.address}", "group": "default", "startingOffsets": 20}
        self.assertSame("members", "index", 40, **options)
        self.set(SETTING, "false")
        self.assertSame("rows", "index", 60, path=self.path)

    def test_archive(self) -> None:
        """An archive, and both together."""
        target = os.path.abspath(self.mktemp())
        end = ship(self.path, target).end_index + 1
        self.assertSame("old", "index", end, path=target)
        self.ledger.expire(2)
        self.assertSame("whole", "index", 60, path=self.path, archive=target)
        self.assertEqual(self.sql("SELECT count(*) FROM log.old JOIN log.whole USING (index)"), [(end,)])

    def test_messages(self) -> None:
        """A broker's store."""
        store = os.path.abspath(self.mktemp())
        log = BrokerLog(f"{store}/commitlog")
        for number in range(40):
            log.append(number)
        self.assertSame("orders", "physicalOffset", 40, path=store, format="rocketmq")

    def test_stream(self) -> None:
        """A stream."""
        found: list[int] = []

        def take(frame: DataFrame, _number: int) -> None:
            found.extend(row[0] for row in frame.select("index").collect())

        def run() -> None:
            found.clear()
            stream = self.spark.readStream.option("startingOffsets", "earliest").table("log.billing")
            writer = stream.writeStream.option("checkpointLocation", tempfile.mkdtemp(dir=os.getcwd()))
            writer.foreachBatch(take).trigger(availableNow=True).start().awaitTermination()

        patiently(run)
        self.assertEqual(sorted(found), list(range(60)))


class QueryTests(CatalogCase):
    """What a query makes of a table."""

    def tables_of(self, frame: DataFrame) -> list[Any]:
        """The tables in its plan."""
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
        return [leaves.apply(number).table() for number in range(leaves.length())]

    def test_columns(self) -> None:
        """Only the columns of a query are read; a Python function gets its own row."""
        frame = self.spark.sql("SELECT index, body FROM log.billing WHERE term = 2")
        plan = str(frame._jdf.queryExecution().executedPlan().toString())
        self.assertIn("dledger struct<index:bigint,body:binary>, term = 2 ", plan)
        self.assertIn("ColumnarToRow", plan)
        self.table("billing", fetchBytes=700)
        length = F.udf(lambda body: len(body), "int")
        table = self.spark.table("log.billing")
        sizes = table.select("index", length("body"), F.length("body")).collect()
        self.assertEqual([row[1] for row in sizes], [row[2] for row in sizes])

    def test_one_range(self) -> None:
        """All places of a table in a query read one range; a frame keeps it, a new query reads further."""
        join = self.spark.sql("SELECT * FROM log.billing a JOIN log.billing b USING (index)")
        one, other = self.tables_of(join)
        self.assertTrue(one.equals(other))
        frame = self.spark.read.option("startingOffsets", "50").table("log.billing")
        self.assertEqual(frame.count(), 10)
        self.grow()
        self.assertEqual((frame.count(), self.spark.table("log.billing").count()), (10, 70))

    def test_options(self) -> None:
        """Those of a query come first, and stay when Spark loads the table again."""
        self.table("billing", startingOffsets=10)
        self.assertEqual(self.sql("SELECT count(*) FROM log.billing"), [(50,)])
        self.assertEqual(self.sql("SELECT count(*) FROM log.billing WITH (startingOffsets = 55)"), [(5,)])
        self.spark.sql("CACHE TABLE log.billing")
        self.addCleanup(self.spark.sql, "UNCACHE TABLE log.billing")
        self.spark.sql("CACHE TABLE late AS SELECT * FROM log.billing WITH (startingOffsets = 50)")
        self.addCleanup(self.spark.sql, "DROP VIEW late")
        self.grow()
        count = "SELECT count(*) FROM late UNION ALL SELECT count(*) FROM log.billing"
        self.assertEqual(self.sql(count), [(10,), (50,)])
        self.spark.sql("REFRESH TABLE log.billing")
        self.assertEqual(self.sql(count), [(20,), (60,)])


class SettingTests(CatalogCase):
    """Settings make tables."""

    def test_listed(self) -> None:
        """All tables; case does not matter; the last dot ends a name; SET makes one, RESET removes it."""
        self.table("a.b", path=self.path)
        self.assertEqual(self.sql("SHOW TABLES IN log"), [("", "a.b", False), ("", "billing", False)])
        self.assertEqual([row[:2] for row in self.sql("DESCRIBE log.billing")],
                         [(column.name, column.ddl.lower()) for column in ENTRY_COLUMNS])
        self.assertEqual(self.sql("SELECT max(index) FROM log.BILLING"), [(59,)])
        self.assertEqual(self.sql("SELECT max(index) FROM log.`a.b`"), [(59,)])
        self.spark.sql(f"SET spark.sql.catalog.log.later.path={self.path}")
        self.assertEqual(self.sql("SELECT min(index) FROM log.later"), [(0,)])
        self.spark.sql("RESET spark.sql.catalog.log.later.path")
        self.assertFalse(self.spark.catalog.tableExists("log.later"))
        self.assertTrue(self.spark.catalog.tableExists("log.billing"))

    def test_not_found(self) -> None:
        """As of any table."""
        for name in ("log.gone", "log.deep.billing"):
            with self.assertRaisesRegex(AnalysisException, "TABLE_OR_VIEW_NOT_FOUND"):
                self.spark.table(name)
        with self.assertRaisesRegex(AnalysisException, "SCHEMA_NOT_FOUND"):
            self.spark.sql("SHOW TABLES IN log.deep")

    def test_wrong_option(self) -> None:
        """A sentence that names the table."""
        self.table("typo", pathh=self.path)
        self.table("split", path=self.path, minPartitions="x")
        for name, says in (("typo", r"unknown option pathh \(did you mean path\?\)"),
                           ("split", "option minPartitions='x' is not a whole number")):
            with self.assertRaisesRegex(IllegalArgumentException, rf"^table log\.{name}: {says}"):
                self.spark.table(f"log.{name}")
        for name in ("lone", ".path", "billing."):
            self.spark.conf.set(f"spark.sql.catalog.log.{name}", "x")
            with self.assertRaisesRegex(IllegalArgumentException, rf"{name} is no option of a table"):
                self.spark.sql("SHOW TABLES IN log")
            self.spark.conf.unset(f"spark.sql.catalog.log.{name}")

    def test_refused(self) -> None:
        """Statements that would make, change or remove a table name its setting; nothing is written."""
        for text in ("CREATE TABLE log.billings OPTIONS (path 'x')", "DROP TABLE log.billing",
                     "ALTER TABLE log.billing RENAME TO other", "ALTER TABLE log.billing ADD COLUMN x INT"):
            with self.assertRaisesRegex(UnsupportedOperationException,
                                        r"SET spark\.sql\.catalog\.log\.billings?\.path=.* makes"):
                self.spark.sql(text)
        with self.assertRaisesRegex(AnalysisException, "does not support append in batch mode"):
            self.spark.sql("INSERT INTO log.billing SELECT * FROM log.billing")

    def test_session_catalog(self) -> None:
        """Spark's own catalog cannot hold one: the error names this catalog."""
        for options in (f"path '{self.path}'", "bootstrap 'n0-h:1', requestTimeoutMs 1"):
            with self.assertRaisesRegex(AnalysisException, f"or {CATALOG}"):
                self.spark.sql(f"CREATE TABLE billing USING dledger OPTIONS ({options})")
