# -*- test-case-name: tests.core.test_reads -*-
"""Heartbeats in rounds, and reads that wait for one."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.reads import BEATS_MAX
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import HeartBeatRequest, HeartBeatResponse, VoteResponse
from tests.core.helpers import (
    Bench,
    ListLedger,
    events,
    heart_beat,
    kinds,
    of_type,
    propose,
    pushes,
    quiet,
    sent,
)


def leader(**options: Any) -> Bench:
    """A leader that has committed an entry of its term, whose first round is confirmed."""
    bench = Bench.make(**options).lead()
    for peer_id in ("n1", "n2"):
        bench.match(peer_id)
        bench.confirm(peer_id)
    propose(bench, 1)
    bench.match("n1")
    assert bench.core.committed_index == 0
    return bench


def read(bench: Bench, *tokens: int) -> tuple[fx.Effect, ...]:
    """Ask for reads."""
    return bench.step(ev.ReadRequested(tokens))


def beats(effects: tuple[fx.Effect, ...]) -> list[str]:
    """Whom heartbeats were sent to."""
    return [peer_id for peer_id, _, _ in sent(effects, HeartBeatRequest)]


class ReadTests(SynchronousTestCase):
    """A read is answered when a quorum has answered a beat that was sent after it came."""

    def test_starts_a_round(self) -> None:
        """With no round under way, it does not wait for the interval."""
        self.assertEqual(beats(read(leader(), 91)), ["n1", "n2"])

    def test_answered_by_a_quorum(self) -> None:
        """One follower's answer is enough with the leader itself; the commit index of its coming counts."""
        bench = leader()
        read(bench, 91)
        self.assertEqual(quiet(bench.confirm("n2")), (
            fx.AnswerRead(token=91, code=ResponseCode.SUCCESS, read_index=0, leader_id="n0"),
        ))
        self.assertEqual(quiet(bench.confirm("n1")), ())

    def test_shares_a_round(self) -> None:
        """Many reads, one beat to each."""
        bench = leader()
        read(bench, 91, 92, 93)
        self.assertEqual(
            [one.token for one in of_type(bench.confirm("n1"), fx.AnswerRead)], [91, 92, 93]
        )

    def test_a_beat_that_was_sent_before_proves_nothing(self) -> None:
        """A read that comes while a round is under way waits for the next, which starts at once."""
        bench = leader()
        read(bench, 91)
        self.assertEqual(beats(read(bench, 92)), [])
        effects = bench.confirm("n1")
        self.assertEqual([one.token for one in of_type(effects, fx.AnswerRead)], [91])
        self.assertEqual(beats(effects), ["n1", "n2"])
        self.assertEqual([one.token for one in of_type(bench.confirm("n1"), fx.AnswerRead)], [92])

    def test_late_answers_of_earlier_rounds(self) -> None:
        """They do not confirm a later one."""
        bench = leader()
        read(bench, 91)
        early = sent(bench.seen, HeartBeatRequest)[-2:]
        bench.now_ms += 100
        read(bench, 92)
        bench.tick(200)
        success = HeartBeatResponse(term=bench.term)
        peer_id, request_id, _ = early[0]
        effects = bench.step(ev.ResponseReceived(
            peer_id=peer_id, request_id=request_id, response=success
        ))
        self.assertEqual([one.token for one in of_type(effects, fx.AnswerRead)], [91])

    def test_a_later_round_confirms_the_earlier(self) -> None:
        """A beat that was lost does not hold reads up for longer than an interval."""
        bench = leader()
        read(bench, 91)
        effects = bench.tick(200)
        self.assertEqual(beats(effects), ["n1", "n2"])
        self.assertEqual([one.token for one in of_type(bench.confirm("n1"), fx.AnswerRead)], [91])

    def test_a_peer_that_hangs(self) -> None:
        """It gets a bounded number of beats; when it answers one, it gets the last round, which counts."""
        bench = leader()
        for token in range(100, 140):
            read(bench, token)
            self.assertEqual(len(of_type(bench.confirm("n1"), fx.AnswerRead)), 1)
        silent = [one for one in sent(bench.seen, HeartBeatRequest) if one[0] == "n2"][-BEATS_MAX:]
        self.assertEqual(beats(read(bench, 150)), ["n1"])
        success = HeartBeatResponse(term=bench.term)
        effects = bench.step(ev.ResponseReceived(peer_id="n2", request_id=silent[0][1], response=success))
        self.assertEqual((beats(effects), of_type(effects, fx.AnswerRead)), (["n2"], []))
        self.assertEqual([one.token for one in of_type(bench.confirm("n2"), fx.AnswerRead)], [150])

    def test_beats_that_failed(self) -> None:
        """They make room for others."""
        bench = leader()
        for token in range(100, 120):
            read(bench, token)
            bench.confirm("n1")
        silent = [one for one in sent(bench.seen, HeartBeatRequest) if one[0] == "n2"][-BEATS_MAX:]
        for _, request_id, _ in silent:
            bench.step(ev.RequestFailed(peer_id="n2", request_id=request_id, reason="time-out"))
        self.assertEqual(beats(read(bench, 150)), ["n1", "n2"])

    def test_a_group_of_one_answers_reads_at_once(self) -> None:
        """A group of one is its own quorum."""
        bench = Bench.make(members=1).lead()
        propose(bench, 1)
        self.assertEqual(quiet(read(bench, 91, 92)), tuple(
            fx.AnswerRead(token=token, code=ResponseCode.SUCCESS, read_index=0, leader_id="n0")
            for token in (91, 92)
        ))

    def test_not_the_leader(self) -> None:
        """404, with the leader's name."""
        self.assertEqual(quiet(read(Bench.make().follow("n2", 1), 91)), (
            fx.AnswerRead(token=91, code=ResponseCode.NOT_LEADER, leader_id="n2"),
        ))

    def test_a_deposed_leader_answers_no_read(self) -> None:
        """A read of a leader that is not one any more is not answered from it."""
        bench = leader()
        read(bench, 91)
        effects = bench.request(heart_beat("n1", 9))
        self.assertEqual(kinds(effects), ["AnswerRead", "PersistTermVote", "Reply SUCCESS"])
        self.assertEqual(of_type(effects, fx.AnswerRead)[0].code, ResponseCode.NOT_LEADER)
        self.assertEqual(of_type(bench.confirm("n2"), fx.AnswerRead), [])

    def test_an_unproved_read_ends_at_its_deadline(self) -> None:
        """A leader that cannot prove itself says so in time, once."""
        bench = leader(max_wait_ack_time_ms=300)
        read(bench, 91)
        self.assertEqual(of_type(bench.tick(299), fx.AnswerRead), [])
        self.assertEqual([(one.token, one.code) for one in of_type(bench.tick(1), fx.AnswerRead)],
                         [(91, ResponseCode.NOT_LEADER)])
        self.assertEqual(of_type(bench.confirm("n1"), fx.AnswerRead), [])

    def test_the_number_of_reads_is_bounded(self) -> None:
        """A bounded number waits; more are refused at once."""
        bench = leader(max_pending_reads=2)
        self.assertEqual(
            [(one.token, one.code) for one in of_type(read(bench, 91, 92, 93), fx.AnswerRead)],
            [(93, ResponseCode.LEADER_PENDING_FULL)],
        )


