# -*- test-case-name: tests.spark.test_pushed -*-
"""
What the jar pushes into a scan: the rows and the counts are those that Spark finds in all rows.

Spark's own comparisons of rows that are read without the jar are the oracle of the first tests. Those without
Spark compare with all rows of the log.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.formats.log import Chunk, DamageError, LogPart, ReadError
from dledger.spark.jvm import CATALOG, SETTING
from dledger.spark.ledger.columns import ENTRY_COLUMNS, ENVELOPE_COLUMNS, TEXT_COLUMN, EntryDecoder
from dledger.spark.scans import pushed
from dledger.spark.scans.pushed import Pinned, Planned, Pushed, PushedScan
from dledger.spark.scans.scan import Scan
from protocols.wire.ledger.envelopes import envelope_head
from protocols.wire.ledger.own.own_entries import TIME_CHANNEL
from protocols.wire.ledger.own.time_entries import encode_time_entry
from tests.processes.ledgers import read_records
from tests.spark.archives import ship
from tests.spark.ledgers import Ledger, plain_rows
from tests.spark.members import FakeMember
from tests.spark.sessions import SparkCase, rows_of
from tests.spark.test_commit_log import BrokerLog
from tests.spark.test_entry_times import NOW_MS

#: Where numbers of predicates come from: ends of the log and of a BIGINT, and numbers of no entry.
_NUMBERS = ("0", "1", "4", "7", "-1", "-9223372036854775808", "9223372036854775807", "57", "58", "130",
            "2000", "CAST(NULL AS BIGINT)", "5.5", "'6'")
_MOMENTS = ("2026-01-02 03:04:05.678", "2026-01-02 03:04:06", "2026-01-02 03:04:07.1234567", "1969-01-01",
            "9999-01-01", "2026-01-02 08:34:06.678+05:30", "1500-01-01")


def predicates(rng: random.Random, columns: Sequence[str], count: int) -> list[str]:
    """Conditions over some columns, in SQL."""

    def value(column: str) -> str:
        return f"TIMESTAMP '{rng.choice(_MOMENTS)}'" if column == "time" else rng.choice(_NUMBERS)

    def simple() -> str:
        column, kind = rng.choice(columns), rng.randrange(8)
        if kind == 0:
            return f"`{column}` IN ({', '.join(value(column) for _ in range(rng.randrange(1, 5)))})"
        if kind == 1:
            return f"`{column}` BETWEEN {value(column)} AND {value(column)}"
        if kind == 2:
            return f"`{column}` IS {rng.choice(('', 'NOT '))}NULL"
        operator = rng.choice(("=", "<", "<=", ">", ">=", "<>", "<=>"))
        if kind == 3:
            return f"{value(column)} {operator} `{column}`"
        return f"`{column}` {operator} {value(column)}"

    def condition(depth: int) -> str:
        kind = rng.randrange(5) if depth else 4
        if kind == 0:
            return f"NOT ({condition(depth - 1)})"
        if kind < 4:
            return f"({condition(depth - 1)} {rng.choice(('AND', 'OR'))} {condition(depth - 1)})"
        return simple()

    return [condition(rng.randrange(3)) for _ in range(count)]


class PushedCase(SparkCase):
    """With frames whose scans the jar leaves alone."""

    def set(self, name: str, value: str) -> None:
        """A setting of the session, until the end of the test."""
        self.spark.conf.set(name, value)
        self.addCleanup(self.spark.conf.unset, name)

    def without(self, path: str, **options: Any) -> DataFrame:
        """A frame that the jar does not know."""
        self.set(SETTING, "false")
        found = self.read(path, **options)
        self.spark.conf.unset(SETTING)
        return found

    def plan_of(self, frame: DataFrame) -> str:
        """The physical plan."""
        return str(frame._jdf.queryExecution().executedPlan().toString())

    def cost_of(self, frame: DataFrame) -> str:
        """The logical plan with statistics."""
        return str(frame._jdf.queryExecution().stringWithStats())

    def note_times(self) -> None:
        """A log of six leaders, some of whom note times."""
        time_ms = NOW_MS
        for term in range(1, 7):
            for _ in range(3):
                if term not in (3, 6):
                    time_ms += 500
                    self.ledger.append([encode_time_entry(time_ms)], term=term, channels=[TIME_CHANNEL])
                self.ledger.append([b"x"] * 5, term=term)
        self.ledger.commit()

    def assertSameRows(self, conditions: Sequence[str], other: DataFrame, frame: DataFrame) -> None:
        """Every condition gives the rows of both frames, and their numbers."""
        flags = [f"({one}) AS c{number}" for number, one in enumerate(conditions)]
        table = other.selectExpr("index", "term", *flags).orderBy("index").collect()
        parts, counts = [], []
        for number, condition in enumerate(conditions):
            wanted = frame.where(condition)
            parts.append(wanted.selectExpr(f"{number} AS n", "index", "term"))
            counts.append(wanted.selectExpr(
                f"{number} AS n", "count(*)", "count(term)", "min(index)", "max(index)", "min(term)",
                "max(term)"))
        found: dict[int, list[tuple[int, int]]] = {}
        for number, index, term in rows_of(self.union(parts), "n", "index"):
            found.setdefault(number, []).append((index, term))
        counted = rows_of(self.union(counts), "n")
        for number, condition in enumerate(conditions):
            wanted_rows = [(row[0], row[1]) for row in table if row[2 + number]]
            self.assertEqual(found.get(number, []), wanted_rows, condition)
            indexes, terms = zip(*wanted_rows, strict=True) if wanted_rows else ((), ())
            ends = [function(some, default=None) for some in (indexes, terms) for function in (min, max)]
            self.assertEqual(counted[number], (number, len(indexes), len(indexes), *ends), condition)

    def union(self, frames: Sequence[DataFrame]) -> DataFrame:
        """All rows, in one query."""
        found = frames[0]
        for frame in frames[1:]:
            found = found.unionAll(frame)
        return found


class PredicateTests(PushedCase):
    """Many predicates."""

    def test_entries(self) -> None:
        """Over index and term, among the log's own entries."""
        self.ledger.append_own()
        self.ledger.commit()
        conditions = [
            *predicates(random.Random(1), ("index", "term"), 40),
            "index IN (3, 4, 5, 40, 90, -7)", "term >= 3 AND index % 2 = 0", "index + 1 > 20", "index > 4.5",
            "index > 9223372036854775807", "term < -9223372036854775808", "7 < index", "3 > term",
            "(40 <= index) OR (index < 9)", "index = 9223372036854775808", "term NOT IN (2, NULL)",
            "NOT (term <=> NULL)", "index < -1", "CAST(index AS STRING) = '7'", "true", "false",
            "index >= 10 AND size > 60 AND term < 4",
            f"index IN ({', '.join(map(str, range(0, 400, 3)))})",
            # (more ranges than are taken, after some that were)
            f"index <> 5 AND index NOT IN (9, 21) AND index IN ({', '.join(map(str, range(1, 200, 2)))})",
            f"term <> 2 AND NOT index IN (4, 6) AND index NOT IN ({', '.join(map(str, range(1, 200, 2)))})",
        ]
        self.assertSameRows(conditions, self.without(self.path), self.read(self.path, minPartitions=2))

    def test_without_columns(self) -> None:
        """Conditions of no column, which reach a scan if Spark is not to simplify them."""
        self.ledger.fill(10)
        self.ledger.commit()
        rules = ("ConstantFolding", "PruneFilters", "BooleanSimplification")
        self.set("spark.sql.optimizer.excludedRules",
                 ",".join(f"org.apache.spark.sql.catalyst.optimizer.{rule}" for rule in rules))
        frame = self.read(self.path)
        for condition, count in (("1 < 2", 10), ("2 < 1", 0), ("index < 3 OR 1 IS NULL", 3)):
            self.assertEqual(len(frame.where(condition).select("index").collect()), count, condition)

    def test_times(self) -> None:
        """Over times, which may be null, in another time zone."""
        self.note_times()
        self.set("spark.sql.session.timeZone", "Asia/Kolkata")
        conditions = [
            *predicates(random.Random(2), ("time", "time", "index"), 14),
            "time >= TIMESTAMP '2026-01-02 03:04:07.678Z' OR time IS NULL", "time > '2026-01-02T08:34:07'",
            "NOT (time <=> TIMESTAMP '2026-01-02 03:04:06.678Z')",
            "CAST(time AS DATE) = DATE '2026-01-02'", "time IS NULL AND term = 3",
        ]
        other, frame = self.without(self.path, times=True), self.read(self.path, times=True)
        self.assertSameRows(conditions, other, frame)

    def test_messages(self) -> None:
        """Over messages of a broker's commit log, whose index is null, and of a ledger."""
        store = os.path.abspath(self.mktemp())
        log = BrokerLog(f"{store}/commitlog")
        for number in range(40):
            log.append(number)
        options = {"format": "rocketmq"}
        columns = ("physicalOffset", "topic", "storeTimestamp")
        other = self.without(store, **options)
        rows = other.select(*columns).orderBy(columns[0]).collect()
        offset, topic, moment = rows[20]
        frame = self.read(store, **options)
        for condition in (
            f"topic = '{topic}'", f"topic IN ('{topic}', 'none', NULL)", "topic = 'none'", "index >= 0",
            f"topic <> '{topic}'", f"storeTimestamp >= TIMESTAMP '{moment}'", f"physicalOffset < {offset}",
            f"storeTimestamp < TIMESTAMP '{moment}' OR topic = '{topic}'", "physicalOffset IN (-4, 0)",
            f"storeTimestamp <= TIMESTAMP '{moment}' AND topic = '{topic}'", "index IS NULL AND term IS NULL",
        ):
            self.assertEqual(rows_of(frame.where(condition).select(*columns), columns[0]),
                             rows_of(other.where(condition).select(*columns), columns[0]), condition)
        self.assertIn(f"topic in [{topic}]", self.plan_of(frame.where(f"topic = '{topic}'")))
        self.assertEqual(frame.count(), 40)


