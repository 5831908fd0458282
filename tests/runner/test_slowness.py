# -*- test-case-name: tests.runner.test_slowness -*-
"""The factor of all time-outs of tests with real processes."""

from __future__ import annotations

import itertools
import os

from twisted.trial.unittest import SynchronousTestCase

from tests import slowness


class SlownessTests(SynchronousTestCase):
    """One factor, measured once."""

    def hand_down(self, value: str) -> None:
        """Set the variable, as a run does for its programs."""
        self.patch(os, "environ", {**os.environ, slowness.VARIABLE: value})

    def test_factor(self) -> None:
        """It is read from the environment, and stays within its bounds whatever is there."""
        for value, factor in (("2.5", 2.5), ("0.1", 1.0), ("900", slowness.SLOWNESS_MAX), ("x", 1.0)):
            self.hand_down(value)
            self.assertEqual(slowness.patient(10.0), 10.0 * factor, value)

    def test_measured(self) -> None:
        """The slower of work and the start of processes counts, and never less than 1."""
        self.patch(slowness, "_work", lambda: 0)
        self.patch(slowness, "_fork", lambda: None)
        for tick_s, factor in ((2 * slowness.FORK_S, 2.0), (slowness.FORK_S / 9, 1.0)):
            ticks = itertools.count()
            self.assertEqual(slowness.measured(clock=lambda at=ticks, s=tick_s: s * next(at)), factor)

    def test_real(self) -> None:
        """A real measurement is a factor."""
        self.assertTrue(1.0 <= slowness.measured() <= slowness.SLOWNESS_MAX)
