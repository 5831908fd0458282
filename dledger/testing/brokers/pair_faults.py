# -*- test-case-name: tests.sim.test_pairs,tests.sim.test_replicated_logs -*-
"""The machines of a master and its slaves, the links between them, what befalls them, and their operator."""

from __future__ import annotations

import random
from collections.abc import Mapping
from zlib import crc32

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.rocketmq.replication.slave import DecisionUnderWay, HAFollower
from dledger.testing.brokers.pairs import follower_of
from dledger.testing.brokers.rig.lost_files import TABLES, LostFiles
from dledger.testing.brokers.rig.machine import CLIENT_PORT, FLUSH_US, SLAVE_PORT, BrokerMachine
from dledger.testing.brokers.rig.states import ABORT_PATH, QUEUES_PATH, STORED_PATHS, OldFiles
from dledger.testing.world.bugs import BugWatch
from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import MemberDied, PowerLoss, ProcessKilled
from dledger.testing.world.streams import ByteNetwork
from dledger.values.errors import DLedgerError

SECOND_US = 1_000_000
NAMES = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
CLIENT, OTHER_CLIENT = "10.0.1.1", "10.0.1.2"
#: An operator notices stopped replication after this time.
NOTICED_US = 1_500_000
KEPT_LINES = 40
#: Options of brokers whose files may be too old, and more than that.
RETENTION: Mapping[str, object] = {
    "fileReservedTime": 1, "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
}

FAULTS = (
    "kill", "kill", "kill_in_write", "stop", "freeze", "cut_brokers", "cut_client", "break", "darken",
    "half_open", "slow_disk", "slow_links", "fill_disk", "disk_error",
)
#: Of disks that cannot read something.
READS = ("read_error", "spoil_queue", "spoil_queue", "fail_start")
#: What queues, and other parts of a store, lose while their broker is down.
LOSSES = ("lose_files", "put_back")
#: Pages of logs that cannot be read.
BAD_LOGS = ("spoil_log", "spoil_log")
POWER = ("lose_power", "lose_power_in_write")
ROLES = ("promote", "renew_slave")


