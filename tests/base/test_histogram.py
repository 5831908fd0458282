# -*- test-case-name: tests.base.test_histogram -*-
"""Numbers in buckets."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.histogram import DURATION_BUCKETS_S, Histogram


class HistogramTests(SynchronousTestCase):
    """Durations in buckets."""

    def test_buckets(self) -> None:
        """A bound belongs to its bucket; what is above them all has one of its own."""
        histogram = Histogram((1.0, 2.0))
        for value in (0.0, 1.0, 1.5, 2.0, 2.1, 100.0):
            histogram.observe(value)
        status = histogram.status()
        self.assertEqual(status.counts, [2, 2, 2])
        self.assertEqual(status.count, 6)
        self.assertAlmostEqual(status.total, 106.6)

    def test_picture(self) -> None:
        """Does not change afterwards."""
        histogram = Histogram()
        status = histogram.status()
        histogram.observe(0.001)
        self.assertEqual(status.count, 0)
        self.assertEqual(status.bounds, DURATION_BUCKETS_S)

    def test_bounds_rise(self) -> None:
        """As those who draw them expect."""
        self.assertEqual(list(DURATION_BUCKETS_S), sorted(set(DURATION_BUCKETS_S)))
