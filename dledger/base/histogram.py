# -*- test-case-name: tests.base.test_histogram -*-
"""Numbers in buckets: how many were at most as large as each bound. They are never forgotten."""

from __future__ import annotations

from bisect import bisect_left
from typing import Self

import attrs

#: Upper bounds of the buckets of L{Histogram}, in seconds; one more bucket has no upper bound.
DURATION_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@attrs.define
class Histogram:
    """
    Numbers in buckets. Invariant: one count per bound, and one for numbers above all bounds.

    @ivar bounds: upper bounds of the buckets; one more bucket has no upper bound.
    @ivar counts: observations in each bucket (not cumulative).
    @ivar total: sum of all observations.
    """

    bounds: tuple[float, ...] = DURATION_BUCKETS_S
    counts: list[int] = attrs.Factory(lambda self: [0] * (len(self.bounds) + 1), takes_self=True)
    total: float = 0.0

    @property
    def count(self) -> int:
        """Number of observations."""
        return sum(self.counts)

    def observe(self, value: float) -> None:
        """Add one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def status(self) -> Self:
        """A copy."""
        return attrs.evolve(self, counts=list(self.counts))
