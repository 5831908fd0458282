# -*- test-case-name: tests.node.test_greeting -*-
"""Members of another group, or with another list of members, are turned away on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import attrs
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.connections.greeting import Greeting
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.memberships import decode_reported
from protocols.wire.ledger.messages import HeartBeatRequest, MetadataRequest, MetadataResponse
from tests.node.rig import Rig

PEERS = "n0-h:1;n1-h:2;n2-h:3"
OURS, THEIRS = "a" * 32, "b" * 32
MEMBERS = {"n0": "h:1", "n1": "h:2", "n2": "h:3"}


@attrs.frozen
class Known:
    """What a greeting asks of the core."""

    membership: Membership = Membership(voters=MEMBERS)
    speakers: frozenset[str] = frozenset(MEMBERS)
    introduced: Mapping[str, str] = attrs.Factory(dict)
    former: Mapping[str, str] = attrs.Factory(dict)

    def had_members(self, ids: str) -> bool:
        """The start list."""
        return ids == "n0;n1;n2"

    def knows(self, member_id: str | None) -> bool:
        """All but n0."""
        return member_id in ("n1", "n2")


class JudgingTests(SynchronousTestCase):
    """One difference is enough; a silent one is not judged."""

    def problems(self, name: GroupName, group_id: str, members: str, **answer: Any) -> list[str]:
        """Of a call and of an answer."""
        greeting = Greeting(known=Known(), group_name=lambda: name)
        facts = {"wire_version": 1, "is_group_known": True, **answer}
        return [
            greeting.problem_of_call(MetadataRequest(
                group_id=group_id, members=members, wire_version=facts["wire_version"]
            )),
            greeting.problem_of_answer(MetadataResponse(
                group_id=group_id, peers=dict.fromkeys(filter(None, members.split(";")), "x:1"), **facts
            )),
        ]

    def test_equal_members_are_judged_well(self) -> None:
        """Nothing is wrong."""
        for name in (GroupName(OURS, 1, True), GroupName(OURS, 1, False), GroupName()):
            self.assertEqual(self.problems(name, OURS, "n0;n1;n2"), ["", ""])
            self.assertEqual(self.problems(name, "", ""), ["", ""])

    def test_another_group_is_named(self) -> None:
        """Both ids are named; an id that is only proposed says nothing."""
        for problem in self.problems(GroupName(OURS, 1, True), THEIRS, "n0;n1;n2"):
            self.assertIn(f"the id {THEIRS}, this member to that with {OURS}", problem)
        self.assertEqual(self.problems(GroupName(OURS, 1, False), THEIRS, "n0;n1;n2"), ["", ""])
        self.assertEqual(
            self.problems(GroupName(OURS, 1, True), THEIRS, "n0;n1;n2", is_group_known=False)[1], ""
        )

    def test_another_list_is_named(self) -> None:
        """Both lists are named. Java's is not judged."""
        for members in ("n0", "n0;n1", "n0;n1;n2;n3", "n0;n1;n3"):
            for problem in self.problems(GroupName(), "", members):
                self.assertIn(f"names the members {members}, this member's names n0;n1;n2", problem)
        self.assertEqual(self.problems(GroupName(), "", "n0;n1", wire_version=0)[1], "")

    def test_another_version_is_named(self) -> None:
        """A member of another version of ours does not belong here; flags say nothing about that."""
        for version, is_fine in ((1, True), (0x4001, True), (2, False), (0x4002, False), (0, True)):
            for problem in self.problems(GroupName(OURS, 1, True), OURS, "n0;n1;n2", wire_version=version):
                self.assertEqual(problem == "", is_fine, (version, problem))
                self.assertEqual("run the same version" in problem, not is_fine, problem)

    def test_a_member_reports_its_list_and_id(self) -> None:
        """Its own list, and an id that a quorum holds."""
        backwards = Known(Membership(voters=dict(reversed(MEMBERS.items()))))
        greeting = Greeting(known=backwards, group_name=lambda: GroupName(OURS, 1, True))
        self.assertEqual((greeting.members, greeting.group_id), ("n0;n1;n2", OURS))
        self.assertEqual(Greeting(known=Known(), group_name=lambda: GroupName(OURS, 1, False)).group_id, "")
        self.assertEqual(greeting.configuration, "")

    def test_changed_members_let_lists_differ(self) -> None:
        """Once the log changes them, lists may differ: the id decides, or a list that the log has had."""
        changed = Known(Membership(voters={"n0": "h:1", "n3": "h:4"}, index=7, term=2))
        for own, theirs, members, is_fine in (
            (OURS, OURS, "n0;n9", True), (OURS, THEIRS, "n0;n1;n2", False), (OURS, "", "n0;n1;n2", True),
            (OURS, "", "n0;n9", False), ("", OURS, "n0;n9", False),
        ):
            name = GroupName(own, 1, bool(own))
            ours = Greeting(known=changed, group_name=lambda name=name: name)  # type: ignore[misc]
            problem = ours.problem_of_call(MetadataRequest(group_id=theirs, members=members))
            self.assertEqual(problem == "", is_fine, (own, theirs, members, problem))
        self.assertEqual(decode_reported(ours.configuration)[0].index, 7)

    def test_a_list_that_may_be_cut(self) -> None:
        """
        The first entry of a group removed n2, and only n0 has it. It names the list before: the others, which
        have never had that entry, take it in and cut it.
        """
        cut = Known(Membership(voters={"n0": "h:1", "n1": "h:2"}, index=0, term=1), former=MEMBERS)
        lineages = mock.Mock(reported="", reported_of=lambda *_: "", is_rival=lambda *_: False)
        theirs = Greeting(known=cut, group_name=GroupName, lineages=lineages)
        call = theirs.call(MetadataRequest(remote_id="n2", local_id="n0"))
        asked = MetadataRequest(remote_id="n0", local_id="n2", lineage="x")
        answer = theirs.answer(asked, MetadataResponse(wire_version=1, peers={"n0": "h:1", "n1": "h:2"}))
        changed = Known(Membership(voters={**MEMBERS, "n3": "h:4"}, index=7, term=2))
        for known in (Known(), changed):
            ours = Greeting(known=known, group_name=lambda: GroupName(OURS, 1, True))
            self.assertEqual([ours.problem_of_call(call), ours.problem_of_answer(answer)], ["", ""])

    def test_a_native_answer_has_no_id(self) -> None:
        """It has no room for the id: they must be the same only until the log changes them."""
        answer = MetadataResponse(wire_version=1, peers={"n0": "h:1", "n9": "h:9"})
        changed = Known(Membership(voters={"n0": "h:1", "n3": "h:4"}, index=7, term=2))
        for known, is_fine in ((Known(), False), (changed, True)):
            ours = Greeting(known=known, group_name=lambda: GroupName(OURS, 1, True))
            self.assertEqual(ours.problem_of_answer(answer, is_whole=False) == "", is_fine)
            self.assertNotEqual(ours.problem_of_answer(answer), "")

    def test_member_that_was_away(self) -> None:
        """It has the old list. Without the id of its group it believes a later list, with it only its own."""
        changed = Known(Membership(voters={"n0": "h:1", "n3": "h:4"}, index=7, term=2))
        reported = Greeting(known=changed, group_name=GroupName).configuration
        for own, theirs, is_fine in ((OURS, OURS, True), ("", OURS, True), (OURS, "", False)):
            name = GroupName(own, 1, bool(own))
            away = Greeting(known=Known(), group_name=lambda name=name: name)  # type: ignore[misc]
            call = MetadataRequest(group_id=theirs, members="n0;n3", configuration=reported)
            self.assertEqual(away.problem_of_call(call) == "", is_fine, (own, theirs))

    def test_a_joining_member_judges_none(self) -> None:
        """It names no members, and judges none."""
        joining = Greeting(known=Known(Membership(voters={})), group_name=GroupName)
        self.assertEqual((joining.members, joining.configuration), ("", ""))
        self.assertEqual(joining.problem_of_call(MetadataRequest(members="n0;n1", group_id=OURS)), "")


