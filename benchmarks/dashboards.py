# -*- test-case-name: tests.test_latency -*-
"""
What open dashboards cost a member under full load.

    python -m benchmarks.dashboards --rounds 5

One client keeps 1000 appends outstanding at a group of three. Round after round it is measured without and
with browsers: each asks the leader's page of numbers every two seconds, as the page's script does. Besides
the rates it compares the processor time of the leader for each append, which other programs of the machine
change less, and reports the share of a processor that the browsers take of a leader that does nothing else.
"""

from __future__ import annotations

import http.client
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click

from benchmarks.common import console, probe_machine
from benchmarks.load import Sample, load_in_child, paired_ratio
from tests.processes.children import ending, free_ports
from tests.processes.members import Group, Member

#: Seconds between two questions of a browser: as in C{dledger/admin/dashboard/page.js}.
EVERY_S = 2.0


class Browser:
    """Asks again and again. @ivar answers: pages that it was given."""

    def __init__(self, port: int, over: threading.Event) -> None:
        self.answers = 0
        self._port, self._over = port, over
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
            try:
                connection.request("GET", "/live", headers={"Accept": "text/html"})
                self.answers += connection.getresponse().status == 200
            except OSError:
                pass
            finally:
                connection.close()
            self._over.wait(EVERY_S)


@contextmanager
def browsing(port: int, count: int) -> Iterator[list[Browser]]:
    """Browsers, begun one after the other within their two seconds."""
    over = threading.Event()
    browsers = [Browser(port, over) for _ in range(count)]
    try:
        for one in browsers:
            one.thread.start()
            over.wait(EVERY_S / count)
        yield browsers
    finally:
        over.set()
        for one in browsers:
            one.thread.join(timeout=15)


def idle_share(member: Member, seconds: float) -> float:
    """The share of a processor that a member takes for some seconds."""
    before_s, began_s = member.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (member.cpu_seconds() - before_s) / (time.monotonic() - began_s)


def _measured(group: Group, leader_id: str, window: int, seconds: float) -> tuple[Sample, float]:
    """@return: also, processor time of the leader for each append, seconds."""
    leader = group.members[leader_id]
    before_s = leader.cpu_seconds()
    sample = _load(group, leader_id, window, seconds)
    return sample, (leader.cpu_seconds() - before_s) / max(sample.acknowledged, 1)


def _load(group: Group, leader_id: str, window: int, seconds: float) -> Sample:
    return load_in_child(
        address=group.peers[leader_id], remote_id=leader_id, group=group.name, wire="client", window=window,
        body_bytes=100, warm_up_s=0.5, seconds=seconds, peers=group.peers_text,
    )


def _group(directory: Path, ports: Mapping[str, int], group: Group) -> None:
    for peer_id, port in ports.items():
        group.members[peer_id] = Member(
            peer_id, group.peers, directory / peer_id, group=group.name,
            extra=("--admin", f"tcp:{port}:interface=127.0.0.1"),
        )


@click.command()
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=4.0, show_default=True, type=click.FloatRange(0.5))
@click.option("--browsers", default=10, show_default=True, type=click.IntRange(1, 60))
@click.option("--window", default=1000, show_default=True, type=click.IntRange(1))
def main(rounds: int, seconds: float, browsers: int, window: int) -> None:
    """Measure by turns."""
    console.print(probe_machine(Path(tempfile.gettempdir())).line())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as held:
        group = Group(Path(held), name="bench")
        ports = dict(zip(group.peers, free_ports(len(group.peers)), strict=True))
        _group(Path(held), ports, group)
        with ending(*group.members.values()):
            group.start()
            leader_id = group.leader()
            alone: list[tuple[Sample, float]] = []
            watched: list[tuple[Sample, float]] = []
            answers = 0
            for number in range(rounds):
                for is_watched in (number % 2 == 0, number % 2 == 1):
                    if not is_watched:
                        alone.append(_measured(group, leader_id, window, seconds))
                        continue
                    with browsing(ports[leader_id], browsers) as open_pages:
                        watched.append(_measured(group, leader_id, window, seconds))
                    answers += sum(one.answers for one in open_pages)
                (one, one_s), (other, other_s) = alone[-1], watched[-1]
                console.print(
                    f"round {number + 1}: alone {one.throughput_per_s:,.0f}/s, {one_s * 1e6:.2f} us each, "
                    f"with {browsers} dashboards {other.throughput_per_s:,.0f}/s, {other_s * 1e6:.2f} us each"
                )
            leader = group.members[leader_id]
            idle = idle_share(leader, 2 * seconds)
            with browsing(ports[leader_id], browsers):
                shown = idle_share(leader, 2 * seconds)
    rates = paired_ratio([one for one, _ in watched], [one for one, _ in alone])
    times = median(seen_s / alone_s for (_, seen_s), (_, alone_s) in zip(watched, alone, strict=True))
    console.print(
        f"medians of the ratios: rate {rates:.3f}, processor time an append {times:.3f}; {answers} "
        f"pages were answered. An idle leader takes {idle:.1%} of a processor, with them {shown:.1%}"
    )


if __name__ == "__main__":
    main()
