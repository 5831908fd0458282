# -*- test-case-name: tests.broker.store.test_record_mending -*-
"""A damaged record is replaced by a sound copy of the same record, and by nothing else."""

from __future__ import annotations

import random

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.log.record_mending import RecordMending
from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.rocketmq.store.records.records import fixed_size_of
from dledger.testing.world.disk import PowerLoss, SimDisk
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.rocketmq.message import Host
from tests.broker.support import LOG_SIZE, Threads, inline, log_bytes, message, messages_in, open_log

LOG = "base/commitlog"


class MendingCase(SynchronousTestCase):
    """A flushed log of two files, and the records of a slave."""

    run_in_thread: object = staticmethod(inline)

    def setUp(self) -> None:
        self.make(SimDisk(random.Random(1)))

    def make(self, disk: SimDisk) -> None:
        """Begin on this disk."""
        self.disk = disk
        self.log = open_log(self.disk, run_in_thread=self.run_in_thread)
        for number in range(30):
            self.log.append([[message(b"%d" % number * 100, born_host=Host.of("2001:db8::1", 7))]], 1)
        self.successResultOf(self.log.flush())
        self.content = log_bytes(self.log)
        self.places = [one.physical_offset for one in messages_in(self.log)]
        self.bad = BadRecords()
        self.again: list[int] = []
        self.mending = RecordMending(self.log, self.bad, check_from=self.again.append)

    def record(self, number: int) -> tuple[int, bytes]:
        """The offset of a sound record, and its bytes."""
        offset = self.places[number]
        size = int.from_bytes(self.content[offset : offset + 4], "big")
        return offset, self.content[offset : offset + size]

    def damage(self, offset: int, at: int, bit: int = 0) -> None:
        """A bit of the record at C{offset} flips on the disk."""
        base = offset - offset % LOG_SIZE
        self.disk.flip_bit(f"{LOG}/{base:020d}", offset - base + at, bit)

    def take(self, offset: int, record: bytes) -> Deferred[str]:
        """A slave offers."""
        return Deferred.fromCoroutine(self.mending.take(offset, record, source="10.0.0.2:7"))

    def refused(self, offset: int, record: bytes) -> str:
        """The reason; the log has not changed."""
        before = log_bytes(self.log)
        reason = str(self.failureResultOf(self.take(offset, record), DLedgerError).value)
        self.assertEqual(log_bytes(self.log), before)
        self.assertEqual(self.mending.mended, 0)
        self.assertFalse(self.disk.exists(f"{LOG}.damaged"))
        return reason


class TakenTests(MendingCase):
    """What is mended."""

    def test_a_damaged_body_is_mended(self) -> None:
        """A flipped byte of a body: the record is sound again, durably; the old bytes are kept."""
        offset, record = self.record(3)
        self.damage(offset, len(record) - 60)
        self.bad.note(offset, "why")
        damaged = log_bytes(self.log)[offset : offset + len(record)]
        kept = self.successResultOf(self.take(offset, record))
        self.assertEqual(kept, f"{LOG}.damaged/{offset:020d}")
        self.assertEqual(self.disk.durable_content(kept), damaged)
        self.assertEqual((log_bytes(self.log), self.bad.count), (self.content, 0))
        self.assertTrue(self.disk.is_durable(f"{LOG}/{0:020d}", offset, offset + len(record)))
        self.assertEqual((self.mending.mended, self.again), (1, []))

    def test_a_damaged_head_is_mended(self) -> None:
        """Each byte of the head; after a lost length the file is checked again."""
        offset, record = self.record(3)
        fixed = fixed_size_of(record)
        for at in range(fixed):
            self.damage(offset, at, 6)
            if self.log.problem_at(offset):
                self.successResultOf(self.take(offset, record))
            else:
                self.damage(offset, at, 6)
        self.assertEqual(log_bytes(self.log), self.content)
        self.assertGreater(self.mending.mended, 15)
        self.assertEqual(self.again, [offset] * 8, "one for each byte of length and magic number")

    def test_a_damaged_size_is_mended(self) -> None:
        """By its size the record would end after the log, or after its file: that is damage, too."""
        problems = []
        for number, bit in ((25, 4), (29, 0), (29, 1), (29, 2), (29, 7)):
            self.make(SimDisk(random.Random(1)))
            offset, record = self.record(number)
            self.damage(offset, 2, bit)
            problems.append(self.log.problem_at(offset))
            self.assertNotEqual(self.successResultOf(self.take(offset, record)), "")
            self.assertEqual(log_bytes(self.log), self.content)
        self.assertIn(None, problems)

    def test_a_place_is_mended_twice(self) -> None:
        """A place that rots twice: both old states are kept."""
        offset, record = self.record(29)
        for name in (f"{offset:020d}", f"{offset:020d}-2"):
            self.damage(offset, len(record) - 60)
            self.assertEqual(self.successResultOf(self.take(offset, record)), f"{LOG}.damaged/{name}")

    def test_a_wholly_damaged_body_is_mended(self) -> None:
        """A whole body of zeroes, with topic and properties."""
        offset, record = self.record(3)
        fixed = fixed_size_of(record)
        for at in range(fixed, len(record)):
            for bit in range(8):
                if record[at] >> bit & 1:
                    self.damage(offset, at, bit)
        self.successResultOf(self.take(offset, record))
        self.assertEqual(log_bytes(self.log), self.content)


