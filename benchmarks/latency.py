# -*- test-case-name: tests.test_latency -*-
"""
Takes one append apart: where its microseconds go, beside the least that the same hops can cost.

    python -m benchmarks.latency --rounds 5 --json FILE

A client of ours appends to three members, one entry at a time. Points in all four processes
(L{benchmarks.trace_points}) say when an append passes them, by one clock. In the same run, by turns, two
relays go the same way without doing anything else (L{benchmarks.relay}): plain Python with epoll, and bare
Twisted. A run without points shows what the points cost.

    append()  client  ->  leader reads  ->  it has written  ->  it has pushed
                                              |
              client  <-  leader answers  <-  follower reads, writes, answers
"""

from __future__ import annotations

import itertools
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import click
from rich.table import Table

from benchmarks.common import console, probe_machine, quantile
from benchmarks.relay import ANSWER
from benchmarks.trace_points import READ, SEND, STORE, STORED
from tests.processes.children import Child, ending, peers_text, wait_until
from tests.processes.members import ROOT, Group, Member

#: Bytes of a body, of the frame around it, and appends that are not counted.
BODY_BYTES, FRAME_BYTES = 100, 64
WARM_UP = 500

#: The parts of an append, in order: from one moment to the next.
PARTS = (
    ("client", "call, choose the leader, encode"),
    ("wire", "client to leader"),
    ("leader", "decode, route, decide, lay out"),
    ("disk", "leader writes"),
    ("leader", "read the entry back, encode the push"),
    ("wire", "leader to follower, with the push to the other one"),
    ("follower", "decode, check, decide"),
    ("disk", "follower writes"),
    ("follower", "encode the answer"),
    ("wire", "follower to leader"),
    ("leader", "count, commit, answer"),
    ("wire", "leader to client"),
    ("client", "decode, outcome to the program"),
)

_CLIENT = """
import json, sys, time
from benchmarks.trace_points import TracePoints
from dledger.client.client import LogClient
from twisted.internet import reactor
peers, count, is_traced = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "traced"
points = TracePoints()
if is_traced:
    points.set()
client = LogClient(peers, reactor=reactor, wire="binary")
spans, body = [], b"x" * {body}

def ask():
    spans.append(time.perf_counter_ns())
    points.note("call")
    client.append(body).addCallbacks(reported, failed)

def reported(_appended):
    now = time.perf_counter_ns()
    points.note("reported")
    spans[-1] = now - spans[-1]
    if len(spans) < count:
        reactor.callLater(0, ask)
    else:
        reactor.stop()

def failed(failure):
    sys.stderr.write(failure.getErrorMessage())
    reactor.stop()

reactor.callWhenRunning(lambda: client.metadata().addCallbacks(lambda _: ask(), failed))
reactor.run()
print(json.dumps([spans, points.moments if is_traced else []]))
""".replace("{body}", str(BODY_BYTES))

Moments = Sequence[tuple[str, int]]


@attrs.frozen(kw_only=True)
class Taken:
    """
    Times of appends or round trips, in microseconds.

    @ivar parts: of each part its times; empty without points.
    """

    whole: tuple[float, ...]
    parts: tuple[tuple[float, ...], ...] = ()


class _Walk:
    """The moments of one process, read once in their order."""

    def __init__(self, moments: Moments) -> None:
        self._moments = [(str(name), int(at)) for name, at in moments]
        self._at = 0

    def next(self, name: str, after: int, until: int) -> int | None:
        """When the process next passes the point C{name} between two moments; None if it does not."""
        while self._at < len(self._moments) and self._moments[self._at][1] <= until:
            found, at = self._moments[self._at]
            if found == name and at >= after:
                return at
            self._at += 1
        return None


def parts_of(client: Moments, leader: Moments, followers: Sequence[Moments]) -> list[list[float]]:
    """
    The parts of each append that all its points show, in microseconds.

    @param client, leader, followers: the moments of the processes.
    """
    asked, leading = _Walk(client), _Walk(leader)
    following = [_Walk(one) for one in followers]
    calls = [int(at) for name, at in client if name == "call"]
    ends = [int(at) for name, at in client if name == "reported"]
    found: list[list[float]] = []
    for called, reported in zip(calls, ends, strict=False):
        moments = _moments_of(called, reported, asked, leading, following)
        if moments is not None:
            found.append([(after - before) / 1000 for before, after in itertools.pairwise(moments)])
    return found


