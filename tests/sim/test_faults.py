# -*- test-case-name: tests.sim.test_faults -*-
"""Every kind of fault, alone and often: the group survives it."""

from __future__ import annotations

from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.injection.faults import Nemesis
from dledger.testing.group.injection.misfortunes import KINDS
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from dledger.testing.group.schedule import Focus, run_schedule

ANYWHERE = (
    "cut_link", "isolate", "heal_slowly", "split", "break", "break_late", "pause", "depose", "spikes",
    "transfer", "kill", "kill_all", "stop", "kill_inside", "disk_error", "fill_disk", "slow_disk", "damage",
    "rot", "suspend", "starve", "cut_client", "kill_client", "twice", "speak", "hang_fsync", "use_disk",
    "few_descriptors", "jump_clock", "reconfigure",
    "wipe", "exchange", "misconfigure", "limp", "copy_back",
)
WITH_SYNC = ("cut_power", "cut_power_everywhere", "lose_power_inside")


class FaultTests(SynchronousTestCase):
    """One test for each kind."""


def _test_of(name: str) -> Callable[[FaultTests], None]:
    def test(self: FaultTests) -> None:
        settings = {"flush_disk_type": "sync"} if name in WITH_SYNC else {}
        focus = Focus(faults=(name,), pace_s=1.0, settings=settings, load={"think_us": 500_000})
        outcome = run_schedule(3, seconds=12, members=3, focus=focus, wants_all_lines=True)
        self.assertEqual(outcome.failure, "")
        self.assertTrue(any(f"fault: {name}" in line for line in outcome.lines) or name in KINDS)

    test.__doc__ = f"Nothing but {name}, every second."
    return test


for _name in ANYWHERE + WITH_SYNC:
    setattr(FaultTests, f"test_{_name}", _test_of(_name))


class FullInPlaceTests(SynchronousTestCase):
    """Disks without room for writes in place either."""

    def test_nobody_ends(self) -> None:
        """Members whose disks are full refuse votes and appends; all go on living, and elect again."""
        settings = {"flush_disk_type": "sync", "check_point_interval": 600}
        cluster = SimCluster(GroupOptions(settings=settings), 4)
        cluster.start()
        cluster.run(4)
        members = list(cluster.members.values())
        mute: set[str] = set()
        for turn in range(12):
            full = [members[turn % 3], *([members[(turn + 1) % 3]] if turn % 4 == 3 else [])]
            for member in full:
                member.disk.set_full(True, copies_on_write=True)
            if cluster.leader is not None:
                cluster.leader.pause()
            cluster.run(6)
            mute.update(one.member_id for one in members if one.driver.why_mute)
            cluster.end_faults()
            cluster.run(6)
            self.assertEqual([member.boots for member in members], [1, 1, 1], turn)
        self.assertEqual(mute, set(cluster.members))
        cluster.settle()
        cluster.judge()


class MixTests(SynchronousTestCase):
    """What may happen where."""

    def kinds(self, **settings: object) -> set[str]:
        """Every kind of fault that some seed draws for such a group."""
        cluster = SimCluster(GroupOptions(settings=settings), 1)
        found: set[str] = set()
        for seed in range(60):
            nemesis = Nemesis(cluster, cluster.random(f"{seed}"), seconds=1)
            found |= {kind.__name__.strip("_") for kind in nemesis._kinds}
        return found

    def damage(self, cluster: SimCluster) -> set[tuple[bool, int]]:
        """Whether members change, and how many may ever be damaged, over many seeds."""
        found = [Nemesis(cluster, cluster.random(f"{seed}"), seconds=1) for seed in range(60)]
        return {(nemesis._changes_members, len(nemesis.damage.minority)) for nemesis in found}

    def test_power_cuts_need_sync(self) -> None:
        """Without sync flushing only a minority may lose power."""
        native = {*ANYWHERE, "change_members", "change_apart"}
        native.add("rot_apart")
        self.assertEqual(self.kinds(flush_disk_type="sync"), {*native, *WITH_SYNC})
        self.assertEqual(self.kinds(flush_disk_type="async"), {*native, "cut_power", "black_out"})

    def test_damage_is_for_minorities(self) -> None:
        """
        At most a minority may ever be damaged, one member if the members change, and nobody where one may not
        lead.
        """
        self.assertEqual(self.damage(SimCluster(GroupOptions(members=5), 1)), {
            (True, 0), (True, 1), (False, 0), (False, 1), (False, 2),
        })
        cluster = SimCluster(GroupOptions(members=5, hides_wire_version=True), 1)
        self.assertEqual(self.damage(cluster), {(False, 0), (False, 1), (False, 2)})
        options = GroupOptions(members=5, member_settings={"n1": {"never_lead": True}})
        cluster = SimCluster(options, 1)
        sizes = self.damage(cluster)
        self.assertEqual(sizes, {(True, 0), (False, 0)})


class EndTests(SynchronousTestCase):
    """When the faults are over they are over."""

    def test_nothing_gets_slower_behind_the_end(self) -> None:
        """What a fault has asked for later is not done when the end has come before."""
        cluster = SimCluster(GroupOptions(settings={}), 1)
        nemesis = Nemesis(cluster, cluster.random("faults"), seconds=10)
        cluster.start()
        cluster.run(9)
        nemesis._heal_slowly()
        cluster.run(1)
        cluster.end_faults()
        cluster.run(20)
        network = cluster.network
        self.assertTrue(network.links)
        self.assertEqual({end.extra_us for link in network.links.values() for end in link.ends}, {0})
        self.assertEqual(network._next_extra_us, {}, "nor will those be that are made next")

    def test_no_bit_behind_the_end_of_a_file(self) -> None:
        """A file whose maker was killed in the middle is shorter than its like: nothing is there to flip."""
        cluster = SimCluster(GroupOptions(settings={}), 1)
        nemesis = Nemesis(cluster, cluster.random("faults"), seconds=10)
        member = next(iter(cluster.members.values()))
        member.disk.makedirs("/d")
        member.disk.open(f"/d/{0:020d}", create=True, size=10)
        self.assertTrue(nemesis.damage._flip(member, "/d", 9, 4096, 1))
        self.assertFalse(nemesis.damage._flip(member, "/d", 10, 4096, 1))

    def test_flips_spend_no_read_errors(self) -> None:
        """A flip of a small file happens under armed read errors, and leaves them to the process (90451)."""
        cluster = SimCluster(GroupOptions(settings={}), 1)
        nemesis = Nemesis(cluster, cluster.random("faults"), seconds=10)
        cluster.start()
        cluster.run(5)
        member = next(iter(cluster.members.values()))
        member.disk.arm(reads=3)
        flipped = [nemesis.damage._flip_small(member) for _ in range(20)]
        self.assertTrue(any(flipped))
        self.assertEqual(member.disk.failing_reads, 3)
