# -*- test-case-name: tests.core.test_elector -*-
"""Elections: who votes for whom, who follows whom, and for how long."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.elector import LeaderElector
from dledger.core.election.voter import HEART_BEAT_INTERVAL_MAX_MS, HEART_BEAT_INTERVAL_MIN_MS
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_VERSION, PushType, VoteResult
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
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
    make_member,
    of_type,
    push,
    quiet,
    seeded,
    sent,
    vote_request,
)


def voter(**options: object) -> Bench:
    """A member of term 3 whose last entry is (5, term 2)."""
    made: dict[str, object] = {"term": 3, "ledger": ListLedger.of(1, 1, 1, 2, 2, 2), **options}
    return Bench.make(**made)  # type: ignore[arg-type]


def vote_reply(request: VoteRequest, result: VoteResult, term: int) -> VoteResponse:
    """The whole answer to a vote."""
    return VoteResponse(
        group="g", remote_id="n0", local_id=request.local_id, leader_id=request.leader_id, term=term,
        wire_version=1, vote_result=result, pre_vote=request.pre_vote,
    )


@attrs.frozen(kw_only=True)
class VoteRow:
    """One row of the voter's table: the question, and its answer."""

    name: str
    request: VoteRequest
    result: VoteResult
    term: int = 3
    persists: tuple[int, str | None] | None = None
    follows: str | None = None
    voted_for: str | None = None


#: The voter's table in Java's order; row 7 (TERM_NOT_READY) is an adoption here, row 9 needs preferred
#: leaders that take leadership, which are asked to by the leader here.
VOTES = (
    VoteRow(name="1 not a member", request=vote_request("n9", 9, end_index=9, end_term=9),
            result=VoteResult.REJECT_UNKNOWN_LEADER),
    VoteRow(name="2 itself", request=vote_request("n0", 9, end_index=9, end_term=9),
            result=VoteResult.REJECT_UNEXPECTED_LEADER),
    VoteRow(name="3 older last entry", request=vote_request("n1", 3, end_index=99, end_term=1),
            result=VoteResult.REJECT_EXPIRED_LEDGER_TERM),
    VoteRow(name="3 older last entry, higher term", request=vote_request("n1", 4, end_index=99, end_term=1),
            result=VoteResult.REJECT_EXPIRED_LEDGER_TERM, term=4, persists=(4, None)),
    VoteRow(name="4 shorter", request=vote_request("n1", 3, end_index=4, end_term=2),
            result=VoteResult.REJECT_SMALL_LEDGER_END_INDEX),
    VoteRow(name="4 shorter, higher term", request=vote_request("n1", 5, end_index=4, end_term=2),
            result=VoteResult.REJECT_SMALL_LEDGER_END_INDEX, term=5, persists=(5, None)),
    VoteRow(name="5 older term", request=vote_request("n1", 2, end_index=5, end_term=2),
            result=VoteResult.REJECT_EXPIRED_VOTE_TERM),
    VoteRow(name="6 follows another", request=vote_request("n1", 3, end_index=5, end_term=2), follows="n2",
            result=VoteResult.REJECT_ALREADY_HAS_LEADER),
    VoteRow(name="6 voted for another", request=vote_request("n1", 3, end_index=5, end_term=2),
            voted_for="n2", result=VoteResult.REJECT_ALREADY_VOTED),
    VoteRow(name="7 higher term: adopted", request=vote_request("n1", 4, end_index=5, end_term=2),
            result=VoteResult.ACCEPT, term=4, persists=(4, "n1")),
    VoteRow(name="7 higher term, hears another", request=vote_request("n1", 4, end_index=5, end_term=2),
            follows="n2", result=VoteResult.REJECT_ALREADY_HAS_LEADER),
    VoteRow(name="7 higher term, of its own leader", request=vote_request("n1", 4, end_index=5, end_term=2),
            follows="n1", result=VoteResult.ACCEPT, term=4, persists=(4, "n1")),
    VoteRow(name="10 equal log", request=vote_request("n1", 3, end_index=5, end_term=2),
            result=VoteResult.ACCEPT, persists=(3, "n1")),
    VoteRow(name="10 longer", request=vote_request("n1", 3, end_index=6, end_term=2),
            result=VoteResult.ACCEPT, persists=(3, "n1")),
    VoteRow(name="10 later last entry", request=vote_request("n1", 3, end_index=0, end_term=3),
            result=VoteResult.ACCEPT, persists=(3, "n1")),
    VoteRow(name="10 again", request=vote_request("n1", 3, end_index=5, end_term=2), voted_for="n1",
            result=VoteResult.ACCEPT),
    VoteRow(name="10 from whom it follows", request=vote_request("n1", 3, end_index=5, end_term=2),
            follows="n1", result=VoteResult.ACCEPT),
)


