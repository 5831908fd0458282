# -*- test-case-name: tests.interop.test_mixed_benchmark -*-
"""
Groups of Java members and ours: appends per second, by leader and followers.

    python -m benchmarks.mixed --quick
    python -m benchmarks.mixed --rounds 5 --json mixed.json

A system is named by its members, the leader first: C{java+ours+ours} is a Java leader with two followers
of ours. Every group gets the same load over remoting frames; groups take turns as in
L{benchmarks.append}, and a figure is the median over the rounds. The last column compares with the same
leader among followers of its own kind: it shows the cost of followers of the other kind.

Rule: a run counts only if the intended leader led before and after it; if another member leads, leadership
is transferred to the intended one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import attrs
import click

from benchmarks.append import Cell, Measured, Plan, as_rows, measure_all
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
from benchmarks.groups import MeasuredGroup
from benchmarks.load import LoadError, Sample, load_in_child
from tests.interop.java import JavaMissing, class_path
from tests.interop.mixed import JAVA, OURS, MixedGroup
from tests.processes.children import Child, ChildError, end_all

#: The same file sizes for both kinds: positions depend on them.
DATA_FILE_BYTES = 1 << 28
INDEX_FILE_BYTES = 32 * 5 * 1024 * 1024

SYSTEMS = ("java+java+java", "java+java+ours", "java+ours+ours", "ours+java+java", "ours+ours+ours")
QUICK_SYSTEMS = ("java+java+java", "java+ours+ours", "ours+java+java")

#: Aim for the ratio of a Java leader with followers of ours.
AIM = 1.0


class Mixed(MeasuredGroup):
    """Three members of which the first, C{n0}, leads."""

    train_s = 4.0

    def __init__(self, directory: Path, kinds: tuple[str, ...], *, batch_push: bool) -> None:
        """@param batch_push: whether Java leaders send several entries in one push (their default: no)."""
        name = "+".join(kinds)
        self.systems = {name: "remoting"}
        self._group = MixedGroup(
            directory / name, kinds,
            java={"mappedFileSizeForEntryData": DATA_FILE_BYTES,
                  "mappedFileSizeForEntryIndex": INDEX_FILE_BYTES, "enableBatchPush": batch_push},
            ours={"mapped_file_size_for_entry_data": DATA_FILE_BYTES,
                  "mapped_file_size_for_entry_index": INDEX_FILE_BYTES},
        )

    @property
    def children(self) -> Iterable[Child]:
        """Its members."""
        return self._group.members.values()

    def start(self) -> None:
        """Start the members and wait until the first one leads."""
        self._group.start()
        self.settle()

    def settle(self) -> None:
        """Wait until the first member has led for longer than the heartbeat interval of a Java leader."""
        deadline = time.monotonic() + 90
        since: float | None = None
        while since is None or time.monotonic() < since + 2.2:
            if time.monotonic() > deadline:
                raise ChildError(f"n0 of {', '.join(self.systems)} did not come to lead within 90 s")
            if self._group.leader() != "n0":
                self._group.lead("n0")
                since = None
            since = since or time.monotonic()
            time.sleep(0.2)

    def measure(self, wire: str, *, body_bytes: int, window: int, warm_up_s: float, seconds: float) -> Sample:
        """Run the generator once against the first member. @raise LoadError: it did not lead all the time."""
        try:
            if self._group.leader() != "n0":
                self.settle()
            sample = load_in_child(
                address=self._group.peers["n0"], remote_id="n0", group=self._group.name, wire=wire,
                window=window, body_bytes=body_bytes, warm_up_s=warm_up_s, seconds=seconds,
            )
            leader_id = self._group.leader()
        except ChildError as error:
            raise LoadError(str(error)) from error
        if leader_id != "n0":
            raise LoadError(f"{leader_id} leads after the run, not n0")
        return sample


def baseline_of(system: str) -> str:
    """The group with the same leader, and followers of the leader's kind."""
    return "+".join([system.partition("+")[0]] * 3)