class RefusedTests(MendingCase):
    """What is not."""

    def test_a_sound_record_is_not_replaced(self) -> None:
        """A sound record stays, and is not written again."""
        other = open_log(SimDisk(random.Random(1)))
        for number in range(30):
            other.append([[message(b"%d" % number * 100, born_host=Host.of("2001:db8::1", 7))]], 2)
        for number in (3, 29):
            offset, record = self.record(number)
            copy = log_bytes(other)[offset : offset + len(record)]
            self.assertIn("is sound", self.refused(offset, copy))
            self.assertEqual(self.successResultOf(self.take(offset, record)), "")
        self.assertEqual((log_bytes(self.log), self.mending.mended), (self.content, 0))

    def test_copy_that_is_not_sound(self) -> None:
        """The copy is damaged, too short, too long, of another place, or no message."""
        offset, record = self.record(3)
        other = self.record(4)[1]
        self.damage(offset, len(record) - 60)
        broken = bytearray(record)
        broken[-61] ^= 1
        blank = len(record).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(len(record) - 8)
        for copy in (bytes(broken), record[:-1], record + b"\0", other, blank, b"", b"x", bytes(len(record))):
            self.assertIn("not one sound record", self.refused(offset, copy), copy[:10])

    def test_another_record_is_refused(self) -> None:
        """A sound record of this place in another log: other head and other body."""
        offset, record = self.record(3)
        self.damage(offset, len(record) - 60)
        other = open_log(SimDisk(random.Random(1)))
        for number in range(30):
            other.append([[message(b"%d" % number * 100, born_host=Host.of("2001:db8::1", 7))]], 2)
        copy = log_bytes(other)[offset : offset + len(record)]
        self.assertIn("in its head and after it", self.refused(offset, copy))

    def test_head_without_a_follower(self) -> None:
        """With a damaged head, a sound record must follow where the copy ends."""
        offset, record = self.record(3)
        self.damage(offset, 3)
        self.damage(offset + len(record), 5)
        self.assertIn("no sound record follows", self.refused(offset, record))

    def test_an_offset_outside_is_refused(self) -> None:
        """An offset beyond the log, or after its last record."""
        _, record = self.record(29)
        for offset in (len(self.content) - len(record) + 1, len(self.content), 1 << 62):
            self.assertIn("we hold records", self.refused(offset, record))

    def test_a_full_disk_mends_nothing(self) -> None:
        """What cannot be kept is not overwritten."""
        offset, record = self.record(3)
        self.damage(offset, len(record) - 60)
        self.disk.makedirs(f"{LOG}.damaged")
        self.disk.set_full(True)
        before = log_bytes(self.log)
        self.failureResultOf(self.take(offset, record), OSError)
        self.assertEqual((log_bytes(self.log), self.log.broken), (before, ""))
        self.disk.set_full(False)
        self.successResultOf(self.take(offset, record))


class TimeTests(MendingCase):
    """The disk is slow, and things happen meanwhile."""

    def setUp(self) -> None:
        super().setUp()
        self.threads = Threads()
        self.log.mending._run_in_thread = self.threads
        self.place, self.copy = self.record(3)
        self.damage(self.place, len(self.copy) - 60)

    def test_one_at_a_time(self) -> None:
        """A second offer is refused until the first is done."""
        done = self.take(self.place, self.copy)
        self.assertIn("another record", str(self.failureResultOf(self.take(self.place, self.copy)).value))
        self.threads.run()
        self.assertEqual(log_bytes(self.log), self.content)
        self.assertNoResult(done)
        self.threads.run()
        self.successResultOf(done)

    def test_a_log_cut_meanwhile_is_not_mended(self) -> None:
        """A log that is cut while the old bytes are copied is left alone."""
        done = self.take(self.place, self.copy)
        self.log.cut(self.place)
        self.threads.run()
        self.failureResultOf(done, DLedgerError)
        self.assertEqual(log_bytes(self.log), self.content[: self.place])

    def test_a_failed_sync_breaks_the_log(self) -> None:
        """After a failed fsync the log is broken: nothing more may be promised."""
        done = self.take(self.place, self.copy)
        self.threads.run()
        self.disk.arm(syncs=1)
        self.threads.run()
        self.failureResultOf(done, StoreError)
        self.assertIn("fsync", self.log.broken)

    def test_power_cut_within(self) -> None:
        """Whenever power fails, the other records are whole, and the old bytes are kept or in the log."""
        for step in range(1, 20):
            self.make(SimDisk(random.Random(step)))
            offset, record = self.record(3)
            self.damage(offset, len(record) - 60)
            damaged = log_bytes(self.log)[offset : offset + len(record)]
            self.disk.arm(die_in=step)
            self.take(offset, record).addErrback(lambda failure: failure.trap(PowerLoss))
            self.disk.disarm()
            self.disk.lose_power()
            content = self.disk.read_file(f"{LOG}/{0:020d}")
            end = offset + len(record)
            self.assertEqual(content[:offset] + content[end:], self.content[:offset]
                             + self.content[end:LOG_SIZE])
            if content[offset:end] != damaged:
                self.assertEqual(self.disk.read_file(f"{LOG}.damaged/{offset:020d}"), damaged)
