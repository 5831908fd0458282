# -*- test-case-name: tests.test_benchmarks -*-
"""
How long one append takes while the members write snapshots of their state machines.

    python -m benchmarks.snapshots --mib 1024 --seconds 60

One client appends to three members, one entry at a time. The members have a machine whose state has a given
size, and all take a snapshot after the same entries. An append is beside a snapshot if one of the members was
writing one when it was answered. The pieces of the state are there already: what a machine's own Python code
costs while it makes them comes on top.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence

import click

import dledger
from benchmarks.common import console, number, probe_machine, quantile, table, work_directory
from benchmarks.failover import wait_all_serve
from dledger.client.values import Entry
from dledger.machine.state_machine import StateMachine
from tests.processes.members import Group, Member

MIB = 1 << 20
#: Entries between two snapshots, and appends that are not counted.
EVERY = 5_000
WARM_UP = 500
BODY = b"x" * 100


class Ballast(StateMachine):
    """A machine with a large state that costs nothing to make. C{DLEDGER_BALLAST_MIB}: its size."""

    name = "ballast"
    version = 1

    def __init__(self) -> None:
        self._piece = os.urandom(MIB)
        self._pieces = int(os.environ["DLEDGER_BALLAST_MIB"])

    def apply(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        """Nothing changes."""
        for _ in entries:
            yield b""

    def query(self, request: bytes) -> bytes:
        """There is nothing to ask."""
        return b""

    def snapshot(self) -> Sequence[bytes]:
        """The same piece again and again."""
        return [self._piece] * self._pieces

    def restore(self, chunks: Iterable[bytes]) -> None:
        """Any state will do."""
        for _ in chunks:
            pass

    def digest(self) -> bytes:
        """The same at all members."""
        return b"ballast"


def spans_of(group: Group, seconds: float) -> tuple[list[float], list[float]]:
    """Milliseconds of the appends beside no snapshot, and of those beside one."""
    unfinished = [member.ledger_path / "machine" / "unfinished" for member in group.members.values()]
    quiet: list[float] = []
    beside: list[float] = []
    with dledger.connect(group.peers_text) as log:
        for _ in range(WARM_UP):
            log.append(BODY)
        end_s = time.perf_counter() + seconds
        while (begin_s := time.perf_counter()) < end_s:
            log.append(BODY)
            spent_ms = 1000 * (time.perf_counter() - begin_s)
            (beside if any(path.exists() for path in unfinished) else quiet).append(spent_ms)
    return quiet, beside


@click.command()
@click.option("--mib", default=1024, show_default=True, help="MiB of state of each member.")
@click.option("--seconds", default=60.0, show_default=True, help="How long to append.")
def main(mib: int, seconds: float) -> None:
    """Append one by one while snapshots are written."""
    os.environ["DLEDGER_BALLAST_MIB"] = str(mib)
    with work_directory(None) as directory:
        machine = probe_machine(directory)
        group = Group(directory, size=3)
        for member_id in group.peers:
            group.members[member_id] = Member(
                member_id, group.peers, directory / member_id, options={
                    "machine_snapshot_entries": EVERY, "mapped_file_size_for_entry_data": 64 * MIB,
                    "mapped_file_size_for_entry_index": 16 * MIB,
                }, extra=("--machine", "benchmarks.snapshots:Ballast"),
            )
        try:
            group.start()
            group.leader()
            wait_all_serve(group)
            quiet, beside = spans_of(group, seconds)
        finally:
            group.kill()
    console.print(machine.line())
    table("Milliseconds of one append", ("beside", "appends", "median", "p99", "p99.9"), [
        (name, f"{len(spans):,}", *(number(quantile(spans, share)) for share in (0.5, 0.99, 0.999)))
        for name, spans in (("no snapshot", quiet), (f"a snapshot of {mib} MiB", beside))
    ])


if __name__ == "__main__":
    main()
