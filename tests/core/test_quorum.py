# -*- test-case-name: tests.core.test_quorum -*-
"""The quorum rule and the watermarks of one term."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.appends import QuorumAckChecker
from dledger.values.ledger.membership import Membership
from dledger.values.quorum import held_by


def dumb_held_by(marks: Sequence[int], needed: int) -> int:
    """Count the holders of every number there is."""
    return max(mark for mark in marks if sum(other >= mark for other in marks) >= needed)


def marks_of(term_start_index: int = 5, needed: int = 2) -> QuorumAckChecker:
    """Fresh marks of three members in term 7."""
    members = ("n0", "n1", "n2")[: 2 * needed - 1]
    return QuorumAckChecker(
        term=7, term_start_index=term_start_index, membership=Membership(voters=dict.fromkeys(members, "h:1"))
    )


class HeldByTests(SynchronousTestCase):
    """C{held_by} is the highest number that enough have reached."""

    def test_every_small_case(self) -> None:
        """It agrees with counting holders, for up to five marks of four values."""
        for size in range(1, 6):
            for marks in itertools.product(range(-1, 3), repeat=size):
                for needed in range(1, size + 1):
                    self.assertEqual(held_by(marks, needed), dumb_held_by(marks, needed), (marks, needed))

    def test_nobody_or_too_many_needed(self) -> None:
        """Asking for no holder, or for more than there are, is our bug."""
        self.assertRaises(AssertionError, held_by, [1, 2, 3], 0)
        self.assertRaises(AssertionError, held_by, [1, 2, 3], 4)


class QuorumAckCheckerTests(SynchronousTestCase):
    """Watermarks of one term."""

    def test_no_quorum_at_first(self) -> None:
        """Fresh marks commit nothing."""
        self.assertEqual(marks_of().quorum_index, -1)

    def test_one_is_not_enough(self) -> None:
        """What only one of three holds is not held by a quorum."""
        marks = marks_of()
        self.assertTrue(marks.record("n0", 9))
        self.assertEqual(marks.quorum_index, -1)

    def test_two_of_three(self) -> None:
        """A quorum holds up to the lower of the two highest marks."""
        marks = marks_of()
        marks.record("n0", 9)
        marks.record("n1", 6)
        self.assertEqual(marks.quorum_index, 6)

    def test_entries_of_earlier_terms_are_not_counted(self) -> None:
        """Raft 5.4.2: all members holding an older entry do not commit it."""
        marks = marks_of(term_start_index=5)
        self.assertEqual([marks.record(member_id, 4) for member_id in ("n0", "n1", "n2")], [False] * 3)
        self.assertEqual(marks.quorum_index, -1)
        self.assertEqual(marks.watermark("n1"), -1)

    def test_first_entry_of_the_term_counts(self) -> None:
        """The bound is inclusive."""
        marks = marks_of(term_start_index=5)
        marks.record("n0", 5)
        marks.record("n2", 5)
        self.assertEqual(marks.quorum_index, 5)

    def test_marks_never_fall(self) -> None:
        """A lower or equal number is no news and changes nothing."""
        marks = marks_of()
        self.assertTrue(marks.record("n1", 8))
        self.assertFalse(marks.record("n1", 7))
        self.assertFalse(marks.record("n1", 8))
        self.assertEqual(marks.watermark("n1"), 8)

    def test_strangers_have_no_mark(self) -> None:
        """One that is not a voter cannot help to commit."""
        marks = marks_of()
        for member_id in ("n0", "n8", "n9"):
            marks.record(member_id, 8)
        self.assertEqual(marks.quorum_index, -1)
        marks.record("n2", 8)
        self.assertEqual(marks.quorum_index, 8)

    @settings(derandomize=True, max_examples=200)
    @given(st.lists(st.tuples(st.sampled_from(("n0", "n1", "n2")), st.integers(0, 12))))
    def test_quorum_index_never_falls(self, records: list[tuple[str, int]]) -> None:
        """Whatever is recorded, the quorum's index rises or stays, and is -1 or of the term."""
        marks, last = marks_of(), -1
        for member_id, index in records:
            marks.record(member_id, index)
            self.assertGreaterEqual(marks.quorum_index, last)
            last = marks.quorum_index
            self.assertTrue(last == -1 or last >= marks.term_start_index)
