# -*- test-case-name: tests.aio.test_event_loop -*-
"""
An asyncio event loop, as the client needs it: a clock, and endpoints that connect.

Twisted's own C{AsyncioSelectorReactor} would have to be installed as the reactor of the program, and starts
with file descriptors. Here the loop opens the connections itself, so that every loop will do.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import cast

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.error import (
    AlreadyCalled,
    AlreadyCancelled,
    ConnectError,
    ConnectionDone,
    ConnectionLost,
)
from twisted.internet.interfaces import (
    IDelayedCall,
    IProtocol,
    IProtocolFactory,
    IPushProducer,
    IReactorTime,
    IStreamClientEndpoint,
    ITCPTransport,
)
from twisted.python.failure import Failure
from zope.interface import implementer

from dledger.values.addresses import parse_address


@implementer(IDelayedCall)
class _LoopCall:
    """A call that the loop will make."""

    def __init__(self, clock: LoopClock, delay_s: float, call: Callable[[], object]) -> None:
        self._clock = clock
        self._call = call
        self._is_called = self._is_cancelled = False
        self._schedule(delay_s)

    def _schedule(self, delay_s: float) -> None:
        loop = self._clock.loop
        self._time_s = loop.time() + delay_s
        handle: asyncio.Handle = (
            loop.call_later(delay_s, self._run) if delay_s > 0 else loop.call_soon(self._run)
        )
        self._handle = handle

    def _run(self) -> None:
        self._is_called = True
        self._clock.calls.discard(self)
        self._call()

    def _check(self) -> None:
        if self._is_cancelled:
            raise AlreadyCancelled
        if self._is_called:
            raise AlreadyCalled

    def active(self) -> bool:
        return not (self._is_called or self._is_cancelled)

    def cancel(self) -> None:
        self._check()
        self._is_cancelled = True
        self._handle.cancel()
        self._clock.calls.discard(self)

    def getTime(self) -> float:
        return self._time_s

    def reset(self, secondsFromNow: float) -> None:
        self._check()
        self._handle.cancel()
        self._schedule(secondsFromNow)

    def delay(self, secondsLater: float) -> None:
        self.reset(max(self._time_s + secondsLater - self._clock.seconds(), 0.0))


@implementer(IReactorTime)
class LoopClock:
    """
    The time of an event loop.

    @ivar calls: those that are outstanding.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.calls: set[_LoopCall] = set()

    def seconds(self) -> float:
        return self.loop.time()

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kwargs: object
    ) -> IDelayedCall:
        call = _LoopCall(self, delay, lambda: callable(*args, **kwargs))
        self.calls.add(call)
        return call

    def getDelayedCalls(self) -> list[IDelayedCall]:
        return list(self.calls)


def _address_of(name: tuple[str, int] | None) -> IPv4Address | IPv6Address:
    """@param name: None: the other side left before the loop could ask for its address."""
    if name is None:
        name = ("0.0.0.0", 0)
    kind = IPv6Address if ":" in name[0] else IPv4Address
    return kind("TCP", name[0], name[1])


