# -*- test-case-name: tests.sim.test_machines -*-
"""Schedules whose members run state machines, drop the log behind snapshots, and send snapshots."""

from __future__ import annotations

from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.cluster import SimCluster
from dledger.testing.group.invariants import InvariantError
from dledger.testing.group.machines import MachineRules
from dledger.testing.group.schedule import Focus, run_schedule
from dledger.testing.group.short_logs import SHORT_LOGS
from protocols.wire.ledger.entry import ENTRY_HEADER
from tests.mutants.machines_catalogue import SHORT_LOGS as SHORT_LOGS_OF_MUTANTS


class ScheduleTests(SynchronousTestCase):
    """What seeds do."""

    def test_short_logs(self) -> None:
        """Members that lose their directory, join or were away take up a snapshot; all states are right."""
        clusters: list[SimCluster] = []
        begin = SimCluster.__init__

        def begun(cluster: SimCluster, *args: object, **options: object) -> None:
            begin(cluster, *args, **options)  # type: ignore[arg-type]
            clusters.append(cluster)

        with mock.patch.object(SimCluster, "__init__", begun):
            for seed in (12, 21):
                self.assertEqual(run_schedule(seed, focus=SHORT_LOGS).failure, "")
        rules = [cluster.world.machines for cluster in clusters]
        self.assertGreater(sum(one.installed for one in rules if one is not None), 0)
        self.assertGreater(sum(one.applied for one in rules if one is not None), 500)
        begins = [member.ledger.ledger_begin_index for one in clusters for member in one.members.values()]
        self.assertGreater(sum(begin_index > 0 for begin_index in begins), 3)


    def test_mutants_have_the_same(self) -> None:
        """Their catalogue must not import what they change."""
        self.assertEqual(Focus(**SHORT_LOGS_OF_MUTANTS), SHORT_LOGS)


class RulesTests(SynchronousTestCase):
    """The rule notices its breach."""

    def setUp(self) -> None:
        record = ENTRY_HEADER.pack(1, 49, 0, 1, 0, 0, 0, 0, 1) + b"x"
        self.rules = MachineRules(mock.Mock(records={(0, 1): (record, -1)}, committed={0: 1}))

    def test_fold(self) -> None:
        """Of what is committed only."""
        self.assertEqual(self.rules.fold(-1), 0)
        self.assertNotEqual(self.rules.fold(0), 0)
        self.assertRaises(InvariantError, self.rules.fold, 1)
