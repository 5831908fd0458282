# -*- test-case-name: tests.core.test_dispatcher -*-
"""The pushes of a leader to one follower, and the effect of the answers."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.catch_up import RATE_FIRST, RATE_MAX, TurnBudget
from dledger.core.replication.dispatcher import (
    BACK_OFF_MAX,
    IDLE_COMMIT_INTERVAL_MS,
    DispatcherState,
    EntryDispatcher,
    dispatch_to_members,
)
from dledger.core.state import effects as fx
from dledger.core.state.member_state import MemberState, Quota, Role
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import HeartBeatResponse, PushEntryRequest, PushEntryResponse, Response
from tests.core.helpers import ListLedger, events, make_member, pushed, pushes, unpack

COMPARE, TRUNCATE, APPEND = DispatcherState.COMPARE, DispatcherState.TRUNCATE, DispatcherState.APPEND


@attrs.define
class Acks:
    """Remembers the indexes that the follower was said to hold."""

    held: list[int] = attrs.Factory(list)

    def follower_holds(self, peer_id: str, index: int) -> None:
        """One acknowledgement."""
        assert peer_id == "n1"
        self.held.append(index)


@attrs.define
class Desk:
    """A dispatcher of leader n0 (term 3) for n1, and its pushes."""

    member: MemberState
    dispatcher: EntryDispatcher
    acks: Acks
    ledger: ListLedger
    sent: list[fx.SendRequest] = attrs.Factory(list)
    events: list[str] = attrs.Factory(list)

    @classmethod
    def make(cls, ledger: ListLedger | None = None, **options: Any) -> Desk:
        """A fresh dispatcher; nothing is sent yet."""
        ledger = ListLedger.of(1, 1, 2, 2, 3) if ledger is None else ledger
        member = make_member(ledger, term=3, **options)
        member.role, member.leader_id = Role.LEADER, "n0"
        member.out.now_ms = 1_000
        acks = Acks()
        quota = Quota(member.config.peer_push_quota)
        return cls(member, EntryDispatcher(member, "n1", acks, quota, TurnBudget(member.out)), acks, ledger)

    def take(self) -> list[PushEntryRequest]:
        """What was sent since the last time."""
        effects = self.member.out.take()
        new = pushes(effects)
        self.sent.extend(new)
        self.events.extend(events(effects))
        return [one.request for one in new if isinstance(one.request, PushEntryRequest)]

    def dispatch(self) -> list[PushEntryRequest]:
        """Send what can be sent."""
        self.dispatcher.dispatch()
        return self.take()

    def tick(self, ms: int = 20) -> list[PushEntryRequest]:
        """Time passes."""
        self.member.out.now_ms += ms
        self.dispatcher.tick()
        return self.take()

    def answer(
        self, response: Response | None = None, at: int = -1, **fields: Any
    ) -> list[PushEntryRequest]:
        """The follower answers what was sent last (or C{at}). @return: what that sends."""
        one = self.sent[at]
        response = pushed(**{"term": 3, **fields}) if response is None else response
        self.dispatcher.on_response("n1", one.request_id, response)
        return self.take()

    def fail(self, at: int = -1) -> list[PushEntryRequest]:
        """What was sent last (or C{at}) will not be answered."""
        self.dispatcher.on_request_failed("n1", self.sent[at].request_id, "gone")
        return self.take()

    def append(self, *terms: int) -> None:
        """The leader's ledger grows."""
        self.ledger.entries.extend((term, b"") for term in terms)
        self.member.refresh_end()

    def in_state(self, wanted: PushType) -> Desk:
        """Bring it where a push of this type is the last one that is in flight."""
        self.dispatch()
        if wanted is PushType.COMPARE:
            return self
        if wanted is PushType.TRUNCATE:
            self.answer(end_index=9)  # equal at our end, and longer: cut there
        else:
            self.answer(end_index=4)
            if wanted is PushType.APPEND:
                self.append(3)
                self.dispatch()
            else:
                self.tick(IDLE_COMMIT_INTERVAL_MS)
        request = self.sent[-1].request
        assert isinstance(request, PushEntryRequest) and request.type is wanted, request
        return self


class BudgetTests(SynchronousTestCase):
    """What the followers that are behind may have together."""

    def test_who_is_compared_again_has_no_share(self) -> None:
        """A follower that is compared again, or of a leader that is none any more, has no share."""
        for leaves in (EntryDispatcher.restart, EntryDispatcher.retire):
            desk = Desk.make().in_state(PushType.APPEND)
            budget = desk.dispatcher.budget
            budget.see("n1", 1, desk.member)
            budget.rate = RATE_MAX
            leaves(desk.dispatcher)
            self.assertEqual((budget.rate, desk.dispatcher.inflight), (RATE_FIRST, 0))


