# -*- test-case-name: tests.processes.test_demo -*-
"""
Three members on this machine; one of them is killed in the middle of the work, and no line is lost.

    make demo                                  every line of every text file of this repository
    python -m demo.run --input /var/log/syslog  any other file

C{dledger local} runs the members, in a temporary directory, and starts again what is killed. The writer
numbers its lines. When the leader is killed, some of its lines are under way, and their outcome is unknown;
so the writer waits for a new leader, has a mark committed there (all entries before it are final), reads the
log, and continues after the last line in it. At the end Spark reads all entries from the members
(L{demo.spark_end}), and then the files of all three members are read directly.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import attrs
import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import dledger
from demo.spark_end import expectation, verdict
from dledger import AppendError, Log
from tests.processes.children import Child, ChildError, end_all, wait_until
from tests.processes.ledgers import LedgerFault, assert_identical, read_records
from tests.processes.members import Group, Member

ROOT = Path(__file__).resolve().parents[1]
_SKIPPED = {"build", "dist", "node_modules", "__pycache__", "dledger-data", "dledger-local", "demo-data"}
_LINES_MAX = 2_000_000
#: Files of the ledger, preallocated: small ones, so that the demo needs little room.
FILE_OPTIONS = {"mapped_file_size_for_entry_data": 64 << 20, "mapped_file_size_for_entry_index": 8 << 20}
#: Lines under way.
WINDOW = 1000
#: Longest time for Spark, JVM included.
SPARK_SECONDS = 180
#: The record of a mark, which is not a line.
MARK = b"mark"
_LOCAL = "from dledger.cli.entry import main; main()"
#: After Ctrl-C the program ends within this time, cleanly or not.
_INTERRUPTED_S = 5.0
_INTERRUPTED = "interrupted; the members are ended and the files removed"
console = Console()


class Lost(Exception):
    """The log is not as expected; each argument is a sentence."""


def text_lines(paths: list[Path]) -> Iterator[bytes]:
    """Every line of those files that are text (UTF-8), without its line end."""
    for path in paths:
        try:
            data = path.read_bytes()
            data.decode()
        except (OSError, UnicodeDecodeError):
            continue
        if b"\0" not in data:
            yield from data.splitlines()


def repository_files() -> list[Path]:
    """The files of this repository, except hidden and built ones."""
    found = []
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        hidden = any(part.startswith((".", "_trial_temp")) or part in _SKIPPED for part in parts)
        if not hidden and path.is_file():
            found.append(path)
    return found


def record_of(number: int, line: bytes) -> bytes:
    """The record for one line."""
    return b"%d\t%s" % (number, line)


def number_of(body: bytes) -> int | None:
    """Number of the line in a record; None without a line (a mark, an empty term-start entry)."""
    head, tab, _line = body.partition(b"\t")
    return int(head) if tab else None


@attrs.define
class Story:
    """The facts of the run, for the table at the end."""

    lines: int
    bytes: int
    append_seconds: float = 0.0
    killed: str = ""
    killed_at_line: int = 0
    failover_ms: float = 0.0
    unknown: int = 0
    unknown_in_log: int = 0
    entries: int = 0


class LocalGroup(Group):
    """Three members that C{dledger local} runs below a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        settings = [word for name, value in FILE_OPTIONS.items() for word in ("--set", f"{name}={value}")]
        self._local = Child(
            "local", [sys.executable, "-c", _LOCAL, "local", "--dir", str(directory), "--json", *settings],
            log_path=directory / "local.log", environment={"PYTHONPATH": str(ROOT)},
        )
        self._pids: dict[str, int] = {}

    def start(self) -> None:
        """Run it until the group serves. @raise ChildError: it does not."""
        self._local.start()

        def serves() -> bool:
            if not self._local.is_running:
                raise ChildError(self._local.log_tail(20))
            return '"peers"' in self._local.log_path.read_text()

        wait_until(serves, seconds=120, what="a group that serves")
        (line,) = [one for one in self._local.log_path.read_text().splitlines() if one.startswith("{")]
        found = json.loads(line)["members"]
        self.peers = {one["id"]: one["address"] for one in found}
        self._pids = {one["id"]: one["pid"] for one in found}
        # These are not started: they know addresses and files.
        place = self._local.log_path.parent
        self.members = {name: Member(name, self.peers, place / name) for name in self.peers}

    def kill_member(self, name: str) -> None:
        """SIGKILL, once."""
        os.kill(self._pids.pop(name), signal.SIGKILL)

    def end(self) -> None:
        """An orderly stop of all. @raise ChildError: it fails."""
        if self._local.stop(seconds=60):
            raise ChildError(self._local.log_tail(20))


