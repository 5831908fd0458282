# -*- test-case-name: tests.core.test_campaign -*-
"""Elections: from patience to leadership."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.elector import Campaign
from dledger.core.election.java_elections import PROBE_TERM, STRAY_BEATS, STRAY_MS
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import VoteResult
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
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
    kinds,
    of_type,
    quiet,
    sent,
    vote_request,
)


def voter(**options: object) -> Bench:
    """A member of term 3 whose last entry is (5, term 2)."""
    made: dict[str, object] = {"term": 3, "ledger": ListLedger.of(1, 1, 1, 2, 2, 2), **options}
    return Bench.make(**made)  # type: ignore[arg-type]


class CampaignTests(SynchronousTestCase):
    """From patience to leadership."""

    def asked(self, **options: object) -> tuple[Bench, list[tuple[str, int, VoteRequest]]]:
        """A member that has sent its pre-votes."""
        bench = voter(**options)
        for peer_id in ("n1", "n2"):
            bench.core.member.peers.heard(peer_id, 1, bench.core.member.out.now_ms)
        return bench, sent(bench.run_until(VoteRequest), VoteRequest)

    def voting(self, **options: object) -> tuple[Bench, list[tuple[str, int, VoteRequest]]]:
        """A candidate that has sent its votes."""
        bench, asked = self.asked(**options)
        effects = bench.step(ev.ResponseReceived(
            peer_id="n1", request_id=asked[0][1], response=granted(3, pre_vote=True)
        ))
        return bench, sent(effects, VoteRequest)

    def test_not_held_up_by_one_that_cannot_win(self) -> None:
        """
        A candidate with a shorter log raises the term again and again: this member becomes a candidate all
        the same.
        """
        bench = voter(pre_vote=False)
        for term in range(4, 40):
            bench.request(vote_request("n1", term, end_index=0, end_term=1))
            if sent(bench.run(300), VoteRequest):
                return
        self.fail("it never stood")

    def test_pre_vote_asks_for_the_next_term(self) -> None:
        """The question names the term that would be entered, and nothing is made durable for it."""
        bench, asked = self.asked()
        self.assertEqual([(peer_id, request) for peer_id, _, request in asked], [
            (peer_id, VoteRequest(
                group="g", remote_id=peer_id, local_id="n0", leader_id="n0", term=4, wire_version=1,
                ledger_end_index=5, ledger_end_term=2, pre_vote=True,
            )) for peer_id in ("n1", "n2")
        ])
        self.assertEqual(of_type(bench.seen, fx.PersistTermVote), [])
        self.assertEqual((bench.role, bench.term), ("follower", 3))

    def test_term_and_vote_are_durable_before_votes_are_asked_for(self) -> None:
        """With a quorum of pre-votes the term rises: persist is first, then the votes."""
        bench, asked = self.asked()
        effects = bench.step(ev.ResponseReceived(
            peer_id="n1", request_id=asked[0][1], response=granted(3, pre_vote=True)
        ))
        votes = [fx.SendRequest(peer_id=peer_id, request_id=request_id, request=VoteRequest(
            group="g", remote_id=peer_id, local_id="n0", leader_id="n0", term=4, wire_version=1,
            ledger_end_index=5, ledger_end_term=2,
        )) for peer_id, request_id, _ in sent(effects, VoteRequest)]
        self.assertEqual(quiet(effects), (fx.PersistTermVote(term=4, voted_for="n0"), *votes))
        self.assertEqual(len(votes), 2)
        self.assertEqual(bench.role, "candidate")

    def test_a_vote_of_a_process_that_ended(self) -> None:
        """It does not count, whether it came before or comes afterwards; those of the others do."""
        bench = voter(members=5, pre_vote=False)
        for peer_id in ("n1", "n2", "n3", "n4"):
            bench.core.member.peers.heard(peer_id, 1, bench.core.member.out.now_ms)
        votes = sent(bench.run_until(VoteRequest), VoteRequest)
        for peer_id, request_id, _ in votes[:1]:
            bench.step(ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=granted(4)))
        for peer_id, _, _ in votes[:2]:
            bench.step(ev.PeerDisconnected(peer_id=peer_id))
        for at, role in ((1, "candidate"), (2, "candidate"), (3, "leader")):
            peer_id, request_id, _ = votes[at]
            bench.step(ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=granted(4)))
            self.assertEqual(bench.role, role)

    def test_quorum_of_votes_leads(self) -> None:
        """One vote of two peers is enough with the own one."""
        bench, votes = self.voting()
        self.assertEqual(bench.role, "candidate")
        bench.step(ev.ResponseReceived(peer_id="n2", request_id=votes[1][1], response=granted(4)))
        self.assertEqual(bench.role, "leader")

    def test_refusals_do_not_lead(self) -> None:
        """Whatever the reason, and UNKNOWN too; TERM_NOT_READY is asked again."""
        for result in VoteResult:
            if result is VoteResult.ACCEPT:
                continue
            bench, votes = self.voting()
            for peer_id, request_id, _ in votes:
                bench.step(ev.ResponseReceived(
                    peer_id=peer_id, request_id=request_id, response=granted(4, result=result)
                ))
            self.assertEqual(bench.role, "candidate", result)

    def test_one_voice_counts_once(self) -> None:
        """In a group of five the same vote reported twice is one vote."""
        bench, votes = self.voting(members=5)
        self.assertEqual(votes, [])  # one pre-vote of four is not a quorum of five
        asked = sent(bench.seen, VoteRequest)
        bench.core.member.peers.heard("n3", 1, bench.core.member.out.now_ms)
        bench.step(ev.ResponseReceived(
            peer_id="n1", request_id=asked[0][1], response=granted(3, pre_vote=True)
        ))
        self.assertEqual(bench.role, "follower")

    def test_java_voter_is_asked_again(self) -> None:
        """TERM_NOT_READY: Java adopts the term now and votes the next time."""
        bench, votes = self.voting()
        bench.step(ev.ResponseReceived(
            peer_id="n1", request_id=votes[0][1], response=granted(3, result=VoteResult.REJECT_TERM_NOT_READY)
        ))
        again = sent(bench.tick(), VoteRequest)
        self.assertEqual([(peer_id, request.term) for peer_id, _, request in again], [("n1", 4)])
        bench.step(ev.ResponseReceived(peer_id="n1", request_id=again[0][1], response=granted(4)))
        self.assertEqual(bench.role, "leader")

    def test_a_voter_that_cannot_vouch_yet_is_asked_again(self) -> None:
        """ILLEGAL_MEMBER_STATE: that member's own connection to the candidate is still being made."""
        bench, votes = self.voting()
        refusal = VoteResponse(group="g", code=ResponseCode.ILLEGAL_MEMBER_STATE)
        bench.step(ev.ResponseReceived(peer_id="n1", request_id=votes[0][1], response=refusal))
        again = sent(bench.tick(), VoteRequest)
        self.assertEqual([(peer_id, request.term) for peer_id, _, request in again], [("n1", 4)])
        bench.step(ev.ResponseReceived(peer_id="n1", request_id=again[0][1], response=granted(4)))
        self.assertEqual(bench.role, "leader")

    def test_votes_of_an_earlier_round_do_not_count(self) -> None:
        """An answer counts only while its round is under way."""
        bench, votes = self.voting()
        bench.run(1_000)
        self.assertEqual(bench.role, "candidate")
        bench.step(ev.ResponseReceived(peer_id="n1", request_id=votes[0][1], response=granted(4)))
        self.assertEqual(bench.role, "candidate")

    def test_pre_votes_do_not_count_as_votes(self) -> None:
        """A late yes to the question is no vote."""
        bench, asked = self.asked()
        bench.step(ev.ResponseReceived(
            peer_id="n1", request_id=asked[0][1], response=granted(3, pre_vote=True)
        ))
        bench.step(ev.ResponseReceived(
            peer_id="n2", request_id=asked[1][1], response=granted(3, pre_vote=True)
        ))
        self.assertEqual((bench.role, bench.term), ("candidate", 4))

    def test_a_round_without_a_quorum_is_tried_again(self) -> None:
        """A candidate that hears nothing asks around again; its term rises only with a quorum of yes."""
        bench, _ = self.voting()
        effects = bench.run(5_000)
        self.assertTrue(all(request.pre_vote for _, _, request in sent(effects, VoteRequest)))
        self.assertGreater(len(sent(effects, VoteRequest)), 6)
        self.assertEqual(bench.term, 4)

    def test_a_split_vote_is_followed_soon(self) -> None:
        """When a voter has voted for another candidate, only a random wait comes before the next round."""
        for result, at_most_ms in ((VoteResult.REJECT_ALREADY_VOTED, 420), (VoteResult.UNKNOWN, 920)):
            waits = []
            for seed in range(20):
                bench, votes = self.voting(seed=seed)
                began_ms = bench.now_ms
                for peer_id, request_id, _ in votes:
                    bench.step(ev.ResponseReceived(
                        peer_id=peer_id, request_id=request_id, response=granted(4, result=result)
                    ))
                asked = sent(bench.run_until(VoteRequest), VoteRequest)
                self.assertTrue(all(request.pre_vote for _, _, request in asked))
                waits.append(bench.now_ms - began_ms)
            self.assertGreater(min(waits), 90)
            self.assertTrue(at_most_ms - 120 < max(waits) <= at_most_ms, waits)

    def test_a_vote_under_way_is_waited_for(self) -> None:
        """While a voter has not answered, a split is not certain: its vote may still be made durable."""
        for ends, at_least_ms, at_most_ms in ((False, 600, 920), (True, 90, 420)):
            bench, votes = self.voting(seed=7)
            began_ms, refusal = bench.now_ms, granted(4, result=VoteResult.REJECT_ALREADY_VOTED)
            bench.step(ev.ResponseReceived(peer_id="n1", request_id=votes[0][1], response=refusal))
            if ends:
                bench.step(ev.RequestFailed(peer_id="n2", request_id=votes[1][1], reason="not connected"))
            bench.run_until(VoteRequest)
            self.assertTrue(at_least_ms <= bench.now_ms - began_ms <= at_most_ms, bench.now_ms - began_ms)

    def test_failed_requests_end_nothing(self) -> None:
        """The round lives on the other answers."""
        bench, votes = self.voting()
        bench.step(ev.RequestFailed(peer_id="n1", request_id=votes[0][1], reason="refused"))
        bench.step(ev.ResponseReceived(peer_id="n2", request_id=votes[1][1], response=granted(4)))
        self.assertEqual(bench.role, "leader")

    def test_a_higher_term_in_an_answer_ends_the_round(self) -> None:
        """It is adopted, durably, and the vote that came with it counts for nothing."""
        bench, votes = self.voting()
        refused = granted(9, result=VoteResult.REJECT_EXPIRED_VOTE_TERM)
        effects = bench.step(ev.ResponseReceived(peer_id="n1", request_id=votes[0][1], response=refused))
        self.assertEqual(quiet(effects), (fx.PersistTermVote(term=9, voted_for=None),))
        self.assertIn("role-changed", events(effects))
        self.assertEqual((bench.role, bench.term), ("follower", 9))
        bench.step(ev.ResponseReceived(peer_id="n2", request_id=votes[1][1], response=granted(4)))
        self.assertEqual(bench.role, "follower")

    def test_a_leader_that_is_heard_ends_the_question(self) -> None:
        """Pre-votes that come after its beat start nothing."""
        bench, asked = self.asked()
        bench.request(heart_beat("n2", 3))
        bench.step(ev.ResponseReceived(
            peer_id="n1", request_id=asked[0][1], response=granted(3, pre_vote=True)
        ))
        self.assertEqual((bench.role, bench.core.leader_id, bench.term), ("follower", "n2", 3))

    def test_votes_after_it_followed_another(self) -> None:
        """Who follows a leader of the term has lost it, whoever votes for it yet."""
        bench, votes = self.voting()
        bench.request(heart_beat("n2", 4))
        bench.step(ev.ResponseReceived(peer_id="n1", request_id=votes[0][1], response=granted(4)))
        self.assertEqual((bench.role, bench.core.leader_id), ("follower", "n2"))

    def test_own_vote_is_for_a_term_beyond_the_ledger(self) -> None:
        """A term file that is older than the ledger does not lead to a term that was led already."""
        bench = Bench.make(ListLedger.of(7), term=2, pre_vote=False)
        bench.run(3_000)
        first = of_type(bench.seen, fx.PersistTermVote)[0]
        self.assertEqual(first, fx.PersistTermVote(term=8, voted_for="n0"))

    def test_a_group_of_one_elects_itself(self) -> None:
        """A group of one needs nobody, but a durable vote."""
        bench = Bench.make(members=1)
        effects = bench.tick()
        self.assertEqual(kinds(effects)[0], "PersistTermVote")
        self.assertEqual(bench.role, "leader")

    def test_without_pre_vote(self) -> None:
        """C{pre_vote=False}: the term rises at once, durably, before anybody is asked."""
        bench = voter(pre_vote=False)
        effects = bench.run_until(VoteRequest)
        self.assertEqual(kinds(effects), ["PersistTermVote", "n1<-VoteRequest", "n2<-VoteRequest"])
        self.assertFalse(any(request.pre_vote for _, _, request in sent(effects, VoteRequest)))

    def test_two_members_do_not_share_a_wait(self) -> None:
        """Waits before a round are random within the configured window."""
        waits = set()
        for seed in range(20):
            bench = voter(seed=seed)
            began_ms = bench.now_ms
            bench.run_until(MetadataRequest)
            waits.add(bench.now_ms - began_ms)
            self.assertTrue(500 <= bench.now_ms - began_ms <= 820, bench.now_ms - began_ms)
        self.assertGreater(len(waits), 5)


