# -*- test-case-name: tests.hostile.test_soak -*-
"""
The faults of a soak, each from its beginning to its end.

Rule: no fault is beyond what a group of three bears: one copy at a time is lost or damaged, and before the
next fault all members are in step and healthy. Only a failed write or fsync may end a member by itself.
"""

from __future__ import annotations

import errno
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import dledger
from protocols.wire.ledger.messages import LeadershipTransferRequest
from tests.processes.asking import NoAnswer, ask
from tests.processes.children import Child
from tests.slowness import patient
from tests.soak.world import World

BLOCK = 4096
#: Seconds within which the scrub must have found a bad block, and a peer given it back.
MENDED_S = 60.0
#: Seconds within which a change of the members must be in force.
CHANGED_S = 60.0
#: Words for a member that is new.
_JOIN = ("--set", "join=true")
_BUSY = "while True: pass"
_SMALL_FILES = ("currterm", "termvote", "commitmark", "checkpoint")
#: Faults after which a member may have ended by itself.
ENDING = frozenset({"failed_sync", "failed_write"})

Fault: TypeAlias = "Callable[[], None]"


class Faults:
    """Plays the faults on one world."""

    def __init__(self, world: World, chance: random.Random, hold_s: tuple[float, float]) -> None:
        """@param hold_s: the shortest and the longest time of a fault."""
        self._world = world
        self._chance = chance
        self._hold_s = hold_s

    def kinds(self, only: str = "") -> dict[str, Fault]:
        """What can be played here, by name. @param only: names, with commas between them; empty: all."""
        names = [
            "kill_leader", "kill_follower", "kill_all", "kill_storm", "stop_leader", "restart_all",
            "freeze_leader_shortly", "freeze_leader", "freeze_follower", "freeze_two", "hand_over",
            "new_disk", "busy_machine", "flip_data", "flip_index", "flip_small_file", "leave_and_return",
        ]
        if self._world.network.may_cut:
            names += ["isolate_leader", "isolate_follower", "leader_unheard", "leader_deaf", "cut_one_pair"]
        if self._world.has_disks:
            names += ["full_disk", "full_leader", "full_everywhere"]
        if self._world.shims:
            names += ["slow_sync", "failed_sync", "failed_write", "failed_reads", "slow_reads", "bad_block",
                      "no_room_in_place", "no_room_in_place_anywhere", "slow_leader", "failed_rename",
                      "clock_ahead", "clock_back", "clocks_apart"]
        chosen = [name for name in names if not only or name in only.split(",")]
        return {name: getattr(self, f"_{name}") for name in chosen}

    # -- who, and how long --------------------------------------------------------------------------

    def _hold(self, share: float = 1.0) -> None:
        time.sleep(self._chance.uniform(*self._hold_s) * share)

    def _follower(self) -> str:
        leader = self._world.leader()
        return self._chance.choice([name for name in self._world.members if name != leader])

    def _any(self) -> str:
        return self._chance.choice(list(self._world.members))

    # -- processes ------------------------------------------------------------------------------------

    def _kill(self, *names: str) -> None:
        for name in names:
            self._world.members[name].kill()
        self._hold(0.5)

    def _kill_leader(self) -> None:
        self._kill(self._world.leader())

    def _kill_follower(self) -> None:
        self._kill(self._follower())

    def _kill_all(self) -> None:
        self._kill(*self._world.members)

    def _kill_storm(self) -> None:
        name = self._any()
        for _ in range(6):
            self._world.members[name].kill()
            self._world.members[name].start()
            self._hold(0.2)

    def _stop_leader(self) -> None:
        self._world.members[self._world.leader()].stop(seconds=30)
        self._hold(0.3)

    def _restart_all(self) -> None:
        for member in self._world.members.values():
            member.stop(seconds=30)
            member.start()
            self._world.wait_in_step()

    def _freeze(self, *names: str, share: float = 1.0) -> None:
        for name in names:
            self._world.members[name].pause()
        self._hold(share)
        for name in names:
            self._world.members[name].resume()

    def _freeze_leader_shortly(self) -> None:
        self._freeze(self._world.leader(), share=0.2)

    def _freeze_leader(self) -> None:
        self._freeze(self._world.leader(), share=3.0)

    def _freeze_follower(self) -> None:
        self._freeze(self._follower(), share=2.0)

    def _freeze_two(self) -> None:
        self._freeze(self._world.leader(), self._follower())

    def _hand_over(self) -> None:
        leader, follower = self._world.leader(), self._follower()
        try:
            ask(self._world.network.addresses[leader], LeadershipTransferRequest(
                group="default", remote_id=leader, transfer_id=leader, transferee_id=follower), seconds=5.0)
        except NoAnswer:
            pass  # the leader was another one by now

    def _new_disk(self) -> None:
        name = self._follower()
        self._world.members[name].kill()
        self._world.wipe(name)

    def _leave_and_return(self) -> None:
        """A follower leaves the group, and comes back: with an empty directory, or as it was."""
        name, has_new_disk = self._follower(), self._chance.random() < 0.7
        member, address = self._world.members[name], self._world.network.addresses[name]
        with dledger.connect(self._world.peers, timeout=10.0) as log:
            _insist(log, "remove", name)
            self._hold(0.5)
            if has_new_disk:
                member.kill()
                self._world.wipe(name)
                member.command += _JOIN
                member.start()
            _insist(log, "add", name, address)
            _insist(log, "promote", name)
        if has_new_disk:
            del member.command[-len(_JOIN):]

    def _busy_machine(self) -> None:
        loops = [Child(f"busy {number}", [sys.executable, "-c", _BUSY],
                       log_path=self._world.directory / "busy.log") for number in range(6)]
        try:
            for loop in loops:
                loop.start()
            self._hold(2.0)
        finally:
            for loop in loops:
                loop.kill()

    # -- network --------------------------------------------------------------------------------------

    def _isolate(self, name: str) -> None:
        self._world.network.isolate(name)
        self._hold(2.0)

    def _isolate_leader(self) -> None:
        self._isolate(self._world.leader())

    def _isolate_follower(self) -> None:
        self._isolate(self._follower())

    def _leader_unheard(self) -> None:
        """Its messages to the others are lost; it hears them."""
        leader = self._world.leader()
        for name in self._world.members:
            if name != leader:
                self._world.network.block(leader, name)
        self._hold(2.0)

    def _leader_deaf(self) -> None:
        """The messages of the others are lost; they hear it."""
        leader = self._world.leader()
        for name in self._world.members:
            if name != leader:
                self._world.network.block(name, leader)
        self._hold(2.0)

    def _cut_one_pair(self) -> None:
        leader, follower = self._world.leader(), self._follower()
        self._world.network.block(leader, follower)
        self._world.network.block(follower, leader)
        self._hold(2.0)

    # -- disks ----------------------------------------------------------------------------------------

    @contextmanager
    def _full(self, *names: str) -> Iterator[None]:
        for name in names:
            self._world.fill(name)
        try:
            yield
        finally:
            for name in names:
                self._world.free(name)

    def _full_disk(self) -> None:
        with self._full(self._follower()):
            self._hold()

    def _full_leader(self) -> None:
        with self._full(self._world.leader()):
            self._hold(2.0)

    def _full_everywhere(self) -> None:
        with self._full(*self._world.members):
            self._hold()
            self._kill(self._world.leader())

    @contextmanager
    def _armed(self, *names: str, **faults: int) -> Iterator[None]:
        for name in names:
            self._world.shims[name].arm(**faults)
        try:
            yield
        finally:
            for name in names:
                self._world.shims[name].disarm()

    def _slow_sync(self) -> None:
        with self._armed(self._any(), sync_us=self._chance.choice((50_000, 300_000, 800_000))):
            self._hold(2.0)

    def _slow_leader(self) -> None:
        """Reads and fsyncs of the leader take long."""
        with self._armed(self._world.leader(), sync_us=200_000, read_us=50_000):
            self._hold(2.0)

    def _failed_sync(self) -> None:
        with self._armed(self._any(), sync_errno=errno.EIO):
            self._hold()

    def _failed_write(self) -> None:
        with self._armed(self._any(), write_errno=errno.EIO):
            self._hold()

    def _failed_rename(self) -> None:
        with self._armed(self._any(), rename_errno=errno.EIO):
            self._hold()

    def _clock_ahead(self) -> None:
        with self._armed(self._world.leader(), clock_s=self._chance.choice((600, 86_400, 400 * 86_400))):
            self._hold()

    def _clock_back(self) -> None:
        with self._armed(self._any(), clock_s=-self._chance.choice((600, 86_400, 400 * 86_400))):
            self._hold(2.0)

    def _clocks_apart(self) -> None:
        """No two members agree, and another one leads."""
        with ExitStack() as armed:
            for name in self._world.members:
                armed.enter_context(self._armed(name, clock_s=self._chance.randrange(-3000, 3000)))
            self._hold()
            self._kill(self._world.leader())

    def _failed_reads(self) -> None:
        """Nothing can be read for a while."""
        with self._armed(self._any(), read_errno=errno.EIO):
            self._hold()

    def _slow_reads(self) -> None:
        with self._armed(self._any(), read_us=self._chance.choice((2000, 20_000, 200_000))):
            self._hold(2.0)

    def _no_room_in_place(self) -> None:
        """A file system that copies on write is full: its member may have to vote meanwhile."""
        names = (self._follower(),)
        with self._armed(*names, write_errno=errno.ENOSPC):
            self._hold(0.5)
            self._freeze(self._world.leader(), share=2.0)

    def _no_room_in_place_anywhere(self) -> None:
        with self._armed(*self._world.members, write_errno=errno.ENOSPC):
            self._hold(0.5)
            self._freeze(self._world.leader(), share=2.0)

    def _bad_block(self) -> None:
        """A block of a closed file cannot be read until it is written."""
        name = self._any()
        files = self._world.closed_files(name, "data")
        if not files:
            return
        path = self._chance.choice(files)
        start = self._chance.randrange(path.stat().st_size // BLOCK) * BLOCK
        shim = self._world.shims[name]
        shim.arm(bad=(path, start, start + BLOCK))
        deadline = time.monotonic() + patient(MENDED_S)
        while shim.has_bad_block and time.monotonic() < deadline:
            time.sleep(0.1)
        if shim.has_bad_block:
            self._world.ended.append(f"bad_block: {path} at {start} of {name} was not mended")
        shim.disarm()

    # -- damage ---------------------------------------------------------------------------------------

    def _flip(self, name: str, kind: str) -> None:
        files = self._world.closed_files(name, kind)
        if files:
            path = self._chance.choice(files)
            _flip_bit(path, self._chance.randrange(path.stat().st_size * 8))

    def _flip_data(self) -> None:
        self._flip(self._any(), "data")

    def _flip_index(self) -> None:
        self._flip(self._any(), "index")

    def _flip_small_file(self) -> None:
        name = self._follower()
        self._world.members[name].kill()
        path = self._world.members[name].ledger_path / self._chance.choice(_SMALL_FILES)
        if path.exists() and path.stat().st_size:
            _flip_bit(path, self._chance.randrange(min(path.stat().st_size, 60) * 8))


def _insist(log: dledger.Log, change: str, name: str, address: str = "") -> None:
    """Ask for a change until it is in force."""
    deadline = time.monotonic() + patient(CHANGED_S)
    while True:
        try:
            log.change_members(change, name, address)
            return
        except dledger.DLedgerError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _flip_bit(path: object, bit: int) -> None:
    with open(str(path), "r+b") as file:
        file.seek(bit // 8)
        (value,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([value ^ 1 << bit % 8]))