class VoteTests(SynchronousTestCase):
    """A vote is given once in a term, durably, and to no log that is behind the voter's."""

    def test_votes_are_durable_before_their_answers(self) -> None:
        """Every row: the durable write is before the answer, and nothing else is done."""
        for row in VOTES:
            bench = voter(voted_for=row.voted_for)
            if row.follows is not None:
                bench.follow(row.follows, 3)
            reply = fx.Reply(token=77, response=vote_reply(row.request, row.result, row.term))
            expected: tuple[fx.Effect, ...] = (reply,)
            if row.persists is not None:
                term, voted_for = row.persists
                expected = (fx.PersistTermVote(term=term, voted_for=voted_for), reply)
            effects = bench.step(ev.RequestReceived(token=77, request=row.request))
            self.assertEqual(quiet(effects), expected, row.name)

    def test_every_result_is_in_the_table(self) -> None:
        """Results that no row of ours gives are known by name."""
        elsewhere = {
            VoteResult.UNKNOWN,  # a repairing member
            VoteResult.REJECT_TERM_NOT_READY,  # a higher term is adopted at once
            VoteResult.REJECT_TERM_SMALL_THAN_LEDGER,  # below
            VoteResult.REJECT_TAKING_LEADERSHIP,  # Java's preferred leaders only
        }
        self.assertEqual({row.result for row in VOTES} | elsewhere, set(VoteResult))

    def test_term_below_its_own_last_entry(self) -> None:
        """8: a candidate of a term that the voter's ledger has passed hears of that term."""
        member = make_member(ListLedger.of(4), term=3)
        LeaderElector(member, seeded(1), Roles(member)).voter.on_vote(
            1, vote_request("n1", 3, end_index=9, end_term=4)
        )
        (reply,) = of_type(member.out.take(), fx.Reply)
        self.assertEqual(reply.response, vote_reply(
            vote_request("n1", 3), VoteResult.REJECT_TERM_SMALL_THAN_LEDGER, 4
        ))

    def test_term_of_its_own_last_entry(self) -> None:
        """A term that the ledger has reached, but not passed, can be voted in."""
        bench = Bench.make(ListLedger.of(4), term=4)
        answer = bench.ask(vote_request("n1", 4, end_index=0, end_term=4))
        self.assertEqual(answer, vote_reply(vote_request("n1", 4), VoteResult.ACCEPT, 4))

    def test_second_candidate_of_a_term(self) -> None:
        """One vote in a term, whoever asks next, with whatever log."""
        bench = voter()
        bench.request(vote_request("n1", 4, end_index=5, end_term=2))
        second = bench.ask(vote_request("n2", 4, end_index=99, end_term=3))
        self.assertEqual(second, vote_reply(
            vote_request("n2", 4), VoteResult.REJECT_ALREADY_VOTED, 4
        ))

    def test_who_follows_has_voted(self) -> None:
        """Following a leader uses the term's vote up, even after that leader was given up."""
        bench = voter()
        effects = bench.request(heart_beat("n1", 3))
        self.assertEqual(kinds(effects), ["PersistTermVote", "Reply SUCCESS"])
        bench.run(3_000)
        self.assertEqual(bench.core.status().leader_id, None)
        term = bench.term
        self.assertEqual(term, 3)
        answer = bench.ask(vote_request("n2", 3, end_index=99, end_term=3))
        self.assertEqual(answer, vote_reply(vote_request("n2", 3), VoteResult.REJECT_ALREADY_VOTED, 3))

    def test_candidate_has_voted_for_itself(self) -> None:
        """A rival of the same term gets nothing."""
        bench = voter()
        bench.core.member.peers.heard("n1", 1, bench.core.member.out.now_ms)
        bench.core.member.peers.heard("n2", 1, bench.core.member.out.now_ms)
        asking = sent(bench.run_until(VoteRequest), VoteRequest)
        bench.step(ev.ResponseReceived(
            peer_id="n1", request_id=asking[0][1], response=granted(3, pre_vote=True)
        ))
        self.assertEqual((bench.role, bench.term), ("candidate", 4))
        answer = bench.ask(vote_request("n2", 4, end_index=99, end_term=3))
        self.assertEqual(answer, vote_reply(vote_request("n2", 4), VoteResult.REJECT_ALREADY_VOTED, 4))

    def test_repairing_member_has_no_vote(self) -> None:
        """What a damaged member once acknowledged may be missing: it says UNKNOWN, and stores nothing."""
        for repair_end_index in (0, 9):
            bench = voter(repair_end_index=repair_end_index)
            for pre_vote in (True, False):
                request = vote_request("n1", 4, end_index=5, end_term=2, pre_vote=pre_vote)
                answer = bench.ask(request)
                assert isinstance(answer, VoteResponse)
                self.assertIs(answer.vote_result, VoteResult.UNKNOWN)
            self.assertEqual(bench.core.status().voted_for, None)

    def test_granting_a_vote_is_patience(self) -> None:
        """Who has just voted gives the candidate time before it asks for itself."""
        bench = voter()
        bench.run(300)
        bench.request(vote_request("n1", 4, end_index=5, end_term=2))
        effects = bench.run(1_000)
        self.assertEqual(sent(effects, VoteRequest) + sent(effects, MetadataRequest), [])


