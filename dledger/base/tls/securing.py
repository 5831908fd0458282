# -*- test-case-name: tests.base.test_securing -*-
"""
What the rooms above need of TLS, without its packages: C{dledger[tls]} need not be installed in a group
without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

import attrs
from twisted.internet.interfaces import IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.internet.protocol import ServerFactory

from dledger.values.rights import Rights
from dledger.values.tls_files import TlsFiles


class Dialling(Protocol):
    """Connects by TLS: L{TlsKeys <dledger.base.tls.keys.TlsKeys>} for a program that only connects."""

    def dial(self, endpoint: IStreamClientEndpoint, name: str | None) -> IStreamClientEndpoint:
        """An endpoint by TLS, whose other end must prove that it is C{name}; None: of the authority."""


@attrs.frozen
class MembersDialling:
    """
    Connects one member to the others: by TLS, except those that do without.

    @ivar keys: of the member.
    @ivar plain_members: ids of the others; the option C{tls_plain_members}.
    """

    keys: Dialling
    plain_members: Collection[str]

    def dial(self, endpoint: IStreamClientEndpoint, name: str | None) -> IStreamClientEndpoint:
        """See L{Dialling.dial}."""
        return endpoint if name in self.plain_members else self.keys.dial(endpoint, name)


class Securing(Dialling, Protocol):
    """Listens and connects by TLS: L{TlsKeys <dledger.base.tls.keys.TlsKeys>}, as a server sees it."""

    @property
    def files(self) -> TlsFiles:
        """Where the keys come from."""

    @property
    def expires_s(self) -> float:
        """The end of the certificate, seconds since 1970."""

    @property
    def names(self) -> frozenset[str]:
        """The DNS names of the own certificate: the members for which it may speak."""

    def listen(
        self, factory: IProtocolFactory, *, plain_hosts: Iterable[str], clock: IReactorTime,
        demands_certificate: bool = True, asks_certificate: bool = False, needed_uri: str = "",
    ) -> ServerFactory:
        """A factory whose connections speak TLS with those of C{factory}."""

    def rights_of(self, transport: object, member_ids: Iterable[str]) -> Rights:
        """The rights of the other end of an incoming connection."""

    def uris_of(self, transport: object) -> frozenset[str]:
        """The URIs in the certificate at the other end of an incoming connection."""

    def refresh(self) -> bool:
        """Read changed files again. @return: whether there are new keys."""


def secured(files: TlsFiles | None, group: str = "") -> Securing | None:
    """
    @param group: in which certificates of others must count; empty: of a program outside groups.
    @return: None without files.
    @raise ValueError: a package or a file is missing, or a file is not sound.
    """
    if files is None:
        return None
    try:
        from dledger.base.tls.keys import TlsKeys
    except ImportError as error:
        raise ValueError(f"TLS needs further packages ({error}): pip install 'dledger[tls]'") from None
    return TlsKeys(files, group)


def dialling(files: TlsFiles | None, group: str = "") -> Dialling | None:
    """As L{secured}, for a program that only connects: it needs no certificate if it has a token."""
    if files is None or files.certificate:
        return secured(files, group)
    try:
        from dledger.base.tls.keys import MemberTrust
    except ImportError as error:
        raise ValueError(f"TLS needs further packages ({error}): pip install 'dledger[tls]'") from None
    return MemberTrust(files.authority, group)


def server_trust(authority: str) -> Dialling:
    """
    For a program that shows no certificate, and asks servers by their host.

    @param authority: PEM file of the authorities that are believed; empty: those of the system.
    @raise ValueError: a package is missing, or the file is not sound.
    """
    try:
        from dledger.base.tls.trust import ServerTrust
    except ImportError as error:
        raise ValueError(f"TLS needs further packages ({error}): pip install 'dledger[tls]'") from None
    return ServerTrust(authority)
