# -*- test-case-name: tests.processes.test_load -*-
"""
How long appends pause when the leader dies, and whether leaders change when they should not.

    python -m benchmarks.failover --quick
    python -m benchmarks.failover --kills 30 --flush sync
    python -m benchmarks.failover --hand-over 20
    python -m benchmarks.failover --steady 60
    python -m benchmarks.failover --steady 3600 --busy 50

The leader is killed with SIGKILL again and again. C{elected}: until another member says that it leads;
C{acknowledged}: until the client's next append is committed. With C{--hand-over}, the leader is asked to
hand over while a client appends one entry at a time. With C{--steady}, no member is killed: a loaded group
must keep its leader, so every term beyond the first is a false election; C{--busy} starts as many processes
beside it that compute all the time.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import attrs
import click

import dledger
from benchmarks.common import console, number, probe_machine, quantile, table, work_directory, write_json
from benchmarks.load import PATIENCE_S, load_in_child
from dledger.client.blocking import Log
from dledger.client.errors import AppendError
from tests.processes.children import ChildError, end_all, wait_until
from tests.processes.members import Group

#: A leader takes no other hand-over for a while after one.
_BETWEEN_HAND_OVERS_S = 3.0
_FILES = {"mapped_file_size_for_entry_data": 64 << 20, "mapped_file_size_for_entry_index": 32 << 20}


@attrs.frozen(kw_only=True)
class Failover:
    """One death of a leader; milliseconds since SIGKILL."""

    elected_ms: float
    acknowledged_ms: float


def wait_all_serve(group: Group) -> None:
    """Wait until every member follows the same leader and lags by less than 100 entries."""

    def serving() -> bool:
        said = [member.metadata() for member in group.members.values()]
        if any(answer is None for answer in said):
            return False
        ends = [answer.end_index for answer in said if answer is not None]
        return len({answer.leader_id for answer in said if answer}) == 1 and max(ends) - min(ends) < 100

    wait_until(serving, seconds=30, what="all members at the end of the log", every=0.1)


def append_until_done(log: Log, body: bytes) -> None:
    """Append until one call succeeds; bodies may be doubled, since the log is not read here."""
    deadline = time.monotonic() + 60
    while True:
        try:
            log.append(body)
            return
        except AppendError:
            if time.monotonic() > deadline:
                raise


def kill_once(group: Group, log: Log) -> Failover:
    """Kill the leader, wait for an append, start it again."""
    leader_id = group.leader()
    others = [group.members[peer_id] for peer_id in group.members if peer_id != leader_id]
    append_until_done(log, b"before")
    elected: list[float] = []
    killed_s = time.monotonic()
    group.members[leader_id].kill()

    def watch() -> None:
        while time.monotonic() < killed_s + 60:
            for member in others:
                said = member.metadata(seconds=0.5)
                if said is not None and said.leader_id == member.self_id:
                    elected.append(time.monotonic())
                    return
            time.sleep(0.01)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    append_until_done(log, b"after")
    done_s = time.monotonic()
    watcher.join(5)
    group.members[leader_id].start()
    wait_all_serve(group)
    return Failover(
        elected_ms=(elected[0] - killed_s) * 1000 if elected else float("nan"),
        acknowledged_ms=(done_s - killed_s) * 1000,
    )


def measure_kills(directory: Path, kills: int, flush: str) -> list[Failover]:
    """Kill C{kills} leaders."""
    group = Group(directory, options={"flush_disk_type": flush, **_FILES})
    group.start()
    group.leader()
    found = []
    with dledger.connect(group.peers_text, timeout=20.0) as log:
        for done in range(kills):
            found.append(kill_once(group, log))
            if console.is_terminal:
                console.print(f"{done + 1}/{kills}: {found[-1].acknowledged_ms:.0f} ms")
    group.kill()
    return found


def longest_gap_ms(log: Log, hand_over: Callable[[], int]) -> float:
    """Append one entry at a time while C{hand_over} runs. @return: the longest time between two answers."""
    answered_s: list[float] = []
    is_over = threading.Event()

    def append() -> None:
        while not is_over.is_set():
            append_until_done(log, b"x" * 100)
            answered_s.append(time.monotonic())

    appending = threading.Thread(target=append)
    appending.start()
    try:
        wait_until(lambda: len(answered_s) > 100, seconds=30, what="a hundred appends", every=0.01)
        hand_over()
        enough = len(answered_s) + 100
        wait_until(lambda: len(answered_s) > enough, seconds=30, what="a hundred appends", every=0.01)
    finally:
        is_over.set()
        appending.join()
    return max(later - before for before, later in pairwise(answered_s)) * 1000


def measure_hand_overs(directory: Path, times: int, flush: str) -> list[float]:
    """Hand over C{times} times. @return: the longest pause of a client at each, milliseconds."""
    group = Group(directory, options={"flush_disk_type": flush, **_FILES})
    group.start()
    gaps = []
    with dledger.connect(group.peers_text, timeout=20.0) as log:
        for done in range(times):
            leader_id = group.leader()
            taker_id = [peer_id for peer_id in group.members if peer_id != leader_id][done % 2]
            gaps.append(longest_gap_ms(log, partial(log.transfer, taker_id)))
            wait_all_serve(group)
            time.sleep(_BETWEEN_HAND_OVERS_S)
    group.kill()
    return gaps


def show_hand_overs(gaps: list[float], flush: str) -> dict[str, object]:
    """Print a table. @return: the result for the JSON file."""
    table(
        f"{len(gaps)} hand-overs, {flush}, longest pause of a client, milliseconds",
        ["p50", "p99", "longest"],
        [[number(quantile(gaps, 0.5)), number(quantile(gaps, 0.99)), number(max(gaps))]], left=0,
    )
    return {"hand_overs": len(gaps), "flush": flush, "pauses_ms": gaps}


@contextmanager
def computing(processes: int) -> Iterator[None]:
    """Run C{processes} processes that compute all the time."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
        for one in started:
            one.wait()


