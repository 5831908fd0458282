# -*- test-case-name: tests.node.test_flush -*-
"""
Runs fsyncs in a separate thread, one at a time, and feeds their outcomes.

Rule: a failed fsync is never retried. The data it failed to write may be gone from the page cache,
so a later success would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.base.errors import StoreError
from dledger.base.threads import RunInThread
from dledger.core.inputs import EntriesFlushed, Input, StoreFailed
from dledger.node.status import Counters


class FlushJob(Protocol):
    """The files to sync."""

    @property
    def end_index(self) -> int:
        """Every entry up to this index is on stable storage once C{run} has returned."""

    def run(self) -> None:
        """Sync, in any thread. @raise OSError: the sync failed."""


class Flushable(Protocol):
    """The part of a store needed here."""

    def prepare_flush(self) -> FlushJob | None:
        """The job that syncs all entries written so far; None if they are synced."""

    def finish_flush(self, job: Any) -> None:
        """C{job.run} has succeeded."""


class Flusher:
    """
    Invariant: C{_under_way} is the Deferred of the only running job, or None.
    """

    def __init__(
        self,
        *,
        store: Flushable,
        run_in_thread: RunInThread,
        feed: Callable[[Input], None],
        seconds: Callable[[], float],
        counters: Counters,
    ) -> None:
        self._store = store
        self._run_in_thread = run_in_thread
        self._feed = feed
        self._seconds = seconds
        self._counters = counters
        self._under_way: Deferred[None] | None = None
        self._idle_waiters: list[Deferred[None]] = []

    def start(self, flush_id: int, end_index: int) -> None:
        """Sync entries up to C{end_index}; then C{EntriesFlushed} or C{StoreFailed} is fed."""
        assert self._under_way is None, "one flush at a time"
        try:
            job = self._store.prepare_flush()
        except StoreError as error:
            self._feed(StoreFailed(reason=str(error)))
            return
        if job is None:
            self._feed(EntriesFlushed(flush_id=flush_id, end_index=end_index))
            return
        began_s = self._seconds()
        under_way = self._under_way = self._run_in_thread(job.run)
        under_way.addCallback(lambda _: self._done(flush_id, job, began_s))
        under_way.addErrback(self._failed)
        under_way.addBoth(lambda _: self._tell_idle())

    def _done(self, flush_id: int, job: FlushJob, began_s: float) -> None:
        self._under_way = None
        self._counters.fsync.observe(self._seconds() - began_s)
        self._store.finish_flush(job)
        self._feed(EntriesFlushed(flush_id=flush_id, end_index=job.end_index))

    def _failed(self, failure: Failure) -> None:
        self._under_way = None
        self._counters.flush_failures += 1
        self._feed(StoreFailed(reason=f"fsync: {failure.getErrorMessage()}"))

    def _tell_idle(self) -> None:
        if self._under_way is None:
            waiters, self._idle_waiters = self._idle_waiters, []
            for waiter in waiters:
                waiter.callback(None)

    def idle(self) -> Deferred[None]:
        """@return: fires when no flush is running."""
        waiter: Deferred[None] = Deferred()
        if self._under_way is None:
            waiter.callback(None)
        else:
            self._idle_waiters.append(waiter)
        return waiter
