# -*- test-case-name: tests.broker.admin.test_runtime_stats -*-
"""Rates and totals of counters."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.admin.runtime_stats import SAMPLES_MAX, RuntimeStats

#: Noon of a day wherever this runs, except in the zones at the edges of the calendar.
NOON_MS = 1_700_049_600_000


class StatsTests(SynchronousTestCase):
    """One counter."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.counters = {"put": 100}
        self.stats = RuntimeStats(
            lambda: dict(self.counters), clock=self.clock,
            wall_ms=lambda: NOON_MS + int(self.clock.seconds() * 1000),
        )

    def run_for(self, seconds: int, per_second: int) -> None:
        """A counter rises, and is read each second."""
        for _ in range(seconds):
            self.clock.advance(1)
            self.counters["put"] += per_second
            self.stats.sweep()

    def test_unknown(self) -> None:
        """Nothing is known at first, nor of what is not counted."""
        self.assertEqual(self.stats.rates("put"), "0.00 0.00 0.00")
        self.run_for(2, 5)
        self.assertEqual(self.stats.per_second("other"), 0.0)
        self.counters["new"] = 7
        self.run_for(1, 0)
        self.assertEqual(self.stats.per_second("new"), 0.0)

    def test_windows(self) -> None:
        """The rate of the last ten seconds, the last minute, and ten minutes."""
        self.stats.sweep()
        self.run_for(590, 1)
        self.run_for(10, 61)
        self.assertEqual(self.stats.rates("put"), "61.00 11.00 2.00")
        self.assertEqual(self.stats.rates("put", "put"), "122.00 22.00 4.00")

    def test_samples(self) -> None:
        """They are a second apart, however often they are asked for, and are not kept for ever."""
        self.stats.sweep()
        for _ in range(8):
            self.clock.advance(0.125)
            self.stats.sweep()
        self.assertEqual(len(self.stats._samples), 2)
        self.run_for(SAMPLES_MAX + 50, 1)
        self.assertEqual(len(self.stats._samples), SAMPLES_MAX)

    def test_days(self) -> None:
        """What was counted when a day began, and when the one before began."""
        self.assertEqual(self.stats.totals("put"), (100, 100, 100))
        self.counters["put"] = 150
        for total in (200, 300):
            self.clock.advance(86400)
            self.counters["put"] = total
            self.stats.sweep()
        self.counters["put"] = 310
        self.assertEqual(self.stats.totals("put"), (200, 300, 310))

    def test_running(self) -> None:
        """For how long it has been running."""
        self.clock.advance(86400 + 3600 * 2 + 60 * 3 + 4)
        self.assertEqual(self.stats.running, "[ 1 days, 2 hours, 3 minutes, 4 seconds ]")
