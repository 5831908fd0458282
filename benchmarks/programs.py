# -*- test-case-name: tests.processes.test_load -*-
"""
State machines in members: how fast a member brings one up to the end of its log, and what a snapshot costs
the appends meanwhile. The machine is C{examples/kv}.

    python -m benchmarks.programs --quick
    python -m benchmarks.programs --commands 2000000 --mebibytes 1024

C{apply}: a member starts on a log of small commands without a snapshot; the entries that its machine
applies, by the member's own counter, are divided by the seconds, and by those that its process had a
processor. Reading and checking the log is part of it.

C{snapshot}: three members hold a state of C{--mebibytes}. One client appends 100 bytes at a time; its
latencies while at least one member writes a snapshot are set beside those before. All three members write
theirs on the disk and the processors of this one machine.

(Exactly once and the asyncio client: C{python -m benchmarks.append --peers exact,aio}.)
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

import dledger
from benchmarks.common import (
    console,
    median,
    number,
    probe_machine,
    quantile,
    table,
    work_directory,
    write_json,
)
from benchmarks.load import ROOT
from dledger.base.disk.disk import OsDisk
from dledger.storage.files.term_file import TermFile
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from tests.processes.children import ending, free_ports, wait_until
from tests.processes.members import Group, Member

#: What issues ask for: commands a second of one processor; p99 during a snapshot by p99 before.
AIM_APPLIED_PER_S, AIM_RATIO = 100_000, 3.0
_KV = ROOT / "examples" / "kv"
_BATCH = 256
_VALUE_BYTES = 64 * 1024
_NEVER = 2**31 - 1
_SNAPSHOT_S = 300.0


def _put(key: str, value: str) -> bytes:
    """As C{examples/kv} makes it."""
    return json.dumps({"does": "put", "key": key, "value": value}, sort_keys=True).encode()


def _with_machine(
    self_id: str, peers: Mapping[str, str], directory: Path, port: int, options: Mapping[str, object]
) -> Member:
    return Member(
        self_id, peers, directory, modules=_KV, options=options,
        extra=("--machine", "store:KeyValueStore", "--admin", f"tcp:{port}:interface=127.0.0.1"),
    )


def machine_of(port: int) -> dict[str, Any]:
    """The machine in the status of the member with this admin port; empty if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10) as page:
            found: dict[str, Any] = json.loads(page.read())["machine"]
            return found
    except OSError:
        return {}


