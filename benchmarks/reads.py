# -*- test-case-name: tests.test_benchmarks -*-
"""
One reader of a whole log, ours and of peers, from its begin to its end.

    python -m benchmarks.reads --peers nats,etcd --rounds 3

Each system gets entries of 48 bytes for some seconds, as fast as a window of 1,000 lets it. Then one
reader reads them, again and again, while the other systems are paused: of ours with C{tail_batches} and
C{tail}, of a peer as in L{benchmarks.peer_read}. The rates count entries; how many there are depends on the
speed of writing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import dledger
from benchmarks.common import console, median, number, probe_machine, table, work_directory, write_json
from benchmarks.load import LoadError, run_reporter
from benchmarks.many import ENTRY_BYTES, WINDOW, loaded, started
from benchmarks.peer_groups import PeerGroup, make_peer
from benchmarks.peers import MissingPeerError
from tests.processes.children import ChildError, end_all
from tests.processes.members import Group

_KINDS = ("batches", "entries")
Row = dict[str, Any]


def read_peer(group: PeerGroup, entries: int) -> Row:
    """Run the reader of a peer once. @raise LoadError: it failed, or was not done in time."""
    words = group.generator, group.target, "--entries", entries
    return run_reporter("peer_read", *words, seconds=120.0)


def filled(directory: Path, entries: int) -> Group:
    """A group of ours with a log."""
    group = started(directory)
    with dledger.connect(group.peers_text, timeout=60.0) as log:
        log.append_many((b"x" * ENTRY_BYTES for _ in range(entries)), window=10_000)
    return group


def measure(
    directory: Path, names: Sequence[str], rounds: int, seconds: float, entries: int
) -> list[Row]:
    """
    Read each log C{rounds} times, by turns.

    @param seconds: for which a peer is written to.
    @param entries: of our log.
    @raise LoadError: a writer or a reader failed. @raise ChildError: a server did.
    """
    ours = filled(directory / "ours", entries)
    for member in ours.members.values():
        member.pause()
    peers: dict[str, tuple[PeerGroup, int]] = {}
    for name in names:
        peer = make_peer(name, directory)
        peer.start()
        sample = peer.measure(
            peer.generator, body_bytes=ENTRY_BYTES, window=WINDOW, warm_up_s=0.0, seconds=seconds
        )
        peers[name] = peer, sample.acknowledged
        peer.pause()
    rows: list[Row] = []
    for turn in range(rounds):
        for member in ours.members.values():
            member.resume()
        ours.leader()
        for kind in _KINDS:
            found = loaded(ours, "--kind", kind, "--count", 1, seconds=60)
            rows.append({"system": f"dledger, {kind}", "round": turn, **found})
        for member in ours.members.values():
            member.pause()
        for name, (peer, count) in peers.items():
            peer.resume()
            rows.append({"system": f"{name} {peer.version}", "round": turn, **read_peer(peer, count)})
            peer.pause()
    return rows


def show(rows: Sequence[Row]) -> None:
    """Print the rates, and each one's ratio to ours in batches in the same round."""
    rates: dict[str, list[float]] = {}
    for row in rows:
        rates.setdefault(row["system"], []).append(row["entries"] / row["seconds"])
    best = rates[f"dledger, {_KINDS[0]}"]
    counts = {row["system"]: row["entries"] for row in rows}
    ratios = {
        system: median([one / own for one, own in zip(found, best, strict=True)])
        for system, found in rates.items()
    }
    table(f"Entries of {ENTRY_BYTES} bytes read from the begin of the log by one reader", [
        "system", "entries", "entries/s", "to ours in batches",
    ], [
        [system, number(counts[system]), number(median(found)), f"{ratios[system]:.2f}x"]
        for system, found in rates.items()
    ])


@click.command()
@click.option("--peers", default="nats,etcd", show_default=True, help="their names, or nothing")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=5.0, show_default=True, help="for which peers are written to")
@click.option("--entries", default=500_000, show_default=True, help="of our log")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(
    peers: str, rounds: int, seconds: float, entries: int, json_path: str | None, parent: str | None
) -> None:
    """Measure one reader of a whole log."""
    with work_directory(parent) as directory:
        machine = probe_machine(directory)
        try:
            rows = measure(directory, [name for name in peers.split(",") if name], rounds, seconds, entries)
        except (ChildError, LoadError, MissingPeerError) as error:
            raise click.ClickException(str(error)) from error
        except KeyError as error:
            raise click.UsageError(f"--peers: {error} is no peer") from error
        finally:
            end_all()
    show(rows)
    console.print(machine.line())
    write_json(json_path, rows, machine)


if __name__ == "__main__":
    main()
