# -*- test-case-name: tests.spark.test_ways -*-
"""
Every way in which PySpark takes the rows of a scan gives the same rows: Python functions of all kinds,
pandas, Arrow, RDDs, caches, checkpoints, streams. The scans have several partitions, each of several batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from google.protobuf.timestamp_pb2 import Timestamp
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.functions import arrow_udf, pandas_udf  # type: ignore[attr-defined]

from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.jvm import SETTING
from tests.processes.ledgers import read_records
from tests.spark.archives import ship
from tests.spark.ledgers import plain_rows
from tests.spark.members import FakeMember
from tests.spark.sessions import SparkCase, patiently
from tests.spark.test_arrow import recipe

#: Several batches in each of several partitions.
SPLIT: dict[str, Any] = {"fetchBytes": 700, "minPartitions": 3}


class WaysCase(SparkCase):
    """
    @ivar sizes: index and length of the body of each row.
    @cvar settings: of the session, which the tests of these ways change.
    """

    settings: Mapping[str, str] = {}

    def setUp(self) -> None:
        super().setUp()
        for name, value in self.settings.items():
            self.spark.conf.set(name, value)
            self.addCleanup(self.spark.conf.unset, name)
        self.ledger.fill(200, seed=5)
        self.ledger.commit()
        self.sizes = sorted((row[0], len(row[7])) for row in plain_rows(self.path))

    def frame(self) -> DataFrame:
        """The scan."""
        return self.read(self.path, **SPLIT)

    def assertSizes(self, rows: Any) -> None:
        """The rows, as pairs in any order, are those of the log."""
        self.assertEqual(sorted((int(row[0]), int(row[1])) for row in rows), self.sizes)


class FunctionTests(WaysCase):
    """Python functions over columns."""

    def test_udf(self) -> None:
        """With Arrow and pickled; of columns that the result has, too, and of others; several; nested."""
        for use_arrow in (True, False):
            length = F.udf(lambda body: len(body), "int", useArrow=use_arrow)
            plus = F.udf(lambda one, other: one + other, "long", useArrow=use_arrow)
            frame = self.frame()
            self.assertSizes(frame.select("index", length("body")).collect())
            found = frame.select(plus("index", "term"), length("body"), "body", "index").collect()
            self.assertSizes((row[3], len(row[2])) for row in found)
            self.assertSizes((row[3], row[1]) for row in found)
            nested = frame.select("index", plus(length("body"), length("body"))).collect()
            self.assertSizes((row[0], row[1] / 2) for row in nested)

    def test_filter(self) -> None:
        """A filter by a function, a join of the result, and an aggregate of it."""
        is_even = F.udf(lambda index: index % 2 == 0, "boolean")
        found = self.frame().where(is_even("index")).select("index", F.length("body")).collect()
        self.assertEqual(sorted(map(tuple, found)), self.sizes[::2])
        length = F.udf(lambda body: len(body), "long")
        total = self.frame().select(length("body").alias("n")).agg(F.sum("n"), F.count("n")).collect()[0]
        self.assertEqual(tuple(total), (sum(size for _, size in self.sizes), 200))
        one = self.frame().select("index", length("body").alias("n"))
        joined = one.join(self.frame().select("index", F.length("body").alias("m")), "index")
        self.assertSizes(joined.where("n = m").select("index", "n").collect())

    def test_pandas_udf(self) -> None:
        """Series by series, and an iterator of them."""
        def each(bodies: pd.Series) -> pd.Series:
            return bodies.str.len()

        def all_of_them(parts: Iterator[pd.Series]) -> Iterator[pd.Series]:
            for part in parts:
                yield part.str.len()

        for function in (each, all_of_them):
            length = pandas_udf(function, "long")
            self.assertSizes(self.frame().select("index", length("body")).collect())

    def test_arrow_udf(self) -> None:
        """Arrays by arrays; of a union of scans, too."""
        def each(bodies: pa.Array) -> pa.Array:
            return pc.cast(pc.binary_length(bodies), pa.int64())

        length = arrow_udf(each, "long")
        self.assertSizes(self.frame().select("index", length("body")).collect())
        both = self.frame().union(self.frame()).select("index", length("body")).collect()
        self.assertEqual(sorted(map(tuple, both)), sorted(2 * self.sizes))

    def test_udtf(self) -> None:
        """A table function of each row."""
        class Lengths:
            def eval(self, index: int, body: bytes) -> Iterator[tuple[int, int]]:
                yield index, len(body)

        self.spark.udtf.register("lengths", F.udtf(Lengths, returnType="number long, length long"))
        self.frame().createOrReplaceTempView("log")
        query = "SELECT t.number, t.length FROM log, LATERAL lengths(log.index, log.body) t"
        self.assertSizes(self.spark.sql(query).collect())


class GroupTests(WaysCase):
    """Whole batches and groups."""

    def test_map(self) -> None:
        """C{mapInPandas} and C{mapInArrow}."""
        def pandas(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
            for part in parts:
                yield pd.DataFrame({"i": part["index"], "n": part["body"].str.len()})

        def arrow(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for part in parts:
                lengths = pc.cast(pc.binary_length(part.column("body")), pa.int64())
                yield pa.RecordBatch.from_arrays([part.column("index"), lengths], names=["i", "n"])

        self.assertSizes(self.frame().mapInPandas(pandas, "i long, n long").collect())
        self.assertSizes(self.frame().mapInArrow(arrow, "i long, n long").collect())

    def test_apply(self) -> None:
        """C{applyInPandas} by groups, and of two scans together."""
        def lengths(part: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame({"i": part["index"], "n": part["body"].str.len()})

        def both(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
            merged = one.merge(other, on="index")
            return pd.DataFrame({"i": merged["index"], "n": merged["body_y"].str.len()})

        self.assertSizes(self.frame().groupBy("term").applyInPandas(lengths, "i long, n long").collect())
        pair = self.frame().groupBy("term").cogroup(self.frame().groupBy("term"))
        self.assertSizes(pair.applyInPandas(both, "i long, n long").collect())


class RowTests(WaysCase):
    """Rows without functions over columns."""

    def test_taken(self) -> None:
        """To the driver, at once and bit by bit; as pandas; as Arrow; by an RDD."""
        frame = self.frame().select("index", "body")
        self.assertSizes((row[0], len(row[1])) for row in frame.toLocalIterator())
        self.assertSizes((row[0], len(row[1])) for row in frame.toLocalIterator(prefetchPartitions=True))
        taken: Any = frame.toPandas()
        self.assertSizes(zip(taken["index"], taken["body"].str.len(), strict=True))
        table = frame.toArrow()
        self.assertSizes(zip(table["index"].to_pylist(), map(len, table["body"].to_pylist()), strict=True))
        self.assertSizes(frame.rdd.map(lambda row: (row[0], len(row[1]))).collect())

    def test_for_each(self) -> None:
        """C{foreach} and C{foreachPartition}."""
        seen = self.spark.sparkContext.accumulator(0)

        def add(rows: Iterator[Row]) -> None:
            for row in rows:
                seen.add(row["index"] * 1000 + len(row["body"]))

        wanted = sum(index * 1000 + size for index, size in self.sizes)
        self.frame().foreachPartition(add)
        self.assertEqual(seen.value, wanted)
        self.frame().foreach(lambda row: seen.add(row["index"] * 1000 + len(row["body"])))
        self.assertEqual(seen.value, 2 * wanted)

    def test_kept(self) -> None:
        """Of a cache and of a checkpoint, and a function over each."""
        length = F.udf(lambda body: len(body), "int")
        cached = self.frame().cache()
        self.addCleanup(cached.unpersist)
        self.spark.sparkContext.setCheckpointDir(os.path.abspath(self.mktemp()))
        for frame in (cached, self.frame().localCheckpoint(), self.frame().checkpoint()):
            self.assertSizes(frame.select("index", F.length("body")).collect())
            self.assertSizes(frame.select("index", length("body")).collect())

    def test_stream(self) -> None:
        """A Python sink of a stream, with a function, batch by batch."""
        length = F.udf(lambda body: len(body), "int")
        found: list[tuple[int, int]] = []

        def take(frame: DataFrame, _number: int) -> None:
            found.extend((row[0], row[1]) for row in frame.select("index", length("body")).collect())

        def run() -> None:
            found.clear()
            writer = self.log_stream(maxOffsetsPerTrigger=90).writeStream.foreachBatch(take)
            query = writer.option("checkpointLocation", self.mktemp()).trigger(availableNow=True).start()
            query.awaitTermination()

        patiently(run)
        self.assertSizes(found)


class WithoutExtensionTests(FunctionTests, GroupTests, RowTests):
    """All these ways without the extension, without adaptive execution, and without generated code."""

    settings = {SETTING: "false", "spark.sql.adaptive.enabled": "false",
                "spark.sql.codegen.wholeStage": "false"}


class NotAdaptiveTests(FunctionTests, GroupTests, RowTests):
    """All these ways with the extension, without adaptive execution."""

    settings = {"spark.sql.adaptive.enabled": "false"}


class RecipeTests(SparkCase):
    """The pieces of code of docs/spark-reference.md that decode bodies and find groups."""

    def rows(self, number: int, name: str, bodies: list[bytes]) -> list[tuple[Any, ...]]:
        """What a recipe makes of bodies. @param name: of its frame."""
        self.ledger.append(bodies)
        self.ledger.commit()
        names: dict[str, Any] = {"log": self.read(self.path)}
        exec(recipe("### JSON, Avro, Protobuf", number), names)
        return [tuple(row) for row in names[name].orderBy("index").collect()]

    def test_json(self) -> None:
        """Spark's own function; what is not JSON is null."""
        rows = self.rows(0, "orders", [b'{"user": "ann", "amount": 3}', b"no"])
        self.assertEqual(rows, [(0, "ann", 3), (1, None, None)])

    def test_protobuf(self) -> None:
        """A generated class."""
        bodies = [Timestamp(seconds=7, nanos=5).SerializeToString(), Timestamp(seconds=9).SerializeToString()]
        self.assertEqual(self.rows(1, "times", bodies), [(0, 7, 5), (1, 9, 0)])

    def test_registry(self) -> None:
        """Five bytes in front; what has none is left out."""
        rows = self.rows(2, "framed", [b"\0\0\0\x01\x02body", b"none", b"\0\x7f\xff\xff\xff"])
        self.assertEqual([(row[0], row[1], bytes(row[2])) for row in rows],
                         [(0, 258, b"body"), (2, 2**31 - 1, b"")])

    def test_later_groups(self) -> None:
        """A group that comes later is read from its begin, and none twice."""
        base, found = Path(self.mktemp()).absolute(), list[bytes]()
        base.mkdir()
        names: dict[str, Any] = {"spark": self.spark}
        code = recipe("### Groups that come later").replace("checkpoints/", f"{self.mktemp()}/")
        exec(code, names)

        def write(frame: DataFrame, _number: int) -> None:
            found.extend(bytes(row[0]) for row in frame.select("body").collect())

        groups = []
        for number in range(2):
            groups.append(self.make())
            os.symlink(groups[-1].path, base / f"log-{number}")
            for group in groups:
                group.append([b"%d of %d" % (number, groups.index(group))])
                group.commit()
            patiently(lambda: names["look"](f"{base}/log-*", write))
        self.assertEqual(sorted(found), [b"0 of 0", b"1 of 0", b"1 of 1"])


