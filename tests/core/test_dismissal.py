# -*- test-case-name: tests.core.test_dismissal -*-
"""A member that was removed while it was away learns of it, and is not a candidate any more."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from protocols.wire.ledger.codes import VoteResult
from protocols.wire.ledger.memberships import MemberLists, ReportedMembership, encode_reported
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, VoteRequest
from tests.core.helpers import Bench, granted, of_type, sent


class DismissalTests(SynchronousTestCase):
    """n0 was removed by the entry at 7."""

    def reported(
        self, *, voters: str = "n1;n2", committed_index: int = 9, group_id: str = "a" * 32, then: str = "",
        knows: bool = True, others_know: bool = True,
    ) -> Bench:
        """n0, after n1 refused it a vote and reported the members."""
        bench = Bench.make()
        bench.core.member.group_name = attrs.evolve(bench.core.member.group_name, is_known=knows)
        for peer_id in ("n1", "n2"):
            bench.core.member.peers.heard(peer_id, 1, bench.core.member.out.now_ms)
        bench.run_until(VoteRequest)
        for one in of_type(tuple(bench.seen), fx.SendRequest):
            if isinstance(one.request, VoteRequest) and one.peer_id == "n1":
                bench.answer(one, granted(1, pre_vote=True, result=VoteResult.REJECT_UNKNOWN_LEADER))
        (asked,) = [one for one in of_type(bench.run_until(MetadataRequest), fx.SendRequest)
                    if isinstance(one.request, MetadataRequest)]
        self.assertEqual(asked.peer_id, "n1")
        lists = MemberLists(dict.fromkeys(voters.split(";"), "h:1"), {})
        memberships = [ReportedMembership(7, 5, lists)]
        if then:
            memberships.append(ReportedMembership(9, 5,
                                                  MemberLists(dict.fromkeys(then.split(";"), "h:1"), {})))
        bench.answer(asked, MetadataResponse(
            group="g", term=5, wire_version=1, committed_index=committed_index, group_id=group_id,
            is_group_known=others_know, configuration=encode_reported(memberships),
        ))
        bench.seen.clear()
        return bench

    def test_a_dismissed_member_asks_for_no_vote(self) -> None:
        """Its status says so, and it asks for no vote."""
        bench = self.reported()
        self.assertTrue(bench.core.status().is_dismissed)
        bench.run(60_000)
        self.assertEqual(sent(bench.seen, VoteRequest), [])

    def test_a_member_is_not_dismissed_without_proof(self) -> None:
        """If it is a member, if the change may be taken back, or if another group says so."""
        for bench in (self.reported(voters="n0;n1"), self.reported(committed_index=6),
                      self.reported(group_id="b" * 32)):
            self.assertFalse(bench.core.status().is_dismissed)
            bench.run_until(VoteRequest)

    def test_an_id_that_one_of_both_knows(self) -> None:
        """A member that was removed before it knew the id to be that of the group believes one that does."""
        self.assertTrue(self.reported(knows=False).core.status().is_dismissed)
        self.assertTrue(self.reported(others_know=False).core.status().is_dismissed)
        self.assertFalse(self.reported(knows=False, others_know=False).core.status().is_dismissed)

    def test_a_member_added_again_is_not_dismissed(self) -> None:
        """The last committed membership counts, not one before it."""
        bench = self.reported(then="n0;n1;n2")
        self.assertFalse(bench.core.status().is_dismissed)
        self.assertTrue(self.reported(then="n0;n1;n2", committed_index=8).core.status().is_dismissed)

    def test_not_asked_without_reason(self) -> None:
        """A member that hears nothing asks for votes only."""
        bench = Bench.make()
        for peer_id in ("n1", "n2"):
            bench.core.member.peers.heard(peer_id, 1, bench.core.member.out.now_ms)
        bench.run(30_000)
        self.assertEqual(sent(bench.seen, MetadataRequest), [])
