# -*- test-case-name: tests.spark.test_export_spark -*-
"""The export as jobs of Spark: the same rows, the same files' rules, and both engines on one directory."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from click.testing import CliRunner

from dledger.cli.main import cli
from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.export.files import ExportError
from dledger.spark.export.spark_exporter import SparkExporter
from dledger.spark.export.tables import open_export
from dledger.spark.formats.log import NotCommittedError
from tests.spark.ledgers import Row, plain_rows
from tests.spark.sessions import SparkCase
from tests.spark.tables import files
from tests.spark.test_commit_log import SIZE, BrokerLog
from tests.spark.test_export import COLUMNS, data_files
from tests.spark.test_export_cli import Export
from tests.spark.test_tables_cli import python_recipes


def rows_of(out: Path) -> list[Row]:
    """All rows, by index: the files of one part are in no order."""
    rows: list[Row] = []
    for path in data_files(out):
        table = pq.read_table(path, partitioning=None).select(list(COLUMNS))
        rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return sorted(rows)


class TableTests(SparkCase):
    """Spark without further jars reads the files of tables."""

    def test_files(self) -> None:
        """The recipe of the document, and the same for Iceberg."""
        self.ledger.fill(60)
        self.ledger.commit()
        expected = plain_rows(self.path)
        self.addCleanup(os.chdir, os.getcwd())
        place = self.mktemp()
        os.mkdir(place)
        os.chdir(place)
        names: dict[str, Any] = {"spark": self.spark}
        for kind, out in (("delta", "lake"), ("iceberg", "ice")):
            source = ExportSource.of({"path": self.path})
            with open_export(out, source, ExportSettings(to=kind)) as exporter:
                exporter.step(0, is_last=True)
        exec(python_recipes()[1].replace('"lake"', repr(os.path.abspath("lake"))), names)  # noqa: S102
        self.assertEqual(sorted(tuple(row) for row in names["log"].collect()), expected)
        log = self.spark.read.parquet(*files("iceberg", Path("ice")))
        self.assertEqual(sorted(tuple(row) for row in log.collect()), expected)


class SparkExportTests(SparkCase):
    """Jobs."""

    def setUp(self) -> None:
        """A place for files."""
        super().setUp()
        self.out = Path(self.mktemp())

    def export(self, settings: ExportSettings | None = None, **options: str) -> int:
        """Run it; rows written."""
        settings = settings or ExportSettings(part_bytes=2000)
        source = ExportSource.of({"path": self.path, **options}, settings.columns, settings.partition_by)
        with SparkExporter.of(self.out, self.spark, source, settings) as exporter:
            exporter.step(0, is_last=True)
            return exporter.progress.rows

    def test_engines_take_turns(self) -> None:
        """Spark, Arrow, Spark: every row once, no gap between the ranges."""
        self.ledger.fill(300)
        self.ledger.commit(149)
        self.assertEqual(self.export(), 150)
        self.assertGreater(len(data_files(self.out)), 5)
        self.ledger.commit(219)
        source = ExportSource.of({"path": self.path})
        with Exporter.open(self.out, source, ExportSettings()) as exporter:
            exporter.step(0, is_last=True)
        self.ledger.commit()
        self.assertEqual(self.export(), 80)
        self.assertEqual(self.export(), 0)
        self.assertEqual(rows_of(self.out), plain_rows(self.ledger.path))
        ranges = sorted({tuple(map(int, path.stem.split("-")[1:3])) for path in data_files(self.out)})
        self.assertEqual((ranges[0][0], ranges[-1][1]), (0, 299))
        self.assertTrue(all(one[1] + 1 == other[0] for one, other in zip(ranges, ranges[1:], strict=False)))
        state = json.loads((self.out / "_export.json").read_text())
        self.assertEqual((state["next"], state["rows"], state["proof"]["offset"]), (300, 300, 299))
        self.assertEqual(os.listdir(self.out / "_pending") if (self.out / "_pending").exists() else [], [])

    def test_log_that_went_back(self) -> None:
        """A log that ends before the export does is an error here, too, not an export with nothing to do."""
        self.ledger.fill(100)
        self.ledger.commit()
        self.assertEqual(self.export(), 100)
        behind = self.make()
        behind.fill(100)
        behind.commit(59)
        error = self.assertRaises(NotCommittedError, self.export, path=behind.path, requestTimeoutMs="50")
        self.assertIn("it ends at 60", str(error))

    def test_json_is_the_same(self) -> None:
        """Both engines write the same objects, those of bytes that are no text included."""
        self.ledger.append([b"text", "Grüße \"\u2028".encode(), b"\xff\x00" * 60, b"", b"\0"])
        self.ledger.commit()
        settings = ExportSettings(format="jsonl", partition_by=("term",))
        lines = []
        for engine in ("spark", "arrow"):
            self.out = Path(self.mktemp())
            if engine == "spark":
                self.export(settings)
            else:
                source = ExportSource.of({"path": self.path}, (), settings.partition_by)
                with Exporter.open(self.out, source, settings) as exporter:
                    exporter.step(0, is_last=True)
            files = data_files(self.out)
            self.assertEqual({path.parent.name for path in files}, {"term=1"})
            texts = [path.read_text("utf-8") for path in files]
            rows = [json.loads(line) for text in texts for line in text.rstrip("\n").split("\n")]
            lines.append(sorted(rows, key=lambda row: row["index"]))
        self.assertEqual(lines[0], lines[1])
        self.assertEqual([list(row) for row in lines[0]], [list(row) for row in lines[1]])
        self.assertEqual(len(lines[0]), 5)

    def test_messages(self) -> None:
        """A broker's commit log."""
        store = os.path.abspath(self.mktemp())
        log = BrokerLog(f"{store}/commitlog", first=2 * SIZE)
        for number in range(60):
            log.append(number)
        self.path = store
        self.assertEqual(self.export(format="rocketmq"), 60)
        found = [
            offset for path in data_files(self.out)
            for offset in pq.read_table(path, partitioning=None).column("physicalOffset").to_pylist()
        ]
        self.assertEqual(sorted(found), log.written)

    def test_stop(self) -> None:
        """It stops between two jobs, and goes on."""
        self.ledger.fill(300)
        self.ledger.commit()
        settings = ExportSettings(part_bytes=500)
        source = ExportSource.of({"path": self.path})
        with SparkExporter.of(self.out, self.spark, source, settings) as exporter:
            exporter.should_stop = lambda: exporter.progress.rows > 0
            exporter.step(0, is_last=True)
            done = exporter.progress.rows
        self.assertTrue(0 < done < 300)
        self.assertEqual(rows_of(self.out), plain_rows(self.ledger.path)[:done])
        self.assertEqual(self.export(), 300 - done)
        self.assertEqual(rows_of(self.out), plain_rows(self.ledger.path))

    def test_killed(self) -> None:
        """A program killed in the middle, its JVM left behind; then the command again, in this process."""
        self.ledger.fill(400)
        self.ledger.commit()
        words = (self.path, str(self.out), "--part-bytes", "400", "--engine", "spark")
        child = Export(*words, "--master", "local[1]", "--conf", "spark.driver.memory=512m", seconds=400)
        while not (line := child.line()).startswith("exported"):
            self.assertTrue(line, "it ended, or said nothing for too long")
        status, said = child.end(signal.SIGKILL)
        self.assertEqual(status, -signal.SIGKILL, said)
        done = rows_of(self.out)
        self.assertTrue(done)
        self.assertEqual(done, plain_rows(self.ledger.path)[: len(done)])
        self.ledger.fill(20)
        self.ledger.commit()
        result = CliRunner().invoke(cli, ["export", *words])
        self.assertEqual(result.exit_code, 0, result.output)
        self.assertEqual(rows_of(self.out), plain_rows(self.ledger.path))

    def test_failed_job(self) -> None:
        """A job that fails leaves what was finished before, and the next run goes on."""
        self.ledger.fill(100)
        self.ledger.commit()
        rows = plain_rows(self.ledger.path)
        size = self.ledger.config.mapped_file_size_for_entry_data
        path = Path(self.ledger.path) / "data" / f"{rows[60][2] // size * size:020}"
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[rows[60][2] % size + 8] ^= 1
        path.write_bytes(damaged)
        message = str(self.assertRaises(ExportError, self.export))
        self.assertRegex(message, r"^a job of Spark has failed: on machine \S+: entry 60 is damaged: ")
        self.assertNotIn("\n", message)
        self.assertEqual(data_files(self.out), [])
        path.write_bytes(whole)
        self.assertEqual(self.export(), 100)
        self.assertEqual(rows_of(self.out), rows)


