# -*- test-case-name: tests.core.test_stop -*-
"""An orderly stop: leadership is handed over, and all who wait are answered."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from tests.core.helpers import (
    Bench,
    ListLedger,
    batch,
    events,
    heart_beat,
    kinds,
    of_type,
    propose,
    push,
    pushes,
    quiet,
)
from tests.core.test_transfer import ask_leader, ask_taker, asks, codes, leader, taken


class StopTests(SynchronousTestCase):
    """A leader that is asked to stop hands over first, and stops whatever the outcome is."""

    def stops(self, effects: tuple[fx.Effect, ...]) -> list[fx.StopMember]:
        """How often and how it stopped."""
        return of_type(effects, fx.StopMember)

    def test_follower_stops_at_once(self) -> None:
        """Nothing to hand over."""
        effects = Bench.make().follow().step(ev.StopRequested())
        self.assertEqual(quiet(effects), (fx.StopMember(reason="asked to stop", clean=True),))

    def test_leader_hands_over(self) -> None:
        """Takes no appends, asks the closest, stops when that one leads."""
        bench = leader("n1", "n2")
        self.assertEqual(asks(bench.step(ev.StopRequested())), [("n1", 1)])
        _, effects = propose(bench, 1)
        self.assertEqual([one.code for one in of_type(effects, fx.AnswerAppend)],
                         [ResponseCode.LEADER_TRANSFERRING])
        effects = taken(bench, ResponseCode.SUCCESS, 3)
        self.assertEqual(kinds(effects), ["PersistTermVote", "StopMember"])

    def test_nobody_to_hand_over_to(self) -> None:
        """Then at once."""
        self.assertEqual(len(self.stops(leader().step(ev.StopRequested()))), 1)

    def test_a_transfer_is_under_way(self) -> None:
        """It is waited for."""
        bench = leader("n1", "n2")
        bench.request(ask_leader())
        token = bench.last_token
        self.assertEqual(kinds(bench.step(ev.StopRequested())), [])
        self.assertEqual(len(self.stops(taken(bench, ResponseCode.SUCCESS, 3))), 1)
        self.assertEqual(codes(bench, token), ["SUCCESS"])

    def test_a_stop_always_ends_once(self) -> None:
        """Once, whatever the taker does, also when a tick is late; nothing happens after it."""
        for late_ms in (20, 5_000):
            bench = leader("n1", "n2", leadership_transfer_wait_timeout=300)
            bench.step(ev.StopRequested())
            effects: tuple[fx.Effect, ...] = ()
            for _ in range(60):
                bench.confirm("n2")
                effects += bench.tick(late_ms)
            self.assertEqual(len(self.stops(effects)), 1, late_ms)
            self.assertEqual(kinds(effects)[-1], "StopMember", late_ms)

    def test_ends_even_without_a_transfer(self) -> None:
        """The stop has a deadline of its own, and asking again does not move it; no appends meanwhile."""
        bench = leader("n1", "n2", leadership_transfer_wait_timeout=300)
        bench.step(ev.StopRequested())
        giving = bench.core.transfer.giving
        assert giving is not None
        giving.deadline_ms = 1 << 40
        bench.tick(599)
        bench.step(ev.StopRequested())
        _, effects = propose(bench, 1)
        self.assertEqual([one.code for one in of_type(effects, fx.AnswerAppend)],
                         [ResponseCode.LEADER_TRANSFERRING])
        self.assertEqual(len(self.stops(bench.tick(21))), 1)

    def test_overdue_request_ends_it_in_a_tick(self) -> None:
        """When the request to the taker itself is overdue, that tick does nothing else."""
        bench = leader("n1", "n2", leadership_transfer_wait_timeout=60_000, rpc_time_out_ms=100)
        bench.step(ev.StopRequested())
        effects = bench.tick(200)
        self.assertEqual(kinds(effects), ["StopMember"])

    def test_client_of_a_transfer_that_outlived_the_leadership(self) -> None:
        """The member that does not lead any more stops at once, but not without an answer."""
        bench = leader("n1", "n2")
        bench.request(ask_leader())
        token = bench.last_token
        bench.request(heart_beat("n2", 3))
        effects = bench.step(ev.StopRequested())
        self.assertEqual(kinds(effects), ["Reply TAKE_LEADERSHIP_FAILED", "StopMember"])
        self.assertEqual(len(codes(bench, token)), 1)

    def test_ends_although_the_disk_fails(self) -> None:
        """The step that ends it may fail at its first effect, its end be dropped: the failure ends it."""
        bench = leader("n1", "n2")
        bench.step(ev.StopRequested())
        self.assertEqual(kinds(taken(bench, ResponseCode.SUCCESS, 3)), ["PersistTermVote", "StopMember"])
        effects = bench.core.step(ev.StoreFailed(reason="no room"), bench.now_ms)
        self.assertEqual(effects, (fx.StopMember(reason="no room", clean=False),))
        self.assertEqual(bench.core.step(ev.Ticked(), bench.now_ms), ())

    def test_a_second_stop_changes_nothing(self) -> None:
        """The second time changes nothing."""
        bench = leader("n1", "n2")
        bench.step(ev.StopRequested())
        self.assertEqual(kinds(bench.step(ev.StopRequested())), [])

    def test_everybody_who_waits_is_reported(self) -> None:
        """Appends, reads, pushes, transfers: each once, and before the stop."""
        bench = leader("n1", "n2")
        (appended,), _ = propose(bench, 1)
        bench.step(ev.ReadRequested((900,)))
        bench.core.member.peers.last_heard_ms.clear()
        effects = bench.step(ev.StopRequested())
        self.assertEqual(kinds(effects), ["AnswerAppend", "AnswerRead", "StopMember"])
        self.assertEqual([one.token for one in of_type(effects, fx.AnswerAppend)], [appended])

    def test_queued_pushes_are_answered(self) -> None:
        """A follower's window too."""
        bench = Bench.make(ListLedger.of(1), term=3).follow("n1", 3)
        bench.request(push(PushType.COMPARE, batch(0, 1), term=3))
        bench.request(push(PushType.APPEND, batch(5, 3), term=3))
        bench.request(ask_taker(7))
        effects = bench.step(ev.StopRequested())
        self.assertEqual(
            sorted(kinds(effects)),
            ["Reply INCONSISTENT_STATE", "Reply TAKE_LEADERSHIP_FAILED", "StopMember"],
        )

    def test_nothing_after_it(self) -> None:
        """A member that has stopped takes no input but one, see L{test_ends_although_the_disk_fails}."""
        bench = Bench.make().follow()
        bench.step(ev.StopRequested())
        for happened in (
            ev.Ticked(), ev.ReadRequested((1,)), ev.RequestReceived(token=5, request=heart_beat("n2", 9)),
            ev.EntriesFlushed(flush_id=1, end_index=1), ev.StopRequested(),
        ):
            self.assertEqual(bench.step(happened), ())

    def test_an_operator_sees_the_stop(self) -> None:
        """What an operator sees of it."""
        bench = leader("n1", "n2")
        bench.step(ev.StopRequested())
        taken(bench, ResponseCode.SUCCESS, 3)
        seen = events(bench.seen)
        self.assertLess(seen.index("transfer-started"), seen.index("transfer-ended"))
        self.assertEqual(pushes(bench.step(ev.Ticked())), [])