class Writer:
    """
    Appends the lines in order, each exactly once, even if the leader dies.

    Invariant: lines before C{_next} are in the log, once and in order.
    """

    def __init__(self, group: LocalGroup, bodies: list[bytes], story: Story, progress: Progress) -> None:
        self._group = group
        self._bodies = bodies
        self._story = story
        self._progress = progress
        self._task = progress.add_task("appending", total=len(bodies))
        self._next = 0
        self._killed_s = 0.0
        #: Whether the outcome of some lines is to be found out.
        self._is_open = False

    def run(self) -> None:
        """Append all lines; the leader is killed half-way."""
        begin_s = time.monotonic()
        while self._next < len(self._bodies):
            with dledger.connect(self._group.peers_text, timeout=20.0) as log:
                if self._is_open:
                    self._find_out(log)
                self._append_rest(log)
        self._story.append_seconds = time.monotonic() - begin_s

    def _append_rest(self, log: Log) -> None:
        """Append until the leader is killed, or to the end."""
        first = self._next
        try:
            summary = log.append_many(
                self._feed(), window=WINDOW,
                progress=lambda count: self._progress.update(self._task, completed=first + count),
            )
        except AppendError as error:
            acknowledged = error.facts.get("acknowledged")
            assert isinstance(acknowledged, int)
            self._next = first + acknowledged
            self._story.unknown += error.unknown
            if not self._is_open:
                raise
        else:
            self._next = first + summary.count

    def _feed(self) -> Iterator[bytes]:
        """The lines still to append; ends early when the leader was killed."""
        half = len(self._bodies) // 2
        leader_id = ""
        for number in range(self._next, len(self._bodies)):
            if not self._story.killed:
                if not leader_id and number >= half - 3 * WINDOW:
                    leader_id = self._group.leader()
                if number == half:
                    self._kill(leader_id, number)
                    return
            yield self._bodies[number]

    def _kill(self, leader_id: str, number: int) -> None:
        self._killed_s = time.monotonic()
        self._group.kill_member(leader_id)
        self._is_open = True
        self._story.killed, self._story.killed_at_line = leader_id, number
        self._progress.console.print(f"line {number:,}: leader [bold]{leader_id}[/] killed with SIGKILL")

    def _find_out(self, log: Log) -> None:
        """Find out which of the lines under way are in the log; entries before the mark are final."""
        mark = log.append(MARK)
        self._story.failover_ms = (time.monotonic() - self._killed_s) * 1000
        self._progress.console.print(f"after {self._story.failover_ms:,.0f} ms the others acknowledge again")
        known = self._next
        for entry in log.tail(0):
            number = number_of(entry.body)
            if number is not None and number >= self._next:
                self._next = number + 1
            if entry.index >= mark.index:
                break
        self._story.unknown_in_log = self._next - known
        self._is_open = False
        self._progress.console.print(
            f"{self._story.unknown:,} lines were under way: {self._story.unknown_in_log:,} of them are in "
            f"the log; dledger local starts {self._story.killed} again"
        )


