# -*- test-case-name: tests.storage.test_expiry -*-
"""Old files go by age, ratio and total size, and never with anything that is not committed."""

from __future__ import annotations

import errno
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import DiskSpace
from dledger.base.disk.expiry import used_ratio
from dledger.base.disk.segment import file_name
from dledger.storage.files.commit_mark import read_mark
from dledger.storage.files.state_file import decode_state
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError, StoreError
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.codes import ResponseCode
from tests.storage.support import DATA_SIZE, HookedDisk, bodies_in, config_of, flush

HOUR_S = 3600
NOON, FOUR = 12, 4
ROOT = "base/dledger-n0"


class CrowdedDisk(HookedDisk):
    """A disk that is as full as the test says: C{used} percent."""

    used = 10
    usable = 1 << 40

    def space(self, path: str) -> DiskSpace:
        """As the test says; a directory that is not there has none."""
        assert self.exists(path), path
        return DiskSpace(total=100 << 30, free=(100 - self.used) << 30, usable=(100 - self.used) << 30)


class ExpiryTests(SynchronousTestCase):
    """House keeping of a store with ten entries a file, six files."""

    def start(self, **options: Any) -> FileStore:
        """A store of 60 entries, all committed and flushed, its files made at hour 0, 1, 2, ..."""
        self.disk = CrowdedDisk()
        retention: dict[str, Any] = {"file_reserved_hours": 72, "enable_disk_force_clean": True, **options}
        store = FileStore.open(config_of(**retention), self.disk)
        for number in range(60):
            store.append_bodies((bytes([number]) * 50,), 1)
        flush(store)
        store.record_commit(59)
        for hour, offset in enumerate(store.parts.data.offsets):
            self.disk.modified_s[store.parts.data.path(offset)] = hour * HOUR_S
        self.assertEqual(len(store.parts.data.offsets), 6)
        self.store = store
        return store

    def keep(self, hour: float, local_hour: int = FOUR, keep_from_index: int = 60) -> int:
        """House keeping at an hour; how many files went."""
        deleted = self.store.maintenance(hour * HOUR_S, local_hour, keep_from_index=keep_from_index)
        for one in deleted:
            self.assertNotIn(one.path, self.disk.files)
            self.assertTrue(one.why)
        return len(deleted)

    def test_a_hole_keeps_its_file(self) -> None:
        """Until the state of the group is known: of entries that nobody read nothing is left out."""
        store = self.start()
        flush(store)
        store.check_point(force=True)
        stored = decode_state(b"".join(store.encoding_group()[1].run()))
        store.abandon()
        path = f"{ROOT}/data/{file_name(0)}"
        file = self.disk.open(path, create=False)
        file.pwrite(bytes([file.pread(1, 60)[0] ^ 1]), 60)
        file.close()
        self.store = store = FileStore.open(
            config_of(file_reserved_hours=72, enable_disk_force_clean=True), self.disk
        )
        self.assertEqual(len(store.holes), 1)
        self.assertIsNone(store.group)
        self.assertEqual(self.keep(73), 0)
        self.assertEqual(store.install_group(stored), "")
        self.keep(73)
        self.assertEqual(store.holes, ())
        self.assertIsNotNone(store.group)

    def test_a_failed_deletion_is_repeated(self) -> None:
        """What fails is tried again; the store lives, and no file is lost or counted twice."""
        store = self.start(file_reserved_hours=72)
        self.disk.failures = {("unlink", "/data/"): errno.EIO}
        self.assertRaises(OSError, self.keep, 74)
        with mock.patch.object(self.disk, "space", side_effect=OSError(errno.EIO, "Input/output error")):
            self.assertRaises(OSError, self.keep, 74)
        self.assertEqual((store.ledger_begin_index, len(store.parts.data.offsets)), (0, 6))
        self.disk.failures = {("sync_directory", "/data"): errno.EIO, ("unlink", "/index/"): errno.EIO}
        self.assertEqual(self.keep(74), 3)
        self.assertEqual((store.ledger_begin_index, store.parts.data.offsets[0]), (30, 3 * DATA_SIZE))
        self.assertTrue(store.parts.data.directory_dirty, "the next sync includes it")
        index_files = len(store.parts.index.offsets)
        self.disk.failures = {}
        self.assertEqual(store.read_batch(30, max_count=1, max_bytes=1).first_index, 30)
        self.assertEqual(self.keep(74), 0)
        self.assertLess(len(store.parts.index.offsets), index_files)

    def test_old_files_expire_at_their_hour(self) -> None:
        """At the hour of the day, files that were last written before the reserved hours go."""
        store = self.start(file_reserved_hours=72)
        self.assertEqual(self.keep(71), 0)
        self.assertEqual(self.keep(74, NOON), 0, "not the hour")
        self.assertEqual(self.keep(74), 3)
        self.assertEqual((store.ledger_begin_index, store.parts.data.offsets[0]), (30, 3 * DATA_SIZE))
        self.assertEqual(bodies_in(store), [bytes([number]) * 50 for number in range(30, 60)])
        self.assertEqual(self.keep(1000), 2, "the last file stays")
        self.assertEqual(store.ledger_begin_index, 50)

    def test_restart_after_expiry(self) -> None:
        """The beginning is found again, and the index below it is gone."""
        store = self.start()
        self.keep(75)
        found = read_mark(self.disk, f"{ROOT}/commitmark")
        assert found is not None
        self.assertEqual(found[1].begin_position, store.parts.data.offsets[0])
        self.assertEqual(min(store.parts.index.offsets), 40 // 10 * 320)
        store.abandon()
        again = FileStore.open(config_of(), self.disk)
        self.assertEqual((again.ledger_begin_index, again.ledger_end_index), (40, 59))
        self.assertEqual(again.repair_end_index, -1)
        self.assertEqual(bodies_in(again), [bytes([number]) * 50 for number in range(40, 60)])

    def test_a_high_ratio_ignores_the_hour(self) -> None:
        """Above the ratio the hour does not matter, the age does."""
        self.start(disk_space_ratio_to_check_expired=0.7)
        self.disk.used = 70
        self.assertEqual(self.keep(73, NOON), 0)
        self.disk.used = 71
        self.assertEqual(self.keep(73, NOON), 2)

    def test_a_forced_expiry_ignores_the_age(self) -> None:
        """Above the force-clean ratio the age does not matter, but the commit does, and so does need."""
        store = self.start()
        store.parts.ledger.committed_index = 34
        self.disk.used = 86
        self.assertEqual(self.keep(0, NOON, keep_from_index=5), 0)
        self.assertEqual(self.keep(0, NOON, keep_from_index=34), 3)
        self.assertEqual(store.ledger_begin_index, 30)

    def drop(self, drop_to_index: int, keep_from_index: int = 60) -> list[str]:
        """What goes because snapshots have it, in a store that keeps everything by itself."""
        deleted = self.store.maintenance(
            0, NOON, keep_from_index=keep_from_index, drop_to_index=drop_to_index
        )
        return [one.why for one in deleted]

    def test_files_before_snapshots_may_go(self) -> None:
        """Whole closed files of committed, flushed entries go on request, and nothing that is needed."""
        store = self.start(file_reserved_hours=0, enable_disk_force_clean=False, machine_keep_entries=7)
        self.assertEqual(self.drop(-1), [])
        self.assertEqual(self.drop(8), [], "the file has one more entry")
        self.assertEqual(self.drop(59, keep_from_index=9), [], "a reader or a follower lacks its last entry")
        self.assertEqual(self.drop(9), [
            "snapshots of the state machine have its entries: machine_keep_entries=7"
        ])
        self.assertEqual((store.ledger_begin_index, store.parts.data.offsets[0]), (10, DATA_SIZE))
        store.parts.ledger.committed_index = 34
        self.assertEqual(len(self.drop(59)), 2)
        self.assertEqual(store.ledger_begin_index, 30)

    def test_behind_snapshots_with_retention(self) -> None:
        """Retention goes on deciding about the other files."""
        self.start(file_reserved_hours=72, enable_disk_force_clean=False)
        deleted = self.store.maintenance(74 * HOUR_S, FOUR, keep_from_index=60, drop_to_index=10)
        self.assertEqual(["snapshots" in one.why for one in deleted], [True, False, False])

    def test_force_is_an_option(self) -> None:
        """Without force cleaning the age counts."""
        self.start(enable_disk_force_clean=False)
        self.disk.used = 86
        self.assertEqual(self.keep(0, NOON), 0)

    def test_nothing_by_default(self) -> None:
        """However old a segment is, and however full the disk."""
        self.start(file_reserved_hours=0, enable_disk_force_clean=False)
        for used in (50, 90, 100):
            self.disk.used = used
            self.assertEqual(self.keep(1_000_000), 0)
        defaults = DLedgerConfig()
        self.assertEqual((defaults.file_reserved_hours, defaults.retention_bytes), (0, 0))
        self.assertFalse(defaults.enable_disk_force_clean)

    def test_begin_is_recorded_first(self) -> None:
        """The mark records the new beginning, durably, before a file goes."""
        store = self.start()
        marks = []
        unlink = self.disk.unlink

        def note(path: str) -> None:
            found = read_mark(self.disk, f"{ROOT}/commitmark")
            assert found is not None
            is_next = path.endswith("/data/" + file_name(len(marks) * DATA_SIZE))
            marks.append((is_next, found[1].begin_position))
            unlink(path)

        with mock.patch.object(self.disk, "unlink", note):
            self.assertEqual(self.keep(74), 3)
        self.assertEqual(marks[:3], [(True, DATA_SIZE), (True, 2 * DATA_SIZE), (True, 3 * DATA_SIZE)])
        store.abandon()

    def test_what_is_needed_stays(self) -> None:
        """A file with an entry that a follower still needs stays, and so do later ones."""
        self.start()
        self.assertEqual(self.keep(1000, keep_from_index=29), 2)
        self.assertEqual(self.keep(1000, keep_from_index=30), 1)

    def test_what_is_not_committed_stays(self) -> None:
        """Whatever its age; nor does the last one that is: leader and follower need one in common."""
        store = self.start()
        store.parts.ledger.committed_index = 19
        self.assertEqual(self.keep(1000), 1)
        store.parts.ledger.committed_index = 20
        self.assertEqual(self.keep(1000), 1)
        store.parts.ledger.committed_index = -1
        self.assertEqual(self.keep(1000), 0)

    def test_by_total_size(self) -> None:
        """At least retention_bytes are kept, whatever the hour."""
        self.start(retention_bytes=3 * DATA_SIZE)
        self.assertEqual(self.keep(0, NOON), 3)
        self.start(retention_bytes=3 * DATA_SIZE + 1)
        self.assertEqual(self.keep(0, NOON), 2)

    def test_ten_at_a_time(self) -> None:
        """Not all at once."""
        store = self.start()
        for _ in range(100):
            store.append_bodies((b"x" * 50,), 1)
        flush(store)
        store.record_commit(159)
        self.assertEqual(self.keep(1000, keep_from_index=160), 10)

    def test_crash_while_deleting(self) -> None:
        """Files go one by one from the oldest, so a crash leaves no gap."""
        store = self.start()
        self.disk.calls.clear()
        self.keep(74)
        data = [operation for operation, path in self.disk.calls
                if "/data" in path and operation in ("unlink", "sync_directory")]
        self.assertEqual(data, ["unlink", "sync_directory"] * 3)
        store.abandon()

    def test_a_full_disk_refuses_appends(self) -> None:
        """Above the full ratio, or with too little room, appends are refused until there is room again."""
        store = self.start(disk_full_ratio=0.9, enable_disk_force_clean=False)
        self.disk.used = 90
        self.keep(0)
        self.assertFalse(store.disk_full)
        self.disk.used = 91
        self.keep(0)
        self.assertTrue(store.disk_full)
        with self.assertRaises(DLedgerError) as caught:
            store.append_bodies((b"x",), 1)
        self.assertNotIsInstance(caught.exception, StoreError)
        self.assertIs(caught.exception.code, ResponseCode.DISK_FULL)
        self.assertIn("91%", str(caught.exception))
        self.disk.used = 50
        self.keep(0)
        store.append_bodies((b"x",), 1)

    def test_nearly_full(self) -> None:
        """A little before the disk is full, and when a write found no room."""
        store = self.start(disk_full_ratio=0.9, enable_disk_force_clean=False)
        for used, is_nearly_full in ((85, False), (86, True), (91, True), (50, False)):
            self.disk.used = used
            self.keep(0)
            self.assertIs(store.disk_nearly_full, is_nearly_full, used)
        store._room.refused("no room", 1)
        self.assertTrue(store.disk_nearly_full)

    def test_not_a_byte(self) -> None:
        """A file system without a usable byte is full, whatever the ratio."""
        store = self.start(disk_full_ratio=1.0, disk_space_ratio_to_force_clean=1.0)
        self.disk.used = 100
        self.keep(0)
        self.assertTrue(store.disk_full)

    def test_a_term_begins(self) -> None:
        """The first entry of a term is taken on a full disk, as the files at hand have room for it."""
        store = self.start(disk_full_ratio=0.9, enable_disk_force_clean=False)
        self.disk.used = 91
        self.keep(0)
        for bodies, term in (((b"x",), 2), ((b"",), 1), ((b"", b""), 2)):
            with self.assertRaises(DLedgerError):
                store.append_bodies(bodies, term)
        store.append_bodies((b"",), 2)
        with self.assertRaises(DLedgerError):
            store.append_bodies((b"",), 2)

    def test_the_ratio_is_rounded_up(self) -> None:
        """Whole percent, rounded up, of what an ordinary user can have."""
        for total, free, usable, expected in ((100, 50, 50, 0.5), (1000, 499, 499, 0.51), (100, 20, 10, 0.89),
                                              (100, 0, 0, 1.0), (0, 0, 0, 1.0)):
            self.assertAlmostEqual(used_ratio(DiskSpace(total=total, free=free, usable=usable)), expected)
