# -*- test-case-name: tests.node.test_health -*-
"""A member that does not serve says so, and why."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.reporting.health import TOLD_CHARACTERS_MAX, health_problem, told_health
from tests.admin.fakes import MACHINE, picture


class HealthTests(SynchronousTestCase):
    """L{health_problem} of pictures."""

    def test_a_healthy_member_has_no_problem(self) -> None:
        """A leader, and a follower that keeps up."""
        self.assertIsNone(health_problem(picture()))
        self.assertIsNone(health_problem(picture(role="follower", leader_id="n1")))
        self.assertEqual(told_health(picture()), "")

    def test_problems_begin_with_documented_words(self) -> None:
        """Each begins with the word that docs/operations.md explains."""
        facts: dict[str, Any]
        for facts, word in (
            ({"state": "stopping"}, "the member is stopping"),
            ({"state": "failed", "reason": "fsync failed"}, "the member is failed: fsync failed"),
            ({"is_diverged": True}, "diverged"),
            ({"repair_end_index": 300}, "repairing"),
            ({"is_disk_full": True}, "disk full"),
            ({"leader_id": None}, "no leader known"),
            ({"is_unsure": True}, "unsure"), ({"is_dismissed": True, "leader_id": None}, "removed"),
            ({"voters": (), "leader_id": None}, "joining"),
            ({"machine": attrs.evolve(MACHINE, state="failed")}, "its state machine has stopped"),
            ({"is_unsure": True, "leader_id": None}, "no leader known; unsure: its directory is new"),
            ({"role": "follower", "leader_committed_index": 1099, "healthy_lag_entries": 999}, "behind"),
        ):
            problem = health_problem(picture(**facts))
            self.assertTrue(problem is not None and problem.startswith(word), (word, problem))

    def test_a_large_lag_is_a_problem(self) -> None:
        """More than the bound; none for 0; a leader is never behind."""
        behind: dict[str, Any] = {"role": "follower", "leader_committed_index": 1099}
        self.assertIsNone(health_problem(picture(**behind, healthy_lag_entries=1000)))
        self.assertIsNone(health_problem(picture(**behind, healthy_lag_entries=0)))
        self.assertIsNone(health_problem(picture(leader_committed_index=1099, healthy_lag_entries=1)))
        problem = health_problem(picture(**behind, healthy_lag_entries=9))
        self.assertIn("1000 committed entries", problem or "")

    def test_health_is_one_bounded_line(self) -> None:
        """One bounded line."""
        told = told_health(picture(state="failed", reason="a\nb " + "x" * 1000))
        self.assertEqual((told[:26], len(told)), ("the member is failed: a b ", TOLD_CHARACTERS_MAX))
