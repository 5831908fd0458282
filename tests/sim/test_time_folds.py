# -*- test-case-name: tests.sim.test_time_folds -*-
"""The second fold of times: by hand, and against states and logs that are wrong."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.times import TimeRules, noted_in
from dledger.values.ledger.group_state import GroupFold, GroupState, NotedTime
from protocols.wire.ledger.own.own_entries import TIME_CHANNEL
from protocols.wire.ledger.own.time_entries import encode_time_entry
from tests.sim.test_group_folds import record


class FoldTests(SynchronousTestCase):
    """Two time entries with others between, the second one of a later term."""

    def setUp(self) -> None:
        self.log = [
            record(3, 1), record(4, 1, TIME_CHANNEL, encode_time_entry(500)), record(5, 1),
            record(6, 2, 0, encode_time_entry(9999)), record(7, 2, TIME_CHANNEL, encode_time_entry(600)),
        ]
        self.mirror = Mirror(begin_index=3, terms=[1, 1, 1, 2, 2])
        self.rules = TimeRules()

    def problem(self, time: NotedTime | None, *, is_known: bool = True) -> str:
        """How a state differs from the log. @param time: its last one."""
        state = GroupState()
        state.time = time
        terms = self.mirror.terms
        records = {(3 + at, terms[at]): (one, -1) for at, one in enumerate(self.log[: len(terms)])}
        return self.rules.problem(GroupFold(state) if is_known else None, self.mirror, records)

    def test_noted(self) -> None:
        """A program's body with the same bytes is none, and neither is a record by Java with the channel."""
        self.log[2] = record(5, 1, TIME_CHANNEL, encode_time_entry(550), chain_crc=0)
        records = {(3 + at, self.mirror.terms[at]): (one, -1) for at, one in enumerate(self.log)}
        self.assertEqual(noted_in(self.mirror, records), [NotedTime(4, 1, 500), NotedTime(7, 2, 600)])

    def test_same(self) -> None:
        """Nothing to report; nor while the state is not known, or of an entry that has expired."""
        self.assertEqual(self.problem(NotedTime(7, 2, 600)), "")
        self.assertEqual(self.problem(None, is_known=False), "")
        self.mirror.terms = [1]
        self.assertEqual(self.problem(NotedTime(2, 1, 400)), "")

    def test_wrong(self) -> None:
        """Another one is the last, there is none, or it was cut."""
        self.assertIn("the state says None", self.problem(None))
        self.assertIn("the state says NotedTime(entry_index=9", self.problem(NotedTime(9, 2, 700)))
        self.mirror.terms = [1]
        self.assertIn("it has no time entry", self.problem(NotedTime(9, 2, 700)))

    def test_falls(self) -> None:
        """A time that is earlier than the one before."""
        self.log[4] = record(7, 2, TIME_CHANNEL, encode_time_entry(499))
        self.assertIn("is earlier than that at 4", self.problem(None, is_known=False))
