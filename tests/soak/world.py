# -*- test-case-name: tests.hostile.test_soak -*-
"""Members and clients of a soak, and the waits until a group is in step again."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dledger
from protocols.wire.ledger.machines import QueryRequest, QueryResponse
from protocols.wire.ledger.messages import MetadataResponse
from tests.processes.asking import ask
from tests.processes.children import Child, ChildError, peers_text, wait_until
from tests.processes.members import ROOT, Member, ended_well
from tests.slowness import patient
from tests.soak.network import CLIENTS, Network
from tests.soak.shim import Shim, build_shim

IDS = ("n0", "n1", "n2")
DISK_MIB = 128
#: Small files, so that closed ones are there soon, and are read again and again.
OPTIONS = {
    "flush_disk_type": "sync", "mapped_file_size_for_entry_data": 1 << 18,
    "mapped_file_size_for_entry_index": 32 * 2048, "scrub_pause_ms": 3000, "scrub_bytes_per_s": 1 << 24,
    "change_hosts": CLIENTS, "insecure": True, "machine_snapshot_entries": 400, "entry_times_ms": 50,
}
MACHINE = ("--machine", "tests.soak.machine:Digests")
#: Seconds in which the scrub has read all closed files again.
SCRUBBED_S = 8.0
#: By which the times of entries may be ahead of all true clocks.
AHEAD = timedelta(hours=1)
#: Seconds within which a group must be in step after a fault.
IN_STEP_S = 90.0


class World:
    """
    @ivar shims: of each member; none without a compiler.
    @ivar has_disks: whether each member has a small disk of its own.
    @ivar ended: members that ended by themselves: the fault, the member and the last line of its log.
    """

    def __init__(self, directory: Path, *, may_cut: bool, clients: int, seed: int) -> None:
        self.directory = directory
        self.network = Network(IDS, directory, may_cut=may_cut)
        self.members: dict[str, Member] = {}
        self.shims: dict[str, Shim] = {}
        self.has_disks = may_cut
        self.ended: list[str] = []
        library = build_shim(directory)
        for name in IDS:
            member = Member(name, self.network.addresses, directory / name, options=OPTIONS, extra=MACHINE)
            member.directory.mkdir()
            if may_cut:
                subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs",
                                str(member.directory)], check=True)
                member.log_path = directory / f"{name}.log"
            member.command[:0] = self.network.prefix(name)
            if library is not None:
                self.shims[name] = Shim(library, directory / f"{name}.shim", member.ledger_path)
                member._environment.update(self.shims[name].environment)
            self.members[name] = member
        self.peers = peers_text(self.network.addresses)
        names = [*(f"w{number}" for number in range(clients)), "p0", "p1", "r0", "r1", "m0", "m1"]
        self.histories = [directory / f"{name}.calls" for name in names]
        self.workers = [
            Child(path.stem, [sys.executable, "-m", "tests.soak.worker", self.peers, path.stem, str(seed),
                              str(path)],
                  log_path=directory / "workers.log", environment={"PYTHONPATH": str(ROOT)}, talks=True)
            for path in self.histories
        ]

    # -- up and down ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Members, then clients."""
        for member in self.members.values():
            member.start()
        self.wait_in_step()
        for worker in self.workers:
            worker.start()
        wait_until(lambda: any(one is not None and one.committed_index > 50 for one in self.said().values()),
                   seconds=60, what="appends of the clients")

    def start_ended(self, fault: str, *, may_end: bool) -> None:
        """
        Start the members that run no more.

        @param may_end: the fault may end a member by itself: a failed write or fsync.
        """
        for name, member in self.members.items():
            if member.is_running:
                continue
            status = member.exit_status
            if not may_end and status is not None and status != -9 and not ended_well(status):
                self.ended.append(f"{fault}: {name} ended by itself: {_why(member)}")
            member.start()

    def stop(self) -> list[str]:
        """End clients, then members, in order. @return: what went wrong."""
        wrong = []
        for worker in self.workers:
            worker.pipes[0].close()
            if worker.wait(seconds=30):
                wrong.append(f"a client ended with {worker.exit_status}: {worker.log_tail(3)}")
        time.sleep(patient(SCRUBBED_S))
        self.wait_in_step("stop")
        wrong += [*self._last_states(), *self._times_ahead()]
        return wrong + [f"{name} ended with {status}" for name, member in self.members.items()
                        if not ended_well(status := member.stop(seconds=30))]

    def _last_states(self) -> list[str]:
        """Note the answers of all state machines. @return: a sentence if they differ for long."""
        states: dict[str, str] = {}

        def agree() -> bool:
            for name, member in self.members.items():
                answer = ask(member.address, QueryRequest(
                    group="default", remote_id=name, query=b"", max_age_ms=60_000))
                result = answer.result if isinstance(answer, QueryResponse) else None
                states[name] = (result or b"").decode()
            return len(set(states.values())) == 1

        try:
            wait_until(agree, seconds=30, what="state machines that agree")
        except ChildError as error:
            return [f"{error}: {states}"]
        now = time.monotonic_ns()
        lines = [["state", now, now, "ok", int(state.partition(":")[0]), state] for state in states.values()]
        with open(self.histories[-1], "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return []

    def _times_ahead(self) -> list[str]:
        """@return: a sentence if times of entries are far ahead: clocks of single members were wrong."""
        with dledger.connect(self.peers, timeout=30.0) as log:
            end = log.metadata().committed_index
            first = log.find_time(datetime.now(UTC) + 2 * AHEAD)
        return [] if first > end else [f"the entry {first - 1} and those after it have times that are ahead"]

    def close(self) -> None:
        """End everything."""
        for child in (*self.workers, *self.members.values()):
            child.kill()
        self.network.close()
        if self.has_disks:
            for member in self.members.values():
                subprocess.run(["umount", "-l", str(member.directory)], capture_output=True)

    # -- looking ---------------------------------------------------------------------------------------

    def said(self) -> dict[str, MetadataResponse | None]:
        """The members' own status."""
        return {name: member.metadata(seconds=1.0) for name, member in self.members.items()}

    def leader(self) -> str:
        """The member that a majority follows; any one if there is none now."""
        named = [one.leader_id for one in self.said().values() if one is not None and one.leader_id]
        leaders = [name for name in named if name in self.members and named.count(name) > len(IDS) // 2]
        return leaders[0] if leaders else IDS[0]

    def wait_in_step(
        self, fault: str = "", *, may_end: bool = False, seconds: float = IN_STEP_S
    ) -> float:
        """
        Wait until all members are healthy and have what was committed at the beginning; start those that end.

        @param fault, may_end: see L{start_ended}.
        @return: the seconds that it took.
        @raise ChildError: not within C{seconds}.
        """
        began, wanted = time.monotonic(), -2
        while time.monotonic() < began + patient(seconds):
            self.start_ended(fault, may_end=may_end)
            said = self.said()
            whole = [one for one in said.values() if one is not None]
            if wanted < -1 and len(whole) > len(IDS) // 2:
                wanted = max(one.committed_index for one in whole)
            if len(whole) == len(IDS) and wanted > -2 and all(
                one.leader_id and not one.health and one.committed_index >= wanted for one in whole
            ):
                return time.monotonic() - began
            time.sleep(0.1)
        state = {name: one and (one.leader_id, one.committed_index, one.health) for name, one in said.items()}
        tails = "\n".join(member.log_tail(5) for member in self.members.values())
        raise ChildError(f"not in step within {patient(seconds):.0f} s: {state}\n{tails}")

    def closed_files(self, name: str, kind: str) -> list[Path]:
        """Files of a member's C{data} or C{index}, except the last ones."""
        directory = self.members[name].ledger_path / kind
        paths = directory.iterdir() if directory.exists() else ()
        return sorted(path for path in paths if path.name.isdecimal())[:-1]

    def fill(self, name: str) -> None:
        """Use all of a member's disk."""
        with open(self.members[name].directory / "filler", "ab", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                try:
                    while file.write(b"x" * size) == size:
                        pass
                except OSError:
                    pass

    def free(self, name: str) -> None:
        """Make room again."""
        (self.members[name].directory / "filler").unlink(missing_ok=True)

    def wipe(self, name: str) -> None:
        """The member has a new disk."""
        shutil.rmtree(self.members[name].ledger_path)


def _why(member: Member) -> str:
    """Why a member stopped, by its log."""
    text = member.log_path.read_text(errors="replace")
    lines = [line for line in text.splitlines() if " stops: " in line or "#critical]" in line]
    return lines[-1] if lines else member.log_tail(2)
