# -*- test-case-name: tests.sim.test_lateness -*-
"""Members that come back late for the log: they do in drawn schedules, and crash just after."""

from __future__ import annotations

from collections import Counter
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.checks.moments import ANEW, CUT_BELOW_HOLE, INSTALLED, RECEIVED, Moments
from dledger.testing.group.clients import Load
from dledger.testing.group.focuses import FOCUSES
from dledger.testing.group.injection.faults import Nemesis
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from dledger.testing.group.schedule import EVERYTHING, Focus, run_schedule, with_short_log

#: Seeds without a focus whose log is short.
SHORT_SEEDS = (30, 55, 58)


def seen_in(seeds: tuple[int, ...], focus: Focus = EVERYTHING) -> Counter[str]:
    """The moments of some schedules, which pass."""
    seen: Counter[str] = Counter()
    worlds: list[Moments] = []

    def prepare(cluster: SimCluster) -> None:
        worlds.append(cluster.world.moments)

    for seed in seeds:
        failure = run_schedule(seed, focus=focus, prepare=prepare).failure
        assert not failure, (seed, failure)
    for world in worlds:
        seen.update(world.seen)
    return seen


class ScheduleTests(SynchronousTestCase):
    """What seldom came to a member comes."""

    def test_logs_begin_anew_without_a_focus(self) -> None:
        """Members get snapshots, and take them up."""
        seen = seen_in(SHORT_SEEDS)
        for kind in (ANEW, RECEIVED, INSTALLED):
            self.assertGreater(seen[kind], 1, (kind, seen))

    def test_cuts_go_below_holes(self) -> None:
        """What a former leader could not read is cut."""
        seen = seen_in((3, 5), FOCUSES["rot-of-entries-that-are-cut"][1])
        self.assertGreater(seen[CUT_BELOW_HOLE], 1)

    def test_many_of_the_logs_are_short(self) -> None:
        """And most of these groups run machines; such that hide their wire have none."""
        given = [with_short_log(seed, GroupOptions(), Load())[0] for seed in range(200)]
        short = [one for one in given if "retention_bytes" in one.settings]
        self.assertTrue(40 < len(short) < 80, len(short))
        self.assertGreater(2 * sum(one.has_machines for one in short), len(short))
        hidden = GroupOptions(hides_wire_version=True)
        self.assertTrue(all(with_short_log(seed, hidden, Load())[0] is hidden for seed in range(20)))


class AftermathTests(SynchronousTestCase):
    """A crash follows."""

    def crashes(self, **more: object) -> int:
        """Starts of the members after 40 moments of each."""
        settings = {"flush_disk_type": "sync", **more}
        cluster = SimCluster(GroupOptions(settings=settings), 1)
        Nemesis(cluster, cluster.random("faults"), seconds=30, only=("kill",))
        cluster.start()
        cluster.run(3)
        for _ in range(10):
            for member_id, member in cluster.members.items():
                if member.is_up:
                    cluster.world.moments.came(member_id, ANEW)
            cluster.run(3)
        cluster.end_faults()
        return sum(member.boots for member in cluster.members.values())

    def test_members_end_after_moments(self) -> None:
        """Most of them, by kills and losses of power; and they start again."""
        self.assertGreater(self.crashes(), 15)

    def test_nothing_crashes_after_the_faults(self) -> None:
        """The group is to settle then."""
        with mock.patch("dledger.testing.group.injection.lateness.CRASHES", 1.0):
            cluster = SimCluster(GroupOptions(), 1)
            Nemesis(cluster, cluster.random("faults"), seconds=1, only=("kill",))
            cluster.start()
            cluster.run(3)
            for member_id in cluster.members:
                cluster.world.moments.came(member_id, ANEW)
            cluster.run(3)
        self.assertEqual([member.boots for member in cluster.members.values()], [1, 1, 1])
