# -*- test-case-name: tests.processes.test_load -*-
"""
Many clients, many readers, many members: what each costs, and whether all get their share.

    python -m benchmarks.many --quick
    python -m benchmarks.many --parts clients,readers,members --rounds 5 --json FILE

C{clients}: 256 clients with four appends under way each, beside one with 1,000. C{readers}: the log read from
its begin, entry by entry and in batches, by one client and by 100 at once. C{members}: one client at a group
of three, five and seven. Things of one part take turns, round after round; ratios are medians of rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

import dledger
from benchmarks.common import console, median, number, probe_machine, table, work_directory, write_json
from benchmarks.failover import wait_all_serve
from benchmarks.load import LoadError, run_reporter
from tests.processes.children import ChildError, end_all
from tests.processes.members import Group

PARTS = ("clients", "readers", "members")
CLIENTS, CLIENT_WINDOW, WINDOW = 256, 4, 1000
READERS = 100
SIZES = (3, 5, 7)
#: Entries that 100 readers read, each.
SHARED_ENTRIES = 20_000
ENTRY_BYTES = 48
_FILES = {"mapped_file_size_for_entry_data": 256 << 20, "mapped_file_size_for_entry_index": 64 << 20}

Row = dict[str, Any]


def loaded(group: Group, *words: object, seconds: float) -> Row:
    """Run the generator. @raise LoadError: it failed, or was not done in time."""
    return run_reporter("many_load", "--peers", group.peers_text, *words, seconds=seconds + 60)


def started(directory: Path, size: int = 3) -> Group:
    """A group that serves."""
    group = Group(directory, size=size, options=_FILES)
    group.start()
    group.leader()
    wait_all_serve(group)
    return group


def measure_clients(directory: Path, rounds: int, seconds: float) -> list[Row]:
    """Many clients with small windows, and one with a large one."""
    group = started(directory / "clients")
    rows: list[Row] = []
    for turn in range(rounds):
        for count, window in ((1, WINDOW), (CLIENTS, CLIENT_WINDOW)):
            found = loaded(
                group, "--count", count, "--window", window, "--warm-up", 1, "--seconds", seconds,
                seconds=seconds,
            )
            rows.append({"part": "clients", "clients": count, "window": window, "round": turn, **found})
            console.print(f"{count} x {window}: {found['throughput_per_s']:,.0f}/s", style="dim")
    group.kill()
    rates = [[row["throughput_per_s"] for row in rows if row["clients"] == count] for count in (1, CLIENTS)]
    fair = [row["most"] / max(row["least"], 1) for row in rows if row["clients"] == CLIENTS]
    table("Appends of 100 bytes by many clients in one process", [
        "clients x window", "appends/s", "to one client", "most to least of one", "CPUs of the clients",
    ], [
        [f"1 x {WINDOW}", number(median(rates[0])), "", "", _cpus(rows, clients=1)],
        [f"{CLIENTS} x {CLIENT_WINDOW}", number(median(rates[1])),
         f"{median([many / one for one, many in zip(*rates, strict=True)]):.2f}x", f"{median(fair):.2f}x",
         _cpus(rows, clients=CLIENTS)],
    ])
    return rows


def _cpus(rows: Sequence[Row], **wanted: object) -> str:
    return number(median([row["client_cpu_share"] for row in rows if wanted.items() <= row.items()]))


def measure_readers(directory: Path, rounds: int, entries: int) -> list[Row]:
    """One reader of a long log, and many of a short one; entry by entry, and in batches."""
    rows: list[Row] = []
    for count, length in ((1, entries), (READERS, SHARED_ENTRIES)):
        group = started(directory / f"readers-{count}")
        with dledger.connect(group.peers_text, timeout=60.0) as log:
            log.append_many((b"x" * ENTRY_BYTES for _ in range(length)), window=10_000)
        for turn in range(rounds):
            for kind in ("entries", "batches"):
                found = loaded(group, "--kind", kind, "--count", count, seconds=60)
                rows.append({"part": "readers", "readers": count, "kind": kind, "round": turn, **found})
        group.kill()
    shown = []
    for count in (1, READERS):
        for kind in ("entries", "batches"):
            mine = [row for row in rows if (row["readers"], row["kind"]) == (count, kind)]
            shown.append([
                f"{count}, {kind}", number(median([row["entries"] / row["seconds"] for row in mine])),
                f"{median([row['most_s'] / row['least_s'] for row in mine]):.2f}x",
                number(median([row["client_cpu_share"] for row in mine])),
            ])
    table(f"Entries of {ENTRY_BYTES} bytes read from the begin of the log, by readers in one process", [
        "readers", "entries/s, all together", "slowest to fastest", "CPUs of the readers",
    ], shown)
    return rows


def measure_members(directory: Path, rounds: int, seconds: float) -> list[Row]:
    """Groups of several sizes; those that are not measured are paused."""
    rows: list[Row] = []
    groups = {size: started(directory / f"members-{size}", size) for size in SIZES}
    for turn in range(rounds):
        for size, group in groups.items():
            with _alone(groups, size):
                for window in (1, 64, WINDOW):
                    found = loaded(
                        group, "--window", window, "--warm-up", 0.5, "--seconds", seconds, seconds=seconds
                    )
                    rows.append({
                        "part": "members", "members": size, "window": window, "round": turn, **found
                    })
    for group in groups.values():
        group.kill()
    rates = {
        (size, window): [
            row["throughput_per_s"] for row in rows if (row["members"], row["window"]) == (size, window)
        ]
        for size in SIZES for window in (1, 64, WINDOW)
    }
    table("Appends of 100 bytes by one client, by the size of the group", [
        "members", *(f"x {window}" for window in (1, 64, WINDOW)),
    ], [
        [str(size), *(
            f"{number(median(rates[size, window]))} ({_ratio(rates[size, window], rates[3, window]):.2f}x)"
            for window in (1, 64, WINDOW)
        )]
        for size in SIZES
    ])
    return rows


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return median([one / other for one, other in zip(above, below, strict=True)])


class _alone:
    """While it is entered, the other groups are paused."""

    def __init__(self, groups: dict[int, Group], size: int) -> None:
        self._groups = groups
        self._size = size

    def __enter__(self) -> None:
        for member in self._others():
            member.pause()
        for member in self._groups[self._size].members.values():
            member.resume()
        self._groups[self._size].leader()
        wait_all_serve(self._groups[self._size])

    def __exit__(self, *error: object) -> None:
        """The next one pauses it."""

    def _others(self) -> Iterator[Any]:
        for size, group in self._groups.items():
            if size != self._size:
                yield from group.members.values()


@click.command()
@click.option("--quick", is_flag=True, help="one short round of each part")
@click.option("--parts", default=",".join(PARTS), show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=3.0, show_default=True, help="measured span of appends")
@click.option("--entries", default=2_000_000, show_default=True, help="of the log that one reader reads")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(
    quick: bool, parts: str, rounds: int, seconds: float, entries: int, json_path: str | None,
    parent: str | None,
) -> None:
    """Measure many clients, readers and members."""
    wanted = parts.split(",")
    for part in wanted:
        if part not in PARTS:
            raise click.UsageError(f"--parts: {part!r} is not one of {', '.join(PARTS)}")
    if quick:
        rounds, seconds, entries = 1, 1.0, 200_000
    rows: list[Row] = []
    with work_directory(parent) as directory:
        machine = probe_machine(directory)
        try:
            if "clients" in wanted:
                rows += measure_clients(directory, rounds, seconds)
            if "readers" in wanted:
                rows += measure_readers(directory, rounds, entries)
            if "members" in wanted:
                rows += measure_members(directory, rounds, seconds)
        except (ChildError, LoadError) as error:
            raise click.ClickException(str(error)) from error
        finally:
            end_all()
    console.print(machine.line())
    write_json(json_path, rows, machine)


if __name__ == "__main__":
    main()
