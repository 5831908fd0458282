# -*- test-case-name: tests.storage.test_restore -*-
"""Restoring a backup or an archive: every entry, in a new group or the old one, and nothing half-made."""

from __future__ import annotations

from typing import Any

from dledger.storage.backups.restore import RestoreSummary, restore_archive
from dledger.storage.files.term_file import TermFile, TermVote
from dledger.storage.start.verify import verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from tests.storage.archived_member import GROUP, PLACE, ArchiveCase, body_of
from tests.storage.support import ROOT, HookedDisk, append_bare, bodies_in, config_of

NEW = GroupName("c" * 32, 0, True)
PEERS = "n5-h:5;n6-h:6;n7-h:7"
PATH = "new/dledger-n5"
#: Where a restored member is opened, with the sizes of its files.
MEMBER = {"base": "new", "self_id": "n5", "peers": PEERS}


class RestoreCase(ArchiveCase):
    """A backup of 40 entries, and another disk."""

    def setUp(self) -> None:
        super().setUp()
        self.append(20)
        self.append(20, term=7)
        self.other = HookedDisk()

    def restore(
        self, disk: HookedDisk | None = None, *, joins: bool = False, **options: Any
    ) -> RestoreSummary:
        """As the command does, with files of Java's size in the configuration."""
        disk = self.other if disk is None else disk
        config = config_of(**{**MEMBER, "mapped_file_size_for_entry_data": 1 << 30,
                              "mapped_file_size_for_entry_index": 32 * 1000, **options})
        return restore_archive(self.place, PLACE, config, disk, NEW, joins=joins)

    def started(self, **options: Any) -> FileStore:
        """The restored member."""
        store = FileStore.open(config_of(**MEMBER, **options), self.other)
        self.addCleanup(store.abandon)
        return store


class RestoreTests(RestoreCase):
    """What is restored."""

    def test_all_entries_are_restored(self) -> None:
        """Each, committed, where it was; the files are those of the member, and sound."""
        self.backup()
        summary = self.restore()
        self.assertEqual((summary.path, summary.begin_index, summary.end_index), (PATH, 0, 39))
        self.assertEqual((summary.data_file_size, summary.index_file_size), (1024, 320))
        self.assertEqual(verify_directory(self.other, PATH).findings, [])
        store = self.started()
        self.assertEqual((store.committed_index, store.ledger_end_term), (39, 7))
        self.assertEqual(bodies_in(store), list(map(body_of, range(40))))
        ours, theirs = self.disk.contents(), self.other.contents()
        for path in ours:
            if "/data/" in path or "/index/" in path:
                self.assertEqual(theirs[path.replace("base/dledger-n0", PATH)], ours[path], path)

    def test_a_restored_group_is_new(self) -> None:
        """Another id, no vote, and sure: the others begin with empty directories."""
        self.backup()
        self.restore()
        store = self.started()
        self.assertEqual(store.identity.group_name, NEW)
        self.assertNotEqual(store.identity.group_name, GROUP)
        self.assertFalse(store.identity.is_unsure)
        terms = TermFile(self.other, PATH)
        self.assertEqual(terms.load(ledger_end_term=7, has_ledger=True), TermVote(7, None))

    def test_changed_members_are_reported(self) -> None:
        """The log reported the members of the old group: it reports those of the new one at its end."""
        self.store.append_configuration(Membership(voters={"n0": "h:1", "n9": "h:9"}), 7)
        self.append(2, term=7)
        self.backup()
        self.assertEqual((self.restore().end_index, self.other.count("rename")), (42, 1))
        store = self.started()
        assert store.membership is not None
        self.assertEqual(dict(store.membership.voters), {"n5": "h:5", "n6": "h:6", "n7": "h:7"})
        self.assertEqual(store.ledger_end_index, 43)

    def test_an_expired_begin_is_restored(self) -> None:
        """A log that does not begin with entry 0."""
        self.store.clean_close()
        self.store = FileStore.open(config_of(retention_bytes=2048), self.disk)
        self.store.maintenance(1e9, 4, keep_from_index=39)
        self.append(5, term=7)
        begin = self.store.ledger_begin_index
        self.assertGreater(begin, 0)
        self.backup()
        self.assertEqual(self.restore().begin_index, begin)
        self.assertEqual(bodies_in(self.started()), list(map(body_of, range(begin, 45))))

    def test_bare_records_are_restored(self) -> None:
        """Records of Java."""
        self.store.abandon()
        self.disk = HookedDisk()
        self.store = FileStore.open(self.config, self.disk)
        append_bare(self.store, map(body_of, range(20)), 1)
        self.commit()
        self.backup()
        self.restore()
        self.assertEqual(bodies_in(self.started()), list(map(body_of, range(20))))


