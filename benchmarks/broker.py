# -*- test-case-name: tests.interop.test_ha_benchmark -*-
"""
Brokers on a raft log: three of RocketMQ in DLedger mode, three of ours, and our master with one synchronous
slave, side by side in one run.

    python -m benchmarks.broker --quick
    python -m benchmarks.broker --rounds 3 --json broker.json

The rows C{java raft}, C{raft} and C{sync} have the same producer, Java's; C{raft-native} and C{sync-native}
have ours and its frames of many messages. Groups take turns, and those that wait are paused; a figure is the
median over the rounds, a ratio the median of the rounds' ratios. All flush asynchronously.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import click

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
    PATIENCE_S,
    QUEUES,
    SYNC_MASTER,
    Broker,
    JavaLoad,
    Load,
    OurLoad,
    Pair,
    start_pairs,
)
from benchmarks.load import LoadError, Sample, paired_ratio
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse
from tests.interop.java import JavaMissing
from tests.interop.raft_brokers import GROUP
from tests.interop.rocketmq import Server, write_properties
from tests.processes.asking import NoAnswer, ask
from tests.processes.children import (
    Child,
    ChildError,
    end_all,
    free_ports,
    free_triple,
    peers_text,
    wait_until,
)
from tests.processes.members import ROOT

_TWISTD = "from twisted.scripts.twistd import run; run()"
VERSION = "5.3.3"
JAVA_RAFT, RAFT, SYNC = "java raft", "raft", "sync"

#: Ratios that are aimed at, at windows 1, 64 and 1000: ours by Java's, with Java's producer.
JAVA_AIMS = {1: 3.0, 64: 3.0, 1000: 2.0}
#: Raft by our synchronous pair, at these windows.
SYNC_AIM, SYNC_AIM_WINDOWS = 0.7, (64, 1000)


class RaftGroup:
    """Three brokers of one kind."""

    def __init__(self, directory: Path, *, is_java: bool, name_server: str = "") -> None:
        """@param name_server: where they register; empty: nowhere."""
        self._names = {"namesrvAddr": name_server} if name_server else {}
        self.title = JAVA_RAFT if is_java else RAFT
        home = directory / self.title.replace(" ", "-")
        ids = ("n0", "n1", "n2")
        self._peers = {one: f"127.0.0.1:{port}" for one, port in zip(ids, free_ports(3), strict=True)}
        self._ports = {one: free_triple() for one in ids}
        self.children: dict[str, Child] = {one: self._made(one, home / one, is_java) for one in ids}

    def _made(self, peer_id: str, home: Path, is_java: bool) -> Child:
        properties = {
            "brokerName": GROUP, "listenPort": self._ports[peer_id], "brokerIP1": "127.0.0.1",
            "storePathRootDir": home / "store", "storePathCommitLog": home / "store" / "commitlog",
            "enableDLegerCommitLog": True, "dLegerGroup": GROUP, "dLegerPeers": peers_text(self._peers),
            "dLegerSelfId": peer_id, "defaultTopicQueueNums": QUEUES, "diskMaxUsedSpaceRatio": 95,
            "brokerFastFailureEnable": False, "osPageCacheBusyTimeOutMills": 60000, **self._names,
        }
        if is_java:
            return Server(f"java {peer_id}", "broker.BrokerStartup", properties, home, VERSION)
        configuration = home / "broker.conf"
        write_properties(configuration, properties)
        return Child(
            f"ours {peer_id}",
            [sys.executable, "-c", _TWISTD, "-n", "--pidfile=", "dledger-broker", "-c", str(configuration)],
            log_path=home / "broker.log", environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )

    def start(self) -> None:
        """Start all."""
        for child in self.children.values():
            child.start()

    def pause(self) -> None:
        """They use no processor time."""
        for child in self.children.values():
            child.pause()

    def resume(self) -> None:
        """Go on."""
        for child in self.children.values():
            child.resume()

    def kill(self) -> None:
        """End all."""
        for child in self.children.values():
            child.kill()

    def cpu_seconds(self) -> float:
        """Processor time of all so far."""
        return sum(child.cpu_seconds() for child in self.children.values())

    def address(self) -> str | None:
        """Of the leader, as it says itself."""
        for peer_id, address in self._peers.items():
            try:
                said = ask(address, MetadataRequest(group=GROUP, remote_id=peer_id), seconds=2.0)
            except NoAnswer:
                continue
            if isinstance(said, MetadataResponse) and said.leader_id == peer_id:
                return f"127.0.0.1:{self._ports[peer_id]}"
        return None

    def settle(self, load: Load) -> str:
        """Send until a message is taken. @return: the address that took it."""
        found: list[str] = []

        def takes() -> bool:
            address = self.address()
            if address is None:
                return False
            try:
                sample = load.run(address, body_bytes=100, window=1, warm_up_s=0.0, seconds=0.3)
            except LoadError:
                return False
            if sample.acknowledged and not sample.refused:
                found[:] = [address]
            return bool(found)

        wait_until(takes, seconds=PATIENCE_S, what=f"{self.title} takes messages", every=0.3)
        return found[0]


class SyncPair:
    """Our master with a synchronous slave, as a L{RaftGroup}."""

    title = SYNC

    def __init__(self, directory: Path) -> None:
        self._pair = Pair(directory, "ours", SYNC_MASTER)
        self.children: dict[str, Broker] = {"master": self._pair.master, "slave": self._pair.slave}
        self.pause, self.resume, self.kill = self._pair.pause, self._pair.resume, self._pair.kill
        self.cpu_seconds = self._pair.cpu_seconds

    def start(self) -> None:
        """Start both."""
        start_pairs([self._pair])

    def settle(self, load: Load) -> str:
        """See L{RaftGroup.settle}."""
        self._pair.settle(load)
        return self._pair.master.address


@attrs.frozen(kw_only=True)
class Row:
    """One row of the results."""

    system: str
    body_bytes: int
    window: int


@attrs.define
class Rounds:
    """The samples of a row, one for each round; None for a round that failed."""

    samples: list[Sample | None] = attrs.Factory(list)
    cpus: list[float] = attrs.Factory(list)

    @property
    def per_s(self) -> float:
        """Messages per second, median."""
        return median([one.throughput_per_s for one in self.samples if one is not None])


Found = dict[Row, Rounds]


def ratio(found: Found, above: Row, below: Row) -> float:
    """Round by round; NaN if no round has both."""
    if above not in found or below not in found:
        return float("nan")
    return paired_ratio(found[above].samples, found[below].samples)


def _measure(
    directory: Path, windows: Sequence[int], bodies: Sequence[int], rounds: int, seconds: float,
    train_s: float,
) -> Found:
    java_load, our_load = JavaLoad(directory), OurLoad()
    java_load.start()
    groups: list[RaftGroup | SyncPair] = [
        RaftGroup(directory, is_java=True), RaftGroup(directory, is_java=False), SyncPair(directory),
    ]
    found: Found = {}
    try:
        for group in groups:
            console.print(f"starting {group.title}")
            group.start()
            address = group.settle(java_load)
            java_load.run(address, body_bytes=100, window=max(windows), warm_up_s=0.0, seconds=train_s)
            group.pause()
        for number_of in range(rounds):
            for body_bytes in bodies:
                for window in windows:
                    for group in groups if number_of % 2 == 0 else reversed(groups):
                        group.resume()
                        address = group.settle(java_load)
                        loads: list[tuple[str, Load]] = [(group.title, java_load)]
                        if group.title != JAVA_RAFT:
                            loads.append((f"{group.title}-native", our_load))
                        for title, load in loads:
                            row = Row(system=title, body_bytes=body_bytes, window=window)
                            begin_s, cpu_s = time.monotonic(), group.cpu_seconds()
                            try:
                                sample: Sample | None = load.run(
                                    address, body_bytes=body_bytes, window=window,
                                    warm_up_s=min(seconds, 0.5), seconds=seconds,
                                )
                            except LoadError as error:
                                console.print(f"{title}: {error}", markup=False)
                                sample = None
                            measured = found.setdefault(row, Rounds())
                            measured.samples.append(sample)
                            measured.cpus.append(
                                (group.cpu_seconds() - cpu_s) / (time.monotonic() - begin_s)
                            )
                        group.pause()
    finally:
        for group in groups:
            group.kill()
        java_load.child.kill()
    return found


def _show(found: Found, machine: Machine) -> None:
    rows = []
    for row in sorted(found, key=lambda one: (one.body_bytes, one.window, one.system)):
        measured = found[row]
        by_java = ratio(found, row, attrs.evolve(row, system=JAVA_RAFT)) if row.system != JAVA_RAFT else 1.0
        native = "-native" if row.system.endswith("-native") else ""
        by_sync = ratio(found, row, attrs.evolve(row, system=SYNC + native)) if RAFT in row.system else 1.0
        p50 = median([one.p50_ms for one in measured.samples if one is not None])
        p99 = median([one.p99_ms for one in measured.samples if one is not None])
        rows.append([
            str(row.body_bytes), str(row.window), row.system, number(measured.per_s), number(p50),
            number(p99), f"{by_java:.2f}", f"{by_sync:.2f}", number(median(measured.cpus)),
        ])
    table("Messages to a group of three (sync: a pair)", [
        "bytes", "window", "system", "messages/s", "p50 ms", "p99 ms", "/ java raft", "/ sync", "CPUs",
    ], rows, left=3)
    for row in found:
        if row.system != RAFT:
            continue
        aims = [(ratio(found, row, attrs.evolve(row, system=JAVA_RAFT)), JAVA_AIMS.get(row.window), "Java")]
        if row.window in SYNC_AIM_WINDOWS:
            aims.append((ratio(found, row, attrs.evolve(row, system=SYNC)), SYNC_AIM, "sync"))
        for value, aim, what in aims:
            if aim is not None and value == value:
                verdict = "reached" if value >= aim else "MISSED"
                console.print(f"aim: {row.body_bytes} B x {row.window}: at least {aim:g} of {what}: "
                              f"{value:.2f} {verdict}")
    console.print(machine.line())


@click.command()
@click.option("--quick", is_flag=True, help="one short round of 100 bytes")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--windows", default="1,64,1000", show_default=True, help="messages in flight")
@click.option("--bodies", default="100,1024", show_default=True, help="bytes")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="measured span of one run")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(
    quick: bool, json_path: str | None, windows: str, bodies: str, rounds: int, seconds: float,
    parent: str | None,
) -> None:
    """Measure brokers on raft logs, RocketMQ's and ours."""
    sizes = [int(word) for word in bodies.split(",")]
    with work_directory(parent) as directory:
        machine = probe_machine(directory)
        try:
            found = _measure(
                directory, [int(word) for word in windows.split(",")], sizes[:1] if quick else sizes,
                1 if quick else rounds, 0.5 if quick else seconds, 0.5 if quick else 6.0,
            )
        except (ChildError, JavaMissing) as error:
            raise click.ClickException(str(error)) from error
        finally:
            end_all()
    _show(found, machine)
    write_json(json_path, [
        {**attrs.asdict(row), "throughput_per_s": measured.per_s, "rounds_per_s": [
            None if one is None else round(one.throughput_per_s, 1) for one in measured.samples
        ]} for row, measured in found.items()
    ], machine)


if __name__ == "__main__":
    main()
