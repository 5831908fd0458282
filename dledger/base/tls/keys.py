# -*- test-case-name: tests.base.test_tls -*-
"""
TLS between members, and between clients and members: mutual, TLS 1.2 or later.

Rule 1: both ends show a certificate that the group's authority has signed; an end without one is refused
during the handshake, before any of its bytes is read as a message.
Rule 2: who connects to the member C{n0} demands a certificate with the DNS name C{n0}, byte for byte and
without wildcards: the name of a machine proves nothing about a member, and an id need not be a host name. If
the certificate names groups (L{dledger.values.rights}), the member's must be among them.
Rule 3: a certificate that cannot be read names nobody.
Rule 4: the files are read again when they have changed (L{TlsKeys.refresh}); open connections keep the keys
with which they began. Files that are not sound change nothing.

Twisted's C{optionsForClientTLS} is not used: it goes on with a certificate whose names its check cannot read,
and a role of ours is such a name; it refuses ids as C{n_0} and C{0}.

Source: RFC 8446, RFC 5280; Java DLedger has no authentication of members.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from OpenSSL import SSL, crypto
from twisted.internet.defer import Deferred
from twisted.internet.error import VerifyError
from twisted.internet.interfaces import (
    IAddress,
    IDelayedCall,
    IOpenSSLClientConnectionCreator,
    IOpenSSLServerConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IReactorTime,
    IStreamClientEndpoint,
    ITCPTransport,
)
from twisted.internet.protocol import Protocol, ServerFactory, connectionDone
from twisted.internet.ssl import (
    Certificate,
    CertificateOptions,
    TLSVersion,
    trustRootFromCertificates,
)
from twisted.protocols.tls import TLSMemoryBIOFactory, TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import Attribute, implementer

from dledger.values.hosts import Network, is_within, networks_of
from dledger.values.rights import ALL_RIGHTS, NO_RIGHTS, Rights, is_for_group, rights_of
from dledger.values.tls_files import TlsFiles

#: The first byte of a TLS connection: the record type "handshake".
_HANDSHAKE = 0x16
#: Seconds within which the first byte must come from a host that may do without TLS.
FIRST_BYTE_S = 10.0
#: At most this many such connections wait for their first byte; the oldest gives way to a newer one.
FIRST_BYTES_MAX = 256


class TlsKeys:
    """
    The identity of this process, and the authorities that it believes.

    @ivar context: of OpenSSL, for new connections in both directions.
    @ivar group: in which certificates of others must count; empty: those of members are not asked for one.
    """

    context: SSL.Context

    def __init__(self, files: TlsFiles, group: str = "") -> None:
        """
        @param group: in which certificates of others must count.
        @raise ValueError: a file is missing or not sound.
        """
        self._files = files
        self.group = group
        self._load()

    @property
    def files(self) -> TlsFiles:
        """Where the keys come from."""
        return self._files

    @property
    def expires_s(self) -> float:
        """The end of the own certificate, or of its authority's if that is earlier; seconds since 1970."""
        return self._expires_s

    @property
    def names(self) -> frozenset[str]:
        """The DNS names of the own certificate."""
        return self._names

    def _load(self) -> None:
        files = self._files
        seen = _stamps(files)  # before the files are read: a change while they are read is seen later
        chain = read_certificates("tls_certificate", files.certificate)
        authorities = read_certificates("tls_authority", files.authority)
        key = _private_key(files.key)
        own = chain[0]
        _check_pair(files, own, key)
        issuers = [one for one in authorities if _is_issued(chain[-1], one)]
        if not issuers:
            raise ValueError(
                f"tls_certificate={files.certificate}: no certificate in tls_authority={files.authority} has "
                "signed it"
            )
        issuer = max(issuers, key=lambda one: one.not_valid_after_utc)
        now = datetime.now(UTC)
        for name, path, certificate in (
            ("tls_certificate", files.certificate, own), ("tls_authority", files.authority, issuer),
        ):
            if certificate.not_valid_after_utc <= now:
                raise ValueError(f"{name}={path}: expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
        self.context = _context(files, chain, key, authorities)
        self._names = frozenset(_read_names(crypto.X509.from_cryptography(own))[0])
        self._expires_s = min(own.not_valid_after_utc, issuer.not_valid_after_utc).timestamp()
        self._seen = seen

    def refresh(self) -> bool:
        """
        Read the files again if they have changed.

        @return: whether there are new keys.
        @raise ValueError: a file is missing or not sound; the old keys stay.
        """
        seen = _stamps(self._files)
        if seen == self._seen:
            return False
        try:
            self._load()
        except ValueError:
            self._seen = seen  # said once for each change
            raise
        return True

    def dial(self, endpoint: IStreamClientEndpoint, name: str | None) -> IStreamClientEndpoint:
        """
        An endpoint for C{endpoint} by TLS, whose other end must prove that it is C{name}.

        @param name: None: any certificate of the authority will do.
        """
        return SecuredEndpoint(_Client(self, name), endpoint)

    def listen(
        self, factory: IProtocolFactory, *, plain_hosts: Iterable[str], clock: IReactorTime,
        demands_certificate: bool = True, asks_certificate: bool = False, needed_uri: str = "",
    ) -> ServerFactory:
        """
        A factory whose connections speak TLS with those of C{factory}.

        @param plain_hosts: IP addresses or networks from which connections without TLS are taken.
        @param demands_certificate: False: the other end need not show a certificate.
        @param asks_certificate: but one that it shows is checked, and gives it rights; else it is not even
            asked for.
        @param needed_uri: with C{demands_certificate}: a URI that the certificate must name; empty: none.
        @raise ValueError: C{plain_hosts} is malformed.
        """
        server = _Server(
            self, demands_certificate=demands_certificate, asks_certificate=asks_certificate,
            needed_uri=needed_uri,
        )
        return _Listening(server, factory, networks_of(plain_hosts, "tls_plain_hosts"), clock)

    def rights_of(self, transport: object, member_ids: Iterable[str]) -> Rights:
        """
        The rights of the other end of an incoming connection.

        @param transport: of a connection that L{listen} took; with TLS, its handshake is over.
        """
        if not isinstance(transport, TLSMemoryBIOProtocol):
            return ALL_RIGHTS  # it came from a host that may do without
        shown = transport.getPeerCertificate()
        if shown is None:
            return NO_RIGHTS
        dns_names, uris, subject = _read_names(shown)
        return rights_of(
            dns_names=dns_names, uris=uris, member_ids=member_ids, who=subject, group=self.group
        )

    def uris_of(self, transport: object) -> frozenset[str]:
        """The URIs in the certificate that the other end of an incoming connection has shown."""
        shown = transport.getPeerCertificate() if isinstance(transport, TLSMemoryBIOProtocol) else None
        return frozenset() if shown is None else frozenset(_read_names(shown)[1])


class MemberTrust:
    """
    Of a client that shows no certificate, but a token: it only believes.

    @ivar context: of OpenSSL, for new connections.
    """

    def __init__(self, authority: str, group: str = "") -> None:
        """@param authority: PEM file. @raise ValueError: it is missing or not sound."""
        self.group = group
        believed = [
            Certificate(crypto.X509.from_cryptography(one))
            for one in read_certificates("tls_authority", authority)
        ]
        self.context = CertificateOptions(
            trustRoot=trustRootFromCertificates(believed), raiseMinimumTo=TLSVersion.TLSv1_2
        ).getContext()

    def dial(self, endpoint: IStreamClientEndpoint, name: str | None) -> IStreamClientEndpoint:
        """See L{TlsKeys.dial}."""
        return SecuredEndpoint(_Client(self, name), endpoint)


def _read_names(shown: crypto.X509) -> tuple[list[str], list[str], str]:
    """
    The DNS names, the URIs and the subject of the certificate at the other end.

    Its authority is ours, its contents may be anything: what cannot be read names nobody.
    """
    try:
        certificate = shown.to_cryptography()
        subject = certificate.subject.rfc4514_string()[:200]
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return (
            names.get_values_for_type(x509.DNSName),
            names.get_values_for_type(x509.UniformResourceIdentifier), subject,
        )
    except x509.ExtensionNotFound:
        return [], [], subject
    except Exception:  # cryptography has several, and passes on those of its parsers
        return [], [], "a certificate that cannot be read"


# -- files ----------------------------------------------------------------------------------------


def _read(name: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}={path}: {getattr(error, 'strerror', error)}") from None


def read_certificates(name: str, path: str) -> list[x509.Certificate]:
    """The certificates of a PEM file. @param name: of its option. @raise ValueError: it is not sound."""
    try:
        return x509.load_pem_x509_certificates(_read(name, path))
    except ValueError as error:
        if str(error).startswith(name):
            raise
        raise ValueError(f"{name}={path}: write a PEM file of certificates") from None


def _private_key(path: str) -> PrivateKeyTypes:
    data = _read("tls_key", path)
    try:
        return serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"tls_key={path}: write a PEM file of a key without a password ({error})") from None


