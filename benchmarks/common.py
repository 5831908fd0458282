# -*- test-case-name: tests.processes.test_load -*-
"""
The common part of the benchmark programs: the machine's own limits, quantiles, JSON files, tables.

Rule: a figure about durability means nothing without the fdatasync latency of its machine, so every program
prints that beside its results.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
from rich.console import Console
from rich.table import Table

#: Width of tables in a file or a pipe; a terminal has its own.
PIPE_COLUMNS = 140

console = Console()
if not console.is_terminal:
    console = Console(width=PIPE_COLUMNS)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that C{share} of all values do not exceed; NaN without values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


@attrs.frozen(kw_only=True)
class Machine:
    """
    The machine of the figures.

    @ivar model: of its processors.
    @ivar fdatasync_p50_ms, fdatasync_p99_ms: 4 KiB written and synced, in a preallocated file.
    @ivar load_average: of the minute before; above about 0.5, other programs were measured too.
    @ivar call_ns: time of this interpreter to make a small object and call a method of it. An interpreter
        that was built without optimisations takes 1.5 times as long, and so does one append at a time.
    """

    processors: int
    model: str
    memory_gib: float
    system: str
    python: str
    directory: str
    fdatasync_p50_ms: float
    fdatasync_p99_ms: float
    load_average: float
    call_ns: float

    def line(self) -> str:
        """All facts in one line."""
        return (
            f"{self.processors} processors ({self.model}), {self.memory_gib:.0f} GiB, {self.system}, "
            f"Python {self.python} ({self.call_ns:.0f} ns a call); "
            f"fdatasync of 4 KiB p50 {self.fdatasync_p50_ms:.2f} ms, p99 {self.fdatasync_p99_ms:.2f} ms; "
            f"load average before {self.load_average:.1f}"
        )


def probe_machine(directory: Path, *, syncs: int = 300) -> Machine:
    """Measure the disk under C{directory} and describe the machine."""
    path = directory / "fdatasync-probe"
    spans_ms = []
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, syncs * 4096)
        os.fsync(descriptor)
        for number in range(syncs):
            os.pwrite(descriptor, b"x" * 4096, number * 4096)
            begin_s = time.perf_counter()
            os.fdatasync(descriptor)
            spans_ms.append((time.perf_counter() - begin_s) * 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        processors=os.cpu_count() or 1, model=_processor_model(), memory_gib=memory,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(), directory=str(directory), fdatasync_p50_ms=quantile(spans_ms, 0.50),
        fdatasync_p99_ms=quantile(spans_ms, 0.99), load_average=os.getloadavg()[0], call_ns=probe_calls(),
    )


def _processor_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class _Called:
    __slots__ = ("_a", "_b")

    def __init__(self, a: int, b: int) -> None:
        self._a = a
        self._b = b

    def sum(self) -> int:
        return self._a + self._b


def probe_calls(count: int = 50_000) -> float:
    """Nanoseconds for making a small object and calling its method: the best of five tries."""

    def once() -> float:
        begin_s = time.perf_counter()
        for number in range(count):
            _Called(number, 1).sum()
        return time.perf_counter() - begin_s

    return min(once() for _ in range(5)) / count * 1e9


@contextlib.contextmanager
def work_directory(parent: str | None) -> Iterator[Path]:
    """A temporary directory for ledgers; C{parent} chooses the disk."""
    with tempfile.TemporaryDirectory(prefix="dledger-bench-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def write_json(
    path: str | None, results: Sequence[Mapping[str, object]], machine: Machine, **more: object
) -> None:
    """Write C{{"results": [...], "machine": {...}}} to C{path}, unless it is None."""
    if path is not None:
        facts = attrs.asdict(machine)
        del facts["directory"]  # says where a disk is mounted, and nothing about the figures
        document = {"results": list(results), "machine": facts, **more}
        Path(path).write_text(json.dumps(document, indent=1) + "\n")


def median(values: Sequence[float]) -> float:
    """The median; NaN without values."""
    return statistics.median(values) if values else float("nan")


def number(value: float) -> str:
    """A figure for a table: about three digits, thousands separated by commas; a dash for NaN."""
    if value != value:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> None:
    """Print a table; its first C{left} columns are words, the others figures."""
    drawn = Table(title=title, title_justify="left")
    for position, column in enumerate(columns):
        drawn.add_column(column, justify="left" if position < left else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(*row)
    console.print(drawn)
