# -*- test-case-name: tests.base.test_group_flush -*-
"""
Group commit: flushes of one store in a thread, one at a time, shared by all who ask for one.

Rule 1: one flush runs at a time. Callers that ask while it runs share the next one, which begins as soon as
it has ended.
Rule 2: a failed flush is never retried. The bytes that it failed to write may be gone from the page cache, so
that a later success would prove nothing: the store is informed that it is broken, and all callers fail.
Rule 3: callers are reported in the order in which they asked, and after the next flush has begun.

This is not in L{dledger.base.disk}: threads and waiting are Twisted's, and that package is free of it. A
store needs only L{dledger.base.disk.flush_job} to be flushed from here.

Source: GroupCommitService in CommitLog.java (4.9.8), FlushDataService in DLedgerMmapFileStore.java (0.3.1.2).
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from dledger.base.process.threads import RunInThread
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.codes import ResponseCode

#: Callers that may wait at a time.
WAITERS_MAX = 65536


class Job(Protocol):
    """A flush that was captured; see L{dledger.base.disk.flush_job.FlushJob}."""

    def run(self) -> None:
        """Wait for stable storage, in any thread. @raise OSError: that failed."""


_Job = TypeVar("_Job", bound=Job)


class Flushable(Protocol[_Job]):
    """A store, as seen from here. Its methods are called on the reactor's thread."""

    def prepare_flush(self) -> _Job | None:
        """
        Capture what was written so far; None if it is on stable storage.

        @raise StoreError: the store is broken.
        """

    def finish_flush(self, job: _Job) -> None:
        """C{job.run} has succeeded. @raise StoreError: the store broke now."""

    def flush_failed(self, reason: str) -> StoreError:
        """C{job.run} or L{finish_flush} has failed. @return: the error for those who wait."""


class GroupFlush(Generic[_Job]):
    """
    Invariant: C{_riders} wait for the flush that runs; C{_waiting} for the next one, and are empty while none
    runs.

    @ivar is_running: whether a flush is under way.
    """

    def __init__(self, store: Flushable[_Job], run_in_thread: RunInThread) -> None:
        self._store = store
        self._run_in_thread = run_in_thread
        self.is_running = False
        self._riders: list[Deferred[_Job | None]] = []
        self._waiting: list[Deferred[_Job | None]] = []
        self._idle_waiters: list[Deferred[None]] = []

    def flush(self) -> Deferred[_Job | None]:
        """
        Bring to stable storage what was written before the call.

        @return: fires with the job that has done so; None if nothing had to be done. Fails with L{StoreError}
            if the store is broken, or with L{DLedgerError} LEADER_PENDING_FULL if L{WAITERS_MAX} callers wait
            already. Cancelling ends the wait, not the flush.
        """
        if len(self._riders) + len(self._waiting) >= WAITERS_MAX:
            return fail(DLedgerError(ResponseCode.LEADER_PENDING_FULL, flushes_waited_for=WAITERS_MAX))
        done: Deferred[_Job | None] = Deferred(self._forget)
        self._waiting.append(done)
        if not self.is_running:
            self._tell(*self._begin())
        return done

    def _forget(self, done: Deferred[_Job | None]) -> None:
        self._riders = [one for one in self._riders if one is not done]
        self._waiting = [one for one in self._waiting if one is not done]

    def _begin(self) -> tuple[list[Deferred[_Job | None]], StoreError | None]:
        """Begin the next flush. @return: those who need not wait for it, and why they fail, if they do."""
        riders, self._waiting = self._waiting, []
        try:
            job = self._store.prepare_flush()
        except StoreError as error:
            return riders, error
        if job is None:
            return riders, None
        self._riders = riders
        self.is_running = True
        running = self._run_in_thread(job.run)
        # After finish_flush, so that its failure is the flush's: no caller waits for a store that broke.
        running.addCallback(lambda _: self._store.finish_flush(job))
        running.addCallbacks(lambda _: self._ended(job), self._failed)
        return [], None

    def _ended(self, job: _Job) -> None:
        riders = self._riders
        self.is_running = False
        self._riders = []
        rest, error = self._begin() if self._waiting else ([], None)
        for done in riders:
            done.callback(job)
        self._tell(rest, error)
        self._tell_idle()

    def _failed(self, failure: Failure) -> None:
        error = self._store.flush_failed(f"fsync: {failure.getErrorMessage()}")
        riders = self._riders + self._waiting
        self.is_running = False
        self._riders = []
        self._waiting = []
        self._tell(riders, error)
        self._tell_idle()

    def _tell(self, riders: list[Deferred[_Job | None]], error: StoreError | None) -> None:
        for done in riders:
            if error is None:
                done.callback(None)
            else:
                done.errback(error)

    def idle(self) -> Deferred[None]:
        """@return: fires when no flush runs."""
        waiter: Deferred[None] = Deferred()
        if self.is_running:
            self._idle_waiters.append(waiter)
        else:
            waiter.callback(None)
        return waiter

    def _tell_idle(self) -> None:
        if not self.is_running:
            idle, self._idle_waiters = self._idle_waiters, []
            for waiter in idle:
                waiter.callback(None)
