# -*- test-case-name: tests.sim.test_ha -*-
"""
A simulated broker: the real commit log and the real replication, in a process that can be killed.

The machine has a L{SimDisk}; fsyncs end later, and may miss writes that came after they began. A call that
was armed on the disk may kill the process, or cut the power, while it runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVarTuple

from twisted.internet.defer import Deferred, succeed

from dledger.rocketmq.broker.basics.events import BrokerEvents
from dledger.rocketmq.broker.ha.config import HAConfig
from dledger.rocketmq.broker.ha.offers import MasterDesk, RecordOffers
from dledger.rocketmq.broker.ha.put_status import PutStatus
from dledger.rocketmq.broker.ha.service import HAService
from dledger.rocketmq.broker.ha.slave import LogRange
from dledger.rocketmq.broker.store.log.commit_log import CommitLog
from dledger.rocketmq.broker.store.log.log_start import inspect_log
from dledger.rocketmq.broker.store.log.record_mending import RecordMending
from dledger.rocketmq.broker.store.records.bad_records import BadRecords
from dledger.rocketmq.broker.store.records.set_aside import directories
from dledger.rocketmq.broker.store.records.store_config import StoreConfig
from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import MemberDied, PowerLoss, SimDisk
from dledger.testing.world.process import ProcessReactor, ProcessThread, SimProcess
from dledger.testing.world.streams import ByteNetwork, StreamClient, StreamServer
from dledger.values.errors import DirectoryError, StoreError

_Ts = TypeVarTuple("_Ts")

ROOT = "/store"
FILE_SIZE = 4096
OFFER_TICK_US = 100_000


class HADisk(SimDisk):
    """
    A disk that remembers that its process has died inside a call; it refuses all changes after that.

    @ivar death: how the process died; None while it lives.
    """

    death: MemberDied | None = None

    def before_change(self, path: str, kind: str) -> None:
        if self.death is not None:
            raise self.death
        try:
            super().before_change(path, kind)
        except MemberDied as death:
            self.death = death
            self.is_armed = True
            raise

    def copied(self, rng: random.Random) -> HADisk:
        """Another disk with the same files, all durable."""
        twin = HADisk(rng)
        twin._directories = self.clone()._directories
        return twin

    def new_process(self) -> None:
        """Forget the death of the last process."""
        self.death = None
        self._rearm()


class _LogEvents(BrokerEvents):
    """The master sends slaves what its log was appended."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker

    def grown(self) -> None:
        master = self._broker.service.master
        if master is not None:
            master.appended()


