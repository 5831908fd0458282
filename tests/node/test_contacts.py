# -*- test-case-name: tests.node.test_contacts -*-
"""To which members a member connects."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.inputs import MembersIntroduced
from dledger.node.connections.greeting import Greeting
from dledger.node.work.contacts import Contacts
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.memberships import MemberLists, ReportedMembership, encode_reported
from protocols.wire.ledger.messages import HeartBeatRequest, MetadataRequest, MetadataResponse
from tests.node.rig import Rig
from tests.node.test_greeting import OURS, THEIRS, Known

START = "n0-h:1;n1-h:2;n2-h:3"


class ContactsTests(SynchronousTestCase):
    """n0."""

    def make(self, membership: Membership) -> Contacts:
        """Remembers its inputs and the number of its changes."""
        self.fed: list[MembersIntroduced] = []
        self.changes = 0
        introduced: dict[str, str] = {}
        known = Known(membership, introduced=introduced)
        greeting = Greeting(known=known, group_name=lambda: GroupName(OURS, 1, True))

        def changed() -> None:
            self.changes += 1

        def feed(reported: MembersIntroduced) -> None:
            self.fed.append(reported)
            introduced.update(reported.membership.addresses)

        return Contacts(DLedgerConfig(peers=START), known, greeting, feed, changed)

    def answered(
        self, contacts: Contacts, sender_id: str, index: int, group_id: str = OURS, *, is_known: bool = True
    ) -> None:
        """Another member says, at its own address, who belongs to the group."""
        reported = encode_reported([ReportedMembership(index, 1,
                                                       MemberLists({"n5": "h:6", sender_id: "h:9"}, {}))])
        contacts.answered(sender_id, MetadataResponse(
            group_id=group_id, is_group_known=is_known, configuration=reported))

    def called(self, contacts: Contacts, sender_id: str, index: int, group_id: str = OURS) -> None:
        """Somebody says so in the name of another member."""
        reported = encode_reported([ReportedMembership(index, 1,
                                                       MemberLists({"n5": "h:6", sender_id: "h:9"}, {}))])
        contacts.greeted(MetadataRequest(group_id=group_id, local_id=sender_id, configuration=reported))

    def test_the_start_list_counts_before_the_log(self) -> None:
        """Until the log reports something; a member that joins shows people the same."""
        for membership in (Membership(voters=DLedgerConfig(peers=START).peers), Membership(voters={})):
            contacts = self.make(membership)
            self.assertEqual(contacts.addresses, {"n1": "h:2", "n2": "h:3"})
            self.assertEqual(sorted(contacts.members), ["n0", "n1", "n2"])

    def test_the_log_names_the_members(self) -> None:
        """Its members, and no others."""
        contacts = self.make(Membership(voters={"n0": "h:1", "n3": "h:4"}, learners={"n4": "h:5"}, index=7))
        self.assertEqual(contacts.addresses, {"n3": "h:4", "n4": "h:5"})

    def test_a_moved_member_is_noticed(self) -> None:
        """A member whose address is another one in a list that was reported: the own log is behind."""
        contacts = self.make(Membership(voters={"n0": "h:1", "n1": "h:2", "n2": "h:3"}, index=7))
        self.assertFalse(contacts.has_moved("n1"))
        self.answered(contacts, "n1", 8)
        self.assertTrue(contacts.has_moved("n1"))
        self.assertFalse(contacts.has_moved("n2"))
        self.assertFalse(contacts.has_moved("n5"))

    def test_later_members_are_connected_to(self) -> None:
        """That a known member reports: they are connected to, and may speak."""
        contacts = self.make(Membership(voters={"n0": "h:1", "n1": "h:2"}, index=7))
        self.answered(contacts, "n1", 9)
        self.assertEqual(contacts.addresses, {"n1": "h:2", "n5": "h:6"})
        reported = Membership(voters={"n5": "h:6", "n1": "h:9"}, index=9, term=1)
        self.assertEqual(self.fed, [MembersIntroduced(reporter_id="n1", membership=reported)])
        self.answered(contacts, "n1", 9)
        self.assertEqual(self.changes, 1)

    def test_nothing_to_believe(self) -> None:
        """An older list, another group, a stranger who has read the id of the group, garbage, no address."""
        contacts = self.make(Membership(voters={"n0": "h:1", "n1": "h:2"}, index=7))
        self.answered(contacts, "n1", 5)
        self.answered(contacts, "n1", 9, THEIRS)
        self.answered(contacts, "n4", 9)
        self.answered(contacts, "n0", 9)
        self.answered(contacts, "n1", 9, is_known=False)
        contacts.answered("n1", MetadataResponse(group_id=OURS, is_group_known=True, configuration="{"))
        nowhere = encode_reported([ReportedMembership(9, 1, MemberLists({"n5": "junk"}, {}))])
        contacts.answered("n1", MetadataResponse(group_id=OURS, is_group_known=True, configuration=nowhere))
        self.assertEqual((contacts.addresses, self.fed, self.changes), ({"n1": "h:2"}, [], 0))

    def test_a_caller_is_asked_before_it_counts(self) -> None:
        """The word of a caller does not count: a member that is known, and seems to know more, is asked."""
        contacts = self.make(Membership(voters={"n0": "h:1", "n1": "h:2"}, index=7))
        asked: list[str] = []
        contacts.ask_with(asked.append)
        self.called(contacts, "n1", 1_000_000)
        self.assertEqual((contacts.addresses, self.fed, asked), ({"n1": "h:2"}, [], ["n1"]))
        self.called(contacts, "n1", 7)
        self.called(contacts, "n1", 9, THEIRS)
        self.called(contacts, "n4", 9)
        self.assertEqual(asked, ["n1"])


class ForgedTests(SynchronousTestCase):
    """A node that hears lies."""

    def test_in_the_name_of_a_member_that_is_down(self) -> None:
        """Nobody is introduced, so nobody's term is adopted; the member is asked itself, and believed."""
        rig = Rig(peers=START)
        node = rig.node
        node.start()
        reported = encode_reported([ReportedMembership(1_000_000, 1,
                                                       MemberLists({"n2": "h:3", "n9": "h:9"}, {}))])
        caller = rig.client()
        forged = MetadataRequest(**rig.base(local_id="n2"), members="n0;n1;n2", configuration=reported)
        self.assertIs(caller.ask(forged, native=False).code, ResponseCode.SUCCESS)
        self.assertEqual((caller.connection.peer_id, rig.peers.asked_again), ("n2", ["n2"]))
        self.assertNotIn("n9", node.contacts.ids)
        ninth = rig.client()
        ninth.send(HeartBeatRequest(local_id="n9", leader_id="n9", term=7, **rig.base()))
        self.assertNotIn(ResponseCode.SUCCESS, [answer.code for answer in ninth.answers()])
        self.assertEqual(node.status().member.term, 0)
        rig.peers.answer("n2", MetadataResponse(configuration=reported))
        self.assertIn("n9", node.contacts.ids)
