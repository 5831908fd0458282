# -*- test-case-name: tests.base.test_unreadable -*-
"""A sector that cannot be read costs its own bytes, and nothing else."""

from __future__ import annotations

import errno
import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import File
from dledger.base.disk.segment import SegmentList, SegmentReader
from dledger.base.disk.unreadable import BLOCK, FAILED_MAX, FILLER, OPENING_MAX_BYTES
from dledger.testing.world.disk import SimDisk
from dledger.testing.world.memory_disk import MemoryDisk

SIZE = 512 * BLOCK


class BadFile:
    """A file of which some blocks cannot be read. @ivar calls: reads so far."""

    def __init__(self, file: File, bad: set[int], number: int = errno.EIO) -> None:
        self._file = file
        self._bad = bad
        self._number = number
        self.calls = 0

    def pread(self, size: int, position: int) -> bytes:
        """Fail if the read touches a bad block."""
        self.calls += 1
        if self._bad.intersection(range(position // BLOCK, (position + size - 1) // BLOCK + 1)):
            raise OSError(self._number, "Input/output error", self.path)
        return self._file.pread(size, position)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class UnreadableTests(SynchronousTestCase):
    """One file of a row of segments."""

    def setUp(self) -> None:
        """A file whose bytes are known."""
        self.disk = MemoryDisk()
        self.segments = SegmentList(self.disk, "data", SIZE)
        self.segments.create(0)
        self.data = bytes(range(1, 129)) * (SIZE // 128)
        self.segments.pwrite(self.data, 0)

    def spoil(self, *blocks: int, number: int = errno.EIO) -> BadFile:
        """These blocks cannot be read from now on."""
        bad = BadFile(self.segments.handles[0], set(blocks), number)
        self.segments.handles[0] = bad  # type: ignore[assignment]
        return bad

    def test_one_sector(self) -> None:
        """Every read has the bytes around it, at their places; itself is neither zeros nor what was there."""
        self.spoil(3)
        for at, size in ((0, SIZE), (3 * BLOCK + 7, 50), (2 * BLOCK + 1, 2 * BLOCK), (3 * BLOCK, BLOCK)):
            read = self.segments.pread(size, at)
            low, high = max(3 * BLOCK - at, 0), min(4 * BLOCK - at, size)
            self.assertEqual(read[:low], self.data[at : at + low])
            self.assertEqual(read[high:], self.data[at + high : at + size])
            self.assertEqual(read[low:high], FILLER[: high - low])
        self.assertEqual(self.segments.unreadable.failures, 4)
        self.assertEqual(self.segments.unreadable.failed_bytes, BLOCK + 50 + BLOCK + BLOCK)

    def test_sound_reads(self) -> None:
        """What does not touch it is read in one call."""
        bad = self.spoil(3)
        self.assertEqual(self.segments.pread(3 * BLOCK, 0), self.data[: 3 * BLOCK])
        self.assertEqual((bad.calls, self.segments.unreadable.failures), (1, 0))

    def test_written_again(self) -> None:
        """A write over it goes to the disk, which has another sector then."""
        bad = self.spoil(3)
        self.segments.pwrite(b"new", 3 * BLOCK)
        bad._bad.clear()
        self.assertEqual(self.segments.pread(4, 3 * BLOCK), b"new" + self.data[3 * BLOCK + 3 :][:1])

    def test_mended(self) -> None:
        """A part of an unreadable block is written with the rest of it; the neighbours stay as they are."""
        disk = SimDisk(random.Random(1))
        segments = SegmentList(disk, "data", 3 * BLOCK + 100)
        segments.create(0)
        segments.pwrite(self.data[: 3 * BLOCK + 100], 0)
        path = f"data/{0:020d}"
        for at, size in ((BLOCK + 10, 20), (BLOCK - 10, 20), (2 * BLOCK - 5, BLOCK), (3 * BLOCK + 3, 40)):
            disk.spoil(path, BLOCK)
            disk.spoil(path, 3 * BLOCK)
            with self.assertRaises(OSError):
                segments.pwrite(bytes(size), at)
            before = segments.pread(3 * BLOCK + 100, 0)
            segments.mend(bytes(size), at)
            found = segments.pread(3 * BLOCK + 100, 0)
            self.assertEqual(found, before[:at] + bytes(size) + before[at + size :])
        self.assertEqual(found[:BLOCK - 10], self.data[: BLOCK - 10])

    def test_a_dying_disk(self) -> None:
        """One read does not try every block of a disk that needs seconds for each."""
        bad = self.spoil(*range(512))
        self.segments.unreadable.opened()
        self.assertEqual(self.segments.pread(SIZE, 0), FILLER * 512)
        self.assertEqual(bad.calls, 1 + FAILED_MAX)
        self.assertEqual(self.segments.unreadable.failed_bytes, SIZE)

    def test_while_opening(self) -> None:
        """A disk that fails as a whole is an error, until the directory is open."""
        self.spoil(*range(512))
        for at in range(0, OPENING_MAX_BYTES, BLOCK):
            self.segments.pread(BLOCK, at)
        caught = self.assertRaises(OSError, self.segments.pread, BLOCK, 0)
        self.assertEqual(caught.errno, errno.EIO)
        self.assertIn(f"more than {OPENING_MAX_BYTES} bytes cannot be read", str(caught))
        self.segments.unreadable.opened()
        self.assertEqual(self.segments.pread(BLOCK, 0), FILLER)

    def test_other_errors(self) -> None:
        """Errors that are none of the medium are passed on."""
        self.spoil(3, number=errno.EBADF)
        self.assertEqual(self.assertRaises(OSError, self.segments.pread, 9, 3 * BLOCK).errno, errno.EBADF)

    def test_reader(self) -> None:
        """A reader of a directory that is not its own does the same."""
        reader = SegmentReader(self.disk, "data")
        reader.show([0], SIZE)
        reader.pread(1, 0)
        reader.handles[0] = BadFile(reader.handles[0], {0})  # type: ignore[assignment]
        self.assertEqual(reader.pread(BLOCK + 2, 0), FILLER + self.data[BLOCK : BLOCK + 2])
