# -*- test-case-name: tests.processes.test_load -*-
"""
Appends per second and their latency: groups of three members, of ours and of our peers, on one machine.

    python -m benchmarks.append --quick
    python -m benchmarks.append --rounds 3 --seconds 4 --peers java,java-batch --json append.json

Every group is started once and warmed up; then the systems take turns, round after round, and the groups
that wait are paused. A figure is the median over the rounds. C{dledger-binary} is our client over the native
wire; C{dledger-remoting} is our members under the same generator that loads Java's. Java DLedger has no sync
flush: compare its rows only with C{async}.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
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
from benchmarks.groups import Absent, MeasuredGroup, make_groups
from benchmarks.load import LoadError, Sample
from tests.processes.children import end_all

#: Aims of the binary wire: throughput relative to Java DLedger, by window, with async flush.
AIMS = {1: 2.0, 64: 4.0, 1000: 8.0}


@attrs.frozen(kw_only=True)
class Cell:
    """One row of the results."""

    system: str
    flush: str
    body_bytes: int
    window: int

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.system} {self.flush} {self.body_bytes} B x {self.window}"


@attrs.define
class Measured:
    """The results of the rounds for one cell."""

    samples: list[Sample] = attrs.Factory(list)
    rss_bytes: int = 0
    cpu_share: float = 0.0
    failures: list[str] = attrs.Factory(list)


@attrs.frozen(kw_only=True)
class Plan:
    """
    The extent of the measurements.

    @ivar warm_up_s, seconds: of each run; C{rounds} runs make one figure.
    """

    windows: tuple[int, ...]
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
                wire, body_bytes=cell.body_bytes, window=cell.window, warm_up_s=plan.warm_up_s,
                seconds=plan.seconds,
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
            wire, body_bytes=100, window=plan.windows[-1], warm_up_s=0.0,
            seconds=group.train_s * plan.train_share,
        )


def cells_of(group: MeasuredGroup, plan: Plan) -> Iterator[tuple[Cell, str]]:
    """Every cell of a group, and its generator."""
    for system, wire in group.systems.items():
        for body_bytes in plan.bodies:
            for window in plan.windows:
                yield Cell(system=system, flush=group.flush, body_bytes=body_bytes, window=window), wire


def measure_all(groups: list[MeasuredGroup], plan: Plan) -> dict[Cell, Measured]:
    """Start and train every group, then measure them in turns."""
    results: dict[Cell, Measured] = {}
    runs = plan.rounds * len(plan.windows) * len(plan.bodies) * sum(len(group.systems) for group in groups)
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
        rows.append({
            **attrs.asdict(cell),
            "throughput_per_s": median([sample.throughput_per_s for sample in measured.samples]),
            "p50_ms": median([sample.p50_ms for sample in measured.samples]),
            "p99_ms": median([sample.p99_ms for sample in measured.samples]),
            "rounds_per_s": [round(sample.throughput_per_s, 1) for sample in measured.samples],
            "member_rss_bytes": measured.rss_bytes,
            "members_cpu_share": round(measured.cpu_share, 3),
            "failures": measured.failures,
        })
    return rows


def _ratio(results: dict[Cell, Measured], cell: Cell, peer: str) -> str:
    other = results.get(attrs.evolve(cell, system=peer, flush="async"))
    mine = median([sample.throughput_per_s for sample in results[cell].samples])
    theirs = median([sample.throughput_per_s for sample in other.samples]) if other else float("nan")
    return f"{mine / theirs:.1f}x" if theirs == theirs and theirs > 0 and cell.system != peer else ""


def show(results: dict[Cell, Measured], absent: Iterable[Absent], machine: Machine) -> None:
    """Print the table, with ratios against each peer."""
    peers = sorted({cell.system for cell in results if not cell.system.startswith("dledger")})
    columns = ["bytes", "window", "flush", "system", "appends/s", "p50 ms", "p99 ms", "MiB/member", "CPUs"]
    rows = []
    order = sorted(results, key=lambda cell: (cell.body_bytes, cell.window, cell.flush, cell.system))
    for cell in order:
        measured = results[cell]
        rows.append([
            str(cell.body_bytes), str(cell.window), cell.flush, cell.system,
            number(median([sample.throughput_per_s for sample in measured.samples])),
            number(median([sample.p50_ms for sample in measured.samples])),
            number(median([sample.p99_ms for sample in measured.samples])),
            number(measured.rss_bytes / 2**20), number(measured.cpu_share),
            *(_ratio(results, cell, peer) for peer in peers),
        ])
    table("Appends to a group of three", columns + [f"/ {peer}" for peer in peers], rows, left=4)
    console.print(machine.line())
    for peer in absent:
        console.print(f"not measured: {peer.name}: {peer.reason}")
    for cell in order:
        for failure in results[cell].failures:
            console.print(f"{cell.title}: {failure}")
    for window, aim in AIMS.items():
        for body_bytes in sorted({cell.body_bytes for cell in results}):
            cell = Cell(system="dledger-binary", flush="async", body_bytes=body_bytes, window=window)
            if cell in results and (ratio := _ratio(results, cell, "java-dledger")):
                verdict = "reached" if float(ratio[:-1]) >= aim else "MISSED"
                console.print(f"aim: binary async {aim:g}x Java at window {window}, {body_bytes} B: "
                              f"{ratio} {verdict}")


@click.command()
@click.option("--quick", is_flag=True, help="under a minute: 100-byte bodies, one short round")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--windows", default="1,64,1000", show_default=True)
@click.option("--bodies", default="100,1024", show_default=True, help="bytes")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=3.0, show_default=True, help="measured span of one run")
@click.option("--flush", "flushes", default="async,sync", show_default=True, help="of our members")
@click.option("--peers", default="java", show_default=True,
              help="java,java-batch,pysyncobj,tls,aio,exact; empty for none")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(
    quick: bool, json_path: str | None, windows: str, bodies: str, rounds: int, seconds: float, flushes: str,
    peers: str, parent: str | None,
) -> None:
    """Measure appends to groups of three members."""
    plan = Plan(
        windows=tuple(int(word) for word in windows.split(",")),
        bodies=(100,) if quick else tuple(int(word) for word in bodies.split(",")),
        rounds=1 if quick else rounds, warm_up_s=0.3 if quick else 1.0, seconds=1.0 if quick else seconds,
        train_share=0.6 if quick else 1.0,
    )
    with work_directory(parent) as directory:
        machine = probe_machine(directory)
        groups, absent = make_groups(
            Path(directory), peers=filter(None, peers.split(",")), flushes=filter(None, flushes.split(","))
        )
        try:
            results = measure_all(groups, plan)
        finally:
            end_all()
    show(results, absent, machine)
    write_json(json_path, as_rows(results), machine)


if __name__ == "__main__":
    main()
