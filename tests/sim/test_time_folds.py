# -*- test-case-name: tests.sim.test_time_folds -*-
"""The second fold of times: by hand, and against tables and logs that are wrong."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files.time_table import NotedTime, TimeTable
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.times import TimeRules, noted_in
from protocols.wire.ledger.own.time_entries import encode_time_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL
from tests.sim.test_producer_folds import record


class FoldTests(SynchronousTestCase):
    """Two time entries with others between, the second one of a later term."""

    def setUp(self) -> None:
        self.log = [
            record(3, 1), record(4, 1, PRODUCER_CHANNEL, encode_time_entry(500)), record(5, 1),
            record(6, 2, 0, encode_time_entry(9999)), record(7, 2, PRODUCER_CHANNEL, encode_time_entry(600)),
        ]
        self.mirror = Mirror(begin_index=3, terms=[1, 1, 1, 2, 2])
        self.table = TimeTable()
        self.table.note(NotedTime(7, 2, 600), 7)
        self.rules = TimeRules()

    def problem(self, table: TimeTable | None) -> str:
        """How a table differs from the log."""
        terms = self.mirror.terms
        records = {(3 + at, terms[at]): (one, -1) for at, one in enumerate(self.log[: len(terms)])}
        return self.rules.problem(table, self.mirror, records)

    def test_noted(self) -> None:
        """A program's body with the same bytes is none."""
        records = {(3 + at, self.mirror.terms[at]): (one, -1) for at, one in enumerate(self.log)}
        self.assertEqual(noted_in(self.mirror, records), [NotedTime(4, 1, 500), NotedTime(7, 2, 600)])

    def test_same(self) -> None:
        """Nothing to report; nor while entries are damaged, or of an entry that has expired."""
        self.assertEqual(self.problem(self.table), "")
        self.assertEqual(self.problem(None), "")
        self.mirror.terms = [1]
        old = TimeTable()
        old.note(NotedTime(2, 1, 400), 2)
        self.assertEqual(self.problem(old), "")

    def test_wrong(self) -> None:
        """Another one is the last, there is none, or it was cut."""
        self.assertIn("the table says None", self.problem(TimeTable()))
        self.table.note(NotedTime(9, 2, 700), 9)
        self.assertIn("the table says NotedTime(index=9", self.problem(self.table))
        self.mirror.terms = [1]
        self.assertIn("it has no time entry", self.problem(self.table))

    def test_falls(self) -> None:
        """A time that is earlier than the one before, unless its leader could not know that."""
        self.log[4] = record(7, 2, PRODUCER_CHANNEL, encode_time_entry(499))
        self.assertIn("is earlier than that at 4", self.problem(None))
        self.rules.free_terms.add(2)
        self.assertEqual(self.problem(None), "")
