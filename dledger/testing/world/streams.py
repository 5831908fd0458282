# -*- test-case-name: tests.sim.test_streams -*-
"""
Byte streams between simulated machines, with the guarantees of TCP, and their faults.

The transports of Twisted protocols are simulated, so that the real protocols run on them. The bytes of one
write arrive cut anywhere, those of several writes joined.

Rule 1: within a connection bytes arrive in order or not at all. A living connection loses no bytes.
Rule 2: a link that is cut holds bytes back, ends of connections too; they arrive when it heals. No new
connection is made through it: an attempt is repeated, as SYNs are, and given up after L{CONNECT_US}.
Rule 3: a connection breaks at its two ends at different times. Bytes sent before may arrive after the client
has opened the next connection.
Rule 4: a machine without power informs nobody. When it is up again, it resets the connections of before.
Rule 5: links are those of machines, of all their ports: see L{dledger.testing.world.names}.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost, ConnectionRefusedError, TimeoutError
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IPushProducer,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
    ITransport,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from dledger.testing.world.clock import SimClock
from dledger.testing.world.names import PORT, address_of, machine_of
from dledger.testing.world.process import SimProcess

#: With more unread bytes a transport pauses its producer.
WINDOW_BYTES = 64 * 1024

#: Between two attempts to get through a cut link, and until the last one is given up.
SYN_US = 1_000_000
CONNECT_US = 3_000_000


#: The first thing that a client sends: its connection is accepted when it comes.
_OPENING = b""

#: Bytes, or the end of the connection.
_Piece = bytes | Failure

#: No piece has a higher number.
_ALL = 1 << 62


class StreamEnd:
    """
    One end of a connection: the part of Twisted's transports that our protocols use.

    @ivar knows: whether this end takes the connection for open.
    @ivar extra_us: its pieces take longer by this time.
    @ivar last_us: arrival of the last piece sent so far.
    @ivar sent, kept: number of pieces sent; those with a number above C{kept} are lost.
    @ivar in_flight: bytes sent that were not read yet.
    @ivar held: pieces that a cut link holds back.
    """

    def __init__(
        self, link: StreamLink, process: SimProcess, host: str, peer: IPv4Address, number: int
    ) -> None:
        self.link = link
        self.process = process
        self.host = host
        self.number = number
        self.knows = True
        self.disconnecting = False
        self.protocol: IProtocol | None = None
        self.extra_us = 0
        self.last_us = 0
        self.sent = 0
        self.kept = _ALL
        self.in_flight = 0
        self.held: list[tuple[int, _Piece]] = []
        self._peer = peer
        self._producer: IPushProducer | None = None
        self._is_full = False
        self._is_reading = True
        self._unread: list[_Piece] = []

    @property
    def other(self) -> StreamEnd:
        """The other end."""
        return self.link.ends[1 - self.number]

    def attach(self, protocol: IProtocol) -> None:
        """This end is the transport of C{protocol}."""
        self.protocol = protocol
        protocol.makeConnection(cast("ITransport", self))

    # -- the transport --------------------------------------------------------------------------

    def getPeer(self) -> IPv4Address:
        """The address of the other end."""
        return self._peer

    def getHost(self) -> IPv4Address:
        """The address of this end."""
        return IPv4Address("TCP", self.host, PORT)

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:
        """See L{twisted.internet.interfaces.ITransport}."""
        self._producer = producer

    def unregisterProducer(self) -> None:
        """See L{twisted.internet.interfaces.ITransport}."""
        self._producer = None

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if data and self.knows and not self.disconnecting and self.process.acts:
            self.link.network.send(self, data)
            if self.in_flight > WINDOW_BYTES and not self._is_full:
                self._is_full = True
                if self._producer is not None:
                    self._producer.pauseProducing()

    def loseConnection(self) -> None:
        """Close the connection after everything that was written."""
        self._close(ConnectionDone())

    def abortConnection(self) -> None:
        """See L{twisted.internet.interfaces.ITCPTransport}."""
        self._close(ConnectionLost())

    def _close(self, reason: Exception) -> None:
        if self.knows and not self.disconnecting and self.process.acts:
            self.disconnecting = True
            self.link.network.close(self, reason)

    def pauseProducing(self) -> None:
        """Read no further."""
        self._is_reading = False

    def resumeProducing(self) -> None:
        """Read on, from the next turn on."""
        self._is_reading = True
        if self._unread and self.process.acts:
            self.process.clock.after(1, self.process.run, self, self._read_on)

    # -- pieces ---------------------------------------------------------------------------------

    def receive(self, piece: _Piece) -> None:
        """Something of the other end is here."""
        if not self._is_reading or self._unread:
            self._unread.append(piece)
        else:
            self._read(piece)

    def put_in(self, data: bytes) -> None:
        """Let this end read bytes that the other one did not send."""
        self.other.in_flight += len(data)
        self.process.run(self, self.receive, data)

    def _read_on(self) -> None:
        while self._unread and self._is_reading and self.knows:
            piece = self._unread.pop(0)
            while isinstance(piece, bytes) and self._unread:
                behind = self._unread[0]
                if not isinstance(behind, bytes):
                    break
                piece += behind
                del self._unread[0]
            self._read(piece)

    def _read(self, piece: _Piece) -> None:
        if not self.knows:
            return
        if isinstance(piece, Failure):
            self.learn(piece)
        elif self.protocol is None:
            self.link.network.accept(self)
        else:
            self.protocol.dataReceived(piece)
            self.other.was_read(len(piece))

    def was_read(self, size: int) -> None:
        """The other end has read C{size} bytes."""
        self.in_flight -= size
        if self._is_full and not self.in_flight and self.knows:
            self.process.clock.after(1, self.process.run, self, self._drained)

    def _drained(self) -> None:
        if self.knows and self._is_full:
            self._is_full = False
            if self._producer is not None:
                self._producer.resumeProducing()

    def learn(self, reason: Failure) -> None:
        """This end learns that the connection is gone."""
        if self.knows:
            self.knows = False
            self._unread.clear()
            self.link.network.forget(self.link)
            if self.protocol is not None:
                self.protocol.connectionLost(reason)


class StreamLink:
    """One connection; the client's end is the first."""

    __slots__ = ("ends", "factory", "network", "number")

    def __init__(self, network: ByteNetwork, number: int, factory: IProtocolFactory) -> None:
        self.network = network
        self.number = number
        self.factory = factory
        self.ends: list[StreamEnd] = []