class NotReadyTests(SynchronousTestCase):
    """A new leader may not know all that was acknowledged before it."""

    def young(self, **options: Any) -> Bench:
        """A leader with entries of an earlier term, of which it does not know that they are committed."""
        return Bench.make(ListLedger.of(1, 1), **options).lead()

    def test_reads_wait_for_an_entry_of_the_term(self) -> None:
        """A confirmed round alone is not enough."""
        bench = self.young()
        read(bench, 91)
        self.assertEqual(of_type(bench.confirm("n1"), fx.AnswerRead), [])
        effects = bench.match("n1")
        self.assertEqual(bench.core.committed_index, 2)
        self.assertEqual(of_type(effects, fx.AnswerRead), [])
        self.assertEqual(beats(effects), ["n1", "n2"])
        (answer,) = of_type(bench.confirm("n1"), fx.AnswerRead)
        self.assertEqual((answer.token, answer.code, answer.read_index), (91, ResponseCode.SUCCESS, 2))

    def test_ready_for_good(self) -> None:
        """Once it is, a read on an idle leader waits for nothing but its round."""
        bench = self.young()
        bench.match("n1")
        bench.confirm("n1")
        read(bench, 91)
        self.assertEqual([one.token for one in of_type(bench.confirm("n1"), fx.AnswerRead)], [91])

    def test_a_leader_that_is_not_ready_says_so(self) -> None:
        """505: it leads, but not for reads yet."""
        bench = self.young(max_wait_ack_time_ms=300)
        read(bench, 91)
        self.assertEqual([(one.token, one.code) for one in of_type(bench.tick(300), fx.AnswerRead)],
                         [(91, ResponseCode.LEADER_NOT_READY)])

    def test_reads_before_readiness_are_bounded(self) -> None:
        """They count too."""
        bench = self.young(max_pending_reads=2)
        self.assertEqual([one.token for one in of_type(read(bench, 91, 92, 93), fx.AnswerRead)], [93])

    def test_reads_end_when_leadership_ends(self) -> None:
        """They are notified."""
        bench = self.young()
        read(bench, 91)
        self.assertEqual([one.token for one in of_type(bench.request(heart_beat("n1", 9)), fx.AnswerRead)],
                         [91])

    def test_a_read_is_answered_once(self) -> None:
        """A read that was notified of the end of a leadership is not notified of the next one's."""
        bench = self.young()
        read(bench, 91)
        bench.request(heart_beat("n1", 3))
        bench.lead()
        bench.match("n1")
        bench.run(4_000)
        self.assertEqual([one.token for one in of_type(bench.seen, fx.AnswerRead)], [91])
        self.assertEqual(bench.core.reads._read_index, {})

    def test_ready_at_once_if_all_is_committed(self) -> None:
        """Nothing can have been acknowledged beyond the committed index that it knows."""
        bench = Bench.make(ListLedger.of(1, 1), committed_index=1).lead()
        read(bench, 91)
        bench.confirm("n1")
        (answer,) = of_type(bench.seen, fx.AnswerRead) or of_type(bench.confirm("n1"), fx.AnswerRead)
        self.assertEqual(answer.read_index, 1)


