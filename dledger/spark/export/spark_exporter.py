# -*- test-case-name: tests.spark.test_export_spark -*-
"""
The export of L{dledger.spark.export.exporter} as Spark jobs, for logs that are too large for one machine.

A job writes the files of one part below C{_pending}; the driver renames them, as L{Exporter
<dledger.spark.export.exporter.Exporter>} does. So the driver and the executors must share the file system
of the directory, and a task that fails and is repeated leaves no files behind. The two engines may take
turns on one directory.

Does not follow a log: that is C{spark.readStream} (docs/spark-reference.md, "Streams").
"""

from __future__ import annotations

import os
import re
import uuid
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Self

import attrs

from dledger.spark.export.exporter import (
    Exporter,
    ExportSettings,
    ExportSource,
    check_from,
    recognise,
)
from dledger.spark.export.files import ExportError, ExportPart, part_name
from dledger.spark.export.writers import PARQUET
from dledger.spark.formats.log import LogPart as Range
from dledger.spark.formats.log import await_end, cut, lost
from dledger.spark.formats.options import options_of_tls
from dledger.spark.ledger.columns import ddl_of
from protocols.wire.fastjson import JsonObject, as_int

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Tasks of one job for each task that runs at a time: enough to balance the load, few enough to resume soon.
_TASKS_PER_SLOT = 4
#: Options of the user that a job has in another form.
_REPLACED = frozenset((
    "startingoffsets", "endingoffsets", "partitionbytes", "path", "tlscertificate", "tlskey", "tlsauthority",
    "tokenfile",
))


class SparkExporter(Exporter):
    """One run of an export; the callbacks are called once for each job."""

    _spark: SparkSession

    @classmethod
    def of(
        cls, out: str | os.PathLike[str], spark: SparkSession, source: ExportSource, settings: ExportSettings
    ) -> Self:
        """As L{Exporter.open}. @param spark: a session that knows the format C{dledger}."""
        found = cls.open(out, source, settings)
        found._spark = spark
        return found

    def step(self, now_ms: int, *, is_last: bool) -> None:
        """
        Export the entries that are committed now.

        @param now_ms, is_last: for the other engine; here a part ends where its job ends.
        @raise ReadError: the log cannot be read while the jobs are planned.
        @raise ExportError: the log is not the one exported before, or a job has failed.
        """
        scan = self._source.scan
        options = attrs.evolve(scan.options, partition_bytes=self._settings.part_bytes)
        with closing(scan.log()) as log:
            extent = log.extent()
            if self.directory.next_index is None:
                self.directory.begin(scan.beginning(extent))
            begin = self.directory.next_index
            assert begin is not None
            check_from(self.directory, scan)
            if extent.end < begin:
                extent = await_end(log, options, begin)
            recognise(self.directory.path, log, begin, self.directory.proof)
            if begin < extent.begin:
                begin = lost(scan.options, begin, extent.begin, note=extent.note)
            end = max(begin, scan.ending(extent))
            ranges = cut(log, options, begin, end)
        self._progress = attrs.evolve(self._progress, begin=begin, next=begin, end=end)
        step = max(1, self._spark.sparkContext.defaultParallelism) * _TASKS_PER_SLOT
        for at in range(0, len(ranges), step):
            if self.should_stop():
                return
            try:
                self._job(ranges[at : at + step])
            except _job_errors() as error:
                raise ExportError(f"a job of Spark has failed: {_reason(error)}") from error
            self.on_progress(self.progress)

    def _job(self, ranges: list[Range]) -> None:
        first = self.directory.next_index
        assert first is not None
        begin, end = ranges[0].begin, ranges[-1].end
        # The JVM of a driver that was killed may write for another moment: give each job its own folder.
        staged = self.directory.stage(f"job-{uuid.uuid4().hex}")
        rows = self._write(self._frame(begin, end), staged)
        files = tuple(self._files(staged, first, end - 1))
        part = ExportPart(first=first, last=end - 1, files=files, rows=rows)
        with closing(self._source.scan.log()) as log:
            log.extent()
            proof = {"offset": end - 1, **log.proof(end)}
        self.directory.commit(part, proof)
        size = sum(one.size_bytes for one in ranges)
        self._progress = attrs.evolve(
            self._progress, next=end, rows=self._progress.rows + rows,
            log_bytes=self._progress.log_bytes + size,
        )
        self.on_part(part)

    def _frame(self, begin: int, end: int) -> DataFrame:
        reader = self._spark.read.format("dledger").schema(ddl_of(self._source.scan.columns))
        given = dict(self._source.given)
        for name in list(given):
            if name.lower() in _REPLACED:
                del given[name]
        options = self._source.scan.options
        if options.path:
            given["path"] = options.path  # absolute, as are those of the keys
        if options.archive:
            given["archive"] = options.archive
        if options.tls is not None:
            given |= options_of_tls(options.tls)
        if options.token_file:
            given["tokenFile"] = options.token_file
        return reader.options(
            **given, startingOffsets=str(begin), endingOffsets=str(end),
            partitionBytes=str(self._settings.part_bytes),
        ).load()

    def _write(self, frame: DataFrame, path: Path) -> int:
        """@return: the number of rows."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        frame = frame.observe(seen, f.count(f.lit(1)).alias("rows"))
        settings = self._settings
        if settings.format != PARQUET:
            frame = frame.select(*_json_columns(frame))
        writer = frame.write.mode("overwrite").partitionBy(*settings.partition_by)
        target = path.absolute().as_uri()
        if settings.format == PARQUET:
            writer.option("compression", settings.compression).parquet(target)
        else:
            writer.option("timeZone", "UTC").json(target)
        counted: JsonObject = seen.get
        return as_int(counted["rows"])

    def _files(self, staged: Path, first: int, last: int) -> list[tuple[str, str]]:
        pending = staged.parent
        found = []
        for number, path in enumerate(sorted(staged.rglob("part-*"))):
            folder = path.parent.relative_to(staged).as_posix()
            name = part_name(first, last, self._settings.format, number)
            found.append((str(path.relative_to(pending)), os.path.normpath(os.path.join(folder, name))))
        return found


def _job_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def _reason(error: Exception) -> str:
    """The message of the task's error, without the tracebacks of Python and Java around it."""
    text = str(error)
    ours = re.findall(r"^dledger\.[\w.]+: (.+)$", text, re.MULTILINE)
    return ours[-1] if ours else next((line for line in text.splitlines() if line.strip()), repr(error))


def _json_columns(frame: DataFrame) -> list[Column]:
    """Bodies as text if they are UTF-8, else in Base64, as in the other engine."""
    from pyspark.sql import functions as f

    columns = []
    for name, kind in frame.dtypes:
        if kind != "binary":
            columns.append(f.col(f"`{name}`"))
            continue
        body = f.col(f"`{name}`")
        is_text = f.is_valid_utf8(body.cast("string"))
        columns.append(f.when(is_text, body.cast("string")).alias(name))
        # Spark breaks Base64 into lines of 76 characters.
        whole = f.translate(f.base64(body), "\r\n", "")
        columns.append(f.when(~is_text, whole).alias(f"{name}_base64"))
    return columns