def measure_steady(directory: Path, seconds: float, flush: str, busy: int = 0) -> dict[str, object]:
    """
    Load a group with one client at full speed; its term must not change.

    @param busy: processes that compute all the time beside it.
    """
    group = Group(directory, options={"flush_disk_type": flush, "retention_bytes": 1 << 30, **_FILES})
    group.start()
    leader_id = group.leader()
    terms: dict[int, float] = {}
    with dledger.connect(group.peers_text, timeout=20.0 + busy) as log, computing(busy):
        begin_s, first_term = time.monotonic(), log.append(b"first").term

        def look() -> None:
            passed_s = time.monotonic() - begin_s
            said = group.members[leader_id].metadata(seconds=5.0)
            if said is not None and said.term not in terms:
                terms[said.term] = passed_s
                console.print(f"after {passed_s:.0f} s: term {said.term}")

        begin_cpu_s = sum(member.cpu_seconds() for member in group.members.values())
        sample = load_in_child(
            address=group.peers[leader_id], remote_id=leader_id, group="default", wire="client", window=1000,
            body_bytes=100, warm_up_s=0.0, seconds=seconds, peers=group.peers_text, watch=look,
            patience_s=PATIENCE_S * (1 + busy),
        )
        spent_cpu_s = sum(member.cpu_seconds() for member in group.members.values()) - begin_cpu_s
        last_term = log.append(b"last").term
    rss_bytes = max(member.rss_bytes() for member in group.members.values())
    group.kill()
    return {
        "seconds": seconds, "busy": busy, "flush": flush, "false_elections": last_term - first_term,
        "throughput_per_s": sample.throughput_per_s, "p99_ms": sample.p99_ms, "refused": sample.refused,
        "members_cpu_share": spent_cpu_s / seconds, "member_rss_bytes": rss_bytes,
    }


def show_steady(result: dict[str, object]) -> None:
    """Print a table with one row."""
    table(
        f"{result['seconds']:g} s of full load, {result['flush']}",
        ["false elections", "appends/s", "p99 ms", "not acknowledged", "CPUs of the members", "MiB/member"],
        [[
            str(result["false_elections"]), number(float(str(result["throughput_per_s"]))),
            number(float(str(result["p99_ms"]))), str(result["refused"]),
            number(float(str(result["members_cpu_share"]))),
            number(float(str(result["member_rss_bytes"])) / 2**20),
        ]], left=0,
    )


@click.command()
@click.option("--quick", is_flag=True, help="five kills, and ten seconds of load")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--kills", default=20, show_default=True)
@click.option("--flush", type=click.Choice(["async", "sync"]), default="async", show_default=True)
@click.option("--hand-over", type=int, help="hand over so many times instead of kills")
@click.option("--steady", type=float, help="seconds of full load instead of kills")
@click.option("--busy", default=0, help="processes that compute all the time beside --steady")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(
    quick: bool, json_path: str | None, kills: int, flush: str, hand_over: int | None, steady: float | None,
    busy: int, parent: str | None,
) -> None:
    """Measure failover, or false elections under load."""
    results: list[dict[str, object]] = []
    with work_directory(parent) as directory:
        machine = probe_machine(directory)
        try:
            if hand_over is not None:
                gaps = measure_hand_overs(directory / "hand_over", hand_over, flush)
                results.append(show_hand_overs(gaps, flush))
            elif steady is None:
                found = measure_kills(directory / "kills", 5 if quick else kills, flush)
                results.append(show_kills(found, flush))
            if quick or steady is not None:
                seconds = 10.0 if steady is None else steady
                results.append(measure_steady(directory / "steady", seconds, flush, busy))
                show_steady(results[-1])
        except ChildError as error:
            raise click.ClickException(str(error)) from error
        finally:
            end_all()
    console.print(machine.line())
    write_json(json_path, results, machine)


def show_kills(found: list[Failover], flush: str) -> dict[str, object]:
    """Print a table. @return: the result for the JSON file."""
    elected = [one.elected_ms for one in found]
    acknowledged = [one.acknowledged_ms for one in found]
    table(
        f"{len(found)} leaders killed, {flush}, milliseconds since SIGKILL",
        ["until", "p50", "p99", "longest"],
        [
            [name, number(quantile(values, 0.5)), number(quantile(values, 0.99)), number(max(values))]
            for name, values in (("elected", elected), ("acknowledged", acknowledged))
        ],
    )
    return {
        "kills": len(found), "flush": flush, "p50_ms": quantile(acknowledged, 0.5),
        "p99_ms": quantile(acknowledged, 0.99), "max_ms": max(acknowledged),
        "elected_p50_ms": quantile(elected, 0.5), "acknowledged_ms": acknowledged, "elected_ms": elected,
    }


if __name__ == "__main__":
    main()
