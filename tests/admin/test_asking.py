# -*- test-case-name: tests.admin.test_asking -*-
"""How administrations are asked: by TLS, and with a token."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.sites.asking import admin_agent


class Trust:
    """Remembers whom to believe."""

    def __init__(self) -> None:
        self.names: list[str | None] = []

    def dial(self, endpoint: Any, name: str | None) -> Any:
        """See L{Dialling <dledger.base.tls.securing.Dialling>}."""
        self.names.append(name)
        return endpoint


class AskingTests(SynchronousTestCase):
    """Requests without sockets."""

    def setUp(self) -> None:
        self.reactor: Any = MemoryReactorClock()
        self.trust = Trust()

    def ask(self, url: str, **options: Any) -> Deferred[Any]:
        """Ask for a page."""
        agent = admin_agent(self.reactor, 2.0, **options)
        asked: Deferred[Any] = agent.request(b"GET", url.encode())
        asked.addErrback(lambda failure: failure.value)
        return asked

    def sent(self) -> bytes:
        """The bytes that the last connection got."""
        from twisted.internet.testing import StringTransport

        factory = self.reactor.tcpClients[-1][2]
        protocol, transport = factory.buildProtocol(None), StringTransport()
        protocol.makeConnection(transport)
        data: bytes = transport.value()
        return data

    def test_name(self) -> None:
        """The wanted name is the host's, or the given one."""
        self.ask("https://10.0.0.7:8443/status", trust=self.trust)
        self.ask("https://[fd00::1]:8443/status", trust=self.trust)
        self.ask("https://10.0.0.7:8443/status", trust=self.trust, name="n0")
        self.ask("http://10.0.0.7:8080/status", trust=self.trust, name="n0")
        self.assertEqual(self.trust.names, ["10.0.0.7", "fd00::1", "n0"])
        self.assertEqual([one[:2] for one in self.reactor.tcpClients],
                         [("10.0.0.7", 8443), ("fd00::1", 8443), ("10.0.0.7", 8443), ("10.0.0.7", 8080)])

    def test_without_authority(self) -> None:
        """By TLS nothing is asked."""
        error = self.assertRaises(ValueError, self.ask, "https://10.0.0.7:8443/status")
        self.assertIn("no authority is known", str(error))
        self.assertEqual(self.reactor.tcpClients, [])

    def test_connections_are_not_logged(self) -> None:
        """Neither the start nor the end of a connection is an event, by TLS or without it."""
        with capturedLogs() as events:
            for url in ("https://10.0.0.7:8443/status", "http://127.0.0.1:8080/status"):
                self.ask(url, trust=self.trust)
                factory = self.reactor.tcpClients[-1][2]
                factory.doStart()
                factory.doStop()
        self.assertEqual(events, [])

    def test_token(self) -> None:
        """It is sent by TLS, and on this machine; nowhere else."""
        for url in ("https://10.0.0.7:8443/status", "http://127.0.0.1:8080/status",
                    "http://[::1]:8080/status"):
            self.ask(url, trust=self.trust, token="secret")
            self.assertIn(b"Authorization: Bearer secret\r\n", self.sent(), url)
        before = len(self.reactor.tcpClients)
        for url in ("http://10.0.0.7:8080/status", "http://n0.example:8080/", "http://127.0.0.1.example/"):
            self.assertIn("without TLS", str(self.assertRaises(ValueError, self.ask, url, token="secret")))
        self.assertEqual(len(self.reactor.tcpClients), before)
        self.ask("http://127.0.0.1:8080/status")
        self.assertNotIn(b"Authorization", self.sent())

    def test_quiet(self) -> None:
        """Connections write no lines of Twisted's into the log."""
        with capturedLogs() as events:
            self.ask("http://127.0.0.1:8080/status")
            self.sent()
        self.assertEqual([one for one in events if "factory" in str(one.get("log_format", ""))], [])
