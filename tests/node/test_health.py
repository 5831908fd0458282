# -*- test-case-name: tests.node.test_health -*-
"""A member that does not serve says so, and why."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.reporting.health import (
    READY_SHARE,
    REPORTED_CHARACTERS_MAX,
    ROUNDS_IN_VAIN,
    health_problem,
    readiness_problems,
    reported_health,
)
from tests.admin.fakes import MACHINE, picture


class HealthTests(SynchronousTestCase):
    """L{health_problem} of pictures."""

    def test_a_healthy_member_has_no_problem(self) -> None:
        """A leader, and a follower that keeps up."""
        self.assertIsNone(health_problem(picture()))
        self.assertIsNone(health_problem(picture(role="follower", leader_id="n1")))
        self.assertEqual(reported_health(picture()), "")

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
            ({"why_state_unknown": "no file; n2 sends none"}, "it does not know the state of the group"),
            ({"machine": attrs.evolve(MACHINE, state="failed")}, "its state machine has stopped"),
            ({"machine": attrs.evolve(MACHINE, state="installing", rounds_in_vain=ROUNDS_IN_VAIN)},
             "its state machine has no state"),
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

    def test_who_serves_is_ready(self) -> None:
        """Who serves is ready, except a leader that hands over, and who lacks more than a share."""
        self.assertEqual(readiness_problems(picture()), ())
        (reported,) = readiness_problems(picture(transferee_id="n1"))
        self.assertTrue(reported.startswith("handing over: leadership goes to n1"), reported)
        self.assertEqual(readiness_problems(picture(role="follower", leader_id="n1", transferee_id="n1")), ())
        behind: dict[str, Any] = {"role": "follower", "leader_id": "n1", "healthy_lag_entries": 1000}
        most = 1000 // READY_SHARE
        own = picture(**behind).member.committed_index
        for lag, is_ready in ((most, True), (most + 1, False), (1000, False)):
            reported_of = readiness_problems(picture(**behind, leader_committed_index=own + lag))
            self.assertEqual(not reported_of, is_ready, lag)
        for state, words in (("starting", "is starting"), ("installing", "waits for a snapshot")):
            (reported,) = readiness_problems(picture(machine=attrs.evolve(MACHINE, state=state)))
            self.assertIn(f"its state machine {words}", reported)
        early = attrs.evolve(MACHINE, state="installing", rounds_in_vain=ROUNDS_IN_VAIN - 1)
        self.assertIsNone(health_problem(picture(machine=early)))

    def test_health_is_one_bounded_line(self) -> None:
        """One bounded line."""
        reported = reported_health(picture(state="failed", reason="a\nb " + "x" * 1000))
        self.assertEqual((reported[:26], len(reported)),
                         ("the member is failed: a b ", REPORTED_CHARACTERS_MAX))
