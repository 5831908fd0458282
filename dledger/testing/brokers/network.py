# -*- test-case-name: tests.sim.test_ha_network -*-
"""
Byte streams between simulated machines, and the reactor of a simulated process.

As L{dledger.testing.group.network}, one level lower: here the transports of Twisted protocols are simulated,
so that the real protocols run on them; the byte streams are cut and joined anywhere, as TCP does.

Rule 1: within a connection bytes arrive in order or not at all. A living connection loses no bytes.
Rule 2: a link that is cut holds bytes back; they arrive when it heals.
Rule 3: a connection breaks at its two ends at different times; a dark one breaks at neither end: an end
without a timeout keeps it for ever.
Rule 4: timers, ends of connections and Deferreds of a process end with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IDelayedCall,
    IReactorTime,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from dledger.testing.clock import SimClock

#: With more unsent bytes the producer is paused.
WINDOW_SIZE = 16 * 1024


class Process(Protocol):
    """The process that events belong to."""

    @property
    def life(self) -> int:
        """Number of the process; it changes when the process ends."""

    def run(self, life: int, action: Callable[..., object], *arguments: object) -> None:
        """Run C{action} in the process with that number; do nothing if it has ended."""


@implementer(IDelayedCall)
class SimCall:
    """The used part of L{IDelayedCall}."""

    def __init__(self, when_s: float) -> None:
        self._when_s = when_s
        self._is_active = True

    def getTime(self) -> float:
        """When it will run, seconds."""
        return self._when_s

    def active(self) -> bool:
        """Whether the call is still to come."""
        return self._is_active

    def cancel(self) -> None:
        """Cancel the call."""
        self._is_active = False

    def done(self) -> bool:
        """The time of the call has come. @return: whether to run it."""
        was, self._is_active = self._is_active, False
        return was

    def reset(self, seconds: float) -> None:
        """Not simulated."""
        raise NotImplementedError

    delay = reset


@implementer(IReactorTime)
class SimReactor:
    """Timers of one process."""

    def __init__(self, clock: SimClock, process: Process) -> None:
        self._clock = clock
        self._process = process
        self._life = process.life
        self._began_us = clock.now_us

    def seconds(self) -> float:
        """Monotonic time of this process, seconds."""
        return 1000.0 + (self._clock.now_us - self._began_us) / 1e6

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kw: object
    ) -> SimCall:
        """See L{IReactorTime.callLater}."""
        call = SimCall(self.seconds() + delay)

        def run() -> None:
            if call.done():
                callable(*args, **kw)

        self._clock.after(max(int(delay * 1e6), 1), self._process.run, self._life, run)
        return call

    def getDelayedCalls(self) -> list[SimCall]:
        """Not simulated."""
        raise NotImplementedError


class SimTransport:
    """
    One end of a connection: the part of Twisted's transports that the protocols use.

    @ivar knows: whether this end takes the connection for open.
    """

    def __init__(self, link: SimLink, process: Process, host: str, peer: IPv4Address, number: int) -> None:
        self.link = link
        self.process = process
        self.life = process.life
        self.host = host
        self.peer = peer
        self.number = number
        self.knows = True
        self.protocol: Any = None
        self.producer: Any = None
        self.disconnecting = False
        self.in_flight = 0
        self.last_us = 0
        self.held: list[bytes] = []
        self._is_paused = False

    @property
    def other(self) -> SimTransport:
        """The other end."""
        return self.link.ends[1 - self.number]

    def getPeer(self) -> IPv4Address:
        """The address of the other end."""
        return self.peer

    def getHost(self) -> IPv4Address:
        """The address of this end."""
        return IPv4Address("TCP", self.host, 10912)

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """See L{twisted.internet.interfaces.ITransport}."""
        self.producer = producer

    def unregisterProducer(self) -> None:
        """See L{twisted.internet.interfaces.ITransport}."""
        self.producer = None

    def write(self, data: bytes) -> None:
        """Send bytes; they arrive in pieces."""
        if self.knows and data:
            self.link.network.send(self, data)
            if self.in_flight > WINDOW_SIZE and self.producer is not None and not self._is_paused:
                self._is_paused = True
                self.producer.pauseProducing()

    def drained(self) -> None:
        """All sent bytes have arrived."""
        if self._is_paused:
            self._is_paused = False
            self.producer.resumeProducing()

    def abortConnection(self) -> None:
        """See L{twisted.internet.interfaces.ITCPTransport}."""
        self.disconnecting = True
        self.link.network.closed_by(self)

    loseConnection = abortConnection

    def learn(self, failure: Failure) -> None:
        """This end learns that the connection is gone."""
        if self.knows:
            self.knows = False
            self.protocol.connectionLost(failure)


class SimLink:
    """
    One connection; the client's end is the first.

    @ivar is_dark: bytes in either direction vanish, and neither end is told.
    """

    def __init__(self, network: SimStreams) -> None:
        self.network = network
        self.ends: list[SimTransport] = []
        self.is_dark = False


class SimStreams:
    """
    All connections, and the listening processes.

    @ivar delay_us, spread_us: one way takes the first plus up to the second.
    @ivar piece_size: most bytes that arrive in one read.
    """

    def __init__(self, clock: SimClock, rng: random.Random) -> None:
        self.clock = clock
        self.rng = rng
        self.delay_us = 300
        self.spread_us = 700
        self.piece_size = 65536
        self.links: list[SimLink] = []
        self._listening: dict[str, tuple[Process, int, Any]] = {}
        self._cut: set[tuple[str, str]] = set()
        self._next_port = 40_000

    # -- connecting -----------------------------------------------------------------------------

    def listen(self, host: str, process: Process, factory: Any) -> None:
        """A process of C{host} accepts connections."""
        self._listening[host] = (process, process.life, factory)

    def connect(self, source: str, process: Process, target: str, factory: Any) -> Deferred[Any]:
        """A process of C{source} connects to C{target}."""
        outcome: Deferred[Any] = Deferred()
        self.clock.after(self._way_us(), process.run, process.life, self._connect, source, process, target,
                         factory, outcome)
        return outcome

    def _connect(
        self, source: str, process: Process, target: str, factory: Any, outcome: Deferred[Any]
    ) -> None:
        if outcome.called:
            return  # cancelled
        found = self._listening.get(target)
        refused = found is None or found[0].life != found[1]
        if refused or (source, target) in self._cut or (target, source) in self._cut:
            outcome.errback(Failure(ConnectError(string="refused")))
            return
        assert found is not None
        server, life, listening = found
        self._next_port += 1
        link = SimLink(self)
        address = IPv4Address("TCP", source, self._next_port)
        link.ends = [
            SimTransport(link, process, source, IPv4Address("TCP", target, 10912), 0),
            SimTransport(link, server, target, address, 1),
        ]
        self.links.append(link)
        there = listening.buildProtocol(address)
        here = factory.buildProtocol(link.ends[0].peer)
        link.ends[0].protocol, link.ends[1].protocol = here, there
        if there is None:
            link.ends[1].knows = False
        else:
            server.run(life, there.makeConnection, link.ends[1])
        here.makeConnection(link.ends[0])
        if there is None:
            self._tell_later(link.ends[0], Failure(ConnectionLost()))
        outcome.callback(here)

    # -- bytes ----------------------------------------------------------------------------------

    def _way_us(self) -> int:
        return self.delay_us + int(self.rng.random() * self.spread_us)

    def send(self, end: SimTransport, data: bytes) -> None:
        """Bytes leave C{end} and arrive at the other one in pieces."""
        at = 0
        while at < len(data):
            size = 1 + int(self.rng.random() * self.piece_size)
            piece = data[at : at + size]
            at += size
            end.in_flight += len(piece)
            end.last_us = max(self.clock.now_us + self._way_us(), end.last_us + 1)
            self.clock.at(end.last_us, self._arrive, end, piece)

    def _arrive(self, end: SimTransport, piece: bytes) -> None:
        other = end.other
        if end.link.is_dark:
            return
        if end.held or (end.host, other.host) in self._cut:
            end.held.append(piece)
            return
        end.in_flight -= len(piece)
        if other.knows and other.process.life == other.life:
            other.process.run(other.life, other.protocol.dataReceived, piece)
        elif end.knows and not other.knows:
            self._tell_later(end, Failure(ConnectionLost()))
        if not end.in_flight and end.knows:
            end.process.run(end.life, end.drained)

    # -- ends -----------------------------------------------------------------------------------

    def _tell_later(self, end: SimTransport, failure: Failure) -> None:
        self.clock.after(self._way_us(), end.process.run, end.life, end.learn, failure)

    def closed_by(self, end: SimTransport) -> None:
        """One end closes: it is told in the next turn, the other one after a delay."""
        self.clock.after(1, end.process.run, end.life, end.learn, Failure(ConnectionDone()))
        if not end.link.is_dark and (end.host, end.other.host) not in self._cut:
            self._tell_later(end.other, Failure(ConnectionDone()))

    def died(self, host: str, *, silently: bool) -> None:
        """The process of a machine is gone. @param silently: the machine, too; no peer is told."""
        self._listening.pop(host, None)
        for link in list(self.links):
            for end in link.ends:
                if end.host == host:
                    end.knows = False
                    if silently:
                        link.is_dark = True
                    elif not link.is_dark:
                        self._tell_later(end.other, Failure(ConnectionLost()))
        self._tidy()

    def _tidy(self) -> None:
        self.links = [link for link in self.links if any(end.knows for end in link.ends)]

    # -- faults ---------------------------------------------------------------------------------

    def between(self, one: str, two: str) -> list[SimLink]:
        """Connections between the two that some end takes for open."""
        self._tidy()
        return [link for link in self.links if {one, two} == {end.host for end in link.ends}]

    def break_between(self, one: str, two: str) -> None:
        """Break every connection of the two; the ends learn of it at different times."""
        for link in self.between(one, two):
            for end in link.ends:
                late_us = int(self.rng.random() * 2_000_000)
                self.clock.after(late_us, end.process.run, end.life, end.learn, Failure(ConnectionLost()))

    def darken(self, one: str, two: str) -> None:
        """Let every connection of the two go dark; new ones are possible."""
        for link in self.between(one, two):
            link.is_dark = True

    def half_open(self, client: str, server: str) -> None:
        """The client's end is gone, and the client may connect again; the server is not told."""
        for link in self.between(client, server):
            end = link.ends[0]
            if end.host == client:
                link.is_dark = True
                self.clock.after(1, end.process.run, end.life, end.learn, Failure(ConnectionLost()))

    def cut(self, source: str, target: str) -> None:
        """Hold back the bytes from C{source} to C{target}."""
        self._cut.add((source, target))

    def heal_all(self) -> None:
        """Heal every link; the bytes held back arrive."""
        self._cut.clear()
        for link in self.links:
            for end in link.ends:
                held, end.held = end.held, []
                for piece in held:
                    self._arrive(end, piece)


@implementer(IStreamClientEndpoint)
class SimClientEndpoint:
    """The endpoint of another machine."""

    def __init__(self, network: SimStreams, source: str, process: Process, target: str) -> None:
        self._network = network
        self._source = source
        self._process = process
        self._target = target

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """See L{IStreamClientEndpoint.connect}."""
        return self._network.connect(self._source, self._process, self._target, protocolFactory)


class SimPort:
    """A listening port."""

    def __init__(self, host: str) -> None:
        self._host = host

    def getHost(self) -> str:
        """The name of the machine, for logs."""
        return self._host

    def stopListening(self) -> None:
        """Do nothing."""


@implementer(IStreamServerEndpoint)
class SimServerEndpoint:
    """The endpoint on which this machine listens."""

    def __init__(self, network: SimStreams, host: str, process: Process) -> None:
        self._network = network
        self._host = host
        self._process = process

    def listen(self, protocolFactory: Any) -> Deferred[Any]:
        """See L{IStreamServerEndpoint.listen}."""
        self._network.listen(self._host, self._process, protocolFactory)
        listening: Deferred[Any] = Deferred()
        listening.callback(SimPort(self._host))
        return listening
