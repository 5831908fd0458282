# -*- test-case-name: tests.base.test_tls -*-
"""TLS connections between two ends in memory, and the files of their keys."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import attrs
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtensionOID
from OpenSSL import crypto
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IProtocol, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol, ServerFactory
from twisted.internet.task import Clock
from twisted.test.iosim import FakeTransport, connect
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from dledger.base.tls import keys as keys_module
from dledger.base.tls.certificates import CertifiedKey, make_authority
from dledger.base.tls.keys import FIRST_BYTE_S, FIRST_BYTES_MAX, TlsKeys
from dledger.base.tls.securing import dialling
from dledger.values.rights import ALL_RIGHTS, NO_RIGHTS, ClientRole
from dledger.values.tls_files import TlsFiles
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


def dialled(keys: Any, end: End, name: str) -> Any:
    """A protocol that speaks TLS for C{end}, to a member called C{name}."""
    endpoint = Kept()
    keys.dial(endpoint, name).connect(Factory.forProtocol(lambda: end))  # type: ignore[arg-type]
    return endpoint.built


def with_names(authority: CertifiedKey, names: bytes, key: Any = None) -> CertifiedKey:
    """A certificate whose subjectAltName is C{names}, well-formed or not. @param key: P-256 by default."""
    signer: Any = serialization.load_pem_private_key(authority.key, password=None)
    key = key or ec.generate_private_key(ec.SECP256R1())
    own = x509.load_pem_x509_certificate(authority.certificate)
    extension = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, names)
    made = (
        x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(own.subject).serial_number(7)
        .not_valid_before(own.not_valid_before_utc).not_valid_after(own.not_valid_after_utc)
        .public_key(key.public_key()).add_extension(extension, critical=False)
    ).sign(signer, hashes.SHA256())
    return CertifiedKey(
        certificate=made.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


class TlsCase(SynchronousTestCase):
    """Two ends and their keys."""

    def setUp(self) -> None:
        self.room = KeyRoom(Path(self.mktemp()))
        self.clock = Clock()

    def ends(
        self, server: TlsFiles, client: TlsFiles | None, *, name: str = "n0", host: str = "10.0.0.7",
        plain_hosts: tuple[str, ...] = (), says: bytes = b"hello", group: str = "", **listens: bool,
    ) -> tuple[End, End]:
        """A connection on which the client, plain without keys, has said something. @return: both ends."""
        mine, theirs = End(), End()
        factory = ServerFactory.forProtocol(lambda: mine)  # type: ignore[arg-type]
        listening = TlsKeys(server).listen(
            factory, plain_hosts=plain_hosts, clock=self.clock, **listens)
        built = listening.buildProtocol(IPv4Address("TCP", host, 4711))
        outer: Any = theirs
        if client is not None:
            outer = dialled(dialling(client, group), theirs, name)
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

    def test_client_as_member(self) -> None:
        """
        No client is taken for a member: neither by a role, nor by a name that is no host name, nor by a
        certificate without any name, nor by a wildcard.
        """
        for client in (
            self.room.client("eve", ClientRole.READ), self.room.client("eve"),
            self.room.client("eve", ClientRole.ADMIN, hosts=("x.org",)),
            self.room.client("eve", hosts=("10.0.0.7", "*", "n*", "N0", "n0.")),
        ):
            mine, theirs = self.ends(client, self.room.member("n1"))
            self.assertEqual(mine.heard, b"")
            self.assertEqual(
                theirs.lost, "TLS: the certificate at the other end is of another name: CN=eve is not n0"
            )

    def test_ids_that_are_no_host_names(self) -> None:
        """An id is compared byte for byte."""
        for member_id in ("n_0", "N0", "0", "10.0.0.7", "n" * 63):
            mine, _theirs = self.ends(self.room.member(member_id), self.room.member("n1"), name=member_id)
            self.assertEqual(mine.heard, b"hello", member_id)

    def test_several_groups(self) -> None:
        """Under one authority: a member of another group with the same id is not a member of this one."""
        mine, theirs = self.room.member("n0", groups=["a"]), self.room.member("n1", groups=["b"])
        for group, heard in (("a", b"hello"), ("b", b"")):
            server, client = self.ends(mine, theirs, group=group)
            self.assertEqual(server.heard, heard)
            if not heard:
                self.assertIn("of another name", client.lost)
        server, _client = self.ends(mine, theirs, group="a")
        for group, members in (("a", frozenset()), ("b", {"n1"})):
            rights = TlsKeys(mine, group).rights_of(server.transport, ("n0", "n1"))
            self.assertEqual(rights.members, members)

    def test_unreadable_names(self) -> None:
        """A certificate of our authority with names that cannot be read proves and breaks nothing."""
        odd = self.room.keep("odd", with_names(self.room.authority, b"\x30\x07\x82\x02n0\x82\x01\xff"))
        mine, theirs = self.ends(odd, self.room.member("n1"))
        self.assertEqual(mine.heard, b"")
        self.assertIn("a certificate that cannot be read is not n0", theirs.lost)
        mine, _theirs = self.ends(self.room.member("n0"), odd)
        rights = TlsKeys(self.room.member("n0")).rights_of(mine.transport, ("n0", "n1"))
        self.assertEqual((rights.members, rights.roles), (frozenset(), frozenset()))

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
        trusting = keys.context.get_cert_store()
        assert trusting is not None
        trusting.add_cert(crypto.X509.from_cryptography(
            x509.load_pem_x509_certificate(self.room.authority.certificate)
        ))
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
            (("::ffff:10.0.0.0/120",), "10.0.0.7", True), (("::/0",), "::ffff:10.0.0.7", False),
            (("fe80::/10",), "fe80::1%eth0", True), (("::/0",), "::1", True),
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

    def test_many_plain_hosts_say_nothing(self) -> None:
        """The oldest give way, at once; no timer is left of them."""
        factory = ServerFactory.forProtocol(End)  # type: ignore[arg-type]
        listening = TlsKeys(self.room.member("n0")).listen(
            factory, plain_hosts=("10.0.0.7",), clock=self.clock
        )
        carriers = []
        for _ in range(FIRST_BYTES_MAX + 2):
            built: Any = listening.buildProtocol(IPv4Address("TCP", "10.0.0.7", 4711))
            carriers.append(FakeTransport(built, isServer=True))
            built.makeConnection(carriers[-1])
        self.assertEqual([one.disconnecting for one in carriers], [True] * 2 + [False] * FIRST_BYTES_MAX)
        self.assertEqual(len(self.clock.getDelayedCalls()), FIRST_BYTES_MAX)

    def test_plain_host_speaks_late(self) -> None:
        """The listening side is asked when the first byte comes: it may be full, or closing, by then."""
        asked = []

        class Full(ServerFactory):
            def buildProtocol(self, addr: object) -> None:
                asked.append(addr)

        listening = TlsKeys(self.room.member("n0")).listen(
            Full(), plain_hosts=("10.0.0.7",), clock=self.clock
        )
        for first in (b"hello", b"\x16\x03\x01"):
            built: Any = listening.buildProtocol(IPv4Address("TCP", "10.0.0.7", 4711))
            carrier = FakeTransport(built, isServer=True)
            built.makeConnection(carrier)
            self.assertEqual(asked, [])
            built.dataReceived(first)
            built.dataReceived(b"more")
            self.assertEqual(len(asked), 1)
            self.assertTrue(carrier.disconnecting)
            asked.clear()
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
        """The server's view of it."""
        server = self.room.member("n0")
        mine, _theirs = self.ends(server, client, **options)
        return TlsKeys(server).rights_of(mine.transport, ("n0", "n1"))

    def test_names(self) -> None:
        """A member, a client, a client that may nothing, and one that calls itself a member's host."""
        self.assertEqual(self.rights(self.room.member("n1")).members, {"n1"})
        reader = self.rights(self.room.client("bob", ClientRole.READ))
        self.assertEqual((reader.roles, reader.members, reader.who), ({ClientRole.READ}, set(), "CN=bob"))
        self.assertEqual(self.rights(self.room.client("eve", hosts=("n0.example.org",))).roles, set())

    def test_no_certificate(self) -> None:
        """Refused, unless the listening side takes tokens: then it has no rights by itself, but is served."""
        trusting = TlsFiles(authority=self.room.member("n0").authority)
        asked = {"demands_certificate": False, "asks_certificate": True}
        self.assertEqual(self.ends(self.room.member("n0"), trusting)[0].heard, b"")
        mine, _ = self.ends(self.room.member("n0"), trusting, **asked)  # type: ignore[arg-type]
        self.assertEqual(mine.heard, b"hello")
        self.assertIs(self.rights(trusting, **asked), NO_RIGHTS)
        server = self.room.member("n0")
        mine, theirs = self.ends(server, trusting, name="n1", **asked)  # type: ignore[arg-type]
        self.assertEqual(mine.heard, b"")
        self.assertIn("is not n1", theirs.lost)

    def test_certificate_that_need_not_be(self) -> None:
        """One that is shown counts, and must be of the authority."""
        asked = {"demands_certificate": False, "asks_certificate": True}
        reader = self.rights(self.room.client("bob", ClientRole.READ), **asked)
        self.assertEqual(reader.roles, {ClientRole.READ})
        foreign = attrs.evolve(
            KeyRoom(Path(self.mktemp())).client("eve", ClientRole.ADMIN),
            authority=self.room.member("n0").authority,
        )
        self.patch(keys_module, "_is_issued", lambda certificate, authority: True)  # it loads its keys
        mine, _ = self.ends(self.room.member("n0"), foreign, **asked)  # type: ignore[arg-type]
        self.assertEqual(mine.heard, b"")

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

    def test_key_that_openssl_refuses(self) -> None:
        """Also while a member runs, that is a sentence, and the old keys stay."""
        files = self.room.member("n0")
        keys = TlsKeys(files)
        context = keys.context
        short = rsa.generate_private_key(65537, 1024)
        self.room.keep("n0", with_names(self.room.authority, b"\x30\x04\x82\x02n0", short))
        error = self.assertRaises(ValueError, keys.refresh)
        self.assertIn("OpenSSL refuses them", str(error))
        self.assertIs(keys.context, context)

    def test_two_authorities(self) -> None:
        """The end that counts is that of the authority that signed the certificate, wherever it is."""
        files = self.room.member("n0", days=20)
        for other in (make_authority("over", days=-1), make_authority("soon", days=2)):
            for both in ((other, self.room.authority), (self.room.authority, other)):
                Path(files.authority).write_bytes(b"".join(one.certificate for one in both))
                left_s = TlsKeys(files).expires_s - time.time()
                self.assertAlmostEqual(left_s / 86400, 20, places=2)

    def test_change_while_reading(self) -> None:
        """A file that is replaced behind the reader's back is read at the next look."""
        files = self.room.member("n0", days=10)
        keys = TlsKeys(files)
        self.room.member("n0", days=20)
        replaced: list[int] = []

        def late(path: str) -> Any:
            key = load_key(path)
            if not replaced:
                replaced.append(1)
                self.room.member("n0", days=25)
            return key

        load_key = keys_module._private_key
        self.patch(keys_module, "_private_key", late)
        self.assertTrue(keys.refresh())
        self.assertTrue(keys.refresh())
        self.assertAlmostEqual((keys.expires_s - time.time()) / 86400, 25, places=2)
        self.assertFalse(keys.refresh())

    def test_refresh(self) -> None:
        """Changed files are read once; if they are not sound, the old keys stay, and it is said once."""
        files = self.room.member("n0", days=10)
        keys = TlsKeys(files)
        before_s = keys.expires_s
        self.assertFalse(keys.refresh())
        self.room.member("n0", days=20)
        self.assertTrue(keys.refresh())
        self.assertGreater(keys.expires_s, before_s + 9 * 86400)
        context, now_s = keys.context, keys.expires_s
        Path(files.key).write_text("half a file")
        self.assertRaises(ValueError, keys.refresh)
        self.assertFalse(keys.refresh())
        self.assertEqual((keys.context, keys.expires_s), (context, now_s))
        os.unlink(files.key)
        self.assertRaises(ValueError, keys.refresh)
