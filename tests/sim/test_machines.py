# -*- test-case-name: tests.sim.test_machines -*-
"""Schedules whose members run state machines, drop the log after snapshots, and send snapshots."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.values import Entry
from dledger.machine.writing import SnapshotWriter
from dledger.testing.group.checks.machines import MachineRules
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.checks.sim_machines import POISON, RegisterMachine, register_of
from dledger.testing.group.clients import SimClient
from dledger.testing.group.injection import machine_faults
from dledger.testing.group.members.cluster import SimCluster
from dledger.testing.group.schedule import (
    Focus,
    ScheduleOutcome,
    member_options,
    run_schedule,
    with_machines,
)
from dledger.testing.group.short_logs import SHORT_LOGS, run_machine_schedule
from protocols.wire.ledger.entry import ENTRY_HEADER
from protocols.wire.ledger.own.machine_entries import encode_skip
from protocols.wire.ledger.own.own_entries import MACHINE_CHANNEL
from tests.mutants.machines_catalogue import SHORT_LOGS as SHORT_LOGS_OF_MUTANTS

#: Of short schedules in which everything comes up.
SEEDS = (10, 12)


class ScheduleTests(SynchronousTestCase):
    """What seeds do."""

    def run_all(self, run: Callable[[int], ScheduleOutcome], *seeds: int) -> list[SimCluster]:
        """Run some seeds, of which none fails. @return: their groups."""
        clusters: list[SimCluster] = []
        begin = SimCluster.__init__

        def begun(cluster: SimCluster, *args: object, **options: object) -> None:
            begin(cluster, *args, **options)  # type: ignore[arg-type]
            clusters.append(cluster)

        with mock.patch.object(SimCluster, "__init__", begun):
            for seed in seeds:
                self.assertEqual(run(seed).failure, "")
        return clusters

    def test_asked_for(self) -> None:
        """A snapshot that a member promises, and does not take, is missed in the end."""
        settings = {**SHORT_LOGS.settings, "machine_snapshot_entries": 100_000, "machine_keep_entries": 0}
        focus = attrs.evolve(SHORT_LOGS, faults=("transfer",), settings=settings,
                             load={**SHORT_LOGS.load, "poison": 0.0})
        with mock.patch.object(machine_faults, "ASKS", 0.3):
            self.assertEqual(run_schedule(2, seconds=8, members=3, focus=focus).failure, "")
            with mock.patch.object(SnapshotWriter, "ask", lambda writer, index: ""):
                self.assertIn("promised a snapshot",
                              run_schedule(2, seconds=8, members=3, focus=focus).failure)

    def test_short_logs(self) -> None:
        """
        Members that lose their directory, join or were away take up a snapshot; commands and queries are
        answered, entries skipped; all states are right.
        """
        clusters = self.run_all(run_machine_schedule, *SEEDS)
        rules = [cluster.world.machines for cluster in clusters if cluster.world.machines is not None]
        self.assertGreater(sum(one.installed for one in rules), 0)
        self.assertGreater(sum(one.applied for one in rules), 500)
        self.assertGreater(sum(one.results for one in rules), 80)
        self.assertGreater(sum(one.queries for one in rules), 30)
        self.assertGreater(sum(len(one.orders) for one in rules), 0)
        repeated = [client.commands.repeated for cluster in clusters for client in cluster.clients
                    if isinstance(client, SimClient) and client.commands is not None]
        self.assertGreater(sum(repeated), 0)
        begins = [member.ledger.ledger_begin_index for one in clusters for member in one.members.values()]
        self.assertGreater(sum(begin_index > 0 for begin_index in begins), 3)
        self.assertEqual({one.is_sync for one in clusters}, {True, False})

    def test_share(self) -> None:
        """Of the ordinary schedules some have machines; the others are as they would be without the draw."""
        drawn = []
        for seed in range(200):
            options, load = member_options(seed)
            changed, submits = with_machines(seed, options, load)
            drawn.append(changed.has_machines)
            if not changed.has_machines:
                self.assertEqual((changed, submits), (options, load))
            self.assertFalse(changed.has_machines and changed.hides_wire_version)
        self.assertTrue(0.2 < sum(drawn) / len(drawn) < 0.4)

    def test_mutants_have_the_same(self) -> None:
        """Their catalogue must not import the modules that they change."""
        self.assertEqual(Focus(**SHORT_LOGS_OF_MUTANTS), SHORT_LOGS)


class RulesTests(SynchronousTestCase):
    """The rules notice their breach."""

    def setUp(self) -> None:
        self.bodies = [b"a", b"b", b"c" + POISON, b"d", b"f"]
        self.records = {(index, 1): (self.record(index, body), -1) for index, body in enumerate(self.bodies)}
        order = ENTRY_HEADER.pack(1, 72, 5, 1, 0, MACHINE_CHANNEL, 1, 0, 24) + encode_skip(1)
        self.records[5, 1] = (order, -1)
        self.log = mock.Mock(records=self.records, committed={0: 1, 1: 1, 2: 1, 3: 1}, last_committed=3)
        self.rules = MachineRules(self.log)

    def record(self, index: int, body: bytes) -> bytes:
        """An entry of term 1."""
        return ENTRY_HEADER.pack(1, 48 + len(body), index, 1, 0, 0, 0, 0, len(body)) + body

    def chain(self, *indexes: int) -> int:
        """The checksum over some entries."""
        machine = RegisterMachine()
        entries = [Entry(index=index, term=1, pos=0, body=self.bodies[index]) for index in indexes]
        return int([*machine.apply(entries)][-1].split()[1])

    def test_fold(self) -> None:
        """Of what is committed only."""
        self.assertEqual([self.rules.fold(-1), self.rules.fold(0)], [0, self.chain(0)])
        self.assertEqual(self.rules.fold(3), self.chain(0, 1, 3))
        self.assertRaises(InvariantError, self.rules.fold, 4)

    def test_results(self) -> None:
        """Those of the state after the entry, of nothing else."""
        self.rules.answered(3, self.chain(0, 1, 3))
        self.assertRaises(InvariantError, self.rules.answered, 3, self.chain(0, 3))
        self.assertRaises(InvariantError, self.rules.refused, 3, "one in seven")
        self.assertRaises(InvariantError, self.rules.refused, 1, "skipped: an order")

    def test_order(self) -> None:
        """Between an entry and the order, states with it and without are right; after it, those without."""
        self.log.committed = dict.fromkeys(range(6), 1)
        self.log.last_committed = 5
        for indexes in ((0, 1, 3), (0, 3)):
            self.rules.answered(3, self.chain(*indexes))
        self.rules.refused(1, "skipped: an order")
        self.assertEqual(self.rules.fold(5), self.chain(0, 3, 4))
        self.assertEqual([self.rules.next_change(index) for index in (0, 3, 4)], [3, 4, 6])

    def test_queries(self) -> None:
        """The register, too."""
        register = register_of(b"b")
        self.rules.shown(register, 1, 1, self.chain(0, 1))
        self.rules.shown(register, -1, -1, 0)
        self.assertRaises(InvariantError, self.rules.shown, register, 1, 0, self.chain(0, 1))
        self.assertRaises(InvariantError, self.rules.shown, register, 1, 1, self.chain(0))
