# -*- test-case-name: tests.wire.test_owners -*-
"""What entries say of accounts and of secrets."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.ledger.owners import OWNER_BYTES_MAX, may_use, owner_of, proof_of


class OwnerTests(SynchronousTestCase):
    """Accounts."""

    def test_a_name_fits(self) -> None:
        """A short one is as it is; of long ones no two are the same, and each has its bound."""
        self.assertEqual((owner_of(""), owner_of("alice"), owner_of("ä" * 32)), ("", "alice", "ä" * 32))
        long = [owner_of("a" * 65), owner_of("a" * 66)]
        self.assertEqual(len({*long}), 2)
        for one in long:
            self.assertLessEqual(len(one.encode()), OWNER_BYTES_MAX)

    def test_who_may_go_on(self) -> None:
        """The owner; anybody with what belongs to nobody, and where nobody has an account."""
        self.assertTrue(may_use("alice", "alice") and may_use("", "bob") and may_use("alice", ""))
        self.assertFalse(may_use("alice", "bob"))

    def test_proofs(self) -> None:
        """No secret is the number 0; others are numbers of 64 bits."""
        self.assertEqual(proof_of(""), 0)
        self.assertEqual(proof_of("a"), -3848465438864589366)
        self.assertNotEqual(proof_of("a"), proof_of("b"))
