# -*- test-case-name: tests.broker.consuming.test_pull_progress -*-
"""How far groups have pulled, and how fast."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.consuming.pull_progress import PullProgress, Rates

#: The begin of a minute, ms since 1970.
MINUTE_MS = 60_000 * 28_000_000


class ProgressTests(SynchronousTestCase):
    """A clock that is set by the test."""

    def setUp(self) -> None:
        self.now_ms = MINUTE_MS

    def clock(self) -> int:
        """ms since 1970."""
        return self.now_ms

    def test_offsets(self) -> None:
        """The end of the last pull, but never before what is committed."""
        progress = PullProgress(self.clock)
        self.assertEqual(progress.offset("g", "t", 0, 5), 5)
        progress.pulled("g", "t", 0, 9, [b"m"] * 4)
        self.assertEqual([progress.offset("g", "t", 0, 5), progress.offset("g", "t", 0, 12)], [9, 12])
        self.assertEqual([progress.offset("h", "t", 0, 5), progress.offset("g", "t", 1, 5)], [5, 5])

    def test_bound(self) -> None:
        """The oldest place is forgotten."""
        progress = PullProgress(self.clock, places_max=2)
        for queue_id in range(3):
            progress.pulled("g", "t", queue_id, 9, [b"m"] * 1)
        self.assertEqual([progress.offset("g", "t", queue_id, 0) for queue_id in range(3)], [0, 9, 9])
        rates = Rates(self.clock, keys_max=2)
        for key in "abc":
            rates.add((key,), 60)
        self.assertEqual([rates.per_second((key,)) for key in "abc"], [0.0, 1.0, 1.0])

    def test_rate(self) -> None:
        """Of the last minute: the one before counts by the share of it that is less than a minute ago."""
        self.now_ms = 20_000 * 86_400_000
        rates, key = Rates(self.clock), ("g", "t")
        self.assertEqual(rates.last(key), (0.0, 0.0, 0.0))
        rates.add(key, 120)
        self.assertEqual((rates.per_second(key), rates.last(key)), (2.0, (120.0, 120.0, 120.0)))
        self.now_ms += 90_000
        self.assertEqual(rates.per_second(key), 1.0)
        rates.add(key, 30)
        self.assertEqual(rates.last(key), (90.0, 150.0, 150.0))
        self.now_ms += 60_000
        self.assertEqual(rates.last(key)[0], 15.0)
        self.now_ms += 60_000
        self.assertEqual(rates.last(key), (0.0, 150.0, 150.0))
        self.now_ms += 3_600_000
        self.assertEqual(rates.last(key)[0::2], (0.0, 150.0))
        self.assertGreater(150.0, rates.last(key)[1])
