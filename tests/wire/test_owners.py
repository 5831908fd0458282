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

    def test_an_address(self) -> None:
        """A client without an account is known by it; no account looks like one."""
        self.assertEqual([owner_of("", "10.0.0.1"), owner_of("alice", "10.0.0.1")], ["@10.0.0.1", "alice"])
        self.assertNotIn("@", owner_of("@10.0.0.1"))
        long = owner_of("", "h" * 64)
        self.assertEqual((long[0], len(long.encode()) <= OWNER_BYTES_MAX), ("@", True))

    def test_an_address_owns_nothing(self) -> None:
        """What was begun from one is everybody's."""
        self.assertTrue(may_use("@10.0.0.1", "@10.0.0.2") and may_use("@10.0.0.1", "alice"))
        self.assertTrue(may_use("alice", "@10.0.0.2"))

    def test_who_may_go_on(self) -> None:
        """The owner; anybody with what belongs to nobody, and where nobody has an account."""
        self.assertTrue(may_use("alice", "alice") and may_use("", "bob") and may_use("alice", ""))
        self.assertFalse(may_use("alice", "bob"))

    def test_proofs(self) -> None:
        """No secret is the number 0; others are numbers of 64 bits."""
        self.assertEqual(proof_of(""), 0)
        self.assertEqual(proof_of("a"), -3848465438864589366)
        self.assertNotEqual(proof_of("a"), proof_of("b"))