def judge(group: Group, bodies: list[bytes], end_index: int) -> list[list[str]]:
    """
    Read every member's files; each line must be there once and in order, and all files must be equal.

    @return: a row for the table per member.
    @raise Lost: a line is missing, doubled or out of order, or files differ.
    """
    wrong: list[str] = []
    rows = []
    for peer_id, member in group.members.items():
        digest = hashlib.sha256()
        expected = count = 0
        terms: set[int] = set()
        for record in read_records(member.ledger_path):
            digest.update(record.raw)
            terms.add(record.term)
            count += 1
            number = number_of(record.body)
            if number is None:
                continue
            if number != expected or record.body != bodies[number]:
                wrong.append(f"{peer_id}: line {number} at index {record.index}, {expected} is expected")
                if len(wrong) > 10:
                    raise Lost(*wrong)
            expected = number + 1
        if expected != len(bodies):
            wrong.append(f"{peer_id}: lines {expected} to {len(bodies) - 1} are lost")
        terms_text = ", ".join(map(str, sorted(terms)))
        rows.append([peer_id, f"{expected:,}", f"{count:,}", terms_text, digest.hexdigest()[:16]])
    try:
        assert_identical([member.ledger_path for member in group.members.values()], end_index)
    except LedgerFault as fault:
        wrong.append(str(fault))
    if wrong:
        raise Lost(*wrong)
    return rows


def ask_spark(directory: Path, group: Group, bodies: list[bytes], entries: int) -> dict[str, Any]:
    """
    Spark's counts of the log and of the Parquet files that it writes from it.

    @raise Lost: they differ from the acknowledged lines.
    @raise ChildError: Spark failed, or did not end in time.
    """
    result = directory / "spark.json"
    child = Child(
        "spark",
        [sys.executable, "-m", "demo.spark_end", group.peers_text, str(directory / "parquet"), str(result)],
        log_path=directory / "spark.log", environment={"PYTHONPATH": str(ROOT)},
    )
    child.start()
    if child.wait(seconds=SPARK_SECONDS) or not result.exists():
        raise ChildError(f"Spark has failed\n{child.log_tail()}")
    said: dict[str, Any] = json.loads(result.read_text())
    wrong = verdict(expectation(bodies, entries), said)
    if wrong:
        raise Lost(*wrong)
    return said


def show_spark(said: dict[str, Any]) -> None:
    """Print the table of Spark's counts."""
    terms = Table(title="What Spark reads back from Parquet", title_justify="left")
    for column in ("term", "entries", "bytes", "first index", "last index"):
        terms.add_column(column, justify="right")
    for row in said["terms"]:
        terms.add_row(*(f"{value:,}" for value in row))
    console.print(terms)
    console.print(
        f"Spark: {said['members']['entries']:,} entries from the members, {said['parquet']['entries']:,} "
        f"back from {said['bytes'] / 2**20:.1f} MiB of Parquet, every acknowledged line among them, once and "
        f"in order; {said['start_seconds']:.1f} s to start, {said['read_seconds']:.1f} s to read and check, "
        f"{said['parquet_seconds']:.1f} s for Parquet", soft_wrap=True,
    )


def show(story: Story, rows: list[list[str]]) -> None:
    """Print the tables at the end."""
    facts = Table(show_header=False, title="What happened", title_justify="left")
    facts.add_column()
    facts.add_column(justify="right")
    seconds = max(story.append_seconds - story.failover_ms / 1000, 1e-9)
    for name, value in (
        ("lines appended", f"{story.lines:,} ({story.bytes / 2**20:.1f} MiB)"),
        ("per second, the failover not counted", f"{story.lines / seconds:,.0f}"),
        ("leader killed", f"{story.killed} at line {story.killed_at_line:,}"),
        ("failover: SIGKILL to the next acknowledgement", f"{story.failover_ms:,.0f} ms"),
        ("lines under way at that moment", f"{story.unknown:,}"),
        ("... found in the log", f"{story.unknown_in_log:,}"),
        ("... appended again", f"{max(0, story.unknown - story.unknown_in_log):,}"),
    ):
        facts.add_row(name, value)
    members = Table(title="What is in the files", title_justify="left")
    for column in ("member", "lines, once and in order", "entries", "terms", "sha256 of the records"):
        members.add_column(column)
    for row in rows:
        members.add_row(*row)
    console.print(facts)
    console.print(members)
    console.print(
        f"[bold green]Nothing lost, nothing doubled:[/] {story.lines:,} lines on three members, "
        "byte for byte the same.", soft_wrap=True,
    )


