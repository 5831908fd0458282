# -*- test-case-name: tests.broker.store.test_commit_log -*-
"""What a master appends, what a slave copies, and what a cut leaves."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import Disk, OsDisk
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.log.log_mark import LOG_MARK_NAME
from dledger.rocketmq.store.log.open_log import LogSegments
from dledger.rocketmq.store.records.records import size_of
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.world.disk import SimDisk
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.message import Host
from tests.broker.ha.fakes import stream
from tests.broker.support import (
    GOLDEN,
    LOG_SIZE,
    Reported,
    close_log,
    config_of,
    log_bytes,
    message,
    messages_in,
    open_log,
    some_message,
    twin_of,
)

if TYPE_CHECKING:
    _Case = SynchronousTestCase
else:
    _Case = object  # a contract is no test case by itself

NOW = 1_800_000_000_000


def filled(log: CommitLog, count: int = 60, seed: int = 1) -> None:
    """Any messages, by ones and threes."""
    rng = random.Random(seed)
    while count > 0:
        batch = [some_message(rng) for _ in range(rng.choice([1, 1, 3]))]
        log.append([batch], NOW + count)
        count -= len(batch)


class NamesTests(SynchronousTestCase):
    """Names that a killed process left in the system's cache."""

    def test_start_makes_them_durable(self) -> None:
        """Mark, checkpoint and abort file are there after the next start and a power cut."""
        disk = CrashDisk()
        disk.makedirs("base")
        with mock.patch.object(CrashDisk, "sync_directory"):
            log = open_log(disk)
            disk.write_file("base/checkpoint", b"c")
        names = {f"base/{name}" for name in (LOG_MARK_NAME, "abort", "checkpoint")}
        self.assertEqual(names & set(disk.image().after_power_cut(()).contents()), set())
        log.abandon()
        open_log(disk)
        self.assertEqual(names - set(disk.image().after_power_cut(()).contents()), set())