def _moments_of(
    called: int, reported: int, asked: _Walk, leading: _Walk, following: Sequence[_Walk]
) -> list[int] | None:
    """The moments of one append in their order; None if some are missing."""
    moments = [called]

    def pass_by(walk: _Walk, *names: str) -> bool:
        for name in names:
            at = walk.next(name, moments[-1], reported)
            if at is None:
                return False
            moments.append(at)
        return True

    if not (pass_by(asked, SEND) and pass_by(leading, READ, STORE, STORED, SEND)):
        return None
    # Two pushes go out one right after the other; the first answer counts.
    ways: list[list[int]] = []
    pushed = len(moments)
    for walk in following:
        del moments[pushed:]
        if pass_by(walk, READ, STORE, STORED, SEND):
            ways.append(moments[pushed:])
    del moments[pushed:]
    if not ways:
        return None
    moments += min(ways, key=lambda way: way[-1])
    if not (pass_by(leading, READ, SEND) and pass_by(asked, READ, "reported")):
        return None
    return moments


class _TracedMember(Member):
    """A member with points."""

    def __init__(
        self, self_id: str, peers: Mapping[str, str], directory: Path, *, options: Mapping[str, object],
        moments: Path,
    ) -> None:
        """@param moments: the file to which it writes them when it ends."""
        super().__init__(self_id, peers, directory, options=options)
        words = self.command[self.command.index("-n") :]
        self.command = [sys.executable, "-m", "benchmarks.trace_points", str(moments), *words]


class _Relay:
    """A leader and two followers that relay."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.children: list[Child] = []
        self._kind, self._directory, self._port = kind, directory, ""
        self._size = BODY_BYTES + FRAME_BYTES

    def start(self) -> None:
        """Start the followers, then the leader."""
        kind, directory = self._kind, self._directory
        ports = [self._started(kind, "follower", directory / f"{kind}-{number}") for number in range(2)]
        self._port = self._started(kind, "leader", directory / f"{kind}-leader", *ports)

    def _started(self, kind: str, role: str, path: Path, *ports: str) -> str:
        child = Child(
            f"{kind} {role}",
            [sys.executable, "-m", "benchmarks.relay", kind, role, str(self._size), str(path), *ports],
            log_path=path.with_suffix(".log"), environment={"PYTHONPATH": str(ROOT)},
        )
        self.children.append(child)
        child.start()
        wait_until(lambda: child.log_path.exists() and child.log_path.read_text().strip().isdigit(),
                   seconds=30.0, what=f"{child.name} listens", notify=child.log_tail)
        return child.log_path.read_text().strip()

    def measure(self, count: int) -> Taken:
        """One round trip at a time. The relays end with the connection."""
        message, spans = bytes(self._size), []
        with socket.create_connection(("127.0.0.1", int(self._port))) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(WARM_UP + count):
                began = time.perf_counter_ns()
                link.sendall(message)
                left = len(ANSWER)
                while left:
                    left -= len(link.recv(left)) or left
                spans.append((time.perf_counter_ns() - began) / 1000)
        return Taken(whole=tuple(spans[WARM_UP:]))


def measure_relay(kind: str, count: int) -> Taken:
    """A fresh relay."""
    with tempfile.TemporaryDirectory() as held:
        relay = _Relay(kind, Path(held))
        try:
            relay.start()
            return relay.measure(count)
        finally:
            for child in relay.children:
                child.kill()


def measure_appends(count: int, flush: str, *, is_traced: bool) -> Taken:
    """A fresh group, and a client that appends one entry at a time."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as held, ExitStack() as stack:
        directory = Path(held)
        group = Group(directory, options={"flush_disk_type": flush})
        if is_traced:
            for peer_id in group.peers:
                group.members[peer_id] = _TracedMember(
                    peer_id, group.peers, directory / peer_id, options={"flush_disk_type": flush},
                    moments=directory / f"{peer_id}.json",
                )
        stack.enter_context(ending(*group.members.values()))
        group.start()
        leader_id = group.leader()
        done = subprocess.run(
            [sys.executable, "-c", _CLIENT, peers_text(group.peers), str(WARM_UP + count),
             "traced" if is_traced else "plain"],
            capture_output=True, text=True, timeout=600, cwd=ROOT, stdin=subprocess.DEVNULL, check=False,
        )
        if done.returncode or not done.stdout:
            raise click.ClickException(f"the client ended early: {done.stderr[-1000:]}")
        spans, client = json.loads(done.stdout)
        whole = tuple(span / 1000 for span in spans[WARM_UP:])
        if not is_traced:
            return Taken(whole=whole)
        for member in group.members.values():
            member.send(signal.SIGTERM)
            member.wait(seconds=30.0)
        reported = {one: json.loads((directory / f"{one}.json").read_text()) for one in group.peers}
        followers = [reported[one] for one in group.peers if one != leader_id]
        rows = parts_of(client, reported[leader_id], followers)[WARM_UP:]
        if not rows:
            raise click.ClickException("no append passed all points: is the leader another one now?")
        return Taken(whole=whole, parts=tuple(zip(*rows, strict=True)))


