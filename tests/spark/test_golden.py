# -*- test-case-name: tests.spark.test_golden -*-
"""Streams and exports that a release began go on with this version."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.export.files import ExportError
from tests.golden.make import HERE
from tests.spark.sessions import patiently, spark

RELEASES = sorted(path.parent for path in HERE.glob("*/expected.json"))


class GoldenTests(SynchronousTestCase):
    """The directories of one release after the other."""

    def unpacked(self, release: Path, *kinds: str) -> tuple[list[Path], Any]:
        """Directories, and what their release has."""
        place = Path(self.mktemp()).absolute()
        for kind in kinds:
            with tarfile.open(release / f"{kind}.tar.xz") as packed:
                packed.extractall(place, filter="data")
        return [place / kind for kind in kinds], json.loads((release / "expected.json").read_text())

    def test_stream(self) -> None:
        """A checkpoint: the batch that was interrupted comes first, and then the rest, each row once."""
        for release in RELEASES:
            rows: dict[int, list[int]] = {}

            def take(frame: DataFrame, number: int, rows: dict[int, list[int]] = rows) -> None:
                rows[number] = [row[0] for row in frame.select("index").collect()]

            (member, checkpoint), expected = self.unpacked(release, "member", "checkpoint")

            def run(member: Path = member, checkpoint: Path = checkpoint, take: Any = take) -> None:
                stream = spark().readStream.format("dledger").option("maxOffsetsPerTrigger", "100")
                writer = stream.load(f"{member}/dledger-n0").writeStream.foreachBatch(take)
                writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
                writer.start().awaitTermination()

            patiently(run)
            read = expected["reads"]["read"]
            self.assertTrue(read)
            self.assertEqual(min(rows), 1)
            found = sorted(index for batch in rows.values() for index in batch)
            self.assertEqual(sorted([*read, *found]), expected["member"]["indexes"])

    def test_export(self) -> None:
        """An export: the same command again finds all of it done."""
        for release in RELEASES:
            (member, out), expected = self.unpacked(release, "member", "export")
            before = sorted(path.name for path in out.glob("part-*"))
            source = ExportSource.of({"path": f"{member}/dledger-n0"}, (), ())
            with Exporter.open(out, source, ExportSettings()) as exporter:
                exporter.step(0, is_last=True)
            self.assertEqual(sorted(path.name for path in out.glob("part-*")), before)
            found = [row for name in before for row in pq.read_table(out / name)["index"].to_pylist()]
            self.assertEqual(sorted(found), expected["member"]["indexes"])

    def test_later_export(self) -> None:
        """An export of a later version is refused with both numbers, and stays as it was."""
        for release in RELEASES:
            (member, out), _ = self.unpacked(release, "member", "export")
            state = out / "_export.json"
            state.write_text(state.read_text().replace('"version": 1', '"version": 97'))
            before = {path.name: path.read_bytes() for path in out.glob("*.*")}
            source = ExportSource.of({"path": f"{member}/dledger-n0"}, (), ())
            with self.assertRaisesRegex(ExportError, "is of version 97; this program knows 1"):
                Exporter.open(out, source, ExportSettings())
            self.assertEqual({path.name: path.read_bytes() for path in out.glob("*.*")}, before)
