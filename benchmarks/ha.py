# -*- test-case-name: tests.interop.test_ha_benchmark -*-
"""
Replication of RocketMQ's kind, its own brokers (4.9.8) beside ours: the cost of a synchronous slave, and the
speed at which an empty one catches up.

    python -m benchmarks.ha --quick
    python -m benchmarks.ha --rounds 2 --json ha.json

Every pair is a master and a slave of the same kind. The rows C{java} and C{dledger} have the same producer,
Java's; C{dledger-binary} is our producer and its frames of many messages. Pairs take turns, and the pairs
that wait are paused; a figure is the median over the rounds, a ratio the median of the rounds' ratios.

The broker of 4.9.8 is not on Maven Central: it is that of 4.9.7, on store, client and remoting of 4.9.8.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs
import click
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from benchmarks.common import (
    Machine,
    console,
    median,
    number,
    probe_machine,
    table,
    work_directory,
    write_json,
)
from benchmarks.ha_brokers import (
    ASYNC_MASTER,
    JAVA,
    KINDS,
    OURS,
    SYNC_MASTER,
    JavaLoad,
    Load,
    OurLoad,
    Pair,
    start_pairs,
)
from benchmarks.ha_catch_up import FILE_BYTES, Copied, CopyError, Source, bare_copy, write_store
from benchmarks.load import LoadError, Sample, paired_ratio
from tests.interop.java import JavaMissing
from tests.processes.children import ChildError, end_all

ROLES = (ASYNC_MASTER, SYNC_MASTER)
PARTS = ("puts", "catch-up")
BARE = "bare copy"

#: Systems by the kind of the brokers: name in the results, and whether the producer is ours.
SYSTEMS = {JAVA: (("java", False),), OURS: (("dledger", False), ("dledger-binary", True))}

#: Aim: the share of the throughput that is left with a synchronous slave, at these windows.
SYNC_AIM, SYNC_AIM_WINDOWS = 0.9, (64, 1000)
#: Aims for a slave of ours catching up with a master of ours: its speed relative to RocketMQ's slave with its
#: own master, and to a bare copy.
CATCH_UP_AIM, BARE_AIM = 2.0, 0.5


@attrs.frozen(kw_only=True)
class Cell:
    """One row of the results."""

    system: str
    role: str
    body_bytes: int
    window: int

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.system} {self.role} {self.body_bytes} B x {self.window}"


@attrs.define
class Measured:
    """
    The results of the rounds for one cell.

    @ivar samples: one for each round; None for a round that failed.
    """

    samples: list[Sample | None] = attrs.Factory(list)
    rss_bytes: int = 0
    cpu_share: float = 0.0
    failures: list[str] = attrs.Factory(list)

    def median_of(self, name: str) -> float:
        """The median over the rounds that did not fail."""
        return median([getattr(sample, name) for sample in self.samples if sample is not None])


Results = dict[Cell, Measured]
Copies = dict[tuple[str, str], list[Copied]]


@attrs.frozen(kw_only=True)
class Plan:
    """
    The extent of the measurements.

    @ivar warm_up_s, seconds: of each run of a cell.
    @ivar train_s: seconds of load before the first run; a JIT needs some.
    @ivar pairings: kinds of master and slave.
    """

    windows: tuple[int, ...]
    bodies: tuple[int, ...]
    rounds: int
    warm_up_s: float
    seconds: float
    train_s: float
    copy_bytes: int
    copy_body_bytes: int
    pairings: tuple[tuple[str, str], ...]


class Reporter:
    """Progress for people; silent without a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting")

    def notify(self, text: str) -> None:
        """Show the present step."""
        self._progress.update(self._task, description=text)


# -- puts ------------------------------------------------------------------------------------------------


def run_cell(pair: Pair, cell: Cell, load: Load, settling: Load, plan: Plan, measured: Measured) -> None:
    """
    Run one cell, and once again if it failed; a failure is kept, not raised.

    @param settling: the load with which a pair restores a lost connection.
    """
    for _attempt in range(2):
        cpu_s, begin_s = pair.cpu_seconds(), time.monotonic()
        try:
            sample = load.run(
                pair.master.address, body_bytes=cell.body_bytes, window=cell.window,
                warm_up_s=plan.warm_up_s, seconds=plan.seconds,
            )
        except LoadError as error:
            measured.failures.append(str(error))
        else:
            if not sample.refused:
                measured.samples.append(sample)
                measured.cpu_share = (pair.cpu_seconds() - cpu_s) / (time.monotonic() - begin_s)
                measured.rss_bytes = max(measured.rss_bytes, pair.master.rss_bytes())
                return
            measured.failures.append(f"{sample.refused} not acknowledged, the first: {sample.reason[:200]}")
        try:
            pair.settle(settling)
        except ChildError as error:
            measured.failures.append(str(error))
            break
    measured.samples.append(None)


