# -*- test-case-name: tests.node.test_contacts -*-
"""To which members a member connects."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.group_name import GroupName
from dledger.base.membership import Membership
from dledger.config import DLedgerConfig
from dledger.core.inputs import MembersIntroduced
from dledger.node.contacts import Contacts
from dledger.node.greeting import Greeting
from protocols.wire.ledger.memberships import MemberLists, ToldMembership, encode_told
from protocols.wire.ledger.messages import MetadataRequest
from tests.node.test_greeting import OURS, THEIRS, Known

START = "n0-h:1;n1-h:2;n2-h:3"


class ContactsTests(SynchronousTestCase):
    """n0."""

    def make(self, membership: Membership) -> Contacts:
        """What it feeds and how often it changes is remembered."""
        self.fed: list[MembersIntroduced] = []
        self.changes = 0
        introduced: dict[str, str] = {}
        known = Known(membership, introduced=introduced)
        greeting = Greeting(known=known, group_name=lambda: GroupName(OURS, 1, True))

        def changed() -> None:
            self.changes += 1

        def feed(told: MembersIntroduced) -> None:
            self.fed.append(told)
            introduced.update(told.membership.addresses)

        return Contacts(DLedgerConfig(peers=START), known, greeting, feed, changed)

    def greeted(self, contacts: Contacts, sender_id: str, index: int, group_id: str = OURS) -> None:
        """Another member says who belongs to the group."""
        told = encode_told([ToldMembership(index, 1, MemberLists({"n5": "h:6", sender_id: "h:9"}, {}))])
        contacts.introduced(MetadataRequest(group_id=group_id, local_id=sender_id, configuration=told))

    def test_start_list(self) -> None:
        """Until the log tells something; a member that joins tells people the same."""
        for membership in (Membership(voters=DLedgerConfig(peers=START).peers), Membership(voters={})):
            contacts = self.make(membership)
            self.assertEqual(contacts.addresses, {"n1": "h:2", "n2": "h:3"})
            self.assertEqual(sorted(contacts.members), ["n0", "n1", "n2"])

    def test_log(self) -> None:
        """Its members, and no others."""
        contacts = self.make(Membership(voters={"n0": "h:1", "n3": "h:4"}, learners={"n4": "h:5"}, index=7))
        self.assertEqual(contacts.addresses, {"n3": "h:4", "n4": "h:5"})

    def test_has_moved(self) -> None:
        """A member whose address is another one in a list that was told: the own log is behind."""
        contacts = self.make(Membership(voters={"n0": "h:1", "n1": "h:2", "n2": "h:3"}, index=7))
        self.assertFalse(contacts.has_moved("n1"))
        self.greeted(contacts, "n1", 8)
        self.assertTrue(contacts.has_moved("n1"))
        self.assertFalse(contacts.has_moved("n2"))
        self.assertFalse(contacts.has_moved("n5"))

    def test_later_members(self) -> None:
        """That a known member tells: they are connected to, and may speak."""
        contacts = self.make(Membership(voters={"n0": "h:1", "n1": "h:2"}, index=7))
        self.greeted(contacts, "n1", 9)
        self.assertEqual(contacts.addresses, {"n1": "h:2", "n5": "h:6"})
        told = Membership(voters={"n5": "h:6", "n1": "h:9"}, index=9, term=1)
        self.assertEqual(self.fed, [MembersIntroduced(teller_id="n1", membership=told)])
        self.greeted(contacts, "n1", 9)
        self.assertEqual(self.changes, 1)

    def test_nothing_to_believe(self) -> None:
        """An older list, another group, a stranger who has read the id of the group, garbage, no address."""
        contacts = self.make(Membership(voters={"n0": "h:1", "n1": "h:2"}, index=7))
        self.greeted(contacts, "n1", 5)
        self.greeted(contacts, "n1", 9, THEIRS)
        self.greeted(contacts, "n4", 9)
        self.greeted(contacts, "n0", 9)
        contacts.introduced(MetadataRequest(group_id=OURS, local_id="n1", configuration="{"))
        nowhere = encode_told([ToldMembership(9, 1, MemberLists({"n5": "junk"}, {}))])
        contacts.introduced(MetadataRequest(group_id=OURS, local_id="n1", configuration=nowhere))
        self.assertEqual((contacts.addresses, self.fed, self.changes), ({"n1": "h:2"}, [], 0))