class PreVoteTests(SynchronousTestCase):
    """A pre-vote binds nobody: no term is adopted, nothing is stored."""

    def ask(self, bench: Bench, candidate: str = "n1", term: int = 4, end_index: int = 5) -> VoteResult:
        """Ask, and check that nothing but an answer came of it."""
        request = vote_request(candidate, term, end_index=end_index, end_term=2, pre_vote=True)
        before = attrs.evolve(bench.core.status(), peers=())
        effects = bench.request(request)
        self.assertEqual(kinds(effects), ["Reply SUCCESS"])
        self.assertEqual(attrs.evolve(bench.core.status(), peers=()), before)
        (reply,) = of_type(effects, fx.Reply)
        assert isinstance(reply.response, VoteResponse)
        self.assertTrue(reply.response.pre_vote)
        self.assertEqual(reply.response.term, before.term)
        return reply.response.vote_result

    def heard(self, **options: object) -> Bench:
        """A voter that has heard of n1 and n2, so that hearing of them is no news."""
        bench = voter(**options)
        for peer_id in ("n1", "n2"):
            bench.core.member.peers.heard(peer_id, 1, bench.core.member.out.now_ms)
        return bench

    def test_granted_without_a_leader(self) -> None:
        """Nobody leads, and the log is not behind."""
        self.assertIs(self.ask(self.heard()), VoteResult.ACCEPT)

    def test_even_after_voting_in_the_term(self) -> None:
        """The question is about the next term."""
        self.assertIs(self.ask(self.heard(voted_for="n2")), VoteResult.ACCEPT)

    def test_refused_to_strangers(self) -> None:
        """Who is not a member is not voted for."""
        self.assertIs(self.ask(self.heard(), "n9"), VoteResult.REJECT_UNKNOWN_LEADER)

    def test_refused_for_a_term_that_is_not_new(self) -> None:
        """The asker learns the term from the answer."""
        self.assertIs(self.ask(self.heard(), term=3), VoteResult.REJECT_EXPIRED_VOTE_TERM)

    def test_refused_to_a_log_that_is_behind(self) -> None:
        """As for a vote."""
        self.assertIs(self.ask(self.heard(), end_index=4), VoteResult.REJECT_SMALL_LEDGER_END_INDEX)

    def test_refused_while_the_leader_is_heard(self) -> None:
        """A member that came back does not depose a healthy leader."""
        bench = self.heard().follow("n2", 3)
        bench.now_ms += 999
        self.assertIs(self.ask(bench), VoteResult.REJECT_ALREADY_HAS_LEADER)

    def test_granted_when_the_leader_is_silent(self) -> None:
        """The leader's patience, without this member's own jitter, is enough."""
        bench = self.heard().follow("n2", 3)
        bench.now_ms += 1_000
        self.assertIs(self.ask(bench), VoteResult.ACCEPT)

    def test_granted_when_the_leader_was_deposed(self) -> None:
        """A leader of an earlier term protects nobody, however lately it was heard."""
        bench = self.heard().follow("n2", 3)
        bench.request(vote_request("n2", 4))
        self.assertIs(self.ask(bench, term=5), VoteResult.ACCEPT)

    def test_refused_by_the_leader(self) -> None:
        """A leader knows that there is one, however long it was paused."""
        bench = self.heard(ledger=ListLedger()).lead()
        bench.now_ms += 60_000
        self.assertIs(
            self.ask(bench, term=bench.term + 1), VoteResult.REJECT_ALREADY_HAS_LEADER
        )


