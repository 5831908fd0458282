# -*- test-case-name: tests.core.test_unsure -*-
"""A member that may have lost acknowledged entries: its votes, and when it is sure again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_FLAG_UNSURE_VOTE, WIRE_VERSION, PushType, VoteResult
from protocols.wire.ledger.messages import (
    GetRequest,
    GetResponse,
    MetadataRequest,
    MetadataResponse,
    VoteRequest,
    VoteResponse,
)
from tests.core.helpers import Bench, ListLedger, batch, heart_beat, kinds, of_type, push, sent, vote_request


def unsure(*terms: int, **options: Any) -> Bench:
    """A follower of term 2 that woke up after a loss of power."""
    return Bench.make(ListLedger.of(*terms), term=2, is_unsure=True, **options)


class LostDirectoryTests(SynchronousTestCase):
    """A member with an empty directory: it has forgotten its terms, too."""

    def witnessed(self, bench: Bench) -> None:
        """The leader of term 3 speaks for the first time, and another voter is in its term."""
        for asked in of_type(bench.request(heart_beat("n1", 3, 200)), fx.SendRequest):
            bench.answer(asked, MetadataResponse(term=3, leader_id="n1", wire_version=WIRE_VERSION))

    def reported(self, bench: Bench, end_index: int) -> None:
        """The leader says where its ledger ends."""
        (asked,) = [one for one in of_type(bench.run(300), fx.SendRequest)
                    if isinstance(one.request, MetadataRequest)][:1]
        bench.answer(asked, MetadataResponse(
            term=3, leader_id="n1", wire_version=WIRE_VERSION, begin_index=0, end_index=end_index,
        ))

    def test_no_term_is_new_to_it(self) -> None:
        """The leader of an entry's term may have been elected by this member, and counted it as a holder."""
        for forgot_terms in (False, True):
            bench = Bench.make(term=0, is_unsure=True, forgot_terms=forgot_terms)
            self.witnessed(bench)
            bench.request(push(PushType.TRUNCATE, batch(0, 3), term=3))
            self.assertEqual(bench.core.member.is_unsure, forgot_terms)

    def test_a_member_is_sure_after_its_flush(self) -> None:
        """With sync it is sure when it has all that the leader had, and not before that is flushed."""
        bench = Bench.make(term=0, is_unsure=True, forgot_terms=True, flush_disk_type="sync")
        self.witnessed(bench)
        bench.request(push(PushType.TRUNCATE, batch(0, 3), term=3))
        self.reported(bench, 1)
        effects = bench.request(push(PushType.APPEND, batch(1, 3), term=3))
        self.assertTrue(bench.core.member.is_unsure)
        (flush,) = of_type(effects, fx.FlushLedger)
        effects = bench.step(ev.EntriesFlushed(flush_id=flush.flush_id, end_index=1))
        self.assertEqual(len(of_type(effects, fx.EndUnsure)), 1)

    def test_a_leader_by_all_votes_is_sure(self) -> None:
        """So is a leader that all members have elected."""
        bench = Bench.make(ListLedger.of(1, 1), term=1, is_unsure=True, forgot_terms=True,
                           flush_disk_type="sync")
        bench.core.member.flushed_index = 0
        bench.core.become_leader()
        bench.tick()
        self.assertTrue(bench.core.member.is_unsure)
        bench.core.member.flushed_index = 1
        bench.tick()
        self.assertFalse(bench.core.member.is_unsure)


