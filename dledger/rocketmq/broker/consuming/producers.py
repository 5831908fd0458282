# -*- test-case-name: tests.broker.consuming.test_producers -*-
"""
The groups of producers and their connections, by their heartbeats: a broker asks one of a group how a
transaction ended, and passes replies on to the one that waits.

Rule 1: the table is bounded. What does not fit is not known; its producers are asked nothing.
Rule 2: with access control, a producer learns nothing that its account may not know (L{ProducerRights}).

Source: ProducerManager (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from protocols.wire.remoting import RemotingCommand

#: A member that is silent for this time is removed.
EXPIRED_MS = 120_000

#: The most members of all groups together, and groups of one member.
PRODUCERS_MAX = 65_536
#: Bytes that wait for a client, from which on it learns nothing more.
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

    def notify(self, command: RemotingCommand) -> None:
        """Send a one-way request."""


def reads(member: Member) -> bool:
    """Whether a member may be sent more: it reads, or little waits for it."""
    return not member.is_congested or member.unsent_bytes < UNSENT_BYTES_MAX


class ProducerRights(Protocol):
    """What the accounts of producers allow."""

    def owner_of(self, member: Member) -> str:
        """The account of a client; empty: none."""

    def may_produce(self, member: Member, client_id: str, group: str) -> bool:
        """Whether a connection may be that of a client, and the client a producer of a group."""

    def may_publish(self, member: Member, topic: str) -> bool:
        """Whether a client may send to a topic, and so end a transaction of it."""


class KnownProducer(NamedTuple):
    """
    A member of a group of producers, for queries.

    @ivar language, version: of its client. @ivar heard_ms: its last heartbeat, ms since 1970.
    """

    client_id: str
    address: str
    language: str
    version: int
    heard_ms: int


class ProducerTable:
    """
    Invariant: each group has an owner, and each owner in it a member; C{_count} is the number of members of
    all groups. A client in C{_clients} is a member of a group. C{_groups_of} has the groups of each member,
    and the owner that it has in each.
    """

    def __init__(self, *, members_max: int = PRODUCERS_MAX) -> None:
        self._groups: dict[str, dict[str, dict[Member, int]]] = {}
        self._clients: dict[str, Member] = {}
        self._ids: dict[Member, str] = {}
        self._kinds: dict[Member, tuple[str, int]] = {}
        self._groups_of: dict[Member, dict[str, str]] = {}
        self._members_max = members_max
        self._count = 0

    def __len__(self) -> int:
        """Number of members of all groups."""
        return self._count

    def register(
        self, member: Member, client_id: str, group: str, now_ms: int, owner: str = "", *,
        kind: tuple[str, int] = ("", 0),
    ) -> None:
        """
        A heartbeat of a client, a member of this group.

        @param now_ms: ms since 1970.
        @param owner: its account; those of one account are asked one for the other.
        @param kind: language and version of the client.
        """
        known = self._groups_of.get(member, {}).get(group)
        if known is None and self._count >= self._members_max:
            return
        if known is not None:
            self._drop(member, group, known)
        self._groups.setdefault(group, {}).setdefault(owner, {})[member] = now_ms
        self._groups_of.setdefault(member, {})[group] = owner
        self._count += 1
        self._forget(member)
        self._ids[member], self._clients[client_id], self._kinds[member] = client_id, member, kind

    def _drop(self, member: Member, group: str, owner: str) -> None:
        owners = self._groups[group]
        del owners[owner][member]
        self._count -= 1
        if not owners[owner]:
            del owners[owner]
            if not owners:
                del self._groups[group]

    def unregister(self, member: Member, group: str) -> None:
        """Remove a member, if it is one."""
        groups = self._groups_of.get(member, {})
        owner = groups.pop(group, None)
        if owner is not None:
            self._drop(member, group, owner)
            if not groups:
                del self._groups_of[member]
                self._forget(member)

    def _forget(self, member: Member) -> None:
        client_id = self._ids.pop(member, None)
        self._kinds.pop(member, None)
        if client_id is not None and self._clients.get(client_id) is member:
            del self._clients[client_id]

    def lost(self, member: Member) -> None:
        """Its connection has ended."""
        for group in list(self._groups_of.get(member, ())):
            self.unregister(member, group)

    def expire(self, now_ms: int) -> None:
        """Remove members that have been silent for longer than L{EXPIRED_MS}."""
        for group, owners in list(self._groups.items()):
            for members in list(owners.values()):
                for member in [one for one, heard_ms in members.items() if now_ms - heard_ms > EXPIRED_MS]:
                    self.unregister(member, group)

    def groups(self) -> list[str]:
        """The groups that have members."""
        return sorted(self._groups)

    def known(self, group: str) -> list[KnownProducer]:
        """The members of a group."""
        return [
            KnownProducer(self._ids[member], member.address, *self._kinds[member], heard_ms)
            for members in self._groups.get(group, {}).values() for member, heard_ms in members.items()
        ]

    def client(self, client_id: str) -> Member | None:
        """The connection of a client that is a producer; None if there is none."""
        return self._clients.get(client_id)

    def one_of(self, group: str, may: Callable[[Member], bool] = lambda member: True) -> Member | None:
        """
        The member that was heard last; None if the group has none.

        @param may: whether a member may be asked; called for one member of each owner.
        """
        heard = [
            (heard_ms, member) for members in self._groups.get(group, {}).values()
            for member, heard_ms in (next(reversed(members.items())),) if may(member)
        ]
        return max(heard, key=lambda one: one[0])[1] if heard else None
