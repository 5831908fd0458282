# -*- test-case-name: tests.storage.test_archive,tests.storage.test_backup -*-
"""A member with entries in several segments, which is archived and backed up to another disk."""

from __future__ import annotations

import random
from typing import Any

from dledger.storage.backups.archive import ArchiveSummary, archive_log
from dledger.storage.backups.reader import archive_batches, opened_archive, verify_archive
from dledger.storage.backups.source import ArchiveSource
from dledger.storage.manifests.archive_manifest import ArchiveManifest, read_archive
from dledger.storage.manifests.archive_place import DirectoryPlace
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DirectoryError
from dledger.values.ledger.group_name import GroupName
from protocols.wire.ledger.entry import iterate_records
from tests.storage.support import ROOT, HookedCase, HookedDisk, config_of

GROUP = GroupName("a" * 32, 1, True)
PLACE = "backup"


def body_of(index: int) -> bytes:
    """Bodies of several lengths, so that the blanks differ."""
    return b"%d " % index + b"x" * (index * 37 % 210)


class ArchiveCase(HookedCase):
    """The archive is on a disk of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.store.identity.record_group(GROUP)
        self.place = HookedDisk()

    def append(self, count: int, *, commits: bool = True, term: int = 1) -> None:
        """Entries, committed and on stable storage."""
        first = self.store.ledger_end_index + 1
        self.store.append_bodies(tuple(map(body_of, range(first, first + count))), term)
        if commits:
            self.commit()

    def commit(self) -> None:
        """All entries."""
        self.store.record_commit(self.store.ledger_end_index)
        self.store.check_point(force=True)

    def ship(
        self, place: HookedDisk | None = None, *, is_backup: bool = False, **options: Any
    ) -> ArchiveSummary:
        """One run on the running member."""
        source = ArchiveSource.open(self.disk, ROOT)
        self.addCleanup(source.close)
        where = DirectoryPlace(self.place if place is None else place, PLACE)
        return archive_log(source, where, is_backup=is_backup, **{"taken_s": 1_700_000_000, **options})

    def backup(self, place: HookedDisk | None = None, **options: Any) -> ArchiveSummary:
        """With the open segment, too."""
        return self.ship(place, is_backup=True, **options)

    def manifest(self, place: HookedDisk | None = None) -> ArchiveManifest:
        """The one that counts."""
        found = read_archive(self.place if place is None else place, PLACE).manifest
        assert found is not None
        return found

    def bodies(self, place: HookedDisk | None = None) -> list[bytes]:
        """In the archive, which must be sound."""
        place = self.place if place is None else place
        self.assertEqual(verify_archive(place, PLACE).findings, [])
        batches = archive_batches(place, PLACE, opened_archive(place, PLACE))
        return [body for batch in batches for _, body in iterate_records(batch)]

    def closed(self) -> int:
        """Index of the last entry in a segment before the last one."""
        base = self.store.position_of(self.store.ledger_end_index) // 1024
        index = self.store.ledger_end_index
        while index >= 0 and self.store.position_of(index) // 1024 == base:
            index -= 1
        return index

    def begin_anew(self, **options: Any) -> None:
        """Another directory of the same member."""
        self.store.abandon()
        self.disk = HookedDisk()
        self.store = FileStore.open(config_of(**options), self.disk)

    def expire(self, keep_from_index: int) -> None:
        """All segments before an entry."""
        self.store.clean_close()
        self.store = FileStore.open(config_of(retention_bytes=1024), self.disk)
        self.assertTrue(self.store.maintenance(1e9, 4, keep_from_index=keep_from_index))
        self.commit()

    @staticmethod
    def cloned(disk: HookedDisk) -> HookedDisk:
        """Another one with the same files."""
        place = HookedDisk()
        place.files, place.directories = disk.clone().files, set(disk.directories)
        return place

    def refused_run(self, kind: type[Exception], *words: str, is_backup: bool = False) -> None:
        """The next run is refused with these words, and nothing has changed."""
        before = self.place.contents()
        error = self.assertRaises(kind, self.ship, is_backup=is_backup)
        for word in words:
            self.assertIn(word, str(error))
        after = self.place.contents()
        for found in (before, after):
            found.pop(f"{PLACE}/lock", None)
        self.assertEqual(after, before)

    def assert_damage_is_found(self) -> None:
        """Each flipped bit, each missing end and each missing file at the place."""
        rng = random.Random(5)
        sound = self.place.contents()
        for path in sound:
            if path.endswith("/lock"):
                continue
            content = self.place.files[path]
            for _ in range(40):
                at = rng.randrange(len(content.data))
                content.data[at] ^= 1 << rng.randrange(8)
                self.assertFalse(self.is_sound(), (path, at))
                content.data[:] = sound[path]
            del content.data[-2:]
            content.size -= 2
            self.assertFalse(self.is_sound(), path)
            del self.place.files[path]
            self.assertFalse(self.is_sound(), path)
            self.place.write_file(path, sound[path])
        self.assertTrue(self.is_sound())

    def is_sound(self) -> bool:
        """As verified."""
        try:
            return verify_archive(self.place, PLACE).is_clean
        except DirectoryError:
            return False
