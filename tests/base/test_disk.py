# -*- test-case-name: tests.base.test_disk -*-
"""What storage expects of a disk holds for the real one and for the one in memory."""

from __future__ import annotations

import errno
import math
import os
import resource
import stat
from typing import TYPE_CHECKING
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import Disk, OsDisk, is_no_room
from dledger.testing.world.memory_disk import MemoryDisk

if TYPE_CHECKING:
    _Case = SynchronousTestCase
else:
    _Case = object  # a contract is no test case by itself


class DiskContract(_Case):
    """Tests for any disk; C{self.base} is an empty directory on it."""

    disk: Disk
    base: str

    def test_create(self) -> None:
        """A new file has its length and is zero; it must not be there before."""
        path = f"{self.base}/file"
        disk = self.disk
        file = disk.open(path, create=True, size=100)
        self.assertEqual((file.size(), disk.file_size(path)), (100, 100))
        self.assertEqual(file.pread(200, 0), bytes(100))
        file.pwrite(b"abc", 10)
        file.pwrite(memoryview(b"xdx")[1:2], 99)
        file.datasync()
        self.assertEqual(file.pread(5, 9), b"\0abc\0")
        self.assertEqual(file.pread(5, 98), b"\0d")
        self.assertEqual(file.pread(5, 100), b"")
        self.assertGreaterEqual(file.modified_s(), 0)
        file.close()
        file.close()
        with self.assertRaises(FileExistsError):
            disk.open(path, create=True, size=1)
        again = disk.open(path)
        self.assertEqual(again.pread(3, 10), b"abc")
        again.pwrite(b"longer", 98)
        self.assertEqual(again.size(), 104)
        again.close()
        disk.unlink(path)
        for call in (disk.open, disk.unlink, disk.read_file, disk.file_size):
            with self.assertRaises(FileNotFoundError):
                call(path)

    def test_small_files(self) -> None:
        """A small file is replaced whole."""
        disk, path = self.disk, f"{self.base}/small"
        self.assertFalse(disk.exists(path))
        for content in (b"first one", b"", b"two"):
            disk.write_file(path, content)
            self.assertEqual(disk.read_file(path), content)
        self.assertTrue(disk.exists(path))
        self.assertEqual(disk.listdir(self.base), ["small"])

    def test_directories(self) -> None:
        """Directories are made with their parents; their names are listed in order."""
        disk, base = self.disk, self.base
        disk.makedirs(f"{base}/a/b")
        disk.makedirs(f"{base}/a/b")
        disk.write_file(f"{base}/a/2", b"")
        disk.write_file(f"{base}/a/10", b"")
        disk.sync_directory(f"{base}/a")
        self.assertEqual(disk.listdir(f"{base}/a"), ["10", "2", "b"])
        with self.assertRaises(IsADirectoryError):
            disk.file_size(f"{base}/a/b")
        with self.assertRaises(FileNotFoundError):
            disk.listdir(f"{base}/z")
        with self.assertRaises(NotADirectoryError):
            disk.listdir(f"{base}/a/2")
        with self.assertRaises(OSError):
            disk.makedirs(f"{base}/a/2")

    def test_rename(self) -> None:
        """A file, or a directory with all that is in it, gets a free name."""
        disk, base = self.disk, self.base
        disk.makedirs(f"{base}/a/b")
        disk.write_file(f"{base}/a/b/1", b"one")
        disk.rename(f"{base}/a/b/1", f"{base}/a/b/2")
        disk.makedirs(f"{base}/c")
        disk.rename(f"{base}/a", f"{base}/c/d")
        self.assertEqual((disk.listdir(base), disk.listdir(f"{base}/c/d")), (["c"], ["b"]))
        self.assertEqual(disk.read_file(f"{base}/c/d/b/2"), b"one")
        disk.makedirs(f"{base}/e")
        for path, to in ((f"{base}/c", f"{base}/e"), (f"{base}/e", f"{base}/c/d/b/2")):
            with self.assertRaises(FileExistsError):
                disk.rename(path, to)

    def test_lock(self) -> None:
        """Only one holds a lock, until it is closed."""
        disk, path = self.disk, f"{self.base}/lock"
        held = disk.lock(path)
        with self.assertRaises(OSError) as caught:
            disk.lock(path)
        self.assertIn(caught.exception.errno, (errno.EWOULDBLOCK, errno.EAGAIN))
        held.close()
        disk.lock(path).close()

    def test_space(self) -> None:
        """Room is measured in bytes."""
        space = self.disk.space(self.base)
        self.assertGreaterEqual(space.total, space.free)
        self.assertGreaterEqual(space.free, space.usable)


