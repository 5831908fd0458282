# -*- test-case-name: tests.base.test_endpoints -*-
"""
Endpoints that servers of ours listen on, and client endpoints for addresses C{host:port}.

Twisted's C{HostnameEndpoint} makes a C{LoopingCall}, which imports the global reactor and so installs
one. That would spoil a program that installs a reactor of its own choice later. Hence this endpoint: it
tries all addresses of a name, one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar, cast

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, serverFromString
from twisted.internet.error import DNSLookupError
from twisted.internet.interfaces import (
    IAddress,
    IHostResolution,
    IProtocol,
    IProtocolFactory,
    IResolutionReceiver,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import Factory, Protocol
from zope.interface import implementer

from dledger.base.reactor import Reactor
from dledger.values.addresses import parse_address

_P = TypeVar("_P", bound=Protocol)
#: Connections that the kernel makes before a server has accepted them. With more, an attempt takes a second
#: longer: after a change of the leader all clients come at once. Twisted's own number is 50.
BACKLOG = 1024
EndpointFor = Callable[[str], IStreamClientEndpoint]


def listening_endpoint(reactor: Reactor, description: str) -> IStreamServerEndpoint:
    """
    The endpoint of a port for many clients.

    @param description: of an endpoint; without C{backlog=} its backlog is L{BACKLOG}.
    """
    if ":backlog=" not in description:
        with contextlib.suppress(TypeError, ValueError):  # it says one by its place, or is of a kind without
            found: IStreamServerEndpoint = serverFromString(reactor, f"{description}:backlog={BACKLOG}")
            return found
    endpoint: IStreamServerEndpoint = serverFromString(reactor, description)
    return endpoint


@implementer(IResolutionReceiver)
class _Addresses:
    """Collects the addresses of a name."""

    def __init__(self) -> None:
        self.found: Deferred[list[IPv4Address | IPv6Address]] = Deferred()
        self._addresses: list[IPv4Address | IPv6Address] = []

    def resolutionBegan(self, resolutionInProgress: IHostResolution) -> None:
        """Nothing to do."""

    def addressResolved(self, address: IAddress) -> None:
        """Add one address."""
        if isinstance(address, IPv4Address | IPv6Address):
            self._addresses.append(address)

    def resolutionComplete(self) -> None:
        """Hand out the addresses."""
        if not self.found.called:
            self.found.callback(self._addresses)


@implementer(IStreamClientEndpoint)
class HostEndpoint:
    """Connects to the first address of a host that accepts the connection."""

    def __init__(self, reactor: Reactor, host: str, port: int, timeout_s: float) -> None:
        self._reactor = reactor
        self._host = host
        self._port = port
        self._timeout_s = timeout_s

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """@return: fires with the protocol; fails with the error of the last address."""
        return Deferred.fromCoroutine(self._connect(protocolFactory))

    async def _connect(self, factory: IProtocolFactory) -> IProtocol:
        error: Exception = DNSLookupError(f"no address of {self._host} was found")
        for host in await self._hosts():
            kind = TCP6ClientEndpoint if isIPv6Address(host) else TCP4ClientEndpoint
            endpoint = kind(self._reactor, host, self._port, timeout=self._timeout_s)
            try:
                return await endpoint.connect(factory)
            except Exception as failed:
                error = failed
        raise error

    async def _hosts(self) -> list[str]:
        if isIPAddress(self._host) or isIPv6Address(self._host):
            return [self._host]
        receiver = _Addresses()
        self._reactor.nameResolver.resolveHostName(receiver, self._host, self._port)
        return [address.host for address in await receiver.found]


def tcp_endpoints(reactor: Reactor, timeout_s: float) -> EndpointFor:
    """Endpoints for C{host:port} addresses, where the host may be C{[IPv6]}."""

    def endpoint_for(address: str) -> IStreamClientEndpoint:
        return HostEndpoint(reactor, *parse_address(address), timeout_s)

    return endpoint_for


class _OneConnection(Factory):
    """Hands out one protocol, and logs nothing."""

    noisy = False

    def __init__(self, connection: Protocol) -> None:
        self._connection = connection

    def buildProtocol(self, addr: IAddress | None) -> Protocol:
        return self._connection


def connect_with(endpoint: IStreamClientEndpoint, connection: _P) -> Deferred[_P]:
    """
    As Twisted's C{connectProtocol}, without its two log lines for each connection.

    @return: fires with C{connection} once it is connected.
    """
    connecting = endpoint.connect(_OneConnection(connection))
    return cast("Deferred[_P]", connecting)
