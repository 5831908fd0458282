# -*- test-case-name: tests.broker.consuming.test_producers -*-
"""
The groups of producers and their connections, by their heartbeats: a broker asks one of a group how a
transaction ended, and passes replies on to the one that waits.

Rule: the table is bounded. What does not fit is not known; its producers are asked nothing.

Source: ProducerManager (4.9.8).
"""

from __future__ import annotations

from typing import Protocol

from protocols.wire.remoting import RemotingCommand

#: A member that is silent for this time is removed.
EXPIRED_MS = 120_000

#: The most members of all groups together, and groups of one member.
PRODUCERS_MAX = 65_536
#: Bytes that wait for a client, from which on it is told nothing more.
UNSENT_BYTES_MAX = 4 * 1024 * 1024


class Member(Protocol):
    """The part of a connection that the tables of consumers and producers need."""

    @property
    def address(self) -> str:
        """C{host:port} of the other end."""

    @property
    def is_congested(self) -> bool:
        """Whether the other end does not read."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for it then."""

    def tell(self, command: RemotingCommand) -> None:
        """Send a one-way request."""


def reads(member: Member) -> bool:
    """Whether a member may be told more: it reads, or little waits for it."""
    return not member.is_congested or member.unsent_bytes < UNSENT_BYTES_MAX


class ProducerTable:
    """
    Invariant: each group has a member, and C{_count} is the number of members of all groups. A client in
    C{_clients} is a member of a group. C{_groups_of} has the groups of each member.
    """

    def __init__(self, *, members_max: int = PRODUCERS_MAX) -> None:
        self._groups: dict[str, dict[Member, int]] = {}
        self._clients: dict[str, Member] = {}
        self._ids: dict[Member, str] = {}
        self._groups_of: dict[Member, dict[str, None]] = {}
        self._members_max = members_max
        self._count = 0

    def __len__(self) -> int:
        """Number of members of all groups."""
        return self._count

    def register(self, member: Member, client_id: str, group: str, now_ms: int) -> None:
        """A heartbeat of a client, a member of this group. @param now_ms: ms since 1970."""
        members = self._groups.get(group, {})
        if member in members:
            del members[member]
        elif self._count >= self._members_max:
            return
        else:
            self._count += 1
        members[member] = now_ms
        self._groups[group] = members
        self._groups_of.setdefault(member, {})[group] = None
        self._forget(member)
        self._ids[member], self._clients[client_id] = client_id, member

    def unregister(self, member: Member, group: str) -> None:
        """Remove a member, if it is one."""
        members = self._groups.get(group, {})
        if members.pop(member, None) is not None:
            self._count -= 1
            if not members:
                del self._groups[group]
            del self._groups_of[member][group]
            if not self._groups_of[member]:
                del self._groups_of[member]
                self._forget(member)

    def _forget(self, member: Member) -> None:
        client_id = self._ids.pop(member, None)
        if client_id is not None and self._clients.get(client_id) is member:
            del self._clients[client_id]

    def lost(self, member: Member) -> None:
        """Its connection has ended."""
        for group in list(self._groups_of.get(member, ())):
            self.unregister(member, group)

    def expire(self, now_ms: int) -> None:
        """Remove members that have been silent for longer than L{EXPIRED_MS}."""
        for group, members in list(self._groups.items()):
            for member in [one for one, heard_ms in members.items() if now_ms - heard_ms > EXPIRED_MS]:
                self.unregister(member, group)

    def client(self, client_id: str) -> Member | None:
        """The connection of a client that is a producer; None if there is none."""
        return self._clients.get(client_id)

    def one_of(self, group: str) -> Member | None:
        """The member that was heard last; None if the group has none."""
        members = self._groups.get(group)
        return None if members is None else next(reversed(members))
