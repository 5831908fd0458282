# -*- test-case-name: tests.core.test_hole_repair -*-
"""Which member is asked for damaged entries, when, and what a member with holes does not do."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.dispatcher import DAMAGED_PATIENCE
from dledger.core.replication.hole_repair import PACE_MS, WAIT_MAX_MS, WAIT_MS
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import Consistency, PushType, VoteResult
from protocols.wire.ledger.messages import (
    GetRequest,
    GetResponse,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    PullResponse,
    PushEntryRequest,
    PushEntryResponse,
    VoteResponse,
)
from tests.core.helpers import (
    Bench,
    ListLedger,
    batch,
    events,
    of_type,
    push,
    pushed,
    pushes,
    vote_request,
)


class HoleBench:
    """A follower of n1 in term 3 with five entries, of which 1 and 2 are damaged."""

    def __init__(self, *, java: tuple[str, ...] = (), committed_index: int = 3) -> None:
        self.ledger = ListLedger.of(1, 1, 1, 2, 2).lose(1, 2)
        self.bench = Bench.make(self.ledger, term=3, committed_index=committed_index)
        self.bench.follow("n1", 3)
        for peer_id in ("n1", "n2"):
            self.bench.core.member.peers.wire_versions[peer_id] = 0 if peer_id in java else 1
        self.entries = ListLedger.of(1, 1, 1, 2, 2).read_batch(1, max_count=2, max_bytes=999)

    def tick(self, ms: int = 50) -> tuple[fx.Effect, ...]:
        """Time passes."""
        self.bench.now_ms += ms
        return self.bench.step(ev.Ticked())

    def questions(self) -> list[fx.SendRequest]:
        """All requests for lost entries."""
        return [one for one in of_type(self.bench.seen, fx.SendRequest)
                if isinstance(one.request, (PullRequest, GetRequest))]

    def asked(self) -> fx.SendRequest:
        """The next request for lost entries."""
        before = len(self.questions())
        for _ in range(4):
            self.tick()
            if len(self.questions()) > before:
                return self.questions()[-1]
        raise AssertionError("nobody is asked")

    def pulled(self, *, code: ResponseCode = ResponseCode.SUCCESS, committed_index: int = 3) -> PullResponse:
        """A member's answer."""
        entries = self.entries if code is ResponseCode.SUCCESS else None
        return PullResponse(group="g", code=code, entries=entries, committed_index=committed_index)


