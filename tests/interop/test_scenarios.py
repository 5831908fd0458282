# -*- test-case-name: tests.interop.test_scenarios -*-
"""The plans of the seeded scenarios, which C{python -m tests.interop} plays."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.interop.mixed import JAVA, OURS
from tests.interop.scenarios import FAULTS, PER_BLOCK, PER_GROUP, plan_block, plan_group


class PlanTests(SynchronousTestCase):
    """A seed decides everything, and omits nothing."""

    def test_the_same_again(self) -> None:
        """A seed and a number always make the same plan; others make another."""
        self.assertEqual(plan_group(1, 3), plan_group(1, 3))
        self.assertNotEqual(plan_group(1, 3), plan_group(2, 3))
        self.assertNotEqual(plan_group(1, 3), plan_group(1, 5))

    def test_everything_has_its_turn(self) -> None:
        """Four groups have both pushes with both mixtures, and every fault under either kind of leader."""
        for seed in range(50):
            plans = plan_block(seed, seed % 3)
            self.assertEqual(len(plans), PER_BLOCK)
            self.assertEqual(
                {(plan.kinds.count(JAVA), plan.batch_push) for plan in plans},
                {(1, True), (1, False), (2, True), (2, False)},
            )
            scenarios = [scenario for plan in plans for scenario in plan.scenarios]
            self.assertEqual(len(scenarios), PER_BLOCK * PER_GROUP)
            self.assertEqual(
                {(kind, acts[0].fault) for kind, acts in scenarios if acts[0].to_other_kind},
                {(kind, fault) for kind in (JAVA, OURS) for fault in FAULTS},
            )

    def test_preferred_leader(self) -> None:
        """One group of four has one, of the kind that must lead there; it has to transfer leadership."""
        for seed in range(50):
            plan, = [plan for plan in plan_block(seed, 0) if plan.preferred is not None]
            kinds = {f"n{number}": kind for number, kind in enumerate(plan.kinds)}
            self.assertEqual({kind for kind, _acts in plan.scenarios}, {kinds[str(plan.preferred)]})
            self.assertIn("transfer", [acts[0].fault for _kind, acts in plan.scenarios])
