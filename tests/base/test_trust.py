# -*- test-case-name: tests.base.test_trust -*-
"""A program without a certificate asks a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Factory, ServerFactory
from twisted.test.iosim import FakeTransport, connect

from dledger.base.tls.certificates import issue
from dledger.base.tls.keys import TlsKeys
from dledger.base.tls.trust import ServerTrust
from dledger.values.rights import ClientRole
from dledger.values.tls_files import TlsFiles
from tests.base.keys import KeyRoom
from tests.base.test_tls import End, Kept, TlsCase, with_names


class TrustTests(TlsCase):
    """Both ends in memory."""

    def talk(self, server: TlsFiles, name: str, *, authority: str | None = None) -> tuple[bytes, str]:
        """The bytes that the server got of a client that wants C{name}, and how its connection ended."""
        mine, theirs, endpoint = End(), End(), Kept()
        factory = ServerFactory.forProtocol(lambda: mine)  # type: ignore[arg-type]
        keys = TlsKeys(server)
        listening = keys.listen(factory, plain_hosts=(), clock=self.clock, demands_certificate=False)
        built: Any = listening.buildProtocol(IPv4Address("TCP", "10.0.0.7", 4711))
        trust = ServerTrust(server.authority if authority is None else authority)
        trust.dial(endpoint, name).connect(Factory.forProtocol(lambda: theirs))  # type: ignore[arg-type]
        served, asking = FakeTransport(built, isServer=True), FakeTransport(endpoint.built, isServer=False)
        pump = connect(built, served, endpoint.built, asking)
        theirs.transport.write(b"hello")
        pump.flush()
        return mine.heard, theirs.lost

    def server(self, *hosts: str) -> TlsFiles:
        """A member on these hosts."""
        made = issue(self.room.authority, "n0", members=("n0",), hosts=hosts, days=30)
        return self.room.keep("n0", made)

    def test_names(self) -> None:
        """By an id, a host name in any case, an address; never by a wildcard or a part."""
        server = self.server("db1.example.org", "*.example.com", "10.0.0.7", "fd00::1")
        for name in ("n0", "db1.example.org", "DB1.Example.ORG", "db1.example.org.", "10.0.0.7", "fd00::1",
                     "fd00:0::0:1"):
            self.assertEqual(self.talk(server, name)[0], b"hello", name)
        for name in ("n1", "example.org", "a.example.com", "10.0.0.70", "0.0.0.7", "fd00::2", ""):
            heard, lost = self.talk(server, name)
            self.assertEqual(heard, b"", name)
            self.assertIn("of another name", lost, name)

    def test_strangers(self) -> None:
        """A client of the same authority is no server; nor is one of another, or with unreadable names."""
        client = self.room.client("eve", ClientRole.ADMIN)
        self.assertEqual(self.talk(client, "n0")[0], b"")
        self.assertEqual(self.talk(client, "10.0.0.7")[0], b"")
        other = KeyRoom(Path(self.mktemp()))
        self.assertEqual(
            self.talk(other.member("n0"), "n0", authority=self.server().authority)[0], b"")
        self.assertEqual(self.talk(self.server(), "n0", authority="")[0], b"")
        damaged = self.room.keep("n0", with_names(self.room.authority, b"\x30\x03\x82\x01"))
        self.assertEqual(self.talk(damaged, "n0")[0], b"")

    def test_authority(self) -> None:
        """A file that is missing is named."""
        self.assertIn("nowhere", str(self.assertRaises(ValueError, ServerTrust, "nowhere")))
