# -*- test-case-name: tests.broker.ha.test_log_contract -*-
"""What every commit log does for replication: the one in memory that the tests use, and the broker's."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication.ports import LogPort
from dledger.rocketmq.store.log import commit_log as broker_log
from dledger.rocketmq.store.log.log_start import inspect_log
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.testing.world.disk import SimDisk
from protocols.wire.errors import WireError
from tests.broker.ha.fakes import FILE_SIZE, MemoryLog, stream


def run_at_once(call: Any) -> Deferred[None]:
    """A thread that is very quick."""
    call()
    return succeed(None)


def open_broker_log(disk: SimDisk) -> broker_log.CommitLog:
    """The broker's log of a slave, on a simulated disk."""
    config = StoreConfig(store_path_root_dir="/s", mapped_file_size_commit_log=FILE_SIZE)
    disk.makedirs(config.commit_log_path)
    seen = inspect_log(config, disk, checkpoint=None, is_aborted=True)
    return broker_log.CommitLog.open(
        config, disk, seen, is_slave=True, run_in_thread=run_at_once, events=BrokerEvents()
    )


class Contract:
    """The promises of L{dledger.rocketmq.replication.ports.LogPort}."""

    def make(self) -> LogPort:
        """An empty log."""
        raise NotImplementedError

    def filled(self: Any, size: int, *, start: int = 0) -> tuple[LogPort, bytes]:
        """A log, and what is in it."""
        log, data = self.make(), stream(size, start=start)
        for at in range(0, len(data), 64):  # 64 divides the size of the files
            log.append_raw(start + at, data[at : at + 64])
        return log, data

    def test_an_empty_log_holds_nothing(self: Any) -> None:
        """Nothing is held."""
        log = self.make()
        self.assertEqual((log.file_size, log.begin_offset, log.end_offset, log.flushed_offset),
                         (FILE_SIZE, 0, 0, 0))

    def test_append_and_read(self: Any) -> None:
        """Byte for byte, never beyond a file, never beyond the end."""
        log, data = self.filled(2 * FILE_SIZE + 500)
        self.assertEqual(log.end_offset, len(data))
        for offset in (0, 5, FILE_SIZE - 3, FILE_SIZE, 2 * FILE_SIZE + 499):
            file_end = offset - offset % FILE_SIZE + FILE_SIZE
            self.assertEqual(log.read(offset, 10**6), data[offset : min(file_end, len(data))])
            self.assertEqual(log.read(offset, 2), data[offset : min(offset + 2, file_end)])
        self.assertEqual(log.read(log.end_offset, 10), b"")

    def test_an_empty_log_begins_at_any_file(self: Any) -> None:
        """An empty log begins where the first file does, and only there."""
        log, data = self.filled(300, start=3 * FILE_SIZE)
        self.assertEqual(log.begin_offset, 3 * FILE_SIZE)
        self.assertEqual(log.read(3 * FILE_SIZE, 10**6), data)
        self.assertRaises(ValueError, self.make().append_raw, 100, b"\0")

    def test_wrong_writes_are_refused(self: Any) -> None:
        """A gap, an overlap, nothing, and what crosses a file; nothing is changed."""
        log, data = self.filled(300)
        end = log.end_offset
        for offset, size in ((end + 1, 5), (end - 1, 5), (end, 0), (end, FILE_SIZE - end + 1)):
            self.assertRaises(ValueError, log.append_raw, offset, bytes(size))
        self.assertEqual((log.end_offset, log.read(0, 10**6)), (end, data))

    def test_a_cut_ends_at_a_record(self: Any) -> None:
        """To the last record that ends at or below the offset; at a record's end there is nothing to do."""
        data = stream(2 * FILE_SIZE)
        ends = MemoryLog(data)
        for offset in (0, 1, 500, FILE_SIZE - 1, FILE_SIZE, FILE_SIZE + 700, len(data)):
            log, _ = self.filled(2 * FILE_SIZE)
            expected = MemoryLog(ends.data).cut(offset)
            self.assertEqual(log.cut(offset), expected, offset)
            self.assertEqual(log.end_offset, expected)
            self.assertLessEqual(log.flushed_offset, expected)
            self.assertEqual(log.cut(expected), expected)
            if expected < len(data):
                log.append_raw(expected, data[expected : expected + 10])
                self.assertEqual(log.read(expected, 10), data[expected : expected + 10])

    def test_a_flush_covers_earlier_writes(self: Any) -> None:
        """Everything that was appended before is on stable storage."""
        log, data = self.filled(FILE_SIZE + 300)
        self.assertEqual(self.successResultOf(log.flush()), len(data))
        self.assertEqual(log.flushed_offset, len(data))
        self.assertEqual(self.successResultOf(log.flush()), len(data))
        self.successResultOf(log.idle())


class MemoryLogTests(Contract, SynchronousTestCase):
    """The twin."""

    def make(self) -> LogPort:
        """In memory."""
        return MemoryLog()


class BrokerLogTests(Contract, SynchronousTestCase):
    """The real one."""

    def setUp(self) -> None:
        self.disk = SimDisk(random.Random(1))

    def make(self) -> LogPort:
        """On a disk of its own."""
        self.disk = SimDisk(random.Random(1))
        return open_broker_log(self.disk)

    def test_bytes_that_are_no_records_are_refused(self) -> None:
        """What cannot be records is refused, and changes nothing."""
        log = self.make()
        self.assertRaises(WireError, log.append_raw, 0, b"GET / HTTP/1.1\r\n" * 5)
        self.assertEqual(log.end_offset, 0)

    def test_a_master_with_smaller_files_is_refused(self) -> None:
        """Its files end where none of ours does: what follows there must not pass for the rest of a blank."""
        log, data = self.make(), stream(FILE_SIZE, file_size=FILE_SIZE // 4)
        for at in range(0, len(data), 64):
            try:
                log.append_raw(at, data[at : at + 64])
            except WireError as error:
                self.assertIn("mapped_file_size_commit_log", str(error))
                break
        self.assertLess(log.end_offset, FILE_SIZE // 4)

    def test_after_power_loss(self) -> None:
        """
        Ends where a record ends, not below what was flushed, and holds the flushed bytes. The rest
        was found by parsing, which does not see every hole: a slave compares it with its master.
        """
        for seed in range(30):
            rng = random.Random(seed)
            self.disk = SimDisk(rng)
            log = open_broker_log(self.disk)
            data = stream(2 * FILE_SIZE)
            wanted = rng.randrange(1, len(data))
            at = 0
            while at < len(data):
                piece = data[at : at + min(rng.randrange(1, 300), FILE_SIZE - at % FILE_SIZE)]
                log.append_raw(at, piece)
                at += len(piece)
                if at >= wanted and not log.flushed_offset:
                    self.successResultOf(log.flush())
            flushed = MemoryLog(data).cut(log.flushed_offset)
            self.disk.lose_power()
            again = open_broker_log(self.disk)
            end = again.end_offset
            self.assertEqual(MemoryLog(data).cut(end), end, seed)
            self.assertGreaterEqual(end, flushed, seed)
            held = b"".join(again.read(at, FILE_SIZE) for at in range(0, end, FILE_SIZE))
            self.assertEqual(held[:flushed], data[:flushed], seed)
