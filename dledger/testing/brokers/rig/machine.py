# -*- test-case-name: tests.sim.test_raft_clients,tests.sim.test_pairs -*-
"""
A machine with a whole broker on it, of either kind of log, in a process that can be killed, frozen, or end
with the power.

The kind is a L{MakeBroker}: L{dledger.testing.brokers.pairs} makes masters and slaves,
L{dledger.testing.raft_brokers.raft} brokers on raft logs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol, cast

import attrs
from twisted.application.service import IService
from twisted.internet.defer import Deferred

from dledger.base.reactor import Reactor, whole_reactor
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.service import BrokerService
from dledger.testing.world.bugs import BugWatch
from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import PowerLoss
from dledger.testing.world.host import MachineDisk
from dledger.testing.world.process import ProcessReactor, ProcessThread, SimProcess
from dledger.testing.world.streams import ByteNetwork, StreamClient, StreamServer

#: The time of an fsync, in microseconds, while no fault makes it longer.
FLUSH_US = 500
#: Ports of every broker.
CLIENT_PORT, SLAVE_PORT = 10911, 10912
#: Small files, so that every schedule meets their ends.
SMALL: Mapping[str, object] = {
    "store": "/store", "brokerName": "b", "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 20 * 16, "max_hash_slot_num": 16, "max_index_num": 256,
}
#: Bytes of the files of logs in some schedules: most sends take their short road only if a file has room for
#: any record.
LARGE_FILE = 72 * 1024


@attrs.frozen(kw_only=True)
class BrokerWorld:
    """
    The common surroundings of the brokers of a schedule.

    @ivar is_sync: messages are on the disks of all that acknowledge them. Else a failed fsync keeps the
        written bytes: they may have been acknowledged.
    """

    clock: SimClock
    network: ByteNetwork
    bugs: BugWatch
    is_sync: bool


@attrs.frozen(kw_only=True)
class ProcessParts:
    """What a process gives to its broker."""

    process: SimProcess
    reactor: Reactor
    rng: random.Random
    thread: Callable[[], ProcessThread]


@attrs.frozen(kw_only=True)
class MadeBroker:
    """
    What a process runs.

    @ivar service: starts and stops.
    @ivar broker: the service of the broker in it.
    """

    service: IService
    broker: BrokerService


class MakeBroker(Protocol):
    """Makes the service of a process."""

    def __call__(self, machine: BrokerMachine, parts: ProcessParts) -> MadeBroker:
        """@return: not started."""


class BrokerMachine:
    """
    @ivar make: makes the service of its next process.
    @ivar is_up: a process runs.
    @ivar reasons: why processes could not go on, although nothing was done to them.
    @ivar boots: number of processes so far. @ivar disks: how often its disk was replaced.
    @ivar has_old_marks: somebody has put marks of before back.
    @ivar may_fail: its disk was made to fail, so its broker may end itself.
    @ivar happened: called after every event of a process that has made the parts of its broker.
    @ivar exits: called before its process ends after an order to stop.
    @ivar ends: called before its process ends, and with whether the power fails; also when it fails without a
        process.
    """

    def __init__(self, world: BrokerWorld, name: str, rng: random.Random, make: MakeBroker) -> None:
        self.world = world
        self.name = name
        self.make = make
        self.may_fail = self.has_old_marks = False
        self.ends: Callable[[BrokerMachine, bool], None] = lambda machine, power: None
        self.exits: Callable[[BrokerMachine], None] = lambda machine: None
        self.happened: Callable[[BrokerMachine], None] = lambda machine: None
        self.disk = self.new_disk(rng.random())
        self.is_up = False
        self.boots = self.disks = 0
        self.reasons: list[str] = []
        self.flush_us = FLUSH_US
        self._rng = rng
        self._is_stopping = False
        self._threads: list[ProcessThread] = []
        self.process: SimProcess
        self.made: MadeBroker

    def new_disk(self, seed: float) -> MachineDisk:
        """An empty one, as it came with the machine."""
        disk = MachineDisk(random.Random(seed))
        disk.keeps_failed_writes = not self.world.is_sync
        return disk

    def replace_disk(self, disk: MachineDisk) -> None:
        """Another disk is put into the machine while no process runs."""
        assert not self.is_up
        self.disk = disk
        self.disks += 1

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process on the content of the disk, unless one runs."""
        if self.is_up:
            return
        self.is_up = True
        self._is_stopping = False
        self.boots += 1
        process = self.process = SimProcess(self.world.clock, self._rng, self)
        process.run("start", self._start, process)

    def _start(self, process: SimProcess) -> None:
        rng = self._rng
        reactor = whole_reactor(ProcessReactor(process, boot_s=1000.0 + rng.random() * 1000))
        self.wall_s()
        self.disk.makedirs("/store")
        self._threads = []

        def thread() -> ProcessThread:
            self._threads.append(ProcessThread(process, self.disk, rng, took_us=self.flush_us))
            return self._threads[-1]

        self.made = self.make(self, ProcessParts(process=process, reactor=reactor, rng=rng, thread=thread))
        self.made.service.startService()

    def slow_disk(self, us: int) -> None:
        """An fsync takes C{us} from now on."""
        self.flush_us = us
        for thread in self._threads:
            thread.took_us = us

    def fail_once(self, kind: int) -> None:
        """Let the next call of one of four kinds fail. @param kind: 0 to 3: open, read, write, fsync."""
        self.may_fail = True
        self.disk.arm(opens=kind == 0, reads=kind == 1, writes=kind == 2, syncs=kind == 3)

    def fail_start(self, rng: random.Random, paths: tuple[str, ...], *, us: int) -> None:
        """
        Let the next start fail: one call of its disk, or, for a time, each change of some files.

        @param paths: of them, one is drawn; see L{MachineDisk.fail_under}.
        """
        if rng.random() < 0.5:
            self.fail_once(rng.randrange(4))
            return
        self.may_fail = True
        self.disk.fail_under(rng.choice(paths))
        self.world.clock.after(us, self.disk.fail_under, "")

    def slow_checkpoint(self, us: int) -> None:
        """Begin a checkpoint on a disk that is slow for a time. Called within the running process."""
        if self.parts is not None:
            self.world.clock.after(us, self.slow_disk, FLUSH_US)
            self.slow_disk(600_000)
            self.parts.store.checkpoint()

    def server(self, process: SimProcess, port: int = 0) -> StreamServer:
        """The endpoint of a port of this machine; 0: of its only one."""
        return StreamServer(self.world.network, f"{self.name}:{port}" if port else self.name, process)

    def client(self, process: SimProcess, name: str) -> StreamClient:
        """The endpoint of another machine, or of a port of it."""
        return StreamClient(self.world.network, self.name, process, name)

    def wall_s(self) -> float:
        """Seconds since 1970; all machines agree."""
        self.disk.now_s = now_s = 1.7e9 + self.world.clock.now_us / 1e6
        return now_s

    def failed(self, reason: str) -> None:
        """Its process cannot go on, and ends; the reason counts unless its disk was made to fail."""
        if not self.is_up or self.is_dying or self._is_stopping:
            return
        if not self.may_fail:
            self.reasons.append(f"{self.name}: {reason}")
        self.kill()

    def stop(self) -> None:
        """SIGTERM: the broker stops in order."""
        if self.is_up and not self._is_stopping:
            self._is_stopping = True
            self.process.run("signal", self._stop)

    def _stop(self) -> None:
        process = self.process
        stopped = cast("Deferred[None]", self.made.service.stopService())
        stopped.addBoth(lambda _: self.world.clock.after(1, self._exit, process))

    def _exit(self, process: SimProcess) -> None:
        if self.is_up and self.process is process:
            self.exits(self)
            self._end(power=False)

    def kill(self) -> None:
        """SIGKILL: the writes stay."""
        if self.is_up:
            self._end(power=False)

    def lose_power(self) -> None:
        """The machine loses power, whether a process runs or not."""
        if self.is_up:
            self._end(power=True)
        else:
            self.ends(self, True)
            self.disk.lose_power()

    def _end(self, *, power: bool) -> None:
        self.ends(self, power)
        self.is_up = False
        self.process.end()
        self.world.network.died(self.name, self.process, silently=power)
        if power:
            self.disk.lose_power()
        else:
            self.disk.end_process()

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.is_up:
            self.process.freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        if self.is_up and self.process.is_frozen:
            self.process.thaw()

    # -- see ProcessOwner ------------------------------------------------------------------------

    @property
    def is_dying(self) -> bool:
        """Whether the process has died inside the present event, so that its actions have no effect."""
        return self.disk.death is not None

    def event_ended(self) -> None:
        """See L{dledger.testing.world.process.ProcessOwner.event_ended}."""
        death = self.disk.death
        if death is None:
            self.world.bugs.notify()
            if self.parts is not None:
                self.happened(self)
            return
        self.world.bugs.forget()
        if self.is_up:
            self._end(power=isinstance(death, PowerLoss))

    # -- use -------------------------------------------------------------------------------------

    @property
    def parts(self) -> BrokerParts | None:
        """The parts of the running broker; None before they are made."""
        return self.made.broker.broker if self.is_up and hasattr(self, "made") else None

    def call(self, action: Callable[..., object], *arguments: object) -> None:
        """Let the running process do something for a caller within it."""
        if self.is_up:
            self.process.run("caller", action, *arguments)
