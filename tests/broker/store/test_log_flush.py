# -*- test-case-name: tests.broker.store.test_log_flush -*-
"""Flushes are shared, run elsewhere, and never promise more than they did."""

from __future__ import annotations

import random

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.log import log_flush
from dledger.rocketmq.store.log.log_mark import LogMark, read_log_mark
from dledger.testing.world.disk import SimDisk
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.codes import ResponseCode
from tests.broker.support import LOG_SIZE, Threads, message, open_log


def tear(disk: SimDisk, path: str) -> None:
    """Power fails in the middle of the writes to a file that were not synced."""
    durable, written = disk.durable_content(path), disk.read_file(path)
    assert durable is not None
    for at in range(0, len(written), 512):
        if durable[at : at + 512] != written[at : at + 512]:
            disk.overwrite(path, at, b"torn")


class FlushTests(SynchronousTestCase):
    """One at a time; puts of meanwhile share the next."""

    def setUp(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.threads = Threads()
        self.log = open_log(self.disk, run_in_thread=self.threads)

    def put(self, size: int = 100) -> int:
        """One more message. @return: the end of the log."""
        self.log.append([[message(bytes(size))]], 1)
        return self.log.end_offset

    def test_nothing_to_do(self) -> None:
        """It fires at once, and no thread is troubled."""
        self.assertEqual(self.successResultOf(self.log.flush()), 0)
        self.assertEqual(self.threads.waiting, [])

    def test_puts_share_the_next_flush(self) -> None:
        """Three that come during a flush share one; each fires when its bytes are covered, not before."""
        first_end = self.put()
        first = self.log.flush()
        later = []
        for _ in range(3):
            end = self.put()
            later.append(self.log.flush())
        self.assertEqual(len(self.threads.waiting), 1)
        self.assertNoResult(first)
        self.threads.run()
        self.assertEqual(self.successResultOf(first), first_end)
        self.assertEqual(self.log.flushed_record_end, first_end)
        for done in later:
            self.assertNoResult(done)
        self.assertEqual(len(self.threads.waiting), 1)
        self.threads.run()
        for done in later:
            self.assertEqual(self.successResultOf(done), end)
        self.assertEqual(self.threads.waiting, [])

    def test_part_of_a_record(self) -> None:
        """Bytes are flushed wherever they end; the record's end counts for the next start."""
        end = self.put()
        record = self.log.read(0, end)
        slave = open_log(SimDisk(random.Random(2)), is_slave=True, run_in_thread=self.threads)
        slave.append_raw(0, record[:50])
        done = slave.flush()
        self.threads.run()
        self.assertEqual(self.successResultOf(done), 50)
        self.assertEqual((slave.flushed_offset, slave.flushed_record_end), (50, 0))
        slave.append_raw(50, record[50:])
        slave.flush()
        self.threads.run()
        self.assertEqual((slave.flushed_offset, slave.flushed_record_end), (end, end))

    def test_a_failed_flush_fails_all(self) -> None:
        """A failed fsync fails all that wait, now and later, and is not tried again."""
        self.put()
        first = self.log.flush()
        self.put()
        second = self.log.flush()
        self.disk.arm(syncs=1)
        self.threads.run()
        self.failureResultOf(first, StoreError)
        self.failureResultOf(second, StoreError)
        self.failureResultOf(self.log.flush(), StoreError)
        self.assertEqual((self.threads.waiting, self.log.flushed_offset), ([], 0))
        self.assertRaises(StoreError, self.put)

    def test_a_cut_is_not_counted_as_flushed(self) -> None:
        """What a cut took away is not counted as flushed by a flush that had begun before."""
        first = self.put()
        end = self.put(2000)
        done = self.log.flush()
        self.assertEqual(self.log.cut(first), first)
        self.put(50)
        self.assertNoResult(done)
        self.threads.run()
        self.assertEqual((self.successResultOf(done), self.log.flushed_offset), (first, first))
        self.assertLess(self.log.end_offset, end)
        self.assertEqual(self.successResultOf(self._flushed()), self.log.end_offset)

    def test_new_file_meanwhile(self) -> None:
        """Files that are made while a flush runs are flushed by the next."""
        self.put()
        done = self.log.flush()
        for _ in range(5):
            self.put(3000)
        self.threads.run()
        self.successResultOf(done)
        self.successResultOf(self._flushed())
        self.assertEqual(self.log.flushed_offset, self.log.end_offset)
        self.assertGreater(self.log.end_offset, 4 * LOG_SIZE)

    def _flushed(self) -> Deferred[int]:
        done = self.log.flush()
        self.threads.run()
        return done

    def test_a_cancelled_wait_is_forgotten(self) -> None:
        """Who cancels is forgotten; the flush goes on for the others."""
        self.put()
        first, second = self.log.flush(), self.log.flush()
        first.cancel()
        self.failureResultOf(first)
        self.threads.run()
        self.successResultOf(second)

    def test_the_number_of_waits_is_bounded(self) -> None:
        """Too many waiters are refused, with a code that says so."""
        self.patch(log_flush, "WAITERS_MAX", 2)
        self.put()
        waiting = [self.log.flush(), self.log.flush()]
        refused = self.failureResultOf(self.log.flush(), DLedgerError)
        self.assertIs(refused.value.code, ResponseCode.LEADER_PENDING_FULL)
        self.threads.run()
        for done in waiting:
            self.successResultOf(done)

    def test_an_idle_flusher_says_so(self) -> None:
        """It fires when no flush is under way any more, also when that was the second one."""
        self.successResultOf(self.log.idle())
        self.put()
        self.log.flush()
        self.put()
        self.log.flush()
        idle = self.log.idle()
        self.threads.run()
        self.assertNoResult(idle)
        self.threads.run()
        self.successResultOf(idle)

    def test_only_flushed_records_are_dispatched(self) -> None:
        """Never beyond what was flushed: records after that may be other ones after a crash."""
        end = self.put()
        done = self.log.flush()
        self.put()
        self.threads.run()
        self.successResultOf(done)
        self.log.flusher.record_dispatched(self.log.end_offset)
        self.assertEqual(self.log.flusher.dispatched_offset, end)

    def test_a_torn_mark_fits_the_checkpoint(self) -> None:
        """A mark that is torn after a checkpoint was noted leaves one that fits the checkpoint."""
        for meanwhile in (False, True):
            content = b"checkpoint %d" % meanwhile
            noting = Deferred.fromCoroutine(self.log.flusher.note_checkpoint(content, None, self.threads))
            end = self.put()
            flushed = self.log.flush()
            if meanwhile:
                self.threads.waiting.reverse()
                self.threads.run()
                self.successResultOf(flushed)
            self.threads.run()
            self.successResultOf(noting)
            if not meanwhile:
                self.threads.run()
            self.assertEqual(self.newest().end_offset, end)
            self.put()
            self.log.flush()
            self.threads.run()
            tear(self.disk, "base/commitlogmark")
            self.assertTrue(self.newest().fits(content, is_aborted=True), meanwhile)

    def newest(self) -> LogMark:
        """The mark in the file."""
        found = read_log_mark(self.disk, "base/commitlogmark")
        assert found is not None
        return found[1]

    def test_a_failed_note_is_repeated(self) -> None:
        """The next marks are written again, and the checkpoint is noted anew."""
        noting = Deferred.fromCoroutine(self.log.flusher.note_checkpoint(b"c", None, self.threads))
        self.disk.arm(syncs=1)
        self.threads.run()
        self.failureResultOf(noting, OSError)
        end = self.put()
        self.log.flush()
        self.threads.run()
        self.assertEqual(self.newest().end_offset, end)
        again = Deferred.fromCoroutine(self.log.flusher.note_checkpoint(b"c", None, self.threads))
        self.assertEqual(len(self.threads.waiting), 1)
        self.threads.run()
        self.successResultOf(again)

    def test_the_mark_says_what_was_flushed(self) -> None:
        """The mark says what was flushed, never what only was written."""
        for number in range(20):
            end = self.put()
            done = self.log.flush()
            self.put()
            self.threads.run()
            self.successResultOf(done)
            found = read_log_mark(self.disk, "base/commitlogmark")
            assert found is not None
            self.assertEqual((found[1].end_offset, found[1].clean), (end, False), number)