class VoteTests(SynchronousTestCase):
    """Its vote counts only together with the votes of all members."""

    def test_an_unsure_vote_is_durable_and_marked(self) -> None:
        """It gives its vote durably, and marks it as unsure. To others it is no vote."""
        bench = unsure(1)
        effects = bench.request(vote_request("n1", 3, end_index=5, end_term=2))
        self.assertEqual([effect.voted_for for effect in of_type(effects, fx.PersistTermVote)], ["n1"])
        (reply,) = of_type(effects, fx.Reply)
        assert isinstance(reply.response, VoteResponse)
        self.assertIs(reply.response.vote_result, VoteResult.UNKNOWN)
        self.assertEqual(reply.response.wire_version, WIRE_VERSION | WIRE_FLAG_UNSURE_VOTE)

    def test_a_java_candidate_gets_no_unsure_vote(self) -> None:
        """It cannot win with such a vote, so it does not keep this member from standing itself."""
        for wire_version, stands in ((0, True), (WIRE_VERSION, False)):
            bench = unsure(1)
            term = 3
            for _ in range(40):
                bench.now_ms += 100
                bench.request(vote_request("n1", term, end_index=5, end_term=2, wire_version=wire_version))
                bench.tick()
            asked = [one for one in sent(bench.seen, VoteRequest)] + [
                one for one in sent(bench.seen, MetadataRequest)]
            self.assertEqual(bool(asked), stands, wire_version)

    def elected(self, is_unsure: bool, *answers: tuple[str, bool]) -> str:
        """Role of a candidate of three after these votes: from whom, and whether for sure."""
        bench = Bench.make(ListLedger.of(1), term=2, is_unsure=is_unsure, pre_vote=False)
        for campaign in range(2):
            effects = bench.run_until(VoteRequest)
            for peer_id, is_sure in answers:
                for asked, request_id, request in sent(effects, VoteRequest):
                    if asked == peer_id and bench.role != "leader":
                        answer = VoteResponse(
                            group="g", term=request.term - request.pre_vote, pre_vote=request.pre_vote,
                            vote_result=VoteResult.ACCEPT if is_sure else VoteResult.UNKNOWN,
                            wire_version=WIRE_VERSION | (0 if is_sure else WIRE_FLAG_UNSURE_VOTE),
                        )
                        bench.step(ev.ResponseReceived(
                            peer_id=peer_id, request_id=request_id, response=answer
                        ))
            if campaign == 0 and bench.role == "leader":
                break
        return bench.role

    def test_an_unsure_vote_counts_with_all_others(self) -> None:
        """A quorum of sure members, or all members."""
        self.assertEqual(self.elected(False, ("n1", True)), "leader")
        self.assertNotEqual(self.elected(False, ("n1", False)), "leader")
        self.assertEqual(self.elected(False, ("n1", False), ("n2", False)), "leader")


