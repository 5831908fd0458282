# -*- test-case-name: tests.interop.test_mixed_benchmark -*-
"""The calculations of the benchmark of mixed groups."""

from __future__ import annotations

import math

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from benchmarks.append import Cell, Measured
from benchmarks.load import Sample
from benchmarks.mixed import SYSTEMS, baseline_of, main, ratio_of


def cell(system: str) -> Cell:
    """A row of the results."""
    return Cell(system=system, flush="async", body_bytes=100, window=64)


def measured(*rates: float) -> Measured:
    """Rounds with these rates in appends per second."""
    return Measured(samples=[
        Sample(throughput_per_s=rate, p50_ms=1.0, p99_ms=2.0, acknowledged=10) for rate in rates
    ])


class RatioTests(SynchronousTestCase):
    """Groups are compared with the same leader among its own kind, round by round."""

    def test_baseline(self) -> None:
        """The leader decides; every leader has a baseline among the systems."""
        self.assertEqual(baseline_of("java+java+ours"), "java+java+java")
        self.assertEqual(baseline_of("ours+java+java"), "ours+ours+ours")
        self.assertLessEqual({baseline_of(system) for system in SYSTEMS}, set(SYSTEMS))

    def test_round_by_round(self) -> None:
        """A slow round slows both groups down; medians of each would hide the ratio."""
        results = {
            cell("java+java+java"): measured(100, 10, 100),
            cell("java+ours+ours"): measured(110, 11, 120),
        }
        self.assertAlmostEqual(ratio_of(results, cell("java+ours+ours")), 1.1)

    def test_nothing_to_compare_with(self) -> None:
        """A baseline has no ratio, nor has a group whose baseline was not measured."""
        results = {cell("java+java+java"): measured(100), cell("ours+java+java"): measured(100)}
        for system in ("java+java+java", "ours+java+java"):
            self.assertTrue(math.isnan(ratio_of(results, cell(system))))


class CommandTests(SynchronousTestCase):
    """The command line."""

    def test_unknown_system(self) -> None:
        """It is refused; the message names the known ones."""
        result = CliRunner().invoke(main, ["--systems", "java+perl+ours"])
        self.assertEqual(result.exit_code, 2)
        self.assertIn("java+java+ours", result.output)
