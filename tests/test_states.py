# -*- test-case-name: tests.test_states -*-
"""The state tables in docs/ are those of the code."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.states import PAGE, page


class CurrentTests(SynchronousTestCase):
    """docs/states.md."""

    def test_current(self) -> None:
        """C{python -m tests.states --write} would change nothing."""
        self.assertEqual(PAGE.read_text(encoding="utf-8"), page(), "python -m tests.states --write")