def _check_pair(files: TlsFiles, own: x509.Certificate, key: PrivateKeyTypes) -> None:
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if own.public_key().public_bytes(*form) != key.public_key().public_bytes(*form):
        raise ValueError(f"tls_key={files.key} is not the key of tls_certificate={files.certificate}")


def _context(
    files: TlsFiles, chain: list[x509.Certificate], key: PrivateKeyTypes, authorities: list[x509.Certificate]
) -> SSL.Context:
    """@raise ValueError: OpenSSL does not take them, for instance because the key is too short."""
    try:
        own, *between = [crypto.X509.from_cryptography(one) for one in chain]
        return CertificateOptions(
            # (Of a kind that it does not know, a TypeError.)
            privateKey=crypto.PKey.from_cryptography_key(key),  # type: ignore[arg-type]
            certificate=own, extraCertChain=between,
            trustRoot=trustRootFromCertificates(
                [Certificate(crypto.X509.from_cryptography(one)) for one in authorities]
            ),
            raiseMinimumTo=TLSVersion.TLSv1_2,
        ).getContext()
    except (SSL.Error, crypto.Error, TypeError) as error:
        raise ValueError(
            f"tls_certificate={files.certificate}, tls_key={files.key}: OpenSSL refuses them ({error})"
        ) from None


