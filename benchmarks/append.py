# -*- test-case-name: tests.processes.test_load -*-
"""
Appends per second and their latency: groups of three members, of ours and of our peers, on one machine.

    python -m benchmarks.append --quick
    python -m benchmarks.append --rounds 3 --seconds 4 --peers java,java-batch --json append.json
    python -m benchmarks.append --rounds 5 --peers nats,nats-always,etcd,redis,redis-always --json peers.json

Every group is started once and warmed up; then the systems take turns, round after round, and the groups
that wait are paused. A figure is the median over the rounds, with the least and the most. C{dledger-binary}
is our client over the native wire; C{dledger-remoting} is our members under the same generator that loads
Java's. A row is compared only with peers of its own flush class; L{benchmarks.peers} has the promise behind
each row. C{--quick} prints no ratios: its peers are still cold.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import click
from click.core import ParameterSource
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
from benchmarks.groups import KNOWN, Absent, MeasuredGroup, make_groups
from benchmarks.load import LoadError, Sample
from benchmarks.peers import promise_of
from tests.processes.children import ChildError, end_all

#: Aims of the binary wire: throughput relative to Java DLedger, by window, with async flush.
AIMS = {1: 2.0, 64: 4.0, 1000: 8.0}


def parsed_load(text: str) -> tuple[int, int]:
    """@param text: C{64} or C{256x4}. @return: connections, and appends under way on each."""
    links, _times, window = text.rpartition("x")
    try:
        found = int(links or 1), int(window)
    except ValueError:
        found = (0, 0)
    if min(found) < 1:
        raise click.UsageError(f"{text!r} is no window: write 64, or 256x4 for 256 connections of 4 each")
    return found


def load_text(links: int, window: int) -> str:
    """The reverse of L{parsed_load}."""
    return str(window) if links == 1 else f"{links}x{window}"


@attrs.frozen(kw_only=True)
class Cell:
    """One row of the results."""

    system: str
    flush: str
    body_bytes: int
    links: int
    window: int

    @property
    def load(self) -> str:
        """Connections x appends under way on each."""
        return load_text(self.links, self.window)

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.system} {self.flush} {self.body_bytes} B x {self.load}"


@attrs.define
class Measured:
    """The results of the rounds for one cell."""

    samples: list[Sample] = attrs.Factory(list)
    rss_bytes: int = 0
    cpu_share: float = 0.0
    failures: list[str] = attrs.Factory(list)

    @property
    def throughput_per_s(self) -> float:
        """The median of the rounds."""
        return median([sample.throughput_per_s for sample in self.samples])

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the most of the rounds, appends per second; NaN without rounds."""
        rates = [sample.throughput_per_s for sample in self.samples] or [float("nan")]
        return min(rates), max(rates)


@attrs.frozen(kw_only=True)
class Plan:
    """
    The extent of the measurements.

    @ivar loads: connections, and appends under way on each.
    @ivar warm_up_s, seconds: of each run; C{rounds} runs make one figure.
    """

    loads: tuple[tuple[int, int], ...]
    bodies: tuple[int, ...]
    rounds: int
    warm_up_s: float
    seconds: float
    train_share: float = 1.0


def run_cell(group: MeasuredGroup, cell: Cell, wire: str, plan: Plan, measured: Measured) -> None:
    """Run one cell, and once again if the leader changed; a failure is kept, not raised."""

    def watch() -> None:
        measured.rss_bytes = max(measured.rss_bytes, group.rss_bytes())

    for _attempt in range(2):
        cpu_s, begin_s = group.cpu_seconds(), time.monotonic()
        try:
            sample = group.measure(
                wire, body_bytes=cell.body_bytes, links=cell.links, window=cell.window,
                warm_up_s=plan.warm_up_s, seconds=plan.seconds,
            )
        except LoadError as error:
            measured.failures.append(str(error))
            group.settle()
            continue
        if sample.refused:
            measured.failures.append(f"{sample.refused} not acknowledged, the first with {sample.reason}")
            group.settle()
            continue
        watch()
        measured.cpu_share = (group.cpu_seconds() - cpu_s) / (time.monotonic() - begin_s)
        measured.samples.append(sample)
        return


