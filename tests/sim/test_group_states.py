# -*- test-case-name: tests.sim.test_group_states -*-
"""Kinds of states of a simulated group."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.group_states import KINDS_MAX, StateWatch
from dledger.testing.group.members.cluster import GroupOptions, SimCluster


class StateWatchTests(SynchronousTestCase):
    """What is a kind of its own."""

    def setUp(self) -> None:
        self.cluster = SimCluster(GroupOptions(), 1)
        self.watch = self.cluster.trace.watch = StateWatch(self.cluster)
        self.cluster.start()
        self.cluster.run(10)

    def new_kinds(self) -> int:
        """Number of kinds since the last call."""
        count = len(self.watch.firsts)
        self.watch.firsts.clear()
        return count

    def test_elections_are_kinds(self) -> None:
        """A start with its election reaches some, each in time; a group that goes on reaches none."""
        firsts = self.watch.firsts
        self.assertGreater(len(firsts), 5)
        self.assertTrue(all(0 <= kind < KINDS_MAX and at_us <= 10e6 for kind, at_us in firsts.items()))
        before = dict(firsts)
        self.cluster.run(10)
        self.assertEqual(firsts, before)

    def test_faults_are_kinds(self) -> None:
        """A cut way, a member that is frozen or down, and a full disk are different kinds."""
        leader = self.cluster.leader
        assert leader is not None
        other = next(member for member in self.cluster.members.values() if member is not leader)
        self.new_kinds()
        self.cluster.network.cut(other.member_id, leader.member_id)
        leader.note("look")
        self.assertEqual(self.new_kinds(), 1)
        self.cluster.network.heal_all()
        other.disk.set_full(True)
        leader.note("look")
        self.assertEqual(self.new_kinds(), 1)
        other.disk.set_full(False)
        other.process.freeze()
        leader.note("look")
        self.assertEqual(self.new_kinds(), 1)

    def test_names_are_no_kinds(self) -> None:
        """It does not count which follower is down, nor how many terms there were."""
        kinds = []
        followers = [member for member in self.cluster.members.values() if member is not self.cluster.leader]
        for member in followers:
            member.kill()
            self.watch.firsts.clear()
            member.note("look")
            kinds.append([*self.watch.firsts])
            self.cluster.restart_later(member, 1000)
            self.cluster.run(10)
        self.assertEqual(kinds[0], kinds[1])
