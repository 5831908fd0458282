# -*- test-case-name: tests.spark.test_export_writers -*-
"""Files: what is written is read back by somebody else's reader."""

from __future__ import annotations

import datetime
import json
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.export import writers as export_writers
from dledger.spark.export.files import ExportError
from dledger.spark.export.writers import JSONL, PARQUET, PartWriter, json_lines, split

SCHEMA = pa.schema(
    [("index", pa.int64()), ("term", pa.int64()), ("topic", pa.string()), ("body", pa.binary())]
)


def batch(*rows: tuple[int, int | None, str | None, bytes | None]) -> pa.RecordBatch:
    """Rows of L{SCHEMA}."""
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), type=field.type) for column, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )


class JsonTests(SynchronousTestCase):
    """Lines."""

    def test_values(self) -> None:
        """Text as it is, other bytes as Base64, nothing for no value; every line is an object."""
        text = json_lines(batch(
            (1, 2, "Grüße\n\"quoted\"\u2028", b"caf\xc3\xa9\x00"), (2**62, None, None, b"\xff\xfe"),
            (3, 1, "", b""), (4, 1, "x", None),
        ))
        self.assertTrue(text.endswith("}\n"))
        self.assertEqual([json.loads(line) for line in text.rstrip("\n").split("\n")], [
            {"index": 1, "term": 2, "topic": "Grüße\n\"quoted\"\u2028", "body": "café\0"},
            {"index": 2**62, "body_base64": "//4="},
            {"index": 3, "term": 1, "topic": "", "body": ""},
            {"index": 4, "term": 1, "topic": "x"},
        ])

    def test_other_types(self) -> None:
        """Maps are objects, times are ISO in UTC, as Spark has it."""
        moment = datetime.datetime(2026, 11, 21, 12, 30, 1, 500_000, tzinfo=datetime.UTC)
        texts = pa.map_(pa.string(), pa.string())
        text = json_lines(pa.RecordBatch.from_pydict({
            "properties": pa.array([[("KEYS", "a b"), ("x", None)], []], type=texts),
            "at": pa.array([moment, None], type=pa.timestamp("us", tz="UTC")),
            "flag": pa.array([True, False]),
        }))
        self.assertEqual([json.loads(line) for line in text.splitlines()], [
            {"properties": {"KEYS": "a b", "x": None}, "at": "2026-11-21T12:30:01.500Z", "flag": True},
            {"properties": {}, "flag": False},
        ])


class PartTests(SynchronousTestCase):
    """Files of one part."""

    def setUp(self) -> None:
        """A place for files."""
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.rows = [(number, number % 3, "ab"[number % 2], b"%d" % number) for number in range(100)]

    def stage(self, name: str) -> Path:
        """A path, as L{ExportDirectory.stage} gives it."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, style: str, *partition_by: str) -> dict[str, Path]:
        """Write the rows in small batches; folder to path."""
        writer = PartWriter(self.stage, SCHEMA, partition_by=partition_by, style=style, compression="zstd")
        for first in range(0, 100, 7):
            writer.write(batch(*self.rows[first : first + 7]))
        self.assertEqual(writer.rows, 100)
        return {folder: self.directory / name for name, folder in writer.close()}

    def test_parquet(self) -> None:
        """Rows in order, the schema as it was; several row groups when there is much."""
        for limit, groups in ((export_writers.ROW_GROUP_BYTES, 1), (500, 5)):
            self.patch(export_writers, "ROW_GROUP_BYTES", limit)
            file = pq.ParquetFile(self.write(PARQUET)[""])
            self.assertEqual(file.schema_arrow, SCHEMA)
            self.assertEqual(file.read().to_pylist(), batch(*self.rows).to_pylist())
            self.assertEqual(file.num_row_groups, groups)
            self.assertEqual(file.metadata.row_group(0).column(0).compression, "ZSTD")

    def test_json(self) -> None:
        """The same with lines, also when they do not fit into one buffer."""
        for limit in (export_writers.ROW_GROUP_BYTES, 500):
            self.patch(export_writers, "ROW_GROUP_BYTES", limit)
            self.assertEqual(self.write(JSONL)[""].read_text("utf-8"), json_lines(batch(*self.rows)))

    def test_partitions(self) -> None:
        """A file for each combination; the columns are in the path and not in the file."""
        files = self.write(PARQUET, "term", "topic")
        self.assertEqual(set(files), {f"term={number % 3}/topic={'ab'[number % 2]}" for number in range(6)})
        for folder, path in files.items():
            self.assertEqual(pq.read_schema(path).names, ["index", "body"])
            term, topic = (piece.split("=")[1] for piece in folder.split("/"))
            self.assertEqual(
                [(row["index"], row["body"]) for row in pq.read_table(path, partitioning=None).to_pylist()],
                [(index, body) for index, t, x, body in self.rows if (str(t), x) == (term, topic)],
            )

    def test_hive_readers_find_the_values(self) -> None:
        """Arrow's reader of data sets gives the rows back, values that no path can hold included."""
        rows = [(0, 1, "a/b c", b"x"), (1, None, "100%", b""), (2, 1, None, b"y"), (3, 1, "é=", b"")]
        writer = PartWriter(
            self.stage, SCHEMA, partition_by=("topic", "term"), style=PARQUET, compression="none"
        )
        writer.write(batch(*rows))
        for name, folder in writer.close():
            (self.directory / "out" / folder).mkdir(parents=True)
            (self.directory / name).rename(self.directory / "out" / folder / "part.parquet")
        kept = pa.schema([("topic", pa.string()), ("term", pa.int64())])
        found = ds.dataset(
            self.directory / "out", partitioning=ds.partitioning(kept, flavor="hive"), format="parquet"
        ).to_table()
        self.assertEqual(
            found.select(SCHEMA.names).sort_by("index").to_pylist(), batch(*rows).to_pylist()
        )

    def test_too_many_partitions(self) -> None:
        """A column that is none is noticed."""
        self.patch(export_writers, "PARTITIONS_MAX", 10)
        writer = PartWriter(self.stage, SCHEMA, partition_by=("index",), style=JSONL, compression="none")
        error = self.assertRaises(ExportError, writer.write, batch(*self.rows))
        self.assertIn("--partition-by index has more than 10", str(error))
        writer.abandon()

    def test_split_keeps_order(self) -> None:
        """Rows of one combination keep their order."""
        pieces = split(batch(*self.rows), ["term"])
        found = {values: rows.column("index").to_pylist() for values, rows in pieces}
        self.assertEqual(found, {(term,): list(range(term, 100, 3)) for term in range(3)})
