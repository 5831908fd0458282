# -*- test-case-name: tests.sim.test_older_copies -*-
"""Older copies of directories in a simulated group: they are put back, and the group would miss the doubt."""

from __future__ import annotations

from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.node.connections.lineages import Lineages
from dledger.testing.group.focuses import FOCUSES
from dledger.testing.group.injection.older_copies import OlderCopies
from dledger.testing.group.schedule import ScheduleOutcome, run_schedule


class OlderCopyTests(SynchronousTestCase):
    """A schedule in which the directory of a member becomes an older copy of itself."""

    def play(self) -> tuple[ScheduleOutcome, int]:
        """@return: the outcome, and how often a copy was put back."""
        made: list[OlderCopies] = []
        begin = OlderCopies.__init__

        def noted(self: OlderCopies, *args: object) -> None:
            begin(self, *args)  # type: ignore[arg-type]
            made.append(self)

        with mock.patch.object(OlderCopies, "__init__", noted):
            outcome = run_schedule(8, focus=FOCUSES["older-copies-of-directories"][1])
        return outcome, made[0].put_back

    def test_group_survives_them(self) -> None:
        """The member hears that its directory is older, and comes up to the others."""
        outcome, put_back = self.play()
        self.assertEqual(outcome.failure, "")
        self.assertGreater(put_back, 0)

    def test_member_that_hears_nothing(self) -> None:
        """It is noticed: the group does not become equal again."""
        with mock.patch.object(Lineages, "heed", lambda self, *_: None):
            outcome, _ = self.play()
        self.assertIn("not live", outcome.failure)
