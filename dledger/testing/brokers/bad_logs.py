# -*- test-case-name: tests.sim.test_bad_pages -*-
"""Pages of logs that disks cannot read, and the operator who puts them right."""

from __future__ import annotations

import random
from typing import Protocol

from dledger.testing.brokers.rig.accounts import TrafficRecord
from dledger.testing.brokers.rig.bad_pages import BadPages
from dledger.testing.brokers.rig.machine import BrokerMachine
from dledger.testing.world.clock import SimClock

_SECOND_US = 1_000_000


class LogsWorld(Protocol):
    """The schedule."""

    clock: SimClock
    accounts: TrafficRecord
    machines: dict[str, BrokerMachine]
    fault_rng: random.Random

    @property
    def is_promoting(self) -> bool:
        """Whether a slave is becoming the master."""

    def note(self, text: str) -> None:
        """Add a line to the trace."""

    def again(self, machine: BrokerMachine) -> None:
        """Start a machine, after a while."""

    def log_path(self, machine: BrokerMachine) -> str:
        """Of the files of its log."""


class BadLogs:
    """@ivar pages: those that nobody has put right."""

    def __init__(self, world: LogsWorld) -> None:
        self._world = world
        self.pages = BadPages()

    def spoil(self, machine: BrokerMachine) -> None:
        """
        A page of a log cannot be read. Its last two files stay sound: damage after the newest mark looks like
        a torn write. An operator puts the page right some seconds later; on a raft log, other members do.
        """
        parts, world = machine.parts, self._world
        if parts is None or not parts.store.is_ready:
            return
        log, machines = parts.store.log, world.machines.values()
        if log.record_lead and any(one.disk.has_bad_pages(world.log_path(one)) for one in machines):
            return  # a peer mends it, which has the only other copies
        found = self.pages.spoil(
            machine.name, machine.disk, world.log_path(machine), rng=world.fault_rng, lead=log.record_lead,
            before=log.end_offset - log.end_offset % log.file_size - log.file_size,
        )
        if not found:
            return
        machine.may_fail = True
        world.note(f"{machine.name} cannot read {len(found)} records from {found[0].physical_offset} on")
        world.accounts.unreadable(found)
        if log.record_lead:
            self.pages.forget(machine.name)
        world.clock.after(int(world.fault_rng.uniform(2.0, 12.0) * _SECOND_US), self._repair, machine)

    def repair_all(self) -> bool:
        """An operator puts all pages right, soon. @return: whether there are any."""
        for machine in self._world.machines.values():
            if self.pages.of(machine.name):
                self._world.clock.after(1, self._repair, machine)
        return len(self.pages) > 0

    def _repair(self, machine: BrokerMachine) -> None:
        world = self._world
        if not self.pages.of(machine.name):
            return
        if world.is_promoting:
            world.clock.after(_SECOND_US, self._repair, machine)
            return
        world.note(f"an operator repairs the log of {machine.name}")
        machine.kill()
        self.pages.repair(machine.name, machine.disk)
        world.again(machine)
