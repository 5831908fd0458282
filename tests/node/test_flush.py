# -*- test-case-name: tests.node.test_flush -*-
"""Fsyncs run elsewhere, one at a time, and a failed one is the end."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.effects import FlushLedger, Report
from dledger.core.state.inputs import EntriesFlushed, Input, StoreFailed
from dledger.node.reporting.status import Counters
from dledger.node.work.flush import SLOW_FSYNC_S, LedgerFlusher
from dledger.values.errors import StoreError
from tests.node.rig import FakeThread


class Job:
    """Counts its runs."""

    def __init__(self, end_index: int) -> None:
        self.end_index = end_index
        self.runs = 0

    def run(self) -> None:
        """Once more."""
        self.runs += 1


class Store:
    """A store whose jobs are given to it."""

    def __init__(self) -> None:
        self.jobs: list[Job | None] = []
        self.finished: list[Job] = []
        self.error: StoreError | None = None

    def prepare_flush(self) -> Job | None:
        """The next one."""
        if self.error is not None:
            raise self.error
        return self.jobs.pop(0)

    def finish_flush(self, job: Job) -> None:
        """Remember."""
        self.finished.append(job)
        job.end_index -= 1  # as a truncation in the meantime would

    def flush_failed(self, reason: str) -> StoreError:
        """It cannot be used any more."""
        self.error = StoreError(reason)
        return self.error


class FlusherTests(SynchronousTestCase):
    """From FlushLedger to its outcome."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.thread = FakeThread()
        self.thread.is_lazy = True
        self.store = Store()
        self.fed: list[Input] = []
        self.counters = Counters()
        self.reports: list[Report] = []
        self.flusher = LedgerFlusher(
            store=self.store, run_in_thread=self.thread.run, feed=self.fed.append,
            seconds=self.clock.seconds, counters=self.counters, report=self.reports.append,
        )

    def test_a_finished_flush_is_reported(self) -> None:
        """The store finishes the job before the core hears of it, and of the end that is flushed then."""
        job = Job(7)
        self.store.jobs = [job]
        self.flusher.start(FlushLedger(flush_id=3, end_index=7))
        self.assertEqual((self.fed, job.runs), ([], 0))
        self.clock.advance(0.004)
        self.thread.finish()
        self.assertEqual(job.runs, 1)
        self.assertEqual(self.store.finished, [job])
        self.assertEqual(self.fed, [EntriesFlushed(flush_id=3, end_index=6)])
        status = self.counters.fsync.status()
        self.assertEqual(status.count, 1)
        self.assertAlmostEqual(status.total, 0.004)

    def test_a_slow_flush_is_reported(self) -> None:
        """An fsync that takes long is reported."""
        for seconds in (SLOW_FSYNC_S / 2, SLOW_FSYNC_S):
            self.store.jobs = [Job(7)]
            self.flusher.start(FlushLedger(flush_id=3, end_index=7))
            self.clock.advance(seconds)
            self.thread.finish()
        self.assertEqual([report.event for report in self.reports], ["slow-fsync"])

    def test_nothing_to_do(self) -> None:
        """Everything is on stable storage already."""
        self.store.jobs = [None]
        self.flusher.start(FlushLedger(flush_id=3, end_index=7))
        self.assertEqual(self.fed, [EntriesFlushed(flush_id=3, end_index=7)])
        self.assertEqual(self.thread.waiting, [])

    def test_a_failed_flush_is_not_repeated(self) -> None:
        """The member is informed once; nothing is tried again, and the job is not finished."""
        self.store.jobs = [Job(7), Job(8)]
        self.flusher.start(FlushLedger(flush_id=3, end_index=7))
        self.thread.finish(OSError(5, "Input/output error"))
        ((failed,),) = [self.fed]
        assert isinstance(failed, StoreFailed)
        self.assertEqual(failed.reason, "fsync: [Errno 5] Input/output error")
        self.assertEqual((self.store.finished, self.thread.waiting), ([], []))
        self.assertEqual(self.counters.fsync_failures, 1)

    def test_store_that_has_failed(self) -> None:
        """A store that cannot even say what to sync is a failed one."""
        self.store.error = StoreError("it has failed before")
        self.flusher.start(FlushLedger(flush_id=3, end_index=7))
        self.assertEqual(len(self.fed), 1)
        self.assertIsInstance(self.fed[0], StoreFailed)

    def test_one_at_a_time(self) -> None:
        """The core asks for the next one only when it has heard of the last; else we are wrong."""
        self.store.jobs = [Job(7), Job(8)]
        self.flusher.start(FlushLedger(flush_id=3, end_index=7))
        self.assertRaises(AssertionError, self.flusher.start, FlushLedger(flush_id=4, end_index=8))

    def test_next_from_within(self) -> None:
        """The core may ask for the next one as soon as it hears of the last."""
        self.store.jobs = [Job(7), Job(9)]
        idle = []

        def feed(happened: Input) -> None:
            self.fed.append(happened)
            if len(self.fed) == 1:
                self.flusher.start(FlushLedger(flush_id=4, end_index=9))
                self.flusher.idle().addCallback(idle.append)

        self.flusher._feed = feed
        self.flusher.start(FlushLedger(flush_id=3, end_index=7))
        self.thread.finish()
        self.assertEqual(idle, [])
        self.thread.finish()
        self.assertEqual([flushed.flush_id for flushed in self.fed], [3, 4])  # type: ignore[attr-defined]
        self.assertEqual(idle, [None])

    def test_an_idle_flusher_says_so(self) -> None:
        """Fires at once when nothing runs, else when it has ended, badly too."""
        self.successResultOf(self.flusher.idle())
        self.store.jobs = [Job(7)]
        self.flusher.start(FlushLedger(flush_id=3, end_index=7))
        idle = self.flusher.idle()
        self.assertNoResult(idle)
        self.thread.finish(OSError(5, "Input/output error"))
        self.successResultOf(idle)
