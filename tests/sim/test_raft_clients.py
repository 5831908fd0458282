# -*- test-case-name: tests.sim.test_raft_clients -*-
"""Groups of brokers on raft logs with clients: schedules pass and repeat; what is wrong comes out."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.brokers.pair_schedule import PairFocus, run_pair_schedule
from dledger.testing.brokers.parts.accounts import PairBroken
from dledger.testing.raft_brokers.client_schedule import RaftClientsWorld, run_raft_clients
from dledger.testing.raft_brokers.kept_offsets import KeptOffsets

KEY = ("G", "T1", 0)


class RaftClientsTests(SynchronousTestCase):
    """Sound code, and the bugs that the schedules found."""

    def tearDown(self) -> None:
        self.flushLoggedErrors()

    def test_seeds_that_found_bugs(self) -> None:
        """Resets, first check points, topics that were not committed or begin too early."""
        outcomes = [run_raft_clients(seed) for seed in (41, 160)]
        self.assertEqual([one.failure for one in outcomes], ["", ""])
        self.assertGreater(sum(one.masters for one in outcomes), 3)
        self.assertEqual(run_raft_clients(41), outcomes[0])

    def test_several_slaves_with_old_files(self) -> None:
        """A master with three slaves whose files grow old, and promotions."""
        focus = PairFocus(faults=("age", "promote", "kill"), slaves=3, pace_s=1.5)
        outcome = run_pair_schedule(2, focus=focus)
        self.assertEqual(outcome.failure, "")
        self.assertGreater(outcome.promotions, 0)

    def test_young_files_stay(self) -> None:
        """B21: a log that begins after the files that were old enough."""
        world = RaftClientsWorld(1, faults=("nothing",))
        with world.bugs.listening():
            for machine in world.machines.values():
                world.clock.after(1, machine.start)
            world.clock.run_until(3_000_000)
        machine, machines = world.machines["n0"], world.machines.values()
        world.old_files.check(machine, machines)
        world.old_files.end = -1
        self.assertRaises(PairBroken, world.old_files.check, machine, machines)
        machine.may_fail = True
        world.old_files.check(machine, machines)


class KeptOffsetsTests(SynchronousTestCase):
    """B19, broken by hand."""

    def test_last_success_counts(self) -> None:
        """What was set last with success is the answer; before any success, every answer is right."""
        kept = KeptOffsets()
        kept.asking(KEY)(77)
        for offset in (5, 3):
            kept.setting(KEY, offset)(True)
        kept.asking(KEY)(3)
        self.assertRaises(PairBroken, kept.asking(KEY), 5)

    def test_doubtful_and_concurrent_ones(self) -> None:
        """What nobody has answered, or is set at the same time, may be the answer."""
        kept = KeptOffsets()
        kept.setting(KEY, 1)(True)
        kept.setting(KEY, 9)(False)
        kept.asking(KEY)(9)
        one, other = kept.setting(KEY, 4), kept.setting(KEY, 5)
        one(True)
        other(True)
        kept.asking(KEY)(4)
        answered = kept.asking(KEY)
        kept.setting(KEY, 6)(True)
        answered(6)
        self.assertRaises(PairBroken, kept.asking(KEY), 1)
