# -*- test-case-name: tests.core.test_catch_up -*-
"""A follower that is far behind gets its entries in portions: beats and votes are never kept waiting."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.catch_up import TURN_BYTES_MAX, TURN_ENTRIES_MAX
from dledger.core.replication.dispatcher import PUSHES_AFTER_SETBACK
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import PushEntryRequest
from tests.core.helpers import Bench, ListLedger, of_type, propose, pushed, pushes


def entries_in(effects: tuple[fx.Effect, ...], peer_id: str | None = None) -> int:
    """Number of entries that were pushed."""
    return sum(
        one.request.entries.count for one in pushes(effects, PushType.APPEND, peer_id)
        if isinstance(one.request, PushEntryRequest) and one.request.entries is not None
    )


class CatchUpTests(SynchronousTestCase):
    """A leader of 100,000 entries; its followers hold the first one."""

    def compared(self, bench: Bench, peer_id: str) -> tuple[fx.Effect, ...]:
        """The follower says that it ends at 0, and is found equal there."""
        (at_end,) = pushes(bench.seen, PushType.COMPARE, peer_id)
        bench.answer(at_end, pushed(term=2, code=ResponseCode.INCONSISTENT_STATE, end_index=0))
        at_zero = pushes(bench.seen, PushType.COMPARE, peer_id)[-1]
        return bench.answer(at_zero, pushed(term=2, end_index=0))

    def leader(self, body: bytes = b"", count: int = 100_000, **options: object) -> Bench:
        """It has begun to lead."""
        return Bench.make(ListLedger([(1, body)] * count), term_start_entry=False, **options).lead()

    def test_a_turn_pushes_a_bounded_number_of_entries(self) -> None:
        """A bounded number of entries a turn, and one request for another turn at a time."""
        bench = self.leader()
        effects = self.compared(bench, "n1")
        self.assertEqual(entries_in(effects), TURN_ENTRIES_MAX)
        self.assertEqual(len(of_type(effects, fx.ContinueLater)), 1)
        self.assertEqual(entries_in(bench.tick(1)), 0)
        for _ in range(10):
            effects = bench.step(ev.TurnCame())
            self.assertEqual(entries_in(effects), TURN_ENTRIES_MAX)
            self.assertEqual(len(of_type(effects, fx.ContinueLater)), 1)

    def test_large_entries_count_by_their_size(self) -> None:
        """Large entries count by their size."""
        bench = self.leader(bytes(100_000), 200, max_inflight_push_bytes=1 << 30)
        effects = self.compared(bench, "n1")
        self.assertLessEqual(entries_in(effects) * 100_000, TURN_BYTES_MAX + 100_000)
        self.assertEqual(len(of_type(effects, fx.ContinueLater)), 1)

    def test_all_followers_share_it(self) -> None:
        """And take turns."""
        bench = self.leader()
        self.compared(bench, "n1")
        effects = self.compared(bench, "n2")
        self.assertEqual(entries_in(effects), 0)
        got = {"n1": 0, "n2": 0}
        for _ in range(6):
            effects = bench.step(ev.TurnCame())
            self.assertEqual(entries_in(effects), TURN_ENTRIES_MAX)
            for peer_id in got:
                got[peer_id] += entries_in(effects, peer_id)
        self.assertEqual(got, {"n1": 3 * TURN_ENTRIES_MAX, "n2": 3 * TURN_ENTRIES_MAX})

    def test_a_follower_in_step_is_not_limited(self) -> None:
        """New entries leave at once, however many, and although another follower uses up the turn."""
        bench = self.leader(count=1)
        bench.match("n2")
        bench.core.leading.budget.is_spent = True
        _, effects = propose(bench, *[0] * (2 * TURN_ENTRIES_MAX))
        self.assertEqual(entries_in(effects, "n2"), 2 * TURN_ENTRIES_MAX)

    def test_smaller_bursts_after_a_set_back(self) -> None:
        """A time-out means that the last burst was too much; acknowledgements open the window again."""
        bench = self.leader(max_batch_push_count=10)
        self.compared(bench, "n1")
        burst = len(pushes(bench.seen, PushType.APPEND, "n1"))
        self.assertEqual(burst, bench.config.max_inflight_pushes)
        bench.seen.clear()
        bench.now_ms += bench.config.max_push_time_out_ms
        bench.core.leading.beats.last_quorum_ms = bench.now_ms  # type: ignore[union-attr]
        bench.tick(0)
        self.compared(bench, "n1")
        sizes = [len(pushes(bench.seen, PushType.APPEND, "n1"))]
        for _ in range(40):
            one = pushes(bench.seen, PushType.APPEND, "n1")[len(sizes) - 1]
            bench.answer(one, pushed(term=2))
            sizes.append(bench.core.leading.dispatchers["n1"].inflight)
        self.assertEqual(sizes[0], PUSHES_AFTER_SETBACK)
        self.assertEqual(sizes[1:6], [4, 8, 16, 32, 33])
        self.assertEqual(sizes[-1], burst)
