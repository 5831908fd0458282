# -*- test-case-name: tests.core.test_membership -*-
"""Memberships: who counts, and what may follow what."""

from __future__ import annotations

from itertools import chain, combinations
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.values.ledger.membership import ADD, CHANGES, MOVE, PROMOTE, REMOVE, Membership
from protocols.wire.ledger.codes import MEMBERS_MAX
from tests.core.helpers import ListLedger, make_member

THREE = Membership(voters={"n0": "h:1", "n1": "h:2", "n2": "h:3"}, learners={"n3": "h:4"}, index=7, term=2)


def subsets(ids: list[str]) -> list[tuple[str, ...]]:
    """All of them."""
    return list(chain.from_iterable(combinations(ids, size) for size in range(len(ids) + 1)))


class QuorumTests(SynchronousTestCase):
    """The one place that answers whether members are a quorum."""

    def test_a_quorum_is_a_majority_of_voters(self) -> None:
        """More than half of the voters; learners and strangers do not count."""
        for voters in range(1, 8):
            ids = [f"n{number}" for number in range(voters)]
            membership = Membership(voters=dict.fromkeys(ids, "h:1"), learners={"l0": "h:1", "l1": "h:1"})
            self.assertEqual(membership.quorum, voters // 2 + 1)
            for chosen in subsets(ids):
                self.assertEqual(membership.is_quorum({*chosen, "l0", "l1", "x"}), 2 * len(chosen) > voters)
                self.assertEqual(membership.is_all({*chosen, "l0"}), len(chosen) == voters)

    def test_a_missing_mark_counts_as_the_lowest(self) -> None:
        """A mark that is missing is the lowest; those of others do not help."""
        self.assertEqual(THREE.held({"n0": 9, "n1": 5, "n3": 9, "x": 9}, -1), 5)
        self.assertEqual(THREE.held({"n0": 9, "n3": 9, "x": 9}, -1), -1)

    def test_a_joining_member_knows_no_quorum(self) -> None:
        """A member that joins knows no voter, and no quorum."""
        joining = Membership(voters={})
        self.assertFalse(joining.is_quorum({"n0", "n1"}))
        self.assertFalse(joining.is_all(set()))
        self.assertEqual(joining.held({"n0": 9}, -1), -1)

    def test_majorities_of_neighbours_overlap(self) -> None:
        """Of two memberships that follow each other, every two majorities have a voter in common."""
        changes = ((PROMOTE, "n3"), (REMOVE, "n0"), (REMOVE, "n1"), (REMOVE, "n3"), (ADD, "n4"))
        for change, member_id in changes:
            after = THREE.changed(change, member_id, "h:9" if change == ADD else "")
            assert after is not None
            for one in subsets(list(THREE.addresses)):
                for other in subsets(list(after.addresses)):
                    if THREE.is_quorum(one) and after.is_quorum(other):
                        self.assertTrue(set(one) & set(other) & THREE.voters.keys() & after.voters.keys())


class FormerTests(SynchronousTestCase):
    """What may have been the list before."""

    def test_a_former_list_differs_by_one_member(self) -> None:
        """One member more or less, in whatever role; nothing else."""
        for ids, may in (
            (("n0", "n1", "n2"), True), (("n0", "n1", "n2", "n3"), True), (("n1", "n2", "n3"), True),
            (("n0", "n1", "n2", "n3", "n4"), True), (("n0", "n1"), False), (("n0", "n1", "n4"), False),
            (("a0", "a1", "a2"), False),
        ):
            self.assertIs(THREE.may_follow(ids), may, ids)

    def test_a_joined_member_learns_the_start_list(self) -> None:
        """
        A member that joined knows the start list by the first change alone, and one that lost its directory
        comes back with the start list: it belongs here. So does each later list, but no other.
        """
        member = make_member(self_id="n3", members=4)
        first = Membership(
            voters={"n0": "h:1", "n1": "h:2", "n2": "h:3"}, learners={"n9": "h:4"}, index=4, term=1
        )
        later = attrs.evolve(first, learners={"n9": "h:4", "n8": "h:5"}, index=7)
        with mock.patch.object(ListLedger, "memberships", (first, later)):
            had = {ids: member.had_members(ids) for ids in (
                "n0;n1;n2", "n0;n1;n2;n9", "n0;n1;n2;n8;n9", "n0;n1;n2;n3", "n0;n1", "n0;n1;n2;n7;n8;n9",
            )}
        self.assertEqual([ids for ids, is_had in had.items() if not is_had], ["n0;n1", "n0;n1;n2;n7;n8;n9"])


class ChangeTests(SynchronousTestCase):
    """One change at a time, and only those that make sense."""

    def test_each_change_makes_its_lists(self) -> None:
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

    def test_a_senseless_change_is_refused(self) -> None:
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
