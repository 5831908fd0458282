# -*- test-case-name: tests.base.test_rights -*-
"""
The rights of the other end of a connection, as its certificate says.

A certificate of the group's authority names in its subjectAltName

  - members, as DNS names: C{n0}. Such a process may speak for that member, and do what a client may;
  - roles, as URIs: C{dledger:role:append}. A client without one may ask METADATA only;
  - that its holder is a broker, as the URI L{SLAVE_URI}, and of which name, as C{dledger:broker:NAME};
  - groups, as C{dledger:group:NAME}: it counts in these only. One that names none counts in every group of
    its authority.

A client may show a token instead of a certificate, or besides (L{dledger.base.serving.tokens}): it adds its
role.

A group without TLS knows no names: everybody has L{ALL_RIGHTS}, unless it has tokens.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable
from enum import StrEnum

import attrs


class ClientRole(StrEnum):
    """What a client may do. C{admin} includes the others, C{append} includes C{read}."""

    READ = "read"
    APPEND = "append"
    ADMIN = "admin"


#: The beginning of a URI that names a role.
ROLE_URI = "dledger:role:"

#: Names a broker that may copy the log of a master. It is not a role of a client.
SLAVE_URI = ROLE_URI + "slave"

#: The beginning of a URI that names a broker, and of one that names a group; names are percent-encoded.
BROKER_URI = "dledger:broker:"
GROUP_URI = "dledger:group:"
_PLAIN = frozenset(f"{string.ascii_letters}{string.digits}_.-~".encode())

#: The roles that a role includes, itself among them.
INCLUDED_ROLES = {
    ClientRole.READ: frozenset({ClientRole.READ}),
    ClientRole.APPEND: frozenset({ClientRole.READ, ClientRole.APPEND}),
    ClientRole.ADMIN: frozenset(ClientRole),
}


@attrs.frozen(kw_only=True)
class Rights:
    """
    @ivar members: ids of the members that the other end may speak for; None: for any.
    @ivar roles: of a client.
    @ivar who: the other end's name, for logs; empty if it has none.
    """

    members: frozenset[str] | None
    roles: frozenset[ClientRole]
    who: str = ""

    def speak_for(self, member_id: str) -> bool:
        """Whether the other end may be the member C{member_id}."""
        return self.members is None or member_id in self.members


#: Of a connection by TLS whose other end has shown neither a certificate nor a token.
NO_RIGHTS = Rights(members=frozenset(), roles=frozenset())

#: Rights of every caller in a group without TLS, and of the hosts that may connect without it.
ALL_RIGHTS = Rights(members=None, roles=frozenset(ClientRole))


def named_uri(beginning: str, name: str) -> str:
    """The URI that names a broker or a group."""
    return beginning + "".join(chr(one) if one in _PLAIN else f"%{one:02X}" for one in name.encode())


def is_for_group(uris: Iterable[str], group: str) -> bool:
    """Whether a certificate with these URIs counts in a group."""
    named = [uri for uri in uris if uri.startswith(GROUP_URI)]
    return not named or named_uri(GROUP_URI, group) in named


def rights_of(
    *, dns_names: Iterable[str], uris: Collection[str], member_ids: Iterable[str], who: str, group: str
) -> Rights:
    """
    The rights of a certificate.

    @param dns_names, uris: what its subjectAltName holds.
    @param member_ids: the members of the group; other DNS names mean nothing.
    @param group: its name.
    """
    if not is_for_group(uris, group):
        return attrs.evolve(NO_RIGHTS, who=who)
    members = frozenset(member_ids) & frozenset(dns_names)
    roles: set[ClientRole] = set(ClientRole) if members else set()
    for uri in uris:
        name = uri.removeprefix(ROLE_URI)
        if name != uri and name in ClientRole.__members__.values():
            roles |= INCLUDED_ROLES[ClientRole(name)]
    return Rights(members=members, roles=frozenset(roles), who=who)
