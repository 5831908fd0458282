# -*- test-case-name: tests.core.test_successor -*-
"""A member that must never lead stands in for a candidate that lacks its entries, until that one has them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from protocols.wire.ledger.codes import PushType, VoteResult
from protocols.wire.ledger.messages import (
    LeadershipTransferRequest,
    MetadataRequest,
    MetadataResponse,
    VoteRequest,
    VoteResponse,
)
from tests.core.helpers import (
    Bench,
    ListLedger,
    events,
    granted,
    heart_beat,
    of_type,
    propose,
    pushes,
    sent,
    vote_request,
)


class WardTests(SynchronousTestCase):
    """n0 must never lead and holds the entries 0 to 2; n1 holds 0 only; n2 is dead."""

    def setUp(self) -> None:
        self.bench = Bench.make(ListLedger.of(1, 1, 1), term=3, never_lead=True, term_start_entry=False)
        self.bench.core.member.peers.heard("n1", 1, self.bench.core.member.out.now_ms)
        self.bench.run(3_000)

    def test_two_candidates_in_turn(self) -> None:
        """Two members lack its entries, and ask one after the other: it stands in for one of them."""
        reported: list[str] = []
        for _ in range(4):
            reported += events(self.refused(4))
            self.bench.run(400)
            reported += events(self.bench.request(vote_request("n2", 4, end_index=1, end_term=1)))
            self.bench.run(400)
        self.assertEqual(reported.count("standing-in"), 1)

    def refused(self, term: int, *, pre_vote: bool = False) -> tuple[fx.Effect, ...]:
        """n1 asks for a vote, and is refused for its log."""
        effects = self.bench.request(vote_request("n1", term, end_index=0, end_term=1, pre_vote=pre_vote))
        (reply,) = of_type(effects, fx.Reply)
        assert isinstance(reply.response, VoteResponse)
        self.assertIs(reply.response.vote_result, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)
        return effects

    def stands(self) -> bool:
        """Whether it asks for votes within a second."""
        return bool(sent(self.bench.run(1_000), VoteRequest))

    def lead(self) -> None:
        """It is refused twice, and n1 votes for n0 then."""
        self.refused(4)
        self.bench.run(2_000)
        self.assertIn("standing-in", events(self.refused(5)))
        self.bench.run_until(VoteRequest)
        for pre_vote in (True, False):
            vote = next(
                one for one in reversed(of_type(self.bench.seen, fx.SendRequest))
                if one.peer_id == "n1" and isinstance(one.request, VoteRequest)
            )
            self.bench.answer(vote, granted(self.bench.term, pre_vote=pre_vote))
        self.assertEqual(self.bench.role, "leader")

    def test_once_is_not_enough(self) -> None:
        """Another member may have the entries; nor are two votes at one moment."""
        self.refused(4)
        self.assertFalse(self.stands())
        self.setUp()
        self.refused(4)
        self.refused(4, pre_vote=False)
        self.assertFalse(self.stands())

    def test_two_that_take_turns(self) -> None:
        """Both lack entries, and neither can win: the time counts from the first of them (seed 4201293)."""
        for peer_id in ("n1", "n2", "n1"):
            self.bench.request(vote_request(peer_id, 4, end_index=0, end_term=1, pre_vote=True))
            self.bench.run(700)
        self.bench.request(vote_request("n2", 4, end_index=0, end_term=1, pre_vote=True))
        self.assertTrue(self.stands())

    def test_a_leader_meanwhile(self) -> None:
        """Then the group could elect: the time counts from the first refusal after that."""
        self.refused(4)
        self.bench.run(500)
        self.bench.request(heart_beat("n2", 5))
        self.bench.run(3_000)
        self.assertNotIn("standing-in", events(self.refused(6)))
        self.bench.run(2_000)
        self.assertIn("standing-in", events(self.refused(6)))

    def test_pre_votes_count(self) -> None:
        """Our own candidates ask for nothing else."""
        self.refused(4, pre_vote=True)
        self.bench.run(2_000)
        self.refused(4, pre_vote=True)
        self.assertTrue(self.stands())

    def test_not_for_a_member_of_any_other_kind(self) -> None:
        """A member that may lead becomes a candidate by itself; one that knows a leader has no reason."""
        self.bench.request(heart_beat("n2", 4))
        for _ in range(3):
            self.bench.now_ms += 300
            self.bench.request(vote_request("n1", 9, end_index=0, end_term=1, pre_vote=True))
            self.bench.request(heart_beat("n2", 4))
        self.assertIsNone(self.bench.core.member.successor_id)

    def test_leads_and_hands_over(self) -> None:
        """It takes no appends, writes no entry of its own, and asks n1 to take over once it holds all."""
        self.lead()
        self.assertEqual(len(self.bench.ledger.entries), 3)
        (token,), effects = propose(self.bench, 1)
        self.assertEqual([(one.token, one.code.name) for one in of_type(effects, fx.AnswerAppend)],
                         [(token, "LEADER_TRANSFERRING")])
        self.bench.match("n1")
        self.bench.confirm("n1")
        asked = sent(self.bench.run(1_200), LeadershipTransferRequest)
        self.assertEqual([(peer_id, request.transferee_id) for peer_id, _, request in asked], [("n1", "n1")])
        term = self.bench.term + 1
        answer = self.bench.ask(vote_request("n1", term, end_index=2, end_term=1, transfer=True))
        assert isinstance(answer, VoteResponse)
        self.assertIs(answer.vote_result, VoteResult.ACCEPT)
        self.bench.request(heart_beat("n1", self.bench.term))
        self.assertIsNone(self.bench.core.member.successor_id)
        self.assertFalse(self.bench.core.member.may_lead)

    def test_a_successor_that_dies(self) -> None:
        """Without a quorum it steps down, and is a follower as before."""
        self.lead()
        self.bench.run(5_000)
        self.assertEqual(self.bench.role, "follower")
        self.assertIsNone(self.bench.core.member.successor_id)
        self.bench.seen.clear()
        self.bench.run(30_000)
        self.assertEqual(sent(self.bench.seen, VoteRequest) + pushes(self.bench.seen, PushType.APPEND), [])

    def test_another_member_comes(self) -> None:
        """The one that asked is silent: who holds all entries gets leadership."""
        self.lead()
        self.bench.match("n2")
        self.bench.confirm("n2")
        asked = sent(self.bench.run(800), LeadershipTransferRequest)
        takers = [peer_id for peer_id, _, request in asked if request.transferee_id == peer_id]
        self.assertEqual(takers, ["n2"])

    def test_a_java_candidate_is_asked_first(self) -> None:
        """It is asked as any Java member: whether it knows a leader, then whether its log is longer."""
        self.bench.core.member.peers.wire_versions["n1"] = 0
        self.refused(4)
        self.bench.core.member.peers.wire_versions["n1"] = 0
        self.bench.run(7_000)
        self.refused(5)
        self.bench.core.member.peers.wire_versions["n1"] = 0
        (question, *_) = [one for one in of_type(self.bench.run_until(MetadataRequest), fx.SendRequest)
                          if one.peer_id == "n1"]
        (probe,) = sent(self.bench.answer(question, MetadataResponse()), VoteRequest)
        self.assertEqual(probe[2].term, -1)
