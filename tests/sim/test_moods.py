# -*- test-case-name: tests.sim.test_moods -*-
"""State machines in bad moods, rot beside records, leaders that go for long: each happens, and is judged."""

from __future__ import annotations

from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.voter import Voter
from dledger.machine.guarded import SnapshotFailed
from dledger.machine.requests import MachineHandler
from dledger.machine.writing import SnapshotWriter
from dledger.storage.store.hole_finder import HoleFinder
from dledger.storage.store.scrub import SegmentScrub
from dledger.testing.group.checks.sim_machines import ANOTHER_DIGEST, NO_MACHINE
from dledger.testing.group.focuses import FOCUSES
from dledger.testing.group.injection import visits
from dledger.testing.group.injection.moods import Moods
from dledger.testing.group.members.cluster import SECOND_US
from dledger.testing.group.schedule import run_schedule

BAD_MOODS = FOCUSES["machines-in-bad-moods"][1]
DIFFERING = FOCUSES["machines-that-differ"][1]
BESIDE = FOCUSES["rot-beside-records"][1]
#: As many are played as are needed for every kind.
SEEDS = range(1, 6)
NEVER_LEADS = FOCUSES["members-that-never-lead"][1]


class MoodsTests(SynchronousTestCase):
    """In some seeds of their focuses."""

    def test_every_kind_of_mood_happens(self) -> None:
        """Failing snapshots and digests, queries without an answer, rotten snapshots, and calls that hang."""
        made: list[Moods] = []

        def make(*arguments: object) -> Moods:
            made.append(Moods(*arguments))  # type: ignore[arg-type]
            return made[-1]

        missing = {"mood", "question", "rot", "hang"}
        with mock.patch.object(visits, "Moods", make):
            for seed in SEEDS:
                self.assertEqual(run_schedule(seed, focus=BAD_MOODS).failure, "")
                missing -= made[-1].reported.keys()
                if not missing:
                    break
        self.flushLoggedErrors(SnapshotFailed)
        self.assertEqual(missing, set())

    def test_machines_that_differ(self) -> None:
        """Digests of no state, another version, machines that are not made again, orders without a reason."""
        made: list[Moods] = []

        def make(*arguments: object) -> Moods:
            made.append(Moods(*arguments))  # type: ignore[arg-type]
            return made[-1]

        missing = {ANOTHER_DIGEST, NO_MACHINE, "upgrade", "skip", "rot"}
        with mock.patch.object(visits, "Moods", make):
            for seed in SEEDS:
                self.assertEqual(run_schedule(seed, focus=DIFFERING).failure, "")
                missing -= made[-1].reported.keys()
                if not missing:
                    break
        self.assertEqual(missing, set())

    def test_order_without_a_reason_is_noticed(self) -> None:
        """A leader writes each order into the log."""
        with mock.patch.object(MachineHandler, "_why_no_skip", lambda *given: ""):
            self.assertIn("skipped without a reason", run_schedule(12, focus=DIFFERING).failure)

    def test_machine_that_takes_no_snapshot_is_noticed(self) -> None:
        """None is due, however long the log becomes."""
        with mock.patch.object(SnapshotWriter, "note", lambda *given, **more: None):
            self.assertIn("its newest snapshot is after -1", run_schedule(2, focus=FOCUSES[
                "machines-and-short-logs"][1]).failure)


class RotTests(SynchronousTestCase):
    """What rots beside the records."""

    def test_rot_beside_records_is_mended(self) -> None:
        """Also on full disks, by seeds in which a member ended for want of room."""
        for seed in (7, 9):
            self.assertEqual(run_schedule(seed, focus=BESIDE).failure, "")

    def test_blind_scrub_is_noticed(self) -> None:
        """It compares no index; a sound one needs less than twenty seconds with this seed."""
        self.patch(visits, "SCRUBBED_US", 20 * SECOND_US)
        self.assertEqual(run_schedule(4, focus=BESIDE).failure, "")
        with mock.patch.object(SegmentScrub, "_check_units", lambda *given: (0, 0)):
            self.assertIn("the index unit is missing", run_schedule(4, focus=BESIDE).failure)

    def test_member_that_ends_by_itself_is_noticed(self) -> None:
        """It has no room to mend an index unit."""
        with mock.patch.object(HoleFinder, "_examined_or_later", HoleFinder.examined):
            self.assertIn("invariant 17", run_schedule(7, focus=BESIDE).failure)


class BuriedTests(SynchronousTestCase):
    """A leader that is down for long."""

    def test_member_that_helps_nobody_is_noticed(self) -> None:
        """It must not lead, and has what the other one lacks: nobody leads."""
        self.assertEqual(run_schedule(1, focus=NEVER_LEADS).failure, "")
        with mock.patch.object(Voter, "_refused_its_log", lambda *given: None):
            self.assertIn("nobody leads", run_schedule(1, focus=NEVER_LEADS).failure)
