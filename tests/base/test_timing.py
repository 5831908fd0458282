# -*- test-case-name: tests.base.test_timing -*-
"""Waiting for many, and waiting longer."""

from __future__ import annotations

import random

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.timing import Alarm, Backoff, Gathering


class GatheringTests(SynchronousTestCase):
    """L{Gathering}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.asked: dict[str, Deferred[int]] = {"a": Deferred(), "b": Deferred()}
        self.seen: list[str] = []
        self.gathering = Gathering(
            self.clock, self.asked, deadline_s=2.0, answered=lambda _g, name, _r: self.seen.append(name)
        )

    def test_all(self) -> None:
        """Fires as soon as everybody has answered or failed."""
        self.asked["a"].callback(1)
        self.assertNoResult(self.gathering.outcome)
        self.asked["b"].errback(ValueError("no"))
        outcome = self.successResultOf(self.gathering.outcome)
        self.assertEqual(outcome["a"], 1)
        self.assertIsInstance(outcome["b"], Failure)
        self.assertEqual((self.seen, self.clock.getDelayedCalls()), (["a"], []))

    def test_deadline(self) -> None:
        """Who is late is left out, and harms nothing later."""
        self.asked["a"].callback(1)
        self.clock.advance(2.0)
        self.assertEqual(self.successResultOf(self.gathering.outcome), {"a": 1})
        self.asked["b"].errback(ValueError("late"))

    def test_hurry(self) -> None:
        """The deadline can come closer, not move away."""
        self.gathering.hurry(0.5)
        self.gathering.hurry(1.0)
        self.clock.advance(0.4)
        self.assertNoResult(self.gathering.outcome)
        self.clock.advance(0.1)
        self.assertEqual(self.successResultOf(self.gathering.outcome), {})

    def test_nobody(self) -> None:
        """Nobody asked: nothing to wait for."""
        nobody: dict[str, Deferred[int]] = {}
        self.assertEqual(self.successResultOf(Gathering(self.clock, nobody, deadline_s=1).outcome), {})
        self.gathering.close()


class BackoffTests(SynchronousTestCase):
    """L{Backoff}."""

    def test_grows_to_its_bound(self) -> None:
        """Doubles, jittered by half, and stays at its bound however often it is asked."""
        backoff = Backoff(rng=random.Random(1))
        waits = [backoff.next_s() for _ in range(2000)]
        for number, wait_s in enumerate(waits[:6]):
            base_s = 0.02 * 2**number
            self.assertTrue(0.5 * base_s <= wait_s <= 1.5 * base_s)
        self.assertTrue(all(0.5 <= wait_s <= 1.5 for wait_s in waits[10:]))
        self.assertGreater(len(set(waits[10:])), 1900)

    def test_reset(self) -> None:
        """After a success it begins anew."""
        backoff = Backoff(rng=random.Random(1))
        for _ in range(10):
            backoff.next_s()
        backoff.reset()
        self.assertEqual(backoff.attempts, 0)
        self.assertLess(backoff.next_s(), 0.04)


class AlarmTests(SynchronousTestCase):
    """L{Alarm}."""

    def test_set(self) -> None:
        """It rings once for each time it was set; set twice, it keeps its first time."""
        clock, rung = Clock(), []
        alarm = Alarm(clock, lambda: rung.append(clock.seconds()))
        alarm.set(1.0)
        alarm.set(0.5)
        self.assertTrue(alarm.is_set)
        clock.advance(1.0)
        self.assertEqual((rung, alarm.is_set), ([1.0], False))
        alarm.set(1.0)
        clock.advance(1.0)
        self.assertEqual(rung, [1.0, 2.0])

    def test_cancel(self) -> None:
        """A cancelled one does not ring, and can be set again; cancelling an unset one is allowed."""
        clock, rung = Clock(), []
        alarm = Alarm(clock, lambda: rung.append(clock.seconds()))
        alarm.cancel()
        alarm.set(1.0)
        alarm.cancel()
        self.assertEqual((alarm.is_set, clock.getDelayedCalls()), (False, []))
        alarm.set(2.0)
        clock.advance(2.0)
        self.assertEqual(rung, [2.0])
