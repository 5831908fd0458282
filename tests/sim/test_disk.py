# -*- test-case-name: tests.sim.test_disk -*-
"""The simulated disk: the writes that a power cut takes, and the end of a process does not."""

from __future__ import annotations

import errno
import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.world.disk import MemberDied, PowerLoss, ProcessKilled, SimDisk


class DiskTestCase(SynchronousTestCase):
    """A disk with a directory."""

    def setUp(self) -> None:
        """Make it."""
        self.disk = self.make(1)

    def make(self, seed: int) -> SimDisk:
        """A disk with the directory /d."""
        disk = SimDisk(random.Random(seed))
        disk.makedirs("/d")
        return disk

    def written(self, disk: SimDisk, *, sync: bool) -> None:
        """A file /d/f with eight bytes in it."""
        file = disk.open("/d/f", create=True, size=8)
        disk.sync_directory("/d")
        file.datasync()
        file.pwrite(b"abcdefgh", 0)
        if sync:
            file.datasync()


class FileCallsTests(DiskTestCase):
    """The calls behave as those of an operating system."""

    def errno_of(self, call: object, *arguments: object, **named: object) -> int | None:
        """The number of the OSError that a call raises."""
        assert callable(call)
        with self.assertRaises(OSError) as caught:
            call(*arguments, **named)
        return caught.exception.errno

    def test_read_and_write(self) -> None:
        """Reads are short at the end of the file only; a file grows by writing after it."""
        file = self.disk.open("/d/f", create=True, size=4)
        self.assertEqual(file.pread(10, 0), bytes(4))
        file.pwrite(b"xy", 5)
        self.assertEqual((file.pread(10, 0), file.size()), (b"\0\0\0\0\0xy", 7))
        self.assertEqual(file.pread(1, 100), b"")

    def test_errors(self) -> None:
        """ENOENT, EEXIST, EISDIR where they belong."""
        self.assertEqual(self.errno_of(self.disk.open, "/d/f"), errno.ENOENT)
        self.assertEqual(self.errno_of(self.disk.listdir, "/none"), errno.ENOENT)
        self.assertEqual(self.errno_of(self.disk.unlink, "/d/f"), errno.ENOENT)
        self.assertEqual(self.errno_of(self.disk.file_size, "/d"), errno.EISDIR)
        self.disk.open("/d/f", create=True)
        self.assertEqual(self.errno_of(self.disk.open, "/d/f", create=True), errno.EEXIST)

    def test_listing(self) -> None:
        """Names are sorted, and directories among them."""
        self.disk.makedirs("/d/sub/deep")
        self.disk.write_file("/d/a", b"1")
        self.assertEqual(self.disk.listdir("/d"), ["a", "sub"])
        self.assertTrue(self.disk.exists("/d/sub/deep"))
        self.disk.unlink("/d/a")
        self.assertFalse(self.disk.exists("/d/a"))

    def test_lock(self) -> None:
        """Held until it is closed, or its process is gone."""
        lock = self.disk.lock("/d/lock")
        self.assertEqual(self.errno_of(self.disk.lock, "/d/lock"), errno.EWOULDBLOCK)
        lock.close()
        self.disk.lock("/d/lock")
        self.disk.end_process()
        self.disk.lock("/d/lock")

    def test_handles_die_with_their_process(self) -> None:
        """A handle of an earlier process is dead."""
        file = self.disk.open("/d/f", create=True)
        self.disk.end_process()
        self.assertEqual(self.errno_of(file.pwrite, b"x", 0), errno.EBADF)

    def test_clone(self) -> None:
        """A clone has the content, and goes its own way."""
        self.disk.write_file("/d/a", b"one")
        twin = self.disk.clone()
        self.disk.write_file("/d/a", b"two")
        self.assertEqual(twin.read_file("/d/a"), b"one")