def train(group: MeasuredGroup, plan: Plan) -> None:
    """Start a group and load it for a while."""
    group.start()
    for wire in group.systems.values():
        group.measure(
            wire, body_bytes=100, links=1, window=max(window for _links, window in plan.loads), warm_up_s=0.0,
            seconds=group.train_s * plan.train_share,
        )


def cells_of(group: MeasuredGroup, plan: Plan) -> Iterator[tuple[Cell, str]]:
    """Every cell of a group, and its generator."""
    for system, wire in group.systems.items():
        for body_bytes in plan.bodies:
            for links, window in plan.loads:
                if links <= group.links_max:
                    yield Cell(
                        system=system, flush=group.flush, body_bytes=body_bytes, links=links, window=window
                    ), wire


def measure_all(groups: list[MeasuredGroup], plan: Plan) -> dict[Cell, Measured]:
    """Start and train every group, then measure them in turns."""
    results: dict[Cell, Measured] = {}
    runs = plan.rounds * len(plan.loads) * len(plan.bodies) * sum(len(group.systems) for group in groups)
    columns = (TextColumn("{task.completed}/{task.total} {task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=runs)
        for group in groups:
            progress.update(task, description=f"training {', '.join(group.systems)}")
            train(group, plan)
            group.pause()
        for _round in range(plan.rounds):
            for group in groups:
                group.resume()
                for cell, wire in cells_of(group, plan):
                    progress.update(task, description=cell.title)
                    run_cell(group, cell, wire, plan, results.setdefault(cell, Measured()))
                    progress.advance(task)
                group.pause()
    return results


def as_rows(results: dict[Cell, Measured]) -> list[dict[str, object]]:
    """The results for the JSON file."""
    rows: list[dict[str, object]] = []
    for cell, measured in results.items():
        operation, durability = promise_of(cell.system, cell.flush)
        least, most = measured.spread
        shares = [sample.client_cpu_share for sample in measured.samples]
        rows.append({
            **attrs.asdict(cell),
            "operation": operation,
            "durability": durability,
            "throughput_per_s": measured.throughput_per_s,
            "least_per_s": least,
            "most_per_s": most,
            "p50_ms": median([sample.p50_ms for sample in measured.samples]),
            "p99_ms": median([sample.p99_ms for sample in measured.samples]),
            "rounds_per_s": [round(sample.throughput_per_s, 1) for sample in measured.samples],
            "member_rss_bytes": measured.rss_bytes,
            "members_cpu_share": round(measured.cpu_share, 3),
            "client_cpu_share": round(median(shares), 3),
            "failures": measured.failures,
        })
    return rows


def _ratio(results: dict[Cell, Measured], cell: Cell, peer: str) -> str:
    """Only within a flush class: memory against an fsync would flatter."""
    other = results.get(attrs.evolve(cell, system=peer))
    mine = results[cell].throughput_per_s
    theirs = other.throughput_per_s if other else float("nan")
    return f"{mine / theirs:.1f}x" if theirs == theirs and theirs > 0 and cell.system != peer else ""


def show(
    results: dict[Cell, Measured], absent: Iterable[Absent], machine: Machine, *, has_ratios: bool = True
) -> None:
    """Print the table. @param has_ratios: against each peer; not for cold ones."""
    peers = sorted({cell.system for cell in results if not cell.system.startswith("dledger")})
    peers = peers if has_ratios else []
    columns = ["bytes", "load", "flush", "system", "per s", "least..most", "p50 ms", "p99 ms",
               "MiB/member", "CPUs", "client"]
    rows = []
    order = sorted(
        results, key=lambda cell: (cell.body_bytes, cell.links, cell.window, cell.flush, cell.system)
    )
    for cell in order:
        measured = results[cell]
        rows.append([
            str(cell.body_bytes), cell.load, cell.flush, cell.system,
            number(measured.throughput_per_s), "..".join(map(number, measured.spread)),
            number(median([sample.p50_ms for sample in measured.samples])),
            number(median([sample.p99_ms for sample in measured.samples])),
            number(measured.rss_bytes / 2**20), number(measured.cpu_share),
            number(median([sample.client_cpu_share for sample in measured.samples])),
        ])
    table("Appends to a group of three", columns, rows, left=4)
    if peers:
        _show_ratios(results, order, peers)
    for system, flush in sorted({(cell.system, cell.flush) for cell in order}):
        operation, durability = promise_of(system, flush)
        console.print(f"{system} {flush}: {operation}; {durability}", highlight=False)
    console.print(machine.line())
    for peer in absent:
        console.print(f"not measured: {peer.name}: {peer.reason}")
    for cell in order:
        for failure in results[cell].failures:
            console.print(f"{cell.title}: {failure}")
    if has_ratios:
        _show_aims(results)


def _show_ratios(results: dict[Cell, Measured], order: list[Cell], peers: list[str]) -> None:
    rows = [
        [str(cell.body_bytes), cell.load, cell.flush, cell.system,
         *(_ratio(results, cell, peer) for peer in peers)]
        for cell in order if cell.system.startswith("dledger")
    ]
    columns = ["bytes", "load", "flush", "system", *(f"/ {peer}" for peer in peers)]
    table("Ours by a peer's, within a flush class", columns, rows, left=4)


def _show_aims(results: dict[Cell, Measured]) -> None:
    for window, aim in AIMS.items():
        for body_bytes in sorted({cell.body_bytes for cell in results}):
            cell = Cell(
                system="dledger-binary", flush="async", body_bytes=body_bytes, links=1, window=window
            )
            if cell in results and (ratio := _ratio(results, cell, "java-dledger")):
                verdict = "reached" if float(ratio[:-1]) >= aim else "MISSED"
                console.print(f"aim: binary async {aim:g}x Java at window {window}, {body_bytes} B: "
                              f"{ratio} {verdict}")


@click.command()
@click.option("--quick", is_flag=True,
              help="under a minute: 100-byte bodies, one short round, no ratios against cold peers")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--windows", default="1,64,1000,256x4", show_default=True,
              help="appends under way: of one connection, or connections x appends of each")
@click.option("--bodies", default="100,1024", show_default=True, help="bytes")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=3.0, show_default=True, help="measured span of one run")
@click.option("--flush", "flushes", default="async,sync", show_default=True, help="of our members")
@click.option("--peers", default="java", show_default=True,
              help=f"of {','.join(KNOWN)}; empty for none. One that is named must be installed")
