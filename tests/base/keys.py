# -*- test-case-name: tests.base.test_tls -*-
"""Keys and certificates for tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dledger.base.tls.certificates import CertifiedKey, issue, make_authority
from dledger.values.rights import ClientRole
from dledger.values.tls_files import TlsFiles


class KeyRoom:
    """A directory with one authority and its certificates."""

    def __init__(self, directory: Path, *, days: int = 30) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = make_authority("an authority for tests", days=days)
        (directory / "authority.pem").write_bytes(self.authority.certificate)

    def member(self, member_id: str, *, days: int = 30, groups: Iterable[str] = ()) -> TlsFiles:
        """Keys of a member."""
        made = issue(self.authority, member_id, members=(member_id,), days=days, groups=groups)
        return self.keep(member_id, made)

    def client(self, name: str, *roles: ClientRole, hosts: Iterable[str] = ()) -> TlsFiles:
        """Keys of a client."""
        return self.keep(name, issue(self.authority, name, roles=roles, hosts=hosts, days=30))

    def broker(self, name: str, *, days: int = 30, brokers: Iterable[str] = ()) -> TlsFiles:
        """Keys of a broker, which may follow a master."""
        return self.keep(name, issue(self.authority, name, days=days, is_broker=True, brokers=brokers))

    def keep(self, name: str, made: CertifiedKey) -> TlsFiles:
        """Write the files of C{made}."""
        certificate, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        certificate.write_bytes(made.certificate)
        key.write_bytes(made.key)
        return TlsFiles(
            certificate=str(certificate), key=str(key), authority=str(self.directory / "authority.pem")
        )
