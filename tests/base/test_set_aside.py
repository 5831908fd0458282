# -*- test-case-name: tests.base.test_set_aside -*-
"""Files and bytes that leave a log are kept, under names that nothing overwrites."""

from __future__ import annotations

import errno
import os

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import Disk, OsDisk
from dledger.base.disk.segment import SegmentList, file_name
from dledger.base.disk.set_aside import KeptFile, SetAside, kept_files
from dledger.testing.world.memory_disk import MemoryDisk

SIZE = 64


class SetAsideContract(SynchronousTestCase):
    """On any disk; here on the one in memory."""

    def make_disk(self) -> tuple[Disk, str]:
        """A disk, and an empty directory on it."""
        return MemoryDisk(), "base"

    def setUp(self) -> None:
        self.disk, base = self.make_disk()
        self.disk.makedirs(base)
        self.directory = f"{base}/data"
        self.kept = f"{self.directory}.set-aside"
        self.segments = SegmentList(self.disk, self.directory, SIZE)
        for number in range(4):
            self.segments.create(number * SIZE)
            if number != 3:
                self.segments.pwrite(bytes([65 + number]) * 10, number * SIZE + 5)
        self.aside = SetAside(self.disk)

    def test_files(self) -> None:
        """They are moved as they are, from the last on; one of zeroes is deleted."""
        self.aside.files_behind(self.segments, 5, 7)
        self.assertEqual(self.segments.offsets, [0])
        self.assertEqual(self.disk.listdir(self.directory), [file_name(0)])
        names = [f"{self.kept}/{file_name(offset)}.set-aside-7" for offset in (128, 64)]
        self.assertEqual(self.aside.kept, [KeptFile(path=name, size=SIZE) for name in names])
        self.assertEqual(self.disk.read_file(names[0])[:20], b"\0" * 5 + b"C" * 10 + b"\0" * 5)
        self.assertEqual(sorted(kept_files(self.disk, self.directory), key=str),
                         sorted(self.aside.kept, key=str))

    def test_all_files(self) -> None:
        """Minus one: the first, too."""
        self.aside.files_behind(self.segments, -1, 7)
        self.assertEqual((self.segments.offsets, len(self.aside.kept)), ([], 3))

    def test_never_overwritten(self) -> None:
        """The same name in the same term gets a number."""
        for _ in range(3):
            self.aside.bytes_of(self.segments, 6, 2)
        names = [one.path.rpartition("/")[2] for one in self.aside.kept]
        whole = f"{file_name(0)}.from-6.set-aside-2"
        self.assertEqual(names, [whole, f"{whole}-2", f"{whole}-3"])

    def test_bytes(self) -> None:
        """From the position to the last byte that is not zero; the log itself is not changed."""
        self.aside.bytes_of(self.segments, 64 + 7, 2)
        (one,) = self.aside.kept
        self.assertEqual((self.disk.read_file(one.path), one.size), (b"B" * 8, 8))
        self.assertEqual(self.segments.pread(20, 64)[5:15], b"B" * 10)
        self.aside.bytes_of(self.segments, 64 + 15, 2)
        self.aside.bytes_of(self.segments, 1000, 2)
        self.assertEqual(len(self.aside.kept), 1, "zeroes are nothing, and neither is an absent file")

    def test_nothing_yet(self) -> None:
        """A log from which nothing ever left."""
        self.assertEqual(kept_files(self.disk, self.directory), [])

    def test_rename_keeps_what_is_there(self) -> None:
        """A name in use is refused."""
        self.disk.write_file(f"{self.directory}/a", b"a")
        self.disk.write_file(f"{self.directory}/b", b"b")
        with self.assertRaises(OSError) as caught:
            self.disk.rename(f"{self.directory}/a", f"{self.directory}/b")
        self.assertEqual(caught.exception.errno, errno.EEXIST)
        self.assertEqual(self.disk.read_file(f"{self.directory}/b"), b"b")


class OsSetAsideTests(SetAsideContract):
    """On the disk of the system."""

    def make_disk(self) -> tuple[Disk, str]:
        """A directory of the test's own."""
        base = os.path.abspath(self.mktemp())
        return OsDisk(), base
