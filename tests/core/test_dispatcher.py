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
from dledger.core.state.beliefs import Quota
from dledger.core.state.member_state import MemberState, Role
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
class Rig:
    """A dispatcher of leader n0 (term 3) for n1, and its pushes."""

    member: MemberState
    dispatcher: EntryDispatcher
    acks: Acks
    ledger: ListLedger
    sent: list[fx.SendRequest] = attrs.Factory(list)
    events: list[str] = attrs.Factory(list)

    @classmethod
    def make(cls, ledger: ListLedger | None = None, **options: Any) -> Rig:
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

    def in_state(self, wanted: PushType) -> Rig:
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
            rig = Rig.make().in_state(PushType.APPEND)
            budget = rig.dispatcher.budget
            budget.see("n1", 1, rig.member)
            budget.rate = RATE_MAX
            leaves(rig.dispatcher)
            self.assertEqual((budget.rate, rig.dispatcher.inflight), (RATE_FIRST, 0))


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
                rig = Rig.make().in_state(type)
                rig.answer(code=code, end_index=9)
                default = APPEND if type is PushType.COMMIT else COMPARE
                expected = AFTER.get((type, code), default)
                self.assertIs(rig.dispatcher.state, expected, (type, code))
                went_down = (type, code) == (PushType.COMPARE, ResponseCode.INCONSISTENT_STATE)
                is_set_back = expected is COMPARE and not went_down
                self.assertEqual("push-set-back" in rig.events, is_set_back, (type, code))

    def test_answers_of_another_kind(self) -> None:
        """An answer that is not one to a push is a set-back, whatever its code."""
        for type in PushType:
            rig = Rig.make().in_state(type)
            rig.answer(HeartBeatResponse(term=3))
            self.assertIs(rig.dispatcher.state, COMPARE, type)
            self.assertIn("push-set-back", rig.events)

    def test_only_what_holds_is_acknowledged(self) -> None:
        """The follower is said to hold what was found equal, cut to, or appended: nothing else."""
        expected: dict[PushType, list[int]] = {
            PushType.COMPARE: [], PushType.TRUNCATE: [4], PushType.APPEND: [4, 5], PushType.COMMIT: [4],
        }
        for type in PushType:
            rig = Rig.make().in_state(type)
            rig.answer(end_index=9)
            self.assertEqual(rig.acks.held, expected[type], type)
            rig = Rig.make().in_state(type)
            before = list(rig.acks.held)
            rig.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=9)
            self.assertEqual(rig.acks.held, before, type)


class RequestTests(SynchronousTestCase):
    """The fields of the pushes."""

    def test_compare_carries_our_last_entry(self) -> None:
        """The search begins at the leader's end."""
        rig = Rig.make(committed_index=2)
        (request,) = rig.dispatch()
        assert request.entries is not None
        self.assertEqual(unpack(request.entries), [(4, 3, b"")])
        self.assertEqual(attrs.evolve(request, entries=None), PushEntryRequest(
            group="g", remote_id="n1", local_id="n0", leader_id="n0", term=3, wire_version=1,
            type=PushType.COMPARE, commit_index=2,
        ))

    def test_truncate_carries_the_common_entry(self) -> None:
        """The new last entry of the follower."""
        rig = Rig.make()
        rig.dispatch()
        (request,) = rig.answer(end_index=9)
        assert request.entries is not None
        self.assertEqual((request.type, unpack(request.entries)), (PushType.TRUNCATE, [(4, 3, b"")]))

    def test_batches_hold_one_term(self) -> None:
        """As many entries as allowed, none of another term in the same batch."""
        rig = Rig.make(ListLedger.of(1, 1, 1, 2, 2))
        rig.dispatch()
        rig.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=0)
        requests = rig.answer(end_index=0)
        self.assertEqual(
            [(one.entries.first_index, one.entries.count, one.is_batch) for one in requests if one.entries],
            [(1, 2, True), (3, 2, True)],
        )

    def test_batches_can_be_switched_off(self) -> None:
        """One entry a push, for old followers."""
        rig = Rig.make(ListLedger.of(1, 1, 1), enable_batch_push=False)
        rig.dispatch()
        rig.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=0)
        requests = rig.answer(end_index=0)
        self.assertEqual([one.entries.count for one in requests if one.entries], [1, 1])
        self.assertFalse(any(one.is_batch for one in requests))

    def test_an_empty_leader_sends_nothing(self) -> None:
        """There is nothing to compare until its first entry."""
        rig = Rig.make(ListLedger())
        self.assertEqual(rig.dispatch() + rig.tick(5_000), [])
        rig.append(3)
        self.assertEqual([one.type for one in rig.dispatch()], [PushType.COMPARE])

    def test_only_an_empty_leader_asks_java(self) -> None:
        """With an empty ledger a COMMIT asks for the version; with one entry a COMPARE does."""
        rig = Rig.make(ListLedger())
        rig.member.peers.wire_versions["n1"] = 0
        self.assertEqual([one.type for one in rig.tick(IDLE_COMMIT_INTERVAL_MS)], [PushType.COMMIT])
        rig = Rig.make(ListLedger.of(3), heart_beat_time_interval_ms=2 * IDLE_COMMIT_INTERVAL_MS)
        rig.member.peers.wire_versions["n1"] = 0
        rig.dispatch()
        rig.answer(code=ResponseCode.UNKNOWN)
        rig.answer(code=ResponseCode.UNKNOWN)
        self.assertEqual(rig.tick(IDLE_COMMIT_INTERVAL_MS), [])  # it waits for its next COMPARE


