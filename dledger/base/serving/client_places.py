# -*- test-case-name: tests.base.test_client_places -*-
"""
The places of a server's clients: how many connections they may have, and how many of these may come from one
address.

Rule: a connection gets its place with its first valid request, and keeps it until it ends. A connection that
gets none is informed why, and has nothing under way. So nobody is cut off for somebody who came later.
"""

from __future__ import annotations

from collections.abc import Hashable
from ipaddress import IPv6Address, ip_address

#: Connections that clients leave to others, to members of a group, and to newcomers until they are answered:
#: at least this number, and this fraction of many.
NEWCOMERS_PLACES = 16
_NEWCOMERS_SHARE = 16
#: Percent of the places that one address may have.
SHARE_PERCENT = 50


def address_key(host: str) -> str:
    """
    What counts as one address: an IPv4 address, also one that is written as IPv6; of IPv6 the network of 64
    bits, as one host has all of it. Other text, as of a local socket, counts as it is.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


class ClientPlaces:
    """
    Invariant: C{_held} has the address of each connection that has a place, C{_by_address} their numbers.

    @ivar places: most connections of clients.
    @ivar share: those of one address; C{share_percent}: percent of C{places}.
    """

    def __init__(self, connections_max: int, *, share_percent: int = SHARE_PERCENT) -> None:
        """@param connections_max: most open connections of the server."""
        self.limit(connections_max, share_percent=share_percent)
        self._held: dict[Hashable, str] = {}
        self._by_address: dict[str, int] = {}

    def limit(self, connections_max: int, *, share_percent: int) -> None:
        """Other limits from now on; nobody who has a place loses it."""
        self.share_percent = share_percent
        kept = max(NEWCOMERS_PLACES, connections_max // _NEWCOMERS_SHARE)
        self.places = max(connections_max - kept, connections_max // 2)
        self.share = max(1, self.places * share_percent // 100)

    def __len__(self) -> int:
        """Number of places that are taken."""
        return len(self._held)

    def refusal(self, connection: Hashable, host: str) -> str:
        """Why a connection from C{host} cannot have a place; empty: it has one, or can have one."""
        if connection in self._held:
            return ""
        if len(self._held) >= self.places:
            return (f"{self.places} clients are connected, which is the limit here: close connections, ask "
                    "another server, or raise the limit (connections, and ulimit -n)")
        key = address_key(host)
        if self._by_address.get(key, 0) >= self.share:
            return (f"{key} has {self.share} connections, which is the share of one address: close some, or "
                    "raise the share (connections_share)")
        return ""

    def take(self, connection: Hashable, host: str) -> None:
        """A connection without a L{refusal} gets a place, or keeps the one that it has."""
        if connection not in self._held:
            key = self._held[connection] = address_key(host)
            self._by_address[key] = self._by_address.get(key, 0) + 1

    def leave(self, connection: Hashable) -> None:
        """It has ended, or is not a client's."""
        key = self._held.pop(connection, None)
        if key is not None:
            self._by_address[key] -= 1
            if not self._by_address[key]:
                del self._by_address[key]
