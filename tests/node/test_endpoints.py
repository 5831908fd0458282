# -*- test-case-name: tests.node.test_endpoints -*-
"""Where a member listens, and how it reaches the others."""

from __future__ import annotations

from typing import Any

from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.endpoints import ATTEMPT_DELAY_S, listen_description, peer_endpoint


class AddressTests(SynchronousTestCase):
    """From peer addresses to endpoints."""

    def test_a_numbered_interface_is_listened_on(self) -> None:
        """An interface that is named by its number is meant; a host name is for others to resolve."""
        self.assertEqual(listen_description("127.0.0.1:20911"), "tcp:20911:interface=127.0.0.1")
        self.assertEqual(listen_description("node-a.example:20911"), "tcp:20911")
        self.assertEqual(listen_description("[::1]:20911"), "tcp6:20911:interface=\\:\\:1")

    def test_peers_may_be_names_or_numbers(self) -> None:
        """Names and numbers."""
        reactor: Any = MemoryReactorClock()
        for address in ("h:1", "[::1]:3"):
            self.assertIsInstance(peer_endpoint(reactor, None, "n1", address), HostnameEndpoint)

    def test_a_refused_attempt_is_reported_soon(self) -> None:
        """A member that starts is dialed at once when the attempt before is known to have failed."""
        reactor: Any = MemoryReactorClock()
        trying = peer_endpoint(reactor, None, "n1", "127.0.0.1:1").connect(Factory.forProtocol(Protocol))
        (_, _, factory, _, _), = reactor.tcpClients
        factory.clientConnectionFailed(None, Failure(ConnectionRefusedError()))
        self.assertNoResult(trying)
        reactor.advance(ATTEMPT_DELAY_S)
        self.failureResultOf(trying, ConnectionRefusedError)
