# -*- test-case-name: tests.base.test_segment -*-
"""A stream in files of equal size."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.segment import (
    HANDLES_MAX,
    Listing,
    SegmentList,
    SegmentReader,
    file_name,
    list_segments,
    offsets_in,
)
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError
from tests.storage.support import BROKEN, HookedDisk


class ListTests(SynchronousTestCase):
    """What is in a directory."""

    def setUp(self) -> None:
        self.disk = HookedDisk()
        self.disk.makedirs("d")

    def put(self, name: str, size: int) -> None:
        """Place a file of zeroes."""
        self.disk.write_file(f"d/{name}", bytes(size))

    def list(self) -> Listing:
        """List the directory."""
        return list_segments(self.disk, "d", 100, "some_option")

    def test_names(self) -> None:
        """20 digits, as in Java."""
        self.assertEqual(file_name(1073741824), "00000000001073741824")
        self.assertEqual(list_segments(self.disk, "absent", 100, "x"), Listing())
        self.put(file_name(100), 100)
        self.put(file_name(300), 100)
        self.assertEqual(self.list(), Listing(offsets=(100, 300)))

    def test_foreign(self) -> None:
        """Anything else in there is refused by name."""
        for name in ("x", "1", "0000000000000000000a", "99999999999999999999", "0" * 21, ".nfs001",
                     "٠" * 20, "-0000000000000000001"):
            self.put(name, 100)
            with self.assertRaises(DirectoryError, msg=name) as caught:
                self.list()
            self.assertIn(f"d/{name}", str(caught.exception))
            self.disk.unlink(f"d/{name}")
        self.disk.makedirs(f"d/{file_name(0)}")
        with self.assertRaises(DirectoryError):
            self.list()

    def test_not_a_directory(self) -> None:
        """A file where the directory should be."""
        self.disk.write_file("f", b"")
        with self.assertRaises(DirectoryError):
            list_segments(self.disk, "f", 100, "x")

    def test_lengths(self) -> None:
        """Another length, or an offset that does not fit it, names the option."""
        for name, size in ((file_name(0), 101), (file_name(50), 100)):
            self.put(name, size)
            with self.assertRaises(DirectoryError) as caught:
                self.list()
            self.assertIn("some_option=100", str(caught.exception))
            self.disk.unlink(f"d/{name}")

    def test_unfinished(self) -> None:
        """A short file, and all after it, stand apart."""
        for offset, size in ((0, 100), (100, 30), (200, 100), (300, 0)):
            self.put(file_name(offset), size)
        self.assertEqual(self.list(), Listing(offsets=(0,), unfinished=(100, 200, 300), unfinished_size=30))


class SegmentListTests(SynchronousTestCase):
    """The files of a stream."""

    def setUp(self) -> None:
        self.disk = HookedDisk()
        self.segments = SegmentList(self.disk, "d", 100)
        for offset in (200, 300, 400):
            self.segments.create(offset)

    def test_places(self) -> None:
        """Where a position lies."""
        segments = self.segments
        self.assertEqual((segments.base(299), segments.base(300)), (200, 300))
        self.assertEqual([segments.has(at) for at in (100, 200, 400, 500)], [False, True, True, False])
        segments.pwrite(b"abc", 397)
        self.assertEqual(segments.pread(10, 397), b"abc", "not beyond the end of the file")
        with self.assertRaises(AssertionError):
            segments.pwrite(b"abc", 398)
        with self.assertRaises(AssertionError):
            segments.pread(1, 500)
        with self.assertRaises(AssertionError):
            segments.create(600)

    def test_zero(self) -> None:
        """Only what is not zero is written."""
        self.segments.pwrite(b"abc", 250)
        self.disk.calls.clear()
        self.segments.zero(260, 300)
        self.assertEqual(self.disk.count("pwrite"), 0)
        self.segments.zero(251, 300)
        self.assertEqual(self.disk.count("pwrite"), 1)
        self.assertEqual(self.segments.pread(5, 249), b"\0a\0\0\0")

    def test_cut(self) -> None:
        """Later files go, each durably and the last first; the rest of its own file is zeroed."""
        for position in (210, 310, 410):
            self.segments.pwrite(b"x" * 20, position)
        self.disk.calls.clear()
        self.segments.cut(215)
        removed = [call for call in self.disk.calls if call[0] in ("unlink", "sync_directory")]
        self.assertEqual(removed, [("unlink", f"d/{file_name(400)}"), ("sync_directory", "d"),
                                   ("unlink", f"d/{file_name(300)}"), ("sync_directory", "d")])
        self.assertEqual(self.segments.pread(100, 200), bytes(10) + b"x" * 5 + bytes(85))
        self.assertEqual(self.segments.offsets, [200])

    def test_dirty(self) -> None:
        """Written files are dirty until they are taken; a dropped one is forgotten."""
        self.assertEqual(len(self.segments.take_dirty()), 3)
        self.assertEqual(self.segments.take_dirty(), [])
        self.segments.pwrite(b"x", 300)
        self.segments.pwrite(b"x", 400)
        self.segments.drop_last()
        self.assertEqual([file.path for file in self.segments.take_dirty()], [self.segments.path(300)])

    def test_dropped_while_busy(self) -> None:
        """A file that a flush has in its hands is not closed under it."""
        taken = self.segments.take_dirty()
        self.segments.busy = frozenset(taken)
        self.disk.calls.clear()
        self.segments.drop_last()
        self.segments.drop_first()
        self.assertEqual(self.disk.count("close"), 0)
        self.segments.release()
        self.assertEqual(self.disk.count("close"), 2)

    def test_sync_covers_the_busy(self) -> None:
        """A sync does not rely on a flush that may fail; what was dropped does not matter."""
        self.segments.busy = frozenset(self.segments.take_dirty())
        self.segments.drop_last()
        self.disk.calls.clear()
        self.segments.sync()
        self.assertEqual(self.disk.count("datasync"), 2)
        self.assertEqual(self.disk.count("sync_directory"), 1)

    def test_sync(self) -> None:
        """Files that were written, and the directory if it has new names; nothing twice."""
        synced = [("datasync", f"d/{file_name(at)}") for at in (200, 300, 400)]
        for calls in ([*synced, ("sync_directory", "d")], []):
            self.disk.calls.clear()
            self.segments.sync()
            self.assertEqual(self.disk.calls, calls)
        self.segments.pwrite(b"x", 300)
        self.disk.calls.clear()
        self.segments.sync()
        self.segments.sync_directory()
        self.assertEqual(self.disk.calls, [("datasync", f"d/{file_name(300)}"), ("sync_directory", "d")])

    def test_touch(self) -> None:
        """After a kill, files from a position on count as written, with their names."""
        self.segments.sync()
        self.segments.touch_from(350)
        self.disk.calls.clear()
        self.segments.sync()
        self.assertEqual(self.disk.calls, [
            *(("datasync", f"d/{file_name(at)}") for at in (300, 400)), ("sync_directory", "d")])

    def test_close_leaves_the_busy(self) -> None:
        """Handles that a flush has in its hands stay open."""
        self.segments.busy = frozenset(self.segments.take_dirty()[:1])
        self.disk.calls.clear()
        self.segments.close()
        self.assertEqual(self.disk.count("close"), 2)

    def test_handles_are_bounded(self) -> None:
        """Clean files are closed when too many are open, dirty and busy ones are not."""
        segments = SegmentList(self.disk, "e", 10)
        for number in range(HANDLES_MAX + 20):
            segments.create(number * 10)
        self.assertEqual(len(segments.handles), HANDLES_MAX + 20, "all dirty")
        segments.busy = frozenset(segments.take_dirty()[:3])
        for number in range(HANDLES_MAX + 20):
            segments.pread(1, number * 10)
        for number in range(HANDLES_MAX + 20, HANDLES_MAX + 60):
            segments.create(number * 10)
            segments.take_dirty()
        self.assertLessEqual(len(segments.handles), HANDLES_MAX + 20)
        self.assertEqual([segments.handles.get(at) in segments.busy for at in (0, 10, 20)], [True] * 3)
        for number in range(HANDLES_MAX + 60):
            self.assertEqual(segments.pread(1, number * 10), b"\0")

    def test_failed_create(self) -> None:
        """Nothing has changed."""
        self.disk.failures = {("create", "d/"): BROKEN}
        with self.assertRaises(OSError):
            self.segments.create(500)
        self.assertFalse(self.segments.has(500))


class ReaderTests(SynchronousTestCase):
    """A row of files of another process: they may come, go and have gaps."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.disk.makedirs("d")
        for offset in (100, 200, 400):
            self.disk.open(f"d/{offset:020d}", create=True, size=100).pwrite(b"at %d" % offset, 0)
        self.reader = SegmentReader(self.disk, "d", handles_max=1)
        self.reader.show(offsets_in(self.disk, "d")[0], 100)

    def test_names(self) -> None:
        """Offsets rise; the first other name is reported."""
        self.assertEqual(offsets_in(self.disk, "d"), ([100, 200, 400], ""))
        for name in ("x", "9" * 20, "1" * 19):
            self.disk.open(f"d/{name}", create=True)
        self.assertEqual(offsets_in(self.disk, "d"), ([100, 200, 400], "1" * 19))
        self.assertRaises(FileNotFoundError, offsets_in, self.disk, "absent")

    def test_base(self) -> None:
        """The file that holds a position, if there is one."""
        found = [self.reader.base(position) for position in (0, 99, 100, 199, 200, 299, 300, 400, 499, 500)]
        self.assertEqual(found, [-1, -1, 100, 100, 200, 200, -1, 400, 400, -1])

    def test_read(self) -> None:
        """Never beyond the end of the file; nothing where there is none, or where it has just gone."""
        self.assertEqual(self.reader.pread(6, 200), b"at 200")
        self.assertEqual(self.reader.pread(100, 195), bytes(5))
        self.assertEqual((self.reader.pread(10, 300), self.reader.pread(0, 200)), (b"", b""))
        self.disk.unlink("d/" + f"{400:020d}")
        self.assertEqual(self.reader.pread(6, 400), b"")

    def test_handles(self) -> None:
        """No more stay open than were asked for, and none of a file that has gone."""
        for offset in (100, 200, 400):
            self.assertEqual(self.reader.pread(6, offset), b"at %d" % offset)
        self.assertEqual(list(self.reader.handles), [400])
        self.reader.show([100, 200], 100)
        self.assertEqual(self.reader.handles, {})
        self.assertEqual(self.reader.pread(6, 400), b"")
        self.reader.pread(6, 100)
        self.reader.close()
        self.assertEqual(self.reader.handles, {})