class BeatTests(SynchronousTestCase):
    """The rounds themselves."""

    def test_a_round_begins_at_each_interval(self) -> None:
        """A round each interval, as advertised."""
        bench = leader(heart_beat_time_interval_ms=200)
        bench.tick(200)
        self.assertEqual(beats(bench.tick(199)), [])
        effects = bench.tick(1)
        self.assertEqual(beats(effects), ["n1", "n2"])
        self.assertEqual(sent(effects, HeartBeatRequest)[0][2], HeartBeatRequest(
            group="g", remote_id="n1", local_id="n0", leader_id="n0", term=2, wire_version=1,
            heart_beat_interval_ms=200,
        ))

    def test_java_takes_two_beats(self) -> None:
        """TERM_NOT_READY is asked again at the next tick, not at the next interval."""
        bench = leader()
        bench.tick(200)
        peer_id, request_id, _ = sent(bench.seen, HeartBeatRequest)[-1]
        bench.step(ev.ResponseReceived(
            peer_id=peer_id, request_id=request_id,
            response=HeartBeatResponse(code=ResponseCode.TERM_NOT_READY),
        ))
        self.assertEqual(beats(bench.tick()), ["n2"])
        self.assertEqual(beats(bench.tick()), [])

    def test_no_quorum_steps_down(self) -> None:
        """After its followers' patience nobody may think that it leads, itself included."""
        bench = leader(heart_beat_time_interval_ms=200, max_heart_beat_leak=5)
        bench.run(980)
        self.assertEqual(bench.role, "leader")
        effects = bench.run(60)
        self.assertIn("stepping-down", events(effects))
        self.assertEqual((bench.role, bench.core.leader_id, bench.term), ("follower", None, 2))

    def test_a_leader_that_stood_still_hears_its_followers_out(self) -> None:
        """Their answers are unread: it has one interval for them, and a second pause is no excuse."""
        bench = leader(heart_beat_time_interval_ms=200, max_heart_beat_leak=5)
        bench.tick(3_000)
        self.assertEqual(bench.role, "leader")
        bench.run(180)
        bench.confirm("n2")
        bench.run(700)
        self.assertEqual(bench.role, "leader")
        for pauses in (1, 2):
            bench = leader(heart_beat_time_interval_ms=200, max_heart_beat_leak=5)
            for _ in range(pauses):
                bench.tick(3_000)
            if pauses == 1:
                bench.run(180)
                self.assertEqual(bench.role, "leader")
                bench.run(40)
            self.assertEqual(bench.role, "follower", pauses)

    def test_one_follower_of_two_is_a_quorum(self) -> None:
        """It stays as long as one answers."""
        bench = leader()
        for _ in range(40):
            bench.run(200)
            bench.confirm("n2")
        self.assertEqual(bench.role, "leader")

    def test_old_answers_are_no_proof_of_life(self) -> None:
        """Confirmation counts from when the beat was sent, not from when its answer came."""
        bench = leader(heart_beat_time_interval_ms=200, max_heart_beat_leak=5)
        bench.tick(200)
        peer_id, request_id, _ = sent(bench.seen, HeartBeatRequest)[-1]
        bench.run(900)
        bench.step(ev.ResponseReceived(
            peer_id=peer_id, request_id=request_id, response=HeartBeatResponse(term=2)
        ))
        bench.run(160)
        self.assertEqual(bench.role, "follower")

    def test_another_leader_in_the_term(self) -> None:
        """A follower that knows another one: step down, the next term decides."""
        bench = leader()
        bench.tick(200)
        peer_id, request_id, _ = sent(bench.seen, HeartBeatRequest)[-1]
        effects = bench.step(ev.ResponseReceived(
            peer_id=peer_id, request_id=request_id,
            response=HeartBeatResponse(code=ResponseCode.INCONSISTENT_LEADER, term=2),
        ))
        self.assertIn("stepping-down", events(effects))
        self.assertEqual(bench.role, "follower")

    def test_other_refusals_end_nothing(self) -> None:
        """A peer that does not know this member is its operator's business."""
        for code in ResponseCode:
            if code is ResponseCode.INCONSISTENT_LEADER:
                continue
            bench = leader()
            bench.tick(200)
            peer_id, request_id, _ = sent(bench.seen, HeartBeatRequest)[-1]
            bench.step(ev.ResponseReceived(
                peer_id=peer_id, request_id=request_id, response=HeartBeatResponse(code=code, term=2)
            ))
            self.assertEqual(bench.role, "leader", code)

    def test_only_success_confirms(self) -> None:
        """A refusal proves nothing."""
        bench = leader()
        read(bench, 91)
        peer_id, request_id, _ = sent(bench.seen, HeartBeatRequest)[-1]
        effects = bench.step(ev.ResponseReceived(
            peer_id=peer_id, request_id=request_id,
            response=HeartBeatResponse(code=ResponseCode.UNKNOWN_MEMBER, term=2),
        ))
        self.assertEqual(of_type(effects, fx.AnswerRead), [])

    def test_answers_of_another_kind(self) -> None:
        """What is not an answer to a beat confirms nothing."""
        bench = leader()
        read(bench, 91)
        peer_id, request_id, _ = sent(bench.seen, HeartBeatRequest)[-1]
        effects = bench.step(ev.ResponseReceived(
            peer_id=peer_id, request_id=request_id, response=VoteResponse(term=2)
        ))
        self.assertEqual(of_type(effects, fx.AnswerRead), [])

    def test_answers_out_of_order(self) -> None:
        """The late answer to an earlier beat does not unsay the later one."""
        bench = Bench.make(members=5).lead()
        for _ in range(2):
            read(bench, bench.now_ms)
            bench.tick(200)
        first, last = [found for found in sent(bench.seen, HeartBeatRequest) if found[0] == "n1"][-2:]
        for peer_id, request_id, _ in (last, first):
            bench.step(ev.ResponseReceived(
                peer_id=peer_id, request_id=request_id, response=HeartBeatResponse(term=2)
            ))
        self.assertEqual(len(of_type(bench.confirm("n2"), fx.AnswerRead)), 2)

    def test_follower_that_answers_is_reachable(self) -> None:
        """Its beat ends the wait that its absence began."""
        bench = leader()
        bench.match("n2")
        _, effects = propose(bench, 1)
        for _ in range(4):
            (one,) = pushes(effects, peer_id="n2")
            bench.fail(one)
            effects = ()
            while not pushes(effects, peer_id="n2"):
                effects = bench.tick(100)
                bench.confirm("n1")
        (one,) = pushes(effects, peer_id="n2")
        bench.fail(one)
        self.assertEqual(pushes(bench.tick(200), peer_id="n2"), [])
        self.assertEqual(kinds(pushes(bench.confirm("n2"), peer_id="n2")), ["n2<-COMPARE"])

    def test_higher_term_in_an_answer(self) -> None:
        """The leader's time is over, durably."""
        bench = leader()
        bench.tick(200)
        peer_id, request_id, _ = sent(bench.seen, HeartBeatRequest)[-1]
        effects = bench.step(ev.ResponseReceived(
            peer_id=peer_id, request_id=request_id,
            response=HeartBeatResponse(code=ResponseCode.EXPIRED_TERM, term=7),
        ))
        self.assertEqual(quiet(effects), (fx.PersistTermVote(term=7, voted_for=None),))
        self.assertEqual((bench.role, bench.term), ("follower", 7))

    def test_answers_after_the_end_of_leadership(self) -> None:
        """Beats of an earlier leadership confirm nothing in a later one."""
        bench = leader()
        bench.tick(200)
        old = sent(bench.seen, HeartBeatRequest)[-1]
        bench.request(heart_beat("n1", 3))
        bench.lead()
        read(bench, 91)
        effects = bench.step(ev.ResponseReceived(
            peer_id=old[0], request_id=old[1], response=HeartBeatResponse(term=2)
        ))
        self.assertEqual(of_type(effects, fx.AnswerRead), [])

    def test_nothing_piles_up(self) -> None:
        """Rounds that nobody answered are forgotten when one is confirmed."""
        bench = leader()
        for _ in range(50):
            seen = len(bench.seen)
            bench.run(600)
            for peer_id, request_id, _ in sent(tuple(bench.seen[seen:]), HeartBeatRequest)[:-2]:
                bench.step(ev.RequestFailed(peer_id=peer_id, request_id=request_id, reason="time-out"))
            bench.confirm("n1")
            bench.confirm("n2")
        beats_now = bench.core.leading.beats
        assert beats_now is not None
        self.assertLessEqual(len(beats_now._sent_ms), 4)
        self.assertLess(len(beats_now._outstanding), 100)
