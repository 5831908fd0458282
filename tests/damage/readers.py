# -*- test-case-name: tests.damage.test_slice -*-
"""The ways to read a directory: batch, stream, export, sidecar. Each gives rows, or raises its own error."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.export.follow import Follower
from dledger.spark.scans.scan import Scan
from dledger.spark.source import LogStreamReader
from protocols.wire.fastjson import JsonObject
from tests.spark.ledgers import Row

NAMES = ("index", "term", "pos", "size", "channel", "chain_crc", "body_crc", "body")
#: Columns that the index alone gives.
INDEXED = (("index", "bigint"), ("term", "bigint"), ("pos", "bigint"), ("size", "int"))
_QUICK = {"requestTimeoutMs": "1"}

Reading = Callable[[str, str, JsonObject], list[Any]]


def _rows(batches: Any) -> list[Any]:
    found: list[Any] = []
    for batch in batches:
        found += zip(*[column.to_pylist() for column in batch.columns], strict=True)
    return found


def batch_with(options: Mapping[str, str], *, is_indexed: bool = False) -> Reading:
    """A batch with more options."""

    def read(path: str, _out: str, _start: JsonObject) -> list[Any]:
        scan = Scan.of({"path": path, **_QUICK, **options}, wanted=INDEXED if is_indexed else None)
        return [row for part in scan.plan() for row in _rows(scan.batches(part))]

    return read


def stream(path: str, _out: str, start: JsonObject) -> list[Any]:
    """One batch of a stream, from an offset that was reached when the directory was sound."""
    given = {"path": path, "verifyCrc": "true", "startingOffsets": "earliest", **_QUICK}
    reader = LogStreamReader(Scan.of(given, is_stream=True))
    try:
        begin = start or reader.initialOffset()
        end = reader.latestOffset(begin, ReadAllAvailable())
        parts = reader.partitions(begin, end)
        return [row for part in parts for row in _rows(reader.read(part))]
    finally:
        reader.stop()


def exported(out: str) -> list[Row]:
    """The visible rows of an export, in order."""
    rows = []
    for file in sorted(Path(out).glob("part-*.jsonl")):
        for line in file.read_text().splitlines():
            found = json.loads(line)
            found["body"] = (base64.b64decode(found["body_base64"]) if "body_base64" in found
                             else found["body"].encode())
            rows.append(tuple(found[name] for name in NAMES))
    return rows


class Interrupted(Exception):
    """
    An export has ended with an error.

    @ivar error: the error.
    @ivar rows: that are visible nevertheless.
    """

    def __init__(self, error: Exception, rows: list[Row]) -> None:
        super().__init__(str(error))
        self.error = error
        self.rows = rows


def _export(path: str, out: str, work: Callable[[Exporter], None]) -> list[Any]:
    shutil.rmtree(out, ignore_errors=True)
    source = ExportSource.of({"path": path, **_QUICK})
    try:
        with Exporter.open(out, source, ExportSettings(format="jsonl", max_delay_ms=1)) as exporter:
            work(exporter)
    except Exception as error:
        raise Interrupted(error, exported(out)) from None
    return exported(out)


def export(path: str, out: str, _start: JsonObject) -> list[Any]:
    """An export to the end."""
    return _export(path, out, lambda exporter: exporter.step(0, is_last=True))


def sidecar(path: str, out: str, _start: JsonObject) -> list[Any]:
    """The turns of a service that follows the log; by the second one every part is due."""

    def work(exporter: Exporter) -> None:
        follower = Follower(exporter, interval_ms=1)
        troubles: list[Exception] = []
        follower.on_trouble = lambda error, wait_ms: troubles.append(error)
        for now_ms in (0, 1000):
            follower.turn(now_ms)
        if troubles:
            raise troubles[0]

    return _export(path, out, work)


READINGS: dict[str, Reading] = {
    "batch": batch_with({"verifyCrc": "true"}),
    "batch-small": batch_with({"verifyCrc": "true", "fetchBytes": "300", "partitionBytes": "1500"}),
    "batch-default": batch_with({}),
    "batch-index": batch_with({}, is_indexed=True),
    "stream": stream,
    "export": export,
    "sidecar": sidecar,
}
