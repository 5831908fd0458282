# -*- test-case-name: tests.commands.test_certs -*-
"""
Makes a private authority, and the certificates of members and clients that it signs.

The keys are of the curve P-256. A certificate names members as DNS names and roles as URIs, as
L{dledger.values.rights} reads them.

Source: RFC 5280.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import attrs
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dledger.values.rights import BROKER_URI, GROUP_URI, ROLE_URI, SLAVE_URI, ClientRole, named_uri

#: A certificate is valid from this many minutes before it is made: clocks differ.
_EARLIER_MIN = 10


@attrs.frozen(kw_only=True)
class CertifiedKey:
    """
    A certificate and its key.

    @ivar certificate: PEM; of an authority, others may be in it, too.
    @ivar key: PEM, without a password.
    """

    certificate: bytes
    key: bytes


def make_authority(name: str, *, days: int) -> CertifiedKey:
    """A new authority. @param name: its common name. @param days: validity, from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _begun(name, key.public_key(), days).issuer_name(_named(name))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(is_authority=True), critical=True)
    return _pem(builder.sign(key, hashes.SHA256()), key)


def issue(
    authority: CertifiedKey, name: str, *, members: Iterable[str] = (), roles: Iterable[ClientRole] = (),
    hosts: Iterable[str] = (), days: int, is_broker: bool = False, brokers: Iterable[str] = (),
    groups: Iterable[str] = (),
) -> CertifiedKey:
    """
    A new key, and a certificate for it.

    @param name: common name, for people.
    @param members, roles: what its holder may do.
    @param hosts: IP addresses and further DNS names of the machine, for programs that check them. Beware:
        a DNS name that is the id of a member lets the holder speak for that member.
    @param is_broker: its holder may copy the log of a master.
    @param brokers: names of brokers as which its holder may register with a name server.
    @param groups: in which it counts; none: in all.
    @param days: validity, from now; at most until the end of C{authority}.
    @raise ValueError: C{authority} is not sound, or its end is over.
    """
    signer, issuer = _opened(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName(one) for one in members]
    names += [one for one in map(_host_name, dict.fromkeys(hosts)) if one not in names]
    names += [x509.UniformResourceIdentifier(f"{ROLE_URI}{role}") for role in roles]
    names += [x509.UniformResourceIdentifier(SLAVE_URI)] if is_broker else []
    for beginning, named in ((BROKER_URI, brokers), (GROUP_URI, groups)):
        names += [x509.UniformResourceIdentifier(named_uri(beginning, one)) for one in named]
    builder = _begun(name, key.public_key(), days, issuer.not_valid_after_utc).issuer_name(issuer.subject)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(is_authority=False), critical=True)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    return _pem(builder.add_extension(both, critical=False).sign(signer, hashes.SHA256()), key)


def lost_names(old: bytes, new: bytes) -> list[str]:
    """
    Members, hosts, brokers and groups that a certificate names, and its successor does not.

    @param old: PEM; without a certificate that can be read, nothing is lost.
    """
    try:
        before = _names(old)
    except ValueError:
        return []
    return sorted(before - _names(new))


def _names(certificate: bytes) -> set[str]:
    """@raise ValueError: it is malformed."""
    extensions = x509.load_pem_x509_certificate(certificate).extensions
    named = [one.value for one in extensions if isinstance(one.value, x509.SubjectAlternativeName)]
    texts = {str(name.value) for names in named for name in names}
    return {text for text in texts if not text.startswith(ROLE_URI)}


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _opened(authority: CertifiedKey) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """@raise ValueError: see L{issue}."""
    try:
        signer = serialization.load_pem_private_key(authority.key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"its key cannot be read ({error})") from None
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the key of the authority is of another kind: it was not made by this command")
    # (Of several certificates, the one of the key: the old authority may be in the file, too.)
    mine = [one for one in x509.load_pem_x509_certificates(authority.certificate)
            if one.public_key() == signer.public_key()]
    if not mine:
        raise ValueError("the key of the authority belongs to another certificate")
    if mine[0].not_valid_after_utc <= datetime.now(UTC):
        raise ValueError(
            f"the authority ended on {mine[0].not_valid_after_utc:%Y-%m-%d}: make another one, in another "
            "directory"
        )
    return signer, mine[0]


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(
    name: str, key: ec.EllipticCurvePublicKey, days: int, at_most: datetime | None = None
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    ends = now + timedelta(days=days)
    if at_most is not None:
        ends = min(ends, at_most)
    return (
        x509.CertificateBuilder().subject_name(_named(name)).public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, ends) - timedelta(minutes=_EARLIER_MIN)).not_valid_after(ends)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> CertifiedKey:
    return CertifiedKey(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
