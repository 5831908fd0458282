# -*- test-case-name: tests.base.test_rights -*-
"""
The rights of the other end of a connection, as its certificate says.

A certificate of the group's authority names in its subjectAltName

  - members, as DNS names: C{n0}. Such a process may speak for that member, and do what a client may;
  - roles, as URIs: C{dledger:role:append}. A client without one may ask METADATA only;
  - that its holder is a broker, as the URI L{SLAVE_URI}.

A client may show a token instead of a certificate, or besides (L{dledger.base.tokens}): it adds its role.

A group without TLS knows no names: everybody has L{ALL_RIGHTS}, unless it has tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import attrs


class ClientRole(StrEnum):
    """What a client may do. C{admin} includes the others, C{append} includes C{read}."""

    READ = "read"
    APPEND = "append"
    ADMIN = "admin"


#: The beginning of a URI that names a role.
ROLE_URI = "dledger:role:"

#: Names a broker that may copy the log of a master. It is no role of a client.
SLAVE_URI = ROLE_URI + "slave"

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

#: Of everybody in a group without TLS, and of the hosts that may connect without it.
ALL_RIGHTS = Rights(members=None, roles=frozenset(ClientRole))


def rights_of(
    *, dns_names: Iterable[str], uris: Iterable[str], member_ids: Iterable[str], who: str
) -> Rights:
    """
    The rights of a certificate.

    @param dns_names, uris: what its subjectAltName holds.
    @param member_ids: the members of the group; other DNS names mean nothing.
    """
    members = frozenset(member_ids) & frozenset(dns_names)
    roles: set[ClientRole] = set(ClientRole) if members else set()
    for uri in uris:
        name = uri.removeprefix(ROLE_URI)
        if name != uri and name in ClientRole.__members__.values():
            roles |= INCLUDED_ROLES[ClientRole(name)]
    return Rights(members=members, roles=frozenset(roles), who=who)
