# -*- test-case-name: tests.node.test_flush -*-
"""
Flushes of a member's ledger, as the core asks for them; their outcomes are fed back.

Rule 1: one runs at a time, in a thread; the core asks for the next one when the last has ended, see
L{dledger.core.replication.flusher}.
Rule 2: a failed flush is never retried. The bytes that it failed to write may be gone from the page cache, so
that a later success would prove nothing: the store is informed that it is broken, and the member ends.

Source: FlushDataService in DLedgerMmapFileStore.java (0.3.1.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.base.threads import RunInThread
from dledger.core.state.effects import FlushLedger, Report
from dledger.core.state.inputs import EntriesFlushed, Input, StoreFailed
from dledger.node.reporting.status import Counters
from dledger.storage.store.store_flush import LedgerFlush
from dledger.values.errors import StoreError

#: An fsync of at least this many seconds is reported.
SLOW_FSYNC_S = 0.5


class FlushedStore(Protocol):
    """A store, as seen from here, see L{dledger.storage.store.store_flush.StoreFlush}."""

    @property
    def prepare_flush(self) -> Callable[[], LedgerFlush | None]:
        """Capture what must reach stable storage; raises L{StoreError}."""

    @property
    def finish_flush(self) -> Callable[[LedgerFlush], None]:
        """The job has run; raises L{StoreError}."""

    @property
    def flush_failed(self) -> Callable[[str], StoreError]:
        """The job or its end has failed."""


class LedgerFlusher:
    """
    Turns C{FlushLedger} into C{EntriesFlushed} or C{StoreFailed}.

    Invariant: C{_under_way} is the flush that runs, or None.
    """

    def __init__(
        self,
        *,
        store: FlushedStore,
        run_in_thread: RunInThread,
        feed: Callable[[Input], None],
        seconds: Callable[[], float],
        counters: Counters,
        report: Callable[[Report], None],
    ) -> None:
        """@param report: is informed about slow fsyncs."""
        self._store = store
        self._run_in_thread = run_in_thread
        self._feed = feed
        self._seconds = seconds
        self._counters = counters
        self._report = report
        self._under_way: FlushLedger | None = None
        self._began_s = 0.0
        self._idle_waiters: list[Deferred[None]] = []

    def start(self, effect: FlushLedger) -> None:
        """Sync entries up to C{end_index}; then C{EntriesFlushed} or C{StoreFailed} is fed."""
        assert self._under_way is None, "one flush at a time"
        try:
            job = self._store.prepare_flush()
        except StoreError as error:
            return self._failed(error)
        if job is None:
            return self._feed(EntriesFlushed(flush_id=effect.flush_id, end_index=effect.end_index))
        self._under_way = effect
        self._began_s = self._seconds()
        running = self._run_in_thread(job.run)
        # If the end fails, the flush has failed.
        running.addCallback(self._ended, job, effect).addErrback(self._job_failed)

    def _ended(self, _: None, job: LedgerFlush, effect: FlushLedger) -> None:
        self._store.finish_flush(job)
        self._under_way = None
        took_s = self._seconds() - self._began_s
        self._counters.fsync.observe(took_s)
        if took_s >= SLOW_FSYNC_S:
            self._report(Report(event="slow-fsync", facts={"seconds": round(took_s, 3)}))
        # (A truncation in the meantime has lowered the end.)
        self._feed(EntriesFlushed(flush_id=effect.flush_id, end_index=job.end_index))
        if self._idle_waiters and self._under_way is None:
            self._report_idle()

    def _job_failed(self, failure: Failure) -> None:
        self._under_way = None
        self._failed(self._store.flush_failed(f"fsync: {failure.getErrorMessage()}"))
        self._report_idle()

    def _failed(self, error: StoreError) -> None:
        self._counters.fsync_failures += 1
        self._feed(StoreFailed(reason=str(error.facts["reason"])))

    def idle(self) -> Deferred[None]:
        """@return: fires when no flush is running."""
        waiter: Deferred[None] = Deferred()
        self._idle_waiters.append(waiter)
        if self._under_way is None:
            self._report_idle()
        return waiter

    def _report_idle(self) -> None:
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            waiter.callback(None)
