# -*- test-case-name: tests.storage.test_archive_cuts -*-
"""Archives and backups whose run is cut short at every file call, or by a power cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from dledger.storage.backups.archive import ArchiveSummary
from dledger.storage.backups.reader import verify_archive
from dledger.storage.manifests.archive_manifest import read_archive
from dledger.storage.manifests.archive_place import DirectoryPlace
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import Enumeration, demand
from dledger.values.errors import StoreError
from tests.storage.archived_member import PLACE, ArchiveCase, body_of
from tests.storage.support import HookedDisk


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
        findings = [] if manifest is None else verify_archive(disk, PLACE).findings
        demand(not findings, f"it is not sound: {findings}")
        self.ship(disk)
        report = verify_archive(disk, PLACE)
        demand(report.is_clean and report.entries == self.whole(), "the next run does not complete it")


class CutShortTests(ArchiveCase):
    """Closed segments, and a part of a segment that is replaced by a longer one."""

    def test_every_crash_leaves_an_archive(self) -> None:
        """By the end of the process, and by a power cut that keeps any part of what was not synced."""
        self.append(6)
        for ship, whole in ((self.backup, lambda: self.store.ledger_end_index + 1),
                            (self.ship, lambda: self.closed() + 1)):
            story = _Runs(ship, lambda: self.append(9), whole)
            tally = Enumeration(story, second_share=0.01).run()
            self.assertEqual(tally.bad, [])
            self.assertGreater(tally.images, 100)

    def test_every_failed_call_leaves_an_archive(self) -> None:
        """It is the one of before or reaches further, each time sound; the next run completes it."""
        empty, shipped, parted = HookedDisk(), HookedDisk(), HookedDisk()
        for count in (15, 1):
            self.append(count)
            self.ship(shipped)
            self.backup(parted)  # (the next run removes the first part)
        self.append(20)
        closed, end = self.closed(), self.store.ledger_end_index
        for before, is_backup in ((empty, False), (empty, True), (shipped, False), (parted, False),
                                  (parted, True)):
            found = read_archive(before, PLACE).manifest
            count = 0 if found is None else found.end_index + 1
            whole = self.cloned(before)
            self.ship(whole, is_backup=is_backup)
            is_removed = "unlink" in {call for call, path in whole.calls if "/data/" in path}
            self.assertEqual(is_removed, before is parted)
            for number in range(len(whole.calls)):
                place = self.cloned(before)
                place.fails_at = number
                self.assertRaises(StoreError, self.ship, place, is_backup=is_backup)
                place.fails_at = -1
                place.locked.clear()
                state = read_archive(place, PLACE, reads_all=True)
                self.assertGreaterEqual(0 if state.manifest is None else state.manifest.end_index + 1, count)
                if state.manifest is not None:
                    self.assertEqual(verify_archive(place, PLACE).findings, [])
                sizes = DirectoryPlace(place, PLACE).sizes()
                for one in (piece for manifest in state.manifests for piece in manifest.pieces):
                    self.assertEqual(sizes.get(one.name), one.size, number)
                self.ship(place, is_backup=is_backup)
                self.assertEqual(self.bodies(place),
                                 list(map(body_of, range((end if is_backup else closed) + 1))), number)