class PlanTests(PushedCase):
    """Plans of Spark: texts, sizes, limits, snapshots."""

    def setUp(self) -> None:
        super().setUp()
        self.ledger.fill(100)
        self.ledger.commit()

    def test_explain(self) -> None:
        """The pushed parts, and no filter where Python leaves rows out exactly."""
        frame = self.read(self.path)
        plan = self.plan_of(frame.where("index >= 5 AND term IN (1, 3)").limit(3))
        self.assertIn("index >= 5, term = 1 or term = 3, limit 3", plan)
        self.assertNotIn("Filter (", plan)
        plan = self.plan_of(frame.where("5 <= index AND size > 60").select("index"))
        self.assertIn("struct<index:bigint,size:int>, index >= 5", plan)
        self.assertIn("Filter (", plan)
        plan = self.plan_of(frame.where("index < 5").selectExpr("count(*)", "max(term) AS last"))
        self.assertIn("struct<count(*):bigint,max(term):bigint>, index <= 4", plan)
        self.assertNotIn("Aggregate", plan)
        for other in ("count(DISTINCT index)", "sum(index)", "count(body)", "min(size)",
                      "count(*) + avg(term)"):
            self.assertIn("Aggregate", self.plan_of(frame.selectExpr(other)), other)
        self.assertIn("Aggregate", self.plan_of(frame.groupBy("term").count()))

    def test_statistics(self) -> None:
        """Rows and bytes, of the needed columns and ranges; a small log is broadcast without a hint."""
        self.set("spark.sql.cbo.enabled", "true")  # (else Spark takes the bytes alone)
        frame = self.read(self.path)
        body = sum(row[3] - 48 for row in plain_rows(self.path))
        self.assertIn(f"sizeInBytes={2 * 8 * 100}.0 B, rowCount=100", self.cost_of(frame.select("index")))
        self.assertIn("rowCount=10)", self.cost_of(frame.where("index >= 90").select("body")))
        size = self.cost_of(frame.select("body")).split("sizeInBytes=")[1].split(",")[0]
        kibibytes = float(size.split()[0])
        self.assertEqual(size.split()[1], "KiB")
        # (files end before their last bytes, which a position counts)
        self.assertTrue(body < kibibytes * 1024 < 1.3 * body, (body, kibibytes))
        self.set("spark.sql.adaptive.enabled", "false")
        many = self.spark.range(20_000_000)
        joined = many.join(frame.select("index"), many.id == frame["index"])
        self.assertIn("BroadcastHashJoin", self.plan_of(joined))
        other = self.without(self.path)
        self.assertNotIn("BroadcastHashJoin", self.plan_of(many.join(other, many.id == other["index"])))

    def test_limit(self) -> None:
        """Rows of the begin, whatever is damaged after them."""
        self.ledger.fill(900, seed=3)
        self.ledger.commit()
        data = sorted((Path(self.path) / "data").iterdir())[-2]
        data.write_bytes(b"\xff" * data.stat().st_size)
        frame = self.read(self.path, minPartitions=1)
        self.assertEqual([row[0] for row in frame.select("index", "body").limit(5).collect()], list(range(5)))
        self.assertEqual(frame.where("index >= 7").limit(2).selectExpr("sum(index)").collect()[0][0], 15)
        self.assertEqual(frame.limit(0).count(), 0)
        with self.assertRaisesRegex(PySparkException, "is damaged"):
            frame.select("body").limit(10_000).collect()

    def test_snapshot(self) -> None:
        """The first use of a frame pins what later ones read, whatever was pushed into it."""
        uses: dict[str, Callable[[DataFrame], object]] = {
            "count": lambda frame: frame.count(), "none": lambda frame: frame.where("index > 999").collect(),
            "term": lambda frame: frame.where("term = 2").select("index").collect(),
            "limit": lambda frame: frame.limit(1).collect(), "plan": self.cost_of,
            "end": lambda frame: frame.selectExpr("max(index)").collect(),
        }
        end = 100
        for name, use in uses.items():
            frame = self.read(self.path)
            use(frame)
            self.ledger.fill(10, seed=2)
            self.ledger.commit()
            self.assertEqual(rows_of(frame.selectExpr("count(*)", "max(index)")), [(end, end - 1)], name)
            self.assertEqual(len(frame.where("index >= 0").select("body").collect()), end, name)
            self.assertEqual(frame.where(f"index >= {end}").count(), 0, name)
            end += 10

    def test_by_name(self) -> None:
        """Tables of a catalog; two places in a query push their own ranges into one snapshot."""
        self.set("spark.sql.catalog.log", CATALOG)
        self.set("spark.sql.catalog.log.billing.path", self.path)
        sql = self.spark.sql
        counts = "SELECT count(*), min(index) FROM log.billing WHERE index > 40"
        self.assertEqual(rows_of(sql(counts)), [(59, 41)])
        query = ("SELECT a.index FROM log.billing a JOIN log.billing b ON a.index = b.index + 50 "
                 "WHERE a.index >= 60 AND b.index < 13")
        self.assertEqual(rows_of(sql(query), "index"), [(60,), (61,), (62,)])
        plan = self.plan_of(sql(query))
        self.assertIn("index >= 60", plan)
        nested = "SELECT (SELECT max(index) FROM log.billing), count(*) FROM log.billing"
        self.assertEqual(rows_of(sql(nested)), [(99, 100)])

    def test_tasks(self) -> None:
        """A large log is counted by tasks. No task is planned for no rows, and one for a short range."""
        frame = self.read(self.path, partitionBytes=600)
        counts = frame.where("index >= 3").selectExpr("count(*)", "max(index)", "count(term) - min(term)")
        self.assertIn("Aggregate", self.plan_of(counts))
        self.assertIn("struct<count(*):bigint,", self.plan_of(counts))
        self.assertEqual(rows_of(counts), [(97, 99, 96)])
        self.assertEqual(rows_of(frame.where("term > 99").selectExpr("count(*)", "max(index)")), [(0, None)])
        frame = self.read(self.path, minPartitions=4)
        self.assertEqual(frame.where("index < 0").rdd.getNumPartitions(), 0)
        self.assertEqual(frame.where("index < 0").collect(), [])
        self.assertEqual(frame.where("index = 50").rdd.getNumPartitions(), 1)