@attrs.frozen(kw_only=True)
class BeatRow:
    """One row of the table of heartbeats."""

    name: str
    request: HeartBeatRequest
    code: ResponseCode
    term: int = 3
    follows: str | None = None
    leader_after: str | None = None
    persists: tuple[int, str | None] | None = None


#: Java's table; of a higher term it says TERM_NOT_READY and follows at the second beat.
BEATS = (
    BeatRow(name="not a member", request=heart_beat("n9", 9), code=ResponseCode.UNKNOWN_MEMBER),
    BeatRow(name="itself", request=heart_beat("n0", 9), code=ResponseCode.UNEXPECTED_MEMBER),
    BeatRow(name="older term", request=heart_beat("n1", 2), code=ResponseCode.EXPIRED_TERM),
    BeatRow(name="known leader", request=heart_beat("n1", 3), follows="n1", leader_after="n1",
            code=ResponseCode.SUCCESS),
    BeatRow(name="no leader known", request=heart_beat("n1", 3), leader_after="n1",
            code=ResponseCode.SUCCESS, persists=(3, "n1")),
    BeatRow(name="another leader", request=heart_beat("n1", 3), follows="n2", leader_after="n2",
            code=ResponseCode.INCONSISTENT_LEADER),
    BeatRow(name="higher term", request=heart_beat("n1", 4), leader_after="n1", term=4,
            code=ResponseCode.SUCCESS, persists=(4, "n1")),
    BeatRow(name="higher term, another leader", request=heart_beat("n1", 4), follows="n2",
            leader_after="n1", term=4, code=ResponseCode.SUCCESS, persists=(4, "n1")),
)


