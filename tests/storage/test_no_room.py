# -*- test-case-name: tests.storage.test_no_room -*-
"""File systems that need room to overwrite: appends are refused, marks wait, and the store lives."""

from __future__ import annotations

import errno
from unittest import mock

from dledger.base.disk.disk import DiskSpace, File
from dledger.storage.files.commit_mark import read_mark
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError, StoreError
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from tests.storage.support import (
    NO_SPACE,
    ROOT,
    HookedCase,
    HookedDisk,
    bodies_in,
    config_of,
    entry_at,
    flush,
)

TWO = Membership(voters={"n0": "h:1", "n1": "h:2"})


class PartlyFile:
    """A file whose next write in C{data} gets only so far."""

    def __init__(self, file: File, disk: PartlyDisk) -> None:
        self._file = file
        self._disk = disk

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Write a part, and fail."""
        disk = self._disk
        if disk.room >= 0 and disk.part in self._file.path:
            written, disk.room = min(disk.room, len(data)), max(disk.room - len(data), 0)
            self._file.pwrite(bytes(data[:written]), position)
            if written < len(data):
                disk.room = disk.room_after
                raise OSError(errno.ENOSPC, "No space left on device", self._file.path)
        else:
            self._file.pwrite(data, position)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class PartlyDisk(HookedDisk):
    """
    @ivar room: bytes that can be written to files whose path has C{part}; -1: all that are wanted.
    @ivar room_after: the same, after a write has failed.
    """

    room = room_after = -1
    part = "/data/"

    def open(self, path: str, *, create: bool = False, size: int = 0, reserved: int = -1) -> File:
        """A file that fails when asked to."""
        file = super().open(path, create=create, size=size, reserved=reserved)
        return PartlyFile(file, self)  # type: ignore[return-value]


class NoRoomTests(HookedCase):
    """A store with ten entries of fifty bytes."""

    def setUp(self) -> None:
        """On a disk that can run full in the middle of a write."""
        super().setUp()
        self.store.abandon()
        self.disk = PartlyDisk()
        self.reopen_new()
        self.bodies = [bytes([65 + number]) * 50 for number in range(10)]
        for body in self.bodies:
            self.store.append_bodies((body,), 1)
        flush(self.store)

    def reopen_new(self) -> None:
        """Open what is on the disk, as after SIGKILL."""
        self.store = FileStore.open(self.config, self.disk)

    def test_every_partial_write_is_refused(self) -> None:
        """However much of it was written, the append is refused, and a start does not find it."""
        more = (b"x" * 40, b"y" * 40, b"z" * 40)
        for part in ("/data/", "/index/"):
            for room in range(0, 3 * 88 if part == "/data/" else 3 * 32, 7):
                self.disk.part, self.disk.room, self.disk.room_after = part, room, -1
                error = self.assertRaises(DLedgerError, self.store.append_bodies, more, 1)
                self.assertIs(error.code, ResponseCode.DISK_FULL, f"{part} {room}")
                self.assertEqual(bodies_in(self.store), self.bodies)
                self.store.abandon()
                self.reopen_new()
                self.assertEqual((bodies_in(self.store), self.store.repair_end_index), (self.bodies, -1))
        self.store.append_bodies(more, 1)
        self.assertEqual(bodies_in(self.store), [*self.bodies, *more])

    def test_traces_that_stay_end_the_store(self) -> None:
        """If the part that was written cannot be zeroed, nothing is known: the store ends."""
        self.disk.room, self.disk.room_after = 100, 0
        self.assertRaises(StoreError, self.store.append_bodies, (b"x" * 300,), 1)
        self.assertRaises(StoreError, self.store.append_bodies, (b"x",), 1)

    def test_no_traces_need_no_zeroes(self) -> None:
        """If nothing was written, nothing needs to be zeroed, on a disk that takes no write at all."""
        self.disk.room = self.disk.room_after = 0
        self.assertRaises(DLedgerError, self.store.append_bodies, (b"x" * 300,), 1)
        self.disk.room = -1
        self.store.maintenance(0, 0, keep_from_index=0)  # there is room again
        self.store.append_bodies((b"on",), 1)
        self.assertEqual(bodies_in(self.store)[-1], b"on")

    def test_change_of_members(self) -> None:
        """A configuration entry that is refused is not in force, now and after a start."""
        self.disk.room = 0
        self.assertRaises(DLedgerError, self.store.append_configuration, TWO, 1)
        self.assertIs(self.store.membership, None)
        self.store.abandon()
        self.disk.room = -1
        self.reopen_new()
        self.assertIs(self.store.membership, None)

    def test_a_mark_waits_for_room(self) -> None:
        """A mark that finds no room is written later; the one in the file stays sound."""
        self.store.record_commit(9)
        self.disk.failures = {("pwrite", "commitmark"): NO_SPACE}
        flush(self.store)
        self.store.append_bodies((b"on",), 1)
        self.disk.failures.clear()
        self.store.record_commit(10)
        flush(self.store)
        self.store.abandon()
        self.reopen_new()
        self.assertEqual(self.store.committed_index, 10)

    def test_mark_waits_alone(self) -> None:
        """It is tried again though nothing else has changed since."""
        self.store.record_commit(9)
        self.disk.failures = {("pwrite", "commitmark"): NO_SPACE}
        self.store.parts.marks.write()
        self.disk.failures.clear()
        self.store.parts.marks.write()
        self.store.abandon()
        self.reopen_new()
        self.assertEqual(self.store.committed_index, 9)

    def test_mark_of_a_sync_waits(self) -> None:
        """A cut of nothing syncs what is there; the mark that says so waits."""
        last = entry_at(self.store, 9)
        self.disk.failures = {("pwrite", "commitmark"): NO_SPACE}
        self.store.truncate_to(last)
        self.assertEqual(self.store.ledger_end_index, 9)
        self.disk.failures.clear()
        self.store.append_bodies((b"on",), 1)

    def test_an_unrecorded_cut_is_refused(self) -> None:
        """A cut that cannot be recorded is refused, and changes nothing; it is done when there is room."""
        self.store.parts.marks.all_synced()
        before, wanted = bodies_in(self.store), entry_at(self.store, 5)
        durable = self.store.parts.marks.durable
        self.disk.failures = {("pwrite", "commitmark"): NO_SPACE}
        for _ in range(2):
            error = self.assertRaises(DLedgerError, self.store.truncate_to, wanted)
            self.assertNotIsInstance(error, StoreError)
            self.assertIs(error.code, ResponseCode.DISK_FULL)
        self.assertEqual((bodies_in(self.store), self.store.parts.marks.durable), (before, durable))
        self.disk.failures.clear()
        self.store.truncate_to(wanted)
        self.assertEqual(bodies_in(self.store), before[:6])

    def test_a_cut_that_cannot_write_over_is_refused(self) -> None:
        """On a full disk that needs room for that too, a cut changes nothing; there is room: it is done."""
        before, files = bodies_in(self.store), self.disk.contents()
        other = FileStore.open(config_of(self_id="n0", store_base_dir="other"), self.disk)
        other.append_bodies(tuple(self.bodies[:4]), 1)
        other.append_bodies((b"z" * 900,), 2)
        full = mock.patch.object(self.disk, "space", lambda _: DiskSpace(total=9999, free=9, usable=9))
        for part in ("/data/", "/index/"):
            for wanted in (entry_at(self.store, 5), entry_at(other, 4)):
                with full:
                    self.disk.part, self.disk.room, self.disk.room_after = part, 0, 0
                    error = self.assertRaises(DLedgerError, self.store.truncate_to, wanted)
                    self.disk.room = self.disk.room_after = -1
                self.assertNotIsInstance(error, StoreError)
                self.assertIs(error.code, ResponseCode.DISK_FULL)
                self.assertEqual(bodies_in(self.store), before)
                self.assertEqual({path: self.disk.read_file(path) for path in files if "other" not in path},
                                 {path: data for path, data in files.items() if "other" not in path})
        with full:
            self.store.truncate_to(entry_at(self.store, 5))
        self.assertEqual(bodies_in(self.store), before[:6])

    def test_first_entry_refused(self) -> None:
        """The first entry of a leader, too: a cut that cuts nothing is a write."""
        other = FileStore.open(config_of(self_id="n0", store_base_dir="other"), self.disk)
        first = entry_at(self.store, 0)
        self.disk.failures = {("pwrite", "other/dledger-n0/data"): NO_SPACE}
        error = self.assertRaises(DLedgerError, other.truncate_to, first)
        self.assertIs(error.code, ResponseCode.DISK_FULL)
        self.disk.failures.clear()
        other.truncate_to(first)
        self.assertEqual(bodies_in(other), bodies_in(self.store)[:1])
        other.abandon()

    def test_torn_marks_replace_no_sound_one(self) -> None:
        """Marks of which a part was written never take the place of the sound one, whatever syncs between."""
        self.store.parts.marks.all_synced()
        self.disk.part = "commitmark"
        for committed_index in (5, 6, 7, 8):
            self.store.record_commit(committed_index)
            self.disk.room = 20
            self.store.parts.marks.write()
            file = self.store.parts.marks._file
            file.synced(file._generation)
            found = read_mark(self.disk, f"{ROOT}/commitmark")
            assert found is not None
            self.assertEqual(found[1].end_index, 9)

    def test_expiry_waits_for_the_mark(self) -> None:
        """Files stay while the mark cannot say that they go."""
        for _ in range(100):
            self.store.append_bodies((b"m" * 200,), 1)
        self.store.record_commit(self.store.ledger_end_index)
        flush(self.store)
        self.disk.failures = {("pwrite", "commitmark"): NO_SPACE}
        drop = self.store.ledger_end_index - 5
        self.assertEqual(self.store.maintenance(0, 0, keep_from_index=drop, drop_to_index=drop), [])
        self.disk.failures.clear()
        self.assertGreater(len(self.store.maintenance(0, 0, keep_from_index=drop, drop_to_index=drop)), 0)
        self.assertGreater(self.store.ledger_begin_index, 0)
