# -*- test-case-name: tests.core.test_catch_up_pace -*-
"""Catching up gives way to appends: it has a rate while the group serves, and none while it does not."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.catch_up import (
    CALM_MIN,
    CREDIT_MS,
    RATE_FIRST,
    RATE_MAX,
    RATE_MIN,
    RATE_STEP,
    SERVES_MS,
    SERVING_BYTES_MAX,
    SERVING_ENTRIES_MAX,
    SLOW_FACTOR,
    STEP_MS,
    TURN_BYTES_MAX,
    TURN_ENTRIES_MAX,
    TurnBudget,
)
from dledger.core.replication.dispatcher import CHUNKS_BESIDE_APPENDS
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import PushEntryRequest, PushEntryResponse
from tests.core.helpers import Bench, ListLedger, batch, kinds, make_member, of_type, propose, pushed, pushes

_MIB = 1024 * 1024


class RateTests(SynchronousTestCase):
    """One append after the other is committed, while n1 is far behind."""

    def setUp(self) -> None:
        """The first look at n1."""
        self.ledger = ListLedger([(1, b"")] * 100)
        self.member = make_member(self.ledger)
        self.budget = TurnBudget(self.member.out)
        self.now_ms = 0
        self.wait(1000)
        self.budget.see("n1", 0, self.member)

    def wait(self, ms: int) -> None:
        """Time passes."""
        self.now_ms += ms
        self.member.out.take()
        self.member.out.now_ms = self.now_ms

    def append(self, took_ms: int, *, beside: int = 0, entries: int = 1) -> None:
        """An append is committed; C{beside}: pushes to n1 without an answer."""
        self.ledger.entries += [(1, b"")] * entries
        self.member.refresh_end()
        self.budget.see("n1", beside, self.member)
        self.wait(took_ms)
        self.budget.committed(self.member.ledger_end_index)

    def calm(self, took_ms: int, count: int = CALM_MIN) -> None:
        """Appends that meet no catching up."""
        for _ in range(count):
            self.append(took_ms)
            self.wait(1)

    def paused_ms(self) -> int:
        """How long n1 waits for the next push after one of a mebibyte, while appends are committed."""
        self.budget.rate = RATE_FIRST
        self.budget.spend("n1", batch(0, (1, bytes(_MIB - 20))))
        self.budget.renew()
        began_ms = self.now_ms
        while not self.budget.may_push("n1"):
            self.append(1, beside=1)
        return self.now_ms - began_ms

    def known(self) -> None:
        """It is known that appends take 3 ms; the rate may be changed again."""
        self.calm(3)
        self.budget.rate = 100 * _MIB
        self.wait(STEP_MS)

    def test_nothing_to_compare_with(self) -> None:
        """Until calm appends are known, the first rate stays."""
        for _ in range(5):
            self.wait(STEP_MS)
            self.append(200, beside=1)
        self.assertEqual(self.budget.rate, RATE_FIRST)

    def test_a_slow_append_halves_the_rate(self) -> None:
        """A slow append halves it, one after the other not at once again."""
        self.known()
        self.append(SLOW_FACTOR * 3 + 1, beside=1)
        self.assertEqual(self.budget.rate, 50 * _MIB)
        self.append(SLOW_FACTOR * 3 + 1, beside=1)
        self.assertEqual(self.budget.rate, 50 * _MIB)
        self.wait(STEP_MS)
        self.append(SLOW_FACTOR * 3 + 1, beside=1)
        self.assertEqual(self.budget.rate, 25 * _MIB)

    def test_slow_on_the_whole(self) -> None:
        """No append is much longer, but all of them take longer; each halving has time to show its effect."""
        self.known()
        halved = []
        for _ in range(90):
            before = self.budget.rate
            self.append(SLOW_FACTOR * 3 - 1, beside=1)
            halved.append(self.budget.rate < before)
        self.assertEqual(sum(halved), 2)
        self.assertLess(self.budget.rate, 60 * _MIB)

    def test_the_rate_grows_step_by_step(self) -> None:
        """It grows step by step, up to its bound."""
        self.known()
        self.append(SLOW_FACTOR * 3, beside=1)
        self.append(1, beside=1)
        self.assertEqual(self.budget.rate, 100 * _MIB + RATE_STEP)
        self.budget.rate = RATE_MAX - 1
        self.wait(STEP_MS)
        self.append(1, beside=1)
        self.assertEqual(self.budget.rate, RATE_MAX)

    def test_the_rate_has_a_lower_bound(self) -> None:
        """The follower is not starved."""
        self.known()
        for _ in range(20):
            self.wait(STEP_MS)
            self.append(50, beside=1)
        self.assertEqual(self.budget.rate, RATE_MIN)

    def test_floor_above_appends(self) -> None:
        """However slow appends are, the follower comes closer."""
        self.known()
        per_second = 0.0
        for _ in range(20):
            began_ms = self.now_ms
            self.wait(STEP_MS)
            self.append(50, beside=1, entries=1000)
            per_second = 1000 * 1024 * 1000 / (self.now_ms - began_ms)
        self.assertGreaterEqual(self.budget.rate, 2 * per_second)

    def test_other_load_does_not_lower_the_rate(self) -> None:
        """What lengthens the others too is not the catching up."""
        self.known()
        self.calm(30)
        self.wait(STEP_MS)
        rate = self.budget.rate
        self.append(40, beside=1)
        self.assertGreater(self.budget.rate, rate)

    def test_an_append_beside_a_push_is_not_calm(self) -> None:
        """An append beside which a push left is not calm."""
        self.known()
        self.ledger.entries += [(1, b"")]
        self.member.refresh_end()
        self.budget.see("n1", 0, self.member)
        self.budget.spend("n1", batch(0, 1))
        self.wait(20)
        self.budget.committed(self.member.ledger_end_index)
        self.assertEqual((self.budget.rate, self.budget.calm_ms), (50 * _MIB, 3))

    def test_waits_for_the_follower(self) -> None:
        """Appends without a majority do not count, and nothing is held back for them."""
        self.known()
        self.append(SERVES_MS, beside=1)
        self.assertEqual(self.budget.rate, 100 * _MIB)
        self.ledger.entries += [(1, b"")]
        self.member.refresh_end()
        self.budget.see("n1", 1, self.member)
        self.budget.rate = RATE_MIN
        for _ in range(8):
            self.budget.spend("n1", batch(0, *[1] * 1000))
        self.wait(SERVES_MS - 1)
        self.budget.renew()
        self.assertFalse(self.budget.may_push("n1"))
        self.wait(1)
        self.assertTrue(self.budget.may_push("n1"))

    def test_a_pause_follows_each_push(self) -> None:
        """A push is followed by the time that its bytes take at the rate; a little time is caught up."""
        self.calm(1)
        self.wait(1)
        first_ms = self.paused_ms()
        self.assertEqual(first_ms, ceil(1000 * _MIB / RATE_FIRST - CREDIT_MS))
        self.assertEqual(first_ms + self.paused_ms(), ceil(2000 * _MIB / RATE_FIRST - CREDIT_MS))

    def test_two_followers_share_the_rate(self) -> None:
        """Each of two has half of the rate, and its own pauses."""
        self.calm(1)
        self.budget.see("n2", 0, self.member)
        self.assertEqual(self.paused_ms(), ceil(2000 * _MIB / RATE_FIRST - CREDIT_MS))
        self.budget.spend("n1", batch(0, (1, bytes(_MIB))))
        self.budget.renew()
        self.assertEqual([self.budget.may_push(one) for one in ("n1", "n2")], [False, True])

    def test_small_entries_cost_more(self) -> None:
        """Entries that are pushed one by one cost time for each."""
        self.calm(1)
        self.assertEqual(self.budget.portion("n1"), (SERVING_ENTRIES_MAX, SERVING_BYTES_MAX))
        self.assertEqual(self.budget.portion("n2"), (TURN_ENTRIES_MAX, TURN_BYTES_MAX))
        self.budget.spend("n1", batch(0, *[1] * TURN_ENTRIES_MAX))
        self.budget.renew()
        self.wait(1)
        self.assertFalse(self.budget.may_push("n1"))

    def test_the_rate_is_forgotten_when_nobody_is_behind(self) -> None:
        """When nobody is far behind, no time is taken, and the next time begins anew."""
        self.known()
        self.ledger.entries += [(1, b"")]
        self.member.refresh_end()
        self.budget.see("n1", 0, self.member)
        self.assertIsNotNone(self.budget.probe)
        self.budget.leave("n1")
        self.assertIsNone(self.budget.probe)
        self.assertEqual((self.budget.rate, self.budget.calm_ms), (RATE_FIRST, 0))
        self.budget.see("n1", 0, self.member)
        self.assertIsNone(self.budget.probe)


class LeaderTests(SynchronousTestCase):
    """A leader of 8,000 entries, a kibibyte each as it counts; n2 is in step, n1 holds the first one."""

    def leader(self, *, chunks: bool = True, count: int = 8_000) -> Bench:
        """n1 was found equal at 0, and gets its first portion."""
        ledger = ListLedger([(1, bytes(1004))] * count, chunk_entries=500 if chunks else 0)
        bench = Bench.make(ledger, term_start_entry=False, committed_index=count - 1).lead()
        bench.match("n2")
        (at_end,) = pushes(bench.seen, PushType.COMPARE, "n1")
        bench.answer(at_end, self.reported(ResponseCode.INCONSISTENT_STATE))
        bench.answer(pushes(bench.seen, PushType.COMPARE, "n1")[-1], self.reported())
        return bench

    def reported(self, code: ResponseCode = ResponseCode.SUCCESS) -> PushEntryResponse:
        """An answer of n1."""
        return PushEntryResponse(
            group="g", code=code, term=2, begin_index=0, end_index=0, wire_version=1
        )

    def append(self, bench: Bench, took_ms: int = 1) -> tuple[fx.Effect, ...]:
        """n2 acknowledges an append."""
        _, effects = propose(bench, 0)
        (push,) = pushes(effects, PushType.APPEND, "n2")
        bench.now_ms += took_ms
        return effects + bench.answer(push, pushed(term=2))

    def answers(self, bench: Bench) -> tuple[fx.Effect, ...]:
        """n1 acknowledges everything that it was pushed."""
        reported, effects = self.reported(), list[fx.Effect]()
        for one in pushes(bench.seen, PushType.APPEND, "n1"):
            effects.extend(bench.answer(one, reported))
        return tuple(effects)

    def counts(self, effects: Iterable[fx.Effect]) -> list[int]:
        """The entries of each push to n1."""
        return [
            one.request.entries.count for one in pushes(effects, PushType.APPEND, "n1")
            if isinstance(one.request, PushEntryRequest) and one.request.entries is not None
        ]

    def test_an_idle_leader_pushes_in_every_turn(self) -> None:
        """Without appends chunks leave turn after turn, as many as may be unanswered."""
        bench = self.leader(count=12_000)
        for _ in range(20):
            self.assertIn(self.counts(bench.step(ev.TurnCame())), ([500], []))  # two are more than a mebibyte
        found = self.counts(bench.seen)
        self.assertEqual(found, [499, *[500] * (len(found) - 1)])
        self.assertGreaterEqual(sum(found) * 1056, bench.config.max_inflight_push_bytes)

    def test_a_serving_leader_pauses_between_chunks(self) -> None:
        """Beside appends two chunks are unanswered at most, and a pause follows each."""
        bench = self.leader()
        self.append(bench)
        self.answers(bench)
        bench.seen.clear()
        for _ in range(20):
            bench.step(ev.TurnCame())
            self.append(bench)
        self.assertEqual(self.counts(bench.seen), [500] * CHUNKS_BESIDE_APPENDS)
        pushed_bytes, began_ms = 0, bench.now_ms
        while bench.now_ms < began_ms + 120:
            found = self.counts(self.answers(bench)) + self.counts(bench.step(ev.TurnCame()))
            bench.seen = [one for one in bench.seen if one in pushes([one], PushType.APPEND, "n1")][-8:]
            pushed_bytes += sum(found) * (1024 + 32)
            self.append(bench)
        rate = pushed_bytes * 1000 / (bench.now_ms - began_ms)
        self.assertLess(rate, 1.2 * bench.core.leading.budget.rate)
        self.assertGreater(rate, RATE_MIN)

    def test_appends_pass_a_pausing_follower(self) -> None:
        """A pause of the one holds nothing back from the others."""
        bench = self.leader()
        self.append(bench)
        self.append(bench)
        self.assertFalse(bench.core.leading.budget.may_push("n1"))
        self.assertEqual(
            kinds(self.append(bench)), ["WriteBodies", "n2<-APPEND", "RecordCommit", "AnswerAppend"]
        )

    def test_small_portions_are_pushed_beside_appends(self) -> None:
        """Entries are pushed one by one in smaller portions beside appends, and one portion in a turn."""
        bench = self.leader(chunks=False)
        self.append(bench)
        self.answers(bench)
        bench.now_ms += 100
        self.append(bench)
        effects = bench.step(ev.TurnCame())
        self.assertEqual(self.counts(effects), [SERVING_BYTES_MAX // 1024])
        self.assertEqual(len(of_type(effects, fx.ContinueLater)), 1)

    def test_a_follower_that_lacks_little_does_not_wait(self) -> None:
        """A follower that lacks little is pushed everything: a commit may wait for it."""
        bench = self.leader(chunks=False, count=900)
        self.assertEqual(self.counts(bench.seen), [899])
        for count, is_paced in ((1500, False), (5000, True)):
            bench = self.leader(chunks=False, count=count)  # the first portion leaves 475, or 3975
            propose(bench, 0)
            self.assertEqual(bench.core.leading.budget.probe is not None, is_paced)
