# -*- test-case-name: tests.damage.test_slice -*-
"""
The ways to read a directory: batch, stream, export, sidecar, and a member that starts. Each gives rows, or
raises its own error.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from dledger.base.disk.disk import OsDisk
from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource
from dledger.spark.export.follow import Follower
from dledger.spark.scans.scan import Scan
from dledger.spark.source import LogStreamReader
from dledger.storage.store.file_store import FileStore
from dledger.testing.group.checks.group_folds import fold, group_problem
from dledger.values.errors import DamagedEntryError, StoreError
from dledger.values.ledger.group_state import GroupFold, GroupState, Marked
from protocols.wire.fastjson import JsonObject
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, decode_header
from tests.spark.ledgers import Row
from tests.storage.support import config_of

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


class StateUnknown(Exception):
    """A member has started, and says why it does not know the state of the group."""


def start(path: str, out: str, records: list[bytes]) -> list[bytes]:
    """
    What a member has that starts with a copy of the directory.

    @param records: of all entries, from index 0 on, as they were written.
    @return: the records of its log.
    @raise AssertionError: the state of the group is not that of its log.
    @raise StateUnknown, StoreError: with the name of the directory.
    """
    copy = f"{out}-start"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, f"{copy}/{os.path.basename(path)}")
    try:
        store = FileStore.open(config_of(copy), OsDisk())
    except StoreError as error:
        raise StoreError(str(error).replace(copy, os.path.dirname(path))) from error
    try:
        group, begin, end = store.group, store.ledger_begin_index, store.ledger_end_index
        if group is None:
            assert store.why_group_unknown
            raise StateUnknown(f"{path}: {store.why_group_unknown}")
        problem = group_problem(group, fold(records[: end + 1]))
        assert not problem, problem
        known, sound = group.state, state_of(records[: group.state.index + 1])
        for name in ("age_ms", "clock_ms", "time", "has_forgotten", "readers", "hidden"):
            assert getattr(known, name) == getattr(sound, name), name
        return records_in(store, begin, end)
    finally:
        store.abandon()


def state_of(records: list[bytes]) -> GroupState:
    """What these records say, which are all from the first one of the group on."""
    found = GroupFold(GroupState())
    for record in records:
        header = decode_header(record)
        if header.channel:
            body = record[ENTRY_HEADER_SIZE:] if header.channel < 0 else b""
            found.take([Marked(header.index, header.term, header.channel, 1, body)])
        found.commit(header.index)
    return found.state


def records_in(store: FileStore, begin: int, end: int) -> list[bytes]:
    """The records of a log; none for an entry that is damaged, which a peer would give back."""
    found: list[bytes] = []
    for index in range(max(begin, 0), end + 1):
        try:
            found.append(store.read_batch(index, max_count=1, max_bytes=0).records)
        except DamagedEntryError:
            found.append(b"")
    return found


READINGS: dict[str, Reading] = {
    "batch": batch_with({"verifyCrc": "true"}),
    "batch-small": batch_with({"verifyCrc": "true", "fetchBytes": "300", "partitionBytes": "1500"}),
    "batch-default": batch_with({}),
    "batch-index": batch_with({}, is_indexed=True),
    "stream": stream,
    "export": export,
    "sidecar": sidecar,
}