#: State after an answer to a push, of a follower whose ledger is 0..9. Every code that is not named
#: sends it back to COMPARE, or for a COMMIT leaves it where it was.
AFTER = {
    (PushType.COMPARE, ResponseCode.SUCCESS): TRUNCATE,  # ours ends at 4
    (PushType.COMPARE, ResponseCode.INCONSISTENT_STATE): COMPARE,  # further down
    (PushType.TRUNCATE, ResponseCode.SUCCESS): APPEND,
    (PushType.APPEND, ResponseCode.SUCCESS): APPEND,
    (PushType.COMMIT, ResponseCode.SUCCESS): APPEND,
    (PushType.COMMIT, ResponseCode.INCONSISTENT_STATE): COMPARE,
}


class TableTests(SynchronousTestCase):
    """Every answer to every push has one meaning."""

    def test_every_answer_has_one_meaning(self) -> None:
        """The state after each (push, code), and whether it counts as a set-back."""
        for type in PushType:
            for code in ResponseCode:
                desk = Desk.make().in_state(type)
                desk.answer(code=code, end_index=9)
                default = APPEND if type is PushType.COMMIT else COMPARE
                expected = AFTER.get((type, code), default)
                self.assertIs(desk.dispatcher.state, expected, (type, code))
                went_down = (type, code) == (PushType.COMPARE, ResponseCode.INCONSISTENT_STATE)
                is_set_back = expected is COMPARE and not went_down
                self.assertEqual("push-set-back" in desk.events, is_set_back, (type, code))

    def test_answers_of_another_kind(self) -> None:
        """An answer that is not one to a push is a set-back, whatever its code."""
        for type in PushType:
            desk = Desk.make().in_state(type)
            desk.answer(HeartBeatResponse(term=3))
            self.assertIs(desk.dispatcher.state, COMPARE, type)
            self.assertIn("push-set-back", desk.events)

    def test_only_what_holds_is_acknowledged(self) -> None:
        """The follower is said to hold what was found equal, cut to, or appended: nothing else."""
        expected: dict[PushType, list[int]] = {
            PushType.COMPARE: [], PushType.TRUNCATE: [4], PushType.APPEND: [4, 5], PushType.COMMIT: [4],
        }
        for type in PushType:
            desk = Desk.make().in_state(type)
            desk.answer(end_index=9)
            self.assertEqual(desk.acks.held, expected[type], type)
            desk = Desk.make().in_state(type)
            before = list(desk.acks.held)
            desk.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=9)
            self.assertEqual(desk.acks.held, before, type)


class RequestTests(SynchronousTestCase):
    """The fields of the pushes."""

    def test_compare_carries_our_last_entry(self) -> None:
        """The search begins at the leader's end."""
        desk = Desk.make(committed_index=2)
        (request,) = desk.dispatch()
        assert request.entries is not None
        self.assertEqual(unpack(request.entries), [(4, 3, b"")])
        self.assertEqual(attrs.evolve(request, entries=None), PushEntryRequest(
            group="g", remote_id="n1", local_id="n0", leader_id="n0", term=3, wire_version=1,
            type=PushType.COMPARE, commit_index=2,
        ))

    def test_truncate_carries_the_common_entry(self) -> None:
        """The new last entry of the follower."""
        desk = Desk.make()
        desk.dispatch()
        (request,) = desk.answer(end_index=9)
        assert request.entries is not None
        self.assertEqual((request.type, unpack(request.entries)), (PushType.TRUNCATE, [(4, 3, b"")]))

    def test_batches_hold_one_term(self) -> None:
        """As many entries as allowed, none of another term in the same batch."""
        desk = Desk.make(ListLedger.of(1, 1, 1, 2, 2))
        desk.dispatch()
        desk.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=0)
        requests = desk.answer(end_index=0)
        self.assertEqual(
            [(one.entries.first_index, one.entries.count, one.is_batch) for one in requests if one.entries],
            [(1, 2, True), (3, 2, True)],
        )

    def test_batches_can_be_switched_off(self) -> None:
        """One entry a push, for old followers."""
        desk = Desk.make(ListLedger.of(1, 1, 1), enable_batch_push=False)
        desk.dispatch()
        desk.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=0)
        requests = desk.answer(end_index=0)
        self.assertEqual([one.entries.count for one in requests if one.entries], [1, 1])
        self.assertFalse(any(one.is_batch for one in requests))

    def test_an_empty_leader_sends_nothing(self) -> None:
        """There is nothing to compare until its first entry."""
        desk = Desk.make(ListLedger())
        self.assertEqual(desk.dispatch() + desk.tick(5_000), [])
        desk.append(3)
        self.assertEqual([one.type for one in desk.dispatch()], [PushType.COMPARE])

    def test_only_an_empty_leader_asks_java(self) -> None:
        """With an empty ledger a COMMIT asks for the version; with one entry a COMPARE does."""
        desk = Desk.make(ListLedger())
        desk.member.wire_versions["n1"] = 0
        self.assertEqual([one.type for one in desk.tick(IDLE_COMMIT_INTERVAL_MS)], [PushType.COMMIT])
        desk = Desk.make(ListLedger.of(3), heart_beat_time_interval_ms=2 * IDLE_COMMIT_INTERVAL_MS)
        desk.member.wire_versions["n1"] = 0
        desk.dispatch()
        desk.answer(code=ResponseCode.UNKNOWN)
        desk.answer(code=ResponseCode.UNKNOWN)
        self.assertEqual(desk.tick(IDLE_COMMIT_INTERVAL_MS), [])  # it waits for its next COMPARE


