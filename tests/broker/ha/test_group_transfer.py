# -*- test-case-name: tests.broker.ha.test_group_transfer -*-
"""Puts that wait for slaves or the disk: order, deadlines, ends; and none blocks another."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication.acks import Acks
from dledger.rocketmq.replication.group_transfer import FlushedPuts, GroupTransferService
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.values.errors import StoreError
from tests.broker.ha.fakes import MemoryLog

OK = PutStatus.PUT_OK
LATE = PutStatus.FLUSH_SLAVE_TIMEOUT


class TransferTests(SynchronousTestCase):
    """L{GroupTransferService}."""

    def setUp(self) -> None:
        self.acks = Acks()
        self.service = GroupTransferService(self.acks, pending_max=100)
        for serial, host in enumerate("abc", 1):
            self.acks.add(serial, host)

    def ack(self, serial: int, offset: int) -> None:
        """A slave reports."""
        self.acks.record(serial, offset)
        self.service.acked()

    def test_a_put_waits_for_one_slave(self) -> None:
        """Reached when some slave has everything below the offset, not a byte earlier."""
        put = self.service.wait(100, needed=1, deadline_ms=10)
        self.ack(1, 99)
        self.assertNoResult(put)
        self.ack(2, 100)
        self.assertIs(self.successResultOf(put), OK)

    def test_a_held_put_is_answered_at_once(self) -> None:
        """What a slave has already is answered at once."""
        self.ack(1, 100)
        self.assertIs(self.successResultOf(self.service.wait(100, needed=1, deadline_ms=10)), OK)

    def test_one_slave_counts_once(self) -> None:
        """One slave that goes on and on is still one."""
        put = self.service.wait(100, needed=2, deadline_ms=10)
        self.ack(1, 1000)
        self.assertNoResult(put)
        self.ack(3, 100)
        self.assertIs(self.successResultOf(put), OK)

    def test_each_put_has_its_own_need(self) -> None:
        """Each waits for as many as it was asked to."""
        one = self.service.wait(100, needed=1, deadline_ms=10)
        three = self.service.wait(100, needed=3, deadline_ms=10)
        self.ack(1, 100)
        self.ack(2, 100)
        self.assertIs(self.successResultOf(one), OK)
        self.assertNoResult(three)
        self.ack(3, 200)
        self.assertIs(self.successResultOf(three), OK)

    def test_slave_that_begins_behind(self) -> None:
        """It answers for later puts as soon as nobody waits for bytes that it lacks."""
        old = self.service.wait(100, needed=1, deadline_ms=10)
        self.acks.begins_at(1, 4096)
        new = self.service.wait(4200, needed=1, deadline_ms=1000)
        self.ack(1, 4200)
        self.assertNoResult(old)
        self.assertNoResult(new)
        self.service.expire(10)
        self.assertIs(self.successResultOf(old), LATE)
        self.ack(1, 4201)
        self.assertIs(self.successResultOf(new), OK)

    def test_slave_that_begins_behind_is_trusted_when_nobody_waits(self) -> None:
        """At once, usually."""
        self.acks.begins_at(1, 4096)
        put = self.service.wait(4200, needed=1, deadline_ms=1000)
        self.ack(1, 4200)
        self.assertIs(self.successResultOf(put), OK)

    def test_a_report_answers_in_order(self) -> None:
        """One report answers all that it covers, in order of offsets."""
        order: list[int] = []
        for offset in (300, 100, 200):
            put = self.service.wait(offset, needed=1, deadline_ms=10)
            put.addCallback(lambda _, offset=offset: order.append(offset))
        self.ack(1, 250)
        self.assertEqual(order, [100, 200])
        self.assertEqual(len(self.service), 1)

    def test_a_put_ends_at_its_deadline(self) -> None:
        """At its deadline, not before."""
        put = self.service.wait(100, needed=1, deadline_ms=3000)
        self.service.expire(2999)
        self.assertNoResult(put)
        self.service.expire(3000)
        self.assertIs(self.successResultOf(put), LATE)
        self.ack(1, 100)

    def test_no_head_of_line_blocking(self) -> None:
        """A put that waits for much, and long, hides neither the offset nor the deadline of others."""
        far = self.service.wait(10_000, needed=1, deadline_ms=9000)
        late = self.service.wait(20_000, needed=2, deadline_ms=1000)
        near = self.service.wait(100, needed=1, deadline_ms=9000)
        self.ack(1, 100)
        self.assertIs(self.successResultOf(near), OK)
        self.service.expire(1000)
        self.assertIs(self.successResultOf(late), LATE)
        self.assertNoResult(far)
        self.ack(1, 10_000)
        self.successResultOf(far)

    def test_the_number_of_puts_is_bounded(self) -> None:
        """A put too many does not wait."""
        puts = [self.service.wait(100, needed=1, deadline_ms=9) for _ in range(100)]
        self.assertEqual(self.service.count, 100)
        self.assertIs(self.successResultOf(self.service.wait(100, needed=1, deadline_ms=9)), LATE)
        self.assertEqual(len(self.service), 100)
        self.ack(1, 100)
        for put in puts:
            self.assertIs(self.successResultOf(put), OK)

    def test_a_cancelled_wait_is_forgotten(self) -> None:
        """A wait that is given up is forgotten."""
        put = self.service.wait(100, needed=1, deadline_ms=9)
        put.cancel()
        self.failureResultOf(put)
        self.assertEqual(len(self.service), 0)
        self.ack(1, 100)

    def test_a_callback_may_put_again(self) -> None:
        """Who is answered may put again at once."""
        seen: list[PutStatus] = []

        def again(_: PutStatus) -> None:
            self.service.wait(200, needed=1, deadline_ms=9).addCallback(seen.append)
            self.ack(1, 200)

        self.service.wait(100, needed=1, deadline_ms=9).addCallback(again)
        self.ack(1, 100)
        self.assertEqual(seen, [OK])
        self.assertEqual(len(self.service), 0)

    def test_a_stop_answers_all_puts(self) -> None:
        """Everybody is answered, and nobody waits afterwards."""
        puts = [self.service.wait(100, needed=needed, deadline_ms=9) for needed in (1, 2)]
        self.service.stop()
        puts.append(self.service.wait(100, needed=1, deadline_ms=9))
        for put in puts:
            self.assertIs(self.successResultOf(put), LATE)


class CommitTests(SynchronousTestCase):
    """L{FlushedPuts}."""

    def setUp(self) -> None:
        self.log = MemoryLog()
        self.log.is_lazy = True
        self.failures: list[Failure] = []
        self.reported = 0

        def flushed() -> None:
            self.reported += 1

        self.service = FlushedPuts(
            self.log, pending_max=100, failed=self.failures.append, flushed=flushed
        )

    def put(self) -> Deferred[PutStatus]:
        """Ten bytes."""
        return self.service.wait(self.log.put(bytes(10)), deadline_ms=5000)

    def test_one_flush_for_many(self) -> None:
        """Who comes while a flush is under way shares the next one."""
        first = self.put()
        others = [self.put(), self.put()]
        self.assertEqual(len(self.log.flushes), 1)
        self.log.finish_flush()
        self.assertIs(self.successResultOf(first), OK)
        self.assertNoResult(others[0])
        self.assertEqual(len(self.log.flushes), 1)
        self.log.finish_flush()
        for other in others:
            self.assertIs(self.successResultOf(other), OK)
        self.assertEqual((self.log.flushes, self.reported), ([], 2))

    def test_a_flushed_put_does_not_wait(self) -> None:
        """Nothing to wait for."""
        self.put()
        self.log.finish_flush()
        self.assertIs(self.successResultOf(self.service.wait(10, deadline_ms=1)), OK)

    def test_a_slow_disk_is_reported(self) -> None:
        """A slow disk is reported as such; the flush goes on."""
        put = self.put()
        self.service.expire(4999)
        self.assertNoResult(put)
        self.service.expire(5000)
        self.assertIs(self.successResultOf(put), PutStatus.FLUSH_DISK_TIMEOUT)
        self.log.finish_flush()
        self.assertEqual(self.log.flushed_offset, 10)

    def test_a_failed_flush_fails_all_puts(self) -> None:
        """A flush that failed fails everybody, now and later; the owner is informed first, once."""
        puts = [self.put(), self.put()]
        self.log.finish_flush(StoreError("fsync"))
        puts.append(self.put())
        for put in puts:
            self.assertIs(self.successResultOf(put), PutStatus.UNKNOWN_ERROR)
        self.assertEqual((len(self.failures), self.log.flushes), (1, []))
        self.service.flush()
        self.assertEqual(self.log.flushes, [])

    def test_the_number_of_puts_is_bounded(self) -> None:
        """A put too many does not wait."""
        puts = [self.put() for _ in range(100)]
        self.assertEqual(self.service.count, 100)
        self.assertIs(self.successResultOf(self.put()), PutStatus.FLUSH_DISK_TIMEOUT)
        self.assertNoResult(puts[99])

    def test_flush_by_the_clock(self) -> None:
        """Only where there is something to flush, and none is under way."""
        self.service.flush()
        self.assertEqual(self.log.flushes, [])
        self.log.put(b"abc")
        self.service.flush()
        self.service.flush()
        self.assertEqual(len(self.log.flushes), 1)

    def test_a_stop_answers_all_puts(self) -> None:
        """Everybody is answered at once; a flush that is under way is the last one."""
        put, later = self.put(), self.put()
        self.service.stop()
        for answered in (put, later, self.put()):
            self.assertIs(self.successResultOf(answered), PutStatus.FLUSH_DISK_TIMEOUT)
        self.log.finish_flush()
        self.assertEqual(self.log.flushes, [])
        self.service.flush()
        self.assertEqual(self.log.flushes, [])

    def test_a_cancelled_wait_is_forgotten(self) -> None:
        """A wait that is given up is forgotten."""
        put = self.put()
        put.cancel()
        self.failureResultOf(put)
        self.log.finish_flush()
        self.assertEqual(len(self.service), 0)
