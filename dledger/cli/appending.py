# -*- test-case-name: tests.commands.test_main -*-
"""C{dledger append}: lines of files, of standard input, or bodies of the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO

import attrs
import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from dledger.cli.console.command import EXIT_INTERRUPTED, EXIT_UNKNOWN, show_result
from dledger.cli.console.failures import complain
from dledger.cli.console.local_paths import LocalFile
from dledger.cli.console.numbers import WholeRange
from dledger.cli.console.target import Target
from dledger.client.errors import AppendError
from dledger.client.values import AppendInterrupted, AppendSummary
from protocols.wire.ledger.envelopes import KEY_HEADER, headers_problem


class _Lines:
    """Lines of files as bodies, without their line ends; counts the bytes read."""

    def __init__(self, files: tuple[IO[bytes], ...]) -> None:
        self._files = files
        self.bytes_read = 0
        self.is_over = False

    def __iter__(self) -> Iterator[bytes]:
        for file in self._files:
            for line in file:
                self.bytes_read += len(line)
                yield line.removesuffix(b"\n").removesuffix(b"\r")
        self.is_over = True


def _total_bytes(files: tuple[IO[bytes], ...]) -> int | None:
    total = 0
    for file in files:
        if not file.seekable():
            return None
        here = file.tell()
        total += file.seek(0, 2) - here
        file.seek(here)
    return total


def _read_headers(
    context: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, bytes] | None:
    """The headers of C{--header}; None without one."""
    headers: dict[str, bytes] = {}
    for value in values:
        name, is_there, text = value.partition("=")
        if not is_there:
            raise click.BadParameter(f"{value!r} is not a header: write NAME=VALUE")
        if name in headers:
            raise click.BadParameter(f"header {name!r} is given twice")
        headers[name] = text.encode("utf-8", "surrogateescape")
    if problem := headers_problem(headers):
        raise click.BadParameter(problem)
    return headers or None


def _with_key(headers: dict[str, bytes], key: str) -> dict[str, bytes]:
    if KEY_HEADER in headers:
        raise click.UsageError("give either --key or the header key, not both")
    return {KEY_HEADER: key.encode("utf-8", "surrogateescape"), **headers}


@click.command()
@click.argument("bodies", nargs=-1)
@click.option("--file", "files", type=LocalFile("rb"), multiple=True,
              help="Append every line of this file; - is standard input.")
@click.option("--window", type=WholeRange(min=1), default=1000, show_default=True,
              help="Maximum number of appends under way.")
@click.option("-H", "--header", "headers", multiple=True, callback=_read_headers, metavar="NAME=VALUE",
              help="A header of each entry; may be repeated. See docs/envelopes.md.")
@click.option("--key", help="What each entry is about: the header key.")
@click.option("--envelope", is_flag=True, help="Each entry has its time, by the clock of this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--progress/--no-progress", default=None, help="Show progress. Default: on a terminal.")
@click.pass_context
def append(
    context: click.Context,
    bodies: tuple[str, ...],
    files: tuple[IO[bytes], ...],
    window: int,
    headers: dict[str, bytes] | None,
    key: str | None,
    envelope: bool,
    as_json: bool,
    progress: bool | None,
) -> None:
    """
    Append BODIES, or every line of files, or of standard input, in order.

    Ends at the first body without acknowledgement: exit status 1 when it is certainly not in the log,
    2 when it may be. It is not retried in that case.
    """
    target: Target = context.obj
    if bodies and files:
        raise click.UsageError("give either BODIES or --file, not both")
    headers = headers if key is None else _with_key(headers or {}, key)
    if not bodies and not files:
        files = (sys.stdin.buffer,)
    lines = _Lines(files)
    source = [body.encode("utf-8", "surrogateescape") for body in bodies] if bodies else lines
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(), BarColumn(), TextColumn("{task.fields[entries]:,} entries"), TimeElapsedColumn(),
    )
    shows = console.is_terminal if progress is None else progress
    interrupted: AppendInterrupted | None = None
    bar = Progress(*columns, console=console, transient=True, disable=not shows)
    with target.open(envelope=envelope) as log, bar:
        task = bar.add_task("append", total=len(bodies) or _total_bytes(files), entries=0)

        def show(count: int) -> None:
            bar.update(task, completed=count if bodies else lines.bytes_read, entries=count)

        try:
            summary = log.append_many(source, window=window, progress=show, headers=headers)
        except AppendInterrupted as error:
            bar.stop()
            interrupted = error
        except AppendError:
            bar.stop()
            if not bodies and not lines.is_over:
                complain("the rest of the input was not read, and is in no count")
            raise
    if interrupted is not None:  # now that the log is closed, the counts are final
        complain(f"interrupted; {interrupted.acknowledged} entries were acknowledged")
        if interrupted.unknown:
            complain(f"unknown outcome: up to {interrupted.unknown} more may be in the log")
        context.exit(EXIT_UNKNOWN if interrupted.unknown else EXIT_INTERRUPTED)
    document = {**attrs.asdict(summary, filter=attrs.filters.exclude("runs")), "rate": summary.rate}
    show_result(document, _summary_line(summary), as_json=as_json)


def _summary_line(summary: AppendSummary) -> str:
    if not summary.count:
        return "nothing to append"
    entries = "1 entry" if summary.count == 1 else f"{summary.count:,} entries"
    where = f"index {summary.first_index}"
    if summary.count > 1:
        where = f"indexes {summary.first_index} to {summary.last_index}"
    return f"appended {entries}, {where}, in {summary.seconds:.3f} s ({summary.rate:,.0f}/s)"
