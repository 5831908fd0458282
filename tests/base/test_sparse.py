# -*- test-case-name: tests.base.test_sparse -*-
"""Holes of files, where the file system knows them."""

from __future__ import annotations

import os
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.base.disk.segment import SegmentList, file_name
from dledger.base.disk.sparse import next_data
from dledger.testing.world.memory_disk import MemoryDisk

SIZE = 1 << 30


class HoleTests(SynchronousTestCase):
    """Of a file with two bytes."""

    def setUp(self) -> None:
        self.path = self.mktemp()
        with open(self.path, "wb") as file:
            file.truncate(SIZE)
            file.write(b"a")
            file.seek(SIZE // 2)
            file.write(b"b")
            file.flush()
            if os.lseek(file.fileno(), 1, os.SEEK_HOLE) >= SIZE:
                raise SkipTest("this file system does not know its holes")
        self.file = OsDisk().open(self.path)
        self.addCleanup(self.file.close)

    def test_found(self) -> None:
        """Data itself, the next data, the end where there is no more; not beyond the end that is given."""
        self.assertEqual(next_data(self.file, 0, SIZE), 0)
        found = next_data(self.file, 1 << 20, SIZE)
        self.assertTrue(1 << 20 < found <= SIZE // 2, found)
        self.assertEqual(next_data(self.file, SIZE // 2 + (1 << 20), SIZE), SIZE)
        self.assertEqual(next_data(self.file, 1 << 20, 2 << 20), 2 << 20)
        self.assertEqual(next_data(self.file, SIZE, SIZE), SIZE)
        self.assertEqual(self.file.pread(1, SIZE // 2), b"b")

    def test_zeroed(self) -> None:
        """Only what is no hole is read, and written with zeros."""
        disk, directory = OsDisk(), self.mktemp()
        os.mkdir(directory)
        os.rename(self.path, f"{directory}/{file_name(0)}")
        files = SegmentList(disk, directory, SIZE, (0,))
        self.addCleanup(files.close)
        asked: list[int] = []
        real = files.pread

        def pread(size: int, position: int) -> bytes:
            asked.append(position)
            return real(size, position)

        self.patch(files, "pread", pread)
        files.zero(0, SIZE)
        self.assertLess(len(asked), 8)
        self.assertEqual((real(1, 0), real(1, SIZE // 2)), (b"\0", b"\0"))

    def test_unknown(self) -> None:
        """A disk that knows none has none."""
        file = MemoryDisk().open("x", create=True, size=100)
        self.assertEqual((next_data(file, 7, 100), next_data(file, 200, 100)), (7, 100))