def ratio_of(results: dict[Cell, Measured], cell: Cell) -> float:
    """
    Throughput of a cell against its baseline; NaN if either was not measured, and for a baseline.

    Rounds are compared one by one, since the machine may change between them: the result is the median of
    their ratios.
    """
    other = results.get(attrs.evolve(cell, system=baseline_of(cell.system)))
    if other is None or cell.system == baseline_of(cell.system):
        return float("nan")
    pairs = zip(results[cell].samples, other.samples, strict=False)
    return median([
        mine.throughput_per_s / theirs.throughput_per_s for mine, theirs in pairs if theirs.throughput_per_s
    ])


def show(results: dict[Cell, Measured], machine: Machine) -> bool:
    """
    Print the table, and whether the aim was reached.

    @return: whether every Java leader with followers of ours reached it.
    """
    columns = ["bytes", "window", "leader+followers", "appends/s", "p50 ms", "p99 ms", "CPUs"]
    columns.append("/ same leader")
    order = sorted(results, key=lambda cell: (cell.body_bytes, cell.window, SYSTEMS.index(cell.system)))
    rows = []
    for cell in order:
        measured = results[cell]
        ratio = ratio_of(results, cell)
        rows.append([
            str(cell.body_bytes), str(cell.window), cell.system,
            number(median([sample.throughput_per_s for sample in measured.samples])),
            number(median([sample.p50_ms for sample in measured.samples])),
            number(median([sample.p99_ms for sample in measured.samples])),
            number(measured.cpu_share), f"{ratio:.2f}x" if ratio == ratio else "",
        ])
    table("Appends to groups with Java members", columns, rows, left=3)
    console.print(machine.line())
    reached = True
    for cell in order:
        for failure in results[cell].failures:
            console.print(f"{cell.title}: {failure}")
        ratio = ratio_of(results, cell)
        if cell.system.startswith(JAVA) and ratio == ratio:
            reached = reached and ratio >= AIM
            verdict = "reached" if ratio >= AIM else "MISSED"
            console.print(f"aim: {cell.system} at {cell.body_bytes} B x {cell.window} not slower than "
                          f"{baseline_of(cell.system)}: {ratio:.2f}x {verdict}")
    return reached


@click.command()
@click.option("--quick", is_flag=True, help="under a minute: three groups, 100-byte bodies, one short round")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--systems", default=",".join(SYSTEMS), show_default=True)
@click.option("--windows", default="64,1000", show_default=True)
@click.option("--bodies", default="100,1024", show_default=True, help="bytes")
@click.option("--rounds", default=5, show_default=True)
@click.option("--seconds", default=3.0, show_default=True, help="measured span of one run")
@click.option("--batch-push/--no-batch-push", default=False, help="of Java leaders; off is their default")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(
    quick: bool, json_path: str | None, systems: str, windows: str, bodies: str, rounds: int, seconds: float,
    batch_push: bool, parent: str | None,
) -> None:
    """Measure appends to groups of Java members and ours."""
    names = QUICK_SYSTEMS if quick else tuple(systems.split(","))
    for name in names:
        if name not in SYSTEMS:
            raise click.UsageError(f"--systems: {name!r} is not one of {', '.join(SYSTEMS)}")
    plan = Plan(
        windows=tuple(int(word) for word in windows.split(",")),
        bodies=(100,) if quick else tuple(int(word) for word in bodies.split(",")),
        rounds=1 if quick else rounds, warm_up_s=0.3 if quick else 0.7, seconds=1.0 if quick else seconds,
        train_share=0.4 if quick else 1.0,
    )
    try:
        class_path()
    except JavaMissing as missing:
        raise click.ClickException(str(missing)) from None
    with work_directory(parent) as directory:
        machine = probe_machine(directory)
        groups: list[MeasuredGroup] = [
            Mixed(directory, tuple(name.split("+")), batch_push=batch_push) for name in names
        ]
        try:
            results = measure_all(groups, plan)
        finally:
            end_all()
    show(results, machine)
    ratios = [ratio_of(results, cell) for cell in results]
    rows = [
        {**row, "ratio_to_same_leader": ratio if ratio == ratio else None}
        for row, ratio in zip(as_rows(results), ratios, strict=True)
    ]
    write_json(json_path, rows, machine)


assert {kind for name in SYSTEMS for kind in name.split("+")} == {JAVA, OURS}

if __name__ == "__main__":
    main()
