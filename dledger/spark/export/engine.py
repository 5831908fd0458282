# -*- test-case-name: tests.spark.test_export_engine -*-
"""
Runs an export: once, continuously beside a member, or as jobs of Spark::

    plan = ExportPlan.of("store/dledger-n0", "out", {}, follows=False)
    with plan.open() as run:
        run.turn(now_ms=0)
        run.end()
        print(run.report(seconds=1.0).sentence)

Knows nothing of clocks, threads, signals and terminals.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import attrs

from dledger.spark.export.exporter import ARROW, ICEBERG, Exporter, ExportSettings, ExportSource
from dledger.spark.export.files import ExportError, ExportPart
from dledger.spark.export.follow import Follower
from dledger.spark.export.table_target import ExportTable
from dledger.spark.export.tables import open_export
from dledger.spark.export.topics import TopicsExporter
from dledger.spark.export.watch import ExportWatch
from dledger.spark.formats.log import ReadError
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.formats.options import options_of_tls
from dledger.values.addresses import is_url, parse_members
from dledger.values.exports import (
    ExportProgress,
    ExportReport,
    ExportStatus,
    RunningExport,
    read_options,
)
from dledger.values.tls_files import TlsFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Errors with a sentence for people: the log, the place, or an option is wrong, not this program.
EXPECTED = (ExportError, ReadError, OptionError, OSError)


def source_options(
    source: str, group: str = "default", tls: TlsFiles | None = None, token_file: str = ""
) -> dict[str, str]:
    """
    Options of the Spark source for a directory, the URL of an archive, or members of a group.

    @param tls, token_file: keys and token for members; a directory needs none.
    @raise OptionError: C{source} is none of these.
    """
    # (Path.is_dir would raise for a list of members as long as no name may be.)
    if is_url(source) or os.path.isdir(source):
        return {"path": source}
    try:
        members = parse_members(source, "SOURCE")
    except ValueError as error:
        raise OptionError(
            f"{source!r} is neither a directory, nor a URL of an archive, nor a list of members: {error}"
        ) from None
    bootstrap = ";".join(f"{member_id}-{address}" for member_id, address in members.items())
    options = {"bootstrap": bootstrap, "group": group}
    if tls is not None:
        options |= options_of_tls(tls)
    if token_file:
        options["tokenFile"] = token_file
    return options


@attrs.frozen(kw_only=True)
class ExportPlan:
    """
    A log, a directory or URL, and how one comes into the other.

    @ivar interval_ms: between two reads of a log that is followed; 0: the export has an end.
    """

    out: str
    source: ExportSource
    settings: ExportSettings
    interval_ms: int
    engine: str = ARROW
    master: str | None = None
    conf: Mapping[str, str] = attrs.Factory(dict)
    compacts: bool = False
    expire_days: int | None = None
    max_lag_ms: int = 0
    admin: str = ""
    admin_hosts: str = ""
    insecure: bool = False

    @classmethod
    def of(
        cls, source: str, out: str | os.PathLike[str], given: Mapping[str, Iterable[str]], *, follows: bool,
        group: str = "default", tls: TlsFiles | None = None, token_file: str = "",
    ) -> ExportPlan:
        """
        @param given: texts of L{dledger.values.exports.EXPORT_OPTIONS}, by their keys.
        @param group, tls, token_file: for members.
        @raise OptionError: an option makes no sense, or not together with another one.
        @raise ExportError: the columns cannot be partitioned so.
        """
        try:
            values = read_options(given)
        except ValueError as error:
            raise OptionError(str(error)) from None
        _check_together(values, os.fspath(out), follows=follows)
        columns = sum(cast("tuple[tuple[str, ...], ...]", values["columns"]), ())
        partition_by = sum(cast("tuple[tuple[str, ...], ...]", values["partition_by"]), ())
        fields = sum(cast("tuple[tuple[tuple[str, str], ...], ...]", values["field"]), ())
        settings = ExportSettings(
            to=cast("str | None", values["to"]) or "", format=cast("str", values["format"]), columns=columns,
            partition_by=partition_by, compression=cast("str", values["compression"]),
            part_bytes=cast("int", values["part_bytes"]),
            max_delay_ms=round(cast("float", values["max_delay"]) * 1000),
            store_options=dict(cast("tuple[tuple[str, object], ...]", values["store_option"])),
            catalog=cast("str | None", values["catalog"]) or "",
            table=cast("str | None", values["table"]) or "",
            catalog_options=dict(cast("tuple[tuple[str, str], ...]", values["catalog_option"])),
            decode=cast("str | None", values["decode"]) or "", fields=fields,
            table_per=cast("str | None", values["table_per"]) or "",
        )
        options = {
            **source_options(source, group, tls, token_file),
            **dict(cast("tuple[tuple[str, str], ...]", values["option"])),
        }
        if values["from"] is not None:
            options["startingOffsets"] = str(values["from"])
        engine = cast("str", values["engine"])
        return cls(
            out=os.fspath(out), settings=settings, engine=engine,
            source=ExportSource.of(
                options, columns, partition_by, engine=engine, follows=follows, needed=settings.needed
            ),
            interval_ms=max(1, round(cast("float", values["interval"]) * 1000)) if follows else 0,
            master=cast("str | None", values["master"]),
            conf=dict(cast("tuple[tuple[str, str], ...]", values["conf"])),
            compacts=bool(values["compact"]), expire_days=cast("int | None", values["expire_snapshots"]),
            max_lag_ms=_max_lag_ms(cast("float | None", values["max_lag"]), settings.max_delay_ms),
            admin=cast("str | None", values["admin"]) or "",
            admin_hosts=cast("str | None", values["admin_hosts"]) or "", insecure=bool(values["insecure"]),
        )

    def open(self) -> ExportRun:
        """
        @raise ExportError, ReadError: see L{open_export}.
        @raise ImportError: PySpark is missing.
        """
        if self.settings.table_per:
            return ExportRun(self, TopicsExporter.open(self.out, self.source, self.settings))
        if self.engine == ARROW:
            return ExportRun(self, open_export(self.out, self.source, self.settings))
        from dledger.spark.export.spark_exporter import SparkExporter

        return ExportRun(self, SparkExporter.of(self.out, self._session(), self.source, self.settings))

    def _session(self) -> SparkSession:
        from dledger.spark.session import session

        return session("dledger export", master=self.master or "local[*]", config=dict(self.conf))


def _max_lag_ms(seconds: float | None, max_delay_ms: int) -> int:
    if seconds is not None:
        return round(seconds * 1000)
    # A part without a time at which it ends may stay open for ever.
    return max(600_000, 10 * max_delay_ms) if max_delay_ms else 0


def _check_together(values: Mapping[str, object], out: str, *, follows: bool) -> None:
    """@raise OptionError: options that do not go together."""
    is_spark = values["engine"] != ARROW
    if is_spark and is_url(out):
        raise OptionError(f"--engine spark writes to a directory that all machines see, not to {out}: use "
                          "--engine arrow, or a stream of Spark with a checkpoint")
    if values["store_option"] and not is_url(out):
        raise OptionError(f"--store-option is for a store, and {out} is a directory")
    if is_spark and follows:
        raise OptionError("--follow needs --engine arrow; a Spark stream can follow a log, too")
    for name in ("to", "decode", "table-per"):
        if is_spark and values[name.replace("-", "_")]:
            raise OptionError(f"--{name} needs --engine arrow")
    if values["catalog"] and (values["to"] != ICEBERG or values["table_per"]):
        raise OptionError("--catalog needs --to iceberg, without --table-per")
    if not values["catalog"] and (values["table"] or values["catalog_option"]):
        raise OptionError("--table and --catalog-option need --catalog")
    if values["to"] == ICEBERG and is_url(out) and not values["catalog"]:
        raise OptionError(f"an Iceberg table at a URL needs --catalog, of which {out} cannot hold the file")
    if not is_spark and (values["master"] or values["conf"]):
        raise OptionError("--master and --conf need --engine spark")
    for name in ("admin", "max-lag"):
        if values[name.replace("-", "_")] is not None and not follows:
            raise OptionError(f"--{name} needs --follow: an export that ends has no pages")
    if not values["compact"] and values["expire_snapshots"] is None:
        return
    if not values["to"]:
        raise OptionError("--compact and --expire-snapshots need --to: files are never changed")


class ExportRun(RunningExport):
    """An open export."""

    def __init__(self, plan: ExportPlan, exporter: Exporter) -> None:
        self.on_progress: Callable[[ExportProgress], None] = lambda progress: None
        self.on_part: Callable[[int, int, int], None] = lambda first, last, rows: None
        self.on_trouble: Callable[[Exception, int], None] = lambda error, wait_ms: None
        self.on_maintained: Callable[[str], None] = lambda said: None
        self.should_stop: Callable[[], bool] = lambda: False
        exporter.on_progress = self._progressed
        exporter.on_part = self._part
        exporter.should_stop = lambda: self.should_stop()
        self._exporter = exporter
        self._plan = plan
        self._maintained = ""
        self._follower: Follower | None = None
        self._watch = ExportWatch(max_lag_ms=plan.max_lag_ms)
        self._now_ms = 0
        if plan.interval_ms:
            maintains = plan.compacts or plan.expire_days is not None
            self._follower = Follower(
                exporter, interval_ms=plan.interval_ms, maintain=self._maintain if maintains else None
            )
            self._follower.on_trouble = self._trouble
            self._follower.on_maintained = lambda said: self.on_maintained(said)

    def _progressed(self, progress: ExportProgress) -> None:
        self._watch.read(progress, self._now_ms)
        self.on_progress(progress)

    def _part(self, part: ExportPart) -> None:
        tables = self._exporter.tables()
        version = tables[0].version() if len(tables) == 1 else ""
        self._watch.committed(part.last, part.rows, version, time.time())
        self.on_part(part.first, part.last, part.rows)

    def _trouble(self, error: Exception, wait_ms: int) -> None:
        self._watch.failed(error, self._now_ms, stops=isinstance(error, ReadError))
        self.on_trouble(error, wait_ms)

    def _maintain(self, table: ExportTable, expires: bool) -> str:
        plan = self._plan
        days = plan.expire_days if expires else None
        if not plan.compacts and days is None:
            return ""
        return table.maintain(compacts=plan.compacts, expire_days=days, now_s=time.time())

    def turn(self, now_ms: int) -> int | None:
        """
        @param now_ms: monotonic.
        @raise ReadError, ExportError, OSError: as L{Exporter.step} and L{Follower.turn}.
        """
        self._now_ms = now_ms
        try:
            if self._follower is not None:
                return self._follower.turn(now_ms)
            self._exporter.step(now_ms, is_last=True)
        except OSError as error:
            raise self._explained(error) from error
        plan = self._plan
        if (plan.compacts or plan.expire_days is not None) and not self.should_stop():
            self._maintained = "\n".join([self._maintain(table, True) for table in self._exporter.tables()])
        return None

    def _explained(self, error: OSError) -> Exception:
        # (Arrow's own sentence names neither the place nor, at its begin, the reason.)
        if is_url(self._plan.out):
            where = (f". Parts wait in {tempfile.gettempdir()}, which is full: TMPDIR names another directory"
                     if error.errno == errno.ENOSPC else "")
            return ExportError(f"{self._plan.out} cannot be written: {error}{where}")
        if error.errno is None:
            return error
        return ExportError(f"{self._plan.out} cannot be written: {os.strerror(error.errno)}")

    def end(self) -> None:
        """@raise ExportError, OSError: it is not visible."""
        if self._follower is not None:
            self._follower.end()

    def report(self, seconds: float) -> ExportReport:
        progress, directory = self._exporter.progress, self._exporter.directory
        return ExportReport(
            out=self._plan.out, rows=progress.rows, log_bytes=progress.log_bytes,
            seconds=round(seconds, 3), begin=progress.begin, next=directory.next_index,
            end=progress.end, total_rows=directory.rows, maintained=self._maintained,
        )

    def status(self, now_ms: int) -> ExportStatus:
        return self._watch.status(now_ms, time.time())

    def close(self) -> None:
        self._exporter.close()

    def __enter__(self) -> Self:
        """This run."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
