# -*- test-case-name: tests.storage.test_group_setup -*-
"""Directories that an operator makes, or makes the beginning of a new group."""

from __future__ import annotations

from typing import Any

from dledger.storage.backups.group_setup import (
    check_group_id,
    force_new_group,
    prepare_member,
    seen_member,
)
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DirectoryError
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from tests.storage.support import bodies_in, config_of
from tests.storage.test_identity import IdentityCase

OURS, THEIRS = GroupName("a" * 32, 0, True), GroupName("b" * 32, 3, True)
THREE = "n0-h:1;n1-h:2;n2-h:3"


class PrepareTests(IdentityCase):
    """A directory in which no member has run."""

    def prepare(self, name: GroupName = GroupName(), **options: Any) -> None:  # noqa: B008
        """As the commands do."""
        prepare_member(config_of(peers=THREE, **options), self.disk, name)

    def start_as_reported(self) -> FileStore:
        """The member, without further options."""
        return self.start(bootstrap=False, peers=THREE)

    def test_a_beginning_member_is_sure(self) -> None:
        """Its vote counts, at any start."""
        self.prepare(GroupName("a" * 32, 0), bootstrap=True)
        store = self.start_as_reported()
        self.assertFalse(store.identity.is_unsure)
        self.assertEqual(store.identity.group_name, GroupName("a" * 32, 0))
        store.abandon()
        self.assertFalse(self.start_as_reported().identity.is_unsure)

    def test_a_joining_member_is_unsure(self) -> None:
        """Unsure, and of that group only."""
        self.prepare(OURS)
        store = self.start_as_reported()
        self.assertTrue(store.identity.is_unsure)
        self.assertEqual(store.identity.group_name, OURS)

    def test_not_over_another(self) -> None:
        """Nothing is changed in a directory that was used, of Java either."""
        self.prepare()
        self.assertRaises(DirectoryError, self.prepare)
        self.start_as_reported().clean_close()
        before = self.disk.contents()
        self.assertRaises(DirectoryError, self.prepare)
        self.assertEqual(self.disk.contents(), before)
        self.disk.unlink("base/dledger-n0/identity")
        error = self.assertRaises(DirectoryError, self.prepare)
        self.assertIn("a ledger already", str(error))

    def test_a_running_member_is_not_prepared(self) -> None:
        """Not under a running member."""
        store = self.start_as_reported()
        self.disk.unlink("base/dledger-n0/identity")
        self.assertRaises(DirectoryError, force_new_group, config_of(), self.disk, OURS)
        store.abandon()

    def test_ids_have_32_digits(self) -> None:
        """32 digits."""
        self.assertEqual(check_group_id("0" * 32), "0" * 32)
        for text in ("", "0" * 31, "0" * 33, "g" + "0" * 31, "A" * 32):
            self.assertRaises(ValueError, check_group_id, text)


class ForceTests(IdentityCase):
    """The survivor of a lost majority."""

    def setUp(self) -> None:
        super().setUp()
        store = self.start(bootstrap=False, peers=THREE)
        store.append_bodies((b"a", b"b"), 4)
        store.identity.record_group(THEIRS)
        store.clean_close()

    def test_a_survivor_makes_a_new_group(self) -> None:
        """It keeps its entries, is sure, and has another id and other members."""
        config = config_of(peers="n0-h:1")
        seen = seen_member(config, self.disk)
        assert seen.identity is not None
        self.assertEqual((seen.end_index, seen.identity.group_id, seen.identity.unsure), (1, THEIRS.id, 2))
        self.disk.locked.clear()
        self.assertEqual(force_new_group(config, self.disk, OURS), 1)
        store = self.start(bootstrap=False, peers="n0-h:1")
        self.assertEqual(bodies_in(store), [b"a", b"b"])
        self.assertEqual(store.identity.group_name, OURS)
        self.assertFalse(store.identity.is_unsure)
        store.clean_close()
        self.assertRaises(DirectoryError, self.start, peers=THREE)

    def test_members_in_the_log(self) -> None:
        """The log has to report the new members: else it would name those that are lost."""
        store = self.start(bootstrap=False, peers=THREE)
        store.append_configuration(Membership(voters={"n0": "h:1", "n7": "h:7"}), 4)
        store.clean_close()
        self.disk.locked.clear()
        self.assertEqual(force_new_group(config_of(peers="n0-h:1"), self.disk, OURS), 3)
        store = self.start(bootstrap=False, peers="n0-h:1")
        assert store.membership is not None
        self.assertEqual((dict(store.membership.voters), store.membership.index), ({"n0": "h:1"}, 3))

    def test_looking_changes_nothing(self) -> None:
        """Only the other call does."""
        before = self.disk.contents()
        seen_member(config_of(peers="n0-h:1"), self.disk)
        self.assertEqual(self.disk.contents(), before)

    def test_a_survivor_waits_for_nothing(self) -> None:
        """A member that waits for lost entries goes on with those that it has."""
        path = next(path for path in self.disk.files if "/data/" in path)
        self.disk.files[path].data[:] = bytes(len(self.disk.files[path].data))
        store = self.start(peers=THREE)
        self.assertEqual(store.repair_end_index, 1)
        store.abandon()
        self.disk.locked.clear()
        self.assertEqual(force_new_group(config_of(peers="n0-h:1"), self.disk, OURS), -1)
        store = self.start(peers="n0-h:1")
        self.assertEqual(store.repair_end_index, -1)

    def test_an_empty_directory_is_no_group(self) -> None:
        """A wrong directory is not a group."""
        error = self.assertRaises(
            DirectoryError, force_new_group, config_of(base="other"), self.disk, OURS
        )
        self.assertIn("holds no ledger", str(error))
