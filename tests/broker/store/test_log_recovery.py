# -*- test-case-name: tests.broker.store.test_log_recovery -*-
"""Where a log ends after a start, whatever the end before it was like."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.log.log_mark import LOG_MARK_NAME, read_log_mark
from dledger.rocketmq.store.records.checkpoint import AbortFile, Checkpoint, encode_checkpoint
from dledger.testing.world.disk import PowerLoss, SimDisk
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError
from tests.broker.support import (
    LOG_SIZE,
    close_log,
    log_bytes,
    message,
    messages_in,
    open_log,
    some_message,
)


def written(disk: MemoryDisk, offset: int, data: bytes) -> None:
    """Bytes behind a store's back."""
    base = offset - offset % LOG_SIZE
    disk.open(f"base/commitlog/{base:020d}").pwrite(data, offset - base)


def filled(log: CommitLog, seed: int, count: int = 40) -> None:
    """Any messages, a second apart."""
    rng = random.Random(seed)
    for number in range(count):
        log.append([[some_message(rng)]], 1_000_000 + 1_000 * number)


class TornTailTests(SynchronousTestCase):
    """A crash leaves a part of what was being written, and zeroes."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        log = open_log(self.disk)
        for _ in range(10):
            log.append([[message(bytes(100))]], 1_000_000)
        log.flush()
        log.abandon()
        log = open_log(self.disk)
        self.safe_end = log.end_offset
        log.append([[message(b"b" * 40, properties={"TAGS": "A", "KEYS": "k1"})]], 2_000_000)
        self.end = log.end_offset
        self.whole = log_bytes(log)
        self.assertEqual(self.safe_end // LOG_SIZE, self.end // LOG_SIZE)
        log.abandon()

    def torn(self, size: int) -> MemoryDisk:
        """The disk when only C{size} bytes of the last record were written."""
        disk = self.disk.clone()
        written(disk, self.safe_end + size, bytes(self.end - self.safe_end - size))
        return disk

    def test_every_truncation_keeps_whole_records(self) -> None:
        """On a slave nothing but the whole record counts, and all after the end is zero."""
        for is_slave in (True, False):
            for size in range(self.end - self.safe_end):
                disk = self.torn(size)
                log = open_log(disk, is_slave=is_slave)
                self.assertEqual(log.end_offset, self.safe_end, (is_slave, size))
                base = self.safe_end - self.safe_end % LOG_SIZE
                data = disk.read_file(f"base/commitlog/{base:020d}")
                self.assertEqual(data[self.safe_end - base :].strip(b"\0"), b"")
        self.assertEqual(open_log(self.disk, is_slave=True).end_offset, self.end)

    def test_as_rocketmq_would(self) -> None:
        """Without our mark it is found in the same way."""
        for size in range(self.end - self.safe_end):
            disk = self.torn(size)
            disk.unlink(f"base/{LOG_MARK_NAME}")
            log = open_log(disk)
            self.assertEqual(log.end_offset, self.safe_end, size)
        self.assertIn(f"log at {self.safe_end}: zeroes in the topic or properties", log.why_recovered)

    def test_doubt_is_for_crashes(self) -> None:
        """After an orderly end of RocketMQ's, zeroes in properties are the application's."""
        disk = self.torn(self.end - self.safe_end - 2)
        disk.unlink(f"base/{LOG_MARK_NAME}")
        AbortFile(disk, "base").remove()
        self.assertEqual(open_log(disk).end_offset, self.end)

    def test_doubt_that_is_lifted(self) -> None:
        """In RocketMQ's log a record stays if a sound one follows; ours holds none, a slave gets it again."""
        log = open_log(self.disk)
        middle = log.end_offset
        log.append([[message(properties_data=b"TAGS\x01A\0\x02")], [message()]], 2_000_001)
        end = log.end_offset
        log.abandon()
        slave = open_log(self.disk.clone(), is_slave=True)
        self.assertEqual(slave.end_offset, middle)
        self.assertIn("zeroes in the topic or properties", slave.why_recovered)
        self.assertEqual(open_log(self.disk.clone()).end_offset, middle)
        self.disk.unlink(f"base/{LOG_MARK_NAME}")
        self.assertEqual(open_log(self.disk).end_offset, end)