@attrs.define(eq=False)
class _Attempt:
    """An attempt to connect."""

    process: SimProcess
    source: str
    target: str
    factory: IProtocolFactory
    until_us: int
    outcome: Deferred[IProtocol]


@attrs.frozen(eq=False)
class _Listening:
    process: SimProcess
    factory: IProtocolFactory


class ByteNetwork:
    """
    Every connection (C{links}), and the listening machines.

    @ivar delay_us, spread_us: one way takes the first plus up to the second.
    @ivar spike, spike_us: chance of a much longer way, and how much longer at most.
    @ivar piece_bytes: most bytes that arrive in one read.
    @ivar cut_chance: chance that a write arrives in several pieces.
    """

    def __init__(self, clock: SimClock, rng: random.Random) -> None:
        self.clock = clock
        self.delay_us = 300
        self.spread_us = 700
        self.spike = 0.0
        self.spike_us = 0
        self.piece_bytes = 65536
        self.cut_chance = 0.05
        self.rng = rng
        self._listening: dict[str, _Listening] = {}
        self.links: dict[int, StreamLink] = {}
        self._newest: dict[tuple[str, str], StreamLink] = {}
        self._next_extra_us: dict[tuple[str, str], int] = {}
        self._without_power: set[str] = set()
        self._cut: set[tuple[str, str]] = set()
        self._number = 0

    def chance(self) -> float:
        """A number from 0 to 1, 1 not included."""
        return self.rng.random()

    def _way_us(self) -> int:
        way_us = self.delay_us + int(self.rng.random() * self.spread_us)
        if self.spike and self.rng.random() < self.spike:
            way_us += int(self.rng.random() * self.spike_us)
        return way_us

    # -- connecting -----------------------------------------------------------------------------

    def listen(self, host: str, process: SimProcess, factory: IProtocolFactory) -> None:
        """A process of C{host} accepts connections."""
        self._listening[host] = _Listening(process, factory)
        self._without_power.discard(machine_of(host))

    def stop_listening(self, host: str, process: SimProcess) -> None:
        """A process of C{host} accepts no more."""
        found = self._listening.get(host)
        if found is not None and found.process is process:
            del self._listening[host]

    def connect(
        self, source: str, process: SimProcess, target: str, factory: IProtocolFactory
    ) -> Deferred[IProtocol]:
        """A process of C{source} connects to C{target}. @return: fires with the protocol."""
        outcome: Deferred[IProtocol] = Deferred(lambda _: None)
        if process.acts:
            until_us = self.clock.now_us + CONNECT_US
            attempt = _Attempt(process, source, target, factory, until_us, outcome)
            self.clock.after(self._way_us(), self._knock, attempt)
        return outcome

    def _knock(self, attempt: _Attempt) -> None:
        source, target = attempt.source, machine_of(attempt.target)
        if attempt.outcome.called or not attempt.process.is_alive:
            return
        is_silent = target in self._without_power or (
            self._cut and ((source, target) in self._cut or (target, source) in self._cut)
        )
        if not is_silent:
            self.clock.after(self._way_us(), attempt.process.run, attempt, self._answered, attempt)
        elif self.clock.now_us + SYN_US > attempt.until_us:
            self.clock.after(SYN_US, attempt.process.run, attempt, self._refused, attempt, TimeoutError())
        else:
            self.clock.after(SYN_US, self._knock, attempt)

    def _refused(self, attempt: _Attempt, error: Exception) -> None:
        if not attempt.outcome.called:
            attempt.outcome.errback(Failure(error))

    def _answered(self, attempt: _Attempt) -> None:
        """The client hears from the other machine."""
        source, target = attempt.source, attempt.target
        if attempt.outcome.called:
            return
        found = self._listening.get(target)
        if found is None or not found.process.is_alive:
            self._refused(attempt, ConnectionRefusedError())
            return
        self._number += 1
        link = StreamLink(self, self._number, found.factory)
        there = address_of(target)
        here = IPv4Address("TCP", source, 30_000 + self._number % 30_000)
        client = StreamEnd(link, attempt.process, source, there, 0)
        link.ends = [client, StreamEnd(link, found.process, machine_of(target), here, 1)]
        client.extra_us = self._next_extra_us.pop((source, target), 0)
        self.links[link.number] = self._newest[source, target] = link
        self._post(client, _OPENING)
        protocol = attempt.factory.buildProtocol(there)
        assert protocol is not None
        client.attach(protocol)
        attempt.outcome.callback(protocol)

    def accept(self, end: StreamEnd) -> None:
        """The server's end of a connection is there."""
        protocol = end.link.factory.buildProtocol(end.getPeer())
        if protocol is None:
            end.abortConnection()
            end.knows = False
        else:
            end.attach(protocol)

    # -- pieces ---------------------------------------------------------------------------------

    def send(self, end: StreamEnd, data: bytes) -> None:
        """Bytes leave C{end}."""
        data = self.on_the_way(end, data)
        size = len(data)
        end.in_flight += size
        if size <= self.piece_bytes and self.rng.random() >= self.cut_chance:
            self._post(end, data)
            return
        at = 0
        while at < size:
            piece = data[at : at + 1 + int(self.rng.random() * min(self.piece_bytes, size))]
            at += len(piece)
            self._post(end, piece)

    def on_the_way(self, end: StreamEnd, data: bytes) -> bytes:
        """The bytes of one write as they will arrive: a network may rewrite them."""
        return data

    def _post(self, end: StreamEnd, piece: _Piece) -> None:
        end.sent += 1
        end.last_us = max(self.clock.now_us + self._way_us() + end.extra_us, end.last_us + 1)
        self.clock.at(end.last_us, self._arrive, end, end.sent, piece)

    def _arrive(self, end: StreamEnd, number: int, piece: _Piece) -> None:
        if number > end.kept:
            return
        other = end.link.ends[1 - end.number]
        if end.held or (self._cut and (end.host, other.host) in self._cut):
            end.held.append((number, piece))
        elif other.knows and other.process.is_alive:
            other.process.run(other, other.receive, piece)
        elif end.knows and other.host not in self._without_power and not isinstance(piece, Failure):
            self._notify_later(end, ConnectionLost())

    def close(self, end: StreamEnd, reason: Exception) -> None:
        """One end closes: it is notified in the next turn, the other one when all data have arrived."""
        self._post(end, Failure(reason))
        self.clock.after(1, end.process.run, end, end.learn, Failure(reason))

    def _notify_later(self, end: StreamEnd, reason: Exception) -> None:
        self.clock.after(self._way_us(), end.process.run, end, end.learn, Failure(reason))

    def forget(self, link: StreamLink) -> None:
        """Forget a connection of which neither end knows."""
        if not (link.ends[0].knows or link.ends[1].knows):
            self.links.pop(link.number, None)

    def died(self, host: str, process: SimProcess, *, silently: bool) -> None:
        """A process of a machine is gone. @param silently: the machine, too; no peer is informed."""
        for name in [name for name in self._listening if machine_of(name) == host]:
            self.stop_listening(name, process)
        if silently:
            self._without_power.add(host)
        for link in list(self.links.values()):
            for end in link.ends:
                if end.process is process and end.knows:
                    end.knows = False
                    if not silently and not end.disconnecting:
                        self._post(end, Failure(ConnectionLost()))
                    self.forget(link)

    # -- faults ---------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """Hold back all pieces from C{source} to C{target} (one way)."""
        self._cut.add((source, target))

    def is_cut(self, source: str, target: str) -> bool:
        """Whether bytes from C{source} to C{target} are held back."""
        return (source, target) in self._cut

    def is_slow(self, client: str, server: str) -> bool:
        """Whether C{client}'s connection, or its next one, is slower than others."""
        link = self.link_of(client, server)
        return (client, server) in self._next_extra_us or (link is not None and link.ends[0].extra_us > 0)

    def heal(self, source: str, target: str) -> None:
        """Let pieces through again, those held back first."""
        if (source, target) not in self._cut:
            return
        self._cut.discard((source, target))
        for link in list(self.links.values()):
            for end in link.ends:
                if end.held and (end.host, end.other.host) == (source, target):
                    held, end.held = end.held, []
                    for number, piece in held:
                        self._arrive(end, number, piece)

    def heal_all(self) -> None:
        """Heal every link; no connection is slower than the others afterwards."""
        self._next_extra_us.clear()
        for link in self.links.values():
            for end in link.ends:
                end.extra_us = 0
        for source, target in sorted(self._cut):
            self.heal(source, target)

    def link_of(self, client: str, server: str) -> StreamLink | None:
        """The newest connection that C{client} has to C{server}, and takes for open."""
        link = self._newest.get((client, server))
        return link if link is not None and link.ends[0].knows else None

    def break_between(self, client: str, server: str, *, late_us: int = 0) -> None:
        """
        Break C{client}'s connection: the client learns at once, the server later. The last pieces on the way
        are lost.

        @param late_us: the others still arrive within this many microseconds.
        """
        link, rng = self.link_of(client, server), self.rng
        if link is None:
            return
        for end in link.ends:
            if rng.random() < 0.5:
                end.kept = end.sent - int(rng.random() * 8)
        self._learn(link.ends[0])
        if late_us == 0 or rng.random() < 0.3:
            self._learn(link.ends[1])
        else:
            self.clock.after(int(rng.random() * late_us), self._learn, link.ends[1])

    def lose(self, client: str, server: str) -> None:
        """Drop C{client}'s connection at both ends, with all that is on the way."""
        link = self.link_of(client, server)
        if link is not None:
            for end in link.ends:
                end.kept = -1
                self._learn(end)

    def reconnect(self, client: str, server: str, *, late_us: int) -> None:
        """
        The client loses its connection; the server does not notice, and what is on the way to it still
        arrives, for C{late_us} microseconds. What the server sends vanishes.
        """
        link = self.link_of(client, server)
        if link is not None:
            link.ends[1].kept = -1
            self._learn(link.ends[0])
            self.clock.after(late_us, self._learn, link.ends[1])

    def _learn(self, end: StreamEnd) -> None:
        end.process.run(end, end.learn, Failure(ConnectionLost()))

    def darken(self, client: str, server: str) -> None:
        """Whatever either end of C{client}'s connection sends vanishes, and neither is informed."""
        link = self.link_of(client, server)
        if link is not None:
            for end in link.ends:
                end.kept = -1

    def half_open(self, client: str, server: str) -> None:
        """C{client} loses its connection; the server is not notified, and hears no more of it."""
        link = self.link_of(client, server)
        if link is not None:
            self.darken(client, server)
            self._learn(link.ends[0])

    def delay_connection(self, client: str, server: str, us: int) -> None:
        """What C{client} sends on its connection (the next one if it has none) takes C{us} more."""
        link = self.link_of(client, server)
        if link is not None:
            link.ends[0].extra_us = us
        else:
            self._next_extra_us[client, server] = us