class CallTests(SynchronousTestCase):
    """A member calls this one."""

    def greet(self, **facts: Any) -> tuple[Rig, Any]:
        """It greets, and beats in the same write."""
        rig = Rig(peers=PEERS)
        rig.node.start()
        name = GroupName(OURS, 1, True)
        rig.store.identity.record_group(name)
        rig.node.core.member.group_name = name
        client = rig.client()
        base = {**rig.base(), "local_id": "n1"}
        client.send(
            MetadataRequest(**base, **facts), HeartBeatRequest(**base, leader_id="n1", term=9), native=False
        )
        return rig, client

    def test_a_member_of_the_group_is_heard(self) -> None:
        """Of this group: it is heard."""
        for facts in ({"group_id": OURS, "members": "n0;n1;n2"}, {"members": "n0;n1;n2"}, {}):
            rig, client = self.greet(**facts)
            self.assertEqual(len(client.answers()), 2)
            self.assertEqual(rig.node.status().member.term, 9)

    def test_a_stranger_is_answered_and_not_heard(self) -> None:
        """It is answered, so that it can say what is wrong, and nothing else that it says is heard."""
        for facts in ({"group_id": THEIRS, "members": "n0;n1;n2"}, {"members": "n0;n1"}):
            rig, client = self.greet(**facts)
            (answer,) = client.answers()
            self.assertEqual((answer.group_id, sorted(answer.peers)), (OURS, ["n0", "n1", "n2"]))
            self.assertTrue(client.transport.disconnecting)
            self.assertEqual(rig.node.status().member.term, 0)

    def test_strangers_do_not_fill_the_log(self) -> None:
        """Strangers that change their words do not fill the log."""
        rig = Rig(peers=PEERS)
        rig.node.start()
        with capturedLogs() as logs:
            for number in range(50):
                rig.client().send(MetadataRequest(
                    **rig.base(), local_id=f"x{number}", members=f"n{number};n{number + 1}"
                ), native=False)
        lines = [event for event in logs if "foreign-member" in str(event.get("event"))]
        self.assertEqual(len(lines), 1)