class StrangerTests(SynchronousTestCase):
    """Peers that advertised no wire get METADATA and a VOTE of an old term: neither binds them."""

    def asked(self) -> tuple[Bench, list[tuple[str, int, MetadataRequest]]]:
        """A member that knows nothing of its peers and begins to ask."""
        bench = voter()
        return bench, sent(bench.run_until(MetadataRequest), MetadataRequest)

    def answer(self, bench: Bench, found: tuple[str, int, MetadataRequest], **fields: object) -> tuple[
        fx.Effect, ...
    ]:
        """A METADATA answer."""
        return bench.step(ev.ResponseReceived(
            peer_id=found[0], request_id=found[1],
            response=MetadataResponse(group="g", **fields),  # type: ignore[arg-type]
        ))

    def probe(
        self, bench: Bench, found: tuple[str, int, MetadataRequest],
        result: VoteResult = VoteResult.REJECT_EXPIRED_VOTE_TERM, **metadata: object,
    ) -> tuple[fx.Effect, ...]:
        """A METADATA answer without a leader, and an answer to the VOTE that follows it."""
        [(peer_id, request_id, vote)] = sent(self.answer(bench, found, **metadata), VoteRequest)
        self.assertEqual((peer_id, vote.term, vote.pre_vote), (found[0], PROBE_TERM, False))
        self.assertEqual((vote.leader_id, vote.ledger_end_index, vote.ledger_end_term), ("n0", 5, 2))
        refused = VoteResponse(group="g", term=3, vote_result=result)
        return bench.step(ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=refused))

    def test_no_pre_vote_is_sent_to_them(self) -> None:
        """Java would take it for a vote."""
        bench, asked = self.asked()
        self.assertEqual([peer_id for peer_id, _, _ in asked], ["n1", "n2"])
        self.assertEqual(sent(bench.seen, VoteRequest), [])

    def test_java_without_a_leader_counts(self) -> None:
        """A peer that knows no leader, and whose log is not longer, would vote."""
        bench, asked = self.asked()
        effects = self.probe(bench, asked[0])
        self.assertEqual(kinds(effects), ["PersistTermVote", "n1<-VoteRequest", "n2<-VoteRequest"])

    def test_java_with_a_longer_log_does_not(self) -> None:
        """It would refuse without adopting the term, and this member would be alone in a higher one."""
        for result in (VoteResult.REJECT_SMALL_LEDGER_END_INDEX, VoteResult.REJECT_EXPIRED_LEDGER_TERM):
            bench, asked = self.asked()
            began_ms = bench.now_ms
            self.assertEqual(kinds(self.probe(bench, asked[0], result)), [])
            self.assertEqual((bench.role, bench.term), ("follower", 3))
            bench.run_until(MetadataRequest)
            self.assertGreaterEqual(bench.now_ms - began_ms, 4000)

    def test_java_with_a_leader_does_not(self) -> None:
        """It would be disturbed."""
        bench, asked = self.asked()
        self.assertEqual(kinds(self.answer(bench, asked[0], leader_id="n2")), [])
        self.assertEqual(bench.term, 3)

    def test_java_that_thinks_that_we_lead(self) -> None:
        """A leader that was restarted asks those that still follow it."""
        bench, asked = self.asked()
        self.probe(bench, asked[0], leader_id="n0")
        self.assertEqual(bench.role, "candidate")

    def test_refusals_do_not_count(self) -> None:
        """An answer that is not SUCCESS says nothing."""
        bench, asked = self.asked()
        self.answer(bench, asked[0], code=ResponseCode.UNKNOWN_GROUP)
        self.assertEqual(bench.role, "follower")

    def test_one_of_ours_is_asked_properly(self) -> None:
        """Its answer says that it understands pre-votes: it gets one, once."""
        bench, asked = self.asked()
        effects = self.answer(bench, asked[0], wire_version=1, leader_id=None)
        self.assertEqual([(peer_id, request.pre_vote) for peer_id, _, request in sent(effects, VoteRequest)],
                         [("n1", True)])
        self.assertEqual(bench.role, "follower")
        self.assertEqual(bench.core.elector.campaign, Campaign.ASKING)

    def test_its_term_is_hearsay(self) -> None:
        """What METADATA says of a term moves nobody: a term is adopted from who may bind."""
        bench, asked = self.asked()
        self.answer(bench, asked[0], term=99, leader_id="n2")
        self.assertEqual(bench.term, 3)

    def test_java_candidate_with_a_longer_log_is_left_the_time(self) -> None:
        """Its term is behind ours: as long as it asks, ours is not raised; an equal log is no reason."""
        waits = {}
        for end_index in (5, 6):
            bench, asked = self.asked()
            self.probe(bench, asked[0])
            began_ms = bench.now_ms
            request = vote_request("n1", 3, end_index=end_index, end_term=2)
            bench.request(attrs.evolve(request, wire_version=0))
            bench.run_until(MetadataRequest)
            waits[end_index] = bench.now_ms - began_ms
        self.assertLess(waits[5], 1200)
        self.assertGreaterEqual(waits[6], 4000)

    def test_java_with_a_longer_log_is_left_the_time(self) -> None:
        """It keeps its term when it refuses for its log, so the next term of ours waits for its candidacy."""
        waits = {}
        for result in (VoteResult.REJECT_ALREADY_VOTED, VoteResult.REJECT_SMALL_LEDGER_END_INDEX,
                       VoteResult.REJECT_EXPIRED_LEDGER_TERM):
            bench, asked = self.asked()
            votes = sent(self.probe(bench, asked[0]), VoteRequest)
            began_ms = bench.now_ms
            bench.step(ev.ResponseReceived(peer_id="n1", request_id=votes[0][1], response=VoteResponse(
                group="g", term=3, vote_result=result
            )))
            bench.run_until(MetadataRequest)
            waits[result] = bench.now_ms - began_ms
        self.assertLess(waits.pop(VoteResult.REJECT_ALREADY_VOTED), 1200)
        self.assertGreaterEqual(min(waits.values()), 4000)


