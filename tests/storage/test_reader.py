# -*- test-case-name: tests.storage.test_reader -*-
"""A reader sees what is there, live or stopped, and touches nothing."""

from __future__ import annotations

import os
import struct
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.storage.files import reader as reader_module
from dledger.storage.files.reader import LogReader, ReadOnlyDisk
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DirectoryError, StoreError
from protocols.wire.ledger.entry import bodies_of
from tests.storage.support import (
    DATA_SIZE,
    INDEX_SIZE,
    append_bare,
    batch_of,
    config_of,
    entry_at,
    flush,
    our_record,
)


class ReaderCase(SynchronousTestCase):
    """A member's directory on real files."""

    def setUp(self) -> None:
        self.config = config_of(self.mktemp())
        self.path = self.config.self_path
        self.store = FileStore.open(self.config, OsDisk())
        self.addCleanup(lambda: self.store.abandon())

    def fill(self, count: int = 60) -> None:
        """Entries, a new term every ten."""
        for number in range(count):
            self.store.append_bodies((bytes([number]) * (number * 31 % 150),), 1 + number // 10)

    def commit(self, index: int) -> None:
        """Flush, commit, and let it be known."""
        flush(self.store)
        self.store.record_commit(index)
        self.store.check_point()

    def open(self) -> LogReader:
        """A reader of the directory."""
        reader = LogReader.open(self.path)
        self.addCleanup(reader.close)
        return reader

    def expected(self, start: int, end: int) -> list[bytes]:
        """The bodies of entries, C{end} inclusive."""
        return [bytes([number]) * (number * 31 % 150) for number in range(start, end + 1)]


class ReadTests(ReaderCase):
    """Reading."""

    def test_only_committed_entries_are_read(self) -> None:
        """Nothing after the commit is shown unless it is asked for."""
        self.fill()
        self.commit(41)
        reader = self.open()
        self.assertEqual((reader.begin_index, reader.end_index, reader.committed_index), (0, 59, 41))
        self.assertEqual((reader.data_file_size, reader.index_file_size), (1024, 320))
        for max_bytes in (1, 200, 10**6):
            found = [body for batch in reader.batches(0, max_bytes=max_bytes) for body in bodies_of(batch)]
            self.assertEqual(found, self.expected(0, 41))
        found = [body for batch in reader.batches(3, end_index=59) for body in bodies_of(batch)]
        self.assertEqual(found, self.expected(3, 59))
        self.assertEqual(list(reader.batches(42)), [])

    def test_runs_name_their_place(self) -> None:
        """Raw runs say where their bytes stand."""
        self.fill()
        self.commit(59)
        reader = self.open()
        index = 0
        for run in reader.runs(0, max_bytes=700):
            self.assertEqual(run.first_index, index)
            self.assertTrue(run.count == 1 or len(run.records) <= 700)
            with open(run.path, "rb") as file:
                self.assertEqual(file.read()[run.offset :][: len(run.records)], run.records)
            self.assertEqual(run.position, int(os.path.basename(run.path)) + run.offset)
            for at, unit in enumerate(struct.iter_unpack(">iqiqq", run.units)):
                self.assertEqual(unit[3], index + at)
            self.assertEqual(len(run.units), 32 * run.count)
            index += run.count
        self.assertEqual(index, 60)

    def test_runs_are_bounded_by_units(self) -> None:
        """Runs are bounded by the index units read at a time, too."""
        self.fill()
        self.commit(59)
        with mock.patch.object(reader_module, "_UNITS_MAX", 4):
            self.assertEqual([run.count for run in self.open().runs(0)][:2], [4, 4])

    def test_a_live_member_is_read(self) -> None:
        """A member that goes on writing: refresh shows more, the lock is not needed."""
        reader = self.open()
        self.assertEqual((reader.begin_index, reader.end_index, reader.committed_index), (-1, -1, -1))
        self.fill(5)
        self.commit(3)
        reader.refresh()
        self.assertEqual((reader.begin_index, reader.end_index, reader.committed_index), (0, 4, 3))
        self.fill_more()
        self.commit(30)
        reader.refresh()
        self.assertEqual((reader.end_index, reader.committed_index), (34, 30))
        self.store.truncate_to(entry_at(self.store, 30))
        reader.refresh()
        self.assertEqual((reader.end_index, reader.committed_index), (30, 30))

    def fill_more(self) -> None:
        """Thirty more."""
        for number in range(30):
            self.store.append_bodies((bytes([number]),), 9)

    def test_an_expired_begin_is_named(self) -> None:
        """A beginning that moves is not damage; what is gone is named."""
        self.fill()
        self.commit(59)
        reader = self.open()
        for _ in range(2):
            self.store.parts.data.drop_first()
        with self.assertRaises(StoreError) as caught:
            list(reader.batches(0))
        self.assertIn("its file is gone", str(caught.exception))
        reader.refresh()
        self.assertGreater(reader.begin_index, 0)
        first = reader.begin_index
        found = [body for batch in reader.batches(first) for body in bodies_of(batch)]
        self.assertEqual(found, self.expected(first, 59))

    def test_a_java_directory_is_read(self) -> None:
        """Without a mark the checkpoint says what is committed."""
        append_bare(self.store, self.expected(0, 20), 1)
        self.store.abandon()
        os.unlink(f"{self.path}/commitmark")
        reader = self.open()
        self.assertEqual((reader.end_index, reader.committed_index), (20, -1))
        OsDisk().write_file(f"{self.path}/checkpoint", b"endIndex=30\ncommittedIndex=25\n")
        reader.refresh()
        self.assertEqual((reader.end_index, reader.committed_index), (20, 20), "never after the end")
        found = [body for batch in reader.batches(0) for body in bodies_of(batch)]
        self.assertEqual(found, self.expected(0, 20))

    def test_a_damaged_record_is_reported(self) -> None:
        """A damaged record is reported with file and offset; raw runs leave that to their reader."""
        self.fill()
        self.commit(59)
        position = self.store.position_of(33) + 50
        with open(f"{self.path}/data/{position - position % DATA_SIZE:020d}", "r+b") as file:
            file.seek(position % DATA_SIZE)
            file.write(b"\xee")
        reader = self.open()
        with self.assertRaises(StoreError) as caught:
            list(reader.batches(0))
        self.assertEqual(caught.exception.facts["index"], 33)
        self.assertEqual(caught.exception.facts["offset"], self.store.position_of(33) % DATA_SIZE)
        self.assertEqual(sum(run.count for run in reader.runs(0)), 60)

    def test_file_in_the_making(self) -> None:
        """A last file without its length yet is not looked at."""
        self.fill()
        self.commit(59)
        last = self.store.parts.data.offsets[-1] + DATA_SIZE
        OsDisk().write_file(f"{self.path}/data/{last:020d}", b"")
        self.assertEqual(self.open().end_index, 59)

    def test_an_unfinished_record_does_not_count(self) -> None:
        """An index unit ahead of its record does not count."""
        self.fill()
        self.commit(59)
        end = self.store.end_position
        unit = struct.pack(">iqiqq", 1, end, 60, 60, 6)
        self.store.parts.index.create(60 * 32)
        self.store.parts.index.pwrite(unit, 60 * 32)
        self.assertEqual(self.open().end_index, 59)

    def test_a_missing_unit_does_not_count(self) -> None:
        """A record whose index unit has not come yet does not count either."""
        self.fill(2)
        self.assertEqual(self.open().end_index, 1)
        self.store.parts.index.pwrite(bytes(32), 32)
        self.assertEqual(self.open().end_index, 0)
        self.store.parts.index.pwrite(bytes(32), 0)
        self.assertEqual(self.open().end_index, -1)

    def test_java_worked_here_since(self) -> None:
        """Another checkpoint than that of our last orderly stop: the mark does not count."""
        self.fill()
        self.commit(50)
        self.store.clean_close()
        self.assertEqual(self.open().committed_index, 50)
        OsDisk().write_file(f"{self.path}/checkpoint", b"committedIndex=20\nendIndex=59\n")
        reader = self.open()
        self.assertEqual((reader.committed_index, reader.mark), (20, None))

    def test_commit_below_the_beginning(self) -> None:
        """A member that began anew and has not heard of a commit yet."""
        record = our_record(b"far", index=5000, term=9, pos=7 * DATA_SIZE, chain=99)
        self.store.truncate_to(batch_of([record]))
        reader = self.open()
        self.assertEqual((reader.begin_index, reader.end_index, reader.committed_index), (5000, 5000, -1))
        self.assertEqual([batch.first_index for batch in reader.batches(5000, end_index=5000)], [5000])

    def test_wasted_first_file(self) -> None:
        """A first file that holds a blank only."""
        record = our_record(b"x", index=7, term=1, pos=DATA_SIZE)
        self.store.truncate_to(batch_of([record]))
        OsDisk().write_file(f"{self.path}/data/{0:020d}", b"\xff\xff\xff\xff\0\0\4\0" + bytes(DATA_SIZE - 8))
        self.assertEqual((self.open().begin_index, self.open().end_index), (7, 7))

    def test_open_files_are_bounded(self) -> None:
        """The number of open files is bounded."""
        self.store.append_bodies((bytes(900),) * 50, 1)
        self.commit(49)
        reader = self.open()
        self.assertEqual(sum(run.count for run in reader.runs(0)), 50)
        self.assertLessEqual(len(reader.data.handles), 33)

    def test_a_damaged_unit_ends_the_run(self) -> None:
        """A unit that does not follow from the one before ends a run; at its start it is reported."""
        self.fill()
        self.commit(59)
        path = f"{self.path}/index/{INDEX_SIZE:020d}"
        whole = OsDisk().read_file(path)
        for at, value in ((3, 2), (11, 0xEE), (4, 0x7F), (15, 5), (23, 7)):
            damaged = bytearray(whole)
            damaged[2 * 32 + at] = value
            OsDisk().write_file(path, bytes(damaged))
            reader = self.open()
            with self.assertRaises(StoreError, msg=f"byte {at}") as caught:
                list(reader.batches(10))
            self.assertIn(caught.exception.facts["index"], (11, 12, 13))

    def test_other_record_size(self) -> None:
        """A unit whose size is not that of its record."""
        self.store.append_bodies((b"x" * 100,) * 3, 1)
        self.commit(2)
        unit = struct.pack(">iqiqq", 1, 0, 48, 0, 1)
        self.store.parts.index.pwrite(unit, 0)
        with self.assertRaises(StoreError):
            list(self.open().batches(0))


class AccessTests(ReaderCase):
    """What is not a ledger."""

    def test_another_directory_is_refused(self) -> None:
        """A sentence that helps."""
        for path, words in ((f"{self.path}/nowhere", "does not exist"),
                            (os.path.dirname(self.path), "dledger-n0"), (f"{self.path}/..", "dledger-n0")):
            with self.assertRaises(DirectoryError) as caught:
                LogReader.open(path)
            self.assertIn(words, str(caught.exception))
        os.makedirs(f"{self.path}/empty")
        with self.assertRaises(DirectoryError):
            LogReader.open(f"{self.path}/empty")

    def test_a_foreign_file_is_refused(self) -> None:
        """As the member itself does."""
        self.fill(1)
        OsDisk().write_file(f"{self.path}/data/x", b"")
        with self.assertRaises(DirectoryError):
            LogReader.open(self.path)

    def test_a_reader_writes_nothing(self) -> None:
        """Files are opened for reading only."""
        self.fill()
        self.commit(59)
        before = {path: os.stat(os.path.join(path, name)).st_mtime_ns
                  for path, _, names in os.walk(self.path) for name in names}
        reader = self.open()
        list(reader.batches(0))
        file = ReadOnlyDisk().open(f"{self.path}/data/{0:020d}")
        with self.assertRaises(OSError):
            file.pwrite(b"x", 0)
        file.close()
        after = {path: os.stat(os.path.join(path, name)).st_mtime_ns
                 for path, _, names in os.walk(self.path) for name in names}
        self.assertEqual(after, before)

    def test_other_data_path(self) -> None:
        """Data files may stand elsewhere."""
        config = config_of(self.mktemp(), data_store_path=self.mktemp())
        store = FileStore.open(config, OsDisk())
        store.append_bodies((b"x",), 1)
        store.clean_close()
        reader = LogReader.open(config.self_path, data_path=config.data_store_path)
        self.addCleanup(reader.close)
        self.assertEqual(reader.end_index, 0)
        with self.assertRaises(DirectoryError):
            LogReader.open(config.self_path)