class WindowTests(SynchronousTestCase):
    """How much is on its way at a time."""

    def matched(self, **options: Any) -> Desk:
        """In APPEND, with nothing to send."""
        desk = Desk.make(ListLedger.of(1), **options)
        desk.dispatch()
        desk.answer(end_index=0)
        self.assertIs(desk.dispatcher.state, APPEND)
        return desk

    def test_one_compare_at_a_time(self) -> None:
        """No second question before the answer."""
        desk = Desk.make()
        self.assertEqual(len(desk.dispatch()), 1)
        self.assertEqual(desk.dispatch() + desk.tick(), [])

    def test_pushes_in_flight(self) -> None:
        """Up to the bound, then one more for each answer."""
        desk = self.matched(max_inflight_pushes=3, max_batch_push_count=1)
        desk.append(*[3] * 10)
        self.assertEqual(len(desk.dispatch()), 3)
        self.assertEqual(desk.dispatcher.inflight, 3)
        self.assertEqual(len(desk.answer(at=-3)), 1)

    def test_bytes_in_flight(self) -> None:
        """No further push once the bound of unanswered bytes is reached."""
        size = 20
        desk = self.matched(max_inflight_push_bytes=2 * size, max_batch_push_count=1)
        desk.append(*[3] * 10)
        self.assertEqual(len(desk.dispatch()), 2)
        self.assertEqual(len(desk.answer(at=-2)), 1)

    def test_an_ack_is_one_of_everything_below(self) -> None:
        """Acknowledgements that come in another order never lower the mark."""
        desk = self.matched(max_batch_push_count=1)
        desk.append(3, 3)
        desk.dispatch()
        desk.answer(at=-1)
        desk.answer(at=-2)
        self.assertEqual((desk.acks.held, desk.dispatcher.match_index), ([0, 2], 2))

    def test_an_answer_counts_once(self) -> None:
        """The second answer to a push is nobody's."""
        desk = self.matched(max_batch_push_count=1)
        desk.append(3)
        desk.dispatch()
        desk.answer()
        self.assertEqual(desk.answer(code=ResponseCode.INCONSISTENT_STATE), [])
        self.assertIs(desk.dispatcher.state, APPEND)

    def test_going_back_forgets_what_is_in_flight(self) -> None:
        """After a refusal, answers to the pushes after it change nothing."""
        desk = self.matched(max_batch_push_count=1)
        desk.append(3, 3)
        desk.dispatch()
        asked = desk.answer(at=-2, code=ResponseCode.INCONSISTENT_STATE)
        self.assertEqual([one.type for one in asked], [PushType.COMPARE])
        self.assertEqual(desk.answer(at=-2), [])
        self.assertEqual((desk.acks.held, desk.dispatcher.state), ([0], COMPARE))

    def test_the_quota_bounds_pushes_in_a_second(self) -> None:
        """A follower that is far behind gets its quota in a second, and more in the next."""
        desk = Desk.make(
            ListLedger.of(*[1] * 5_000), peer_push_throttle_point=1_024, peer_push_quota=400,
            max_batch_push_bytes=200, max_inflight_pushes=1_000,
        )
        desk.dispatch()
        desk.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=0)
        requests = desk.answer(end_index=0)
        self.assertEqual(sum(len(one.entries.records) for one in requests if one.entries), 400)
        self.assertEqual(desk.tick(100), [])
        self.assertTrue(desk.tick(900))

    def test_a_follower_that_is_nearly_there_is_spared(self) -> None:
        """A thousand entries behind is not far."""
        desk = Desk.make(
            ListLedger.of(*[1] * 900), peer_push_throttle_point=1_024, peer_push_quota=1,
            max_batch_push_bytes=200, max_inflight_pushes=1_000,
        )
        desk.dispatch()
        desk.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=0)
        requests = desk.answer(end_index=0)
        self.assertEqual(sum(one.entries.count for one in requests if one.entries), 899)

    def test_quota_is_shared(self) -> None:
        """What else is sent to a follower counts, too, in every term."""
        desk = Desk.make(ListLedger.of(1))
        for _ in range(2):
            dispatchers: dict[str, EntryDispatcher] = {}
            dispatch_to_members(dispatchers, desk.member, desk.acks, TurnBudget(desk.member.out))
            self.assertIs(dispatchers["n1"].quota, desk.member.quota_of("n1"))
        self.assertIsNot(desk.member.quota_of("n1"), desk.member.quota_of("n2"))

    def test_quota_of_a_second_is_not_carried_over(self) -> None:
        """What was not used is lost, what was overspent too."""
        quota = Quota(100)
        self.assertEqual(quota.left(1_000), 100)
        quota.spend(150)
        self.assertEqual(quota.left(1_999), -50)
        self.assertEqual(quota.left(2_000), 100)


