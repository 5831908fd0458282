# -*- test-case-name: tests.sim.test_liveness -*-
"""A majority that is well has a leader, or the run fails."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.liveness import LEADERLESS_US, LivenessWatch
from dledger.testing.group.members.cluster import SECOND_US, GroupOptions, NotLive, SimCluster


class LivenessTests(SynchronousTestCase):
    """A group of three whose members never stand for election."""

    def setUp(self) -> None:
        self.watched({})

    def watched(self, single: dict[str, dict[str, object]], *, hides_wire_version: bool = False) -> None:
        """Begin to watch a group with these options of single members."""
        patient = {"max_heart_beat_leak": 1_000_000, "pre_vote": False, "bootstrap": True}
        self.cluster = SimCluster(GroupOptions(
            settings=patient, member_settings=single, hides_wire_version=hides_wire_version
        ), 1)
        self.watch = LivenessWatch(self.cluster)
        for member in self.cluster.members.values():
            member.start()
            member.core.elector.deadline_ms = 1 << 40
        self.watch.start()
        self.bound_s = LEADERLESS_US / SECOND_US

    def test_nobody_leads(self) -> None:
        """It is reported after the bound, not before."""
        self.cluster.run(self.bound_s)
        with self.assertRaises(NotLive) as caught:
            self.cluster.run(2)
        self.assertIn("nobody leads", str(caught.exception))

    def test_one_must_not_lead(self) -> None:
        """A majority with a member that leads only when it has waited for others has twice as long."""
        self.watched({"n0": {"never_lead": True}, "n1": {"never_lead": True}})
        self.cluster.run(2 * self.bound_s)
        with self.assertRaises(NotLive):
            self.cluster.run(2)

    def test_taken_for_java(self) -> None:
        """Members that hide their version have the patience of Java's, so twice as long."""
        self.watched({}, hides_wire_version=True)
        self.cluster.run(2 * self.bound_s)
        with self.assertRaises(NotLive):
            self.cluster.run(2)

    def test_somebody_leads(self) -> None:
        """Nothing is wrong, and the longest time without a leader is known."""
        self.cluster.run(3)
        self.cluster.members["n0"].core.elector.deadline_ms = 0
        self.cluster.run(2 * self.bound_s)
        self.assertAlmostEqual(self.watch.longest_us / SECOND_US, 3, delta=1)

    def test_no_majority_is_well(self) -> None:
        """Nothing is asked of a group with faults, whatever they are."""
        one, two, _ = self.cluster.members.values()
        one.disk.set_full(True)
        two.slow_disk(1000)
        self.cluster.run(2 * self.bound_s)
        one.disk.disarm()
        self.cluster.run(self.bound_s - 1)
        one.pause()
        self.cluster.run(1)
        two.slow_disk(0)
        self.cluster.run(self.bound_s - 1)
        self.cluster.network.cut("n1", "n2")
        self.cluster.run(self.bound_s)