@attrs.frozen(kw_only=True)
class Source:
    """Options of a log, and the rows that it has."""

    name: str
    given: dict[str, str]
    rows: list[tuple[int, int]]


def asked(**pushed_parts: Any) -> Pushed:
    """What the jar sends."""
    given: Any = {"limit": 0, "aggregates": [], **pushed_parts}
    return Pushed.of(given)


class ScanTests(SynchronousTestCase):
    """Without Spark: all kinds of logs, damage and what is opened."""

    def setUp(self) -> None:
        self.ledger = Ledger(self.mktemp())
        self.addCleanup(self.ledger.close)
        self.path = self.ledger.path

    def scan(self, given: dict[str, str], parts: Pushed, *columns: str) -> PushedScan:
        """Index and term, unless other columns are named."""
        wanted = [(name, "BINARY" if name == "body" else "BIGINT") for name in columns or ("index", "term")]
        return PushedScan(scan=Scan.of(given, wanted=wanted), pushed=parts)

    def rows(self, scan: PushedScan, planned: Planned | None = None) -> list[tuple[Any, ...]]:
        """All rows of a scan, planned by itself or by another one."""
        found: list[tuple[Any, ...]] = []
        for part in (planned or scan.plan()).parts:
            for batch in scan.batches(part):
                found += zip(*[column.to_pylist() for column in batch.columns], strict=True)
        return found

    def counted(self, given: dict[str, str], **parts: Any) -> list[list[tuple[int | None, ...]]]:
        """Number, least and greatest index and term: as planned, and of each task."""
        names = ["count(*)", "min(index)", "max(index)", "min(term)", "max(term)"]
        scan = self.scan(given, asked(aggregates=names, **parts))
        planned = scan.plan()
        assert planned.answer is not None
        ends = self.scan(given, asked(aggregates=names[1:], **parts)).plan().answer
        self.assertEqual(ends, planned.answer[1:])
        return [[planned.answer], self.rows(scan, planned)]

    def sources(self) -> list[Source]:
        """One log, wherever it is read from, with more rows in some."""
        self.ledger.append_own()
        self.ledger.commit()
        all_rows = plain_rows(self.path)
        archive = os.path.abspath(self.mktemp())
        shipped = ship(self.path, archive).end_index + 1
        member = FakeMember("n0", [record.raw for record in read_records(Path(self.path))])
        self.addCleanup(member.close)
        self.ledger.expire(2)

        def source(name: str, rows: Sequence[tuple[Any, ...]], **given: str) -> Source:
            scan = Scan.of(given, wanted=[("index", "BIGINT"), ("term", "BIGINT")])
            shown = [(row["index"], row["term"]) for part in scan.plan() for batch in scan.batches(part)
                     for row in batch.to_pylist()]
            self.assertTrue(shown and set(shown) <= {(row[0], row[1]) for row in rows})
            return Source(name=name, given=given, rows=shown)

        own = {"includeControl": "true"}
        return [
            source("expired", all_rows, path=self.path, minPartitions="3"),
            source("control", all_rows, path=self.path, **own),
            source("archive", all_rows[:shipped], path=archive),
            source("joined", all_rows, path=self.path, archive=archive, minPartitions="3"),
            source("members", all_rows, bootstrap=f"n0-{member.address}"),
        ]

    def test_sources(self) -> None:
        """Ranges of index and term, and both, from every kind of log: rows and counts."""
        ranges: list[tuple[str, Callable[[int, int], bool], dict[str, list[int]]]] = [
            ("index", lambda index, _term: 20 <= index <= 60, {"index": [20, 60]}),
            ("two", lambda index, _term: index <= 9 or index >= 70, {"index": [-5, 9, 70, 2**63 - 1]}),
            ("term", lambda _index, term: term == 3, {"term": [3, 3]}),
            ("terms", lambda _index, term: term in (1, 4, 5), {"term": [-(2**63), 1, 4, 5]}),
            ("late", lambda _index, term: term >= 5, {"term": [5, 2**63 - 1]}),
            ("both", lambda index, term: index <= 60 and term >= 2, {"index": [-1, 60], "term": [2, 90]}),
            ("none", lambda _index, _term: False, {"term": []}),
            ("beyond", lambda _index, _term: False, {"index": [5000, 6000]}),
        ]
        for source in self.sources():
            for name, is_wanted, parts in ranges:
                wanted = [row for row in source.rows if is_wanted(*row)]
                what = f"{source.name}, {name}"
                self.assertEqual(self.rows(self.scan(source.given, asked(**parts))), wanted, what)
                indexes, terms = zip(*wanted, strict=True) if wanted else ((), ())
                ends = [function(some, default=None) for some in (indexes, terms) for function in (min, max)]
                answer, tasks = self.counted(source.given, **parts)
                self.assertEqual(answer, [(len(wanted), *ends)], what)
                self.assertEqual(sum(row[0] or 0 for row in tasks), len(wanted), what)
            for limit in (1, 5, 10_000):
                found = self.rows(self.scan({**source.given, "minPartitions": "1"}, asked(limit=limit)))
                self.assertEqual(found[:limit], source.rows[:limit], source.name)

    def test_parts(self) -> None:
        """Parts are cut to the range, and none is planned for no rows."""
        self.ledger.fill(100)
        self.ledger.commit()
        given = {"path": self.path, "minPartitions": "4"}
        for parts, begin, end in (
            ({"index": [30, 59]}, 30, 60), ({"term": [2, 3]}, 25, 75),
            ({"index": [40, 90], "term": [2, 3]}, 40, 75),
        ):
            planned = self.scan(given, asked(**parts)).plan().parts
            self.assertEqual((planned[0].begin, planned[-1].end), (begin, end), parts)
        nowhere: list[dict[str, list[int]]] = [{"index": []}, {"term": [9, 9]}, {"index": [100, 200]}]
        for nothing in nowhere:
            self.assertEqual(self.scan(given, asked(**nothing)).plan().parts, (), nothing)

    def test_snapshot(self) -> None:
        """What was pinned is read, though the log has grown; nothing is opened for that."""
        self.ledger.fill(50)
        self.ledger.commit()
        given = {"path": self.path}
        pinned = self.scan(given, asked(index=[7, 9])).plan().pinned.pack()
        self.ledger.fill(50)
        self.ledger.commit()
        for parts, begin in (asked(pinned=pinned), 0), (asked(pinned=pinned, term=[2, 9]), 25):
            self.assertEqual([row[0] for row in self.rows(self.scan(given, parts))], list(range(begin, 50)))
        with mock.patch.object(Scan, "log", side_effect=AssertionError):
            planned = self.scan(given, asked(pinned=pinned, index=[20, 90])).plan()
        self.assertEqual((planned.parts[0].begin, planned.parts[-1].end, planned.rows), (20, 50, 30))

    def test_limit(self) -> None:
        """A task ends at its limit, and reads a little for that."""
        sizes = {f"mapped_file_size_for_entry_{what}": 2**20 for what in ("data", "index")}
        ledger = Ledger(self.mktemp(), **sizes)
        self.addCleanup(ledger.close)
        ledger.append([b"x"] * 2000)
        ledger.commit()
        read: list[int] = []
        whole = EntryDecoder.decode

        def decode(decoder: EntryDecoder, chunk: Chunk) -> pa.RecordBatch:
            read.append(chunk.count)
            return whole(decoder, chunk)

        with mock.patch.object(EntryDecoder, "decode", decode):
            for limit in (1, 5, 300, 9999):
                del read[:]
                scan = self.scan({"path": ledger.path, "minPartitions": "1"}, asked(limit=limit))
                self.assertEqual([row[0] for row in self.rows(scan)], list(range(min(limit, 2000))))
                self.assertLessEqual(sum(read), max(256, 5 * limit))
            self.assertEqual(sum(read), 2000)

    def test_messages(self) -> None:
        """Parts of a commit log are left out or whole; its tasks leave out messages that Spark would."""
        store = os.path.abspath(self.mktemp())
        log = BrokerLog(f"{store}/commitlog")
        for number in range(40):
            log.append(number)
        given = {"path": store, "format": "rocketmq", "minPartitions": "4"}
        columns = [("physicalOffset", "BIGINT"), ("topic", "STRING"), ("storeTimestamp", "TIMESTAMP")]
        scan = Scan.of(given, wanted=columns)

        def rows(**parts: Any) -> list[tuple[Any, ...]]:
            one = PushedScan(scan=scan, pushed=asked(**parts))
            return [(*row[:2], int(row[2].timestamp() * 1000)) for row in self.rows(one)]

        found = rows()
        self.assertEqual(len(found), 40)
        _, topic, stored = found[20]
        self.assertEqual(rows(storetimestamp=[stored * 1000, stored * 1000]), [found[20]])
        self.assertEqual(rows(storetimestamp=[]), [])
        self.assertEqual(rows(topic=[topic, "none"]), [row for row in found if row[1] == topic])
        self.assertEqual(rows(index=[0, 1], term=[5, 5]), found)  # (both are null there)
        narrow = PushedScan(scan=scan, pushed=asked(physicaloffset=[found[20][0], found[20][0]])).plan()
        (part,) = narrow.parts
        self.assertIn(part, scan.plan())
        self.assertTrue(part.begin <= found[20][0] < part.end)
        self.assertEqual((narrow.rows, narrow.size_bytes), (None, part.size_bytes))
        given["topics"] = next(row[1] for row in found if row[1] != topic)
        other = Scan.of(given, wanted=columns)
        shown = self.rows(PushedScan(scan=other, pushed=asked(topic=[topic, given["topics"]])))
        self.assertEqual({row[1] for row in shown}, {given["topics"]})

    def test_what_is_opened(self) -> None:
        """Files before and after a range are not missed; a count does not notice damage of bodies."""
        self.ledger.fill(100)
        self.ledger.commit()
        given = {"path": self.path}
        names = sorted(os.listdir(f"{self.path}/data"))
        rows = plain_rows(self.path)
        first = next(row[0] for row in rows if row[2] >= int(names[4]))
        last = next(row[0] for row in rows if row[2] >= int(names[5])) - 1
        pinned = self.scan(given, asked()).plan().pinned.pack()
        for name in (names[1], names[6]):
            shutil.move(f"{self.path}/data/{name}", f"{self.path}/{name}")
        parts = {"index": [first, last], "pinned": pinned}
        found = self.rows(self.scan(given, asked(**parts), "index", "body"))
        self.assertEqual(found, [(row[0], row[7]) for row in rows if first <= row[0] <= last])
        self.assertRaises(DamageError, self.rows, self.scan(given, asked(pinned=pinned), "index", "body"))
        for name in (names[1], names[6]):
            shutil.move(f"{self.path}/{name}", f"{self.path}/data/{name}")
        data = Path(f"{self.path}/data/{names[4]}")
        body = rows[first + 1][2] - int(names[4]) + 48
        spoilt = bytearray(data.read_bytes())
        spoilt[body] ^= 0xFF
        data.write_bytes(spoilt)
        self.assertEqual(self.counted(given)[0][0][0], 100)

    def test_damage(self) -> None:
        """Of units: an error, or the rows that a scan of all rows has."""
        self.ledger.fill(100)
        self.ledger.commit()
        files = {int(one.name): one for one in (Path(self.path) / "index").iterdir()}
        for number, at in ((49, 0), (50, 31), (24, 31), (75, 4)):
            base = max(one for one in files if one <= 32 * number)
            sound = files[base].read_bytes()
            spoilt = bytearray(sound)
            spoilt[32 * number - base + at] ^= 0x07
            files[base].write_bytes(spoilt)
            strict, lenient = {"path": self.path}, {"path": self.path, "failOnDamage": "false"}
            shown = self.rows(self.scan(lenient, asked()))
            self.assertNotIn(number, [row[0] for row in shown])
            for terms in ([1, 1], [2, 2], [3, 3], [3, 9], [1, 1, 4, 4]):
                pairs = list(zip(terms[::2], terms[1::2], strict=True))
                wanted = [row for row in shown if any(low <= row[1] <= high for low, high in pairs)]
                self.assertEqual(self.rows(self.scan(lenient, asked(term=terms))), wanted, (number, terms))
                self.assertEqual(self.counted(lenient, term=terms)[0][0][0], len(wanted))
            self.assertRaises(DamageError, self.counted, strict)
            self.assertRaises(DamageError, self.rows, self.scan(strict, asked(term=[1, 9])))
            files[base].write_bytes(sound)

    def test_times(self) -> None:
        """Nothing of the wanted time is left out, and parts become shorter."""
        time_ms = NOW_MS
        for term in range(1, 9):
            for _ in range(4):
                if term not in (3, 6):
                    time_ms += 1000
                    self.ledger.append([encode_time_entry(time_ms)], term=term, channels=[TIME_CHANNEL])
                self.ledger.append([b"x"] * 9, term=term)
        self.ledger.commit()
        given = {"path": self.path, "times": "true"}
        columns = [("index", "BIGINT"), ("time", "TIMESTAMP")]
        scan = Scan.of(given, wanted=columns)
        rows = [(row["index"], row["time"]) for part in scan.plan() for batch in scan.batches(part)
                for row in batch.to_pylist()]
        moments = sorted({int(row[1].timestamp() * 1000) for row in rows if row[1] is not None})
        for low, high in ((moments[4], moments[8]), (moments[-1], 2**53), (-(2**63) // 1000, moments[0]),
                          (moments[3] + 1, moments[3] + 900), (-90, -1)):
            parts = PushedScan(scan=scan, pushed=asked(time=[low * 1000, high * 1000])).plan().parts
            inside = {index for part in parts for index in range(part.begin, part.end)}
            for index, moment in rows:
                if moment is not None and low <= int(moment.timestamp() * 1000) <= high:
                    self.assertIn(index, inside)
        wanted = asked(time=[moments[4] * 1000, moments[8] * 1000])
        parts = PushedScan(scan=scan, pushed=wanted).plan().parts
        self.assertLess(sum(part.end - part.begin for part in parts), len(rows) // 2)
        # Damage may hide a time entry, and so the order of times.
        lenient = Scan.of({**given, "failOnDamage": "false"}, wanted=columns)
        self.assertEqual(list(PushedScan(scan=lenient, pushed=wanted).plan().parts), lenient.plan())

    def test_large(self) -> None:
        """What is too much for planning is computed by tasks, each a row."""
        self.ledger.fill(100)
        self.ledger.commit()
        size = sum(part.size_bytes for part in self.scan({"path": self.path}, asked()).plan().parts)
        for tasks in (3, 9):
            given = {"path": self.path, "partitionBytes": str(size // tasks)}
            scan = self.scan(given, asked(aggregates=["count(*)", "max(index)"]))
            planned = scan.plan()
            self.assertEqual(planned.answer, (100, 99) if tasks < 4 else None)
            rows = self.rows(scan, planned)
            self.assertEqual(len(rows), len(planned.parts))
            self.assertEqual((sum(row[0] for row in rows), max(row[1] for row in rows)), (100, 99))
        given["partitionBytes"] = "1000"
        scan = self.scan(given, asked(aggregates=["max(index)", "min(term)"]))
        self.assertEqual(scan.plan().answer, (99, 1))  # (the ends of a log are near)
        with mock.patch.object(pushed, "COUNTED_TASKS", -1):
            self.assertIsNone(scan.plan().answer)

    def test_sizes(self) -> None:
        """Of rows: never far less than they are, so that Spark does not send large ones to every executor."""
        self.ledger.append([envelope_head(None, {"h": b"x" * 500}) + b"b" * 50] * 20)
        self.ledger.commit()
        given = {"path": self.path, "envelopes": "true", "bodyText": "true"}
        for columns, least in (("index", 20 * 8), ("headers", 20 * 500), ("key", 20 * 500),
                               ("body", 20 * 50), ("body, body_text", 2 * 20 * 500)):
            names = columns.split(", ")
            wanted = [(one.name, one.ddl) for one in ENVELOPE_COLUMNS + ENTRY_COLUMNS + (TEXT_COLUMN,)
                      if one.name in names]
            scan = PushedScan(scan=Scan.of(given, wanted=wanted), pushed=asked())
            size = scan.plan().size_bytes
            self.assertGreaterEqual(size, least, columns)
            self.assertLess(size, 30 * least if columns == "body" else 3 * least, columns)

    def test_size_of_compressed_bodies(self) -> None:
        """Clients of RocketMQ compress long bodies."""
        given = {"path": "/none", "format": "rocketmq"}
        parts = LogPart(begin=0, end=5000, size_bytes=5000),
        for in_bytes in (True, False):
            pinned = Pinned(parts=parts, in_bytes=in_bytes).pack()
            sizes = [PushedScan(scan=Scan.of({**given, **more}, wanted=wanted),
                                pushed=asked(pinned=pinned, index=[0, 9])).plan().size_bytes
                     for more, wanted in (({}, [("body", "BINARY")]), ({"decompress": "false"}, None),
                                          ({}, [("topic", "STRING")]))]
            if in_bytes:
                self.assertEqual(sizes, [40_000, 10_000, 5000])
            else:
                # (a record has a header of 48 bytes, so these make no sense)
                self.assertEqual({size > 2**60 for size in sizes}, {True})

    def test_damaged_position(self) -> None:
        """A log is not taken for a short one because a position of its index is damaged."""
        self.ledger.fill(100)
        self.ledger.commit()
        first = sorted((Path(self.path) / "index").iterdir())[0]
        spoilt = bytearray(first.read_bytes())
        spoilt[4] ^= 0x01  # (of the first unit)
        first.write_bytes(spoilt)
        given = {"path": self.path, "failOnDamage": "false", "partitionBytes": "500"}
        planned = self.scan(given, asked()).plan()
        self.assertLess(sum(part.size_bytes for part in planned.parts), 0)
        self.assertGreater(planned.size_bytes, 2**60)
        self.assertIsNone(self.scan(given, asked(aggregates=["count(*)"])).plan().answer)

    def test_huge_tasks(self) -> None:
        """Planning counts a bounded number of bytes, however large tasks may be."""
        part = LogPart(begin=0, end=2**24, size_bytes=2**31)
        pinned = Pinned(parts=(part,)).pack()
        given = {"path": self.path, "partitionBytes": str(2**40)}
        with mock.patch.object(Scan, "log", side_effect=AssertionError):
            planned = self.scan(given, asked(pinned=pinned, aggregates=["count(*)"])).plan()
        self.assertIsNone(planned.answer)

    def test_pinned(self) -> None:
        """What is pinned survives as text."""
        pinned = Pinned(in_bytes=True, parts=(
            LogPart(begin=0, end=5, size_bytes=7), LogPart(begin=5, end=9, size_bytes=1, is_archived=True)))
        self.assertEqual(Pinned.unpack(pinned.pack()), pinned)
        self.assertEqual(Pinned.unpack(Pinned(parts=()).pack()), Pinned(parts=()))

    def test_unreadable_search(self) -> None:
        """A search that fails leaves nothing out."""
        self.ledger.fill(100)
        self.ledger.commit()
        scan = self.scan({"path": self.path}, asked(term=[2, 2]))
        with mock.patch.object(Scan, "entry", side_effect=ReadError("gone")):
            planned = scan.plan()
        self.assertEqual([(part.begin, part.end) for part in planned.parts], [(0, 100)])
        self.assertEqual(self.rows(scan, planned), [row[:2] for row in plain_rows(self.path) if row[1] == 2])
