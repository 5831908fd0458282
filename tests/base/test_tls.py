# -*- test-case-name: tests.base.test_tls -*-
"""TLS connections between two ends in memory, and the files of their keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IProtocol, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol, ServerFactory
from twisted.internet.task import Clock
from twisted.test.iosim import FakeTransport, connect
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from dledger.base.rights import ALL_RIGHTS, ClientRole
from dledger.base.tls.keys import FIRST_BYTE_S, TlsKeys
from dledger.base.tls_files import TlsFiles
from protocols.connection import TLS_LOSS, loss_sentence
from tests.base.keys import KeyRoom


class End(Protocol):
    """One end: what came, and how it ended."""

    transport: Any

    def __init__(self) -> None:
        self.heard = b""
        self.lost = ""

    def dataReceived(self, data: bytes) -> None:
        self.heard += data

    def connectionLost(self, reason: Any = None) -> None:
        self.lost = loss_sentence(reason)


@implementer(IStreamClientEndpoint)
class Kept:
    """An endpoint that builds the protocol, and connects it to nothing."""

    def connect(self, protocolFactory: Any) -> Deferred[IProtocol]:
        self.built = protocolFactory.buildProtocol(None)
        return succeed(self.built)


def dialled(keys: TlsKeys, end: End, name: str) -> Any:
    """A protocol that speaks TLS for C{end}, to a member called C{name}."""
    endpoint = Kept()
    keys.dial(endpoint, name).connect(Factory.forProtocol(lambda: end))  # type: ignore[arg-type]
    return endpoint.built


class TlsCase(SynchronousTestCase):
    """Two ends and their keys."""

    def setUp(self) -> None:
        self.room = KeyRoom(Path(self.mktemp()))
        self.clock = Clock()

    def ends(
        self, server: TlsFiles, client: TlsFiles | None, *, name: str = "n0", host: str = "10.0.0.7",
        plain_hosts: tuple[str, ...] = (), says: bytes = b"hello",
    ) -> tuple[End, End]:
        """A connection on which the client, plain without keys, has said something. @return: both ends."""
        mine, theirs = End(), End()
        factory = ServerFactory.forProtocol(lambda: mine)  # type: ignore[arg-type]
        listening = TlsKeys(server).listen(factory, plain_hosts=plain_hosts, clock=self.clock)
        built = listening.buildProtocol(IPv4Address("TCP", host, 4711))
        outer: Any = theirs
        if client is not None:
            outer = dialled(TlsKeys(client), theirs, name)
        self.carrier = FakeTransport(built, isServer=True)
        pump = connect(built, self.carrier, outer, FakeTransport(outer, isServer=False))
        theirs.transport.write(says)
        pump.flush()
        self.pump = pump
        return mine, theirs


class HandshakeTests(TlsCase):
    """Who is heard."""

    def test_members(self) -> None:
        """Both ends have certificates of one authority, and the server has the wanted name."""
        mine, theirs = self.ends(self.room.member("n0"), self.room.member("n1"))
        self.assertEqual(mine.heard, b"hello")
        mine.transport.write(b"and you?")
        self.pump.flush()
        self.assertEqual(theirs.heard, b"and you?")

    def test_another_name(self) -> None:
        """A member with a sound certificate of another member is not spoken to."""
        mine, theirs = self.ends(self.room.member("n2"), self.room.member("n1"))
        self.assertEqual(mine.heard, b"")
        self.assertIn("of another name", theirs.lost)

    def test_another_authority(self) -> None:
        """Neither end is heard, whichever is false."""
        other = KeyRoom(Path(self.mktemp()))
        for server, client in (
            (self.room.member("n0"), other.member("n1")), (other.member("n0"), self.room.member("n1")),
        ):
            mine, theirs = self.ends(server, client)
            self.assertEqual(mine.heard, b"")
            self.assertTrue(theirs.lost.startswith(TLS_LOSS) or mine.lost.startswith(TLS_LOSS))

    def test_believing_is_not_enough(self) -> None:
        """A stranger who names our authority as his own, with a certificate of another one."""
        other = KeyRoom(Path(self.mktemp())).member("n1")
        mixed = attrs.evolve(other, authority=self.room.member("n1").authority)
        self.assertRaises(ValueError, TlsKeys, mixed)  # we would not even begin
        keys = TlsKeys(other)
        keys._root = TlsKeys(self.room.member("n1"))._root
        mine, theirs = End(), End()
        factory = ServerFactory.forProtocol(lambda: mine)  # type: ignore[arg-type]
        listening = TlsKeys(self.room.member("n0")).listen(factory, plain_hosts=(), clock=self.clock)
        outer = dialled(keys, theirs, "n0")
        built = listening.buildProtocol(IPv4Address("TCP", "10.0.0.7", 4711))
        pump = connect(built, FakeTransport(built, isServer=True),
                       outer, FakeTransport(outer, isServer=False))
        theirs.transport.write(b"hello")
        pump.flush()
        self.assertEqual(mine.heard, b"")
        self.assertTrue(mine.lost.startswith(TLS_LOSS), mine.lost)

    def test_plain(self) -> None:
        """Bytes without TLS are not heard."""
        mine, _theirs = self.ends(self.room.member("n0"), None)
        self.assertEqual(mine.heard, b"")
        self.assertTrue(mine.lost.startswith(TLS_LOSS), mine.lost)

    def test_plain_host(self) -> None:
        """A named host or network may do without, and may use TLS, too."""
        for hosts, host, is_heard in (
            (("10.0.0.7",), "10.0.0.7", True), (("10.0.0.0/24",), "10.0.0.7", True),
            (("10.0.0.8", "fe80::/10"), "10.0.0.7", False), (("10.0.0.7",), "::ffff:10.0.0.7", True),
            (("0.0.0.0/0",), "not an address", False),
        ):
            mine, _theirs = self.ends(self.room.member("n0"), None, plain_hosts=hosts, host=host)
            self.assertEqual(mine.heard == b"hello", is_heard, (hosts, host))
        mine, _theirs = self.ends(
            self.room.member("n0"), self.room.member("n1"), plain_hosts=("10.0.0.7",)
        )
        self.assertEqual(mine.heard, b"hello")
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_plain_host_says_nothing(self) -> None:
        """Before its first byte nobody counts such a connection, so it ends in time."""
        self.ends(self.room.member("n0"), None, plain_hosts=("10.0.0.7",), says=b"")
        self.assertFalse(self.carrier.disconnecting)
        self.clock.advance(FIRST_BYTE_S)
        self.assertTrue(self.carrier.disconnecting)

    def test_plain_host_goes_away(self) -> None:
        """No timer is left of it."""
        _mine, theirs = self.ends(self.room.member("n0"), None, plain_hosts=("10.0.0.7",), says=b"")
        theirs.transport.loseConnection()
        self.pump.flush()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_full(self) -> None:
        """A listening side that has no room is asked before anything else."""
        class Full(ServerFactory):
            def buildProtocol(self, addr: object) -> None:
                return None

        listening = TlsKeys(self.room.member("n0")).listen(Full(), plain_hosts=(), clock=self.clock)
        self.assertIs(listening.buildProtocol(IPv4Address("TCP", "10.0.0.7", 4711)), None)

    def test_malformed_hosts(self) -> None:
        """Names of hosts are not looked up."""
        error = self.assertRaises(ValueError, TlsKeys(self.room.member("n0")).listen, ServerFactory(),
                                  plain_hosts=("localhost",), clock=self.clock)
        self.assertIn("tls_plain_hosts: 'localhost' is neither an IP address nor a network", str(error))


class RightsOfConnectionsTests(TlsCase):
    """The certificate at the other end."""

    def rights(self, client: TlsFiles | None, **options: Any) -> Any:
        """What the server believes of it."""
        server = self.room.member("n0")
        mine, _theirs = self.ends(server, client, **options)
        return TlsKeys(server).rights_of(mine.transport, ("n0", "n1"))

    def test_names(self) -> None:
        """A member, a client, a client that may nothing, and one that calls itself a member's host."""
        self.assertEqual(self.rights(self.room.member("n1")).members, {"n1"})
        reader = self.rights(self.room.client("bob", ClientRole.READ))
        self.assertEqual((reader.roles, reader.members, reader.who), ({ClientRole.READ}, set(), "CN=bob"))
        self.assertEqual(self.rights(self.room.client("eve", hosts=("n0.example.org",))).roles, set())

    def test_plain(self) -> None:
        """A host that may do without TLS is believed everything."""
        self.assertIs(self.rights(None, plain_hosts=("10.0.0.7",)), ALL_RIGHTS)