def cells_of(kinds: Sequence[str], plan: Plan, turn: int) -> Iterator[tuple[Cell, str, bool]]:
    """
    Every cell, its kind of brokers, and whether the producer is ours. Cells to compare follow one another;
    the order of the roles changes from round to round.
    """
    for body_bytes in plan.bodies:
        for window in plan.windows:
            for kind in kinds:
                for system, is_ours in SYSTEMS[kind]:
                    for role in ROLES if turn % 2 == 0 else reversed(ROLES):
                        cell = Cell(system=system, role=role, body_bytes=body_bytes, window=window)
                        yield cell, kind, is_ours


def _measure_puts(
    directory: Path, kinds: Sequence[str], java_load: JavaLoad, plan: Plan, reporter: Reporter
) -> Results:
    """Measure all cells; the pairs take turns."""
    results: Results = {}
    loads: dict[bool, Load] = {False: java_load, True: OurLoad()}
    pairs = {(kind, role): Pair(directory, kind, role) for kind in kinds for role in ROLES}
    try:
        reporter.notify("starting brokers")
        start_pairs(pairs.values())
        for pair in pairs.values():
            pair.settle(java_load)
            reporter.notify(f"training {pair.kind} {pair.role}")
            if pair.kind == JAVA:
                java_load.run(pair.master.address, body_bytes=100, window=plan.windows[-1], warm_up_s=0.0,
                              seconds=plan.train_s)
            pair.pause()
        for turn in range(plan.rounds):
            for pair in pairs.values() if turn else ():
                pair.resume()
                pair.settle(java_load)
                pair.pause()
            for cell, kind, is_ours in cells_of(kinds, plan, turn):
                reporter.notify(f"round {turn + 1}: {cell.title}")
                pair = pairs[kind, cell.role]
                pair.resume()
                run_cell(pair, cell, loads[is_ours], java_load, plan, results.setdefault(cell, Measured()))
                pair.pause()
    finally:
        for pair in pairs.values():
            pair.kill()
    return results


def ratio_of(results: Results, above: Cell, below: Cell) -> float:
    """Throughput of one cell by another's, round by round; NaN if no round has both."""
    if above not in results or below not in results:
        return float("nan")
    return paired_ratio(results[above].samples, results[below].samples)


def sync_ratio(results: Results, cell: Cell) -> float:
    """The share of the throughput left when the master waits for its slave; NaN for an asynchronous one."""
    if cell.role != SYNC_MASTER:
        return float("nan")
    return ratio_of(results, cell, attrs.evolve(cell, role=ASYNC_MASTER))


def java_ratio(results: Results, cell: Cell) -> float:
    """The throughput relative to Java's; NaN for Java itself."""
    if cell.system == "java":
        return float("nan")
    return ratio_of(results, cell, attrs.evolve(cell, system="java"))


# -- catch-up ----------------------------------------------------------------------------------------------


def _measure_copies(directory: Path, plan: Plan, reporter: Reporter) -> tuple[Copies, list[str]]:
    """Measure every pairing, and the bare copy, in turns."""
    copies: Copies = {}
    failures: list[str] = []
    seed = directory / "seed"
    reporter.notify("writing a log")
    end = write_store(
        seed, log_bytes=plan.copy_bytes, body_bytes=plan.copy_body_bytes,
        reported=lambda done: reporter.notify(f"writing a log: {done >> 20} MiB"),
    )
    log_file = seed / "commitlog" / f"{0:020d}"
    sources = {kind: Source(directory, kind, seed, end) for kind in {master for master, _ in plan.pairings}}
    try:
        reporter.notify("starting brokers that have the log")
        for source in sources.values():
            source.start()
        for source in sources.values():
            source.wait_ready()
        for turn in range(plan.rounds):
            for pairing in (*plan.pairings, (BARE, "")):
                reporter.notify(f"round {turn + 1}: {title_of(pairing)}")
                try:
                    if pairing[0] == BARE:
                        copied = bare_copy(log_file, directory / "bare", end)
                    else:
                        copied = sources[pairing[0]].copy(pairing[1])
                    copies.setdefault(pairing, []).append(copied)
                except CopyError as error:
                    failures.append(str(error))
    finally:
        for source in sources.values():
            source.kill()
    return copies, failures


