# -*- test-case-name: tests.broker.sending.test_puts -*-
"""What is stored, what is refused, and when a put is answered so."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import DiskSpace
from dledger.rocketmq.broker.producing.puts import NotPut, Put
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.values.errors import StoreError
from tests.broker.put_support import WALL_MS, Writing
from tests.broker.support import message, messages_in, plain


class PutCase(SynchronousTestCase):
    """A broker that is stopped at the end."""

    def make(self, **options: Any) -> Writing:
        """Running."""
        self.writing = Writing(**options)
        self.addCleanup(self.writing.stop)
        return self.writing

    def refused(self, status: PutStatus, words: str) -> None:
        """The next put is, for this reason, and nothing is stored."""
        end = self.writing.store.log.end_offset
        error = self.assertRaises(NotPut, self.writing.pipeline.put, plain([message()]))
        self.assertEqual(error.status, status)
        self.assertIn(words, str(error))
        self.assertEqual(self.writing.store.log.end_offset, end)


class PutTests(PutCase):
    """One append for everything; the status of all of it."""

    def test_one_append(self) -> None:
        """Batches stand one after the other, stored at the same time; an asynchronous master answers now."""
        writing = self.make()
        grown: list[int] = []
        ours = writing.broker.grown
        self.patch(writing.broker, "grown", lambda: (ours(), grown.append(1))[0])
        put = writing.pipeline.put(plain([message(b"a")], [message(b"b"), message(b"c", queue_id=1)]))
        self.assertEqual(self.successResultOf(put.done), PutStatus.PUT_OK)
        self.assertEqual(put.placed.queue_offsets, [0, 1, 0])
        self.assertEqual(len(grown), 1)
        stored = messages_in(writing.store.log)
        self.assertEqual([(one.body, one.store_timestamp) for one in stored],
                         [(b"a", WALL_MS), (b"b", WALL_MS), (b"c", WALL_MS)])
        self.assertEqual(writing.pipeline.pending, 0)

    def test_waits_for_a_slave(self) -> None:
        """All of a put are answered when a slave has the last of them."""
        writing = self.make(broker_role="SYNC_MASTER")
        slave = writing.slave()
        put = writing.pipeline.put(plain([message(b"a")], [message(b"b")]))
        self.assertNoResult(put.done)
        self.assertEqual(writing.pipeline.pending, 2)
        writing.report(slave)
        self.assertEqual(self.successResultOf(put.done), PutStatus.PUT_OK)
        self.assertEqual(writing.pipeline.pending, 0)

    def test_timed(self) -> None:
        """Each put is timed until its answer, one that is answered at once, too; a refused one is not."""
        writing = self.make(broker_role="SYNC_MASTER")
        slave = writing.slave()
        writing.pipeline.put(plain([message(b"a")], [message(b"b")]))
        self.assertEqual(writing.pipeline.put_s.status().count, 0)
        writing.pass_time(200)
        writing.report(slave)
        measured = writing.pipeline.put_s.status()
        self.assertEqual(measured.count, 1)
        self.assertAlmostEqual(measured.total, 0.2)
        writing.pipeline.put(plain([message(b"c")]), waits=False)
        self.assertEqual(writing.pipeline.put_s.status().count, 2)
        writing.pipeline.close("the broker stops")
        self.assertRaises(NotPut, writing.pipeline.put, plain([message()]))
        self.assertEqual(writing.pipeline.put_s.status().count, 2)

    def test_slave_too_late(self) -> None:
        """After three seconds; the messages are stored all the same."""
        writing = self.make(broker_role="SYNC_MASTER")
        writing.slave()
        put = writing.pipeline.put(plain([message()]))
        writing.pass_time(3_200)
        self.assertEqual(self.successResultOf(put.done), PutStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertEqual(len(messages_in(writing.store.log)), 1)

    def test_no_slave(self) -> None:
        """Reported at once."""
        put = self.make(broker_role="SYNC_MASTER").pipeline.put(plain([message()]))
        self.assertEqual(self.successResultOf(put.done), PutStatus.SLAVE_NOT_AVAILABLE)

    def test_nobody_waits(self) -> None:
        """Producers that do not want to wait do not."""
        put = self.make(broker_role="SYNC_MASTER").pipeline.put(plain([message()]), waits=False)
        self.assertEqual(self.successResultOf(put.done), PutStatus.PUT_OK)

    def test_cancelled(self) -> None:
        """Who stops waiting is not counted any more, nor does the next one suffer."""
        writing = self.make(broker_role="SYNC_MASTER")
        slave = writing.slave()
        put = writing.pipeline.put(plain([message()]))
        put.done.cancel()
        self.failureResultOf(put.done, CancelledError)
        self.assertEqual(writing.pipeline.pending, 0)
        again: Put = writing.pipeline.put(plain([message()]))
        writing.report(slave)
        self.assertEqual(self.successResultOf(again.done), PutStatus.PUT_OK)


class RefusalTests(PutCase):
    """Why nothing is stored."""

    def test_slave(self) -> None:
        """Nothing is put to a slave."""
        self.make(broker_role="SLAVE")
        self.refused(PutStatus.SERVICE_NOT_AVAILABLE, "put to the slave")

    def test_too_many_wait(self) -> None:
        """The bound is in messages; it counts what waits, not what was answered."""
        writing = self.make(broker_role="SYNC_MASTER")
        self.patch(writing.pipeline, "_pending_max", 2)
        slave = writing.slave()
        writing.pipeline.put(plain([message()], [message()]))
        self.refused(PutStatus.OS_PAGE_CACHE_BUSY, "2 messages wait")
        writing.report(slave)
        writing.pipeline.put(plain([message()]))

    def test_too_few_in_sync(self) -> None:
        """Before anything is stored."""
        self.make(broker_role="SYNC_MASTER", sync_rule="in_sync_replicas", in_sync_replicas=2,
                  min_in_sync_replicas=2)
        self.refused(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, "not enough")

    def test_disk_full(self) -> None:
        """Which is no end of the broker; said when it begins and when it is over."""
        writing = self.make()
        self.patch(writing.disk, "space", lambda _: DiskSpace(total=100, free=5, usable=5))
        writing.store.maintenance(0, 0, keep_from=0)
        with capturedLogs() as events:
            self.refused(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
            self.refused(PutStatus.SERVICE_NOT_AVAILABLE, "the disk is full")
            self.patch(writing.disk, "space", lambda _: DiskSpace(total=100, free=50, usable=50))
            writing.store.maintenance(0, 0, keep_from=0)
            for _ in range(2):
                writing.pipeline.put(plain([message()]))
        self.assertEqual(writing.reasons, [])
        self.assertEqual([event["log_level"].name for event in events], ["warn", "info"])

    def test_not_dispatched(self) -> None:
        """Queue offsets are not known yet."""
        writing = self.make()
        writing.store.is_ready = False
        self.refused(PutStatus.SERVICE_NOT_AVAILABLE, "still being dispatched")
        self.assertEqual(writing.reasons, [])

    def test_failed_append(self) -> None:
        """The broker cannot go on, and says why."""
        writing = self.make()

        def broken(*_: object) -> None:
            raise StoreError("no such device")

        self.patch(writing.store.log, "append_plain", broken)
        self.refused(PutStatus.UNKNOWN_ERROR, "no such device")
        self.assertEqual(len(writing.reasons), 1)
        self.assertIn("no such device", writing.reasons[0])

    def test_closed(self) -> None:
        """Nothing new; what waits is answered, and then it is idle."""
        writing = self.make(broker_role="SYNC_MASTER")
        slave = writing.slave()
        put = writing.pipeline.put(plain([message()]))
        writing.pipeline.close("the broker stops")
        self.refused(PutStatus.SERVICE_NOT_AVAILABLE, "the broker stops")
        idle = writing.pipeline.when_idle()
        self.assertNoResult(idle)
        writing.report(slave)
        self.successResultOf(put.done)
        self.successResultOf(idle)
        self.successResultOf(writing.pipeline.when_idle())

    def test_check(self) -> None:
        """A batch that cannot be stored is found before the others are put."""
        pipeline = self.make().pipeline
        self.assertRaises(ValueError, pipeline.checked, [message(properties={"a": "b\0"})])
        self.assertEqual([one.body for one in pipeline.checked([message(b"x"), message(b"y")])], [b"x", b"y"])