class TimeTests(SynchronousTestCase):
    """The effect of time."""

    def test_idle_follower_hears_of_the_commit(self) -> None:
        """At once when it rose, and once a second else; one at a time."""
        desk = Desk.make().in_state(PushType.APPEND)
        desk.answer()
        self.assertEqual(desk.tick(), [])
        desk.member.commit(5)
        (request,) = desk.tick()
        self.assertEqual((request.type, request.commit_index, request.entries), (PushType.COMMIT, 5, None))
        self.assertEqual(desk.tick(), [])
        desk.answer()
        self.assertEqual(desk.tick(), [])
        self.assertEqual([one.type for one in desk.tick(IDLE_COMMIT_INTERVAL_MS)], [PushType.COMMIT])

    def test_busy_follower_hears_it_with_its_entries(self) -> None:
        """No COMMIT while there is something in flight."""
        desk = Desk.make().in_state(PushType.APPEND)
        desk.member.commit(4)
        self.assertEqual(desk.tick(), [])

    def test_a_late_answer_is_ignored(self) -> None:
        """A push without an answer falls back to COMPARE; a later answer is ignored."""
        for type in PushType:
            desk = Desk.make(max_push_time_out_ms=500).in_state(type)
            self.assertEqual(desk.tick(499), [], type)
            late = len(desk.sent) - 1
            (request,) = desk.tick(1)
            self.assertEqual((desk.dispatcher.state, request.type), (COMPARE, PushType.COMPARE), type)
            held = list(desk.acks.held)
            self.assertEqual(desk.answer(at=late, end_index=9), [])
            self.assertEqual((desk.acks.held, desk.dispatcher.inflight), (held, 1), type)

    def test_the_oldest_push_counts(self) -> None:
        """Later pushes do not renew the patience with an earlier one."""
        desk = Desk.make(max_push_time_out_ms=500, max_batch_push_count=1).in_state(PushType.APPEND)
        desk.member.out.now_ms += 400
        desk.append(3)
        desk.dispatch()
        desk.tick(100)
        self.assertIs(desk.dispatcher.state, COMPARE)

    def test_first_set_back_is_at_once_the_next_ones_wait_longer(self) -> None:
        """No busy loop with a follower that always refuses, and no wait without a bound."""
        desk = Desk.make(heart_beat_time_interval_ms=200)
        desk.dispatch()
        waits = []
        for _ in range(14):
            began_ms = desk.member.out.now_ms
            sent = desk.answer(code=ResponseCode.NOT_FOLLOWER)
            while not sent:
                sent = desk.tick(20)
            waits.append(desk.member.out.now_ms - began_ms)
        self.assertEqual(waits[:4], [0, 200, 400, 600])
        self.assertEqual(waits[-1], 200 * BACK_OFF_MAX)

    def test_a_loop_of_compare_and_refused_appends_slows_down(self) -> None:
        """A follower that is equal but cannot write (no room) is asked ever more rarely."""
        desk = Desk.make(ListLedger.of(1, 1))
        rounds = 0
        for _ in range(60_000 // 20):
            todo = desk.tick(20)
            while todo:
                (request,) = todo
                assert request.entries is not None
                rounds += request.type is PushType.COMPARE
                holds = request.type is PushType.COMPARE and request.entries.first_index == 0
                code = ResponseCode.SUCCESS if holds else ResponseCode.INCONSISTENT_STATE
                todo = desk.answer(code=code, end_index=0)
        self.assertTrue(60 < rounds < 100, rounds)

    def test_an_acknowledged_append_ends_the_back_off(self) -> None:
        """Once something works, the next set-back is answered at once again."""
        desk = Desk.make()
        desk.dispatch()
        desk.answer(code=ResponseCode.NOT_FOLLOWER)
        desk.answer(code=ResponseCode.NOT_FOLLOWER)
        while not desk.tick():
            pass
        desk.answer(end_index=4)
        desk.append(3)
        desk.dispatch()
        desk.answer()
        desk.append(3)
        desk.dispatch()
        self.assertEqual(
            [one.type for one in desk.answer(code=ResponseCode.INCONSISTENT_STATE)], [PushType.COMPARE]
        )

    def test_unreachable_follower_that_answers_again(self) -> None:
        """A wait that was for its absence is not sat out."""
        desk = Desk.make()
        for _ in range(6):
            desk.dispatch()
            if not desk.dispatcher.inflight:
                desk.tick(5_000)
            desk.fail()
        self.assertEqual(desk.tick(), [])
        desk.dispatcher.reachable()
        self.assertEqual([one.type for one in desk.take()], [PushType.COMPARE])

    def test_reachable_says_nothing_to_one_that_refuses(self) -> None:
        """A wait after refusals goes on, however often the follower is heard."""
        desk = Desk.make()
        desk.dispatch()
        desk.answer(code=ResponseCode.NOT_FOLLOWER)
        desk.answer(code=ResponseCode.NOT_FOLLOWER)
        desk.dispatcher.reachable()
        self.assertEqual(desk.take(), [])

    def test_failed_request_of_an_earlier_round(self) -> None:
        """Only what is in flight can fail."""
        desk = Desk.make()
        desk.dispatch()
        desk.answer(end_index=4)
        desk.fail(0)
        self.assertIs(desk.dispatcher.state, APPEND)


class EndTests(SynchronousTestCase):
    """When leadership or the ledger's head goes."""

    def test_answers_to_a_retired_dispatcher_are_ignored(self) -> None:
        """Answers that still come are nobody's: no acknowledgement, no push."""
        desk = Desk.make().in_state(PushType.APPEND)
        desk.dispatcher.retire()
        self.assertEqual(desk.answer() + desk.fail(), [])
        self.assertEqual((desk.acks.held, desk.dispatcher.inflight), ([4], 0))

    def test_what_the_follower_needs_next_has_expired(self) -> None:
        """It is compared anew, and set to the leader's begin."""
        desk = Desk.make(ListLedger.of(1, 1, 1, 1, 1), max_inflight_pushes=1, max_batch_push_count=1)
        desk.dispatch()
        desk.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=0)
        desk.answer(end_index=0)
        desk.ledger.entries, desk.ledger.begin_index = desk.ledger.entries[3:], 3
        (request,) = desk.answer() or desk.tick(500)
        self.assertIs(request.type, PushType.COMPARE)
        (request,) = desk.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=1)
        assert request.entries is not None
        self.assertEqual((request.type, request.entries.first_index), (PushType.TRUNCATE, 3))

    def test_search_that_the_head_has_passed(self) -> None:
        """An index that is gone meanwhile is not asked about: the search begins anew."""
        desk = Desk.make(ListLedger.of(*[1] * 10))
        desk.dispatch()
        desk.ledger.entries, desk.ledger.begin_index = desk.ledger.entries[8:], 8
        (request,) = desk.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=8)
        assert request.entries is not None
        self.assertEqual(request.entries.first_index, 8)
        desk.ledger.entries, desk.ledger.begin_index = desk.ledger.entries[1:], 9
        (request,) = desk.tick(2_000)
        assert request.entries is not None
        self.assertEqual((request.type, request.entries.first_index), (PushType.COMPARE, 9))

    def test_truncation_that_the_head_has_passed(self) -> None:
        """The entry that a follower was to be cut to has expired meanwhile: the search begins anew."""
        desk = Desk.make(ListLedger.of(*[1] * 10))
        desk.dispatcher.state = DispatcherState.TRUNCATE
        desk.dispatcher._truncate_index = 3
        desk.ledger.entries, desk.ledger.begin_index = desk.ledger.entries[8:], 8
        (request,) = desk.tick(2_000)
        self.assertIs(request.type, PushType.COMPARE)

    def test_answers_must_be_of_pushes(self) -> None:
        """The type of the answers that the tests here give."""
        self.assertIsInstance(pushed(), PushEntryResponse)