class SimBroker:
    """
    One machine, and the broker on it.

    @ivar life: number of the process; rises when it starts and when it ends.
    @ivar is_up, is_open: a process runs; it has opened its log.
    @ivar log, service: of the running process, or of the last one.
    @ivar happened: called after every event of the process.
    @ivar master_range: returns the bounds of the master's log.
    @ivar desk: asks the master about its damaged records.
    @ivar ended: called when the process has ended without being killed from outside.
    """

    def __init__(
        self, *, host: str, config: HAConfig, store: StoreConfig, clock: SimClock, network: ByteNetwork,
        rng: random.Random, master: str, note: Callable[[str], None],
    ) -> None:
        self.host = host
        self.config = config
        self.disk = HADisk(random.Random(rng.random()))
        self.life = 0
        self.is_up = self.is_open = False
        self.boots = 0
        self.flush_us = 500
        self.happened: Callable[[SimBroker], None] = lambda broker: None
        self.ended: Callable[[SimBroker], None] = lambda broker: None
        self.master_range: Callable[[], LogRange] = LogRange
        self.desk: MasterDesk | None = None
        self.log: CommitLog
        self.mending: RecordMending
        self.service: HAService
        self.process: SimProcess
        self.thread: ProcessThread
        self._store = store
        self._clock = clock
        self._network = network
        self._rng = rng
        self._master = master
        self._note = note

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process on the content of the disk."""
        assert not self.is_up
        self.life += 1
        self.boots += 1
        self.is_up = True
        self.is_open = False
        self.disk.new_process()
        self.process = SimProcess(self._clock, self._rng, self)
        self.thread = ProcessThread(self.process, self.disk, self._rng, took_us=self.flush_us)
        self.run(self.life, self._start)

    def _start(self) -> None:
        disk, store = self.disk, self._store
        disk.makedirs(store.commit_log_path)
        seen = inspect_log(store, disk, checkpoint=None, is_aborted=True)
        try:
            self.log = CommitLog.open(
                store, disk, seen, is_slave=self.config.is_slave, run_in_thread=self.thread.run,
                events=_LogEvents(self),
            )
        except StoreError as error:
            if isinstance(error, DirectoryError):
                raise
            self._clock.after(1, self.run, self.life, self._stopped_itself, f"cannot start: {error}")
            return
        self.is_open = True
        reactor = ProcessReactor(self.process)
        listen = None if self.config.is_slave else StreamServer(self._network, self.host, self.process)
        self.service = HAService(
            self.config, self.log, reactor, rng=random.Random(self._rng.random()), failed=self.fail,
            events=BrokerEvents(), listen=listen, master_range=self._ask_range,
        )
        self.mending = RecordMending(self.log, BadRecords(), check_from=lambda _: None)
        self._note(f"{self.host} started at {self.log.begin_offset}..{self.log.end_offset}")
        self.service.startService()
        if self.config.is_slave:
            endpoint = StreamClient(self._network, self.host, self.process, self._master)
            self.service.follow(endpoint, self._master)
            if self.service.slave is not None and self.desk is not None:
                self._offer(RecordOffers(self.log, self.service.slave, self.desk))

    def _offer(self, offers: RecordOffers) -> None:
        """A round of offers comes ten times as often as usual."""
        offers.tick()
        self._clock.after(OFFER_TICK_US, self.run, self.life, self._offer, offers)

    def _ask_range(self) -> Deferred[LogRange]:
        """The master's answer, at once; the network of requests is not simulated."""
        return succeed(self.master_range())

    def run(self, life: int, action: Callable[[*_Ts], object], *arguments: *_Ts) -> None:
        """Let the process with this number do something."""
        if life == self.life and self.is_up:
            self.process.run("caller", action, *arguments)

    @property
    def is_dying(self) -> bool:
        """See L{dledger.testing.world.process.ProcessOwner.is_dying}."""
        return self.disk.death is not None

    def event_ended(self) -> None:
        """See L{dledger.testing.world.process.ProcessOwner.event_ended}."""
        if not self.is_up:
            return
        death = self.disk.death
        if death is not None:
            self._end(f"{type(death).__name__} {death}", power=isinstance(death, PowerLoss))
            self.ended(self)
        elif self.is_open:
            self.happened(self)

    def slow_disk(self, us: int) -> None:
        """An fsync takes C{us} from now on."""
        self.flush_us = us
        if self.is_up:
            self.thread.took_us = us

    def fail(self, reason: str) -> None:
        """The broker cannot continue: its process ends."""
        if self.disk.death is None:
            # The end comes as its own event, after the present one.
            self._clock.after(1, self.run, self.life, self._stopped_itself, reason)

    def _stopped_itself(self, reason: str) -> None:
        self._end(f"stopped itself: {reason}", power=False)
        self.ended(self)

    def kill(self) -> None:
        """SIGKILL: the writes stay."""
        if self.is_up:
            self._end("killed", power=False)

    def lose_power(self) -> None:
        """The machine loses power; its peers are not informed."""
        if self.is_up:
            self._end("power lost", power=True)

    def _end(self, why: str, *, power: bool) -> None:
        self._note(f"{self.host} {why}")
        self.is_up = self.is_open = False
        self.life += 1
        self.process.end()
        self._network.died(self.host, self.process, silently=power)
        if power:
            self.disk.lose_power()
        else:
            self.disk.end_process()

    # -- disk -----------------------------------------------------------------------------------

    def content(self, *, durable: bool = False) -> tuple[int, bytes]:
        """Where the log's files begin, and all their bytes, as they are read or as they would survive."""
        disk, path = self.disk, self._store.commit_log_path
        if not disk.exists(path):
            return 0, b""
        names = [name for name in disk.listdir(path) if name.isdecimal()]
        parts = []
        for name in names:
            whole = f"{path}/{name}"
            data = disk.durable_content(whole) if durable else disk.cached_content(whole)
            parts.append((data or b"").ljust(self._store.mapped_file_size_commit_log, b"\0"))
        return (int(names[0]) if names else 0), b"".join(parts)

    def contents_aside(self) -> list[dict[int, int]]:
        """The bytes by offset that were set aside, for each directory; two may have the same offsets."""
        disk = self.disk
        found: list[dict[int, int]] = []
        for directory in directories(disk, self._store.commit_log_path):
            found.append({})
            for name in disk.listdir(directory):
                found[-1].update(enumerate(disk.cached_content(f"{directory}/{name}"), int(name)))
        return found

    def replace_disk(self, disk: HADisk) -> None:
        """Another disk is put into the machine while no process runs."""
        assert not self.is_up
        self.disk = disk

    def refusal(self) -> PutStatus | None:
        """The status with which a put would be refused now; None if it would be taken."""
        return self.service.refusal() if self.is_open else PutStatus.SERVICE_NOT_AVAILABLE