class FirstFileTests(SynchronousTestCase):
    """A power cut before anything was flushed."""

    def test_the_first_file_is_there(self) -> None:
        """It takes whichever files it likes, but not the first: the log can be opened, and goes on."""
        for seed in range(40):
            disk = SimDisk(random.Random(seed))
            log = open_log(disk)
            filled(log, seed)
            self.assertGreater(log.end_offset, 2 * LOG_SIZE)
            disk.lose_power()
            log = open_log(disk)
            self.assertEqual(log.begin_offset, 0)
            log.append([[message(b"next")]], 1)
            self.assertEqual(messages_in(log)[-1].body, b"next")


class BlankTests(SynchronousTestCase):
    """A blank at the end of the log."""

    def test_a_blank_at_the_end_stays(self) -> None:
        """Slaves may have it: the next record begins the next file."""
        disk = MemoryDisk()
        log = open_log(disk)
        log.append([[message(bytes(3000))], [message(bytes(3000))]], 1)
        first = messages_in(log)[0].size
        whole = log_bytes(log)
        log.abandon()
        disk.unlink(f"base/commitlog/{LOG_SIZE:020d}")
        for is_slave in (False, True):
            twin = disk.clone()
            again = open_log(twin, is_slave=is_slave)
            self.assertEqual((again.end_offset, log_bytes(again)), (LOG_SIZE, whole[:LOG_SIZE]))
            placed = again.append([[message(bytes(3000))]], 1)
            self.assertEqual(placed.offsets, [LOG_SIZE])
        written(disk, first + 4, b"\0\0\0\0")  # the blank itself is torn
        self.assertEqual(open_log(disk).end_offset, first)

    def test_half_a_blank(self) -> None:
        """After a crash a blank of another size is cut; in RocketMQ's log it stays if a record follows."""
        disk = MemoryDisk()
        log = open_log(disk)
        log.append([[message(bytes(3000))], [message(bytes(3000))]], 1)
        first, end = messages_in(log)[0].size, log.end_offset
        log.abandon()
        for size in range(1, 4):
            twin = disk.clone()
            written(twin, first, bytes(size))  # the size of the blank has two bytes
            for is_slave in (False, True):
                again = open_log(twin.clone(), is_slave=is_slave)
                if size < 3:
                    self.assertEqual(again.end_offset, end)
                else:
                    self.assertEqual(again.end_offset, first)
                    self.assertIn(f"log at {first}: a blank of", again.why_recovered)
            twin.unlink(f"base/{LOG_MARK_NAME}")
            self.assertEqual(open_log(twin.clone()).end_offset, end)
            twin.unlink(f"base/commitlog/{LOG_SIZE:020d}")
            self.assertEqual(open_log(twin).end_offset, LOG_SIZE if size < 3 else first)