class HeartBeatTests(SynchronousTestCase):
    """Whom a member follows."""

    def test_terms_are_durable_before_answers_to_heartbeats(self) -> None:
        """Every row: the durable write is before the answer."""
        for row in BEATS:
            bench = voter()
            if row.follows is not None:
                bench.follow(row.follows, 3)
            reply = fx.Reply(token=77, response=HeartBeatResponse(
                code=row.code, group="g", term=row.term, wire_version=WIRE_VERSION
            ))
            expected: tuple[fx.Effect, ...] = (reply,)
            if row.persists is not None:
                term, voted_for = row.persists
                expected = (fx.PersistTermVote(term=term, voted_for=voted_for), reply)
            effects = bench.step(ev.RequestReceived(token=77, request=row.request))
            self.assertEqual(quiet(effects), expected, row.name)
            self.assertEqual(bench.core.leader_id, row.leader_after, row.name)

    def test_a_leader_follows_nobody_of_its_term(self) -> None:
        """Two leaders in a term are a fault to be reported, not to be obeyed."""
        bench = Bench.make().lead()
        effects = bench.request(heart_beat("n1", bench.term))
        self.assertEqual(kinds(effects), ["Reply INCONSISTENT_LEADER"])
        self.assertIn("two-leaders", events(effects))
        self.assertEqual(bench.role, "leader")

    def test_a_leader_gives_way_to_a_higher_term(self) -> None:
        """A beat of a higher term ends its leadership, durably, before it is answered."""
        bench = Bench.make().lead()
        effects = bench.request(heart_beat("n1", bench.term + 1))
        self.assertEqual(kinds(effects), ["PersistTermVote", "Reply SUCCESS"])
        self.assertEqual((bench.role, bench.core.leader_id), ("follower", "n1"))

    def test_a_candidate_follows_a_leader_of_its_term(self) -> None:
        """It lost: its own vote stays."""
        bench = voter()
        for peer_id in ("n1", "n2"):
            bench.core.member.peers.heard(peer_id, 1, bench.core.member.out.now_ms)
        (_, request_id, _), _ = sent(bench.run_until(VoteRequest), VoteRequest)
        bench.step(ev.ResponseReceived(
            peer_id="n1", request_id=request_id, response=granted(3, pre_vote=True)
        ))
        self.assertEqual(bench.role, "candidate")
        self.assertEqual(kinds(bench.request(heart_beat("n2", 4))), ["Reply SUCCESS"])
        status = bench.core.status()
        self.assertEqual((status.role, status.leader_id, status.voted_for), ("follower", "n2", "n0"))


