# -*- test-case-name: tests.core.test_stickiness -*-
"""A leader that is heard keeps its place: votes neither depose it nor raise a term."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.java_elections import JAVA_HEARD_MS, JAVA_SPARED_MS, JavaElections
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import VoteResult
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    VoteRequest,
    VoteResponse,
)
from tests.core.helpers import Bench, ListLedger, heart_beat, make_member, of_type, sent, vote_request

KEPT = VoteResult.REJECT_ALREADY_HAS_LEADER


def announcement(taker: str = "n2", *, leader: str = "n1", term: int = 3) -> LeadershipTransferRequest:
    """The leader names the member that takes over to n0."""
    return LeadershipTransferRequest(
        group="g", remote_id="n0", local_id=leader, leader_id=leader, term=term, transfer_id=leader,
        transferee_id=taker,
    )


class FollowerTests(SynchronousTestCase):
    """A member that hears its leader."""

    def asked(self, bench: Bench, candidate: str = "n2", term: int = 4, *, java: bool = False) -> VoteResult:
        """Its answer to a real vote."""
        request = vote_request(candidate, term, end_index=9, end_term=3)
        answer = bench.ask(attrs.evolve(request, wire_version=0) if java else request)
        assert isinstance(answer, VoteResponse)
        return answer.vote_result

    def test_a_follower_refuses_a_higher_term_of_a_stranger(self) -> None:
        """The term is not adopted, nothing is persisted, and the leader is followed on."""
        bench = Bench.make(term=3).follow("n1", 3)
        bench.seen.clear()
        bench.now_ms += 999
        for term in range(4, 104):
            self.assertIs(self.asked(bench, term=term), KEPT)
        self.assertEqual((bench.term, bench.core.leader_id), (3, "n1"))
        self.assertEqual(of_type(bench.seen, fx.PersistTermVote), [])
        self.assertEqual({reply.response.term for reply in of_type(bench.seen, fx.Reply)}, {3})

    def test_silence_ends_it(self) -> None:
        """As long as its patience, without jitter."""
        bench = Bench.make(term=3).follow("n1", 3)
        bench.now_ms += 1_000
        self.assertIs(self.asked(bench), VoteResult.ACCEPT)

    def test_a_lost_connection_ends_it(self) -> None:
        """A leader that died is not waited for."""
        bench = Bench.make(term=3).follow("n1", 3)
        bench.step(ev.PeerDisconnected(peer_id="n1"))
        self.assertIs(self.asked(bench), VoteResult.ACCEPT)

    def test_its_leader_may_ask(self) -> None:
        """A leader that asks for votes leads no more."""
        bench = Bench.make(term=3).follow("n1", 3)
        self.assertIs(self.asked(bench, "n1"), VoteResult.ACCEPT)

    def test_the_taker_of_a_transfer_gets_the_vote(self) -> None:
        """The taker of a transfer, for the time that a transfer takes, and nobody else."""
        bench = Bench.make(term=3).follow("n1", 3)
        self.assertIs(bench.ask(announcement()).code, ResponseCode.SUCCESS)
        self.assertIs(self.asked(bench, "n2"), VoteResult.ACCEPT)
        for wrong in (announcement("n3"), announcement(leader="n2", taker="n1"), announcement(term=2)):
            bench = Bench.make(term=3, members=5).follow("n1", 3)
            bench.request(wrong)
            self.assertIs(self.asked(bench, "n2"), KEPT, wrong)
        bench = Bench.make(term=3).follow("n1", 3)
        bench.request(announcement())
        bench.now_ms += 2_000
        bench.request(heart_beat("n1", 3))
        self.assertIs(self.asked(bench, "n2"), KEPT)

    def test_a_java_candidate_gets_one_chance(self) -> None:
        """One vote in half a minute counts; all count when one of its beats is missing."""
        bench = Bench.make(ListLedger.of(1), term=3).follow("n1", 3, interval_ms=0)
        self.assertIs(self.asked(bench, term=4, java=True), VoteResult.ACCEPT)
        bench.follow("n1", 5, interval_ms=0)
        self.assertIs(self.asked(bench, term=6, java=True), KEPT)
        bench.now_ms += JAVA_HEARD_MS
        self.assertIs(self.asked(bench, term=6, java=True), VoteResult.ACCEPT)
        bench.follow("n1", 7, interval_ms=0)
        bench.now_ms += JAVA_SPARED_MS
        bench.request(heart_beat("n1", 7, interval_ms=0))
        self.assertIs(self.asked(bench, term=8, java=True), VoteResult.ACCEPT)

    def test_terms_in_a_row(self) -> None:
        """Without a leader, one candidate raises the term once in the shortest wait between two rounds."""
        bench = Bench.make(term=3)
        self.assertIs(self.asked(bench, term=4), VoteResult.ACCEPT)
        self.assertIs(self.asked(bench, term=5), VoteResult.REJECT_TERM_NOT_READY)
        self.assertEqual(bench.term, 4)
        self.assertIs(self.asked(bench, "n1", term=5), VoteResult.ACCEPT)
        bench.now_ms += bench.config.min_vote_interval_ms
        self.assertIs(self.asked(bench, term=6), VoteResult.ACCEPT)


class LeaderTests(SynchronousTestCase):
    """A member that leads."""

    def test_a_leader_refuses_forged_votes(self) -> None:
        """Forged votes leave it where it is."""
        bench = Bench.make().lead()
        term = bench.term
        for ahead in range(1, 100):
            answer = bench.ask(vote_request("n2", term + ahead, end_index=9, end_term=term))
            assert isinstance(answer, VoteResponse)
            self.assertEqual((answer.vote_result, answer.term), (KEPT, term))
        self.assertEqual((bench.role, bench.term), ("leader", term))

    def test_a_member_ahead_gets_back_in_step(self) -> None:
        """Its refusal of a heartbeat names its term: the leader adopts that and the group elects anew."""
        bench = Bench.make().lead()
        term = bench.term
        bench.run(bench.config.heart_beat_time_interval_ms)
        beat = next(one for one in reversed(of_type(bench.seen, fx.SendRequest))
                    if one.peer_id == "n2" and isinstance(one.request, HeartBeatRequest))
        bench.answer(beat, HeartBeatResponse(
            code=ResponseCode.EXPIRED_TERM, term=term + 4, wire_version=1
        ))
        self.assertEqual((bench.role, bench.term), ("follower", term + 4))

    def test_a_leader_votes_for_its_taker(self) -> None:
        """The one that it named, and nobody else."""
        bench = Bench.make(ListLedger.of(1)).lead()
        bench.match("n1")
        bench.request(LeadershipTransferRequest(
            group="g", remote_id="n0", term=-1, transfer_id="n0", transferee_id="n1"
        ))
        term = bench.term
        for candidate, result in (("n2", KEPT), ("n1", VoteResult.ACCEPT)):
            answer = bench.ask(vote_request(candidate, term + 1, end_index=1, end_term=term, transfer=True))
            assert isinstance(answer, VoteResponse)
            self.assertIs(answer.vote_result, result)


class TakerTests(SynchronousTestCase):
    """The taker of a transfer."""

    def test_a_taker_asks_again_after_a_tick(self) -> None:
        """A member that has not heard the announcement yet is asked again a tick later."""
        bench = Bench.make(ListLedger.of(1), term=3).follow("n1", 3)
        bench.request(LeadershipTransferRequest(
            group="g", remote_id="n0", local_id="n1", leader_id="n1", term=3, transfer_id="n1",
            transferee_id="n0", take_leadership_ledger_index=0,
        ))
        asked = [one for one in of_type(bench.seen, fx.SendRequest) if isinstance(one.request, VoteRequest)]
        bench.answer(asked[1], VoteResponse(term=3, wire_version=1, vote_result=KEPT))
        self.assertEqual([peer_id for peer_id, _, _ in sent(bench.tick(), VoteRequest)], ["n2"])


class BetterTests(SynchronousTestCase):
    """Which candidates are given the time to win."""

    def test_only_a_better_java_candidate_gets_time(self) -> None:
        """One of Java that has more entries; not one of ours, which asks before it raises the term."""
        java = JavaElections(make_member(ListLedger.of(1, 1), term=1))
        for wire_version, end_index, is_better in ((0, 2, True), (0, 1, False), (1, 2, False)):
            request = VoteRequest(
                group="g", local_id="n1", leader_id="n1", term=2, ledger_end_term=1,
                ledger_end_index=end_index, wire_version=wire_version,
            )
            self.assertEqual(java.is_better(request), is_better)
