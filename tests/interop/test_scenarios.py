# -*- test-case-name: tests.interop.test_scenarios -*-
"""What the seeded scenarios are made of; they are played by C{python -m tests.interop}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.interop.mixed import JAVA, OURS
from tests.interop.scenarios import FAULTS, plan_group


class PlanTests(SynchronousTestCase):
    """A seed decides everything, and leaves nothing out."""

    def test_the_same_again(self) -> None:
        """A seed and a number always make the same plan; others make another."""
        self.assertEqual(plan_group(1, 3), plan_group(1, 3))
        self.assertNotEqual(plan_group(1, 3), plan_group(2, 3))
        self.assertNotEqual(plan_group(1, 3), plan_group(1, 5))

    def test_everything_has_its_turn(self) -> None:
        """Twenty groups have both mixtures, both kinds of leader and of push, and every fault."""
        plans = [plan_group(1, number) for number in range(20)]
        self.assertEqual({plan.kinds.count(JAVA) for plan in plans}, {1, 2})
        self.assertEqual({plan.batch_push for plan in plans}, {True, False})
        self.assertEqual({plan.preferred is None for plan in plans}, {True, False})
        scenarios = [scenario for plan in plans for scenario in plan.scenarios]
        self.assertEqual({kind for kind, _faults in scenarios}, {JAVA, OURS})
        self.assertEqual({fault for _kind, faults in scenarios for fault in faults}, set(FAULTS))
