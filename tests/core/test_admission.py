# -*- test-case-name: tests.core.test_admission -*-
"""Numbers that no sound member sends are refused before anything acts on them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.values.errors import DirectoryError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.bounds import TERM_JUMP_MAX, TERM_MAX
from protocols.wire.ledger.codes import PushType, VoteResult
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    Request,
    VoteRequest,
    VoteResponse,
)
from tests.core.helpers import Bench, ListLedger, batch, events, heart_beat, of_type, push, sent, vote_request


class TermJumpTests(SynchronousTestCase):
    """Rule 1."""

    def test_requests_of_a_far_term_are_refused(self) -> None:
        """Refused with the own term, in votes, pre-votes, heartbeats and pushes; nothing is persisted."""
        far = 3 + TERM_JUMP_MAX + 1
        requests: tuple[Request, ...] = (
            vote_request("n1", far), vote_request("n1", far, pre_vote=True), heart_beat("n1", far),
            push(PushType.COMMIT, term=far),
        )
        for request in requests:
            bench = Bench.make(term=3)
            effects = bench.request(request)
            (reply,) = of_type(effects, fx.Reply)
            self.assertEqual(
                (reply.response.code, reply.response.term), (ResponseCode.UNEXPECTED_ARGUMENT, 3)
            )
            self.assertEqual(of_type(effects, fx.PersistTermVote), [])
            self.assertEqual((bench.term, bench.core.leader_id), (3, None))
            self.assertIn("message-refused", events(effects))
            if isinstance(reply.response, VoteResponse):
                self.assertIs(reply.response.vote_result, VoteResult.UNKNOWN)

    def test_the_bound_itself(self) -> None:
        """A jump of the allowed size is a term like any other."""
        bench = Bench.make(term=3)
        bench.request(heart_beat("n1", 3 + TERM_JUMP_MAX))
        self.assertEqual((bench.term, bench.core.leader_id), (3 + TERM_JUMP_MAX, "n1"))

    def test_answers_of_a_far_term_do_not_count(self) -> None:
        """An answer of that term does not count: a leader keeps its place."""
        bench = Bench.make().lead()
        term = bench.term
        (beat, *_) = [one for one in of_type(bench.run(300), fx.SendRequest)
                      if type(one.request).__name__ == "HeartBeatRequest"]
        effects = bench.answer(beat, HeartBeatResponse(
            code=ResponseCode.EXPIRED_TERM, term=term + TERM_JUMP_MAX + 1, wire_version=1
        ))
        self.assertEqual((bench.term, bench.role), (term, "leader"))
        self.assertIn("message-refused", events(effects))


class LeapTests(SynchronousTestCase):
    """Rule 4."""

    FAR = 3 * TERM_JUMP_MAX + 7

    def beaten(self, bench: Bench, ms: int, *, every_ms: int = 200, far: int = FAR) -> list[str]:
        """Heartbeats of n1 in a term out of reach, for C{ms}. @return: the events."""
        seen: list[str] = []
        for _ in range(ms // every_ms):
            seen += events(bench.run(every_ms))
            seen += events(bench.request(heart_beat("n1", far)))
        return seen

    def test_a_member_that_was_away(self) -> None:
        """It comes nearer in steps, then follows; it asks for no vote meanwhile in a term of its own."""
        bench = Bench.make(term=3)
        self.assertNotIn("term-leap", self.beaten(bench, 1_800))
        self.assertEqual(bench.term, 3)
        self.assertEqual(self.beaten(bench, 10_000).count("term-leap"), 3)
        self.assertEqual((bench.term, bench.core.leader_id), (self.FAR, "n1"))

    def test_step_by_step(self) -> None:
        """Each step takes as long as the first one."""
        bench = Bench.make(term=3)
        at = [step for step in range(100) if "term-leap" in self.beaten(bench, 200)]
        self.assertEqual(len(at), 3)
        self.assertGreaterEqual(min(later - one for one, later in zip(at, at[1:], strict=False)), at[0] - 1)

    def test_answers_to_pre_votes_report_it_too(self) -> None:
        """The answers to its pre-votes report it too."""
        bench = Bench.make(term=3)
        for peer_id in ("n1", "n2"):
            bench.core.member.peers.heard(peer_id, 1, bench.core.member.out.now_ms)
        for _ in range(200):
            for asked in of_type(bench.run(100), fx.SendRequest):
                bench.answer(asked, VoteResponse(
                    term=self.FAR, wire_version=1, vote_result=VoteResult.REJECT_EXPIRED_VOTE_TERM,
                    pre_vote=True,
                ))
        self.assertEqual(bench.term, self.FAR)

    def test_not_in_a_group_that_works(self) -> None:
        """A follower that hears its leader, and a leader, stay where they are."""
        bench = Bench.make(term=3).follow("n2", 3)
        for _ in range(100):
            bench.run(100)
            bench.request(heart_beat("n2", 3))
            bench.request(heart_beat("n1", self.FAR))
        self.assertEqual((bench.term, bench.core.leader_id), (3, "n2"))

    def test_a_leader_meets_a_peer_of_a_far_term(self) -> None:
        """A leader goes to meet a peer that answers so all the time, as far as its followers can follow."""
        bench = Bench.make(term=3).lead()
        term, seen = bench.term, list[str]()
        for _ in range(60):
            if bench.role != "leader":
                break
            for asked in of_type(bench.run(100), fx.SendRequest):
                if isinstance(asked.request, HeartBeatRequest):
                    is_far = asked.peer_id == "n1"
                    seen += events(bench.answer(asked, HeartBeatResponse(
                        code=ResponseCode.EXPIRED_TERM if is_far else ResponseCode.SUCCESS,
                        term=self.FAR if is_far else term, wire_version=1,
                    )))
        self.assertEqual((seen.count("term-leap"), bench.term), (1, term + TERM_JUMP_MAX // 2))

    def test_not_for_messages_now_and_then(self) -> None:
        """A pause between them, or a leader, begins the time anew."""
        bench = Bench.make(term=3)
        self.assertNotIn("term-leap", self.beaten(bench, 9_000, every_ms=1_500))
        self.beaten(bench, 1_600)
        bench.request(heart_beat("n2", bench.term))
        self.assertNotIn("term-leap", self.beaten(bench, 400))


class EntryTermTests(SynchronousTestCase):
    """Rule 2."""

    def test_later_than_the_push(self) -> None:
        """No push writes an entry of a later term than its own, and none is compared or made the last."""
        for type in (PushType.APPEND, PushType.COMPARE, PushType.TRUNCATE):
            bench = Bench.make(ListLedger.of(1), term=2)
            effects = bench.request(push(type, batch(1, 3), term=2))
            (reply,) = of_type(effects, fx.Reply)
            self.assertIs(reply.response.code, ResponseCode.UNEXPECTED_ARGUMENT)
            self.assertIsNone(bench.core.leader_id)  # not followed either
            self.assertEqual(bench.ledger, ListLedger.of(1))

    def test_last_entry_of_a_batch(self) -> None:
        """The last entry is the latest one."""
        bench = Bench.make(ListLedger.of(1), term=2).follow("n1", 2)
        bench.request(push(PushType.COMPARE, batch(0, 1), term=2))
        bad = bench.ask(push(PushType.APPEND, batch(1, 1, 2, 3), term=2))
        self.assertIs(bad.code, ResponseCode.UNEXPECTED_ARGUMENT)
        good = bench.ask(push(PushType.APPEND, batch(1, 1, 2, 2), term=2))
        self.assertIs(good.code, ResponseCode.SUCCESS)


class LastTermTests(SynchronousTestCase):
    """The end of all terms."""

    def test_a_start_in_the_last_term_is_reported(self) -> None:
        """A member that could never take part in an election says so, with the way out."""
        of_its_own, of_an_entry = "In the currterm of each write the same", "set this directory aside"
        for ledger, term, way_out in (
            (ListLedger(), TERM_MAX, of_its_own), (ListLedger(), (1 << 63) - 1, of_its_own),
            (ListLedger.of(TERM_MAX), 3, of_an_entry),
        ):
            error = self.assertRaises(DirectoryError, Bench.make, ledger, term=term)
            self.assertIn(str(TERM_MAX - 1), str(error))
            self.assertIn(way_out, str(error))
        self.assertEqual(Bench.make(term=TERM_MAX - 1).term, TERM_MAX - 1)

    def test_it_asks_for_no_term_after_the_last(self) -> None:
        """In the last term it votes and follows, and never asks for another term."""
        bench = Bench.make(term=TERM_MAX - 1)
        bench.request(heart_beat("n1", TERM_MAX))
        effects = bench.run(20_000)
        self.assertEqual((bench.term, sent(effects, VoteRequest)), (TERM_MAX, []))
        self.assertIn("terms-exhausted", events(effects))

    def test_no_campaign_at_the_end_of_a_round(self) -> None:
        """The last term came while it asked."""
        bench = Bench.make(term=TERM_MAX - 2)
        for peer_id in ("n1", "n2"):
            bench.core.member.peers.heard(peer_id, 1, bench.core.member.out.now_ms)
        asked = of_type(bench.run_until(VoteRequest), fx.SendRequest)
        bench.core.member.ledger_end_term = TERM_MAX
        bench.answer(asked[0], VoteResponse(term=3, wire_version=1, vote_result=VoteResult.ACCEPT,
                                            pre_vote=True))
        self.assertEqual(bench.term, TERM_MAX - 2)
        bench.step(ev.Ticked())
