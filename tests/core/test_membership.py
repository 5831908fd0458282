# -*- test-case-name: tests.core.test_membership -*-
"""Memberships: who counts, and what may follow what."""

from __future__ import annotations

from itertools import chain, combinations

from twisted.trial.unittest import SynchronousTestCase

from dledger.ledger.membership import ADD, CHANGES, MOVE, PROMOTE, REMOVE, Membership
from protocols.wire.ledger.codes import MEMBERS_MAX

THREE = Membership(voters={"n0": "h:1", "n1": "h:2", "n2": "h:3"}, learners={"n3": "h:4"}, index=7, term=2)


def subsets(ids: list[str]) -> list[tuple[str, ...]]:
    """All of them."""
    return list(chain.from_iterable(combinations(ids, size) for size in range(len(ids) + 1)))


class QuorumTests(SynchronousTestCase):
    """The one place that answers whether members are a quorum."""

    def test_majority(self) -> None:
        """More than half of the voters; learners and strangers do not count."""
        for voters in range(1, 8):
            ids = [f"n{number}" for number in range(voters)]
            membership = Membership(voters=dict.fromkeys(ids, "h:1"), learners={"l0": "h:1", "l1": "h:1"})
            self.assertEqual(membership.quorum, voters // 2 + 1)
            for chosen in subsets(ids):
                self.assertEqual(membership.is_quorum({*chosen, "l0", "l1", "x"}), 2 * len(chosen) > voters)
                self.assertEqual(membership.is_all({*chosen, "l0"}), len(chosen) == voters)

    def test_marks(self) -> None:
        """A mark that is missing is the lowest; those of others do not help."""
        self.assertEqual(THREE.held({"n0": 9, "n1": 5, "n3": 9, "x": 9}, -1), 5)
        self.assertEqual(THREE.held({"n0": 9, "n3": 9, "x": 9}, -1), -1)

    def test_joining(self) -> None:
        """A member that joins knows no voter, and no quorum."""
        joining = Membership(voters={})
        self.assertFalse(joining.is_quorum({"n0", "n1"}))
        self.assertFalse(joining.is_all(set()))
        self.assertEqual(joining.held({"n0": 9}, -1), -1)

    def test_neighbours_overlap(self) -> None:
        """Of two memberships that follow each other, every two majorities have a voter in common."""
        changes = ((PROMOTE, "n3"), (REMOVE, "n0"), (REMOVE, "n1"), (REMOVE, "n3"), (ADD, "n4"))
        for change, member_id in changes:
            after = THREE.changed(change, member_id, "h:9" if change == ADD else "")
            assert after is not None
            for one in subsets(list(THREE.addresses)):
                for other in subsets(list(after.addresses)):
                    if THREE.is_quorum(one) and after.is_quorum(other):
                        self.assertTrue(set(one) & set(other) & THREE.voters.keys() & after.voters.keys())


class ChangeTests(SynchronousTestCase):
    """One change at a time, and only those that make sense."""

    def test_each(self) -> None:
        """What becomes of the lists."""
        for change, member_id, address, voters, learners in (
            (ADD, "n4", "h:5", "n0 n1 n2", "n3 n4"), (PROMOTE, "n3", "", "n0 n1 n2 n3", ""),
            (REMOVE, "n1", "", "n0 n2", "n3"), (REMOVE, "n3", "", "n0 n1 n2", ""),
            (MOVE, "n1", "h:9", "n0 n1 n2", "n3"), (MOVE, "n3", "h:9", "n0 n1 n2", "n3"),
        ):
            after = THREE.changed(change, member_id, address)
            assert after is not None
            self.assertEqual((" ".join(sorted(after.voters)), " ".join(sorted(after.learners))),
                             (voters, learners), (change, member_id))
            if address:
                self.assertEqual(after.addresses[member_id], address)

    def test_in_force_already(self) -> None:
        """Nothing to change, so that a command may be repeated."""
        for change, member_id, address in (
            (ADD, "n3", "h:4"), (PROMOTE, "n0", ""), (REMOVE, "n9", ""), (MOVE, "n0", "h:1"),
        ):
            self.assertIsNone(THREE.changed(change, member_id, address), (change, member_id))

    def test_refused(self) -> None:
        """With a sentence."""
        full = Membership(voters={f"n{number}": f"h:{number + 1}" for number in range(MEMBERS_MAX)})
        for membership, change, member_id, address, text in (
            (THREE, "drop", "n0", "", "is not one of add, promote"), (THREE, ADD, "n1", "h:9", "move it"),
            (THREE, ADD, "n4", "h:1", "the address of member n0"), (THREE, ADD, "n-4", "h:5", "not an id"),
            (THREE, ADD, "", "h:5", "not an id"), (THREE, ADD, "n" * 256, "h:5", "not an id"),
            (THREE, ADD, "n4", "h", "write host:port"), (THREE, PROMOTE, "n9", "", "is not a member"),
            (THREE, MOVE, "n9", "h:9", "is not a member"), (THREE, MOVE, "n0", "h:2", "member n1"),
            (Membership(voters={"n0": "h:1"}, learners={"n1": "h:2"}), REMOVE, "n0", "", "only voter"),
            (full, ADD, "m", "h:9999", "at most"),
        ):
            error = self.assertRaises(ValueError, membership.changed, change, member_id, address)
            self.assertIn(text, str(error), (change, member_id))
        self.assertEqual(CHANGES, (ADD, PROMOTE, REMOVE, MOVE))
