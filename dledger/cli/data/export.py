# -*- test-case-name: tests.spark.test_export_cli -*-
"""
C{dledger export}: write a log into Parquet files, lines of JSON or a table, once or continuously.

The options are those of L{dledger.values.exports}. Arrow and PySpark are imported when the command
runs: without them every other command still works.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator

import attrs
import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort

from dledger.base.serving.admin_ports import is_beyond_loopback
from dledger.cli.console.command import EXIT_INTERRUPTED, say, show_result
from dledger.cli.console.signals import stopped_by
from dledger.values.exports import (
    EXPORT_OPTIONS,
    PART_REPORTED,
    ExportOption,
    ExportProgress,
    PlannedExport,
    RunningExport,
    pages_refused,
)
from dledger.values.option_values import listed

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


class _Text(click.types.StringParamType):
    """The text of an option, as the table reads it."""

    def __init__(self, option: ExportOption) -> None:
        self.name = option.kind or "text"
        self._read = option.read

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """@raise click.BadParameter: it is not allowed."""
        text = str(super().convert(value, param, ctx))
        try:
            self._read(text)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return text


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of the table."""
    for option in reversed(EXPORT_OPTIONS):
        names = (*(("-o",) if option.name == "option" else ()), f"--{option.name}", option.key)
        if option.is_flag:
            command = click.option(*names, is_flag=True, help=option.help)(command)
            continue
        command = click.option(
            *names, type=_Text(option), multiple=option.is_repeated, help=option.help,
            default=None if option.is_repeated else option.default,
            show_default=bool(option.default) and not option.is_repeated,
        )(command)
    return command


@click.command()
@click.argument("source", metavar="SOURCE")
@click.argument("out")
@_with_options
@click.option("-f", "--follow", is_flag=True, help="Continue with entries that are committed later.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--progress/--no-progress", default=None, help="Show progress. Default: on a terminal.")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for every finished part.")
@click.pass_context
def export(
    context: click.Context, /, source: str, out: str, follow: bool, as_json: bool, progress: bool | None,
    verbose: bool, **given: str | tuple[str, ...] | bool | None,
) -> None:
    """
    Write the committed entries of SOURCE into files, or a table, in OUT, each row exactly once.

    OUT is a directory, or a URL such as s3://bucket/out (--store-option has the store's options). SOURCE is a
    member's directory (ours or Java's, live or stopped), the addresses of members, or an archive (a directory
    or a URL; -o archiveOptions=JSON has the store's options).
    To continue an interrupted export, or to export new entries, give the same command again: it
    continues where OUT ends.
    """
    target = context.find_root().obj
    target = getattr(target, "elsewhere", target)  # SOURCE names the addresses
    shown = _Shown(follows=follow, progress=progress, verbose=verbose)
    try:
        from dledger.spark.export.engine import EXPECTED, ExportPlan
        from dledger.spark.formats.option_texts import OptionError
    except ImportError as error:
        raise click.ClickException(_MISSING.format(error)) from None
    try:
        plan = ExportPlan.of(
            source, out, {key: _texts(value) for key, value in given.items()}, follows=follow,
            group=getattr(target, "group", "default"), tls=getattr(target, "tls", None),
            token_file=getattr(target, "token_file", ""),
        )
        if plan.admin and is_beyond_loopback(plan.admin) and not plan.insecure:
            raise click.UsageError(pages_refused(plan.admin))
        begin_s = time.monotonic()
        with _warnings_said(), plan.open() as run, _pages(plan, run):
            shown.drive(run)
            report = run.report(time.monotonic() - begin_s)
    except OptionError as error:
        raise click.UsageError(str(error)) from None
    except (*EXPECTED, ImportError) as error:
        raise click.ClickException(str(error)) from None
    show_result(report.document, report.sentence, as_json=as_json)
    if report.maintained:
        say(f"dledger: {report.maintained}")


def _texts(value: str | tuple[str, ...] | bool | None) -> tuple[str, ...]:
    """What was given of an option."""
    if isinstance(value, tuple):
        return value
    return ("yes",) if value is True else (value,) if value else ()


@attrs.frozen(kw_only=True)
class _Shown:
    """What a terminal shows of a run, and how it ends one."""

    follows: bool
    progress: bool | None
    verbose: bool

    def drive(self, run: RunningExport) -> None:
        """Turn after turn, to the end, or until a signal."""
        console = Console(stderr=True)
        shows = console.is_terminal if self.progress is None else self.progress
        columns = (TextColumn("export"), BarColumn(), _Rate(), TimeRemainingColumn())
        stop = threading.Event()
        signals = (signal.SIGTERM, signal.SIGINT) if self.follows else (signal.SIGTERM,)
        with stopped_by(signals, stop), Progress(
            *columns, console=console, transient=True, disable=not shows
        ) as bar:
            task = bar.add_task("export", total=None, rows=0, log_bytes=0)

            def show(progress: ExportProgress) -> None:
                bar.update(
                    task, completed=progress.next - progress.begin, total=progress.end - progress.begin,
                    rows=progress.rows, log_bytes=progress.log_bytes,
                )

            def part(first: int, last: int, rows: int) -> None:
                if self.verbose:
                    line = PART_REPORTED.format(first=first, last=last, rows=rows)
                    bar.console.print(line, highlight=False, soft_wrap=True)

            run.on_progress = show
            run.on_part = part
            run.should_stop = stop.is_set
            run.on_maintained = lambda said: say(f"dledger: {said}")
            run.on_trouble = lambda error, wait_ms: say(
                f"dledger: {error}; trying again in {wait_ms / 1000:g} s"
            )
            wait_ms: int | None = 0
            while wait_ms is not None and not stop.wait(wait_ms / 1000):
                wait_ms = run.turn(round(time.monotonic() * 1000))
            run.end()
        if stop.is_set() and not self.follows:
            say("dledger: stopped before the end; the same command continues there")
            raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _say_place(port: IListeningPort) -> None:
    at = port.getHost()
    place = f"http://{at.host}:{at.port}/" if isinstance(at, IPv4Address | IPv6Address) else at
    say(f"dledger: pages at {place}")


@contextlib.contextmanager
def _pages(plan: PlannedExport, run: RunningExport) -> Iterator[None]:
    """The pages of a run, if they are wanted."""
    if not plan.admin:
        yield
        return
    try:
        from dledger.admin.exports import serving
    except ImportError as error:
        raise click.ClickException(f"--admin: {error}") from None
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(serving(
                lambda: run.status(round(time.monotonic() * 1000)), plan.admin,
                hosts=listed(plan.admin_hosts),
                listening=_say_place,
            ))
        except (CannotListenError, ValueError) as error:
            raise click.ClickException(f"--admin {plan.admin!r}: {error}") from None
        yield


@contextlib.contextmanager
def _warnings_said() -> Iterator[None]:
    """Print the source's warnings about skipped entries as lines for people."""
    with warnings.catch_warnings():
        from dledger.spark.formats.log import ScanWarning

        warnings.simplefilter("always", ScanWarning)
        warnings.showwarning = lambda message, *_rest, **_more: say(f"dledger: {message}")
        yield