class FileTests(TlsCase):
    """Files that are not sound, and files that change."""

    def test_refusals(self) -> None:
        """Each is one sentence with the option and the path."""
        sound, other = self.room.member("n0"), KeyRoom(Path(self.mktemp())).member("n0")
        text = Path(self.mktemp())
        text.write_text("no key")
        for files, sentence in (
            (attrs.evolve(sound, certificate="/no/such"), "tls_certificate=/no/such: No such file"),
            (attrs.evolve(sound, key="/no/such"), "tls_key=/no/such: No such file"),
            (attrs.evolve(sound, authority="/no/such"), "tls_authority=/no/such: No such file"),
            (attrs.evolve(sound, certificate=str(text)), "write a PEM file of certificates"),
            (attrs.evolve(sound, authority=str(text)), "write a PEM file of certificates"),
            (attrs.evolve(sound, key=str(text)), "write a PEM file of a key without a password"),
            (attrs.evolve(sound, key=other.key), "is not the key of tls_certificate="),
            (attrs.evolve(sound, authority=other.authority), "no certificate in tls_authority="),
            (self.room.member("old", days=-1), "expired on"),
        ):
            error = self.assertRaises(ValueError, TlsKeys, files)
            self.assertIn(sentence, str(error))

    def test_refresh(self) -> None:
        """Changed files are read once; if they are not sound, the old keys stay, and it is said once."""
        files = self.room.member("n0", days=10)
        keys = TlsKeys(files)
        before_s = keys.expires_s
        self.assertFalse(keys.refresh())
        self.room.member("n0", days=20)
        self.assertTrue(keys.refresh())
        self.assertGreater(keys.expires_s, before_s + 9 * 86400)
        context, now_s = keys.server_context, keys.expires_s
        Path(files.key).write_text("half a file")
        self.assertRaises(ValueError, keys.refresh)
        self.assertFalse(keys.refresh())
        self.assertEqual((keys.server_context, keys.expires_s), (context, now_s))
        os.unlink(files.key)
        self.assertRaises(ValueError, keys.refresh)