class WindowTests(SynchronousTestCase):
    """How much is on its way at a time."""

    def matched(self, **options: Any) -> Rig:
        """In APPEND, with nothing to send."""
        rig = Rig.make(ListLedger.of(1), **options)
        rig.dispatch()
        rig.answer(end_index=0)
        self.assertIs(rig.dispatcher.state, APPEND)
        return rig

    def test_one_compare_at_a_time(self) -> None:
        """No second question before the answer."""
        rig = Rig.make()
        self.assertEqual(len(rig.dispatch()), 1)
        self.assertEqual(rig.dispatch() + rig.tick(), [])

    def test_pushes_in_flight(self) -> None:
        """Up to the bound, then one more for each answer."""
        rig = self.matched(max_inflight_pushes=3, max_batch_push_count=1)
        rig.append(*[3] * 10)
        self.assertEqual(len(rig.dispatch()), 3)
        self.assertEqual(rig.dispatcher.inflight, 3)
        self.assertEqual(len(rig.answer(at=-3)), 1)

    def test_bytes_in_flight(self) -> None:
        """No further push once the bound of unanswered bytes is reached."""
        size = 20
        rig = self.matched(max_inflight_push_bytes=2 * size, max_batch_push_count=1)
        rig.append(*[3] * 10)
        self.assertEqual(len(rig.dispatch()), 2)
        self.assertEqual(len(rig.answer(at=-2)), 1)

    def test_an_ack_is_one_of_everything_below(self) -> None:
        """Acknowledgements that come in another order never lower the mark."""
        rig = self.matched(max_batch_push_count=1)
        rig.append(3, 3)
        rig.dispatch()
        rig.answer(at=-1)
        rig.answer(at=-2)
        self.assertEqual((rig.acks.held, rig.dispatcher.match_index), ([0, 2], 2))

    def test_an_answer_counts_once(self) -> None:
        """The second answer to a push is nobody's."""
        rig = self.matched(max_batch_push_count=1)
        rig.append(3)
        rig.dispatch()
        rig.answer()
        self.assertEqual(rig.answer(code=ResponseCode.INCONSISTENT_STATE), [])
        self.assertIs(rig.dispatcher.state, APPEND)

    def test_going_back_forgets_what_is_in_flight(self) -> None:
        """After a refusal, answers to the pushes after it change nothing."""
        rig = self.matched(max_batch_push_count=1)
        rig.append(3, 3)
        rig.dispatch()
        asked = rig.answer(at=-2, code=ResponseCode.INCONSISTENT_STATE)
        self.assertEqual([one.type for one in asked], [PushType.COMPARE])
        self.assertEqual(rig.answer(at=-2), [])
        self.assertEqual((rig.acks.held, rig.dispatcher.state), ([0], COMPARE))

    def test_the_quota_bounds_pushes_in_a_second(self) -> None:
        """A follower that is far behind gets its quota in a second, and more in the next."""
        rig = Rig.make(
            ListLedger.of(*[1] * 5_000), peer_push_throttle_point=1_024, peer_push_quota=400,
            max_batch_push_bytes=200, max_inflight_pushes=1_000,
        )
        rig.dispatch()
        rig.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=0)
        requests = rig.answer(end_index=0)
        self.assertEqual(sum(len(one.entries.records) for one in requests if one.entries), 400)
        self.assertEqual(rig.tick(100), [])
        self.assertTrue(rig.tick(900))

    def test_a_follower_that_is_nearly_there_is_spared(self) -> None:
        """A thousand entries behind is not far."""
        rig = Rig.make(
            ListLedger.of(*[1] * 900), peer_push_throttle_point=1_024, peer_push_quota=1,
            max_batch_push_bytes=200, max_inflight_pushes=1_000,
        )
        rig.dispatch()
        rig.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=0)
        requests = rig.answer(end_index=0)
        self.assertEqual(sum(one.entries.count for one in requests if one.entries), 899)

    def test_quota_is_shared(self) -> None:
        """What else is sent to a follower counts, too, in every term."""
        rig = Rig.make(ListLedger.of(1))
        for _ in range(2):
            dispatchers: dict[str, EntryDispatcher] = {}
            dispatch_to_members(dispatchers, rig.member, rig.acks, TurnBudget(rig.member.out))
            self.assertIs(dispatchers["n1"].quota, rig.member.peers.quota_of("n1"))
        self.assertIsNot(rig.member.peers.quota_of("n1"), rig.member.peers.quota_of("n2"))

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
        rig = Rig.make().in_state(PushType.APPEND)
        rig.answer()
        self.assertEqual(rig.tick(), [])
        rig.member.commit(5)
        (request,) = rig.tick()
        self.assertEqual((request.type, request.commit_index, request.entries), (PushType.COMMIT, 5, None))
        self.assertEqual(rig.tick(), [])
        rig.answer()
        self.assertEqual(rig.tick(), [])
        self.assertEqual([one.type for one in rig.tick(IDLE_COMMIT_INTERVAL_MS)], [PushType.COMMIT])

    def test_busy_follower_hears_it_with_its_entries(self) -> None:
        """No COMMIT while there is something in flight."""
        rig = Rig.make().in_state(PushType.APPEND)
        rig.member.commit(4)
        self.assertEqual(rig.tick(), [])

    def test_a_late_answer_is_ignored(self) -> None:
        """A push without an answer falls back to COMPARE; a later answer is ignored."""
        for type in PushType:
            rig = Rig.make(max_push_time_out_ms=500).in_state(type)
            self.assertEqual(rig.tick(499), [], type)
            late = len(rig.sent) - 1
            (request,) = rig.tick(1)
            self.assertEqual((rig.dispatcher.state, request.type), (COMPARE, PushType.COMPARE), type)
            held = list(rig.acks.held)
            self.assertEqual(rig.answer(at=late, end_index=9), [])
            self.assertEqual((rig.acks.held, rig.dispatcher.inflight), (held, 1), type)

    def test_the_oldest_push_counts(self) -> None:
        """Later pushes do not renew the patience with an earlier one."""
        rig = Rig.make(max_push_time_out_ms=500, max_batch_push_count=1).in_state(PushType.APPEND)
        rig.member.out.now_ms += 400
        rig.append(3)
        rig.dispatch()
        rig.tick(100)
        self.assertIs(rig.dispatcher.state, COMPARE)

    def test_first_set_back_is_at_once_the_next_ones_wait_longer(self) -> None:
        """No busy loop with a follower that always refuses, and no wait without a bound."""
        rig = Rig.make(heart_beat_time_interval_ms=200)
        rig.dispatch()
        waits = []
        for _ in range(14):
            began_ms = rig.member.out.now_ms
            sent = rig.answer(code=ResponseCode.NOT_FOLLOWER)
            while not sent:
                sent = rig.tick(20)
            waits.append(rig.member.out.now_ms - began_ms)
        self.assertEqual(waits[:4], [0, 200, 400, 600])
        self.assertEqual(waits[-1], 200 * BACK_OFF_MAX)

    def test_a_loop_of_compare_and_refused_appends_slows_down(self) -> None:
        """A follower that is equal but cannot write (no room) is asked ever more rarely."""
        rig = Rig.make(ListLedger.of(1, 1))
        rounds = 0
        for _ in range(60_000 // 20):
            todo = rig.tick(20)
            while todo:
                (request,) = todo
                assert request.entries is not None
                rounds += request.type is PushType.COMPARE
                holds = request.type is PushType.COMPARE and request.entries.first_index == 0
                code = ResponseCode.SUCCESS if holds else ResponseCode.INCONSISTENT_STATE
                todo = rig.answer(code=code, end_index=0)
        self.assertTrue(60 < rounds < 100, rounds)

    def test_an_acknowledged_append_ends_the_back_off(self) -> None:
        """Once something works, the next set-back is answered at once again."""
        rig = Rig.make()
        rig.dispatch()
        rig.answer(code=ResponseCode.NOT_FOLLOWER)
        rig.answer(code=ResponseCode.NOT_FOLLOWER)
        while not rig.tick():
            pass
        rig.answer(end_index=4)
        rig.append(3)
        rig.dispatch()
        rig.answer()
        rig.append(3)
        rig.dispatch()
        self.assertEqual(
            [one.type for one in rig.answer(code=ResponseCode.INCONSISTENT_STATE)], [PushType.COMPARE]
        )

    def test_unreachable_follower_that_answers_again(self) -> None:
        """A wait that was for its absence is not sat out."""
        rig = Rig.make()
        for _ in range(6):
            rig.dispatch()
            if not rig.dispatcher.inflight:
                rig.tick(5_000)
            rig.fail()
        self.assertEqual(rig.tick(), [])
        rig.dispatcher.reachable()
        self.assertEqual([one.type for one in rig.take()], [PushType.COMPARE])

    def test_reachable_says_nothing_to_one_that_refuses(self) -> None:
        """A wait after refusals goes on, however often the follower is heard."""
        rig = Rig.make()
        rig.dispatch()
        rig.answer(code=ResponseCode.NOT_FOLLOWER)
        rig.answer(code=ResponseCode.NOT_FOLLOWER)
        rig.dispatcher.reachable()
        self.assertEqual(rig.take(), [])

    def test_failed_request_of_an_earlier_round(self) -> None:
        """Only what is in flight can fail."""
        rig = Rig.make()
        rig.dispatch()
        rig.answer(end_index=4)
        rig.fail(0)
        self.assertIs(rig.dispatcher.state, APPEND)


class EndTests(SynchronousTestCase):
    """When leadership or the ledger's head goes."""

    def test_answers_to_a_retired_dispatcher_are_ignored(self) -> None:
        """Answers that still come are nobody's: no acknowledgement, no push."""
        rig = Rig.make().in_state(PushType.APPEND)
        rig.dispatcher.retire()
        self.assertEqual(rig.answer() + rig.fail(), [])
        self.assertEqual((rig.acks.held, rig.dispatcher.inflight), ([4], 0))

    def test_what_the_follower_needs_next_has_expired(self) -> None:
        """It is compared anew, and set to the leader's begin."""
        rig = Rig.make(ListLedger.of(1, 1, 1, 1, 1), max_inflight_pushes=1, max_batch_push_count=1)
        rig.dispatch()
        rig.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=0)
        rig.answer(end_index=0)
        rig.ledger.entries, rig.ledger.begin_index = rig.ledger.entries[3:], 3
        (request,) = rig.answer() or rig.tick(500)
        self.assertIs(request.type, PushType.COMPARE)
        (request,) = rig.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=1)
        assert request.entries is not None
        self.assertEqual((request.type, request.entries.first_index), (PushType.TRUNCATE, 3))

    def test_search_that_the_head_has_passed(self) -> None:
        """An index that is gone meanwhile is not asked about: the search begins anew."""
        rig = Rig.make(ListLedger.of(*[1] * 10))
        rig.dispatch()
        rig.ledger.entries, rig.ledger.begin_index = rig.ledger.entries[8:], 8
        (request,) = rig.answer(code=ResponseCode.INCONSISTENT_STATE, end_index=8)
        assert request.entries is not None
        self.assertEqual(request.entries.first_index, 8)
        rig.ledger.entries, rig.ledger.begin_index = rig.ledger.entries[1:], 9
        (request,) = rig.tick(2_000)
        assert request.entries is not None
        self.assertEqual((request.type, request.entries.first_index), (PushType.COMPARE, 9))

    def test_truncation_that_the_head_has_passed(self) -> None:
        """The entry that a follower was to be cut to has expired meanwhile: the search begins anew."""
        rig = Rig.make(ListLedger.of(*[1] * 10))
        rig.dispatcher.state = DispatcherState.TRUNCATE
        rig.dispatcher._truncate_index = 3
        rig.ledger.entries, rig.ledger.begin_index = rig.ledger.entries[8:], 8
        (request,) = rig.tick(2_000)
        self.assertIs(request.type, PushType.COMPARE)

    def test_answers_must_be_of_pushes(self) -> None:
        """The type of the answers that the tests here give."""
        self.assertIsInstance(pushed(), PushEntryResponse)
