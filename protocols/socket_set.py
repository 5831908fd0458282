# -*- test-case-name: tests.protocols.test_socket_set -*-
"""
Reads the sockets of many accepted connections as one reader of the reactor.

A reactor calls some ten functions for each socket that has bytes, and knows of no end of what one poll has
found. A L{SocketSet} has an epoll of its own. One pass of it takes what came for all its connections, short
reads before long ones; then the work that they have requested runs once, and their output is written, as
after one read (L{protocols.turn}). When a turn has taken long, the pass ends; the next one reads the
other sockets first.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from errno import EAGAIN, EWOULDBLOCK
from typing import Any

from twisted.internet.interfaces import IReactorFDSet, IReadDescriptor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.internet.tcp import Connection as TCPConnection
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from protocols.outlet import carrier_of
from protocols.put_off import SHORT_READ_BYTES
from protocols.transports import StreamTransport
from protocols.turn import Turn

#: Sockets that one look at the kernel finds, at most, and long reads of one pass.
FOUND_MAX = 64
LONG_MAX = 64

_CAN_POLL = hasattr(select, "epoll")


@implementer(IReadDescriptor)
class SocketSet:
    """
    The transports that it took use it as their reactor, as far as they need one once they are connected.

    Invariant: C{_events} has what is awaited of each socket. The reactor reads this set while there is one.
    The epoll stays once it is made: a connection that goes on after a pause must not fail for want of one.

    @param turn: a pass is one read of this turn.
    """

    log = Logger()

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._reactor: Any = None
        self._epoll: select.epoll | None = None
        self._carriers: dict[int, TCPConnection] = {}
        self._events: dict[int, int] = {}
        #: Plain reads that the last look has found, the next one last.
        self._unread: list[int] = []
        self.callLater: Callable[..., object] = _no_clock

    def take(self, transport: StreamTransport) -> None:
        """Read a connection that has just been made, if it is one by TCP, plain or with TLS over it."""
        carrier = carrier_of(transport)
        if carrier is None or not (_CAN_POLL and IReactorFDSet.providedBy(carrier.reactor)):
            return
        if self._epoll is None:
            try:
                self._epoll = select.epoll()
            except OSError:  # no descriptor is left: the reactor itself reads it
                return
        carrier.stopReading()
        self._reactor = carrier.reactor
        self.callLater = self._reactor.callLater
        carrier.reactor = self  # type: ignore[assignment]
        carrier.startReading()

    def give_back(self, transport: StreamTransport) -> None:
        """Let the reactor itself read a connection: it does not wait for the others then."""
        carrier = carrier_of(transport)
        reactor: object = None if carrier is None else carrier.reactor
        if carrier is None or reactor is not self:
            return
        events = self._events.get(carrier.fileno(), 0)
        carrier.stopReading()
        carrier.stopWriting()
        carrier.reactor = self._reactor
        if events & select.EPOLLIN:
            carrier.startReading()
        if events & select.EPOLLOUT:
            carrier.startWriting()

    # -- the reactor of its transports: see IReactorFDSet ----------------------------------------

    def addReader(self, carrier: TCPConnection) -> None:
        """Read this transport."""
        self._await(carrier, select.EPOLLIN, 0)

    def addWriter(self, carrier: TCPConnection) -> None:
        """Write its output when there is room."""
        self._await(carrier, select.EPOLLOUT, 0)

    def removeReader(self, carrier: TCPConnection) -> None:
        """Read it no longer."""
        self._await(carrier, 0, select.EPOLLIN)

    def removeWriter(self, carrier: TCPConnection) -> None:
        """Write it no longer."""
        self._await(carrier, 0, select.EPOLLOUT)

    def _await(self, carrier: TCPConnection, more: int, less: int) -> None:
        number = carrier.fileno()
        had = self._events.get(number, 0)
        wanted = (had | more) & ~less
        if wanted == had:
            return
        assert self._epoll is not None, "no transport was taken"
        if not self._events:
            self._reactor.addReader(self)
        if not had:
            self._epoll.register(number, wanted)
            self._carriers[number] = carrier
        elif wanted:
            self._epoll.modify(number, wanted)
        else:
            self._epoll.unregister(number)
            del self._carriers[number]
        if wanted:
            self._events[number] = wanted
            return
        del self._events[number]
        if not self._events:
            self._reactor.removeReader(self)

    # -- the reader of the reactor ---------------------------------------------------------------

    def fileno(self) -> int:
        """See C{IFileDescriptor}."""
        return -1 if self._epoll is None else self._epoll.fileno()

    def logPrefix(self) -> str:
        """See C{ILoggingContext}."""
        return "connections"

    def connectionLost(self, reason: Failure) -> None:
        """See C{IFileDescriptor}; the reactor ends, and with it the connections."""

    def doRead(self) -> None:
        """See C{IReadDescriptor}: a pass."""
        try:
            self._turn.read(self._pass)
        except Exception:  # the reactor would read no connection any more
            self.log.failure("a pass over the connections failed because of a bug")

    def _pass(self) -> None:
        turn, carriers, unread = self._turn, self._carriers, self._unread
        turn.begin_pass()
        long_reads: dict[TCPConnection, bytes] = {}
        is_last = False
        while not turn.is_late and len(long_reads) < LONG_MAX:
            if not unread:
                if is_last or self._epoll is None or turn.is_over:
                    break
                found = self._epoll.poll(0, FOUND_MAX)
                is_last = len(found) < FOUND_MAX
                for number, event in found:  # output and ends wait for nobody's reads, except for its own
                    if event == select.EPOLLIN or number not in carriers:
                        continue
                    if carriers[number] in long_reads:
                        is_last = True  # it is found again by the next pass
                    else:
                        self._other_event(carriers[number], event)
                unread += [number for number, event in reversed(found) if event == select.EPOLLIN]
                continue
            number = unread.pop()
            if not self._events.get(number, 0) & select.EPOLLIN:
                continue  # ended, or paused, by an earlier one
            carrier = carriers[number]
            try:
                data = carrier.socket.recv(carrier.bufferSize)
            except OSError as error:
                if error.errno not in (EAGAIN, EWOULDBLOCK):
                    long_reads.pop(carrier, None)  # (the kernel drops its bytes, too)
                    self._end(carrier.connectionLost, Failure(CONNECTION_LOST))
                continue
            if not data:
                if carrier in long_reads:
                    is_last = True
                else:
                    self._end(carrier.readConnectionLost, Failure(CONNECTION_DONE))
            elif len(data) > SHORT_READ_BYTES or carrier in long_reads:
                long_reads[carrier] = long_reads.get(carrier, b"") + data
            else:
                try:
                    carrier.protocol.dataReceived(data)
                except Exception:
                    self._broken(carrier)
        for carrier, data in long_reads.items():
            if carrier.connected:
                try:
                    carrier.protocol.dataReceived(data)
                except Exception:
                    self._broken(carrier)

    def _other_event(self, carrier: TCPConnection, event: int) -> None:
        """The end of a connection, or room for its output, as the reactor deals with it."""
        why: Exception | None
        try:
            if event & (select.EPOLLHUP | select.EPOLLERR) and not event & select.EPOLLIN:
                is_reading = self._events[carrier.fileno()] & select.EPOLLIN
                why = CONNECTION_DONE if is_reading else CONNECTION_LOST
            else:
                why = carrier.doRead() if event & select.EPOLLIN else None
                if why is None and event & select.EPOLLOUT and carrier.fileno() != -1:
                    why = carrier.doWrite()
        except Exception:
            self._broken(carrier)
            return
        if why is CONNECTION_DONE and event & (select.EPOLLIN | select.EPOLLHUP):
            self._end(carrier.readConnectionLost, Failure(why))
        elif why is not None:
            self._end(carrier.connectionLost, Failure(why))

    def _broken(self, carrier: TCPConnection) -> None:
        failure = Failure()
        self.log.failure("a connection ends because of a bug", failure)
        self._end(carrier.connectionLost, failure)

    def _end(self, end: Callable[[Failure], object], why: Failure) -> None:
        try:
            end(why)
        except Exception:  # the long reads of the others would be lost
            self.log.failure("the end of a connection failed because of a bug")


def _no_clock(*_: object) -> None:
    raise AssertionError("no transport was taken")
