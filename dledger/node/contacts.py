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
    """Holds nothing of its own: the core knows the members, and those that others introduced."""

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
        start = {} if own.is_changed else self._config.peers
        found = {**start, **self._known.introduced, **own.addresses}
        found.pop(self._config.self_id, None)
        return found

    def has_moved(self, peer_id: str) -> bool:
        """Whether a list that was told has another address of a member than the own log has."""
        told, own = self._known.introduced.get(peer_id), self._known.membership.addresses.get(peer_id)
        return told is not None and own is not None and told != own

    def introduced(self, request: MetadataRequest) -> None:
        """
        A member has greeted. Only the word of one that is known counts: anybody can read the id of the group.
        """
        own_id, sender_id = self._greeting.group_id, request.local_id
        is_ours = not own_id or request.group_id == own_id
        if sender_id is None or not (is_ours and self._known.knows(sender_id)):
            return
        try:
            told = [
                Membership(index=one.index, term=one.term, **one.members._asdict())
                for one in decode_told(request.configuration)[-1:]
            ]
        except ValueError:
            return
        if not told or told[0].index <= self._known.membership.index:
            return
        before = self.addresses
        self._feed(MembersIntroduced(teller_id=sender_id, membership=told[0]))
        if self.addresses != before:
            self._changed()
