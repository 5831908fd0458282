# -*- test-case-name: tests.broker.store.test_store -*-
"""A whole store: opened, used, closed, crashed, opened again."""

from __future__ import annotations

import errno
import random

from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import DiskSpace, OsDisk
from dledger.rocketmq.store.log.log_mark import LOG_MARK_NAME
from dledger.rocketmq.store.queues.queue_files import UNIT
from dledger.rocketmq.store.records.checkpoint import decode_checkpoint
from dledger.rocketmq.store.records.store_config import UNIT_SIZE
from dledger.rocketmq.store.store import CHECKPOINT_TICKS, TICK_S
from dledger.testing.world.disk import SimDisk
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from protocols.wire.codes import ResponseCode
from tests.broker.store.test_reput import expected
from tests.broker.support import (
    LOG_SIZE,
    QUEUE_SIZE,
    Opened,
    Threads,
    log_bytes,
    message,
    plain,
    some_message,
)


def filled(opened: Opened, seed: int, count: int = 40) -> None:
    """Any messages, a second apart."""
    rng = random.Random(seed)
    for number in range(count):
        opened.store.append_plain(plain([some_message(rng)]), 1_000_000 + 1_000 * number)


class LifeTests(SynchronousTestCase):
    """From open to close and back."""

    def setUp(self) -> None:
        self.disk = MemoryDisk(modified_s=0.0)

    def open(self, **options: bool) -> Opened:
        """The store, started and caught up."""
        opened = Opened(self.disk, **options)
        opened.settle()
        self.successResultOf(opened.started)
        return opened

    def test_first_use_makes_the_directory(self) -> None:
        """An empty directory is made; messages find their queues."""
        opened = self.open()
        self.assertTrue(opened.store.is_ready)
        filled(opened, 1)
        opened.settle()
        self.assertEqual(opened.units(), expected(opened.store.log))
        self.assertEqual(set().union(*opened.queues), set(opened.units()))
        opened.close()
        self.assertEqual(opened.failures, [])

    def test_an_orderly_end_leaves_nothing_to_do(self) -> None:
        """No abort file, a checkpoint with the last timestamp; the next start has nothing to dispatch."""
        opened = self.open()
        filled(opened, 1)
        opened.close()
        self.assertFalse(self.disk.exists("base/abort"))
        checkpoint = decode_checkpoint(self.disk.read_file("base/checkpoint"))
        self.assertEqual((checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp),
                         (1_039_000, 1_039_000))
        again = Opened(self.disk)
        self.assertEqual(again.store.reput.offset, again.store.log.end_offset)
        again.settle()
        self.assertEqual(again.units(), expected(again.store.log))
        self.assertTrue(self.disk.exists("base/abort"))

    def test_an_end_without_room(self) -> None:
        """The last checkpoint fails for want of room: the next start recovers as after a crash."""
        opened = self.open()
        filled(opened, 1)
        opened.settle()

        def fail() -> None:
            raise OSError(28, "no room")

        self.patch(opened.store.queues, "prepare_flush", fail)
        opened.close()
        self.assertEqual(opened.failures, [])
        self.assertTrue(self.disk.exists("base/abort"))
        again = self.open()
        self.assertEqual(again.units(), expected(again.store.log))

    def test_an_end_during_a_checkpoint(self) -> None:
        """What was dispatched after its begin is recorded by one more."""
        threads = Threads()
        opened = Opened(self.disk, run_in_thread=threads)
        opened.settle()
        opened.store.checkpoint()
        filled(opened, 1)
        opened.settle()
        done = opened.store.close()
        opened.settle()
        while threads.waiting:
            threads.run()
            opened.settle()
        self.successResultOf(done)
        self.assertFalse(self.disk.exists("base/abort"))
        checkpoint = decode_checkpoint(self.disk.read_file("base/checkpoint"))
        self.assertEqual(checkpoint.logics_msg_timestamp, 1_039_000)

    def test_without_the_directory_of_queues(self) -> None:
        """It is made again from the log, as RocketMQ does, so that no index is given twice."""
        opened = self.open()
        filled(opened, 1)
        opened.settle()
        units = opened.units()
        opened.close()
        for path in [path for path in self.disk.files if path.startswith("base/consumequeue")]:
            self.disk.unlink(path)
        gone = {path for path in self.disk.directories if path.startswith("base/consumequeue")}
        self.disk.directories -= gone
        again = self.open()
        self.assertEqual(again.units(), units)
        self.assertEqual(again.units(), expected(again.store.log))
        again.close()

    def test_queues_of_another_log(self) -> None:
        """They go if the log is empty."""
        opened = self.open()
        filled(opened, 1)
        opened.settle()
        opened.close()
        for path in list(self.disk.files):
            if not path.startswith("base/consumequeue"):
                self.disk.unlink(path)
        again = self.open()
        self.assertEqual(again.units(), {})
        self.assertEqual([path for path in self.disk.files if path.startswith("base/consumequeue/")], [])

    def test_a_stalled_reactor_is_noticed(self) -> None:
        """A reactor that is busy for seconds is noticed; ordinary ticks are not."""
        opened = self.open()
        with capturedLogs() as events:
            opened.clock.pump([TICK_S] * 5)
            self.assertEqual([event for event in events if "stalled" in event["log_format"]], [])
            opened.clock.advance(5.0)
        (stall,) = [event for event in events if "stalled" in event["log_format"]]
        self.assertEqual((stall["log_level"], stall["seconds"]), (LogLevel.warn, 5.0))
        opened.close()

    def test_queue_offsets_go_on(self) -> None:
        """After any restart the next message of each queue has the next offset."""
        for is_clean in (True, False, True):
            opened = self.open()
            filled(opened, 2)
            opened.settle()
            for units in opened.units().values():
                self.assertEqual([unit[0] for unit in units], list(range(len(units))))
            self.assertEqual(opened.store.queues.misplaced, 0)
            if is_clean:
                opened.close()
            else:
                opened.store.abandon()

    def test_messages_wait_for_the_dispatch(self) -> None:
        """Before everything is dispatched, new messages are refused."""
        opened = self.open()
        filled(opened, 1)
        opened.store.abandon()
        again = Opened(self.disk)
        refused = self.assertRaises(DLedgerError, again.store.append_plain, plain([message()]), 1)
        self.assertIs(refused.code, ResponseCode.LEADER_NOT_READY)
        again.settle()
        again.store.append_plain(plain([message()]), 1)

    def test_the_store_locks_its_directory(self) -> None:
        """One process at a time."""
        self.open()
        self.assertIn("in use by another process", str(self.assertRaises(DirectoryError, self.open)))

    def test_a_raft_log_beside_it_is_refused(self) -> None:
        """An empty commit log would cut queues and offsets; a raft log without an entry does no harm."""
        self.disk.makedirs("base/dledger-n0/data")
        self.disk.makedirs("base/consumequeue/T1/0")
        self.open().close()
        self.disk.write_file("base/consumequeue/T1/0/00000000000000000000", bytes(QUEUE_SIZE))
        self.disk.write_file("base/dledger-n0/data/00000000000000000000", b"entries")
        error = self.assertRaises(DirectoryError, self.open)
        self.assertIn("set enableDLegerCommitLog=true", str(error))
        self.assertTrue(self.disk.exists("base/consumequeue/T1/0/00000000000000000000"))
        self.assertFalse(self.disk.exists("base/abort"))

    def test_a_commit_log_with_messages_is_opened(self) -> None:
        """Whatever is beside it."""
        opened = self.open()
        filled(opened, 1)
        opened.close()
        self.disk.makedirs("base/dledger-n0/data")
        self.disk.write_file("base/dledger-n0/data/00000000000000000000", b"entries")
        self.assertGreater(self.open().store.log.end_offset, 0)

    def test_refused_directory_is_released(self) -> None:
        """After a refusal the lock is free, and no file has changed."""
        self.disk.makedirs("base/commitlog")
        self.disk.write_file("base/commitlog/x", b"")
        self.assertRaises(DirectoryError, self.open)
        self.assertFalse(self.disk.exists("base/abort"))
        self.disk.unlink("base/commitlog/x")
        self.open()

    def test_a_directory_of_java_is_read(self) -> None:
        """
        Without our mark: an orderly end is believed up to the checkpoint, after a crash the queues are put
        again.
        """
        opened = self.open()
        filled(opened, 1)
        opened.settle()
        units, end = opened.units(), opened.store.log.end_offset
        opened.close()
        self.disk.unlink(f"base/{LOG_MARK_NAME}")
        before = self.disk.clone()
        clean = self.open()
        self.assertEqual((clean.units(), clean.store.log.end_offset), (units, end))
        self.assertLess(clean.store.dispatcher.dispatched, 15)
        self.disk = before
        self.disk.write_file("base/abort", b"")
        # The queues of the crashed one are not to be trusted after the checkpoint.
        self.disk.open(f"base/consumequeue/T1/1/{0:020d}").pwrite(bytes(20), 60)
        self.disk.unlink("base/checkpoint")
        crashed = self.open()
        self.assertEqual((crashed.units(), crashed.store.log.end_offset), (units, end))
        self.assertGreater(crashed.store.dispatcher.dispatched, 30)

    def test_without_the_marks_of_a_crash(self) -> None:
        """
        An operator has moved mark and abort away after a power cut, which took the last units of one queue,
        the length of its last file, or bytes of a unit.
        """
        opened = self.open()
        filled(opened, 1)
        opened.settle()
        units, end = opened.units(), opened.store.log.end_offset
        opened.close()
        self.disk.unlink(f"base/{LOG_MARK_NAME}")
        self.disk.unlink("base/consumequeue.list")  # (It was flushed before the last units.)
        later = [key for key, found in units.items() if found[-1][1] > end - LOG_SIZE]
        self.assertGreater(len(later), 2)  # (Before that, the checkpoint says that units are durable.)
        done = set()
        for topic, queue_id in later:
            directory = f"base/consumequeue/{topic}/{queue_id}"
            path = f"{directory}/{max(self.disk.listdir(directory))}"
            size = len(self.disk.read_file(path).rstrip(b"\0"))
            at = -(-size // 20) * 20 - 20
            first = next(unit for unit in units[topic, queue_id] if unit[0] >= int(path[-20:]) // 20)
            for how in ("length", "unit", "bytes")[first[1] <= end - LOG_SIZE :]:
                done.add(how)
                disk = self.disk.clone()
                if how == "length":
                    disk.write_file(path, b"")
                else:
                    disk.open(path).pwrite(bytes(20 if how == "unit" else 7), at)
                again = Opened(disk)
                again.settle()
                self.assertEqual(again.units(), units, f"{how} of {path}")
        self.assertEqual(done, {"length", "unit", "bytes"})

    def test_a_file_without_a_byte(self) -> None:
        """It is damage after an orderly end: the units in it, and those after it, are made again."""
        opened = self.open()
        filled(opened, 1, 120)
        opened.settle()
        units = opened.units()
        opened.close()
        self.disk.unlink("base/consumequeue.list")
        for topic, queue_id in units:
            names = self.disk.listdir(f"base/consumequeue/{topic}/{queue_id}")
            for name in names:
                disk = self.disk.clone()
                disk.write_file(f"base/consumequeue/{topic}/{queue_id}/{name}", b"")
                again = Opened(disk)
                again.settle()
                self.assertEqual(again.units(), units, f"{topic}/{queue_id}/{name}")

    def test_java_directory_without_queues(self) -> None:
        """They are made again from the beginning of the log."""
        opened = self.open()
        filled(opened, 1)
        opened.settle()
        units = opened.units()
        opened.close()
        for path in [path for path in self.disk.files if "consumequeue" in path or LOG_MARK_NAME in path]:
            self.disk.unlink(path)
        self.assertEqual(self.open().units(), units)

    def test_ticks_flush_what_was_written(self) -> None:
        """What was written is flushed after half a second, and the queues with the checkpoint after ten."""
        threads = Threads()
        opened = Opened(self.disk, run_in_thread=threads)
        opened.settle()
        filled(opened, 1, 10)
        opened.settle()
        log = opened.store.log
        self.assertEqual(log.flushed_offset, 0)
        opened.clock.advance(0.5)
        threads.run()
        self.assertEqual(log.flushed_offset, log.end_offset)
        self.assertEqual(log.flusher.dispatched_offset, -1)
        opened.clock.pump([0.5] * 19)
        while threads.waiting:
            threads.run()
        self.assertEqual(log.flusher.dispatched_offset, log.end_offset)
        self.assertTrue(self.disk.exists("base/checkpoint"))

    def test_a_cut_log_cuts_the_queues(self) -> None:
        """The queues end where the log does, and queue offsets are given out anew."""
        opened = self.open()
        filled(opened, 1)
        opened.settle()
        log = opened.store.log
        end = log.cut(log.end_offset // 2)
        self.assertEqual(opened.units(), {**{key: [] for key in opened.units()}, **expected(log)})
        self.assertEqual(opened.store.reput.offset, end)
        filled(opened, 2)
        opened.settle()
        self.assertEqual(opened.store.queues.misplaced, 0)
        self.assertEqual(opened.units(), {**{key: [] for key in opened.units()}, **expected(log)})

    def test_cut_during_a_checkpoint(self) -> None:
        """What was dispatched before the cut is not recorded as dispatched."""
        threads = Threads()
        opened = Opened(self.disk, run_in_thread=threads)
        opened.settle()
        filled(opened, 1)
        opened.settle()
        opened.store.checkpoint()
        opened.store.log.cut(200)
        filled(opened, 2)
        while threads.waiting:
            threads.run()
        self.assertLessEqual(opened.store.log.flusher.dispatched_offset, 200)

    def test_slave_that_begins_elsewhere(self) -> None:
        """An empty slave whose master begins later: no queue of the old log is left."""
        opened = self.open()
        filled(opened, 1)
        opened.settle()
        source = opened.store.log
        slave = Opened(MemoryDisk(), is_slave=True)
        slave.settle()
        for number in (0, 3):
            slave.store.log.cut(slave.store.log.begin_offset)
            at = number * LOG_SIZE
            while at < source.end_offset:
                data = source.read(at, 777)
                slave.store.log.append_raw(at, data)
                at += len(data)
            slave.settle()
            units = slave.units()
            self.assertEqual(
                {key: [unit[1:] for unit in one] for key, one in units.items() if one},
                {key: kept for key, one in expected(source).items()
                 if (kept := [unit[1:] for unit in one if unit[1] >= number * LOG_SIZE])},
            )
            self.assertEqual(slave.store.queues.misplaced, 0)
        self.assertEqual(slave.failures, [])

    def test_maintenance_fails(self) -> None:
        """It is tried again, and what a failure left out is done then."""
        opened = self.open()
        filled(opened, 1, 60)
        opened.settle()
        store = opened.store
        store.checkpoint()

        def failing(*_: object) -> None:
            raise OSError(errno.EIO, "Input/output error")

        for owner, name, deleted in (
            (self.disk, "space", 0), (self.disk, "unlink", 0), (store.queues, "expire", 2),
        ):
            undo = self.patch(owner, name, failing)
            if deleted:
                self.assertEqual(len(store.maintenance(9e9, 4, keep_from=2 * LOG_SIZE + 5)), deleted)
            self.assertRaises(OSError, store.maintenance, 9e9, 4, keep_from=2 * LOG_SIZE + 5)
            undo.restore()
        store.maintenance(9e9, 4, keep_from=2 * LOG_SIZE + 5)
        self.assertEqual(opened.units(), {**{key: [] for key in opened.units()}, **expected(store.log)})
        opened.close()
        self.assertEqual(opened.failures, [])

    def test_old_files_go_at_their_hour(self) -> None:
        """Old files go at their hour, none that is needed, and the queues follow; the last stays."""
        opened = self.open()
        filled(opened, 1, 60)
        opened.settle()
        store = opened.store
        day_s = 86_400.0  # files in memory were written at 0
        self.assertEqual(store.maintenance(9 * day_s, 4, keep_from=1 << 60), [])  # nothing is flushed
        store.log.flush()
        self.assertEqual(store.maintenance(9 * day_s, 4, keep_from=1 << 60), [])  # nor are the queues
        store.checkpoint()
        self.assertEqual(store.maintenance(9 * day_s, 5, keep_from=1 << 60), [])
        self.assertEqual(store.maintenance(2 * day_s, 4, keep_from=1 << 60), [])
        store.config.file_reserved_time_h = 300  # an administrator changes it
        self.assertEqual(store.maintenance(9 * day_s, 4, keep_from=1 << 60), [])
        store.config.file_reserved_time_h = 72
        gone = store.maintenance(9 * day_s, 4, keep_from=2 * LOG_SIZE + 5)
        self.assertEqual((len(gone), store.log.begin_offset), (2, 2 * LOG_SIZE))
        self.assertEqual(opened.units(), {**{key: [] for key in opened.units()}, **expected(store.log)})
        store.maintenance(9 * day_s, 4, keep_from=1 << 60)
        self.assertEqual(store.log.begin_offset, store.log.end_offset // LOG_SIZE * LOG_SIZE)
        opened.close()
        again = self.open()
        self.assertEqual(again.store.log.begin_offset, store.log.begin_offset)
        filled(again, 3)
        again.settle()
        self.assertEqual(again.store.queues.misplaced, 0)

    def test_a_full_disk_waits_for_no_queue(self) -> None:
        """Old files go although units of their records are not on stable storage: that may need room."""
        opened = self.open()
        filled(opened, 1, 60)
        opened.settle()
        store = opened.store
        store.log.flush()
        store.config.disk_space_clean_forcibly_ratio = 1.0
        self.assertEqual(store.maintenance(9e9, 4, keep_from=1 << 60), [])
        self.patch(self.disk, "space", lambda _: DiskSpace(total=100, free=5, usable=5))
        self.assertGreater(len(store.maintenance(9e9, 4, keep_from=1 << 60)), 3)

    def test_queues_are_written(self) -> None:
        """Twice a second; without room or descriptors again and again; any other error ends the store."""
        opened = self.open()
        filled(opened, 1, 5)
        opened.clock.advance(0)
        self.assertFalse(self.disk.exists(opened.store.config.consume_queue_path))
        opened.clock.advance(0.5)
        self.assertTrue(self.disk.exists(opened.store.config.consume_queue_path))

        errors = [OSError(28, "no room"), OSError(24, "Too many open files"), OSError(5, "I/O error")]

        def fail() -> None:
            raise errors.pop(0)

        self.patch(opened.store.queues, "write", fail)
        opened.clock.advance(0.5)
        opened.clock.advance(0.5)
        self.assertEqual(opened.failures, [])
        opened.clock.advance(0.5)
        self.assertEqual([failure.type for failure in opened.failures], [StoreError])
        self.assertEqual(len(self.flushLoggedErrors(StoreError)), 1)

    def test_a_full_disk_refuses_messages(self) -> None:
        """Above the warning level messages are refused, and the oldest files go whoever needs them."""
        opened = self.open()
        filled(opened, 1, 60)
        opened.settle()
        store = opened.store
        store.log.flush()
        self.patch(self.disk, "space", lambda _: DiskSpace(total=100, free=5, usable=5))
        gone = store.maintenance(1.0, 12, keep_from=0)
        self.assertGreater(len(gone), 3)
        refused = self.assertRaises(DLedgerError, store.append_plain, plain([message()]), 1)
        self.assertIs(refused.code, ResponseCode.DISK_FULL)
        self.assertEqual(store.why_full, "disk used to 95%, above disk_space_warning_level_ratio=0.9")
        self.patch(self.disk, "space", lambda _: DiskSpace(total=100, free=50, usable=50))
        store.maintenance(1.0, 12, keep_from=0)
        store.append_plain(plain([message()]), 1)

    def test_a_failed_fsync_ends_the_store(self) -> None:
        """The owner is informed once; what was there is not closed as if in order."""
        disk = SimDisk(random.Random(1))
        opened = Opened(disk)
        opened.settle()
        filled(opened, 1, 5)
        disk.arm(syncs=1)
        opened.clock.advance(0.5)
        opened.clock.advance(0.5)
        self.assertEqual([failure.type for failure in opened.failures], [StoreError])
        self.assertFalse(opened.store.is_ready)
        self.assertEqual(len(self.flushLoggedErrors(StoreError)), 1)
        opened.close()
        self.assertTrue(disk.exists("base/abort"))

    def test_on_real_files(self) -> None:
        """The same with files of the operating system."""
        root = self.mktemp()
        units = None
        for is_clean in (True, False, True):
            opened = Opened(OsDisk(), root=root)
            opened.settle()
            if units is not None:
                self.assertEqual(opened.units(), units)
            filled(opened, 3)
            opened.settle()
            self.assertEqual(opened.units(), expected(opened.store.log))
            units = opened.units()
            if is_clean:
                opened.close()
            else:
                opened.store.abandon()


class TornUnitTests(SynchronousTestCase):
    """A power cut leaves the end of a unit without its beginning, so that it points below its record."""

    def setUp(self) -> None:
        self.disk = MemoryDisk(modified_s=0.0)
        opened = Opened(self.disk)
        opened.settle()
        for number in range(6):
            opened.store.append_plain(plain([message(topic=f"T{number % 2}")]), 1)
        opened.settle()
        opened.clock.pump([TICK_S] * CHECKPOINT_TICKS)
        opened.settle()
        for number in range(6):
            opened.store.append_plain(plain([message(bytes(100), topic=f"T{number % 2}")]), 1)
        opened.settle()
        opened.store.queues.write()
        self.log, self.units = log_bytes(opened.store.log), opened.units()
        self.assertLess(opened.store.log.flusher.dispatched_offset, opened.store.log.end_offset)
        opened.store.abandon()

    def test_every_torn_unit_is_put_again(self) -> None:
        """Whichever bytes are lost, of one unit or of two: they are put again, each message once."""
        for first, second in ((3, 3), (3, 4), (3, 5), (4, 4), (5, 5)):
            for lost in range(1, UNIT_SIZE + 1):
                disk = self.disk.clone()
                file = disk.open(f"base/consumequeue/T1/0/{0:020d}")
                for index in (first, second):
                    file.pwrite(bytes(lost), index * UNIT_SIZE)
                opened = Opened(disk)
                opened.settle()
                self.assertEqual(opened.units(), self.units, (first, second, lost))
                self.assertEqual(log_bytes(opened.store.log), self.log)

    def test_looks_like_a_sound_one(self) -> None:
        """Offsets of one byte: of records of the other queue, or of earlier ones of their own."""
        for key in (("T0", 0), ("T1", 0)):
            for _, offset, size, tags_code in [unit for unit in self.units[key] if unit[1] < 256]:
                disk = self.disk.clone()
                file = disk.open(f"base/consumequeue/T1/0/{0:020d}")
                for index in (3, 4):
                    file.pwrite(UNIT.pack(offset, size, tags_code), index * UNIT_SIZE)
                opened = Opened(disk)
                opened.settle()
                self.assertEqual(opened.units(), self.units, (key, offset))


class DamagedRecordTests(SynchronousTestCase):
    """A damaged record costs that record: at a start after a kill its unit keeps its place in the queue."""

    def test_units_of_damaged_records_stay(self) -> None:
        """Whichever byte of the last records is wrong, or if all of them are zeroes."""
        kept = MemoryDisk(modified_s=0.0)
        opened = Opened(kept)
        opened.settle()
        for number in range(30):
            opened.store.append_plain(plain([message(topic=f"T{number % 2}")]), 1)
        opened.settle()
        opened.clock.pump([TICK_S] * CHECKPOINT_TICKS)
        opened.settle()
        units, end = opened.units(), opened.store.log.end_offset
        self.assertEqual(opened.store.log.flusher.dispatched_offset, end)
        first = units["T0", 0][-4][1]
        opened.store.abandon()
        damages = [(at, b"\xa5") for at in range(first, end, 7)] + [(first, bytes(end - first))]
        for at, data in damages:
            disk = kept.clone()
            disk.open(f"base/commitlog/{0:020d}").pwrite(data, at)
            opened = Opened(disk)
            opened.settle()
            self.assertEqual(opened.units(), units, (at, len(data)))
