# -*- test-case-name: tests.node.test_contacts -*-
"""
The members to which a member connects: those in the membership of its own log; besides, while that does
not say, those of the start list, and those that a member of this group has reported as a later membership.

A member that others named does not count. It is connected to, and heard: it may lead, or stand, by a list
that this member does not have yet. So only a member of this group may name others, and only over this
member's own connection to it: who merely calls in the name of a member that is down says nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.core.state.inputs import MembersIntroduced
from dledger.node.connections.greeting import Greeting, KnownMembers
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.memberships import decode_reported
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse


class Contacts:
    """Holds nothing of its own: the core knows the members, and those that others introduced."""

    def __init__(
        self, config: DLedgerConfig, known: KnownMembers, greeting: Greeting, feed: Callable[..., None],
        changed: Callable[[], None],
    ) -> None:
        """@param changed: called when L{addresses}, or the members that may speak, have changed."""
        self._ask: Callable[[str], None] = lambda peer_id: None
        self._config = config
        self._known = known
        self._greeting = greeting
        self._feed = feed
        self._changed = changed

    def ask_with(self, ask: Callable[[str], None]) -> None:
        """
        Set the function that asks a member at its own address for its list; L{answered} gets the answer.
        """
        self._ask = ask

    @property
    def members(self) -> dict[str, str]:
        """The members for people: of the own log; of the start list while that reports none."""
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
        """Whether a list that was reported has another address of a member than the own log has."""
        reported, own = self._known.introduced.get(peer_id), self._known.membership.addresses.get(peer_id)
        return reported is not None and own is not None and reported != own

    def greeted(self, request: MetadataRequest) -> None:
        """
        A member has greeted on a connection of its own making. Anybody can say its name and the id of the
        group there: if it is known, and names a later list, it is asked at its own address.
        """
        sender_id = request.local_id
        if sender_id is not None and self._later(sender_id, request.group_id, request.configuration):
            self._ask(sender_id)

    def answered(self, peer_id: str, response: MetadataResponse) -> None:
        """A member has answered at its own address. Its word counts if it is known, and of this group."""
        group_id = response.group_id if response.is_group_known else ""
        reported = self._later(peer_id, group_id, response.configuration)
        if reported is None:
            return
        before = self.addresses
        self._feed(MembersIntroduced(reporter_id=peer_id, membership=reported))
        if self.addresses != before:
            self._changed()

    def _later(self, reporter_id: str, group_id: str, configuration: str) -> Membership | None:
        """The list that a known member shows, if it is later than that of the own log."""
        own_id = self._greeting.group_id
        if not ((not own_id or group_id == own_id) and self._known.knows(reporter_id)):
            return None
        try:
            reported = [
                Membership(index=one.index, term=one.term, **one.members._asdict())
                for one in decode_reported(configuration)[-1:]
            ]
        except ValueError:
            return None
        return reported[0] if reported and reported[0].index > self._known.membership.index else None