class PartitionTests(SparkCase):
    """A log is divided between the processors of the session."""

    def test_processors(self) -> None:
        """As many tasks as processors, unless they are named, or the log is small; in a stream, too."""
        ledger = self.make(mapped_file_size_for_entry_data=1 << 23)
        ledger.append([bytes(50_000)] * 60)
        ledger.commit()
        for options, count in (({}, 2), ({"minPartitions": 1}, 1), ({"minPartitions": 5}, 5),
                               ({"endingOffsets": 30}, 1), ({"endingOffsets": 50}, 2)):
            frame = self.read(ledger.path, **dict(options))
            self.assertEqual(frame.rdd.getNumPartitions(), count, options)
        self.assertEqual(self.read(ledger.path).count(), 60)
        tasks: list[int] = []

        def run() -> None:
            tasks.clear()
            stream = self.spark.readStream.format("dledger").option("startingOffsets", "earliest")
            writer = stream.load(ledger.path).writeStream.foreachBatch(
                lambda frame, _: tasks.append(frame.rdd.getNumPartitions()))
            query = writer.option("checkpointLocation", self.mktemp()).trigger(availableNow=True).start()
            query.awaitTermination()

        patiently(run)
        self.assertEqual(tasks, [2])


class CountTests(SparkCase):
    """The number of rows is that of the bodies that programs have appended."""

    def setUp(self) -> None:
        super().setUp()
        self.bodies = self.ledger.append_own()
        self.ledger.commit()

    def test_every_way(self) -> None:
        """From directory, members and archive, by batch, stream and export, with and without extension."""
        member = FakeMember("n0", [record.raw for record in read_records(Path(self.path))])
        self.addCleanup(member.close)
        members, archive = f"n0-{member.address}", os.path.abspath(self.mktemp())
        ship(self.path, archive)
        frames = {
            "directory": self.read(self.path, **SPLIT), "members": self.read(bootstrap=members),
            "archive and directory": self.read(self.path, archive=archive),
        }
        found: dict[str, int] = {}
        for name, frame in frames.items():
            found[f"count of {name}"] = frame.count()
            found[f"bodies of {name}"] = len(frame.select("body").collect())
        frame = frames["directory"]
        found["indexes"] = frame.agg({"index": "count"}).collect()[0][0]
        found["RDD"] = frame.rdd.count()
        found["pandas"] = len(frame.toPandas())
        found["function"] = frame.where(F.udf(lambda body: True, "boolean")("body")).count()
        self.spark.conf.set(SETTING, "false")
        self.addCleanup(self.spark.conf.unset, SETTING)
        found["rows"] = self.read(self.path).count()
        found["index without bodies"] = self.read(self.path, "index BIGINT").count()
        found["stream"] = self.streamed()
        out = Path(self.mktemp())
        with Exporter.open(out, ExportSource.of({"path": self.path}, (), ()), ExportSettings()) as exporter:
            exporter.step(0, is_last=True)
        found["export"] = sum(pq.read_metadata(path).num_rows for path in out.glob("part-*.parquet"))
        self.assertEqual(found, dict.fromkeys(found, len(self.bodies)))
        self.assertGreaterEqual(len(found), 9)

    def streamed(self) -> int:
        """Rows of a stream."""
        counts: list[int] = []

        def run() -> None:
            counts.clear()
            writer = self.log_stream().writeStream.foreachBatch(lambda frame, _: counts.append(frame.count()))
            query = writer.option("checkpointLocation", self.mktemp()).trigger(availableNow=True).start()
            query.awaitTermination()

        patiently(run)
        return sum(counts)

    def test_control(self) -> None:
        """With C{includeControl} all are there, with their kinds."""
        rows = self.read(self.path, includeControl=True).groupBy("control").count().collect()
        counts = {row["control"]: row["count"] for row in rows}
        self.assertEqual(counts.pop(None), len(self.bodies))
        reported = dict.fromkeys(("age", "reader", "machine", "configuration", "state", "time"), 5)
        self.assertEqual(counts, {**reported, "session": 6, "term start": 6, "sink marker": 10})
        self.assertEqual(sum(counts.values()) + len(self.bodies), len(plain_rows(self.path)))