def _is_issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return certificate == authority
    return True


def _stamps(files: TlsFiles) -> tuple[tuple[int, int, int], ...]:
    found = []
    for path in (files.certificate, files.key, files.authority):
        try:
            status = os.stat(path)
            found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        except OSError:
            found.append((-1, -1, -1))
    return tuple(found)


# -- connections ----------------------------------------------------------------------------------


@implementer(IStreamClientEndpoint)
class SecuredEndpoint:
    """Connects by TLS. C{creator} makes the client's side of each connection."""

    def __init__(self, creator: IOpenSSLClientConnectionCreator, endpoint: IStreamClientEndpoint) -> None:
        self._creator = creator
        self._endpoint = endpoint

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        secure = TLSMemoryBIOFactory(self._creator, True, protocolFactory)
        secure.protocol = TLSMemoryBIOProtocol
        secure.noisy = False
        inner: Callable[..., IProtocol] = _inner
        return self._endpoint.connect(secure).addCallback(inner)


def _inner(secure: TLSMemoryBIOProtocol) -> IProtocol:
    inner: IProtocol = secure.wrappedProtocol
    return inner


@implementer(IOpenSSLClientConnectionCreator)
class _Client:
    """
    Makes the client's side of a connection, with the keys of the time at which it connects; it ends unless
    the other end is C{name}; None: anyone.
    """

    def __init__(self, keys: TlsKeys | MemberTrust, name: str | None) -> None:
        self._keys = keys
        self._name = name

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:

        def verified(_: SSL.Connection, shown: crypto.X509, error: int, depth: int, is_sound: int) -> bool:
            # (OpenSSL takes an exception in here for a refusal.)
            if not is_sound or depth:
                return bool(is_sound)
            dns_names, uris, subject = _read_names(shown)
            name, group = self._name, self._keys.group
            if name is not None and not (name in dns_names and is_for_group(uris, group)):
                wanted = name if name not in dns_names else f"{name} of group {group!r}"
                tlsProtocol.failVerification(Failure(VerifyError(f"{subject} is not {wanted}")))
                return False
            return True

        connection = SSL.Connection(self._keys.context, None)
        connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, verified)
        return connection