class LogContract(_Case):
    """C{self.disk} is an empty disk with a directory C{self.root}."""

    disk: Disk
    root: str

    def config(self) -> StoreConfig:
        """Small files below the root."""
        return config_of(self.root)

    def open(self, **options: bool) -> CommitLog:
        """The log as it is on the disk."""
        return open_log(self.disk, config=self.config(), **options)

    def test_an_empty_log_begins_at_zero(self) -> None:
        """A new log begins and ends at 0."""
        log = self.open()
        self.assertEqual((log.begin_offset, log.end_offset, log.flushed_offset, log.record_end), (0, 0, 0, 0))
        self.assertEqual((log.file_size, log.read(0, 10), log.file_at(0)), (LOG_SIZE, b"", None))

    def test_hearers_read_new_bytes_without_the_disk(self) -> None:
        """Who hears that the log has grown reads the new bytes from memory; later they are read from disk."""
        seen, size = [], size_of(message())

        def grown() -> None:
            with mock.patch.object(LogSegments, "pread", side_effect=AssertionError("the disk is read")):
                seen.append(log.read(log.end_offset - size, size))

        log = open_log(self.disk, config=self.config(), events=Reported(grown))
        for _ in range(2):
            log.append([[message()]], NOW)
        self.assertEqual(seen, [log.read(0, size), log.read(size, size)])
        with mock.patch.object(LogSegments, "pread", return_value=bytes(size)):
            self.assertEqual(log.read(size, size), bytes(size))

    def test_appended_messages_are_there(self) -> None:
        """Every message is there, with its place, its queue offset and its timestamp, across files."""
        log = self.open()
        rng = random.Random(5)
        expected, taken = [], {}
        for number in range(40):
            batches = [[some_message(rng) for _ in range(rng.choice([1, 1, 3]))] for _ in range(3)]
            placed = log.append(batches, NOW + number)
            self.assertEqual(placed.store_timestamp, NOW + number)
            places = zip(sum(batches, []), placed.offsets, placed.queue_offsets, strict=True)
            for new, offset, found in places:
                key = (new.topic, new.queue_id)
                queue_offset = taken.get(key, 0) if new.is_queued else 0
                if new.is_queued:
                    taken[key] = queue_offset + 1
                self.assertEqual(found, queue_offset)
                expected.append(twin_of(new, offset=offset, queue_offset=queue_offset, now_ms=NOW + number))
        self.assertEqual(messages_in(log), expected)
        self.assertEqual(log.queue_offsets, taken)
        self.assertGreater(log.end_offset, 5 * LOG_SIZE)

    def test_a_golden_message_is_stored(self) -> None:
        """The first message of a real broker, stored by us."""
        log = self.open()
        log.append([[message(
            born_timestamp=0x1A1FBA34B5A, born_host=Host.of("127.0.0.1", 0xCC30),
            store_host=Host.of("127.0.0.1", 0x51AF), properties_data=GOLDEN[-25:],
        )]], 0x1A1FBA34B91)
        self.assertEqual(log.read(0, 1000), GOLDEN)

    def test_end_of_file(self) -> None:
        """A record that leaves 8 bytes stays in the file; one byte more, and a blank is there."""
        overhead = size_of(message(b""))
        end = overhead + 1000
        for extra in (0, 1):
            log = open_log(MemoryDisk())
            log.append([[message(bytes(1000))]], NOW)
            body = bytes(LOG_SIZE - 8 - end - overhead + extra)
            placed = log.append([[message(body)]], NOW)
            if extra:
                self.assertEqual(placed.offsets, [LOG_SIZE])
                self.assertEqual(log.read(end, 8), (LOG_SIZE - end).to_bytes(4, "big") + b"\xcb\xd4\x31\x94")
            else:
                self.assertEqual((placed.offsets, log.end_offset), ([end], LOG_SIZE - 8))

    def test_batch_stays_together(self) -> None:
        """A batch that does not fit as a whole begins the next file."""
        log = self.open()
        log.append([[message(bytes(2500))]], NOW)
        placed = log.append([[message(bytes(600)) for _ in range(3)]], NOW)
        self.assertEqual([offset // LOG_SIZE for offset in placed.offsets], [1, 1, 1])
        self.assertEqual(placed.queue_offsets, [1, 2, 3])

    def test_impossible_messages_are_refused(self) -> None:
        """What can never be stored is refused before anything happens."""
        log = self.open()
        for batch, part in (
            ([message(bytes(LOG_SIZE))], "do not fit into a file of 4096"),
            ([message(bytes(1500))] * 3, "do not fit"),
            ([message(bytes(5 * 1024 * 1024))], "max_message_size=4194304"),
            ([message(topic="")], "topic of 0 bytes"), ([message(topic="a\0")], "a zero byte"),
            ([message(), message(properties_data=b"K\x01\0")], "a zero byte"),
        ):
            with self.assertRaises(ValueError) as caught:
                log.check(batch)
            self.assertIn(part, str(caught.exception))
        self.assertEqual(log.check([message(b"hello")]), 91 + 5 + 2 + 7)

    def test_reads_stay_within_the_file(self) -> None:
        """Never beyond the file or the end, never fewer bytes than that; other offsets are refused."""
        log = self.open()
        filled(log)
        whole = log_bytes(log)
        for offset in (0, 1, LOG_SIZE - 1, LOG_SIZE, LOG_SIZE + 7, log.end_offset - 1, log.end_offset):
            for size in (0, 1, 100, 10 * LOG_SIZE):
                end = min(offset + size, LOG_SIZE * (offset // LOG_SIZE + 1), log.end_offset)
                self.assertEqual(log.read(offset, size), whole[offset:end])
        self.assertRaises(ValueError, log.read, -1, 1)
        self.assertRaises(ValueError, log.read, log.end_offset + 1, 1)

    def test_a_slave_copies_the_same_bytes(self) -> None:
        """The same bytes, however they are cut; and the end of the last whole record is known."""
        log = self.open()
        filled(log)
        whole = log_bytes(log)
        ends = [one.physical_offset + one.size for one in messages_in(log)]
        for size in (1, 7, 47, 48, 49, 1000, LOG_SIZE):
            slave = open_log(MemoryDisk(), is_slave=True)
            at = 0
            while at < len(whole):
                piece = min(size, LOG_SIZE - at % LOG_SIZE, len(whole) - at)
                slave.append_raw(at, whole[at : at + piece])
                at += piece
                last = max((end for end in ends if end <= at), default=0)
                self.assertGreaterEqual(slave.record_end, last)
                self.assertEqual(slave.end_offset, at)
            self.assertEqual(log_bytes(slave), whole)
            self.assertEqual(slave.record_end, log.record_end)

    def test_a_slave_refuses_wrong_bytes(self) -> None:
        """Another offset, too many bytes, what is not a record: nothing has changed then."""
        log = self.open(is_slave=True)
        log.append_raw(LOG_SIZE * 3, make_record(LOG_SIZE * 3))
        self.assertEqual((log.begin_offset, log.end_offset), (LOG_SIZE * 3, LOG_SIZE * 3 + 123))
        end = log.end_offset
        for offset, data, error in (
            (end + 1, b"x", ValueError), (0, b"x", ValueError), (end, b"", ValueError),
            (end, bytes(LOG_SIZE), ValueError), (end, bytes(200), WireError), (end, GOLDEN, WireError),
        ):
            self.assertRaises(error, log.append_raw, offset, data)
            self.assertEqual((log.end_offset, log.record_end), (end, end))
        log.append_raw(end, make_record(end)[:60])
        self.assertRaises(ValueError, log.append_raw, end, b"x")
        log.append_raw(end + 60, make_record(end)[60:])
        self.assertEqual(log.record_end, end + 123)

    def test_empty_slave_begins_at_a_file(self) -> None:
        """And nowhere else; an empty log with a file can still begin elsewhere."""
        log = self.open(is_slave=True)
        self.assertRaises(ValueError, log.append_raw, 7, b"x")
        log.append_raw(LOG_SIZE, make_record(LOG_SIZE)[:20])
        self.assertEqual(log.cut(log.end_offset), LOG_SIZE)
        self.assertEqual((log.begin_offset, log.end_offset), (LOG_SIZE, LOG_SIZE))
        log.append_raw(5 * LOG_SIZE, make_record(5 * LOG_SIZE))
        self.assertEqual((log.begin_offset, log.end_offset), (5 * LOG_SIZE, 5 * LOG_SIZE + 123))

    def test_a_cut_ends_at_a_record(self) -> None:
        """The log ends with the last record below; the rest is zero, and can be written again."""
        reported = Reported()
        log = self.open(events=reported)
        filled(log)
        whole = log_bytes(log)
        cuts = reported.cuts
        ends = [0, *(one.physical_offset + one.size for one in messages_in(log))]
        self.assertEqual(log.cut(log.end_offset + 5), log.end_offset)
        self.assertEqual(cuts, [])
        for offset in (ends[-3] + 5, ends[-9], LOG_SIZE + 1, LOG_SIZE, 130, 0):
            end = log.cut(offset)
            known = max(one for one in ends if one <= offset)
            self.assertTrue(known <= end <= offset, (offset, end))
            self.assertEqual(log_bytes(log), whole[:end])
            self.assertEqual((log.flushed_offset, log.record_end), (end, end))
        self.assertEqual(cuts, sorted(set(cuts), reverse=True))
        self.assertEqual((cuts[0], cuts[-1]), (ends[-3], 0))
        data = self.disk.read_file(f"{self.root}/commitlog/{0:020d}")
        self.assertEqual(data, bytes(LOG_SIZE))
        log.append([[message()]], NOW)
        self.assertEqual(len(messages_in(log)), 1)

    def test_a_reopened_log_is_whole(self) -> None:
        """After an orderly end, and after a crash, everything is there."""
        for is_clean in (True, False):
            log = self.open()
            before = log_bytes(log)
            filled(log, seed=int(is_clean))
            whole = log_bytes(log)
            self.assertEqual(whole[: len(before)], before)
            if is_clean:
                log.clean_close()
                self.disk.unlink(f"{self.root}/abort")
            else:
                log.abandon()
            log = self.open()
            self.assertEqual((log.why_recovered, log_bytes(log)), ("", whole))
            log.abandon()

    def test_the_first_file_expires(self) -> None:
        """The first file goes, the last stays."""
        log = self.open()
        filled(log)
        whole = log_bytes(log)
        log.flusher.sync()
        path = log.expire_first()
        self.assertFalse(self.disk.exists(path))
        self.assertEqual((log.begin_offset, log.second_file), (LOG_SIZE, 2 * LOG_SIZE))
        self.assertEqual(log_bytes(log), whole[LOG_SIZE:])
        log.abandon()
        self.assertEqual(log_bytes(self.open()), whole[LOG_SIZE:])


def make_record(offset: int) -> bytes:
    """The golden record at another place."""
    return GOLDEN[:28] + offset.to_bytes(8, "big") + GOLDEN[36:]


class OnRealFiles(LogContract, SynchronousTestCase):
    """Files of the operating system."""

    def setUp(self) -> None:
        self.disk = OsDisk()
        self.root = self.mktemp()

    def test_a_descriptor_leads_to_any_byte(self) -> None:
        """For sendfile: the descriptor and the position of any byte."""
        import os

        log = self.open()
        filled(log)
        for offset in (0, 5, LOG_SIZE + 3):
            found = log.file_at(offset)
            assert found is not None
            self.assertEqual(os.pread(found[0], 40, found[1]), log.read(offset, 40))


class InMemory(LogContract, SynchronousTestCase):
    """Files in memory."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.root = "base"


class OnSimulatedDisk(LogContract, SynchronousTestCase):
    """The disk of the simulator."""

    def setUp(self) -> None:
        self.disk = self.sim = SimDisk(random.Random(1))
        self.root = "base"

    def test_a_full_disk_refuses_messages(self) -> None:
        """No room for another file: refused, nothing has changed, and later there may be room."""
        log = self.open()
        log.append([[message(bytes(3900))]], NOW)
        before, offsets = log_bytes(log), dict(log.queue_offsets)
        self.sim.set_full(True)
        with self.assertRaises(DLedgerError) as caught:
            log.append([[message(bytes(3900))], [message(bytes(3900))]], NOW)
        self.assertIs(caught.exception.code, ResponseCode.DISK_FULL)
        self.assertRaises(OSError, open_log(self.sim2(), is_slave=True).append_raw, 0, GOLDEN)
        self.assertEqual((log_bytes(log), log.queue_offsets), (before, offsets))
        self.sim.set_full(False)
        log.append([[message(bytes(3900))], [message(bytes(3900))]], NOW)
        self.assertEqual(len(messages_in(log)), 3)

    def test_full_at_the_beginning(self) -> None:
        """An empty slave's log begins at a later file; without room for it, it begins there later."""
        data = stream(1000, start=LOG_SIZE)
        log = open_log(self.sim, is_slave=True)
        self.sim.set_full(True)
        self.assertRaises(OSError, log.append_raw, LOG_SIZE, data)
        self.assertEqual(log.begin_offset, log.end_offset)
        self.sim.set_full(False)
        log.append_raw(LOG_SIZE, data)
        self.assertEqual((log.begin_offset, log.end_offset), (LOG_SIZE, LOG_SIZE + len(data)))

    def sim2(self) -> SimDisk:
        """A full disk."""
        disk = SimDisk(random.Random(2))
        open_log(disk, is_slave=True).abandon()
        disk.set_full(True)
        return disk

    def test_killed_without_marks(self) -> None:
        """Mark and abort are gone after a kill: all that no checkpoint vouches for is made durable."""
        log = self.open()
        filled(log, 60)
        end = log.end_offset
        self.assertGreater(end, 4 * LOG_SIZE)
        log.abandon()
        for name in (LOG_MARK_NAME, "abort"):
            self.sim.unlink(f"base/{name}")
        self.open().abandon()
        for offset in range(0, end, LOG_SIZE):
            path = f"base/commitlog/{offset:020d}"
            self.assertTrue(self.sim.is_durable(path, 0, min(LOG_SIZE, end - offset)), path)

    def test_a_failed_write_breaks_the_log(self) -> None:
        """What fails in the middle breaks the log; everything before is there after the next start."""
        log = self.open()
        filled(log, 20)
        whole = log_bytes(log)
        log.flusher.sync()
        self.sim.arm(writes=1)
        self.assertRaises(StoreError, log.append, [[message(bytes(500))]], NOW)
        self.assertRaises(StoreError, log.append, [[message()]], NOW)
        self.failureResultOf(log.flush(), StoreError)
        log.abandon()
        self.assertEqual(log_bytes(self.open())[: len(whole)], whole)


class DirectoryTests(SynchronousTestCase):
    """What must not be opened is refused with a sentence, and nothing is touched."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        log = open_log(self.disk)
        filled(log)
        self.last = log.end_offset // LOG_SIZE * LOG_SIZE
        close_log(log, self.disk)

    def refused(self, part: str, config: StoreConfig | None = None, *, is_slave: bool = False) -> None:
        """Opening is refused, and no file changes except the abort file."""
        before = {path: bytes(one.data) for path, one in self.disk.files.items()}
        with self.assertRaises(DirectoryError) as caught:
            open_log(self.disk, config=config, is_slave=is_slave)
        self.assertIn(part, str(caught.exception))
        after = {path: bytes(one.data) for path, one in self.disk.files.items() if path != "base/abort"}
        self.assertEqual(after, before)

    def test_other_file_size(self) -> None:
        """Our mark knows the size; without it the files do."""
        other = config_of(mapped_file_size_commit_log=8192)
        self.refused("was made with mapped_file_size_commit_log=4096", other)
        self.refused("made with mapped_file_size_consume_queue=200",
                     config_of(mapped_file_size_consume_queue=400))
        self.disk.unlink("base/commitlogmark")
        self.refused("has 4096 bytes", other)

    def test_a_foreign_file_is_refused(self) -> None:
        """Names of 20 digits only."""
        self.disk.write_file("base/commitlog/notes.txt", b"")
        self.refused("notes.txt")

    def test_a_gap_between_files_is_refused(self) -> None:
        """A file in the middle is gone."""
        self.disk.unlink(f"base/commitlog/{LOG_SIZE:020d}")
        self.refused("is missing between")

    def test_first_file_gone(self) -> None:
        """No expiry has deleted it: refused, unless an operator removes the mark."""
        first = self.disk.read_file("base/commitlog/" + "0" * 20)
        for is_slave in (False, True):
            self.disk.unlink("base/commitlog/" + "0" * 20)
            self.refused("00000000000000000000 is gone: the log begins there", is_slave=is_slave)
            self.disk.write_file("base/commitlog/" + "0" * 20, first)
            self.disk.unlink("base/abort")
        self.disk.unlink("base/commitlog/" + "0" * 20)
        self.disk.unlink("base/commitlogmark")
        self.assertEqual(open_log(self.disk).begin_offset, LOG_SIZE)

    def test_expiry_cut_short(self) -> None:
        """The mark is written before the file goes: a crash between the two leaves a longer log."""
        log = open_log(self.disk)
        log.flusher.expire(LOG_SIZE)
        log.abandon()
        self.assertEqual(open_log(self.disk).begin_offset, 0)

    def test_last_file_gone(self) -> None:
        """Records that were on stable storage are gone: a master refuses, a slave fetches them again."""
        self.disk.unlink(f"base/commitlog/{self.last:020d}")
        self.refused("is gone: records up to")
        log = open_log(self.disk, is_slave=True)
        self.assertLessEqual(log.end_offset, self.last)
        self.assertIn("are gone", log.why_recovered)

    def test_no_commit_log(self) -> None:
        """Files of the right length that hold something else."""
        self.disk.unlink("base/commitlogmark")
        file = self.disk.open(f"base/commitlog/{0:020d}")
        file.pwrite(b"this is text", 0)
        self.refused("does not begin with a record")