class DurabilityTests(DiskTestCase):
    """What was synced survives a power cut; of the rest, anything may."""

    def survivors(self, *, sync: bool) -> set[bytes]:
        """What is left of the file, over many seeds."""
        found = set()
        for seed in range(200):
            disk = self.make(seed)
            self.written(disk, sync=sync)
            disk.lose_power()
            found.add(disk.read_file("/d/f"))
        return found

    def test_synced(self) -> None:
        """After a sync there is one outcome."""
        self.assertEqual(self.survivors(sync=True), {b"abcdefgh"})

    def test_not_synced(self) -> None:
        """Without, the write is kept, lost, or torn at either end."""
        found = self.survivors(sync=False)
        for outcome in (b"abcdefgh", bytes(8), b"abc" + bytes(5)):
            self.assertIn(outcome, found)
        self.assertTrue(any(left.endswith(b"gh") and left[:1] == b"\0" for left in found))

    def test_kill_loses_nothing(self) -> None:
        """The end of a process leaves the page cache."""
        self.written(self.disk, sync=False)
        self.disk.end_process()
        self.assertEqual(self.disk.read_file("/d/f"), b"abcdefgh")

    def test_names(self) -> None:
        """A name may be lost until its directory was synced; a removed one may be back."""
        kept, back = set(), set()
        for seed in range(50):
            disk = self.make(seed)
            disk.write_file("/d/old", b"1")
            disk.open("/d/new", create=True).datasync()
            disk.unlink("/d/old")
            disk.lose_power()
            kept.add(disk.exists("/d/new"))
            back.add(disk.exists("/d/old"))
        self.assertEqual((kept, back), ({True, False}, {True, False}))

    def test_new_file_may_have_no_length(self) -> None:
        """A file that was never synced may be there with length 0, or with its length and zeroes."""
        sizes = set()
        for seed in range(50):
            disk = self.make(seed)
            disk.open("/d/f", create=True, size=16)
            disk.sync_directory("/d")
            disk.lose_power()
            sizes.add(disk.file_size("/d/f"))
        self.assertEqual(sizes, {0, 16})

    def test_content_for_the_rig(self) -> None:
        """The rig reads what processes would read, and spends none of the armed errors."""
        self.written(self.disk, sync=True)
        self.disk.open("/d/f").pwrite(b"12", 0)
        self.disk.arm(reads=1)
        self.assertEqual(self.disk.cached_content("/d/f"), b"12cdefgh")
        self.assertEqual(self.disk.failing_reads, 1)
        self.assertRaises(FileNotFoundError, self.disk.cached_content, "/d/other")

    def test_barrier(self) -> None:
        """A sync that began before a write does not answer for it."""
        self.written(self.disk, sync=True)
        file = self.disk.open("/d/f")
        file.pwrite(b"12", 0)
        barrier = self.disk.begin_sync()
        file.pwrite(b"34", 2)
        with self.disk.syncing_up_to(barrier):
            file.datasync()
        self.assertEqual(self.disk.durable_content("/d/f"), b"12cdefgh")
        self.assertTrue(self.disk.is_durable("/d/f", 0, 2))
        self.assertFalse(self.disk.is_durable("/d/f", 2, 4))

    def test_barrier_and_own_writes(self) -> None:
        """A call that writes and then syncs misses only the writes between its beginning and itself."""
        self.written(self.disk, sync=True)
        file = self.disk.open("/d/f")
        barrier = self.disk.begin_sync()
        file.pwrite(b"12", 0)
        with self.disk.syncing_up_to(barrier):
            file.pwrite(b"34", 2)
            file.datasync()
        self.assertEqual(self.disk.durable_content("/d/f"), b"ab34efgh")

    def test_durable_needs_the_name(self) -> None:
        """Content is not durable in a file whose name is not."""
        file = self.disk.open("/d/f", create=True, size=4)
        file.datasync()
        self.assertFalse(self.disk.is_durable("/d/f", 0, 4))
        self.disk.sync_directory("/d")
        self.assertTrue(self.disk.is_durable("/d/f", 0, 4))