class OsDiskTests(DiskContract, SynchronousTestCase):
    """The file system of the operating system."""

    def setUp(self) -> None:
        self.disk = OsDisk()
        self.base = self.mktemp()
        os.makedirs(self.base)

    def test_reserved(self) -> None:
        """The bytes of a new file are really reserved."""
        self.disk.open(f"{self.base}/f", create=True, size=1 << 20).close()
        self.assertGreaterEqual(os.stat(f"{self.base}/f").st_blocks * 512, 1 << 20)

    def test_no_room(self) -> None:
        """Where there is no room no file is left behind."""
        with mock.patch("os.posix_fallocate", side_effect=OSError(errno.ENOSPC, "full")):
            with self.assertRaises(OSError):
                self.disk.open(f"{self.base}/f", create=True, size=10)
        self.assertEqual(os.listdir(self.base), [])

    def test_short_writes_and_reads(self) -> None:
        """Short system calls are gone on with."""
        file = self.disk.open(f"{self.base}/f", create=True, size=10)
        self.addCleanup(file.close)
        pwrite, pread = os.pwrite, os.pread
        with mock.patch("os.pwrite", side_effect=lambda fd, data, at: pwrite(fd, bytes(data)[:3], at)):
            file.pwrite(b"0123456789", 0)
        with mock.patch("os.pread", side_effect=lambda fd, size, at: pread(fd, min(size, 4), at)):
            self.assertEqual(file.pread(10, 0), b"0123456789")
            self.assertEqual(file.pread(10, 7), b"789")
        with mock.patch("os.pwrite", side_effect=[3, 0]), self.assertRaises(OSError) as caught:
            file.pwrite(b"0123456789", 0)
        self.assertEqual(caught.exception.errno, errno.EIO)

    def test_write_file_order(self) -> None:
        """Aside, fsync, rename, fsync of the directory: in this order."""
        calls: list[str] = []
        fsync, rename = os.fsync, os.rename

        def note_fsync(fd: int) -> None:
            calls.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else "file")
            fsync(fd)

        def note_rename(old: str, new: str) -> None:
            calls.append("rename")
            rename(old, new)

        with mock.patch("os.fsync", note_fsync), mock.patch("os.rename", note_rename):
            self.disk.write_file(f"{self.base}/f", b"x")
        self.assertEqual(calls, ["file", "rename", "directory"])


class NamedTests(SynchronousTestCase):
    """Each failure names its file: calls with a descriptor do not."""

    def test_failures(self) -> None:
        """Reads, writes, reservations and syncs of an open file, and of a file that is replaced."""
        disk, path = OsDisk(), os.path.join(self.mktemp(), "f")
        os.mkdir(os.path.dirname(path))
        file = disk.open(path, create=True, size=10)
        self.addCleanup(file.close)
        for call, act, named in (
            ("pread", lambda: file.pread(1, 0), path), ("pwrite", lambda: file.pwrite(b"x", 0), path),
            ("posix_fallocate", lambda: file.reserve(0, 1), path), ("fdatasync", file.datasync, path),
            ("fsync", lambda: disk.write_file(path, b"x"), f"{path}.tmp"),
            ("fsync", lambda: disk.sync_directory(os.path.dirname(path)), os.path.dirname(path)),
        ):
            with mock.patch.object(os, call, side_effect=OSError(errno.EIO, "Input/output error")):
                self.assertIn(f"'{named}'", str(self.assertRaises(OSError, act)))