def title_of(pairing: tuple[str, str]) -> str:
    """For people."""
    return BARE if pairing[0] == BARE else f"{pairing[0]} master, {pairing[1]} slave"


def speed_of(copies: Copies, pairing: tuple[str, str]) -> float:
    """MiB/s; NaN if it was not measured."""
    return median([copied.mib_per_s for copied in copies.get(pairing, [])])


# -- results -----------------------------------------------------------------------------------------------


def _finite(value: float) -> float | None:
    return value if value == value else None


def put_rows(results: Results) -> list[dict[str, object]]:
    """The results of puts for the JSON file."""
    return [
        {
            **attrs.asdict(cell), "flush": "async",
            "throughput_per_s": _finite(measured.median_of("throughput_per_s")),
            "p50_ms": _finite(measured.median_of("p50_ms")),
            "p99_ms": _finite(measured.median_of("p99_ms")),
            "sync_by_async": _finite(sync_ratio(results, cell)),
            "by_java": _finite(java_ratio(results, cell)),
            "rounds_per_s": [
                None if sample is None else round(sample.throughput_per_s, 1) for sample in measured.samples
            ],
            "master_rss_bytes": measured.rss_bytes,
            "pair_cpu_share": round(measured.cpu_share, 3),
            "client_cpu_share": _finite(measured.median_of("client_cpu_share")),
            "failures": measured.failures,
        }
        for cell, measured in results.items()
    ]


def copy_rows(copies: Copies) -> list[dict[str, object]]:
    """The results of catching up for the JSON file."""
    return [
        {
            "system": title_of(pairing), "bytes": found[0].bytes,
            "seconds": median([copied.seconds for copied in found]), "mib_per_s": speed_of(copies, pairing),
            "rounds_mib_per_s": [round(copied.mib_per_s, 1) for copied in found],
            "cpu_s_per_gib": median([copied.cpu_s / copied.bytes * 2**30 for copied in found]),
            "slave_rss_bytes": max(copied.slave_rss_bytes for copied in found),
        }
        for pairing, found in copies.items()
    ]


def _ratio(value: float, unit: str = "") -> str:
    return f"{value:.2f}{unit}" if value == value else ""


def _show_puts(results: Results) -> None:
    order = sorted(results, key=lambda cell: (cell.body_bytes, cell.window, cell.role, cell.system))
    rows = [
        [
            str(cell.body_bytes), str(cell.window), cell.role, cell.system,
            number(results[cell].median_of("throughput_per_s")), number(results[cell].median_of("p50_ms")),
            number(results[cell].median_of("p99_ms")), _ratio(sync_ratio(results, cell)),
            _ratio(java_ratio(results, cell), "x"), number(results[cell].rss_bytes / 2**20),
            number(results[cell].cpu_share),
        ]
        for cell in order
    ]
    columns = ["bytes", "window", "master", "system", "messages/s", "p50 ms", "p99 ms", "sync/async",
               "/ java", "MiB", "CPUs"]
    table("Messages to a master with one slave, both with ASYNC_FLUSH", columns, rows, left=4)
    for cell in order:
        for failure in results[cell].failures:
            console.print(f"{cell.title}: {failure}", markup=False)
    for cell in order:
        ratio = sync_ratio(results, cell)
        if cell.window in SYNC_AIM_WINDOWS and cell.system != "java" and ratio == ratio:
            verdict = "reached" if ratio >= SYNC_AIM else "MISSED"
            console.print(f"aim: sync at least {SYNC_AIM:g} of async, {cell.system}, {cell.body_bytes} B x "
                          f"{cell.window}: {ratio:.2f} {verdict}")