@click.option("--note", default="", help="about the run, for the JSON file and the tables made of it")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(
    quick: bool, json_path: str | None, windows: str, bodies: str, rounds: int, seconds: float, flushes: str,
    peers: str, note: str, parent: str | None,
) -> None:
    """Measure appends to groups of three members."""
    named = click.get_current_context().get_parameter_source("peers") is not ParameterSource.DEFAULT
    plan = Plan(
        loads=tuple(parsed_load(word) for word in windows.split(",")),
        bodies=(100,) if quick else tuple(int(word) for word in bodies.split(",")),
        rounds=1 if quick else rounds, warm_up_s=0.3 if quick else 1.0, seconds=1.0 if quick else seconds,
        train_share=0.6 if quick else 1.0,
    )
    with work_directory(parent) as directory:
        try:
            groups, absent = make_groups(
                Path(directory), peers=filter(None, peers.split(",")),
                flushes=filter(None, flushes.split(",")), is_strict=named,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        machine = probe_machine(directory)
        try:
            results = measure_all(groups, plan)
        except (ChildError, LoadError) as error:
            raise click.ClickException(str(error)) from error
        finally:
            end_all()
    show(results, absent, machine, has_ratios=not quick)
    versions = {system: group.version for group in groups if group.version for system in group.systems}
    write_json(json_path, as_rows(results), machine, versions=versions, note=note)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # (so that the directories are removed)
    main()
