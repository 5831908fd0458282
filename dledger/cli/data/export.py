# -*- test-case-name: tests.spark.test_export_cli -*-
"""
C{dledger export}: write a log into Parquet files, lines of JSON or a table, once or continuously.

Arrow and PySpark are imported when the command runs: without them every other command still works.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol

import attrs
import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from dledger.cli.basics.common import EXIT_INTERRUPTED, say, show_result
from dledger.cli.basics.local_paths import LocalPath
from dledger.cli.basics.numbers import RealRange, WholeRange
from dledger.cli.basics.signals import stopped_by
from dledger.values.addresses import is_url, parse_members
from dledger.values.option_values import made_of
from dledger.values.tls_files import TlsFiles

_MISSING = (
    "dledger export needs Arrow: pip install 'dledger[export]'; with --engine spark also PySpark: "
    "pip install 'dledger[spark]' ({0})"
)


class _Rate(ProgressColumn):
    """Rows, and rows and log bytes per second, since the start of this run."""

    def render(self, task: Task) -> Text:
        """The text for a task."""
        seconds = max(task.elapsed or 0.0, 1e-9)
        rows, size = task.fields["rows"], task.fields["log_bytes"]
        return Text(f"{rows:,} rows, {rows / seconds:,.0f}/s, {size / seconds / 1e6:,.1f} MB/s")


#: What an export needs of its directory.
_MOUNTED = ("An export needs a directory of a mounted file system, with an atomic rename; to a store, use a "
            "stream with a checkpoint")


def source_options(
    source: str, group: str, tls: TlsFiles | None = None, token_file: str = ""
) -> dict[str, str]:
    """
    Options of the Spark source for SOURCE: a directory, the URL of an archive, or members of a group.

    @param tls, token_file: keys and token for members; a directory needs none.
    @raise UsageError: SOURCE is none of these.
    """
    if is_url(source):
        return {"path": source}
    if os.path.isdir(source):  # Path.is_dir would raise for a list of members as long as no name may be
        return {"path": source}
    try:
        members = parse_members(source, "SOURCE")
    except ValueError as error:
        raise click.UsageError(f"{source!r} is neither a directory, nor a URL of an archive, "
                               "nor a list of members: "
                               f"{error}") from None
    bootstrap = ";".join(f"{member_id}-{address}" for member_id, address in members.items())
    options = {"bootstrap": bootstrap, "group": group}
    if tls is not None:
        from dledger.spark.basics.options import options_of_tls

        options |= options_of_tls(tls)
    if token_file:
        options["tokenFile"] = token_file
    return options


def _names(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def _pairs(flag: str, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"{flag} {text!r}: write {flag} name=value")
        found[name.strip()] = value.strip()
    return found


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("out", type=LocalPath(file_okay=False, path_type=Path, hint=_MOUNTED))
@click.option("--format", "style", type=click.Choice(["parquet", "jsonl"]), default="parquet",
              show_default=True)
@click.option("--to", type=click.Choice(["delta", "iceberg"]), default=None,
              help="Into a table in the directory OUT: Delta, or Iceberg with its catalog. "
                   "[default: files alone]")
@click.option("--engine", type=click.Choice(["arrow", "spark"]), default="arrow", show_default=True,
              help="arrow: in this process; spark: as jobs of a Spark session.")
@click.option("--columns", multiple=True, metavar="NAME,...", help="Columns, in this order. [default: all]")
@click.option("--partition-by", multiple=True, metavar="NAME,...",
              help="One folder for each value of these columns, as in Hive.")
@click.option("--compression", type=click.Choice(["snappy", "zstd", "gzip", "none"]), default="snappy",
              show_default=True, help="Compression of Parquet.")
@click.option("--part-bytes", type=WholeRange(min=1), default=128 * 1024 * 1024, show_default=True,
              help="Approximate maximum of log bytes in one file.")
@click.option("--from", "first", type=WholeRange(min=0), default=None,
              help="First index of a new export. [default: the first index of the log]")
@click.option("-o", "--option", "options", multiple=True, metavar="NAME=VALUE",
              help="Any option of the Spark source, such as verifyCrc=true; see docs/spark.md.")
@click.option("-f", "--follow", is_flag=True, help="Continue with entries that are committed later.")
@click.option("--interval", type=RealRange(min=0.001), default=1.0, show_default=True,
              help="With --follow: seconds between two reads of the log.")
@click.option("--max-delay", type=RealRange(min=0), default=60.0, show_default=True,
              help="With --follow: seconds after which a file is finished even if it is not full; "
                   "0: never.")
@click.option("--compact", "compacts", is_flag=True,
              help="With --to: write small files of the table together afterwards.")
@click.option("--expire-snapshots", "expire_days", type=WholeRange(min=1), default=None, metavar="DAYS",
              help="With --to: forget older versions of the table afterwards, and delete files that only "
                   "they need.")
@click.option("--master", default=None, help="With --engine spark: the Spark master. [default: local[*]]")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="With --engine spark: Spark's settings.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--progress/--no-progress", default=None, help="Show progress. Default: on a terminal.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for every finished part.")
@click.pass_context
def export(context: click.Context, /, **given: object) -> None:
    """
    Write the committed entries of SOURCE into files, or a table, in the directory OUT, each row exactly once.

    SOURCE is a member's directory (ours or Java's, live or stopped), the addresses of members, or an
    archive (a directory or a URL such as s3://bucket/log; -o archiveOptions=JSON has the store's options).
    To continue an interrupted export, or to export new entries, give the same command again: it
    continues where OUT ends.
    """
    command = made_of(_Command, given)
    target = context.find_root().obj
    target = getattr(target, "elsewhere", target)  # SOURCE names the addresses
    group, tls = getattr(target, "group", "default"), getattr(target, "tls", None)
    token_file = getattr(target, "token_file", "")
    try:
        from dledger.spark.basics.log import ReadError
        from dledger.spark.basics.option_texts import OptionError
        from dledger.spark.export.files import ExportError
    except ImportError as error:
        raise click.ClickException(_MISSING.format(error)) from None
    try:
        command.run(group, tls, token_file)
    except OptionError as error:
        raise click.UsageError(str(error)) from None
    except (ExportError, ReadError, ImportError) as error:
        raise click.ClickException(str(error)) from None


class _Progress(Protocol):
    """How far an export is: offsets, and sums."""

    @property
    def begin(self) -> int: ...
    @property
    def next(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def log_bytes(self) -> int: ...


class _Part(Protocol):
    """A part that has become visible."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...
    @property
    def rows(self) -> int: ...


class _Directory(Protocol):
    """The directory of an export."""

    @property
    def next_index(self) -> int | None: ...
    @property
    def rows(self) -> int: ...


class _Exporter(Protocol):
    """What the two engines have in common that counts here; their packages may be missing."""

    on_progress: Callable[..., None]
    on_part: Callable[..., None]
    should_stop: Callable[[], bool]

    @property
    def progress(self) -> _Progress: ...
    @property
    def directory(self) -> _Directory: ...

    def step(self, now_ms: int, *, is_last: bool) -> None: ...

    def __enter__(self) -> _Exporter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@attrs.frozen(kw_only=True)
class _Summary:
    """The result, as C{--json} prints it. @ivar next: None: nothing was begun."""

    rows: int
    log_bytes: int
    seconds: float
    begin: int
    next: int | None
    end: int
    total_rows: int


@attrs.frozen(kw_only=True)
class _Command:
    """The arguments of the command line."""

    source: str
    out: Path
    style: str
    to: str | None
    engine: str
    columns: tuple[str, ...]
    partition_by: tuple[str, ...]
    compression: str
    part_bytes: int
    first: int | None
    options: tuple[str, ...]
    follow: bool
    interval: float
    max_delay: float
    master: str | None
    conf: tuple[str, ...]
    as_json: bool
    progress: bool | None
    verbose: bool
    compacts: bool
    expire_days: int | None

    def run(self, group: str, tls: TlsFiles | None, token_file: str = "") -> None:
        """Run the export. C{tls}, C{token_file}: the keys and the token for members."""
        from dledger.spark.export.exporter import ExportSettings, ExportSource

        if self.engine == "spark" and self.follow:
            raise click.UsageError("--follow needs --engine arrow; a Spark stream can follow a log, too")
        if self.engine != "spark" and (self.master is not None or self.conf):
            raise click.UsageError("--master and --conf need --engine spark")
        self._check_table()
        settings = ExportSettings(
            to=self.to or "", format=self.style, columns=_names(self.columns),
            partition_by=_names(self.partition_by), compression=self.compression, part_bytes=self.part_bytes,
            max_delay_ms=round(self.max_delay * 1000),
        )
        options = {**source_options(self.source, group, tls, token_file), **_pairs("--option", self.options)}
        if self.first is not None:
            options["startingOffsets"] = str(self.first)
        source = ExportSource.of(
            options, settings.columns, settings.partition_by, engine=self.engine, follows=self.follow
        )
        begin_s, maintained = time.monotonic(), ""
        with _warnings_said(), self._exporter(source, settings) as exporter:
            try:
                self._drive(exporter)
            except OSError as error:
                if error.errno is None:
                    raise
                # (Arrow's own sentence names neither the place nor, at its begin, the reason.)
                why = f"{self.out} cannot be written: {os.strerror(error.errno)}"
                raise click.ClickException(why) from error
            if self.compacts or self.expire_days is not None:
                maintained = _maintain(exporter, self.compacts, self.expire_days)
            summary = _Summary(
                rows=exporter.progress.rows, log_bytes=exporter.progress.log_bytes,
                seconds=round(time.monotonic() - begin_s, 3), begin=exporter.progress.begin,
                next=exporter.directory.next_index, end=exporter.progress.end,
                total_rows=exporter.directory.rows,
            )
        show_result(attrs.asdict(summary), _summary_line(summary, self.out), as_json=self.as_json)
        if maintained:
            say(f"dledger: {maintained}")

    def _check_table(self) -> None:
        """@raise UsageError: options that do not go together."""
        if self.to and self.engine == "spark":
            raise click.UsageError("--to needs --engine arrow")
        if not self.compacts and self.expire_days is None:
            return
        if not self.to:
            raise click.UsageError("--compact and --expire-snapshots need --to: files are never changed")
        if self.follow:
            raise click.UsageError("--compact and --expire-snapshots come at the end, which --follow has not")

    def _exporter(
        self, source: object, settings: object
    ) -> _Exporter:
        if self.engine == "spark":
            from dledger.spark.export.spark_exporter import SparkExporter
            from dledger.spark.session import session

            spark = session("dledger export", master=self.master or "local[*]",
                            config=_pairs("--conf", self.conf))
            open_spark: Callable[..., _Exporter] = SparkExporter.open
            return open_spark(self.out, spark, source, settings)
        from dledger.spark.export.tables import open_export

        opened: Callable[..., _Exporter] = open_export
        return opened(self.out, source, settings)

    def _drive(self, exporter: _Exporter) -> None:
        console = Console(stderr=True)
        shows = console.is_terminal if self.progress is None else self.progress
        columns = (TextColumn("export"), BarColumn(), _Rate(), TimeRemainingColumn())
        stop = threading.Event()
        signals = (signal.SIGTERM, signal.SIGINT) if self.follow else (signal.SIGTERM,)
        with stopped_by(signals, stop), Progress(
            *columns, console=console, transient=True, disable=not shows
        ) as bar:
            task = bar.add_task("export", total=None, rows=0, log_bytes=0)

            def show(progress: _Progress) -> None:
                bar.update(
                    task, completed=progress.next - progress.begin, total=progress.end - progress.begin,
                    rows=progress.rows, log_bytes=progress.log_bytes,
                )

            def part(part: _Part) -> None:
                if self.verbose:
                    line = f"exported {part.first} to {part.last}: {part.rows} rows"
                    bar.console.print(line, highlight=False, soft_wrap=True)

            exporter.on_progress = show
            exporter.on_part = part
            exporter.should_stop = stop.is_set
            if self.follow:
                self._follow(exporter, stop)
                return
            exporter.step(round(time.monotonic() * 1000), is_last=True)
        if stop.is_set():
            say("dledger: stopped before the end; the same command continues there")
            raise click.exceptions.Exit(EXIT_INTERRUPTED)

    def _follow(self, exporter: _Exporter, stop: threading.Event) -> None:
        from dledger.spark.export.exporter import Exporter
        from dledger.spark.export.follow import Follower

        assert isinstance(exporter, Exporter), "Spark was refused before"
        follower = Follower(exporter, interval_ms=max(1, round(self.interval * 1000)))
        follower.on_trouble = lambda error, wait_ms: say(
            f"dledger: {error}; trying again in {wait_ms / 1000:g} s"
        )
        wait_ms = 0
        while not stop.wait(wait_ms / 1000):
            wait_ms = follower.turn(round(time.monotonic() * 1000))
        follower.end()


def _maintain(exporter: _Exporter, compacts: bool, expire_days: int | None) -> str:
    from dledger.spark.export.tables import TableExporter

    assert isinstance(exporter, TableExporter), "files alone were refused before"
    return exporter.table.maintain(compacts=compacts, expire_days=expire_days, now_s=time.time())


@contextlib.contextmanager
def _warnings_said() -> Iterator[None]:
    """Print the source's warnings about skipped entries as lines for people."""
    with warnings.catch_warnings():
        from dledger.spark.basics.log import ScanWarning

        warnings.simplefilter("always", ScanWarning)
        warnings.showwarning = lambda message, *_rest, **_more: say(f"dledger: {message}")
        yield


def _summary_line(summary: _Summary, out: Path) -> str:
    last = (summary.next or 0) - 1
    if not summary.rows:
        return f"nothing new: {out} holds {summary.total_rows:,} rows, up to offset {last}"
    rate = summary.log_bytes / max(summary.seconds, 1e-9) / 1e6
    return (
        f"exported {summary.rows:,} rows in {summary.seconds:.1f} s ({rate:,.1f} MB/s of log); "
        f"{out} holds {summary.total_rows:,}, up to offset {last}"
    )
