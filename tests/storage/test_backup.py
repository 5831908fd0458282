# -*- test-case-name: tests.storage.test_backup -*-
"""
Backups: archives that have the open segment, too. L{tests.storage.test_archive} has what both do, and
L{tests.storage.test_archive_cuts} what is left of a run that is cut short.
"""

from __future__ import annotations

from dledger.storage.backups.archive import archive_log
from dledger.storage.backups.reader import opened_archive, verify_archive
from dledger.storage.backups.source import ArchiveSource
from dledger.storage.files import reader
from dledger.storage.manifests.archive_manifest import read_archive
from dledger.storage.manifests.archive_place import DirectoryPlace
from dledger.storage.manifests.archive_retention import ArchiveRetention, expire_archive
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DirectoryError, StoreError
from tests.storage.archived_member import GROUP, PLACE, ArchiveCase, body_of
from tests.storage.support import ROOT, HookedDisk, append_bare, config_of


class BackupCase(ArchiveCase):
    """Files at the place are looked at after each run."""

    def assert_listed_files_are_there(self, place: HookedDisk | None = None) -> None:
        """Of each manifest that may count, whichever it is."""
        disk = self.place if place is None else place
        sizes = DirectoryPlace(disk, PLACE).sizes()
        for manifest in read_archive(disk, PLACE, reads_all=True).manifests:
            for one in (*manifest.pieces, *manifest.snapshots):
                self.assertEqual(sizes.get(one.name), one.size, (manifest.generation, one.name))

    def pieces(self) -> list[str]:
        """Names of the files in C{data}."""
        return self.place.listdir(f"{PLACE}/data")


class TakeTests(BackupCase):
    """What is in a backup."""

    def test_a_backup_has_all_committed_entries(self) -> None:
        """Every committed entry of a running member, and who it is of."""
        self.append(40)
        self.append(3, commits=False)
        reported: list[tuple[int, int]] = []
        paced: list[int] = []
        summary = self.backup(progress=lambda *now: reported.append(now), pace=paced.append)
        self.assertEqual((summary.begin_index, summary.end_index, summary.new_entries, summary.open_entries),
                         (0, 39, 40, 0))
        self.assertEqual(self.bodies(), list(map(body_of, range(40))))
        manifest = opened_archive(self.place, PLACE)
        self.assertEqual((manifest.group, manifest.group_id, manifest.member_id), ("default", GROUP.id, "n0"))
        self.assertEqual((sum(paced), reported[-1]), (
            summary.new_bytes + sum(one.size for one in manifest.snapshots), (sum(paced), sum(paced))))
        self.assertGreater(len(manifest.pieces), 3)
        self.assertEqual(verify_archive(self.place, PLACE).taken_s, 1_700_000_000)

    def test_only_what_is_new(self) -> None:
        """A later backup writes no closed segment again; without a new entry it writes nothing."""
        self.append(17)
        self.backup()
        closed = tuple(one.name for one in self.manifest().pieces[:-1])
        before = self.place.contents()
        for count in (1, 2, 30):
            self.append(count, term=2)
            written = len(self.place.calls)
            self.assertEqual(self.backup().new_entries, count)
            for call, path in self.place.calls[written:]:
                is_closed = path.removesuffix(".part").endswith(closed)
                self.assertFalse(is_closed and call in ("pwrite", "rename", "unlink"), (call, path))
            self.assert_listed_files_are_there()
        after = self.place.contents()
        self.assertEqual([after[f"{PLACE}/{one}"] for one in closed],
                         [before[f"{PLACE}/{one}"] for one in closed])
        self.assertEqual(self.bodies(), list(map(body_of, range(50))))
        written = len(self.place.calls)
        summary = self.backup()
        self.assertEqual((summary.new_entries, summary.new_bytes, summary.end_index), (0, 0, 49))
        names = {call for call, _ in self.place.calls[written:]}
        self.assertEqual(names & {"pwrite", "write_file", "rename"}, set())

    def test_a_part_is_replaced(self) -> None:
        """A longer part, then the whole segment, take its place; its file goes when no manifest lists it."""
        self.append(1)
        names = []
        for _ in range(8):
            self.backup()
            self.assert_listed_files_are_there()
            names.append(self.manifest().pieces[-1].name)
            self.append(1)
        self.assertEqual([one.position for one in self.manifest().pieces],
                         sorted({one.position for one in self.manifest().pieces}))
        self.append(20)
        self.ship()
        self.assertIn(f"{PLACE}/{names[-1]}", self.place.files)  # (the manifest before lists it)
        self.ship()
        self.append(20)
        self.ship()
        self.assert_listed_files_are_there()
        other = HookedDisk()
        self.ship(other)
        self.assertEqual(self.manifest().pieces, self.manifest(other).pieces)
        self.assertEqual(self.pieces(), other.listdir(f"{PLACE}/data"))
        self.assertEqual(self.bodies(), list(map(body_of, range(self.closed() + 1))))

    def test_of_another_writer(self) -> None:
        """A longer or a later file that no manifest lists stays: another run may be about to list it."""
        self.append(19)
        self.backup()
        last = self.manifest().pieces[-1]
        names = [f"{last.position:020d}-{end:020d}" for end in (last.end_position - 1, last.end_position + 1)]
        names += [f"{last.position + size:020d}-{last.position + size + 900:020d}" for size in (1024, 2048)]
        for name in names:
            self.place.write_file(f"{PLACE}/data/{name}", b"x")
        self.backup()
        self.assertEqual([name in self.pieces() for name in names], [False, True, True, True])

    def test_an_archive_becomes_a_backup(self) -> None:
        """And goes on as an archive, which has nothing to do until the segment is closed."""
        self.append(40)
        self.ship()
        self.assertEqual(self.backup().end_index, 39)
        summary = self.ship()
        self.assertEqual((summary.new_segments, summary.end_index, summary.open_entries), (0, 39, 0))
        self.assertEqual(self.bodies(), list(map(body_of, range(40))))
        self.append(9)
        self.assertEqual(self.ship().end_index, max(self.closed(), 39))

    def test_retention_of_a_backup(self) -> None:
        """First segments go; the part of the open one stays, and is replaced later."""
        self.disk.unlink(f"{ROOT}/identity")  # (Java's: it has no state that needs the entries after it)
        self.append(40)
        self.backup()
        rule = ArchiveRetention(keep_bytes=0)
        gone = expire_archive(DirectoryPlace(self.place, PLACE), rule, now_s=2e9, deletes=True)
        self.assertEqual((gone.segments, gone.end_index), (1, 39))
        self.append(3)
        self.backup()
        self.assertEqual(self.bodies(), list(map(body_of, range(gone.begin_index, 43))))

    def test_older_copies_of_the_manifest(self) -> None:
        """With the newest manifest lost in both places, the part that the one before lists is still there."""
        self.append(5)
        self.backup()
        self.append(1)
        self.backup()
        newest = self.manifest()
        for name in (newest.slot_name, newest.name):
            self.place.write_file(f"{PLACE}/{name}", b"{")
        self.assert_listed_files_are_there()
        self.assertGreaterEqual(self.manifest().end_index, 4)
        self.backup()
        self.assertEqual(self.bodies(), list(map(body_of, range(6))))