def fill_with_commands(directory: Path, commands: int, peers: str) -> None:
    """A cleanly closed log of one member with C{commands} small commands on a thousand keys."""
    config = DLedgerConfig(store_base_dir=str(directory), self_id="n0", peers=peers)
    store = FileStore.open(config, OsDisk())
    terms = TermFile(OsDisk(), config.self_path, member_ids=config.peers)
    terms.take_up(ledger_end_term=-1)
    terms.save(1, "n0")
    bodies = tuple(_put(f"key-{at % 1000}", f"value {at}") for at in range(_BATCH))
    for _ in range(commands // _BATCH):
        store.append_bodies(bodies, 1)
    store.record_commit(store.ledger_end_index)
    store.clean_close()


def measure_apply(directory: Path, commands: int) -> dict[str, object]:
    """One start of a member on the log."""
    address_port, port = free_ports(2)
    peers = {"n0": f"127.0.0.1:{address_port}"}
    fill_with_commands(directory, commands, f"n0-{peers['n0']}")
    member = _with_machine("n0", peers, directory, port, {"machine_snapshot_entries": _NEVER})
    seen: list[tuple[float, float, int]] = []

    def at_the_end() -> bool:
        found = machine_of(port)
        if found and found["applied"] > 0:
            seen.append((time.monotonic(), member.cpu_seconds(), found["applied"]))
        return bool(found) and found["state"] == "running" and found["applied"] >= commands - _BATCH

    with ending(member):
        member.start()
        wait_until(at_the_end, seconds=60 + commands / 5000, what="a machine at the end", every=0.1)
    if len(seen) < 3:
        raise click.ClickException(f"only {len(seen)} looks at the machine: take more --commands")
    (begin_s, begin_cpu_s, before), (end_s, end_cpu_s, after) = seen[0], seen[-1]
    applied = after - before
    return {
        "what": "apply", "commands": applied, "per_s": applied / (end_s - begin_s),
        "per_processor_s": applied / (end_cpu_s - begin_cpu_s),
    }


def _append_for(log: dledger.Log, seconds: float, is_over: Callable[[], bool]) -> list[float]:
    """Latencies, in ms, of appends one after the other; for C{seconds}, and on until C{is_over()}."""
    found: list[float] = []
    end_s = time.monotonic() + seconds
    looked_s = 0.0
    while True:
        now_s = time.monotonic()
        if now_s >= end_s + _SNAPSHOT_S:
            raise click.ClickException(f"not within {_SNAPSHOT_S:g} s: a snapshot at each member")
        if now_s >= end_s and now_s - looked_s > 0.5:
            looked_s = now_s
            if is_over():
                return found
        began_s = time.perf_counter()
        log.append(b"x" * 100)
        found.append((time.perf_counter() - began_s) * 1000)


def measure_snapshot(directory: Path, mebibytes: int, seconds: float) -> dict[str, object]:
    """Fill the state, measure for C{seconds}, bring about a snapshot, and measure until all are written."""
    state_bytes = mebibytes * 2**20
    group = Group(directory)
    ports = dict(zip(group.peers, free_ports(len(group.peers)), strict=True))
    # The commands to fill the state stay below the bound, and one large value more exceeds it.
    options = {"machine_snapshot_entries": _NEVER, "machine_snapshot_bytes": state_bytes + 2 * 2**20}
    for peer_id in group.peers:
        group.members[peer_id] = _with_machine(
            peer_id, group.peers, directory / peer_id, ports[peer_id], options
        )
    value = "v" * _VALUE_BYTES
    try:
        group.start()
        group.leader(seconds=60)
        with dledger.connect(group.peers_text, timeout=120.0) as log:
            count = state_bytes // _VALUE_BYTES
            for at in range(0, count, 16):
                log.append_many([_put(f"key-{key}", value) for key in range(at, min(at + 16, count))])
            wait_until(lambda: all(machine_of(port).get("lag") == 0 for port in ports.values()),
                       seconds=120, what="machines with the whole state")
            before = _append_for(log, seconds, lambda: True)
            log.append(_put("key-0", "v" * (3 * 2**20)))
            began_s = time.monotonic()
            during = _append_for(
                log, 0.0, lambda: all(_is_written(machine_of(port)) for port in ports.values())
            )
            spent_s = time.monotonic() - began_s
        taken = [machine_of(port) for port in ports.values()]
    finally:
        group.kill()
    result: dict[str, object] = {
        "what": "snapshot", "state_bytes": median([one["snapshot_size"] for one in taken]),
        "seconds": spent_s,
    }
    for name, latencies in (("before", before), ("during", during)):
        result[f"{name}_count"] = len(latencies)
        for which, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            result[f"{name}_{which}_ms"] = quantile(latencies, share)
    return result


def _is_written(machine: Mapping[str, Any]) -> bool:
    if machine and machine["snapshot_problem"]:
        raise click.ClickException(f"a snapshot failed: {machine['snapshot_problem']}")
    return bool(machine) and machine["snapshots"] > 0 and not machine["is_writing"]


def _show(results: list[dict[str, Any]]) -> None:
    for row in results:
        if row["what"] == "apply":
            table("Commands applied at the start of a member", ["commands", "/s", "/s of its processor"],
                  [[f"{row['commands']:,}", number(row["per_s"]), number(row["per_processor_s"])]])
            verdict = "reached" if row["per_processor_s"] >= AIM_APPLIED_PER_S else "MISSED"
            console.print(f"aim: {AIM_APPLIED_PER_S:,} commands/s of one processor: {verdict}")
            continue
        table(
            f"Appends of 100 bytes, one at a time; a snapshot of {row['state_bytes'] / 2**20:.0f} MiB "
            f"at each of three members in {row['seconds']:.1f} s",
            ["", "appends", "p50 ms", "p99 ms", "max ms"],
            [[name, f"{row[name + '_count']:,}", *(number(row[f"{name}_{which}_ms"])
                                                   for which in ("p50", "p99", "max"))]
             for name in ("before", "during")],
        )
        ratio = row["during_p99_ms"] / row["before_p99_ms"]
        verdict = "reached" if ratio <= AIM_RATIO else "MISSED"
        console.print(f"aim: p99 at most {AIM_RATIO:g} times that before: {number(ratio)}: {verdict}")


@click.command()
@click.option("--quick", is_flag=True, help="400,000 commands, a state of 64 MiB")
@click.option("--parts", default="apply,snapshot", show_default=True)
@click.option("--commands", default=2_000_000, show_default=True, type=click.IntRange(min=10 * _BATCH))
@click.option("--mebibytes", default=256, show_default=True, type=click.IntRange(min=1))
@click.option("--seconds", default=10.0, show_default=True, help="of appends before the snapshot")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(
    quick: bool, parts: str, commands: int, mebibytes: int, seconds: float, json_path: str | None,
    parent: str | None,
) -> None:
    """Measure state machines in members."""
    if quick:
        commands, mebibytes, seconds = 400_000, 64, 3.0
    wanted = parts.split(",")
    if unknown := set(wanted) - {"apply", "snapshot"}:
        raise click.UsageError(f"--parts={parts}: {', '.join(sorted(unknown))} is not apply or snapshot")
    results: list[dict[str, Any]] = []
    with work_directory(parent) as place:
        machine = probe_machine(place)
        if "apply" in wanted:
            results.append(measure_apply(place / "apply", commands))
        if "snapshot" in wanted:
            results.append(measure_snapshot(place / "snapshot", mebibytes, seconds))
    _show(results)
    console.print(machine.line())
    write_json(json_path, results, machine)


if __name__ == "__main__":
    main()