class WordTests(SynchronousTestCase):
    """It is sure again when it holds all that its leader had after its start."""

    def follower(self, **options: Any) -> Bench:
        """It follows n1 in term 2, and its ledger is equal up to 0."""
        bench = unsure(1, **options).follow("n1", 2)
        bench.request(push(PushType.COMPARE, batch(0, 1), term=2))
        return bench

    def notify(self, bench: Bench, end_index: int, **facts: Any) -> tuple[fx.Effect, ...]:
        """The leader answers the question for its end."""
        (asked,) = [one for one in sent(bench.seen, MetadataRequest)][-1:]
        answer: dict[str, Any] = {"group": "g", "leader_id": "n1", "term": 2, "wire_version": 1, **facts}
        return bench.step(ev.ResponseReceived(
            peer_id="n1", request_id=asked[1], response=MetadataResponse(end_index=end_index, **answer)
        ))

    def test_asks_and_waits(self) -> None:
        """The leader ends at 2: holding 1 is not enough."""
        bench = self.follower()
        bench.tick()
        self.notify(bench, 2)
        bench.request(push(PushType.APPEND, batch(1, 2), term=2))
        # An entry of a term that began before the start proves nothing.
        self.assertTrue(bench.core.status().is_unsure)
        effects = bench.request(push(PushType.APPEND, batch(2, 2), term=2))
        self.assertIn("EndUnsure", kinds(effects))
        self.assertFalse(bench.core.status().is_unsure)

    def test_answer_after_the_entries(self) -> None:
        """The entries were there before the answer: no further push is needed."""
        bench = self.follower()
        bench.tick()
        effects = self.notify(bench, 0)
        self.assertIn("EndUnsure", kinds(effects))

    def test_a_lost_question_is_repeated(self) -> None:
        """A question that did not reach the leader is soon repeated; an answer that counts ends this."""
        bench = self.follower()
        bench.tick()
        (asked,) = [one for one in of_type(bench.seen, fx.SendRequest)
                    if isinstance(one.request, MetadataRequest)]
        bench.fail(asked)
        self.assertEqual(sent(bench.tick(50), MetadataRequest), [])
        self.assertEqual(len(sent(bench.tick(50), MetadataRequest)), 1)
        self.notify(bench, 2)
        self.assertEqual(sent(bench.run(1000), MetadataRequest), [])

    def test_only_the_leader_makes_a_member_sure(self) -> None:
        """Not a member's that does not lead this term."""
        for facts in ({"leader_id": "n2"}, {"term": 1}, {"leader_id": None}):
            bench = self.follower()
            bench.tick()
            self.notify(bench, 0, **facts)
            bench.request(push(PushType.COMPARE, batch(0, 1), term=2))
            self.assertTrue(bench.core.status().is_unsure, facts)

    def test_an_entry_of_a_later_term_makes_it_sure(self) -> None:
        """An entry of a term that began after the start proves that the rest is there, too."""
        bench = unsure(1).follow("n1", 3)
        bench.request(push(PushType.COMPARE, batch(0, 1), term=3))
        self.assertTrue(bench.core.status().is_unsure)
        bench.request(push(PushType.APPEND, batch(1, 3), term=3))
        self.assertFalse(bench.core.status().is_unsure)

    def test_java_leader_without_entries(self) -> None:
        """A Java leader that has no entry pushes nothing and does not report its end: GET 0 says 410."""
        for code, is_sure in (
            (ResponseCode.INDEX_OUT_OF_RANGE, True), (ResponseCode.SUCCESS, False),
            (ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, False), (ResponseCode.NOT_LEADER, False),
        ):
            bench, request_id = self.asked_java()
            self.get(bench, request_id + 1, ResponseCode.INDEX_OUT_OF_RANGE)
            self.assertTrue(bench.core.status().is_unsure, "the answer to another question")
            self.get(bench, request_id, code)
            self.assertEqual(bench.core.status().is_unsure, not is_sure, code)

    def test_java_leader_is_asked_in_time(self) -> None:
        """Its word counts also when this member has entries by now, not when it follows another leader."""
        bench, request_id = self.asked_java()
        bench.request(push(PushType.TRUNCATE, batch(0, 2), term=2))
        self.assertEqual(bench.core.status().ledger_end_index, 0)
        self.assertTrue(bench.core.status().is_unsure)
        self.get(bench, request_id, ResponseCode.INDEX_OUT_OF_RANGE)
        self.assertFalse(bench.core.status().is_unsure)
        bench, request_id = self.asked_java()
        bench.follow("n2", 3)
        self.get(bench, request_id, ResponseCode.INDEX_OUT_OF_RANGE)
        self.assertTrue(bench.core.status().is_unsure)

    def test_only_java_is_asked_so(self) -> None:
        """A leader of ours answers 410 for uncommitted entries, too."""
        bench = unsure().follow("n1", 2)
        bench.tick()
        self.notify(bench, -2, wire_version=1)
        self.assertEqual(sent(bench.seen, GetRequest), [])

    def java_gets(self, bench: Bench, end_index: Callable[[], int], begin_index: int = 0) -> list[int]:
        """A Java leader with such a ledger answers all that it is asked; it reports no end. The indexes."""
        asked: list[int] = []
        bench.tick(300)
        while bench.seen:
            effects, bench.seen = bench.seen, []
            for _, request_id, _ in sent(effects, MetadataRequest):
                bench.step(ev.ResponseReceived(peer_id="n1", request_id=request_id, response=MetadataResponse(
                    group="g", leader_id="n1", term=-1, end_index=-2, wire_version=0,
                )))
            for _, request_id, request in sent(effects, GetRequest):
                index = request.begin_index
                assert index is not None
                asked.append(index)
                code = (ResponseCode.INDEX_OUT_OF_RANGE if index > end_index() else ResponseCode.SUCCESS
                        if index >= begin_index else ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
                self.get(bench, request_id, code)
        return asked

    def test_java_leader_under_load(self) -> None:
        """It never sends COMMIT: its end is found with GET, while it grows, and reached by pushes."""
        for end, begin in ((0, 0), (1, 0), (2, 0), (9, 0), (1000, 0), (5_000_017, 5_000_000)):
            bench = self.follower()
            moving = iter(range(end, end + 1000))
            asked = self.java_gets(bench, lambda moving=moving: next(moving), begin)  # type: ignore[misc]
            self.assertLess(len(asked), 60, (end, asked))
            if end == 0:
                self.assertEqual(asked, [1])
                self.assertFalse(bench.core.status().is_unsure)
                continue
            self.assertTrue(bench.core.status().is_unsure)
            word = bench.core.leader_claims
            self.assertTrue(end <= word.end_index <= end + len(asked), (end, word.end_index))
            if end < 10:
                for index in range(1, word.end_index + 1):
                    self.assertTrue(bench.core.status().is_unsure)
                    bench.request(push(PushType.APPEND, batch(index, 2), term=2))
                self.assertFalse(bench.core.status().is_unsure)
            self.assertEqual(sent(bench.follow("n1", 2).run(300), MetadataRequest), [], "it is known")

    def test_java_leader_fails(self) -> None:
        """An answer that says nothing, or none: the search begins anew, at the end of this member then."""
        for is_lost in (False, True):
            bench = self.follower()
            bench.tick()
            self.notify(bench, -2, wire_version=0, term=-1)
            (asked,) = [one for one in of_type(bench.seen, fx.SendRequest)
                        if isinstance(one.request, GetRequest)]
            if is_lost:
                bench.fail(asked)
            else:
                self.get(bench, asked.request_id, ResponseCode.NOT_LEADER)
            bench.seen = []
            self.assertEqual(self.java_gets(bench, lambda: 0), [1])
            self.assertFalse(bench.core.status().is_unsure)

    def test_java_leader_of_another_term(self) -> None:
        """What was asked in an earlier term does not count in the next one."""
        bench = self.follower()
        bench.tick()
        self.notify(bench, -2, wire_version=0, term=-1)
        ((_, request_id, _),) = sent(bench.seen, GetRequest)
        bench.follow("n1", 4)
        bench.request(push(PushType.COMPARE, batch(0, 1), term=4))
        self.get(bench, request_id, ResponseCode.INDEX_OUT_OF_RANGE)
        self.assertTrue(bench.core.status().is_unsure)

    def asked_java(self) -> tuple[Bench, int]:
        """A follower without an entry that has asked its Java leader for index 0."""
        bench = unsure().follow("n1", 2)
        bench.tick()
        self.notify(bench, -2, wire_version=0, term=-1)
        ((peer_id, request_id, request),) = sent(bench.seen, GetRequest)
        self.assertEqual((peer_id, request.begin_index), ("n1", 0))
        return bench, request_id

    def get(self, bench: Bench, request_id: int, code: ResponseCode) -> None:
        """The Java leader answers a GET."""
        bench.step(ev.ResponseReceived(
            peer_id="n1", request_id=request_id, response=GetResponse(group="g", code=code)
        ))

    def test_gives_no_hand(self) -> None:
        """It takes over from no leader."""
        bench = unsure(1)
        self.assertTrue(bench.core.status().is_unsure)
        self.assertEqual(sent(bench.tick(), MetadataRequest), [], "no leader to ask")