class RefusedTests(BackupCase):
    """What leaves a backup as it is."""

    def test_other_entries_before_the_end(self) -> None:
        """A part is replaced only by a file that begins with its bytes, also where no chain proves it."""
        append_bare(self.store, [b"a" * 50, b"b" * 50, b"end"], 1)
        self.commit()
        self.backup()
        sound = self.manifest()
        self.begin_anew()
        append_bare(self.store, [b"a" * 50, b"c" * 50, b"end"], 1)
        append_bare(self.store, [b"more"], 1)
        self.commit()
        error = self.assertRaises(StoreError, self.backup)
        self.assertIn("has other entries from 0 to 2 than", str(error))
        self.assertEqual(self.manifest(), sound)
        self.assertEqual(self.bodies(), [b"a" * 50, b"b" * 50, b"end"])

    def test_first_record_after_the_part(self) -> None:
        """The chain goes on from the end of the part: a header has no other checksum."""
        self.append(2)
        self.backup()
        self.append(1)
        position = self.store.position_of(2)
        self.assertLess(position, 1024)
        self.disk.files[f"{ROOT}/data/{0:020d}"].data[position + 33] ^= 1
        self.assertIn("entry 2 cannot be read", str(self.assertRaises(StoreError, self.backup)))

    def test_a_later_backup_of_another_member(self) -> None:
        """A member that does not hold the end is behind; one whose log begins after it leaves a gap."""
        self.append(20)
        self.backup()
        self.begin_anew()
        self.store.identity.record_group(GROUP)
        self.append(10)
        self.refused_run(DirectoryError, "ends with entry 19", "with entry 9", "is behind", is_backup=True)
        self.append(50)
        self.expire(59)
        self.refused_run(DirectoryError, "begins with entry", "retention", is_backup=True)


class ExpiryTests(BackupCase):
    """The member's retention deletes files while they are copied."""

    def setUp(self) -> None:
        super().setUp()
        self.store.clean_close()
        self.config = config_of(retention_bytes=2048)
        self.store = FileStore.open(self.config, self.disk)
        self.append(60)
        self.begin = 0

    def expire_all(self, copied: int) -> None:
        """Retention deletes all that it may, as soon as anything is copied."""
        if not self.begin:
            while self.store.maintenance(1e9, 4, keep_from_index=59):
                self.begin = self.store.ledger_begin_index
            self.assertGreater(self.begin, 20)

    def test_held_files_are_copied(self) -> None:
        """What was held is copied; the backup is whole, and its source has less."""
        self.backup(pace=self.expire_all)
        self.assertEqual(self.bodies(), list(map(body_of, range(60))))
        self.assertGreater(self.begin, 0)

    def test_beyond_the_bound(self) -> None:
        """What was not held is gone: the message names the retention; what was copied before stays."""
        self.patch(reader, "HELD_FILES_MAX", 3)
        error = self.assertRaises(StoreError, self.backup, pace=self.expire_all)
        for words in ("its retention has deleted entry", f"begins with entry {self.begin}", "retention_bytes",
                      "--rate"):
            self.assertIn(words, str(error))
        self.assertEqual(self.bodies(), list(map(body_of, range(len(self.bodies())))))
        self.assertGreater(len(self.bodies()), 0)

    def test_files_are_closed(self) -> None:
        """Files after the copy are closed, so that their room is free."""
        source = ArchiveSource.open(self.disk, ROOT)
        self.patch(reader, "HELD_FILES_MAX", 3)
        most = []
        archive_log(source, DirectoryPlace(self.place, PLACE), is_backup=True, taken_s=1,
                    pace=lambda _: most.append(len(source.reader.data.handles)))
        self.assertLessEqual(max(most), 5)
        source.close()