@implementer(ITCPTransport)
class LoopTransport(asyncio.Protocol):
    """
    A connection of the loop: a protocol for asyncio, a transport for Twisted's protocol.

    Implements C{IPushProducer}.
    """

    _transport: asyncio.Transport

    def __init__(self, factory: IProtocolFactory, connections: LoopConnections) -> None:
        self._factory = factory
        self._connections = connections
        self._producer: IPushProducer | None = None
        #: The protocol above; Twisted's code looks for this name.
        self.protocol: IProtocol | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # (uvloop's is no subclass)
        self.protocol = self._factory.buildProtocol(self.getPeer())
        if self.protocol is None:
            self._transport.abort()
        else:
            self.protocol.makeConnection(self)

    def data_received(self, data: bytes) -> None:
        """See C{asyncio.Protocol}. An exception ends the connection, and asyncio logs it."""
        if self.protocol is not None:
            self.protocol.dataReceived(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._producer = None
        error = ConnectionDone() if exc is None else ConnectionLost(str(exc))
        try:
            if self.protocol is not None:
                self.protocol.connectionLost(Failure(error))
        finally:
            self._connections.ended(self)

    def pause_writing(self) -> None:
        """See C{asyncio.Protocol}: much output waits."""
        if self._producer is not None:
            self._producer.pauseProducing()

    def resume_writing(self) -> None:
        """See C{asyncio.Protocol}: it has been sent."""
        if self._producer is not None:
            self._producer.resumeProducing()

    # Twisted's side

    @property
    def disconnecting(self) -> bool:
        """Whether the connection is being closed."""
        return self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def loseConnection(self) -> None:
        """See C{ITransport.loseConnection}: what is written already is sent first."""
        self._transport.close()

    def loseWriteConnection(self) -> None:
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def abortConnection(self) -> None:
        self._transport.abort()

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:
        """See C{IConsumer.registerProducer}; only for producers that stream."""
        assert streaming, "a producer that is asked for each piece is not supported"
        self._producer = producer

    def unregisterProducer(self) -> None:
        """See C{IConsumer.unregisterProducer}."""
        self._producer = None

    def pauseProducing(self) -> None:
        """See C{IPushProducer.pauseProducing}: read nothing more."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resumeProducing(self) -> None:
        """See C{IPushProducer.resumeProducing}: read again."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def stopProducing(self) -> None:
        """See C{IPushProducer.stopProducing}: the connection ends."""
        self.loseConnection()

    def getPeer(self) -> IPv4Address | IPv6Address:
        return _address_of(self._transport.get_extra_info("peername"))

    def getHost(self) -> IPv4Address | IPv6Address:
        return _address_of(self._transport.get_extra_info("sockname"))

    def getTcpNoDelay(self) -> bool:
        return bool(self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    def setTcpNoDelay(self, enabled: bool) -> None:
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, enabled)

    def getTcpKeepAlive(self) -> bool:
        return bool(self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))

    def setTcpKeepAlive(self, enabled: bool) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, enabled)

    @property
    def _socket(self) -> socket.socket:
        found: socket.socket = self._transport.get_extra_info("socket")
        return found


class LoopConnections:
    """The connections that one client has opened."""

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._open: set[LoopTransport] = set()
        self._connecting = 0
        self._waiting: list[asyncio.Future[None]] = []

    def endpoint_for(self, address: str) -> IStreamClientEndpoint:
        """Connects to C{host:port}; see L{dledger.base.serving.endpoints}."""
        return _LoopEndpoint(self, *parse_address(address))

    async def connect(self, host: str, port: int, factory: IProtocolFactory) -> IProtocol:
        """@raise ConnectError: no address of the host takes a connection in time."""

        def make() -> LoopTransport:
            transport = LoopTransport(factory, self)
            self._open.add(transport)  # from now on connection_lost is called, also if we are cancelled
            return transport

        self._connecting += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                _, transport = await self._loop.create_connection(make, host, port)
        except TimeoutError:
            raise ConnectError(string=f"no connection within {self._timeout_s:g} s") from None
        except OSError as error:
            raise ConnectError(string=str(error)) from None
        finally:
            self._connecting -= 1
            self._notify_if_closed()
        if transport.protocol is None:
            raise ConnectError(string="the client does not want it any more")
        return transport.protocol

    def ended(self, transport: LoopTransport) -> None:
        """A connection is open no longer."""
        self._open.discard(transport)
        self._notify_if_closed()

    def _notify_if_closed(self) -> None:
        if not (self._open or self._connecting):
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                if not one.done():
                    one.set_result(None)

    def abort(self) -> None:
        """End all connections at once."""
        for transport in [*self._open]:
            if transport.protocol is not None:
                transport.abortConnection()

    async def closed(self) -> None:
        """Wait until all connections have ended."""
        if self._open or self._connecting:
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter


@implementer(IStreamClientEndpoint)
class _LoopEndpoint:
    """One address."""

    def __init__(self, connections: LoopConnections, host: str, port: int) -> None:
        self._connections = connections
        self._host = host
        self._port = port

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        connecting = self._connections.connect(self._host, self._port, protocolFactory)
        return Deferred.fromFuture(asyncio.ensure_future(connecting))


