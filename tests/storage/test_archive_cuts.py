# -*- test-case-name: tests.storage.test_archive_cuts -*-
"""Archives whose run is cut short at every file call or by a power cut, and members that begin with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from dledger.storage.backups.archive import ArchiveSummary
from dledger.storage.backups.backup_reader import verify_backup
from dledger.storage.backups.restore import RestoreSummary, restore_backup
from dledger.storage.files.term_file import TermFile, TermVote
from dledger.storage.manifests.archive_manifest import read_archive
from dledger.storage.start.verify import verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import Enumeration, demand
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from tests.storage.support import ROOT, HookedDisk, bodies_in, config_of
from tests.storage.test_archive import ArchiveCase
from tests.storage.test_backup import GROUP, PLACE, body_of


@attrs.frozen
class _Runs:
    """Two runs on one member; what is promised is the number of entries in the archive."""

    ship: Callable[[Any], ArchiveSummary]
    append: Callable[[], None]
    whole: Callable[[], int]
    name: str = "archive"

    def run(self, disk: CrashDisk, promised: Callable[[int], None]) -> None:
        """A first one, entries, and another."""
        promised(0)
        promised(self.ship(disk).end_index + 1)
        self.append()
        promised(self.ship(disk).end_index + 1)

    def check(self, disk: CrashDisk, promise: int, *, boots: int, goes_on: Callable[[], bool]) -> None:
        """It is sound, has what was promised, and the next run completes it."""
        manifest = read_archive(disk, PLACE).manifest if disk.exists(PLACE) else None
        count = 0 if manifest is None else manifest.end_index + 1
        demand(count >= promise, f"less than {promise} entries")
        findings = [] if manifest is None else verify_backup(disk, PLACE).findings
        demand(not findings, f"it is not sound: {findings}")
        self.ship(disk)
        report = verify_backup(disk, PLACE)
        demand(report.is_clean and report.entries == self.whole(), "the next run does not complete it")


class CutShortTests(ArchiveCase):
    """Cut short at every file call."""

    def test_every_crash_leaves_an_archive(self) -> None:
        """By the end of the process, and by a power cut that keeps any part of what was not synced."""
        self.append(11)
        story = _Runs(self.ship, lambda: self.append(9), lambda: self.closed() + 1)
        tally = Enumeration(story, second_share=0.01).run()
        self.assertEqual(tally.bad, [])
        self.assertGreater(tally.images, 100)

    def test_every_failed_call_leaves_an_archive(self) -> None:
        """The archive is the one of before or reaches further; the next run completes it. The first, too."""
        self.append(15)
        empty, begun = HookedDisk(), HookedDisk()
        self.ship(begun)
        least = len(self.bodies(begun))
        self.append(20)
        wanted = list(map(body_of, range(self.closed() + 1)))
        for before, count in ((empty, 0), (begun, least)):
            whole = self.cloned(before)
            self.ship(whole)
            for number in range(len(whole.calls)):
                place = self.cloned(before)
                place.fails_at = number
                self.assertRaises(StoreError, self.ship, place)
                place.fails_at = -1
                place.locked.clear()
                found = read_archive(place, PLACE).manifest
                self.assertGreaterEqual(0 if found is None else found.end_index + 1, count)
                if found is not None:
                    self.assertTrue(verify_backup(place, PLACE).is_clean)
                self.ship(place)
                self.assertEqual(self.bodies(place), wanted, number)

    def cloned(self, disk: HookedDisk) -> HookedDisk:
        """Another one with the same files."""
        place = HookedDisk()
        place.files, place.directories = disk.clone().files, set(disk.directories)
        return place


NEW = GroupName("c" * 32, 0, True)


class RestoreArchiveTests(ArchiveCase):
    """A member that begins with an archive."""

    def setUp(self) -> None:
        super().setUp()
        self.append(20)
        self.append(20, term=7)
        self.other = HookedDisk()

    def restore(self, *, joins: bool = True, **options: Any) -> RestoreSummary:
        """As the command does."""
        config = config_of("new", mapped_file_size_for_entry_data=1 << 30, **{
            "self_id": "n5", "peers": "n0-h:1;n5-h:5", **options})
        return restore_backup(self.place, PLACE, config, self.other, NEW, joins=joins)

    def started(self, **options: Any) -> FileStore:
        """The restored member."""
        store = FileStore.open(config_of("new", self_id="n5", peers="n0-h:1;n5-h:5", **options), self.other)
        self.addCleanup(store.abandon)
        return store

    def test_a_new_group_begins_with_an_archive(self) -> None:
        """As from a backup: a new id, and sure of itself."""
        end = self.ship().end_index
        summary = self.restore(joins=False)
        self.assertEqual((summary.end_index, summary.group_id), (end, NEW.id))
        self.assertEqual(verify_directory(self.other, "new/dledger-n5").findings, [])
        store = self.started()
        self.assertEqual((store.identity.group_name, store.identity.is_unsure), (NEW, False))
        self.assertEqual(bodies_in(store), list(map(body_of, range(end + 1))))

    def test_a_member_joins_with_an_archive(self) -> None:
        """Of the same group, with every entry committed; it does not know its votes, so it is unsure."""
        end = self.ship().end_index
        summary = self.restore(bootstrap=True, accept_unclean_start=True)
        self.assertEqual((summary.end_index, summary.ledger_end_index), (end, end))
        self.assertEqual(summary.group_id, GROUP.id)
        self.assertEqual(verify_directory(self.other, "new/dledger-n5").findings, [])
        store = self.started(bootstrap=True)
        self.assertTrue(store.identity.is_unsure)
        self.assertTrue(store.identity.forgot_terms)
        self.assertEqual((store.identity.group_name.id, store.identity.group_name.is_known), (GROUP.id, True))
        self.assertEqual((store.committed_index, store.ledger_end_index), (end, end))
        self.assertEqual(bodies_in(store), list(map(body_of, range(end + 1))))
        terms = TermFile(self.other, "new/dledger-n5")
        self.assertEqual(terms.load(ledger_end_term=7, has_ledger=True), TermVote(7, None))
        store.append_entries(self.store.read_range(end + 1, end_index=39, max_bytes=99999))
        self.assertEqual(bodies_in(store), list(map(body_of, range(40))))

    def test_join_keeps_members(self) -> None:
        """A list of members that the log reports is that of the group, not one of the operator's."""
        self.store.append_configuration(Membership(voters={"n0": "h:1", "n9": "h:9"}), 7)
        self.append(20, term=7)
        self.ship()
        self.restore()
        store = self.started()
        assert store.membership is not None
        self.assertEqual(dict(store.membership.voters), {"n0": "h:1", "n9": "h:9"})

    def test_another_group_is_refused(self) -> None:
        """The name is reported; nothing is made."""
        self.ship()
        error = self.assertRaises(DirectoryError, self.restore, group="g2")
        self.assertIn("is of group default", str(error))
        self.assertEqual(self.other.contents(), {})

    def test_a_java_group_is_joined(self) -> None:
        """Without an id, it joins as one with an empty directory does."""
        self.disk.unlink(f"{ROOT}/identity")
        self.ship()
        self.assertEqual(self.restore().group_id, "")
        self.assertTrue(self.started().identity.is_unsure)

    def test_a_failed_restore_leaves_nothing_half(self) -> None:
        """Cut short at any file call, there is no member's directory, or a whole one that is unsure."""
        end = self.ship().end_index
        self.restore()
        for number in range(len(self.other.calls)):
            self.other = HookedDisk()
            self.other.fails_at = number
            try:
                self.restore()
            except DLedgerError:
                self.assertFalse(self.other.exists("new/dledger-n5"), number)
            self.other.fails_at = -1
            self.other.locked.clear()
            if self.other.exists("new/dledger-n5"):
                store = self.started()
                self.assertEqual((store.ledger_end_index, store.identity.is_unsure), (end, True))
                store.abandon()
