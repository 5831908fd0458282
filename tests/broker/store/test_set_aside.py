# -*- test-case-name: tests.broker.store.test_set_aside -*-
"""The files that a commit log gives up are kept in a directory beside it."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.log import commit_log
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.records.set_aside import directories, next_directory
from dledger.testing.world.disk import PowerLoss, SimDisk
from dledger.values.errors import DLedgerError
from tests.broker.ha.fakes import MemoryLog, stream
from tests.broker.support import LOG_SIZE, Threads, inline, log_bytes, open_log

LOG = "base/commitlog"
DATA = stream(3 * LOG_SIZE - 500)


def filled(log: CommitLog) -> CommitLog:
    """A slave's log of three files."""
    while (at := log.end_offset) < len(DATA):
        log.append_raw(at, DATA[at : at + min(64, LOG_SIZE - at % LOG_SIZE)])
    return log


def content(disk: SimDisk, directory: str) -> dict[int, bytes]:
    """The files in a directory, by their offsets."""
    return {int(name): disk.read_file(f"{directory}/{name}") for name in disk.listdir(directory)}


class SetAsideTests(SynchronousTestCase):
    """An operator gives up a part of the log."""

    def setUp(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.log = filled(open_log(self.disk, is_slave=True))

    def test_everything_is_kept(self) -> None:
        """The files after are moved, the one with the end is copied: nothing is lost."""
        for offset in (0, 1, 2000, LOG_SIZE, LOG_SIZE + 700, 2 * LOG_SIZE, len(DATA)):
            self.disk = SimDisk(random.Random(1))
            log = filled(open_log(self.disk, is_slave=True))
            end = MemoryLog(DATA).record_end_below(offset)
            directory = self.successResultOf(log.set_aside(offset))
            self.assertEqual((directory, log.end_offset), (f"{LOG}.set-aside-1", end))
            self.assertEqual(log_bytes(log), DATA[:end])
            kept = content(self.disk, directory)
            begin = min(kept, default=len(DATA))
            self.assertLessEqual(begin, end)
            whole = b"".join(data for _, data in sorted(kept.items()))
            self.assertEqual(whole[: len(DATA) - begin], DATA[begin:])
            filled(log)
            self.assertEqual(log_bytes(log), DATA)
            self.assertEqual(content(self.disk, directory), kept)

    def test_begins_anywhere_afterwards(self) -> None:
        """A log that gave up everything is empty: it may begin at another file."""
        self.successResultOf(self.log.set_aside(0))
        self.assertEqual((self.log.begin_offset, self.log.end_offset), (0, 0))
        self.log.append_raw(2 * LOG_SIZE, DATA[2 * LOG_SIZE : 2 * LOG_SIZE + 50])
        self.assertEqual(self.log.begin_offset, 2 * LOG_SIZE)

    def test_each_has_its_own_directory(self) -> None:
        """The second time does not touch the first directory."""
        self.successResultOf(self.log.set_aside(5000))
        before = content(self.disk, f"{LOG}.set-aside-1")
        filled(self.log)
        self.assertEqual(self.successResultOf(self.log.set_aside(0)), f"{LOG}.set-aside-2")
        self.assertEqual(content(self.disk, f"{LOG}.set-aside-1"), before)
        self.assertEqual(directories(self.disk, LOG), [f"{LOG}.set-aside-1", f"{LOG}.set-aside-2"])
        self.assertEqual(next_directory(self.disk, LOG), f"{LOG}.set-aside-3")

    def test_a_full_disk_keeps_the_log(self) -> None:
        """Without room for the copy the log stays as it is."""
        self.disk.set_full(True)
        self.failureResultOf(self.log.set_aside(5000), OSError)
        self.assertEqual((log_bytes(self.log), self.log.broken), (DATA, ""))

    def test_a_growing_log_is_not_cut(self) -> None:
        """A log that has grown during the copy is not cut: the copy is not complete."""
        threads = Threads()
        self.log = filled(open_log(SimDisk(random.Random(1)), is_slave=True, run_in_thread=threads))
        done = self.log.set_aside(5000)
        self.log.append_raw(len(DATA), stream(10, start=len(DATA))[:10])
        threads.run()
        self.failureResultOf(done, DLedgerError)
        self.assertEqual(log_bytes(self.log)[: len(DATA)], DATA)

    def test_two_at_once(self) -> None:
        """Each call copies to its own directory; the one that ends last changes nothing."""
        threads, disk = Threads(), SimDisk(random.Random(1))
        self.log = filled(open_log(disk, is_slave=True, run_in_thread=threads))
        first, second = self.log.set_aside(700), self.log.set_aside(700)
        threads.run()
        self.assertEqual(self.successResultOf(first), f"{LOG}.set-aside-1")
        kept = content(disk, f"{LOG}.set-aside-1")
        self.assertEqual(kept[0], DATA[:LOG_SIZE])
        filled(self.log)  # so that only the number of its cuts says that the log has changed
        threads.run()
        self.failureResultOf(second, DLedgerError)
        self.assertEqual(content(disk, f"{LOG}.set-aside-1"), kept)
        self.assertEqual(log_bytes(self.log), DATA)

    def test_power_cut_within(self) -> None:
        """Whenever power fails: each flushed byte is in the log, or in the directory."""
        for step in range(1, 40):
            disk = SimDisk(random.Random(step))
            log = filled(open_log(disk, is_slave=True))
            self.successResultOf(log.flush())
            disk.arm(die_in=step)
            log.set_aside(LOG_SIZE + 700).addErrback(lambda failure: failure.trap(PowerLoss))
            disk.disarm()
            disk.lose_power()
            log = open_log(disk, is_slave=True)
            held = dict(enumerate(log_bytes(log)))
            for directory in directories(disk, LOG):
                for base, data in content(disk, directory).items():
                    if len(data) == LOG_SIZE and any(data):
                        held = {**dict(enumerate(data, base)), **held}
            lost = [at for at, byte in enumerate(DATA) if held.get(at) != byte]
            self.assertEqual(lost, [], f"step {step}")


class StartTests(SynchronousTestCase):
    """A start keeps the bytes that it cuts, unless they are the torn end of a crash."""

    def damaged(self, disk: SimDisk, *, at: int) -> None:
        """One flipped bit in the first body after C{at}."""
        at = DATA.index(b"hello", at)
        base = at - at % LOG_SIZE
        disk.flip_bit(f"{LOG}/{base:020d}", at - base, 0)

    def test_damage_without_a_crash(self) -> None:
        """A slave whose log is damaged keeps the sound records after the damage."""
        disk = SimDisk(random.Random(1))
        filled(open_log(disk, is_slave=True)).clean_close()
        disk.unlink("base/abort")
        disk.unlink("base/commitlogmark")
        self.damaged(disk, at=LOG_SIZE + 700)
        log = open_log(disk, is_slave=True)
        self.assertLess(log.end_offset, LOG_SIZE + 900)
        kept = content(disk, f"{LOG}.set-aside-1")
        self.assertEqual(sorted(kept), [LOG_SIZE, 2 * LOG_SIZE])
        self.assertEqual(kept[2 * LOG_SIZE][: len(DATA) % LOG_SIZE], DATA[2 * LOG_SIZE :])
        self.assertIn(f"kept in {LOG}.set-aside-1", log.why_recovered)

    def test_tail_after_a_crash(self) -> None:
        """The torn end of a crash is not kept; a longer tail is, and one with a record after the damage."""
        for most, at, is_kept in ((100, len(DATA) - 95, False), (50, len(DATA) - 95, True),
                                  (1 << 20, LOG_SIZE + 700, True)):
            self.patch(commit_log, "TORN_BYTES_MAX", most)
            disk = SimDisk(random.Random(1))
            filled(open_log(disk, is_slave=True, run_in_thread=inline))
            disk.end_process()
            self.damaged(disk, at=at)
            log = open_log(disk, is_slave=True)
            self.assertLess(log.end_offset, at + 200)
            self.assertLess(log.end_offset, len(DATA))
            self.assertEqual(bool(directories(disk, LOG)), is_kept, most)
