# -*- test-case-name: tests.processes.test_chaos -*-
"""A short run of C{tests.processes.chaos}; the long one is C{python -m tests.processes.chaos}."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.chaos import ACTIONS, plan_rounds, run

#: The environment may set more rounds, as in DLEDGER_CHAOS_ROUNDS=30.
ROUNDS = int(os.environ.get("DLEDGER_CHAOS_ROUNDS", "4"))
SEED = int(os.environ.get("DLEDGER_CHAOS_SEED", "5"))


class ChaosTests(SynchronousTestCase):
    """Kills and pauses under load."""

    def play(self, flush: str, wire: str = "auto") -> None:
        """Run once and expect no errors."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            report = run(Path(name), rounds=plan_rounds(ROUNDS, SEED), flush=flush, seed=SEED, wire=wire)
        self.assertEqual(report.wrong, [], "\n".join(report.lines()))
        self.assertGreater(report.acknowledged, 100)
        self.assertGreater(report.stale_checks, 0)

    def test_async(self) -> None:
        """Acknowledged from the page cache, which outlives a process."""
        self.play("async")

    def test_sync(self) -> None:
        """Acknowledged after fsync."""
        self.play("sync")

    def test_remoting(self) -> None:
        """Members and clients with the JSON wire only."""
        self.play("async", wire="remoting")

    def test_plan(self) -> None:
        """Every action has its turn, in an order that depends on the seed."""
        self.assertEqual(sorted(plan_rounds(8, 1)), sorted(ACTIONS * 2))
        self.assertEqual(plan_rounds(30, 7), plan_rounds(30, 7))
        self.assertNotEqual(plan_rounds(30, 7), plan_rounds(30, 8))
