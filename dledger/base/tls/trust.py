# -*- test-case-name: tests.base.test_trust -*-
"""
TLS for a program that shows no certificate, and believes servers of an authority: for the pages of an
administration.

Rule: the certificate of the server names the host that was asked, as a DNS name or an IP address; a name of
L{dial <ServerTrust.dial>} without wildcards. So the key of a client, which the same authority has signed,
makes no server.

Source: RFC 9110, section 4.3.4; RFC 6125.
"""

from __future__ import annotations

import ipaddress

from cryptography import x509
from OpenSSL import SSL, crypto
from twisted.internet.error import VerifyError
from twisted.internet.interfaces import IOpenSSLClientConnectionCreator, IStreamClientEndpoint
from twisted.internet.ssl import (
    Certificate,
    CertificateOptions,
    TLSVersion,
    platformTrust,
    trustRootFromCertificates,
)
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from dledger.base.tls.keys import SecuredEndpoint, read_certificates


class ServerTrust:
    """The authorities of one file; without one, those of this system."""

    def __init__(self, authority: str = "") -> None:
        """@raise ValueError: the file is missing, or not sound."""
        trust = platformTrust() if not authority else trustRootFromCertificates([
            Certificate(crypto.X509.from_cryptography(one))
            for one in read_certificates("authority", authority)
        ])
        self._context = CertificateOptions(trustRoot=trust, raiseMinimumTo=TLSVersion.TLSv1_2).getContext()

    def dial(self, endpoint: IStreamClientEndpoint, name: str | None) -> IStreamClientEndpoint:
        """
        An endpoint for C{endpoint} by TLS, whose other end must prove that it is C{name}.

        @param name: host name or IP address; never None.
        """
        assert name is not None, "a server without a name proves nothing"
        return SecuredEndpoint(_Asking(self._context, name), endpoint)


@implementer(IOpenSSLClientConnectionCreator)
class _Asking:
    """Makes the client's side of a connection, which ends unless the other end is C{name}."""

    def __init__(self, context: SSL.Context, name: str) -> None:
        self._context = context
        self._name = name

    def clientConnectionForTLS(self, tlsProtocol: TLSMemoryBIOProtocol) -> SSL.Connection:

        def verified(_: SSL.Connection, shown: crypto.X509, error: int, depth: int, is_sound: int) -> bool:
            # (OpenSSL takes an exception in here for a refusal.)
            if not is_sound or depth:
                return bool(is_sound)
            if not names_host(shown, self._name):
                tlsProtocol.failVerification(Failure(VerifyError(
                    f"its certificate does not name {self._name}"
                )))
                return False
            return True

        connection = SSL.Connection(self._context, None)
        connection.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, verified)
        return connection


def names_host(shown: crypto.X509, host: str) -> bool:
    """Whether a certificate names a host. One that cannot be read names nobody."""
    try:
        names = shown.to_cryptography().extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = {one.lower() for one in names.get_values_for_type(x509.DNSName)}
        addresses = set(names.get_values_for_type(x509.IPAddress))
    except Exception:  # cryptography has several, and passes on those of its parsers
        return False
    try:
        return ipaddress.ip_address(host) in addresses
    except ValueError:
        return host.lower().rstrip(".") in found