class RefusedTests(RestoreCase):
    """Nothing is half-made."""

    def test_not_over_anything(self) -> None:
        """A member's directory, or any other, stays as it is."""
        self.backup()
        self.restore()
        before = self.other.contents()
        self.assertIn("exists", str(self.assertRaises(DirectoryError, self.restore)))
        self.assertEqual(self.other.contents(), before)

    def test_another_directory_is_refused(self) -> None:
        """It is named."""
        self.assertIn("archive-0.json", str(self.assertRaises(DirectoryError, self.restore)))
        self.assertEqual(self.other.contents(), {})

    def test_a_damaged_backup_is_refused(self) -> None:
        """No member's directory comes from it."""
        self.backup()
        path = sorted(path for path in self.place.files if "/data/" in path)[2]
        self.place.files[path].data[55] ^= 1
        self.assertIn(path, str(self.assertRaises(StoreError, self.restore)))
        self.assertFalse(self.other.exists(PATH))
        self.assertIn("new/restoring", str(self.assertRaises(DirectoryError, self.restore)))

    def test_a_failed_restore_leaves_nothing_half(self) -> None:
        """Cut short at any file call, there is no member's directory, or a whole one; unsure if it joins."""
        self.backup()
        for joins in (False, True):
            whole = HookedDisk()
            self.restore(whole, joins=joins)
            for number in range(len(whole.calls)):
                self.other = HookedDisk()
                self.other.fails_at = number
                try:
                    self.restore(joins=joins)
                except DLedgerError:
                    self.assertFalse(self.other.exists(PATH), number)
                self.other.fails_at = -1
                self.other.locked.clear()
                if self.other.exists(PATH):
                    store = self.started()
                    self.assertEqual((len(bodies_in(store)), store.identity.is_unsure), (40, joins))
                    self.assertEqual(store.identity.group_name == NEW, not joins)
                    store.abandon()


class JoinTests(RestoreCase):
    """A member of the old group that begins with an archive."""

    def test_a_member_joins(self) -> None:
        """Of the same group, with every entry committed; it does not know its votes, so it is unsure."""
        end = self.ship().end_index
        summary = self.restore(joins=True, bootstrap=True, accept_unclean_start=True)
        self.assertEqual((summary.end_index, summary.ledger_end_index), (end, end))
        self.assertEqual(summary.group_id, GROUP.id)
        self.assertEqual(verify_directory(self.other, PATH).findings, [])
        store = self.started(bootstrap=True)
        self.assertTrue(store.identity.is_unsure)
        self.assertTrue(store.identity.forgot_terms)
        self.assertEqual((store.identity.group_name.id, store.identity.group_name.is_known), (GROUP.id, True))
        self.assertEqual((store.committed_index, store.ledger_end_index), (end, end))
        self.assertEqual(bodies_in(store), list(map(body_of, range(end + 1))))
        terms = TermFile(self.other, PATH)
        self.assertEqual(terms.load(ledger_end_term=7, has_ledger=True), TermVote(7, None))
        store.append_entries(self.store.read_range(end + 1, end_index=39, max_bytes=99999))
        self.assertEqual(bodies_in(store), list(map(body_of, range(40))))

    def test_join_keeps_members(self) -> None:
        """A list of members that the log reports is that of the group, not one of the operator's."""
        self.store.append_configuration(Membership(voters={"n0": "h:1", "n9": "h:9"}), 7)
        self.append(20, term=7)
        self.ship()
        self.restore(joins=True)
        store = self.started()
        assert store.membership is not None
        self.assertEqual(dict(store.membership.voters), {"n0": "h:1", "n9": "h:9"})

    def test_another_group_is_refused(self) -> None:
        """The name is reported; nothing is made."""
        self.ship()
        error = self.assertRaises(DirectoryError, self.restore, joins=True, group="g2")
        self.assertIn("is of group default", str(error))
        self.assertEqual(self.other.contents(), {})

    def test_a_java_group_is_joined(self) -> None:
        """Without an id, it joins as one with an empty directory does."""
        self.disk.unlink(f"{ROOT}/identity")
        self.ship()
        self.assertEqual(self.restore(joins=True).group_id, "")
        self.assertTrue(self.started().identity.is_unsure)
