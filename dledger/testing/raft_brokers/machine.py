# -*- test-case-name: tests.sim.test_raft_brokers -*-
"""
A machine with the real broker and the real member on it, in a process that can be killed, frozen, or end with
the power.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IStreamServerEndpoint
from zope.interface import implementer

from dledger.base.process.reactor import whole_reactor
from dledger.ledger.config import DLedgerConfig
from dledger.node.broker_hooks import Embedding
from dledger.node.node import Node
from dledger.node.service import MemberService
from dledger.node.threads import MemberThreads
from dledger.raft_broker.service import RaftBrokerService
from dledger.rocketmq.broker.common.config import broker_from_mapping
from dledger.rocketmq.broker.parts import BrokerParts
from dledger.rocketmq.broker.service import BrokerPorts
from dledger.testing.world.bugs import BugWatch
from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import PowerLoss
from dledger.testing.world.host import MachineDisk
from dledger.testing.world.process import ProcessReactor, ProcessThread, SimProcess
from dledger.testing.world.streams import ByteNetwork, StreamClient, StreamPort, StreamServer
from dledger.values.option_values import with_values

#: Options of every member: an election takes seconds, as a turn of the simulation costs.
TIMING: Mapping[str, object] = {
    "tick_ms": 100, "heart_beat_time_interval_ms": 400, "max_heart_beat_leak": 4, "min_vote_interval_ms": 200,
    "max_vote_interval_ms": 900, "rpc_time_out_ms": 2000, "max_push_time_out_ms": 1500,
    "check_point_interval": 2000, "mapped_file_size_for_entry_index": 32 * 64,
}
#: Clients of a simulated broker are calls in its process.
_NO_CLIENTS = "no clients"


@implementer(IStreamServerEndpoint)
class _NoClients:
    """An endpoint to which nobody connects."""

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """See L{IStreamServerEndpoint.listen}."""
        return succeed(StreamPort(lambda: None, _NO_CLIENTS))


@attrs.frozen(kw_only=True)
class BrokerWorld:
    """
    The common surroundings of the brokers of a group.

    @ivar peers: id to C{host:port} of all members.
    @ivar is_sync: messages are on the disks of a majority before they are acknowledged. Else a failed
        fsync keeps the written bytes: they may have been acknowledged.
    @ivar options: of every broker, by RocketMQ's names.
    """

    clock: SimClock
    network: ByteNetwork
    bugs: BugWatch
    peers: Mapping[str, str]
    is_sync: bool
    options: Mapping[str, object]


class SimRaftBroker:
    """
    @ivar is_up: a process runs.
    @ivar reasons: why processes could not go on, although nothing was done to them.
    @ivar boots: number of processes so far.
    """

    def __init__(self, world: BrokerWorld, peer_id: str, rng: random.Random) -> None:
        self.world = world
        self.peer_id = peer_id
        self.disk = MachineDisk(random.Random(rng.random()))
        self.disk.keeps_failed_writes = not world.is_sync
        self.is_up = False
        self.boots = 0
        self.reasons: list[str] = []
        self.flush_us = 500
        self._rng = rng
        self._is_stopping = False
        self.process: SimProcess
        self.service: RaftBrokerService

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
        world, host, rng = self.world, self.peer_id, self._rng
        reactor = whole_reactor(ProcessReactor(process, boot_s=1000.0 + rng.random() * 1000))
        config = broker_from_mapping({
            "store": "/store", "brokerName": "b", "brokerIP1": "10.0.0.1",
            "mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 20 * 16,
            "max_hash_slot_num": 16, "max_index_num": 256,
            "enableDLegerCommitLog": True, "dLegerSelfId": host,
            "dLegerPeers": ";".join(f"{one}-{address}" for one, address in world.peers.items()),
            "flushDiskType": "SYNC_FLUSH" if world.is_sync else "ASYNC_FLUSH", **world.options,
        })
        self.wall_s()
        self.disk.makedirs("/store")
        boot_id = f"boot {self.disk.power_cuts}"

        def thread() -> ProcessThread:
            return ProcessThread(process, self.disk, rng, took_us=self.flush_us)

        def make_member(of_member: DLedgerConfig, embedding: Embedding) -> MemberService:
            return MemberService(
                with_values(of_member, TIMING), reactor, disk=self.disk, rng=rng, failed=self._failed,
                listen=StreamServer(world.network, host, process),
                dial=lambda peer_id, _: StreamClient(world.network, host, process, peer_id),
                boot_id=boot_id, local_time=lambda: (self.wall_s(), 12),
                threads=MemberThreads.of(reactor, flush=thread()),
                embedding=embedding,
            )

        self.service = RaftBrokerService(
            config, reactor, BrokerPorts(clients=_NoClients()), disk=self.disk, rng=rng, wall_s=self.wall_s,
            failed=self._failed, make_member=make_member, threads=thread(),
        )
        self.service.startService()

    def wall_s(self) -> float:
        """Seconds since 1970; all machines agree."""
        self.disk.now_s = now_s = 1.7e9 + self.world.clock.now_us / 1e6
        return now_s

    def _failed(self, reason: str) -> None:
        if not self.is_up or self.is_dying or self._is_stopping:
            return
        self.reasons.append(f"{self.peer_id}: {reason}")
        self.kill()

    def stop(self) -> None:
        """SIGTERM: the broker stops in order."""
        if self.is_up and not self._is_stopping:
            self._is_stopping = True
            self.process.run("signal", self._stop)

    def _stop(self) -> None:
        self.service.stopService().addBoth(lambda _: self.world.clock.after(1, self._exit, self.process))

    def _exit(self, process: SimProcess) -> None:
        if self.is_up and self.process is process:
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
            self.disk.lose_power()

    def _end(self, *, power: bool) -> None:
        self.is_up = False
        self.process.end()
        self.world.network.died(self.peer_id, self.process, silently=power)
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
            self.world.bugs.tell()
            return
        self.world.bugs.forget()
        if self.is_up:
            self._end(power=isinstance(death, PowerLoss))

    # -- use -------------------------------------------------------------------------------------

    @property
    def broker(self) -> BrokerParts | None:
        """The parts of the running process; None before they are made."""
        return self.service.broker.broker if self.is_up and hasattr(self, "service") else None

    @property
    def node(self) -> Node | None:
        """Of the running process."""
        return self.service.member.node if self.is_up and hasattr(self, "service") else None

    def call(self, action: Callable[..., object], *arguments: object) -> None:
        """Let the running process do something for a caller within it."""
        if self.is_up:
            self.process.run("caller", action, *arguments)