class PairFaults:
    """
    A fault is a method with its name: it hits a machine, or the link of a slave to its master.

    @ivar machines: by name.
    @ivar is_loaded: faults happen.
    @ivar resolved: number of decisions of the operator.
    @ivar keeps_all: all lines of the trace are kept.
    @ivar fault_rng: draws the faults.
    @ivar is_promoting: a slave is becoming the master.
    @ivar old_files: the files of logs that may be deleted.
    @ivar lost_files: what queues and other parts of stores have lost.
    """

    #: Tables that are lost, or put back from before.
    lost_tables: tuple[tuple[str, ...], ...] = (TABLES,)

    def __init__(self, seed: int, *, wants_all_lines: bool = False) -> None:
        self.fault_rng = random.Random(f"{seed} faults")
        self.clock = SimClock()
        self.network = ByteNetwork(self.clock, random.Random(f"{seed} network"))
        self.bugs = BugWatch()
        self._spread_us = self.fault_rng.choice((300, 700, 20_000))
        self.network.spread_us = self._spread_us
        self.machines: dict[str, BrokerMachine] = {}
        self.flush_us = FLUSH_US
        self.faults: tuple[str, ...] = ()
        self.pace_s = 1.0
        self.is_loaded = True
        self.resolved = 0
        self.digest = 0
        self.lines: list[str] = []
        self.keeps_all = wants_all_lines
        self._master = NAMES[0]
        self.is_promoting = False
        self._noticed: set[str] = set()
        self.old_files = OldFiles()
        self.lost_files = LostFiles()

    def note(self, text: str) -> None:
        """Add a line to the trace, and to the digest."""
        self.digest = crc32(f"{self.clock.now_us} {text}".encode(), self.digest)
        self.lines.append(f"{self.clock.now_us / 1e6:11.6f} {text}")
        if not self.keeps_all:
            del self.lines[:-KEPT_LINES]

    @property
    def master_machine(self) -> BrokerMachine:
        """The machine of the master."""
        return self.machines[self._master]

    @property
    def slave_machines(self) -> list[BrokerMachine]:
        """The machines of the slaves."""
        return [one for name, one in self.machines.items() if name != self._master]

    @property
    def slave_machine(self) -> BrokerMachine:
        """The machine of the first slave."""
        return self.slave_machines[0]

    def _start(self, machine: BrokerMachine) -> None:
        if not self.is_promoting:
            machine.start()

    def again(self, machine: BrokerMachine, seconds: float = 2.0) -> None:
        """Start a machine, after a while."""
        self.clock.after(int(self.fault_rng.uniform(0.05, seconds) * SECOND_US), self._start, machine)

    # -- faults ----------------------------------------------------------------------------------

    def harm(self) -> None:
        """The next fault, and then others, until the load ends."""
        if not self.is_loaded:
            return
        rng = self.fault_rng
        self.harm_later()
        name = rng.choice(self.faults)
        machine = rng.choice(list(self.machines.values()))
        self.note(f"fault {name} {machine.name}")
        getattr(self, "_" + name)(machine)

    def harm_later(self) -> None:
        """Schedule the next fault."""
        self.clock.after(int(self.fault_rng.expovariate(1 / self.pace_s) * SECOND_US), self.harm)

    def _nothing(self, machine: BrokerMachine) -> None:
        """A schedule without faults."""

    def _kill(self, machine: BrokerMachine) -> None:
        machine.kill()
        self.again(machine)

    def _lose_power(self, machine: BrokerMachine) -> None:
        machine.lose_power()
        self.again(machine)

    def _kill_in_write(self, machine: BrokerMachine) -> None:
        machine.disk.arm(die_in=1 + int(self.fault_rng.random() * 20), death=ProcessKilled)

    def _lose_power_in_write(self, machine: BrokerMachine) -> None:
        machine.disk.arm(die_in=1 + int(self.fault_rng.random() * 20), death=PowerLoss)

    def _stop(self, machine: BrokerMachine) -> None:
        machine.stop()
        self.again(machine, 8.0)

    def _freeze(self, machine: BrokerMachine) -> None:
        machine.freeze()
        self.clock.after(int(self.fault_rng.uniform(0.2, 5.0) * SECOND_US), machine.thaw)

    def _cut_between(self, one: str, other: str) -> None:
        there, back = self.fault_rng.choice(((True, False), (False, True), (True, True)))
        if there:
            self.network.cut(one, other)
        if back:
            self.network.cut(other, one)
        self.clock.after(int(self.fault_rng.uniform(0.2, 5.0) * SECOND_US), self.network.heal_all)

    def _some_slave(self) -> BrokerMachine:
        slaves = self.slave_machines
        return slaves[0] if len(slaves) == 1 else self.fault_rng.choice(slaves)

    def _cut_brokers(self, _machine: BrokerMachine) -> None:
        self._cut_between(self._some_slave().name, self._master)

    def _cut_client(self, machine: BrokerMachine) -> None:
        self._cut_between(CLIENT, machine.name)

    def _port_of_master(self) -> str:
        return f"{self._master}:{self.fault_rng.choice((SLAVE_PORT, CLIENT_PORT))}"

    def _break(self, _machine: BrokerMachine) -> None:
        self.network.break_between(self._some_slave().name, self._port_of_master(), late_us=2_000_000)
        self.network.break_between(CLIENT, f"{self._master}:{CLIENT_PORT}", late_us=2_000_000)

    def _darken(self, _machine: BrokerMachine) -> None:
        self.network.darken(self._some_slave().name, self._port_of_master())

    def _half_open(self, _machine: BrokerMachine) -> None:
        self.network.half_open(self._some_slave().name, self._port_of_master())

    def _slow_disk(self, machine: BrokerMachine) -> None:
        machine.slow_disk(self.fault_rng.choice((20_000, 3_000_000)))
        self.clock.after(int(self.fault_rng.random() * 4 * SECOND_US), machine.slow_disk, self.flush_us)

    def _slow_links(self, _machine: BrokerMachine) -> None:
        self.network.spread_us = 400_000
        self.clock.after(int(self.fault_rng.random() * 3 * SECOND_US), self._usual_links)

    def _usual_links(self) -> None:
        self.network.spread_us = self._spread_us

    def _fill_disk(self, machine: BrokerMachine) -> None:
        machine.may_fail = True
        machine.disk.set_full(True)
        self.clock.after(int(self.fault_rng.random() * 3 * SECOND_US), machine.disk.set_full, False)

    def _disk_error(self, machine: BrokerMachine) -> None:
        is_sync = self.fault_rng.random() < 0.5
        machine.fail_once(3 if is_sync else 2)

    def _read_error(self, machine: BrokerMachine) -> None:
        """The next read fails, and not when it is tried again. (Files that are read as a whole are not.)"""
        machine.may_fail = True
        machine.disk.arm(reads=1)

    def _fail_start(self, machine: BrokerMachine) -> None:
        """A broker ends, and its disk fails while the next process starts: once, or for some files."""
        self._kill(machine)
        machine.fail_start(self.fault_rng, (ABORT_PATH, *STORED_PATHS), us=3 * SECOND_US)

    def _spoil_queue(self, machine: BrokerMachine) -> None:
        """A page of a queue cannot be read until all of it is written; writing a part ends the broker."""
        machine.may_fail = True
        self.lost_files.spoil(machine.disk, QUEUES_PATH, self.fault_rng)

    def _lose_files(self, machine: BrokerMachine) -> None:
        """A broker ends, and its queues have lost files when it starts, or some are older copies."""
        if not machine.is_up:
            return  # a fault of its disk may wait for the next write
        machine.kill()
        with machine.disk.unharmed():
            self.lost_files.lose(machine.disk, QUEUES_PATH, self.fault_rng)
        self.again(machine)

    def _put_back(self, machine: BrokerMachine) -> None:
        """A broker ends, and parts of its store are gone or from before when it starts."""
        if not machine.is_up:
            return  # see above; and after a power cut the marks say what to check
        machine.kill()
        with machine.disk.unharmed():
            machine.has_old_marks |= self.lost_files.put_back(
                machine.disk, "/store", self.fault_rng, self.lost_tables
            )
        self.again(machine)

    def _age(self, machine: BrokerMachine) -> None:
        """The oldest files of the log are old enough to go. (Those of consumers that are late, too.)"""
        may_go = self.old_files.age(machine.disk, self.log_path(machine), self.fault_rng)
        if may_go and self.fault_rng.random() < 0.7:
            machine.call(_maintain, machine)

    @staticmethod
    def log_path(machine: BrokerMachine) -> str:
        """Of the files of its log."""
        return "/store/commitlog"

    def heal(self) -> None:
        """All faults are over; every machine runs again, some seconds later."""
        self.note("the faults are over")
        self.is_loaded = False
        self.network.heal_all()
        self._usual_links()
        for machine in self.machines.values():
            machine.disk.disarm()
            machine.disk.set_full(False)
            machine.slow_disk(self.flush_us)
            machine.thaw()
            for seconds in (4, 8):  # the second time: an orderly stop on a slow disk takes five seconds
                self.clock.after(seconds * SECOND_US, self._start, machine)

    # -- an operator -----------------------------------------------------------------------------

    def look_after(self) -> None:
        """Slaves whose replication has stopped are noticed, after a while."""
        for slave in self.slave_machines:
            follower = follower_of(slave)
            if follower is None or slave.name in self._noticed:
                continue
            # A master without bytes that its slave holds may get them back: wait until the faults are over.
            if follower.is_stopped or (not self.is_loaded and follower.to_decide() is not None):
                self._noticed.add(slave.name)
                self.clock.after(NOTICED_US, self._look_at, slave)

    def _look_at(self, slave: BrokerMachine) -> None:
        self._noticed.discard(slave.name)
        slave.call(self._resolve, slave)

    def _resolve(self, slave: BrokerMachine) -> None:
        follower = follower_of(slave)
        if follower is None or follower.to_decide() is None:
            return
        self.resolved += 1
        if not self._repairs(follower):
            self.note(f"an operator lets {slave.name} take the master's log")
            self._resolving(slave)
            if self.is_loaded and self.fault_rng.random() < 0.6:
                slave.slow_checkpoint(2 * SECOND_US)  # it is under way when the log is cut
                self.clock.after(int(self.fault_rng.uniform(2.0, 6.0) * SECOND_US), kill_loaded, self, slave)
            Deferred.fromCoroutine(follower.take_master()).addErrback(_not_taken)

    def _repairs(self, _follower: HAFollower) -> bool:
        """Whether the operator does something else."""
        return False

    def _resolving(self, _slave: BrokerMachine) -> None:
        """The slave's log is about to be taken away."""


def kill_loaded(faults: PairFaults, machine: BrokerMachine) -> None:
    """A kill that was decided before: not when the faults are over meanwhile."""
    if faults.is_loaded:
        machine.kill()
        faults.again(machine)


def stop_without_index(machine: BrokerMachine) -> None:
    """An index that cannot be written is not written before the next start: an operator stops its broker."""
    indexing = machine.parts.store.indexing if machine.parts is not None else None
    if indexing is not None and indexing.index.why_failed:
        machine.stop()


def _maintain(machine: BrokerMachine) -> None:
    """An operator does not wait for the next round."""
    if machine.parts is not None and machine.parts.store.is_ready:
        machine.parts.replication.maintain(at_any_hour=True)


def _not_taken(failure: Failure) -> None:
    """The process is dead, the disk has no room, or the operator is hasty: there is another time."""
    failure.trap(OSError, DLedgerError, DecisionUnderWay, MemberDied)