class AskTests(SynchronousTestCase):
    """One member at a time."""

    def test_the_leader_first(self) -> None:
        """After a second look at its own bytes it asks the leader, once."""
        one = HoleBench()
        effects = one.tick()
        self.assertIn("entries-damaged", events(effects))
        self.assertEqual(len(of_type(effects, fx.LookAgain)), 1)
        question = one.asked()
        request = question.request
        assert isinstance(request, PullRequest)
        self.assertEqual((question.peer_id, request.begin_index, request.end_index), ("n1", 1, 2))
        self.assertIs(request.consistency, Consistency.COMMITTED)
        one.tick()
        self.assertEqual(len(one.questions()), 1)

    def test_fetched_entries_fill_the_hole(self) -> None:
        """The entries that arrive go to the store; then the member is healthy."""
        one = HoleBench()
        self.assertTrue(one.bench.core.status().is_repairing)
        one.bench.answer(one.asked(), one.pulled())
        self.assertEqual(one.ledger.filled, [(one.entries, True)])
        self.assertIn("entries-mended", events(one.tick()))
        status = one.bench.core.status()
        self.assertEqual((status.is_repairing, status.holes, status.hole_asked), (False, (), {}))

    def test_committed_part_first(self) -> None:
        """The rest of the hole may differ from the leader: it must not hold up the committed part."""
        for committed_index, end_index in ((0, 2), (1, 1), (2, 2)):
            request = HoleBench(committed_index=committed_index).asked().request
            assert isinstance(request, PullRequest)
            self.assertEqual((request.begin_index, request.end_index), (1, end_index))

    def test_committed_at_both(self) -> None:
        """Entries that one of the two does not know to be committed need another proof."""
        for mine, theirs in ((3, 1), (1, 3), (1, 1)):
            one = HoleBench(committed_index=mine)
            one.bench.answer(one.asked(), one.pulled(committed_index=theirs))
            self.assertEqual(one.ledger.filled, [(one.entries, False)])

    def test_next_hole_is_paced(self) -> None:
        """The rate of a repair is bounded."""
        one = HoleBench()
        one.ledger.lose(4, 4)
        one.bench.answer(one.asked(), one.pulled())
        self.assertEqual(of_type(one.tick(PACE_MS - 1), fx.LookAgain), [])
        self.assertEqual(len(of_type(one.tick(1), fx.LookAgain)), 1)

    def test_the_next_member_is_asked_after_a_failure(self) -> None:
        """The next one is asked; after all of them it waits, longer each time, and says who was asked."""
        one = HoleBench()
        waits = []
        for _ in range(9):
            self.assertEqual([self.refuse(one), self.refuse(one)], ["n1", "n2"])
            self.assertIn("entries-not-found", events(one.tick()))
            asked, began_ms = len(one.questions()), one.bench.now_ms
            self.assertEqual(one.bench.core.status().hole_asked, {"n1": "DISK_ERROR", "n2": "DISK_ERROR"})
            while not of_type(one.tick(50), fx.LookAgain):
                self.assertEqual(len(one.questions()), asked)
            waits.append(one.bench.now_ms - began_ms)
        self.assertEqual((waits[0], waits[-1]), (WAIT_MS, WAIT_MAX_MS))
        self.assertEqual(waits, sorted(waits))
        self.assertEqual(one.ledger.filled, [])

    def test_entries_deleted_everywhere_are_reported(self) -> None:
        """All others have deleted the missing entries: up to where, once each has said so."""
        one = HoleBench()
        for begin_index, reported in ((4, -1), (3, 2)):
            self.assertEqual(one.bench.core.gone_elsewhere_index, -1)
            question = one.asked()
            gone = one.pulled(code=ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
            one.bench.answer(question, attrs.evolve(gone, ledger_begin_index=begin_index))
            self.assertEqual(one.bench.core.gone_elsewhere_index, reported)
        one.ledger.holes = ()
        one.tick()
        self.assertEqual(one.bench.core.gone_elsewhere_index, -1)

    def test_get_does_not_say_where_a_log_begins(self) -> None:
        """A member that is asked by GET has deleted the missing entry, at least."""
        one = HoleBench()
        question, gone = one.asked(), ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN
        one.bench.answer(question, attrs.evolve(one.pulled(code=gone), ledger_begin_index=4))
        one.bench.answer(one.asked(), GetResponse(group="g", code=gone))
        first_index = one.ledger.holes[0].first_index
        self.assertEqual(one.bench.core.gone_elsewhere_index, first_index)

    def test_a_later_hole_has_its_turn(self) -> None:
        """If no member has the first hole, the next one is mended; the wait comes after the last one."""
        one = HoleBench(committed_index=4)
        one.ledger.lose(4, 4)
        for _ in range(2):
            gone = one.pulled(code=ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
            one.bench.answer(one.asked(), attrs.evolve(gone, ledger_begin_index=4))
        question = one.asked()
        assert isinstance(question.request, PullRequest)
        self.assertEqual((question.request.begin_index, question.request.end_index), (4, 4))
        self.assertEqual(one.bench.core.gone_elsewhere_index, 3)
        last = ListLedger.of(1, 1, 1, 2, 2).read_batch(4, max_count=1, max_bytes=999)
        one.bench.answer(question, attrs.evolve(one.pulled(committed_index=4), entries=last))
        self.assertEqual([hole.first_index for hole in one.ledger.holes], [1])
        self.assertEqual(one.asked().request.begin_index, 1)
        self.assertEqual(one.bench.core.gone_elsewhere_index, 3)

    def test_a_new_hole_does_not_wait(self) -> None:
        """However long the ones before it have been asked for in vain."""
        one = HoleBench(committed_index=4)
        for _ in range(9):
            self.refuse(one)
            self.refuse(one)
            while not of_type(one.tick(), fx.LookAgain):
                pass
        self.refuse(one)
        self.refuse(one)
        one.tick()
        one.ledger.lose(4, 4)
        one.tick(PACE_MS)
        self.assertEqual(one.asked().request.begin_index, 4)

    def test_one_may_have_them(self) -> None:
        """A member that is silent, or refuses for another reason, may have the entries."""
        one = HoleBench()
        self.refuse(one)
        gone = one.pulled(code=ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        one.bench.answer(one.asked(), attrs.evolve(gone, ledger_begin_index=4))
        self.assertEqual(one.bench.core.gone_elsewhere_index, -1)

    def refuse(self, one: HoleBench) -> str:
        """The next question is answered with an error. @return: who was asked."""
        question = one.asked()
        one.bench.answer(question, one.pulled(code=ResponseCode.DISK_ERROR))
        return question.peer_id

    def test_no_answer_and_a_refusal_of_the_store(self) -> None:
        """Both count as in vain."""
        one = HoleBench()
        one.bench.fail(one.asked())
        one.ledger.refuse = ResponseCode.INCONSISTENT_STATE
        one.bench.answer(one.asked(), one.pulled())
        asked = one.bench.core.status().hole_asked
        self.assertEqual(sorted(asked), ["n1", "n2"])
        self.assertIn("reported to refuse", asked["n2"])
        self.assertTrue(one.bench.core.status().is_repairing)

    def test_a_late_answer_fills_nothing(self) -> None:
        """An answer of another kind, or of another request, fills nothing."""
        one = HoleBench()
        one.bench.answer(one.asked(), MetadataResponse(group="g"))
        self.assertEqual(one.ledger.filled, [])

    def test_never_heard_of(self) -> None:
        """Two members with holes neither stand nor lead: METADATA shows each that the other is of ours."""
        for wire_version, is_asked in ((1, True), (0, False)):
            one = HoleBench()
            one.bench.core.member.leader_id = None
            one.bench.core.member.peers.wire_versions = {"n1": 0}
            for _ in range(4):
                one.tick()
            self.assertEqual(one.questions(), [])
            (question,) = [each for each in of_type(one.bench.seen, fx.SendRequest)
                           if isinstance(each.request, MetadataRequest)]
            self.assertEqual(question.peer_id, "n2")
            one.bench.step(ev.ResponseReceived(
                peer_id="n2", request_id=question.request_id,
                response=MetadataResponse(group="g", wire_version=wire_version),
            ))
            for _ in range(4):
                one.tick()
            self.assertEqual([each.peer_id for each in one.questions()], ["n2"] if is_asked else [])

    def test_a_json_peer_is_asked_by_get(self) -> None:
        """A member that refuses PULL on its frames is asked GET at once; the leader's entry is committed."""
        one = HoleBench()
        one.bench.answer(one.asked(), one.pulled(code=ResponseCode.UNSUPPORTED))
        self.assertEqual(len(one.questions()), 1)
        one.tick()
        metadata = of_type(one.bench.seen, fx.SendRequest)[-1]
        self.assertEqual((metadata.peer_id, type(metadata.request)), ("n1", MetadataRequest))
        one.bench.answer(metadata, MetadataResponse(group="g", committed_index=2))
        question = one.asked()
        self.assertEqual((question.peer_id, type(question.request)), ("n1", GetRequest))
        one.bench.answer(question, GetResponse(group="g", entries=batch(1, 1)))
        self.assertEqual(one.ledger.filled, [(batch(1, 1), True)])

    def test_a_json_follower_must_know_the_commit(self) -> None:
        """The entry of a member that does not lead is committed if that member says so."""
        for reported in (0, 1):
            one = HoleBench()
            one.bench.answer(one.asked(), one.pulled(code=ResponseCode.DISK_ERROR))
            one.bench.answer(one.asked(), one.pulled(code=ResponseCode.UNSUPPORTED))
            one.tick()
            metadata = of_type(one.bench.seen, fx.SendRequest)[-1]
            self.assertEqual((metadata.peer_id, type(metadata.request)), ("n2", MetadataRequest))
            one.bench.answer(metadata, MetadataResponse(group="g", committed_index=reported))
            one.bench.answer(one.asked(), GetResponse(group="g", entries=batch(1, 1)))
            self.assertEqual(one.ledger.filled, [(batch(1, 1), reported == 1)])

    def test_only_a_java_leader_is_asked(self) -> None:
        """Only the leader of Java's kind is asked, by GET; its word counts in the term that it led."""
        one = HoleBench(java=("n1", "n2"))
        question = one.asked()
        self.assertEqual((question.peer_id, type(question.request)), ("n1", GetRequest))
        one.bench.answer(question, GetResponse(group="g", entries=batch(1, 1)))
        self.assertEqual(one.ledger.filled, [(batch(1, 1), True)])
        one = HoleBench(java=("n1", "n2"))
        question = one.asked()
        one.bench.core.member.enter_term(4)
        one.bench.answer(question, GetResponse(group="g", entries=batch(1, 1)))
        self.assertEqual(one.ledger.filled, [(batch(1, 1), False)])


class PromiseTests(SynchronousTestCase):
    """What a member with holes does and does not do."""

    def test_a_member_with_holes_votes_by_its_log(self) -> None:
        """Its end is known: it votes by its log, as every member."""
        ledger = ListLedger.of(1, 1, 1, 2, 2).lose(1, 2)
        for end_index, result in ((4, VoteResult.ACCEPT), (3, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)):
            bench = Bench.make(ledger, term=3, committed_index=1)
            effects = bench.request(vote_request("n1", 4, end_index=end_index, end_term=2))
            (answer,) = [one.response for one in of_type(effects, fx.Reply)]
            assert isinstance(answer, VoteResponse)
            self.assertIs(answer.vote_result, result)

    def test_a_member_with_committed_holes_may_lead(self) -> None:
        """It may lead if the missing entries are known to be committed."""
        for committed_index, may_lead in ((1, False), (2, True), (4, True)):
            ledger = ListLedger.of(1, 1, 1, 2, 2).lose(1, 2)
            bench = Bench.make(ledger, term=3, committed_index=committed_index)
            self.assertIs(bench.core.member.may_lead, may_lead, committed_index)

    def test_a_missing_entry_is_not_acknowledged(self) -> None:
        """A leader must not count it as a holder of an entry that it lacks and that may not be committed."""
        for commit_index, code in ((1, ResponseCode.PUSH_REQUEST_IS_FULL), (2, ResponseCode.SUCCESS)):
            bench = Bench.make(ListLedger.of(1, 1, 1, 2, 2).lose(1, 2), term=3).follow("n1", 3)
            compare = push(PushType.COMPARE, batch(4, 2), term=3, commit_index=commit_index)
            self.assertIs(self.code(bench, compare), code)

    def code(self, bench: Bench, request: PushEntryRequest) -> ResponseCode:
        """The answer to a push."""
        (answer,) = [one.response for one in of_type(bench.request(request), fx.Reply)]
        assert isinstance(answer, PushEntryResponse)
        return answer.code

    def test_a_compare_at_a_hole_is_an_error(self) -> None:
        """COMPARE and TRUNCATE at a missing entry are answered with an error, and change nothing."""
        for kind in (PushType.COMPARE, PushType.TRUNCATE):
            bench = Bench.make(ListLedger.of(1, 1, 1, 2, 2).lose(1, 2), term=3).follow("n1", 3)
            self.assertIs(self.code(bench, push(kind, batch(2, 1), term=3)), ResponseCode.DISK_ERROR)
            self.assertEqual(len(bench.ledger.entries), 5)


class LeaderTests(SynchronousTestCase):
    """A leader with holes pushes around them, and leaves when it cannot go on."""

    def leading(self, *terms: int, first: int, last: int, committed_index: int, **options: object) -> Bench:
        """A leader that lacks these entries."""
        bench = Bench.make(ListLedger.of(*terms).lose(first, last), term=3, committed_index=committed_index,
                           max_push_time_out_ms=1000, **options)
        return bench.lead()

    def compared(self, bench: Bench, code: ResponseCode, *, end_index: int) -> PushEntryRequest:
        """n1 answers the last COMPARE. @return: the last push to it."""
        question = pushes(bench.seen, PushType.COMPARE, "n1")[-1]
        bench.answer(question, pushed(code, term=bench.term, end_index=end_index))
        request = pushes(bench.seen, peer_id="n1")[-1].request
        assert isinstance(request, PushEntryRequest)
        return request

    def test_push_stops_before_the_hole(self) -> None:
        """A follower gets what is sound before it, waits, and gets the rest when the hole is closed."""
        bench = self.leading(1, 1, 1, 1, 1, 1, first=2, last=3, committed_index=5)
        self.compared(bench, ResponseCode.INCONSISTENT_STATE, end_index=0)  # it has only entry 0
        request = self.compared(bench, ResponseCode.SUCCESS, end_index=0)
        assert request.entries is not None
        self.assertEqual((request.type, request.entries.first_index, request.entries.count),
                         (PushType.APPEND, 1, 1))
        self.assertIn("push-waits-for-damaged", events(bench.seen))
        bench.ledger.holes = ()
        effects = bench.run(400)
        later = pushes(effects, PushType.APPEND, "n1")[0].request
        assert isinstance(later, PushEntryRequest) and later.entries is not None
        self.assertEqual(later.entries.first_index, 2)
        self.assertEqual(bench.role, "leader")

    def test_compare_beside_the_hole(self) -> None:
        """An entry of a hole cannot be compared: the one before it is, or one after it that is there."""
        for end_index, asked in ((4, 4), (3, 1), (2, 1)):
            bench = self.leading(1, 1, 1, 1, 1, 1, first=2, last=3, committed_index=5)
            request = self.compared(bench, ResponseCode.INCONSISTENT_STATE, end_index=end_index)
            assert request.entries is not None
            self.assertEqual((request.type, request.entries.first_index), (PushType.COMPARE, asked))

    def test_a_leader_with_an_unproven_end_steps_down(self) -> None:
        """A leader's entries would continue from a checksum that nothing vouches for."""
        for first, may_lead in ((3, False), (2, True)):
            bench = Bench.make(ListLedger.of(1, 1, 1, 1, 1).lose(first, first), term=3, committed_index=4)
            self.assertIs(bench.core.member.may_lead, may_lead)

    def test_follower_with_a_hole(self) -> None:
        """When the entry after a follower's hole differs, the search goes on below the hole; else not."""
        for equal_to, damaged, truncates_to in ((2, 3, 2), (8, 3, None), (6, 5, 6)):
            bench = Bench.make(ListLedger.of(*[1] * 9), term=3, committed_index=8).lead()
            bench.core.leading.dispatchers["n1"]._setbacks = DAMAGED_PATIENCE
            for _ in range(12):
                request = pushes(bench.seen, peer_id="n1")[-1].request
                assert isinstance(request, PushEntryRequest) and request.entries is not None
                if request.type is not PushType.COMPARE:
                    break
                index = request.entries.first_index
                code = ResponseCode.SUCCESS if index <= equal_to else ResponseCode.INCONSISTENT_STATE
                self.compared(bench, ResponseCode.DISK_ERROR if index == damaged else code, end_index=9)
            found = request.entries.first_index
            if truncates_to is not None:
                self.assertEqual((request.type, found), (PushType.TRUNCATE, truncates_to))
            else:
                self.assertGreaterEqual(found, 8)

    def test_follower_that_lost_its_last_entry(self) -> None:
        """It is waited for, because it may get the entry back; then it is cut to the last equal one."""
        bench = Bench.make(ListLedger.of(*[1] * 9), term=3, committed_index=8).lead()
        compares = 0
        for _ in range(400):
            request = pushes(bench.seen, peer_id="n1")[-1].request
            assert isinstance(request, PushEntryRequest) and request.entries is not None
            if request.type is PushType.TRUNCATE:
                break
            index = request.entries.first_index
            code = ResponseCode.INCONSISTENT_STATE if index > 4 else ResponseCode.SUCCESS
            before = len(pushes(bench.seen, peer_id="n1"))
            self.compared(bench, ResponseCode.DISK_ERROR if index == 4 else code, end_index=4)
            compares += index == 4
            while len(pushes(bench.seen, peer_id="n1")) == before:
                bench.confirm("n1")
                bench.tick(50)
        self.assertEqual((request.type, request.entries.first_index), (PushType.TRUNCATE, 3))
        self.assertEqual(compares, DAMAGED_PATIENCE + 1)

    def test_a_leader_with_an_uncommitted_hole_steps_down(self) -> None:
        """An entry that may be nowhere else and is not committed: another member may have to lead."""
        bench = Bench.make(ListLedger.of(1, 1, 1, 1, 1), term=3, committed_index=1).lead()
        bench.ledger.lose(3, 3)
        for _ in range(60):
            bench.confirm("n1")
            bench.tick(50)
            if bench.role != "leader":
                break
        self.assertEqual(bench.role, "follower")
        self.assertIn("stepping-down", events(bench.seen))
        self.assertFalse(bench.core.member.may_lead)