class ModeTests(SynchronousTestCase):
    """Other users of the machine read nothing."""

    def test_modes(self) -> None:
        """Of everything that is made, with the widest umask."""
        self.addCleanup(os.umask, os.umask(0))
        base = os.path.abspath(self.mktemp()) + "/a/b"
        disk = OsDisk()
        disk.makedirs(base)
        disk.open(f"{base}/segment", create=True, size=9).close()
        disk.write_file(f"{base}/small", b"x")
        disk.lock(f"{base}/lock").close()
        for name, mode in (("", 0o750), ("/segment", 0o640), ("/small", 0o640), ("/lock", 0o640)):
            self.assertEqual(stat.S_IMODE(os.stat(base + name).st_mode), mode, name)
        self.assertEqual(stat.S_IMODE(os.stat(os.path.dirname(base)).st_mode), 0o750)


class PipeTests(SynchronousTestCase):
    """Something else has the place of a file."""

    def test_pipes_and_devices(self) -> None:
        """They are refused at once: nobody writes into the pipe, and the device never ends."""
        base, disk = self.mktemp(), OsDisk()
        os.makedirs(base)
        os.mkfifo(f"{base}/pipe")
        os.symlink("/dev/full", f"{base}/device")
        for name in ("pipe", "device"):
            for call in (disk.open, disk.read_file):
                error = self.assertRaises(OSError, call, f"{base}/{name}")
                self.assertIn("not a file", str(error))

    def test_directories(self) -> None:
        """As ever."""
        base, disk = self.mktemp(), OsDisk()
        os.makedirs(base)
        for call in (disk.open, disk.read_file):
            self.assertRaises(IsADirectoryError, call, base)


class DescriptorTests(SynchronousTestCase):
    """A process that has used up its descriptors still keeps its promises."""

    def setUp(self) -> None:
        self.base = self.mktemp()
        os.makedirs(self.base)
        self.disk = OsDisk()
        self.disk.write_file(f"{self.base}/f", b"old")  # from here on descriptors are kept
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.taken: list[int] = []
        self.addCleanup(lambda: [os.close(fd) for fd in self.taken])
        probe = os.dup(0)
        os.close(probe)
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe + 20, hard))
        try:
            while True:
                self.taken.append(os.dup(0))
        except OSError as error:
            self.assertEqual(error.errno, errno.EMFILE)

    def test_small_files(self) -> None:
        """Small files are replaced and read, directories synced, existing files opened."""
        self.disk.write_file(f"{self.base}/f", b"new")
        self.assertEqual(self.disk.read_file(f"{self.base}/f"), b"new")
        self.disk.sync_directory(self.base)
        file = self.disk.open(f"{self.base}/f")
        self.assertEqual(file.pread(3, 0), b"new")
        file.close()

    def test_new_segments_are_refused(self) -> None:
        """With an error that means: no room now."""
        with self.assertRaises(OSError) as caught:
            self.disk.open(f"{self.base}/g", create=True, size=10)
        self.assertTrue(is_no_room(caught.exception))
        self.assertFalse(is_no_room(OSError(errno.EIO, "broken")))


class MemoryDiskTests(DiskContract, SynchronousTestCase):
    """The file system in memory."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.base = "base"
        self.disk.makedirs(self.base)

    def test_big_files_take_no_memory(self) -> None:
        """What was never written is not there."""
        file = self.disk.open("base/f", create=True, size=1 << 30)
        file.pwrite(b"x", 100)
        self.assertLess(len(self.disk.files["base/f"].data), 200)
        self.assertEqual(file.pread(3, (1 << 30) - 2), b"\0\0")

    def test_files_never_grow_old(self) -> None:
        """No age, however late it is: expiry must not delete entries that exist in memory only."""
        with_age = self.disk.open("base/f", create=True, size=8)
        self.assertEqual(with_age.modified_s(), math.inf)
        self.assertLess(1e12 - with_age.modified_s(), 0)

    def test_clone(self) -> None:
        """A clone is independent."""
        self.disk.write_file("base/f", b"x")
        twin = self.disk.clone()
        twin.write_file("base/f", b"y")
        twin.lock("base/lock")
        self.assertEqual(self.disk.read_file("base/f"), b"x")
        self.disk.lock("base/lock")
