# -*- test-case-name: tests.sim.test_clock -*-
"""Simulated time."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.world.clock import SimClock


class SimClockTests(SynchronousTestCase):
    """Actions run in order of time, then of arrival."""

    def setUp(self) -> None:
        """A clock, and what ran."""
        self.clock = SimClock()
        self.ran: list[str] = []

    def test_order(self) -> None:
        """Earlier first; among equals the one that came first."""
        self.clock.after(20, self.ran.append, "late")
        self.clock.after(10, self.ran.append, "first")
        self.clock.after(10, self.ran.append, "second")
        self.clock.run_until(30)
        self.assertEqual(self.ran, ["first", "second", "late"])
        self.assertEqual(self.clock.now_us, 30)

    def test_only_what_is_due(self) -> None:
        """An action after the end waits; one exactly at it runs."""
        self.clock.after(10, self.ran.append, "due")
        self.clock.after(11, self.ran.append, "not yet")
        self.clock.run_until(10)
        self.assertEqual((self.ran, len(self.clock)), (["due"], 1))

    def test_actions_of_actions(self) -> None:
        """What an action asks for within the time runs as well."""
        self.clock.after(1, lambda: self.clock.after(1, self.ran.append, "inner"))
        self.clock.run_until(5)
        self.assertEqual(self.ran, ["inner"])

    def test_the_past_is_now(self) -> None:
        """An action for a time that has passed runs at once, and time does not fall."""
        self.clock.run_until(100)
        self.clock.at(50, lambda: self.ran.append(str(self.clock.now_us)))
        self.clock.run_until(100)
        self.assertEqual(self.ran, ["100"])
