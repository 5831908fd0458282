# -*- test-case-name: tests.wire.test_producers -*-
"""Ids and sequences of producers."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.ledger.producers import SEQUENCE_MAX, producer_problem


class ProblemTests(SynchronousTestCase):
    """What is wrong with an id or a sequence, and what is allowed."""

    def test_problems(self) -> None:
        """In words."""
        self.assertEqual(producer_problem("ä" * 32, SEQUENCE_MAX), "")
        self.assertIn("0 bytes, 1 to 64", producer_problem("", 0))
        self.assertIn("66 bytes", producer_problem("ä" * 33, 0))
        self.assertIn("sequence=-1", producer_problem("p", -1))
        self.assertIn(str(SEQUENCE_MAX), producer_problem("p", SEQUENCE_MAX + 1))
        self.assertIn("'p\\ud800': half of a surrogate pair", producer_problem("p\ud800", 0))
