# -*- test-case-name: tests.raft_broker.test_raft_log -*-
"""The committed part of a ledger, as a broker reads it."""

from __future__ import annotations

import errno
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.unreadable import FILLER, OPENING_MAX_BYTES
from dledger.raft_broker.raft_log import RaftLog
from dledger.testing.world.memory_disk import MemoryFile
from dledger.values.errors import DamagedEntryError
from dledger.values.ledger.holes import Hole
from tests.broker.support import message
from tests.raft_broker.rig import FILE_SIZE, LedgerOfMessages


class RaftLogTests(SynchronousTestCase):
    """Its bounds, and what is read."""

    def setUp(self) -> None:
        self.ledger = LedgerOfMessages()
        self.addCleanup(self.ledger.store.abandon)

    def test_an_empty_log_has_no_records(self) -> None:
        """Nothing, until something is committed."""
        log = self.ledger.log()
        self.addCleanup(log.abandon)
        self.assertEqual((log.begin_offset, log.end_offset, log.record_end, log.flushed_offset), (0, 0, 0, 0))
        self.assertEqual(log.read(0, 100), b"")
        self.ledger.append(message())
        self.assertFalse(log.committed(-1))
        self.assertEqual(log.record_end, 0)
        self.assertTrue(log.committed(0))
        self.assertFalse(log.committed(0))
        self.assertEqual(log.record_end, self.ledger.store.end_position)
        self.assertEqual(log.problem_at(48), "")

    def test_a_disk_that_goes_on_failing(self) -> None:
        """However much could not be read, each read has bytes that no record begins with, and no error."""
        self.ledger.append(message())
        log = self.ledger.log()
        self.addCleanup(log.abandon)
        with mock.patch.object(MemoryFile, "pread", side_effect=OSError(errno.EIO, "Input/output error")):
            for _ in range(2 * OPENING_MAX_BYTES // log.record_end):
                data = log.read(0, log.record_end)
        self.assertEqual(data, FILLER[: log.record_end])

    def test_uncommitted_entries_are_not_read(self) -> None:
        """What is after the committed end is neither counted nor read."""
        self.ledger.append(*[message(b"%d" % number) for number in range(5)])
        log = self.ledger.log(2)
        self.addCleanup(log.abandon)
        end = self.ledger.store.position_of(3)
        self.assertEqual((log.record_end, log.ledger_end), (end, self.ledger.store.end_position))
        self.assertEqual(len(log.read(0, 100_000)), end)
        self.assertRaises(ValueError, log.read, end + 1, 1)
        self.assertGreater(len(log.read_any(end, 100)), 0)
        log.committed(1)
        self.assertEqual(log.record_end, end)
        log.committed(99)
        self.assertEqual(log.record_end, log.ledger_end)

    def test_an_offset_leads_to_its_entry(self) -> None:
        """The first entry that begins there or later; a damaged one has no place."""
        self.ledger.append(*[message(b"%d" % number) for number in range(5)])
        log, store = self.ledger.log(), self.ledger.store
        self.addCleanup(log.abandon)
        for index in range(5):
            self.assertEqual(log.first_index_from(store.position_of(index)), index)
            self.assertEqual(log.first_index_from(store.position_of(index) + 1), index + 1)
        self.assertEqual(log.first_index_from(store.end_position), 5)

        def damaged(index: int) -> int:
            if index == 2:
                raise DamagedEntryError(2, "a hole")
            return position_of(index)

        position_of = store.position_of
        with mock.patch.object(store, "position_of", damaged):
            self.assertLessEqual(log.first_index_from(position_of(4)), 4)
            self.assertEqual(log.first_index_from(position_of(1)), 1)

    def test_files_made_later_are_read(self) -> None:
        """Files that are made later are read; no read crosses the end of one."""
        log = self.ledger.log()
        self.addCleanup(log.abandon)
        for number in range(20):
            self.ledger.append(message(bytes(900)))
            log.committed(number)
        for offset in self.ledger.place.offsets:
            self.assertEqual(log.problem_at(offset), "")
        self.assertLessEqual(len(log.read(48, 10 * FILE_SIZE)), FILE_SIZE - 48)
        self.assertGreater(log.record_end, 3 * FILE_SIZE)

    def test_damaged_bounds_are_no_obstacle(self) -> None:
        """A damaged first entry is where it is; a damaged last one counts when more is known."""
        log = RaftLog(self.ledger.config, self.ledger.disk, DamagedLedger(), self.ledger.stamps,
                      committed_index=4, record_size_max=4096)
        self.addCleanup(log.abandon)
        self.assertEqual((log.begin_offset, log.record_end), (100, 100))
        self.assertTrue(log.committed(6))
        self.assertEqual(log.record_end, 700)

    def test_a_damaged_record_is_named(self) -> None:
        """A damaged record is named."""
        self.ledger.append(message(b"hello"))
        log = self.ledger.log()
        self.addCleanup(log.abandon)
        path = f"base/dledger-n0/data/{0:020d}"
        file = self.ledger.disk.open(path)
        file.pwrite(b"\xff", 48 + 90)
        self.assertNotEqual(log.problem_at(48), "")

    def test_dispatched_records_count_as_committed(self) -> None:
        """What was dispatched in an earlier run was committed, though the member does not know it yet."""
        self.ledger.append(*[message() for _ in range(4)])
        log = self.ledger.log(0)
        self.addCleanup(log.abandon)
        log.show_to(self.ledger.store.position_of(3))
        self.assertEqual(log.record_end, self.ledger.store.position_of(3))
        self.assertFalse(log.committed(1))
        self.assertTrue(log.committed(3))
        log.show_to(1 << 60)
        self.assertEqual(log.record_end, log.ledger_end)


class DamagedLedger:
    """Ten entries of 100 bytes; the first two and the fifth are damaged."""

    ledger_begin_index, ledger_end_index, end_position = 1, 10, 1100
    holes = (
        Hole(first_index=1, last_index=2, position=100, end_position=300),
        Hole(first_index=5, last_index=5, position=500, end_position=600),
    )

    def position_of(self, index: int) -> int:
        """The offset of a sound entry."""
        if index in (1, 2, 5):
            raise DamagedEntryError(index, "damaged")
        return index * 100