class StrayLeaderTests(SynchronousTestCase):
    """A Java leader with a quorum in a lower term never hears a refusal: it is called up to ours."""

    def beaten(self, bench: Bench, beats: int, *, leader: str = "n1", wire_version: int = 0) -> list[
        tuple[str, int, HeartBeatRequest]
    ]:
        """C{beats} beats of term 2, every two seconds. @return: the heartbeats that this member sent."""
        found = []
        for _ in range(beats):
            beat = attrs.evolve(heart_beat(leader, 2, interval_ms=0), wire_version=wire_version)
            found += sent(bench.request(beat), HeartBeatRequest)
            bench.run(STRAY_MS // (STRAY_BEATS - 1) + 100)
        return found

    def test_called_after_some_beats(self) -> None:
        """It gets one heartbeat of our term, which Java adopts; it is not called again at once."""
        bench = voter()
        self.assertEqual(self.beaten(bench, STRAY_BEATS - 1), [])
        called = self.beaten(bench, 1)
        self.assertEqual([(peer_id, beat.term, beat.leader_id) for peer_id, _, beat in called],
                         [("n1", 3, "n0")])
        self.assertEqual(self.beaten(bench, STRAY_BEATS - 1), [])
        self.assertEqual(len(self.beaten(bench, 1)), 1)
        self.assertEqual((bench.role, bench.term), ("follower", 3))

    def test_not_in_one_burst(self) -> None:
        """What a thawed leader had queued is no sign that it has a quorum."""
        bench = voter()
        for _ in range(3 * STRAY_BEATS):
            beat = attrs.evolve(heart_beat("n1", 2, interval_ms=0), wire_version=0)
            self.assertEqual(sent(bench.request(beat), HeartBeatRequest), [])

    def test_ours_is_not_called(self) -> None:
        """A leader of ours steps down when it reads the refusal."""
        self.assertEqual(self.beaten(voter(), 3 * STRAY_BEATS, wire_version=1), [])

    def test_not_beside_a_leader(self) -> None:
        """While this member follows in its own term, the lower one is over."""
        bench = voter()
        for _ in range(3 * STRAY_BEATS):
            bench.request(heart_beat("n2", 3, interval_ms=10_000))
            self.assertEqual(self.beaten(bench, 1), [])

    def test_answer_is_no_vote(self) -> None:
        """Whatever it answers, this member does not lead by it."""
        bench = voter()
        [(peer_id, request_id, _)] = self.beaten(bench, STRAY_BEATS)
        for code in (ResponseCode.TERM_NOT_READY, ResponseCode.SUCCESS):
            bench.step(ev.ResponseReceived(
                peer_id=peer_id, request_id=request_id, response=HeartBeatResponse(group="g", code=code)
            ))
        self.assertEqual((bench.role, bench.term), ("follower", 3))


class AnotherProgramTests(SynchronousTestCase):
    """A Java member in the place of one of ours."""

    def test_is_asked_in_its_way(self) -> None:
        """After a new connection nothing is known of the program there: METADATA comes first."""
        for connects in (False, True):
            bench = Bench.make(term=3)
            for peer_id in ("n1", "n2"):
                bench.core.member.peers.heard(peer_id, 1, bench.core.member.out.now_ms)
            if connects:
                bench.step(ev.PeerConnected(peer_id="n1"))
            asked = {one.peer_id: type(one.request) for one in of_type(bench.run(10_000), fx.SendRequest)}
            self.assertEqual(asked, {"n1": MetadataRequest if connects else VoteRequest, "n2": VoteRequest})
