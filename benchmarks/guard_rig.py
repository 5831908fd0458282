# -*- test-case-name: tests.test_guard -*-
"""
A group of three members and its clients in one process, without sockets, threads, files or real time.

The members are whole L{MemberService}s with file stores on disks in memory. Everything that is random is
seeded, and bytes move only in L{Wires.settle}, so that a run always takes the same steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import (
    IDelayedCall,
    IReactorTime,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from dledger.node.member_process import MemberEndpoints, MemberProcess
from dledger.node.service import MemberService
from dledger.node.threads import MemberThreads
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.ledger.config import DLedgerConfig

GROUP_NAME = "guard"
PEERS = {f"n{number}": f"127.0.0.1:{20911 + number}" for number in range(3)}
_PEERS_TEXT = ";".join(f"{peer_id}-{address}" for peer_id, address in PEERS.items())
_FILES: dict[str, Any] = {
    "mapped_file_size_for_entry_data": 1 << 26, "mapped_file_size_for_entry_index": 32 << 16
}
_TICK_S = 0.02
_LEADER_S = 30.0


class End:
    """
    One end of a connection: the part of Twisted's transports that our protocols use.

    @ivar outbox: bytes written and not yet delivered.
    @ivar owner: see L{Wires.now}.
    """

    disconnecting = False

    def __init__(self, wires: Wires, owner: str) -> None:
        self.outbox: list[bytes] = []
        self.owner = owner
        self.protocol: Any = None
        self.other: End
        self._wires = wires

    def write(self, data: bytes) -> None:
        """One call is one write."""
        self._wires.writes += 1
        self._wires.bytes_written += len(data)
        self.outbox.append(bytes(data))

    def writeSequence(self, pieces: list[bytes]) -> None:
        """One call is one write."""
        self.write(b"".join(pieces))

    def getPeer(self) -> IPv4Address:
        """The same for all."""
        return IPv4Address("TCP", "127.0.0.1", 1)

    getHost = getPeer

    def loseConnection(self) -> None:
        """The connection ends at once, for both ends."""
        for end in (self, self.other):
            if end in self._wires.ends:
                self._wires.ends.remove(end)
                end.protocol.connectionLost(Failure(ConnectionDone()))

    abortConnection = loseConnection

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """An end is never full."""

    def unregisterProducer(self) -> None:
        """An end is never full."""

    def pauseProducing(self) -> None:
        """The peer has no more to send than one window."""

    def resumeProducing(self) -> None:
        """See L{pauseProducing}."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """There is no delay."""


class Wires:
    """
    All connections of a rig, and its clock.

    @ivar writes, bytes_written: of all ends so far.
    @ivar now: whose code runs: the address of a member, or empty for a client.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.ends: list[End] = []
        self.writes = self.bytes_written = 0
        self.now = ""
        self._factories: dict[str, Any] = {}

    def listen_at(self, address: str, factory: Any) -> None:
        """Accept connections to C{address}."""
        self._factories[address] = factory

    def connect(self, address: str, factory: Any, owner: str = "") -> Deferred[Any]:
        """@param owner: see C{now}. @return: fires with the protocol of the connecting end."""
        if address not in self._factories:
            return fail(ConnectionRefusedError())
        near, far = End(self, owner), End(self, address)
        near.other, far.other = far, near
        for end, maker in ((far, self._factories[address]), (near, factory)):
            end.protocol = maker.buildProtocol(None)
            self.ends.append(end)
        for end in (far, near):
            end.protocol.makeConnection(end)
        return succeed(near.protocol)

    def run_as(self, owner: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call C{call}. @param owner: whose code that is, see C{now}."""
        before, self.now = self.now, owner
        try:
            return call(*arguments)
        finally:
            self.now = before

    def settle(self) -> None:
        """Deliver all bytes, each end's as one read, until nobody writes any more."""
        is_busy = True
        while is_busy:
            self.clock.advance(0)
            is_busy = False
            for end in [*self.ends]:
                if end.outbox:
                    data, end.outbox = b"".join(end.outbox), []
                    self.run_as(end.other.owner, end.other.protocol.dataReceived, data)
                    is_busy = True

    def pass_time(self, done: Callable[[], bool], *, what: str) -> None:
        """Let ticks pass until C{done()}. @raise RuntimeError: it took too long; names C{what}."""
        for _tick in range(round(_LEADER_S / _TICK_S)):
            self.settle()
            if done():
                return
            self.clock.advance(_TICK_S)
        raise RuntimeError(f"not within {_LEADER_S:g} s: {what}")


@implementer(IReactorTime)
class OwnedClock:
    """The clock of L{Wires} for one owner, whose timed calls count as its own."""

    def __init__(self, wires: Wires, owner: str) -> None:
        self._wires = wires
        self._owner = owner
        self.seconds = wires.clock.seconds

    def callLater(self, delay: float, call: Callable[..., Any], *args: Any) -> IDelayedCall:
        return self._wires.clock.callLater(delay, self._wires.run_as, self._owner, call, *args)

    def getDelayedCalls(self) -> Sequence[IDelayedCall]:
        """See L{IReactorTime.getDelayedCalls}: of all owners."""
        return self._wires.clock.getDelayedCalls()


@implementer(IStreamClientEndpoint, IStreamServerEndpoint)
class WireEndpoint:
    """An address of L{Wires}. C{owner}: of the connections that are made to it."""

    def __init__(self, wires: Wires, address: str, owner: str = "") -> None:
        self._wires = wires
        self._address = address
        self._owner = owner

    def connect(self, factory: Any) -> Deferred[Any]:
        return self._wires.connect(self._address, factory, self._owner)

    def listen(self, factory: Any) -> Deferred[Any]:
        """See L{IStreamServerEndpoint.listen}. The port is its address."""
        self._wires.listen_at(self._address, factory)
        return succeed(WirePort())


class WirePort:
    """A listening port."""

    def getHost(self) -> IPv4Address:
        """The same for all."""
        return IPv4Address("TCP", "127.0.0.1", 1)

    def stopListening(self) -> None:
        """The rig ends with its program."""


class InlineThread:
    """The disk's thread: a call has always run already."""

    def start(self) -> None:
        """There is no thread."""

    def stop(self) -> None:
        """There is no thread."""

    def run(self, call: Callable[[], None]) -> Deferred[None]:
        """Run C{call} at once."""
        call()
        return succeed(None)


def _failed(reason: str) -> None:
    raise RuntimeError(f"a member failed: {reason}")


class GuardGroup:
    """Three members, one of which leads."""

    def __init__(self, *, flush: str = "async") -> None:
        """@param flush: C{async} or C{sync}."""
        self.wires = Wires()
        self.services = {peer_id: self._make(peer_id, flush) for peer_id in PEERS}
        for service in self.services.values():
            service.startService()
        self.wires.pass_time(lambda: self.leader_id != "", what="a leader")
        # A second more, so that everybody has greeted everybody.
        end_s = self.wires.clock.seconds() + 1.0
        self.wires.pass_time(lambda: self.wires.clock.seconds() >= end_s, what="a second")
        self._leader_address = PEERS[self.leader_id]

    def _make(self, peer_id: str, flush: str) -> MemberService:
        config = DLedgerConfig(
            group=GROUP_NAME, self_id=peer_id, peers=_PEERS_TEXT, store_base_dir="guard",
            flush_disk_type=flush, **_FILES,
        )
        owner = PEERS[peer_id]
        clock: Any = OwnedClock(self.wires, owner)
        return MemberService(
            config,
            MemberProcess(
                reactor=clock, disk=MemoryDisk(), rng=random.Random(peer_id), failed=_failed,
                threads=MemberThreads.of(clock, flush=InlineThread()), wall_clock=lambda: (1e9, 4),
            ),
            MemberEndpoints(
                listen=WireEndpoint(self.wires, owner),
                dial=lambda _peer_id, address: WireEndpoint(self.wires, address, owner),
            ),
        )

    def role(self) -> str:
        """Whose code runs: C{leader}, C{follower} or C{client}."""
        owner = self.wires.now
        if not owner:
            return "client"
        return "leader" if owner == self._leader_address else "follower"

    @property
    def leader_id(self) -> str:
        """Empty if no member leads."""
        for peer_id, service in self.services.items():
            if service.node is not None and service.node.status().member.role == "leader":
                return peer_id
        return ""