class FaultTests(DiskTestCase):
    """Armed faults happen, as often as they were armed."""

    def test_errors(self) -> None:
        """One read, one write, one sync fails; the next ones do not."""
        self.written(self.disk, sync=True)
        file = self.disk.open("/d/f")
        self.disk.arm(reads=1, writes=1, syncs=1)
        self.assertRaises(OSError, file.pread, 1, 0)
        self.assertRaises(OSError, file.pwrite, b"x", 0)
        self.assertRaises(OSError, file.datasync)
        file.pwrite(b"y", 0)
        file.datasync()
        self.assertEqual(file.pread(1, 0), b"y")

    def test_bad_sector(self) -> None:
        """Its page cannot be read until the whole of it is written; a part of it cannot be written."""
        file = self.disk.open("/d/f", create=True)
        file.pwrite(b"x" * 10_000, 0)
        self.disk.spoil("/d/f", 5000)
        self.assertEqual(file.pread(4096, 0), b"x" * 4096)
        self.assertEqual(file.pread(99, 8192), b"x" * 99)
        for attempt in ((1, 4096), (4097, 0), (9999, 1)):
            self.assertRaises(OSError, file.pread, *attempt)
        self.assertRaises(OSError, self.disk.read_file, "/d/f")
        self.assertRaises(OSError, self.disk.clone().open("/d/f").pread, 1, 5000)
        self.assertRaises(OSError, file.pwrite, b"y" * 4000, 4096)
        self.assertRaises(OSError, file.pwrite, b"y" * 9999, 1 + 4096)
        self.assertRaises(OSError, file.pread, 1, 5000)
        file.pwrite(b"y" * 4096, 4096)
        self.assertEqual(file.pread(1, 5000), b"y")
        self.disk.spoil("/d/f", 9000)
        file.pwrite(b"z" * 1808, 8192)
        self.assertEqual(file.pread(9999, 9999), b"z", "the last page ends with the file")

    def test_failed_sync_loses(self) -> None:
        """What a failed sync did not write is not there for the next process, unless the disk keeps it."""
        for keeps, expected in ((True, {b"abcdefgh"}), (False, None)):
            found = set()
            for seed in range(30):
                disk = self.make(seed)
                disk.keeps_failed_writes = keeps
                self.written(disk, sync=False)
                disk.arm(syncs=1)
                self.assertRaises(OSError, disk.open("/d/f").datasync)
                disk.end_process()
                found.add(disk.read_file("/d/f"))
            self.assertEqual(found, expected) if expected else self.assertIn(bytes(8), found)

    def test_full(self) -> None:
        """On a full disk nothing is made or grows; writes within a file work."""
        self.written(self.disk, sync=True)
        file = self.disk.open("/d/f")
        self.disk.set_full(True)
        self.assertRaises(OSError, self.disk.open, "/d/g", create=True, size=1)
        self.assertFalse(self.disk.exists("/d/g"))
        self.assertRaises(OSError, self.disk.write_file, "/d/h", b"x")
        self.assertRaises(OSError, file.pwrite, b"xx", 7)
        file.pwrite(b"x", 7)
        self.assertEqual(self.disk.space("/d").usable, 0)
        self.disk.set_full(False)
        self.disk.open("/d/g", create=True, size=1)

    def test_death_inside_a_call(self) -> None:
        """The n-th changing call ends the process; no code that catches Exception survives it."""
        for death in (PowerLoss, ProcessKilled):
            disk = self.make(3)
            disk.arm(die_in=3, death=death)
            file = disk.open("/d/f", create=True, size=4)
            file.pwrite(b"x", 0)
            with self.assertRaises(death) as caught:
                file.datasync()
            self.assertNotIsInstance(caught.exception, Exception)
            self.assertIsInstance(caught.exception, MemberDied)

    def test_term_file_is_whole_or_old(self) -> None:
        """A power cut anywhere in write_file leaves the old content or the new."""
        found = set()
        for seed in range(40):
            for step in range(1, 6):
                disk = self.make(seed)
                disk.write_file("/d/t", b"old")
                disk.arm(die_in=step)
                try:
                    disk.write_file("/d/t", b"new")
                except PowerLoss:
                    pass
                disk.lose_power()
                found.add(disk.read_file("/d/t"))
        self.assertEqual(found, {b"old", b"new"})

    def test_flip(self) -> None:
        """A flipped bit is seen at once, and after a power cut."""
        self.written(self.disk, sync=True)
        self.disk.flip_bit("/d/f", 0, 1)
        self.assertEqual(self.disk.read_file("/d/f"), b"cbcdefgh")
        self.disk.lose_power()
        self.assertEqual(self.disk.read_file("/d/f"), b"cbcdefgh")