def play(directory: Path, bodies: list[bytes], *, with_spark: bool) -> None:
    """
    The whole demo.

    @param with_spark: have Spark read the group before it is stopped.
    @raise Lost: a line is missing, doubled or out of place, or the members differ.
    """
    story = Story(lines=len(bodies), bytes=sum(map(len, bodies)))
    group = LocalGroup(directory / "group")
    with console.status("starting three members"):
        group.start()
        leader_id = group.leader()
    addresses = ", ".join(f"{peer_id} {address}" for peer_id, address in group.peers.items())
    console.print(f"three members: {addresses}; {leader_id} leads", soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console) as progress:
        Writer(group, bodies, story, progress).run()
    with console.status("waiting until all members hold the same"):
        story.entries = group.wait_settled() + 1
    said = None
    if with_spark:
        with console.status("Spark reads the log from the members, writes Parquet and reads it back"):
            said = ask_spark(directory, group, bodies, story.entries)
    with console.status("stopping the members"):
        group.end()
    with console.status("reading the files"):
        rows = judge(group, bodies, story.entries - 1)
    if said is not None:
        show_spark(said)
    show(story, rows)


def _interrupt(directory: Path, _number: int, _frame: object) -> None:
    """Handle Ctrl-C: the demo ends within L{_INTERRUPTED_S}, in any code that the signal interrupts."""
    last = threading.Timer(_INTERRUPTED_S, _leave, (directory,))
    last.daemon = True
    last.start()
    raise KeyboardInterrupt


def _leave(directory: Path) -> None:
    try:
        end_all()
        shutil.rmtree(directory, ignore_errors=True)
        os.write(1, f"{_INTERRUPTED}\n".encode())
    finally:
        os._exit(130)  # also when the output can no longer be written


@click.command()
@click.option(
    "--input", "inputs", type=click.Path(exists=True, dir_okay=False, path_type=Path), multiple=True,
    help="a text file to append instead of the repository; may be given more than once",
)
@click.option("--spark/--no-spark", "with_spark", default=True, help="read the log with Spark at the end")
def main(inputs: tuple[Path, ...], with_spark: bool) -> None:
    """Append real lines to three members, kill the leader half-way, prove that nothing is lost."""
    if with_spark and importlib.util.find_spec("pyspark") is None:
        raise click.ClickException(
            "PySpark is not installed: make demo installs it, and so does pip install '.[spark]'; "
            "or say --no-spark"
        )
    lines = list(text_lines(list(inputs) or repository_files()))[:_LINES_MAX]
    if len(lines) < 2:
        raise click.ClickException("at least two lines of text are needed")
    bodies = [record_of(number, line) for number, line in enumerate(lines)]
    try:
        with tempfile.TemporaryDirectory(prefix="dledger-demo-", ignore_cleanup_errors=True) as name:
            with contextlib.ExitStack() as stack:
                stack.callback(end_all)
                signal.signal(signal.SIGINT, partial(_interrupt, Path(name)))
                play(Path(name), bodies, with_spark=with_spark)
    except Lost as lost:
        console.print("[bold red]LOST[/]")
        for sentence in lost.args:
            console.print(sentence, markup=False, soft_wrap=True)
        sys.exit(1)
    except (AppendError, ChildError) as error:
        console.print("[bold red]The demo could not be finished:[/]")
        console.print(str(error), markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print(_INTERRUPTED)
        sys.exit(130)


if __name__ == "__main__":
    main(standalone_mode=True)
