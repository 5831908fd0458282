# -*- test-case-name: tests.sim.test_inspections -*-
"""Looks at damaged files of a simulated group: that they happen, and notice a fault."""

from __future__ import annotations

from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.start.verify import VerifyReport
from dledger.testing.group.focuses import FOCUSES
from dledger.testing.group.injection import inspections
from dledger.testing.group.injection.inspections import Inspections
from dledger.testing.group.schedule import ScheduleOutcome, run_schedule


class InspectionTests(SynchronousTestCase):
    """A schedule with such looks."""

    def play(self) -> tuple[ScheduleOutcome, dict[str, int]]:
        """@return: the outcome of a schedule, and the looks in it by kind."""
        made: list[Inspections] = []
        begin = Inspections.__init__

        def noted(self: Inspections, *args: object) -> None:
            begin(self, *args)  # type: ignore[arg-type]
            made.append(self)

        with mock.patch.object(Inspections, "__init__", noted):
            outcome = run_schedule(8, seconds=12.0, focus=FOCUSES["looks-at-damaged-files"][1])
        return outcome, made[0].reported

    def test_looks_of_each_kind(self) -> None:
        """Damage is found, what starts is right, and copies hold."""
        outcome, reported = self.play()
        self.assertEqual(outcome.failure, "")
        for kind in ("found", "opened", "refused", "copied", "copy"):
            self.assertGreater(reported.get(kind, 0), 0, reported)

    def test_look_that_finds_nothing(self) -> None:
        """It is noticed."""
        with mock.patch.object(inspections, "verify_directory", lambda disk, path: VerifyReport(path=path)):
            outcome, _ = self.play()
        self.assertIn("a look finds nothing", outcome.failure)

    def test_other_exception_of_a_reader(self) -> None:
        """It is noticed."""
        with mock.patch.object(inspections, "archive_log", side_effect=KeyError("piece")):
            outcome, _ = self.play()
        self.assertIn("KeyError", outcome.failure)

    def test_copy_of_other_entries(self) -> None:
        """It is noticed."""
        def changed(disk: object, directory: str, manifest: object) -> list[object]:
            return [mock.Mock(records=bytes(batch.records[:-1]) + b"?")  # type: ignore[attr-defined]
                    for batch in batches(disk, directory, manifest)]  # type: ignore[arg-type]

        batches = inspections.archive_batches
        with mock.patch.object(inspections, "archive_batches", changed):
            outcome, _ = self.play()
        self.assertIn("has other entries", outcome.failure)

    def test_start_that_forgets(self) -> None:
        """It is noticed."""
        start = Inspections.start_on

        def forgetful(self: Inspections, member: object, files: object, what: str) -> int | None:
            found = start(self, member, files, what)  # type: ignore[arg-type]
            return found if found is None or what == "what is sound" else -1

        with mock.patch.object(Inspections, "start_on", forgetful):
            outcome, _ = self.play()
        self.assertIn("and owes none", outcome.failure)
