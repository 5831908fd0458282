# -*- test-case-name: tests.sim.test_ha -*-
"""
A machine with a whole broker, of which the schedules of replication watch the log, event by event.

Fsyncs end later, and may miss writes that came after they began. A call that was armed on the disk may kill
the process, or cut the power, while it runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.replication import HAReplication
from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.service import HAService
from dledger.rocketmq.store.commit_log_store import CommitLogStore
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.records.set_aside import directories
from dledger.testing.brokers.pairs import MakePlainBroker
from dledger.testing.brokers.parts.machine import BrokerMachine, BrokerWorld
from dledger.testing.world.host import MachineDisk
from dledger.testing.world.process import SimProcess

ROOT = "/store"
LOG_PATH = f"{ROOT}/commitlog"
FILE_SIZE = 4096
#: A slave offers copies of damaged records ten times as often as usual.
OFFER_TICK_US = 100_000
#: A full disk deletes no old files: what a log lacks is lost.
KEEPS_FILES = {"disk_space_clean_forcibly_ratio": 1.0}


def copied_disk(disk: MachineDisk, rng: random.Random) -> MachineDisk:
    """Another disk with the same files, all durable."""
    twin = MachineDisk(rng)
    twin._directories = disk.clone()._directories
    return twin


class SimBroker(BrokerMachine):
    """
    One machine, and the broker on it.

    @ivar config: its options of replication.
    @ivar happened: called after every event of the process.
    @ivar opened: called when a process has opened its log, before it does anything else.
    @ivar ended: called when the process has ended without being killed from outside, and with whether it has
        given up.
    """

    def __init__(
        self, world: BrokerWorld, name: str, rng: random.Random, *, options: Mapping[str, object],
        master: str, note: Callable[[str], None],
    ) -> None:
        given = dict(options)
        role, flush = str(given.pop("broker_role")), given.pop("flush_disk_type")
        make = MakePlainBroker(role=role, master=master if role == "SLAVE" else "",
                               options={**given, **KEEPS_FILES, "flushDiskType": flush})
        super().__init__(world, name, rng, make)
        self.config: HAConfig = make.config(self).ha
        self.happened: Callable[[SimBroker], None] = lambda broker: None
        self.opened: Callable[[SimBroker], None] = lambda broker: None
        self.ended: Callable[[SimBroker, bool], None] = lambda broker, has_given_up: None
        self._note = note
        self._opened_boot = 0

    # -- the parts of the process that runs, or of the last one --------------------------------------

    @property
    def life(self) -> int:
        """Number of the process; rises when it starts and when it ends."""
        return 2 * self.boots - self.is_up

    @property
    def is_open(self) -> bool:
        """Whether a process runs that has opened its log."""
        return self.parts is not None

    @property
    def _last(self) -> BrokerParts:
        assert self.made.broker.broker is not None
        return self.made.broker.broker

    @property
    def store(self) -> CommitLogStore:
        """With the log."""
        assert isinstance(self._last.store, CommitLogStore)
        return self._last.store

    @property
    def log(self) -> CommitLog:
        """The commit log."""
        return self.store.log

    @property
    def service(self) -> HAService:
        """Its replication."""
        assert isinstance(self._last.replication, HAReplication)
        return self._last.replication.ha

    # -- life ------------------------------------------------------------------------------------

    def event_ended(self) -> None:
        death = self.disk.death
        super().event_ended()
        if death is not None:
            self._note(f"{self.name} {type(death).__name__} {death}")
            self.ended(self, False)
        elif self.is_open and self._opened_boot != self.boots:
            self._opened_boot = self.boots
            self._note(f"{self.name} started at {self.log.begin_offset}..{self.log.end_offset}")
            self._offer(self.process)
            self.opened(self)
        elif self.is_open:
            self.happened(self)

    def _offer(self, process: SimProcess) -> None:
        following = self._last.replication.following if self.is_open else None  # type: ignore[attr-defined]
        if following is not None and following.offers is not None:
            following.offers.tick()
        self.world.clock.after(OFFER_TICK_US, process.run, "offers", self._offer, process)

    def failed(self, reason: str) -> None:
        """The broker cannot go on: its process ends, as an event of its own after the present one."""
        if self.disk.death is None:
            self.world.clock.after(1, self._stopped_itself, self.process, reason)

    def _stopped_itself(self, process: SimProcess, reason: str) -> None:
        if self.is_up and self.process is process:
            self._note(f"{self.name} stopped itself: {reason}")
            self._end(power=False)
            self.ended(self, True)

    # -- disk -----------------------------------------------------------------------------------

    def content(self, *, durable: bool = False) -> tuple[int, bytes]:
        """Where the log's files begin, and all their bytes, as they are read or as they would survive."""
        disk = self.disk
        if not disk.exists(LOG_PATH):
            return 0, b""
        names = [name for name in disk.listdir(LOG_PATH) if name.isdecimal()]
        parts = []
        for name in names:
            whole = f"{LOG_PATH}/{name}"
            data = disk.durable_content(whole) if durable else disk.cached_content(whole)
            parts.append((data or b"").ljust(FILE_SIZE, b"\0"))
        return (int(names[0]) if names else 0), b"".join(parts)

    def contents_aside(self) -> list[dict[int, int]]:
        """The bytes by offset that were set aside, for each directory; two may have the same offsets."""
        disk = self.disk
        found: list[dict[int, int]] = []
        for directory in directories(disk, LOG_PATH):
            found.append({})
            for name in disk.listdir(directory):
                found[-1].update(enumerate(disk.cached_content(f"{directory}/{name}"), int(name)))
        return found
