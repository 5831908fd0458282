# -*- test-case-name: tests.core.test_peer_clocks -*-
"""Clocks in votes and in answers to heartbeats."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import inputs as ev
from dledger.core.state.beliefs import FRESH_MS
from protocols.wire.ledger.messages import HeartBeatRequest, HeartBeatResponse, VoteRequest, VoteResponse
from tests.core.helpers import Bench, granted, heart_beat, sent, vote_request

TRUE_MS = 1_700_000_000_000


class ClockTests(SynchronousTestCase):
    """A member says what its clock showed at the last tick; a leader knows the clocks of its voters."""

    def test_a_member_says_its_clock(self) -> None:
        """With a vote, and with each answer to a heartbeat; before the first tick it does not know it."""
        bench = Bench.make()
        for clock_ms in (-1, 7):
            if clock_ms >= 0:
                bench.step(ev.Ticked(clock_ms=clock_ms))
            answers = (bench.ask(vote_request(term=2)), bench.ask(heart_beat(term=2)))
            for answer in answers:
                assert isinstance(answer, VoteResponse | HeartBeatResponse)
                self.assertEqual(answer.clock_ms, clock_ms)

    def candidate(self) -> Bench:
        """It has asked for votes in term 2."""
        bench = Bench.make(pre_vote=False)
        bench.run_until(VoteRequest)
        return bench

    def test_a_new_leader_knows_the_clocks_of_its_voters(self) -> None:
        """From the votes: before it writes anything."""
        bench = self.candidate()
        member = bench.core.member
        self.assertEqual(member.majority_clock_ms(TRUE_MS + 99), -1)
        peer_id, request_id, _ = sent(bench.seen, VoteRequest)[0]
        vote = attrs.evolve(granted(bench.term), clock_ms=TRUE_MS)
        bench.step(ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=vote))
        self.assertEqual(bench.role, "leader")
        self.assertEqual(member.majority_clock_ms(TRUE_MS + 99), TRUE_MS)
        self.assertEqual(member.majority_clock_ms(TRUE_MS - 99), TRUE_MS - 99)

    def test_what_was_said_lately_counts(self) -> None:
        """Answers to heartbeats go on from there, and a peer that is silent counts no more."""
        bench = Bench.make().lead()
        member = bench.core.member
        self.assertEqual(member.majority_clock_ms(TRUE_MS), -1, "the others are Java members")
        peer_id, request_id, _ = sent(bench.seen, HeartBeatRequest)[-1]
        bench.step(ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=HeartBeatResponse(
            group="g", term=bench.term, wire_version=1, clock_ms=TRUE_MS
        )))
        for later_ms, shown_ms in ((0, TRUE_MS), (FRESH_MS, TRUE_MS + FRESH_MS), (FRESH_MS + 1, -1)):
            member.out.now_ms = bench.now_ms + later_ms
            self.assertEqual(member.majority_clock_ms(10 * TRUE_MS), shown_ms)

    def test_a_term_begins_without_clocks(self) -> None:
        """What was said to an earlier candidacy may be old."""
        bench = Bench.make()
        bench.core.member.peers.clocks.heard("n1", TRUE_MS, bench.now_ms)
        bench.request(heart_beat(term=9))
        self.assertEqual(bench.core.member.majority_clock_ms(TRUE_MS), -1)