class PatienceTests(SynchronousTestCase):
    """When a follower gives its leader up."""

    def silence(self, bench: Bench) -> int:
        """Milliseconds from now until it asks around."""
        began_ms = bench.now_ms
        while not (sent(bench.tick(), VoteRequest) or bench.now_ms > began_ms + 120_000):
            pass
        return bench.now_ms - began_ms

    def test_of_a_leader_that_says_how_often_it_beats(self) -> None:
        """Its interval times the allowed leak, and up to half as much again, differently each time."""
        seen = set()
        for seed in range(20):
            bench = voter(seed=seed).follow("n1", 3, interval_ms=100)
            bench.core.member.peers.heard("n2", 1, bench.core.member.out.now_ms)
            silent_ms = self.silence(bench)
            self.assertTrue(500 <= silent_ms <= 770, silent_ms)
            seen.add(silent_ms)
        self.assertGreater(len(seen), 5)

    def test_of_a_java_leader(self) -> None:
        """A leader that says nothing gets Java's six seconds."""
        bench = voter().follow("n1", 3, interval_ms=0)
        bench.core.member.peers.heard("n2", 1, bench.core.member.out.now_ms)
        silent_ms = self.silence(bench)
        self.assertTrue(6_000 <= silent_ms <= 9_020, silent_ms)

    def test_a_push_is_as_good_as_a_beat(self) -> None:
        """Any accepted push starts the patience anew, and does not change it."""
        bench = voter().follow("n1", 3, interval_ms=200)
        bench.core.member.peers.heard("n2", 1, bench.core.member.out.now_ms)
        for _ in range(40):
            bench.tick(100)
            self.assertEqual(bench.core.leader_id, "n1")
            bench.request(push(PushType.COMMIT, term=3))
        self.assertTrue(1_000 <= self.silence(bench) <= 1_520)

    def follower_of_pushes(self, wire_version: int) -> Bench:
        """A member that was started again: its leader pushes, and has not sent it a heartbeat yet."""
        bench = voter()
        bench.core.member.peers.heard("n2", 1, bench.core.member.out.now_ms)
        bench.request(attrs.evolve(push(PushType.COMMIT, term=3), wire_version=wire_version))
        self.assertEqual(bench.core.leader_id, "n1")
        return bench

    def test_leader_that_only_pushed_yet(self) -> None:
        """Its own patience before the first heartbeat, which need not come; Java's with a Java leader."""
        silent_ms = self.silence(self.follower_of_pushes(1))
        self.assertTrue(1_000 <= silent_ms <= 1_520, silent_ms)
        silent_ms = self.silence(self.follower_of_pushes(0))
        self.assertTrue(6_000 <= silent_ms <= 9_020, silent_ms)

    def test_leader_that_only_pushed_and_died(self) -> None:
        """It has a beat and a half to come back, and another member gets the vote at once."""
        bench = self.follower_of_pushes(1)
        bench.step(ev.PeerDisconnected(peer_id="n1"))
        answer = bench.ask(vote_request("n2", 4, end_index=5, end_term=2, pre_vote=True))
        assert isinstance(answer, VoteResponse)
        self.assertIs(answer.vote_result, VoteResult.ACCEPT)
        silent_ms = self.silence(bench)
        self.assertTrue(300 <= silent_ms <= 620, silent_ms)

    def test_absurd_intervals_are_not_believed(self) -> None:
        """Neither for ever nor at once: a foreign number stays within bounds."""
        for interval_ms, at_least, at_most in (
            (1 << 60, 5 * HEART_BEAT_INTERVAL_MAX_MS, 8 * HEART_BEAT_INTERVAL_MAX_MS),
            (1, 5 * HEART_BEAT_INTERVAL_MIN_MS, 8 * HEART_BEAT_INTERVAL_MIN_MS),
            (-(1 << 60), 6_000, 9_000),
        ):
            bench = voter().follow("n1", 3, interval_ms=interval_ms)
            elector = bench.core.elector
            self.assertTrue(at_least <= elector.deadline_ms - bench.now_ms <= at_most)

    def test_a_stopped_process_reads_its_mail_first(self) -> None:
        """A member that was asleep does not blame its leader for that."""
        bench = voter().follow("n1", 3)
        bench.run(100)
        effects = bench.tick(30_000)
        self.assertEqual(sent(effects, VoteRequest) + sent(effects, MetadataRequest), [])
        self.assertEqual(bench.core.leader_id, "n1")
        bench.request(heart_beat("n1", 3))
        bench.run(900)
        self.assertEqual(bench.core.leader_id, "n1")

    def test_lost_connection_of_the_leader(self) -> None:
        """A beat and a half to come back; then the others are asked, who grant it if they lost it too."""
        bench = voter().follow("n1", 3, interval_ms=1_000)
        bench.core.member.peers.heard("n2", 1, bench.core.member.out.now_ms)
        bench.step(ev.PeerDisconnected(peer_id="n1"))
        answer = bench.ask(vote_request("n2", 4, end_index=5, end_term=2, pre_vote=True))
        assert isinstance(answer, VoteResponse)
        self.assertIs(answer.vote_result, VoteResult.ACCEPT)
        silent_ms = self.silence(bench)
        self.assertTrue(1_500 <= silent_ms <= 1_820, silent_ms)
        self.assertEqual(bench.term, 3)

    def test_only_the_leader_is_heard(self) -> None:
        """Beats and pushes that are refused renew nothing."""
        bench = voter().follow("n1", 3)
        leaders = []
        for _ in range(8):
            for refused in (heart_beat("n2", 3), heart_beat("n1", 2), push(PushType.COMMIT, term=2)):
                bench.request(refused)
            bench.tick(200)
            leaders.append(bench.core.leader_id)
        self.assertIn(None, leaders)

    def test_after_a_leader_was_lost(self) -> None:
        """Nobody's patience but its own: half of it, and a random wait."""
        bench = voter().follow("n1", 3, interval_ms=0)
        bench.core.member.peers.heard("n2", 1, bench.core.member.out.now_ms)
        bench.request(vote_request("n2", 4))
        silent_ms = self.silence(bench)
        self.assertTrue(600 <= silent_ms <= 920, silent_ms)

    def test_leader_that_comes_back_on_another_connection(self) -> None:
        """One beat, and all is as before."""
        bench = voter().follow("n1", 3, interval_ms=100)
        bench.core.member.peers.heard("n2", 1, bench.core.member.out.now_ms)
        bench.step(ev.PeerDisconnected(peer_id="n1"))
        bench.run(200)
        bench.request(heart_beat("n1", 3, 100))
        self.assertTrue(self.is_patient(bench))

    def is_patient(self, bench: Bench) -> bool:
        """Whether it is patient for the usual time from now."""
        return 500 <= bench.core.elector.deadline_ms - bench.now_ms <= 750

    def test_connections_that_mean_nothing(self) -> None:
        """Another follower's, a Java leader's, or where nobody is asked before the term rises."""
        for options, interval_ms, peer_id in (
            ({}, 100, "n2"), ({}, 0, "n1"), ({"pre_vote": False}, 100, "n1"),
        ):
            bench = voter(**options).follow("n1", 3, interval_ms=interval_ms)
            before_ms = bench.core.elector.deadline_ms
            bench.step(ev.PeerDisconnected(peer_id=peer_id))
            self.assertEqual(bench.core.elector.deadline_ms, before_ms)
            answer = bench.ask(vote_request("n2", 4, end_index=5, end_term=2, pre_vote=True))
            assert isinstance(answer, VoteResponse)
            self.assertIs(answer.vote_result, VoteResult.REJECT_ALREADY_HAS_LEADER)

    def test_never_more_patient_for_it(self) -> None:
        """A deadline that was near stays near."""
        bench = voter().follow("n1", 3, interval_ms=100)
        deadline_ms = bench.core.elector.deadline_ms
        bench.now_ms = deadline_ms - 10
        bench.step(ev.PeerDisconnected(peer_id="n1"))
        self.assertEqual(bench.core.elector.deadline_ms, deadline_ms)

    def test_short_pauses_are_not_sleep(self) -> None:
        """A tick that is a little late excuses nothing."""
        bench = voter().follow("n1", 3)
        asked = [bench.tick(200) for _ in range(9)]
        self.assertTrue(any(sent(effects, MetadataRequest) for effects in asked))

    def test_member_that_must_not_lead_only_forgets(self) -> None:
        """C{never_lead}, or repairing: no campaign, but no claim to know the leader either."""
        for options in ({"never_lead": True}, {"repair_end_index": 9}, {"repair_end_index": 0}):
            bench = voter(**options).follow("n1", 3)
            effects = bench.run(10_000)
            self.assertEqual(of_type(effects, fx.SendRequest), [], options)
            self.assertEqual((bench.role, bench.core.leader_id, bench.term), ("follower", None, 3))


@attrs.define
class Roles:
    """Carries no role change out."""

    member: object

    def become_leader(self) -> None:
        """Not called."""

    def become_follower(self, leader_id: str | None) -> None:
        """Not called."""

    def become_candidate(self) -> None:
        """Not called."""

    def take_leadership_ended(self, code: ResponseCode) -> None:
        """Not called."""


class SafetyTests(SynchronousTestCase):
    """What an elector refuses to do."""

    def test_no_transfer_to_a_member_that_must_not_lead(self) -> None:
        """Neither repairing nor C{never_lead}: the caller checks."""
        for options in ({"repair_end_index": 4}, {"repair_end_index": 0}, {"never_lead": True}):
            member = make_member(**options)
            elector = LeaderElector(member, seeded(1), Roles(member))
            self.assertRaises(AssertionError, elector.campaign_for_transfer)

    def test_term_gate_stands_first(self) -> None:
        """A message of a higher term never gets as far as the elector."""
        member = make_member(term=3)
        elector = LeaderElector(member, seeded(1), Roles(member))
        self.assertRaises(AssertionError, elector.accept_leader, "n1", 4)
