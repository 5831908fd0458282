# -*- test-case-name: tests.processes.test_load -*-
"""
How long the turns of a leader's reactor are under load and under attack: p50, p99.9 and the longest.

    python -m benchmarks.turns --quick
    python -m benchmarks.turns --seconds 10 --only batches,catch-up

A turn is everything between two waits for events. Heartbeats, votes and every client wait for its end. A
small client appends in every phase; C{cpu} is processor time of the reactor's thread, C{wall} includes the
time in which other programs had the processor, or the disk was waited for.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import click

from benchmarks.catch_up import Caller, build_ledger, end_of
from benchmarks.common import console, number, probe_machine, table, work_directory, write_json
from benchmarks.load import load_in_child
from benchmarks.turn_meter import bound_ms
from protocols.wire.ledger.codes import PushType, RequestCode
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.hostile.forger import batch, push
from tests.hostile.target import frames, send_slowly
from tests.processes.children import ChildError, end_all, free_ports, peers_text, wait_until
from tests.processes.members import Member

#: The aim for p99.9, milliseconds.
AIM_MS = 20.0
_METERED = "from benchmarks.turn_meter import run; run()"
_ENTRIES = 400_000
_GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@attrs.frozen(kw_only=True)
class Turns:
    """The turns of one phase; milliseconds."""

    phase: str
    turns: int
    cpu_p50_ms: float
    cpu_p999_ms: float
    cpu_max_ms: float
    wall_p999_ms: float
    wall_max_ms: float


class MeteredMember(Member):
    """A member whose turns are measured."""

    def __init__(
        self, self_id: str, peers: dict[str, str], directory: Path, *, extra: tuple[str, ...]
    ) -> None:
        super().__init__(self_id, peers, directory, options={"peer_push_quota": 1 << 40}, extra=extra)
        self.command[2] = _METERED
        self.turns_path = directory / "turns.json"
        self._environment["DLEDGER_TURNS"] = str(self.turns_path)

    def counts(self) -> dict[str, list[int]]:
        """Numbers of turns, by clock."""
        found: dict[str, list[int]] = json.loads(self.turns_path.read_text())
        return found


def quantile_of(counts: list[int], share: float) -> float:
    """The bound of the place that holds this quantile, ms."""
    wanted, seen = share * sum(counts), 0
    for place, count in enumerate(counts):
        seen += count
        if count and seen >= wanted:
            return bound_ms(place)
    return 0.0


@attrs.define
class Stage:
    """A group of three: a leader, a follower, and a third member that comes and goes."""

    directory: Path
    seconds: float
    members: dict[str, MeteredMember]
    admin: dict[str, int]
    leader_id: str = ""

    @property
    def peers(self) -> str:
        """For clients."""
        return peers_text({peer_id: member.address for peer_id, member in self.members.items()})

    @property
    def leader(self) -> MeteredMember:
        """The leader."""
        return self.members[self.leader_id]

    def host_port(self) -> tuple[str, int]:
        """The leader's address."""
        host, _, port = self.leader.address.rpartition(":")
        return host, int(port)

    def repeat(self, act: Callable[[int], None], threads: int) -> None:
        """Run C{act} in threads until the phase is over."""
        stop = time.monotonic() + self.seconds

        def work(thread: int) -> None:
            while time.monotonic() < stop:
                with contextlib.suppress(OSError):
                    act(thread)

        running = [threading.Thread(target=work, args=(one,), daemon=True) for one in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(self.seconds + 20)

    # -- the phases ------------------------------------------------------------------------------

    def calm(self) -> None:
        """The small client alone."""
        time.sleep(self.seconds)

    def batches(self) -> None:
        """A client at full speed."""
        load_in_child(
            address=self.leader.address, remote_id=self.leader_id, group="default", wire="client",
            window=1000, body_bytes=100, warm_up_s=0.0, seconds=self.seconds, peers=self.peers,
        )

    def catch_up(self) -> None:
        """The third member begins anew, again and again."""
        third = self.members["n2"]
        stop = time.monotonic() + self.seconds
        while time.monotonic() < stop:
            third.kill()
            shutil.rmtree(third.ledger_path, ignore_errors=True)
            third.start()
            wait_until(lambda: end_of(third) >= _ENTRIES, seconds=300, what="the end", every=0.2)

    def json_flood(self) -> None:
        """Requests whose bodies are slow to parse."""
        bodies = [b"{'x':[" + b"{'a':1}," * 30_000 + b"1]}", b"{'x':[" + b"{'a':1}," * 500 + b"1]}",
                  b'{"x":[' + b'{"a":1},' * 60_000 + b"1]}"]
        data = [encode_command(RemotingCommand(code=int(RequestCode.METADATA), opaque=1, body=body)) * 3
                for body in bodies]

        def act(thread: int) -> None:
            with socket.create_connection(self.host_port(), timeout=2) as connection:
                while send_slowly(connection, data[thread % 3], seconds=1.0):
                    pass

        self.repeat(act, 6)

    def metrics_flood(self) -> None:
        """Pipelined requests for a page."""
        def act(thread: int) -> None:
            address = ("127.0.0.1", self.admin[self.leader_id])
            with socket.create_connection(address, timeout=2) as connection:
                send_slowly(connection, _GET * (4 if thread % 2 else 1700), seconds=1.0)
                connection.recv(65536)

        self.repeat(act, 6)

    def compare_storm(self) -> None:
        """COMPARE requests in the name of a follower, many in a read."""
        said = self.leader.metadata()
        term = said.term if said is not None else 1
        one = push("n1", self.leader_id, term, PushType.COMPARE, batch(5, term=1, body=b"x" * 1000))
        data = frames(*[one] * 60)

        def act(thread: int) -> None:
            with socket.create_connection(self.host_port(), timeout=2) as connection:
                while send_slowly(connection, data, seconds=1.0):
                    pass

        self.repeat(act, 4)


PHASES: dict[str, Callable[[Stage], None]] = {
    "calm": Stage.calm, "batches": Stage.batches, "catch-up": Stage.catch_up, "json": Stage.json_flood,
    "metrics": Stage.metrics_flood, "compare": Stage.compare_storm,
}


def make_stage(directory: Path, seconds: float) -> Stage:
    """Members n0 and n1 with a ledger, n2 without."""
    ports = free_ports(6)
    peers = {f"n{number}": f"127.0.0.1:{ports[number]}" for number in range(3)}
    admin = {f"n{number}": ports[3 + number] for number in range(3)}
    members = {
        peer_id: MeteredMember(peer_id, peers, directory / peer_id,
                               extra=("--admin", f"tcp:{admin[peer_id]}:interface=127.0.0.1"))
        for peer_id in peers
    }
    build_ledger(directory / "n0", peers_text(peers), _ENTRIES, 0, options={})
    shutil.copytree(members["n0"].ledger_path, members["n1"].ledger_path,
                    ignore=shutil.ignore_patterns("identity"))
    return Stage(directory, seconds, members, admin)


@contextlib.contextmanager
def calling(peers: str) -> Iterator[None]:
    """A small client appends."""
    caller = Caller(peers).start()
    try:
        yield
    finally:
        caller.stop()


def measure(stage: Stage, phase: str) -> Turns:
    """Run one phase."""
    before = stage.leader.counts()
    PHASES[phase](stage)
    time.sleep(0.6)
    after = stage.leader.counts()
    cpu, wall = (
        [late - early for late, early in zip(after[clock], before[clock], strict=True)]
        for clock in ("cpu", "wall")
    )
    return Turns(
        phase=phase, turns=sum(cpu), cpu_p50_ms=quantile_of(cpu, 0.5), cpu_p999_ms=quantile_of(cpu, 0.999),
        cpu_max_ms=quantile_of(cpu, 1.0), wall_p999_ms=quantile_of(wall, 0.999),
        wall_max_ms=quantile_of(wall, 1.0),
    )


def run_phases(directory: Path, phases: list[str], seconds: float) -> list[Turns]:
    """All phases, on one group."""
    stage = make_stage(directory, seconds)
    found = []
    for member in stage.members.values():
        member.start()
    wait_until(lambda: all(end_of(one) >= _ENTRIES for one in stage.members.values()), seconds=300,
               what="the members", every=0.2)

    def leads(member: MeteredMember) -> bool:
        said = member.metadata()
        return said is not None and said.role == "leader"

    for phase in phases:
        leaders = [peer_id for peer_id, member in stage.members.items() if leads(member)]
        if not leaders:
            raise ChildError(f"nobody leads before {phase}")
        stage.leader_id = leaders[0]
        if phase == "catch-up" and stage.leader_id == "n2":
            continue
        with calling(stage.peers):
            found.append(measure(stage, phase))
    return found


def show(found: list[Turns]) -> None:
    """Print a table."""
    table(
        f"turns of the leader's reactor, ms; aim: p99.9 <= {AIM_MS:g}",
        ["phase", "turns", "cpu p50", "cpu p99.9", "cpu longest", "wall p99.9", "wall longest"],
        [[one.phase, str(one.turns), *(number(value) for value in (
            one.cpu_p50_ms, one.cpu_p999_ms, one.cpu_max_ms, one.wall_p999_ms, one.wall_max_ms,
        ))] for one in found],
    )


@click.command()
@click.option("--quick", is_flag=True, help="three seconds for each phase")
@click.option("--seconds", default=8.0, show_default=True, help="for each phase")
@click.option("--only", default=",".join(PHASES), show_default=True, help="phases, separated by commas")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(quick: bool, seconds: float, only: str, json_path: str | None, parent: str | None) -> None:
    """Measure turns."""
    phases = only.split(",")
    unknown = [phase for phase in phases if phase not in PHASES]
    if unknown:
        raise click.UsageError(f"--only {unknown[0]}: the phases are {', '.join(PHASES)}")
    with work_directory(parent) as directory:
        machine = probe_machine(directory)
        try:
            found = run_phases(directory / "group", phases, 3.0 if quick else seconds)
        except ChildError as error:
            raise click.ClickException(str(error)) from error
        finally:
            end_all()
    show(found)
    console.print(machine.line())
    write_json(json_path, [attrs.asdict(one) for one in found], machine)


if __name__ == "__main__":
    main()
