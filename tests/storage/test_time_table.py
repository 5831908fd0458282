# -*- test-case-name: tests.storage.test_time_table -*-
"""The times of a ledger: folded while it is written, pushed, cut, opened again, damaged."""

from __future__ import annotations

from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files import time_table
from dledger.storage.files.time_table import NotedTime, TimeTable
from dledger.storage.store import producer_list
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError
from protocols.wire.ledger.own.time_entries import encode_time_entry
from tests.storage.producer_logs import TableCase, config_of


class FoldTests(SynchronousTestCase):
    """The table alone."""

    def setUp(self) -> None:
        self.table = TimeTable()

    def test_the_last_time_counts(self) -> None:
        """The last one counts, committed or not; what is cut gives way to the one before."""
        self.assertIsNone(self.table.last)
        for index in (3, 5, 9):
            self.table.note(NotedTime(index, 1, 100 * index), 4)
        self.assertEqual(self.table.last, NotedTime(9, 1, 900))
        self.table.cut(6)
        self.assertEqual(self.table.last, NotedTime(5, 1, 500))
        self.table.cut(5)
        self.assertEqual(self.table.last, NotedTime(3, 1, 300))

    def test_the_number_of_times_is_bounded(self) -> None:
        """Committed ones go but the last; of others the oldest."""
        self.patch(time_table, "PENDING_MAX", 4)
        for index in range(20):
            self.table.note(NotedTime(index, 1, index), index - 2)
        self.assertEqual(self.table.rows(99), [[19, 1, 19]])
        self.assertEqual(self.table.rows(18), [[18, 1, 18]])
        self.assertEqual(self.table.rows(16), [])
        for index in range(20, 40):
            self.table.note(NotedTime(index, 1, index), 18)
        self.assertEqual(self.table.rows(36), [[36, 1, 36]])
        self.assertEqual(self.table.rows(35), [])

    def test_rows_are_written_and_read(self) -> None:
        """As a file has them; what is after the end of the ledger has gone."""
        self.table.note(NotedTime(5, 1, 500), 5)
        rows: list[list[object]] = [list(row) for row in self.table.rows(5)]
        self.assertEqual(TimeTable.of_rows(rows, 5).last, NotedTime(5, 1, 500))
        self.assertIsNone(TimeTable.of_rows(rows, 4).last)
        for wrong in ([[1]], [["x", 1, 2]], [5], 7):
            with self.assertRaises((ValueError, TypeError)):
                TimeTable.of_rows(wrong, 6)  # type: ignore[arg-type]


class StoreTests(TableCase):
    """A ledger that has times."""

    def mark(self, time_ms: int, term: int = 1) -> NotedTime:
        """As a leader does."""
        self.store.append_bodies((encode_time_entry(time_ms),), term, producers_at=0)
        return NotedTime(self.store.ledger_end_index, term, time_ms)

    def last(self) -> NotedTime | None:
        """What the ledger knows."""
        assert self.store.times is not None
        return self.store.times.last

    def test_written_and_pushed(self) -> None:
        """A follower knows the same, one record in a push or many."""
        self.fill(1)
        self.mark(1000)
        self.fill(30, 20)
        noted = self.mark(2000)
        self.assertEqual(self.last(), noted)
        follower = FileStore.open(config_of("n1"), self.disk)
        for first, last in ((0, 0), (1, 1), (2, noted.index)):
            follower.append_entries(self.store.read_range(first, end_index=last, max_bytes=1 << 20))
        assert follower.times is not None
        self.assertEqual(follower.times.last, noted)

    def test_times_survive_a_restart(self) -> None:
        """After a clean stop and after kill -9, also when it lies before what recovery looks at."""
        for clean in (True, False):
            noted = self.mark(1000)
            self.fill(40)
            self.store.record_commit(self.store.ledger_end_index)
            self.reopen(clean=clean)
            self.assertEqual(self.last(), noted)

    def test_only_in_the_file(self) -> None:
        """The entries that are read at a start have none, but the file."""
        noted = self.mark(1000)
        self.fill(60)
        self.store.record_commit(self.store.ledger_end_index)
        self.reopen()
        self.assertIn(b'"times":[[0,1,1000]]', self.disk.read_file(self.path))
        with mock.patch.object(producer_list.ProducerList, "_fold_from") as fold:
            fold.side_effect = lambda table, readers, times, index: self.store.ledger_end_index + 1
            self.reopen()
        self.assertEqual(self.last(), noted)

    def test_a_cut_time_counts_no_more(self) -> None:
        """What a new leader cuts counts no more."""
        noted = self.mark(1000)
        self.fill(2)
        self.mark(2000)
        self.store.record_commit(1)
        ahead = FileStore.open(config_of("n1"), self.disk)
        ahead.append_entries(self.store.read_range(0, end_index=2, max_bytes=1 << 20))
        ahead.append_bodies((b"other",), 2)
        self.store.truncate_to(ahead.read_range(2, end_index=2, max_bytes=1 << 20))
        self.assertEqual(self.last(), noted)

    def test_of_a_later_version(self) -> None:
        """A leader of a later version may write other ones: a push of them is refused, with the remedy."""
        body = encode_time_entry(1000)
        later = body[:7] + b"\x02" + body[8:]
        with mock.patch.object(producer_list, "_decoded", return_value=()):
            self.store.append_bodies((later,), 1, producers_at=0)
        follower = FileStore.open(config_of("n1"), self.disk)
        error = self.assertRaises(
            DLedgerError, follower.append_entries, self.store.read_range(0, end_index=0, max_bytes=1 << 20)
        )
        self.assertIn("upgrade", str(error))