@implementer(IStreamClientEndpoint)
class StreamClient:
    """The endpoint of another machine."""

    def __init__(self, network: ByteNetwork, source: str, process: SimProcess, target: str) -> None:
        self._network = network
        self._source = source
        self._process = process
        self._target = target

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        return self._network.connect(self._source, self._process, self._target, protocolFactory)


@implementer(IListeningPort)
class StreamPort:
    """A listening port."""

    def __init__(self, stop: Callable[[], None], host: str) -> None:
        self._stop = stop
        self._host = host

    def getHost(self) -> IPv4Address:
        """Its address."""
        return address_of(self._host)

    def startListening(self) -> None:
        """See L{IListeningPort.startListening}: it listens from the beginning."""

    def stopListening(self) -> None:
        """Accept no more."""
        self._stop()


@implementer(IStreamServerEndpoint)
class StreamServer:
    """The endpoint on which a machine listens."""

    def __init__(self, network: ByteNetwork, host: str, process: SimProcess) -> None:
        self._network = network
        self._host = host
        self._process = process

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        network, host, process = self._network, self._host, self._process
        network.listen(host, process, protocolFactory)
        listening: Deferred[IListeningPort] = Deferred()
        listening.callback(StreamPort(lambda: network.stop_listening(host, process), host))
        return listening
