# -*- test-case-name: tests.processes.test_load -*-
"""
How fast followers that are millions of entries behind catch up, and what the group's clients notice of it.

    python -m benchmarks.catch_up --quick
    python -m benchmarks.catch_up --entries 3000000 --body-bytes 0
    python -m benchmarks.catch_up --followers 2

A leader and one follower (of a group of three, or five with two followers behind) have the same ledger; the
others are empty. A client appends one entry at a time, before and while they catch up. In the same run the
same files are copied on the same disk, with an fsync at the end, once before and once after: the rate of a
follower is compared with the mean of both. C{--quota} limits the rate (C{peer_push_quota}).

A body of 0 bytes makes records of 48 bytes, the shortest there are.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import attrs
import click

import dledger
from benchmarks.common import console, number, probe_machine, quantile, table, work_directory, write_json
from benchmarks.open_ledger import flush_store
from dledger.base.disk.disk import OsDisk
from dledger.client.errors import AppendError
from dledger.storage.files.term_file import TermFile
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from tests.processes.children import ChildError, end_all, wait_until
from tests.processes.members import Group, Member

#: Aims: part of the rate of a plain copy, and the client's p99 relative to before.
AIM_COPY = 0.6
AIM_P99 = 2.0
_BATCH = 512
_FLUSH_BYTES = 64 << 20
_OPTIONS = {"mapped_file_size_for_entry_data": 256 << 20, "mapped_file_size_for_entry_index": 64 << 20}
_CALM_S = 4.0
_POLL_S = 0.1


@attrs.frozen(kw_only=True)
class CaughtUp:
    """The result of one run; rates in bytes of data and index per second."""

    entries: int
    file_bytes: int
    seconds: float
    rate: float
    copy_rate: float
    leader_cpu_s: float
    follower_cpu_s: float
    calm_p99_ms: float
    busy_p99_ms: float
    elections: int


def build_ledger(
    directory: Path, peers: str, entries: int, body_bytes: int, options: Mapping[str, int] = _OPTIONS
) -> None:
    """Fill the ledger of a member that is down."""
    config = DLedgerConfig(store_base_dir=str(directory), self_id="n0", peers=peers, **options)
    store = FileStore.open(config, OsDisk())
    terms = TermFile(OsDisk(), config.self_path, member_ids=config.peers)
    terms.take_up(ledger_end_term=-1)
    terms.save(1, "n0")
    bodies = (b"x" * body_bytes,) * _BATCH
    unsynced = 0
    while store.ledger_end_index < entries:
        store.append_bodies(bodies, 1)
        unsynced += _BATCH * (body_bytes + 80)
        if unsynced >= _FLUSH_BYTES:
            flush_store(store)
            unsynced = 0
    flush_store(store)
    store.record_commit(store.ledger_end_index)
    store.identity.end_unsure()  # its directory is new, but it lacks nothing
    store.clean_close()
    terms.close()


def file_bytes(member: Member) -> int:
    """Bytes that its data and index files take on the disk."""
    paths = [path for name in ("data", "index") for path in (member.ledger_path / name).iterdir()]
    return sum(path.stat().st_blocks * 512 for path in paths)


def copy_rate(member: Member, target: Path) -> float:
    """Bytes per second of a plain copy of its files, with an fsync at the end."""
    size, began_s = file_bytes(member), time.monotonic()
    for name in ("data", "index"):
        for path in sorted((member.ledger_path / name).iterdir()):
            whole = path.stat().st_blocks * 512
            (target / name).mkdir(parents=True, exist_ok=True)
            with open(path, "rb") as source, open(target / name / path.name, "wb") as copy:
                left = min(whole, path.stat().st_size)
                while left > 0:
                    left -= os.sendfile(copy.fileno(), source.fileno(), None, min(left, 8 << 20)) or left
                os.fsync(copy.fileno())
    took_s = time.monotonic() - began_s
    shutil.rmtree(target)
    return size / took_s


class Caller:
    """A client that appends one entry after the other."""

    def __init__(self, peers: str) -> None:
        self._peers = peers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.taken_s: list[tuple[float, float]] = []

    def start(self) -> Caller:
        """Begin."""
        self._thread.start()
        return self

    def _run(self) -> None:
        with dledger.connect(self._peers, timeout=30.0) as log:
            while not self._stop.wait(0.005):
                began_s = time.monotonic()
                try:
                    log.append(b"calm")
                except AppendError:
                    continue
                self.taken_s.append((began_s, time.monotonic() - began_s))

    def p99_ms(self, begin_s: float, end_s: float) -> float:
        """Of the appends that began in this time."""
        taken = [took_s for began_s, took_s in self.taken_s if begin_s <= began_s < end_s]
        return quantile(taken, 0.99) * 1000 if taken else float("nan")

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(40)


def measure(directory: Path, entries: int, body_bytes: int, followers: int, quota: int) -> CaughtUp:
    """One run."""
    options = {**_OPTIONS, "peer_push_quota": quota} if quota else {**_OPTIONS, "peer_push_quota": 1 << 40}
    if quota:
        options["peer_push_throttle_point"] = 1 << 20
    group = Group(directory, size=1 + 2 * followers, options=options)
    members = list(group.members.values())
    full, behind = members[: 1 + followers], members[1 + followers :]
    build_ledger(full[0].directory, group.peers_text, entries, body_bytes)
    for member in full[1:]:
        # Without the file that names its owner.
        shutil.copytree(full[0].ledger_path, member.ledger_path, ignore=shutil.ignore_patterns("identity"))
    for member in full:
        member.start()
    leader = group.members[group.leader(among=tuple(one.self_id for one in full), seconds=60)]
    before = copy_rate(full[0], directory / "copy")
    caller = Caller(group.peers_text).start()
    wait_until(lambda: len(caller.taken_s) > 20, seconds=60, what="the client's first appends")
    calm_from_s = time.monotonic()
    while time.monotonic() < calm_from_s + _CALM_S:  # asked as often as later
        end_of(leader)
        time.sleep(_POLL_S)
    calm_to_s = time.monotonic()
    said = leader.metadata()
    term, cpu_s = said.term if said is not None else -1, leader.cpu_seconds()
    for member in behind:
        member.start()
    began_s = wait_until_moving(behind)
    wait_until(lambda: all(end_of(one) >= entries for one in behind), seconds=1800, what="the followers' end",
               every=_POLL_S)
    ended_s = time.monotonic()
    leader_cpu_s = leader.cpu_seconds() - cpu_s
    follower_cpu_s = max(one.cpu_seconds() for one in behind)
    caller.stop()
    said = leader.metadata()
    after = copy_rate(full[0], directory / "copy")
    size = file_bytes(full[0])
    found = CaughtUp(
        entries=entries, file_bytes=size, seconds=ended_s - began_s, rate=size / (ended_s - began_s),
        copy_rate=(before + after) / 2, leader_cpu_s=leader_cpu_s, follower_cpu_s=follower_cpu_s,
        calm_p99_ms=caller.p99_ms(calm_from_s, calm_to_s), busy_p99_ms=caller.p99_ms(began_s, ended_s),
        elections=(said.term if said is not None else -1) - term,
    )
    group.kill()
    return found


def end_of(member: Member) -> int:
    """Its last index."""
    said = member.metadata(seconds=10.0)
    return -1 if said is None else said.end_index


def wait_until_moving(behind: list[Member]) -> float:
    """Wait for the first entries of every follower. @return: when that was."""
    wait_until(lambda: all(end_of(one) >= 0 for one in behind), seconds=120, what="the first entries",
               every=0.02)
    return time.monotonic()


def show(found: CaughtUp, body_bytes: int, followers: int) -> None:
    """Print a table."""
    table(
        f"{followers} follower(s) {found.entries:,} entries of {body_bytes + 48} B behind",
        ["", "measured", "aim"],
        [
            ["s", number(found.seconds), ""],
            ["entries/s each", number(found.entries / found.seconds), ""],
            ["MiB/s each, data and index", number(found.rate / 2**20), ""],
            ["MiB/s, plain copy", number(found.copy_rate / 2**20), ""],
            ["part of the copy rate", number(found.rate / found.copy_rate), f">= {AIM_COPY}"],
            ["CPU s, leader", number(found.leader_cpu_s), ""],
            ["CPU s, follower", number(found.follower_cpu_s), ""],
            ["client's p99 ms before", number(found.calm_p99_ms), ""],
            ["client's p99 ms meanwhile", number(found.busy_p99_ms), f"<= {AIM_P99} x"],
            ["elections", str(found.elections), "0"],
        ],
    )


@click.command()
@click.option("--quick", is_flag=True, help="300,000 entries")
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--entries", default=3_000_000, show_default=True)
@click.option("--body-bytes", default=0, show_default=True)
@click.option("--followers", type=click.IntRange(1, 2), default=1, show_default=True, help="that are behind")
@click.option("--quota", default=0, show_default=True, help="bytes per second for a follower; 0: no limit")
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(
    quick: bool, json_path: str | None, entries: int, body_bytes: int, followers: int, quota: int,
    parent: str | None,
) -> None:
    """Measure catch-up."""
    if quick:
        entries = 300_000
    with work_directory(parent) as directory:
        machine = probe_machine(directory)
        try:
            found = measure(directory / "group", entries, body_bytes, followers, quota)
        except ChildError as error:
            raise click.ClickException(str(error)) from error
        finally:
            end_all()
    show(found, body_bytes, followers)
    console.print(machine.line())
    result = {"body_bytes": body_bytes, "followers": followers, **attrs.asdict(found)}
    write_json(json_path, [result], machine)


if __name__ == "__main__":
    main()