class JavaTests(SynchronousTestCase):
    """A directory without our mark."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        log = open_log(self.disk)
        filled(log, 3)
        self.end, self.messages = log.end_offset, messages_in(log)
        close_log(log, self.disk)
        self.disk.unlink(f"base/{LOG_MARK_NAME}")

    def damage(self, index: int) -> int:
        """Break a record's body length. @return: where the record is."""
        offset = self.messages[index].physical_offset
        written(self.disk, offset + 4, b"\1\2\3\4")
        return offset

    def test_a_preallocated_file_goes(self) -> None:
        """RocketMQ makes the next file early; it is empty and goes."""
        following = (self.end // LOG_SIZE + 1) * LOG_SIZE
        for size in (LOG_SIZE, 0):
            disk = self.disk.clone()
            disk.open(f"base/commitlog/{following:020d}", create=True, size=size)
            log = open_log(disk)
            self.assertEqual(log.end_offset, self.end)
            self.assertFalse(disk.exists(f"base/commitlog/{following:020d}"))

    def test_files_of_no_bytes(self) -> None:
        """A power cut leaves several whose lengths were not on the disk; with bytes in one, nothing goes."""
        following = (self.end // LOG_SIZE + 1) * LOG_SIZE
        for size in (0, LOG_SIZE):
            disk = self.disk.clone()
            for offset, length in ((following, 0), (following + 2 * LOG_SIZE, size)):
                disk.open(f"base/commitlog/{offset:020d}", create=True, size=length)
            if size:
                self.assertIn("has 0 bytes", str(self.assertRaises(DirectoryError, open_log, disk)))
            else:
                self.assertEqual(open_log(disk).end_offset, self.end)
                self.assertFalse(disk.exists(f"base/commitlog/{following:020d}"))

    def test_damage_is_not_the_end(self) -> None:
        """Files after it hold records: they are not deleted."""
        index = next(at for at in range(len(self.messages))
                     if self.messages[at].physical_offset >= (self.end // LOG_SIZE - 1) * LOG_SIZE)
        offset = self.damage(index)
        with self.assertRaises(DirectoryError) as caught:
            open_log(self.disk)
        self.assertIn(f"is damaged at {offset}", str(caught.exception))
        log = open_log(self.disk, is_slave=True)
        self.assertEqual(log.end_offset, offset)

    def test_crash_parses_from_the_checkpoint(self) -> None:
        """Damage before the file that the checkpoint vouches for is not met; after it, it is."""
        AbortFile(self.disk, "base").put("1")
        offset = self.damage(2)
        self.assertEqual(open_log(self.disk.clone()).end_offset, offset)
        latest = self.messages[-1].store_timestamp + 3_000
        content = encode_checkpoint(Checkpoint(physic_msg_timestamp=latest, logics_msg_timestamp=latest))
        self.disk.write_file("base/checkpoint", content)
        self.assertEqual(open_log(self.disk).end_offset, self.end)


class TrustTests(SynchronousTestCase):
    """Our mark counts as long as nobody else had the store open."""

    def test_below_the_mark_nothing_is_parsed(self) -> None:
        """What was flushed counts, whatever it looks like."""
        disk = MemoryDisk()
        log = open_log(disk)
        log.append([[message(properties_data=b"TAGS\x01A\0\x02")]], 1)
        log.flush()
        end = log.end_offset
        log.abandon()
        self.assertEqual(open_log(disk, is_slave=True).end_offset, end)

    def test_damage_before_a_mark_that_does_not_count(self) -> None:
        """An unreadable checkpoint looks like another program's: what our mark records is no torn write."""
        disk = MemoryDisk()
        log = open_log(disk)
        filled(log, 3)
        log.flush()
        messages, flushed = messages_in(log), log.end_offset
        filled(log, 4)
        end = log.end_offset
        log.abandon()
        disk.write_file("base/checkpoint", encode_checkpoint(Checkpoint(physic_msg_timestamp=1)))
        self.assertEqual(open_log(disk.clone()).end_offset, end)
        for offset in (messages[2].physical_offset, messages[-1].physical_offset):
            twin = disk.clone()
            written(twin, offset + 4, b"\xbd" * 8)
            error = self.assertRaises(DirectoryError, open_log, twin.clone())
            self.assertIn(f"is damaged at {offset} (", str(error))
            self.assertIn(f"records up to {flushed} were on stable storage", str(error))
            self.assertEqual(open_log(twin.clone(), is_slave=True).end_offset, offset)
            twin.unlink(f"base/{LOG_MARK_NAME}")
            self.assertEqual(open_log(twin).end_offset, offset)
        written(disk, flushed + 4, b"\xbd" * 8)
        self.assertEqual(open_log(disk).end_offset, flushed)

    def test_java_went_on_after_our_end(self) -> None:
        """Our clean mark, then RocketMQ appends and crashes: its records are found."""
        disk = MemoryDisk()
        log = open_log(disk)
        log.append([[message()]], 1)
        close_log(log, disk)
        mark = read_log_mark(disk, f"base/{LOG_MARK_NAME}")
        log = open_log(disk)
        log.append([[message()]], 1)
        end = log.end_offset
        log.abandon()
        assert mark is not None
        from dledger.rocketmq.store.log.log_mark import encode_log_mark

        disk.write_file(f"base/{LOG_MARK_NAME}", encode_log_mark(mark[1], 9).ljust(1024, b"\0"))
        self.assertTrue(mark[1].clean)
        self.assertEqual(open_log(disk).end_offset, end)


class DoubtfulTests(SynchronousTestCase):
    """Which bytes a start has found by parsing."""

    def test_after_a_crash(self) -> None:
        """All after the flushed ones; a cut takes its part away, and new bytes are not among them."""
        disk = MemoryDisk()
        log = open_log(disk)
        self.assertEqual(len(log.doubtful), 0)
        log.append([[message()]], 1)
        self.successResultOf(log.flush())
        flushed = log.end_offset
        log.append([[message()], [message()]], 1)
        end, last = log.end_offset, messages_in(log)[-1].physical_offset
        log.abandon()
        for _ in range(2):  # a further crash changes nothing
            log = open_log(disk, is_slave=True)
            self.assertEqual(log.doubtful, range(flushed, end))
            log.append([[message()]], 1)
            self.successResultOf(log.flush())
            self.assertEqual(log.doubtful, range(flushed, end))
            log.cut(end)
            log.abandon()
        log = open_log(disk, is_slave=True)
        log.cut(last)
        self.assertEqual(log.doubtful, range(flushed, last))
        log.append([[message()]], 1)
        self.assertEqual(log.doubtful, range(flushed, last))
        log.cut(0)
        log.append_raw(LOG_SIZE, b"\0")
        self.assertEqual(len(log.doubtful), 0)

    def test_after_a_close(self) -> None:
        """None after an orderly end; none in RocketMQ's log, of which it is not known what was flushed."""
        disk = MemoryDisk()
        log = open_log(disk)
        log.append([[message()]], 1)
        close_log(log, disk)
        log = open_log(disk)
        self.assertEqual(len(log.doubtful), 0)
        log.append([[message()]], 1)
        log.abandon()
        self.assertEqual(len(open_log(disk.clone()).doubtful), 0)  # a master compares nothing
        self.assertGreater(len(open_log(disk.clone(), is_slave=True).doubtful), 0)
        disk.unlink(f"base/{LOG_MARK_NAME}")
        self.assertEqual(len(open_log(disk, is_slave=True).doubtful), 0)

    def test_compared_bytes_are_not_doubtful(self) -> None:
        """Bytes that equal the master's are not doubtful any more, and the mark goes on."""
        disk = MemoryDisk()
        log = open_log(disk, is_slave=True)
        log.append([[message()]], 1)
        log.abandon()
        for is_compared in (False, True):
            log = open_log(disk, is_slave=True)
            self.assertEqual(log.doubtful, range(log.end_offset))
            if is_compared:
                log.compared()
            log.append([[message()]], 1)
            self.successResultOf(log.flush())
            mark = read_log_mark(disk, f"base/{LOG_MARK_NAME}")
            assert mark is not None
            self.assertEqual(mark[1].end_offset, log.end_offset if is_compared else 0)
            log.abandon()
        self.assertEqual(len(open_log(disk, is_slave=True).doubtful), 0)

    def test_the_mark_stays_within_the_log(self) -> None:
        """The mark is not before the beginning of the log."""
        disk = MemoryDisk()
        log = open_log(disk, is_slave=True)
        filled(log, 3)
        log.abandon()
        log = open_log(disk, is_slave=True)
        second, end = log.second_file, log.end_offset
        assert second is not None
        log.expire_first()
        self.assertEqual(log.doubtful, range(second, end))
        log.abandon()
        log = open_log(disk, is_slave=True)
        self.assertEqual((log.begin_offset, log.end_offset, log.doubtful.start), (second, end, second))
        self.successResultOf(log.idle())
        log.clean_close()
        AbortFile(disk, "base").remove()
        log = open_log(disk, is_slave=True)
        self.assertEqual((log.end_offset, len(log.doubtful)), (end, 0))


class PowerTests(SynchronousTestCase):
    """Power cuts at any moment."""

    def test_a_power_cut_keeps_what_was_appended(self) -> None:
        """In the middle of a cut: what is left is what was appended, at least as far as it was cut."""
        deaths = 0
        for die_in in range(1, 25, 2):
            for seed in range(4):
                disk = SimDisk(random.Random(seed))
                log = open_log(disk)
                filled(log, 5, 60)
                self.successResultOf(log.flush())
                whole, kept = log_bytes(log), messages_in(log)[20].physical_offset
                disk.arm(die_in=die_in)
                try:
                    log.cut(kept)
                except PowerLoss:
                    deaths += 1
                disk.lose_power()
                disk.disarm()
                again = open_log(disk, is_slave=seed % 2 == 1)
                self.assertGreaterEqual(again.end_offset, kept)
                self.assertEqual(log_bytes(again), whole[: again.end_offset], (die_in, seed))
        self.assertGreater(deaths, 20)

    def test_what_was_flushed_is_there(self) -> None:
        """
        After any power cut the log is what was appended, at least as far as was flushed, and sound; master
        and slave alike.
        """
        deaths = 0
        for seed in range(150):
            rng = random.Random(seed)
            disk = SimDisk(rng)
            is_slave = seed % 2 == 1
            source = open_log(MemoryDisk())
            filled(source, seed, 60)
            stream, ends = log_bytes(source), {0, *(one.physical_offset + one.size
                                                    for one in messages_in(source))}
            promised = 0
            for _ in range(4):
                disk.arm(die_in=rng.randrange(1, 40))
                try:
                    log = open_log(disk, is_slave=is_slave)
                    self.assertGreaterEqual(log.end_offset, promised, seed)
                    self.without_holes(log, stream, promised, is_slave=is_slave)
                    self.assertEqual(log_bytes(log), stream[: log.end_offset], seed)
                    self.assertTrue(log.end_offset in ends or log.end_offset % LOG_SIZE == 0, seed)
                    promised = log.flushed_record_end
                    while log.end_offset < len(stream):
                        at = log.end_offset
                        size = min(rng.randrange(1, 1500), LOG_SIZE - at % LOG_SIZE, len(stream) - at)
                        log.append_raw(at, stream[at : at + size])
                        if rng.random() < 0.5:
                            job = log.flusher.prepare_flush()
                            assert job is not None
                            job.run()
                            log.flusher.finish_flush(job)
                            promised = log.flushed_record_end
                    break
                except PowerLoss:
                    deaths += 1
                    disk.lose_power()
                    disk.disarm()
            disk.disarm()
            log = open_log(disk, is_slave=is_slave)
            self.assertGreaterEqual(log.end_offset, promised, seed)
            self.without_holes(log, stream, promised, is_slave=is_slave)
            self.assertEqual(log_bytes(log), stream[: log.end_offset], seed)
        self.assertGreater(deaths, 150)

    def without_holes(self, log: CommitLog, stream: bytes, promised: int, *, is_slave: bool) -> None:
        """
        Cut a log at its first hole, as a slave does when it has compared it: no checksum covers the head of a
        record that came in two pieces. A hole is of zeroes, after all that was flushed.
        """
        found = log_bytes(log)
        wrong = [at for at, byte in enumerate(found) if byte != stream[at]]
        if wrong:
            self.assertEqual({found[at] for at in wrong}, {0})
            self.assertGreaterEqual(wrong[0], promised)
            if is_slave:
                self.assertTrue(set(wrong) <= set(log.doubtful))
            log.cut(wrong[0])