@implementer(IOpenSSLServerConnectionCreator)
class _Server:
    """Makes the server's side of a connection, with the present keys."""

    def __init__(
        self, keys: TlsKeys, *, demands_certificate: bool, asks_certificate: bool, needed_uri: str
    ) -> None:
        self._needed_uri = needed_uri
        self._keys = keys
        self._demands_certificate = demands_certificate
        self._asks_certificate = asks_certificate

    def serverConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:
        connection = SSL.Connection(self._keys.context, None)
        if self._asks_certificate and not self._demands_certificate:
            connection.set_verify(SSL.VERIFY_PEER, lambda _, shown, error, depth, is_sound: bool(is_sound))
        elif not self._demands_certificate:
            connection.set_verify(SSL.VERIFY_NONE)
        elif self._needed_uri:
            connection.set_verify(
                SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, self._names_needed(tlsProtocol))
        return connection


    def _names_needed(
        self, tlsProtocol: TLSMemoryBIOProtocol
    ) -> Callable[[SSL.Connection, crypto.X509, int, int, int], bool]:
        def verified(_: SSL.Connection, shown: crypto.X509, error: int, depth: int, is_sound: int) -> bool:
            # (OpenSSL takes an exception in here for a refusal.)
            if not is_sound or depth:
                return bool(is_sound)
            _names, uris, subject = _read_names(shown)
            if self._needed_uri not in uris:
                tlsProtocol.failVerification(Failure(VerifyError(
                    f"the certificate of {subject or 'nobody'} does not name {self._needed_uri}"
                )))
                return False
            return True

        return verified


class _Listening(ServerFactory):
    """Looks at the first byte of each connection: TLS, or plain from a host that may."""

    noisy = False

    def __init__(
        self, server: _Server, factory: IProtocolFactory, plain: tuple[Network, ...], clock: IReactorTime
    ) -> None:
        self._inner = factory
        self._plain = plain
        self._clock = clock
        self._waiting: dict[_FirstByte, None] = {}  # oldest first
        self._secure = TLSMemoryBIOFactory(server, False, factory)
        # (Twisted's default gathers writes until the next turn; our connections have done so already.)
        self._secure.protocol = TLSMemoryBIOProtocol
        self._secure.noisy = False

    def doStart(self) -> None:
        self._inner.doStart()

    def doStop(self) -> None:
        self._inner.doStop()

    def buildProtocol(self, addr: IAddress | None) -> Protocol | None:
        if is_within(getattr(addr, "host", ""), self._plain):
            while len(self._waiting) >= FIRST_BYTES_MAX:
                next(iter(self._waiting)).give_up()
            return _FirstByte(self, addr)
        return self.chosen(addr, is_secure=True)

    def chosen(self, addr: IAddress | None, *, is_secure: bool) -> Protocol | None:
        """The protocol of a connection by its first byte; None if the listening side has no room."""
        inner = self._inner.buildProtocol(cast("IAddress", addr))
        if inner is None or not is_secure:
            return cast("Protocol | None", inner)
        return self._secure.protocol(self._secure, inner)

    def began(self, waiting: _FirstByte) -> IDelayedCall:
        """A connection waits for its first byte. @return: what ends it in time."""
        self._waiting[waiting] = None
        return self._clock.callLater(FIRST_BYTE_S, waiting.give_up)

    def ended(self, waiting: _FirstByte) -> None:
        """It does so no longer."""
        self._waiting.pop(waiting, None)


class _Transport(ITCPTransport):
    """A transport of Twisted's, which calls its C{protocol} with what is read."""

    protocol: IProtocol = Attribute("The receiver of what is read.")


class _FirstByte(Protocol):
    """
    Gives the connection to one of two protocols when its first byte has come.

    The listening side is asked only then, and counts a connection from then on: one that says nothing may
    not take a place, and one that speaks late may not pass by the bound, or begin while the member stops.
    """

    transport: _Transport
    _time_out: IDelayedCall

    def __init__(self, listening: _Listening, addr: IAddress | None) -> None:
        self._listening = listening
        self._addr = addr
        self._chosen: IProtocol | None = None
        self._is_over = False

    def connectionMade(self) -> None:
        self._time_out = self._listening.began(self)

    def give_up(self) -> None:
        """End the connection: its first byte did not come in time."""
        self._end()
        self.transport.abortConnection()

    def dataReceived(self, data: bytes) -> None:
        if self._chosen is None:
            if self._is_over:
                return
            self._end()
            self._chosen = self._listening.chosen(self._addr, is_secure=data[0] == _HANDSHAKE)
            if self._chosen is None:
                self.transport.abortConnection()
                return
            # From now on the transport calls it directly, as if it had been there from the beginning.
            self.transport.protocol = self._chosen
            self._chosen.makeConnection(self.transport)
        self._chosen.dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """See L{Protocol.connectionLost}: it ended before its first byte."""
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._listening.ended(self)
        if self._time_out.active():
            self._time_out.cancel()