def _show_copies(copies: Copies, failures: Iterable[str]) -> None:
    bare, java = speed_of(copies, (BARE, "")), speed_of(copies, (JAVA, JAVA))
    rows = []
    for row, pairing in zip(copy_rows(copies), copies, strict=True):
        speed = speed_of(copies, pairing)
        rows.append([
            title_of(pairing), number(speed), number(median([copied.seconds for copied in copies[pairing]])),
            number(float(str(row["cpu_s_per_gib"]))), _ratio(speed / java, "x"), _ratio(speed / bare),
            number(max(copied.slave_rss_bytes for copied in copies[pairing]) / 2**20),
        ])
    size = next((found[0].bytes for found in copies.values()), 0)
    columns = ["", "MiB/s", "seconds", "CPU s/GiB", "/ java", "/ bare copy", "MiB of slave"]
    table(f"An empty slave copies {size >> 20} MiB", columns, rows)
    for failure in failures:
        console.print(failure, markup=False)
    ours = speed_of(copies, (OURS, OURS))
    for peer, ratio, aim in ((JAVA, ours / java, CATCH_UP_AIM), (BARE, ours / bare, BARE_AIM)):
        if ratio == ratio:
            verdict = "reached" if ratio >= aim else "MISSED"
            console.print(f"aim: catch-up of ours at least {aim:g} of {peer}: {ratio:.2f} {verdict}")


def show(results: Results, copies: Copies, failures: Iterable[str], machine: Machine) -> None:
    """Print tables and aims."""
    if results:
        _show_puts(results)
    if copies or failures:
        _show_copies(copies, failures)
    console.print(machine.line())


def _plan(quick: bool, windows: str, bodies: str, rounds: int, seconds: float, kinds: Sequence[str]) -> Plan:
    same = tuple((kind, kind) for kind in kinds)
    mixed = tuple((master, slave) for master in kinds for slave in kinds)
    sizes = tuple(int(word) for word in bodies.split(","))
    return Plan(
        windows=tuple(int(word) for word in windows.split(",")),
        bodies=sizes[:1] if quick else sizes, rounds=1 if quick else rounds,
        warm_up_s=0.1 if quick else 0.5, seconds=0.4 if quick else seconds, train_s=0.5 if quick else 4.0,
        copy_bytes=FILE_BYTES // 4 if quick else FILE_BYTES - 4 * 2**20, copy_body_bytes=1024,
        pairings=same if quick else mixed,
    )


def _kinds(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    kinds = tuple(value.split(","))
    if not kinds or set(kinds) - set(KINDS):
        raise click.BadParameter(f"{value!r}: write {','.join(KINDS)}, or one of them")
    return kinds


def _parts(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    parts = tuple(value.split(","))
    if not parts or set(parts) - set(PARTS):
        raise click.BadParameter(f"{value!r}: write {','.join(PARTS)}, or one of them")
    return parts


@click.command()
@click.option("--quick", is_flag=True, help="a minute: the first body size, one short round, a short log")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--windows", default="1,64,1000", show_default=True, help="messages in flight")
@click.option("--bodies", default="100,1024", show_default=True, help="bytes")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="measured span of one run")
@click.option("--kinds", default="java,ours", show_default=True, callback=_kinds)
@click.option("--parts", default="puts,catch-up", show_default=True, callback=_parts)
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(
    quick: bool, json_path: str | None, windows: str, bodies: str, rounds: int, seconds: float,
    kinds: tuple[str, ...], parts: tuple[str, ...], parent: str | None,
) -> None:
    """Measure masters and slaves of RocketMQ's kind, its own and ours."""
    plan = _plan(quick, windows, bodies, rounds, seconds, kinds)
    results: Results = {}
    copies: Copies = {}
    failures: list[str] = []
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with work_directory(parent) as directory:
        machine = probe_machine(directory)
        try:
            with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
                reporter = Reporter(bar)
                if "puts" in parts:
                    java_load = JavaLoad(directory)
                    java_load.start()
                    results = _measure_puts(directory, kinds, java_load, plan, reporter)
                    java_load.child.kill()
                if "catch-up" in parts:
                    copies, failures = _measure_copies(directory, plan, reporter)
        except (ChildError, JavaMissing) as error:
            raise click.ClickException(str(error)) from error
        finally:
            end_all()
    show(results, copies, failures, machine)
    write_json(json_path, put_rows(results), machine, catch_up=copy_rows(copies), failures=failures)


if __name__ == "__main__":
    main()