def _middle(rounds: Sequence[Taken], share: float) -> float:
    return statistics.median(quantile(one.whole, share) for one in rounds)


def summary(rounds: Mapping[str, Sequence[Taken]]) -> dict[str, Any]:
    """Medians over the rounds, in microseconds, and ratios to the relay with epoll."""
    epoll = _middle(rounds["epoll relay"], 0.5)
    systems = {
        name: {"p50_us": _middle(taken, 0.5), "p99_us": _middle(taken, 0.99),
               "times_epoll": _middle(taken, 0.5) / epoll}
        for name, taken in rounds.items()
    }
    traced = [one for taken in rounds.values() for one in taken if one.parts]
    parts = [
        {"who": who, "part": part,
         "p50_us": statistics.median(quantile(one.parts[number], 0.5) for one in traced)}
        for number, (who, part) in enumerate(PARTS)
    ] if traced else []
    return {"systems": systems, "parts": parts}


def _print(result: Mapping[str, Any]) -> None:
    table = Table(title="One at a time, 100 bytes, microseconds", title_justify="left")
    for heading in ("", "p50", "p99", "times epoll"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, one in result["systems"].items():
        table.add_row(name, f"{one['p50_us']:.0f}", f"{one['p99_us']:.0f}", f"{one['times_epoll']:.2f}")
    console.print(table)
    table = Table(title="The parts of one append (with points)", title_justify="left")
    for heading in ("", "part", "p50"):
        table.add_column(heading, justify="right" if heading == "p50" else "left")
    for one in result["parts"]:
        table.add_row(one["who"], one["part"], f"{one['p50_us']:.0f}")
    table.add_row("", "sum of the medians", f"{sum(one['p50_us'] for one in result['parts']):.0f}")
    console.print(table)


def _turns(rounds: int, count: int, flush: str) -> Iterator[tuple[str, Taken]]:
    for number in range(rounds):
        console.print(f"round {number + 1} of {rounds} ...")
        yield "epoll relay", measure_relay("epoll", count)
        yield "Twisted relay", measure_relay("twisted", count)
        yield f"dledger {flush}", measure_appends(count, flush, is_traced=False)
        yield f"dledger {flush}, with points", measure_appends(count, flush, is_traced=True)


@click.command()
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--count", default=3000, show_default=True, type=click.IntRange(100, 100_000),
              help="Appends of a round.")
@click.option("--flush", default="async", show_default=True, type=click.Choice(["async", "sync"]))
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path))
def main(rounds: int, count: int, flush: str, json_path: Path | None) -> None:
    """Measure by turns, and print both tables."""
    machine = probe_machine(Path(tempfile.gettempdir()))
    console.print(machine.line())
    taken: dict[str, list[Taken]] = {}
    for name, one in _turns(rounds, count, flush):
        taken.setdefault(name, []).append(one)
    result = summary(taken)
    _print(result)
    if json_path is not None:
        facts = {"machine": attrs.asdict(machine), "rounds": rounds, "count": count, "flush": flush}
        json_path.write_text(json.dumps({**facts, **result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
