# -*- test-case-name: tests.node.test_contacts -*-
"""
The members to which a member connects: those in the membership of its own log; besides, while that does not
tell, those of the start list, and those that a member of this group has told as a later membership.

A member that was told of does not count. It is connected to, and heard: it may lead, or stand, by a list that
this member does not have yet.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.base.membership import Membership
from dledger.config import DLedgerConfig
from dledger.core.inputs import MembersIntroduced
from dledger.node.greeting import Greeting, KnownMembers
from protocols.wire.ledger.memberships import decode_told
from protocols.wire.ledger.messages import MetadataRequest


class Contacts:
    """Invariant: C{_told} is a later membership than that of the own log, or not used."""

    def __init__(
        self, config: DLedgerConfig, known: KnownMembers, greeting: Greeting, feed: Callable[..., None],
        changed: Callable[[], None],
    ) -> None:
        """@param changed: called when L{addresses}, or the members that may speak, have changed."""
        self._config = config
        self._known = known
        self._greeting = greeting
        self._feed = feed
        self._changed = changed
        self._told = Membership(voters={})

    @property
    def members(self) -> dict[str, str]:
        """The members as people are told: of the own log; of the start list while that tells none."""
        return self._known.membership.addresses or dict(self._config.peers)

    @property
    def ids(self) -> frozenset[str]:
        """Ids of all that may speak as members."""
        return self._known.speakers | self._config.peers.keys()

    @property
    def addresses(self) -> dict[str, str]:
        """Id to C{host:port} of every other member to connect to."""
        own = self._known.membership
        told = self._told.addresses if self._told.index > own.index else {}
        start = {} if own.is_changed else self._config.peers
        found = {**start, **told, **own.addresses}
        found.pop(self._config.self_id, None)
        return found

    def introduced(self, request: MetadataRequest) -> None:
        """
        A member has greeted. Only the word of one that is known counts: anybody can read the id of the group.
        """
        own_id, sender_id = self._greeting.group_id, request.local_id
        if (own_id and request.group_id != own_id) or not self._known.knows(sender_id):
            return
        try:
            told = decode_told(request.configuration)
            if not told or told[-1].index <= max(self._known.membership.index, self._told.index):
                return
            self._told = Membership(index=told[-1].index, term=told[-1].term, **told[-1].members._asdict())
        except ValueError:
            return
        others = self._told.addresses.keys() - {self._config.self_id}
        self._feed(MembersIntroduced(member_ids=frozenset(others), index=self._told.index))
        self._changed()
