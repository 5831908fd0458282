# -*- test-case-name: tests.sim.test_pairs -*-
"""The faults of the machines and links of a master, its slave and their clients."""

from __future__ import annotations

import random

from dledger.testing.brokers.machine import CLIENT_PORT, SLAVE_PORT, BrokerMachine
from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import PowerLoss, ProcessKilled
from dledger.testing.world.streams import ByteNetwork

SECOND_US = 1_000_000
NAMES = ("10.0.0.1", "10.0.0.2")
CLIENT = "10.0.1.1"
FLUSH_US = 500

FAULTS = (
    "kill", "kill", "kill_in_write", "stop", "freeze", "cut_brokers", "cut_client", "break", "darken",
    "half_open", "slow_disk", "slow_links", "fill_disk", "disk_error",
)
POWER = ("lose_power", "lose_power_in_write")
ROLES = ("promote", "renew_slave")


class PairFaults:
    """
    Two machines, the links between them and to their clients, and what happens to them.

    @ivar machines: by name.
    """

    def __init__(self, seed: int) -> None:
        self._fault_rng = random.Random(f"{seed} faults")
        self.clock = SimClock()
        self.network = ByteNetwork(self.clock, random.Random(f"{seed} network"))
        self._spread_us = self._fault_rng.choice((300, 700, 20_000))
        self.network.spread_us = self._spread_us
        self.machines: dict[str, BrokerMachine] = {}
        self._master = NAMES[0]
        self._is_promoting = False

    def master(self) -> str:
        """See L{dledger.testing.brokers.traffic.TrafficWorld}."""
        return f"{self._master}:{CLIENT_PORT}"

    @property
    def master_machine(self) -> BrokerMachine:
        """The machine of the master."""
        return self.machines[self._master]

    @property
    def slave_machine(self) -> BrokerMachine:
        """The machine of the slave."""
        return next(one for name, one in self.machines.items() if name != self._master)

    def _start(self, machine: BrokerMachine) -> None:
        if not self._is_promoting:
            machine.start()

    def _again(self, machine: BrokerMachine, seconds: float = 2.0) -> None:
        self.clock.after(int(self._fault_rng.uniform(0.05, seconds) * SECOND_US), self._start, machine)

    def _kill(self, machine: BrokerMachine) -> None:
        machine.kill()
        self._again(machine)

    def _lose_power(self, machine: BrokerMachine) -> None:
        machine.lose_power()
        self._again(machine)

    def _kill_in_write(self, machine: BrokerMachine) -> None:
        machine.disk.arm(die_in=1 + int(self._fault_rng.random() * 20), death=ProcessKilled)

    def _lose_power_in_write(self, machine: BrokerMachine) -> None:
        machine.disk.arm(die_in=1 + int(self._fault_rng.random() * 20), death=PowerLoss)

    def _stop(self, machine: BrokerMachine) -> None:
        machine.stop()
        self._again(machine, 8.0)

    def _freeze(self, machine: BrokerMachine) -> None:
        machine.freeze()
        self.clock.after(int(self._fault_rng.uniform(0.2, 5.0) * SECOND_US), machine.thaw)

    def _cut_between(self, one: str, other: str) -> None:
        there, back = self._fault_rng.choice(((True, False), (False, True), (True, True)))
        if there:
            self.network.cut(one, other)
        if back:
            self.network.cut(other, one)
        self.clock.after(int(self._fault_rng.uniform(0.2, 5.0) * SECOND_US), self.network.heal_all)

    def _cut_brokers(self, _machine: BrokerMachine) -> None:
        self._cut_between(*NAMES)

    def _cut_client(self, machine: BrokerMachine) -> None:
        self._cut_between(CLIENT, machine.name)

    def _port_of_master(self) -> str:
        return f"{self._master}:{self._fault_rng.choice((SLAVE_PORT, CLIENT_PORT))}"

    def _break(self, _machine: BrokerMachine) -> None:
        self.network.break_between(self.slave_machine.name, self._port_of_master(), late_us=2_000_000)
        self.network.break_between(CLIENT, self.master(), late_us=2_000_000)

    def _darken(self, _machine: BrokerMachine) -> None:
        self.network.darken(self.slave_machine.name, self._port_of_master())

    def _half_open(self, _machine: BrokerMachine) -> None:
        self.network.half_open(self.slave_machine.name, self._port_of_master())

    def _slow_disk(self, machine: BrokerMachine) -> None:
        machine.slow_disk(self._fault_rng.choice((20_000, 3_000_000)))
        self.clock.after(int(self._fault_rng.random() * 4 * SECOND_US), machine.slow_disk, FLUSH_US)

    def _slow_links(self, _machine: BrokerMachine) -> None:
        self.network.spread_us = 400_000
        self.clock.after(int(self._fault_rng.random() * 3 * SECOND_US), self._usual_links)

    def _usual_links(self) -> None:
        self.network.spread_us = self._spread_us

    def _fill_disk(self, machine: BrokerMachine) -> None:
        machine.may_fail = True
        machine.disk.set_full(True)
        self.clock.after(int(self._fault_rng.random() * 3 * SECOND_US), machine.disk.set_full, False)

    def _disk_error(self, machine: BrokerMachine) -> None:
        machine.may_fail = True
        if self._fault_rng.random() < 0.5:
            machine.disk.arm(syncs=1)
        else:
            machine.disk.arm(writes=1)
