# -*- test-case-name: tests.broker.store.test_mark_fit -*-
"""A mark of another log is not believed, and costs no record."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.log.log_mark import LOG_MARK_NAME
from dledger.rocketmq.store.records.checkpoint import AbortFile
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError
from tests.broker.support import (
    LOG_SIZE,
    Opened,
    close_log,
    log_bytes,
    message,
    messages_in,
    open_log,
    plain,
)


class OtherLogTests(SynchronousTestCase):
    """A log of some records under the mark of another one."""

    def made(self, bodies: list[bytes]) -> MemoryDisk:
        """A store with these messages, closed in order."""
        disk = MemoryDisk()
        log = open_log(disk)
        for body in bodies:
            log.append([[message(body)]], 1_000_000)
        close_log(log, disk)
        return disk

    def put_log(self, disk: MemoryDisk, source: MemoryDisk) -> dict[str, bytes]:
        """Replace the commit log of one store by that of another. @return: its files."""
        if disk.exists("base/commitlog"):
            for name in disk.listdir("base/commitlog"):
                disk.unlink(f"base/commitlog/{name}")
        disk.makedirs("base/commitlog")
        files = {}
        for name in source.listdir("base/commitlog"):
            path = f"base/commitlog/{name}"
            files[path] = source.read_file(path)
            disk.open(path, create=True, size=LOG_SIZE).pwrite(files[path], 0)
        return files

    def test_a_longer_log_is_kept(self) -> None:
        """The longer log is neither cut nor overwritten, and opens without the mark."""
        right = [bytes([65 + number % 26]) * (30 + 7 * number) for number in range(30)]
        zeros = [bytes(400)] * 30
        for there in (right, zeros):
            for count in range(8):
                disk, source = self.made([b"five" * 9] * count), self.made(there)
                files = self.put_log(disk, source)
                error = self.assertRaises(DirectoryError, open_log, disk)
                self.assertIn("it is the mark of another log", str(error))
                self.assertIn("consumequeue and index away", str(error))
                self.assertEqual({path: disk.read_file(path) for path in files}, files, count)
                for name in (LOG_MARK_NAME, "checkpoint"):
                    if disk.exists(f"base/{name}"):
                        disk.unlink(f"base/{name}")
                AbortFile(disk, "base").remove()
                log = open_log(disk)
                self.assertEqual([one.body for one in messages_in(log)], there)
                log.abandon()

    def test_of_a_killed_broker(self) -> None:
        """A mark whose end lies in a sound record is none of this log after a crash, either."""
        right = [bytes([65 + number]) * 300 for number in range(20)]
        for count in range(1, 6):
            disk = self.made([b"five" * 9] * count)
            files = self.put_log(disk, self.made(right))
            AbortFile(disk, "base").put("1")
            try:
                log = open_log(disk)
            except DirectoryError as error:
                self.assertIn("a sound record at", str(error))
            else:  # its end is a boundary of both logs
                self.assertEqual([one.body for one in messages_in(log)], right)
                log.abandon()
                continue
            self.assertEqual({path: disk.read_file(path) for path in files}, files)

    def test_an_older_copy_is_refused(self) -> None:
        """An older copy of the same log is not taken for the log."""
        bodies = [bytes([65 + number]) * 100 for number in range(12)]
        for count in range(1, 12):
            disk, older = self.made(bodies), self.made(bodies[:count])
            self.put_log(disk, older)
            error = self.assertRaises(DirectoryError, open_log, disk)
            self.assertIn("restore the store from the other broker", str(error))

    def test_queues_of_another_log_are_not_believed(self) -> None:
        """
        Without a mark, queues of another log are not believed either; without a checkpoint, too, nothing says
        that any queues are complete, and all are made from the log.
        """
        disks = []
        for bodies in ([b"five" * 9] * 5, [bytes([65 + number]) * 300 for number in range(20)]):
            opened = Opened(MemoryDisk())
            opened.settle()
            for body in bodies:
                opened.store.append_plain(plain([message(body)]), 1)
            opened.settle()
            opened.close()
            disks.append(opened.store._disk)
        disk, source = disks
        files = self.put_log(disk, source)
        disk.unlink(f"base/{LOG_MARK_NAME}")
        error = self.assertRaises(DirectoryError, Opened, disk)
        self.assertIn("these are the queues of another log", str(error))
        self.assertEqual({path: disk.read_file(path) for path in files}, files)
        for path in [path for path in disk.files if path.startswith(("base/checkpoint", "base/index"))]:
            disk.unlink(path)
        AbortFile(disk, "base").remove()
        again = Opened(disk)
        again.settle()
        self.assertEqual(sum(map(len, again.units().values())), 20)
        again.close()

    def test_the_same_log_opens(self) -> None:
        """The log that the mark was written for opens, with a record of any size at its end."""
        for size in (0, 1, 100, 3000):
            for count in (0, 1, 2, 40):
                disk = self.made([b"x" * 90] * count + [b"y" * size] * min(count, 1))
                log = open_log(disk)
                end = log.end_offset
                self.assertEqual(len(messages_in(log)), count + min(count, 1))
                close_log(log, disk)
                self.assertEqual(open_log(disk).end_offset, end)

    def test_damage_does_not_contradict_the_mark(self) -> None:
        """Damage of the last record is no contradiction: it is mended from a slave."""
        disk = self.made([b"a" * 100, b"b" * 100])
        whole = disk.read_file(f"base/commitlog/{0:020d}")
        end = len(log_bytes(open_log(disk.clone())))
        for at in range(end // 2, end):
            spoilt = disk.clone()
            spoilt.open(f"base/commitlog/{0:020d}").pwrite(bytes([whole[at] ^ 1]), at)
            self.assertEqual(open_log(spoilt).end_offset, end, at)
