# -*- test-case-name: tests.base.test_endpoints -*-
"""Hosts are found, and every address of them is tried."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionRefusedError, DNSLookupError
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving.endpoints import BACKLOG, listening_endpoint, tcp_endpoints


class ListeningTests(SynchronousTestCase):
    """Ports for many clients."""

    def test_backlog(self) -> None:
        """Long, unless the operator gave another one."""
        for description, backlog in (
            ("tcp:1", BACKLOG), ("tcp:1:interface=127.0.0.1", BACKLOG), ("tcp:1:backlog=7", 7),
            ("tcp6:1", BACKLOG), ("unix:x", BACKLOG), ("tcp:1:127.0.0.1:7", 7), ("unix:x:660:7", 7),
        ):
            reactor = MemoryReactorClock()
            self.successResultOf(listening_endpoint(reactor, description).listen(Factory()))
            (listened,) = (*reactor.tcpServers, *reactor.unixServers)
            self.assertEqual(listened[2], backlog, description)


class Resolver:
    """Knows some names."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self.names = names
        self.asked: list[str] = []

    def resolveHostName(self, receiver: Any, hostName: str, portNumber: int = 0) -> Any:
        """All addresses of a name, at once."""
        self.asked.append(hostName)
        receiver.resolutionBegan(None)
        for host in self.names.get(hostName, []):
            kind = IPv6Address if ":" in host else IPv4Address
            receiver.addressResolved(kind("TCP", host, portNumber))
        receiver.resolutionComplete()


class EndpointTests(SynchronousTestCase):
    """C{host:port} to connections."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.resolver = Resolver({"two.test": ["192.0.2.1", "2001:db8::2"]})
        self.reactor.nameResolver = self.resolver

    def connect(self, address: str) -> Any:
        """Through the endpoint of an address."""
        endpoint = tcp_endpoints(self.reactor, 3.0)(address)
        return endpoint.connect(Factory.forProtocol(Protocol))

    def refuse(self, at: int) -> None:
        """The attempt fails."""
        factory = self.reactor.tcpClients[at][2]
        factory.clientConnectionFailed(None, Failure(ConnectionRefusedError()))

    def test_numbers(self) -> None:
        """Addresses by number need no lookup."""
        self.connect("192.0.2.9:5")
        self.connect("[2001:db8::9]:6")
        found = [(host, port, time_s) for host, port, _factory, time_s, _bind in self.reactor.tcpClients]
        self.assertEqual(found, [("192.0.2.9", 5, 3.0), ("2001:db8::9", 6, 3.0)])
        self.assertEqual(self.resolver.asked, [])

    def test_next_address(self) -> None:
        """When the first address refuses, the second is tried; at last the failure is reported."""
        connecting = self.connect("two.test:7")
        self.assertEqual(self.reactor.tcpClients[0][0], "192.0.2.1")
        self.refuse(0)
        self.assertEqual(self.reactor.tcpClients[1][0], "2001:db8::2")
        self.assertNoResult(connecting)
        self.refuse(1)
        self.failureResultOf(connecting, ConnectionRefusedError)

    def test_unknown_name(self) -> None:
        """Named in the error."""
        error = self.failureResultOf(self.connect("nowhere.test:7"), DNSLookupError).value
        self.assertIn("nowhere.test", str(error))
