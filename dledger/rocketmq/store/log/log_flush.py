# -*- test-case-name: tests.broker.store.test_log_flush,tests.broker.store.test_group_flush -*-
"""
The durable part of a commit log: its flushes, and the log mark, which records how much is on stable storage.

L{GroupFlush} runs the flushes in a thread:

Rule 1: one flush runs at a time. Callers that ask while it runs share the next one, which begins as soon as
it has ended.
Rule 2: a failed flush is never retried. The bytes that it failed to write may be gone from the page cache, so
that a later success would prove nothing: the store is informed that it is broken, and all callers fail.
Rule 3: callers are informed in the order in which they asked, and after the next flush has begun.

The mark is written after each flush, and every
L{MARK_SYNC_EVERY}th time it is brought to stable storage. If power fails in between, recovery finds the
records after the newest durable mark by parsing; see L{dledger.rocketmq.store.log.log_recovery}.

Source: GroupCommitService, FlushRealTimeService in CommitLog.java (4.9.8).
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from dledger.base.disk.flush_job import MARK_SYNC_EVERY, FlushJob
from dledger.base.threads import RunInThread
from dledger.rocketmq.store.log.log_mark import LogMark, LogMarkFile
from dledger.rocketmq.store.log.open_log import OpenLog
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.checksums import crc32
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
            self._end(*self._begin())
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
        self._end(rest, error)

    def _failed(self, failure: Failure) -> None:
        error = self._store.flush_failed(f"fsync: {failure.getErrorMessage()}")
        riders = self._riders + self._waiting
        self.is_running = False
        self._riders = []
        self._waiting = []
        self._end(riders, error)

    def _end(self, riders: list[Deferred[_Job | None]], error: StoreError | None) -> None:
        """Fire what need not, or cannot, wait any longer."""
        for done in riders:
            if error is None:
                done.callback(None)
            else:
                done.errback(error)
        if self._idle_waiters and not self.is_running:
            idle, self._idle_waiters = self._idle_waiters, []
            for waiter in idle:
                waiter.callback(None)

    def idle(self) -> Deferred[None]:
        """@return: fires when no flush runs."""
        waiter: Deferred[None] = Deferred()
        if self.is_running:
            self._idle_waiters.append(waiter)
        else:
            waiter.callback(None)
        return waiter


@attrs.define(eq=False, kw_only=True)
class LogFlush(FlushJob):
    """
    A flush of the log.

    @ivar end: every byte of the log before it is on stable storage after L{run}.
    @ivar record_end: the end of the last whole record before C{end}.
    """

    end: int
    record_end: int


class LogFlusher:
    """
    Invariant: C{flushed_record_end <= flushed_offset <= log.end}; C{_job} is the flush that is under way, or
    None. While a checkpoint is being noted (C{_is_noting}), the mark is written durably, or not at all.

    Implements L{dledger.rocketmq.store.log.log_flush.Flushable}.

    @ivar flushed_offset: every byte below it is on stable storage.
    @ivar flushed_record_end: end of the last whole record on stable storage.
    @ivar doubtful: the bytes that a slave's start found by parsing after the mark, after a crash, and that
        are still in the log. The mark stays before them, so that a further crash does not end the doubt; a
        comparison with the master's bytes does, and empties the range.
    """

    def __init__(
        self, log: OpenLog, mark_file: LogMarkFile, mark: LogMark, run_in_thread: RunInThread,
        doubtful: range = range(0),
    ) -> None:
        self._log = log
        self._mark_file = mark_file
        self._mark = mark
        self.flushed_offset = self.flushed_record_end = log.end
        self.doubtful = doubtful
        self._job: LogFlush | None = None
        self._is_noting = False
        self._flushes = 0
        self._group = GroupFlush(self, run_in_thread)

    # -- flush -----------------------------------------------------------------------------------

    def flush(self) -> Deferred[int]:
        """See L{dledger.rocketmq.store.log.commit_log.CommitLog.flush}."""
        if self.flushed_offset >= self._log.end and not self._log.guard.broken:
            return succeed(self.flushed_offset)
        return self._group.flush().addCallback(lambda _: self.flushed_offset)

    def idle(self) -> Deferred[None]:
        """@return: fires when no flush is under way."""
        return self._group.idle()

    def prepare_flush(self) -> LogFlush | None:
        assert self._job is None, "a flush is under way"
        log = self._log
        log.guard.check()
        if self.flushed_offset >= log.end:
            return None
        job = LogFlush(epoch=log.epoch, end=log.end, record_end=log.walk.end)
        job.add_files(log.segments)
        self._flushes += 1
        if self._flushes % MARK_SYNC_EVERY == 0:
            job.add_mark(self._mark_file)
        self._job = job
        return job

    def finish_flush(self, job: LogFlush) -> None:
        assert job is self._job, "not the flush that is under way"
        self._release()
        self._mark_file.synced(job.mark_generation)
        if job.epoch == self._log.epoch:
            self.flushed_offset = max(self.flushed_offset, job.end)
            self.flushed_record_end = max(self.flushed_record_end, job.record_end)
        self._write_mark()

    def flush_failed(self, reason: str) -> StoreError:
        self._release()
        self._log.guard.fail(reason)
        return StoreError(f"the commit log has failed: {self._log.guard.broken}")

    def _release(self) -> None:
        self._job = None
        self._log.segments.release()

    # -- changes of the log ----------------------------------------------------------------------

    def lower(self, end: int) -> None:
        """
        Bytes from C{end} on will be cut: count none of them as flushed or dispatched, and record that in the
        mark, durably on return.

        @raise StoreError: the mark could not be written.
        """
        self._log.epoch += 1
        self.flushed_offset = min(self.flushed_offset, end)
        self.flushed_record_end = min(self.flushed_record_end, end)
        self.doubtful = range(self.doubtful.start, min(self.doubtful.stop, end))
        self._mark = attrs.evolve(self._mark, dispatched_offset=min(self._mark.dispatched_offset, end))
        self.record()

    def begin_at(self, offset: int) -> None:
        """The log is empty and begins at C{offset}. @raise StoreError: the mark could not be written."""
        self._log.epoch += 1
        self.flushed_offset = self.flushed_record_end = offset
        self.doubtful = range(0)
        self._mark = attrs.evolve(self._mark, dispatched_offset=offset, begin_offset=offset)
        self.record()

    def expire(self, begin: int) -> None:
        """The log will begin at C{begin}. @raise StoreError: the mark could not be written."""
        self._mark = attrs.evolve(self._mark, begin_offset=begin)
        self.doubtful = range(max(self.doubtful.start, begin), self.doubtful.stop)
        self.record()

    def sync(self) -> None:
        """Bring everything to stable storage, on this thread. @raise StoreError: syncing failed."""
        with self._log.guard.storing("syncing the commit log"):
            self._log.segments.sync()
        self.flushed_offset = self._log.end
        self.flushed_record_end = self._log.walk.end

    def close_clean(self) -> None:
        """
        Bring everything to stable storage, and record that the log was closed in order.

        @raise StoreError: syncing failed.
        """
        assert self._job is None, "a flush is under way"
        self.sync()
        self._write_mark(durably=True, clean=True)

    def abandon(self) -> None:
        """Close the mark, unless a flush in another thread may use it."""
        if self._job is None:
            self._mark_file.close()

    # -- the mark --------------------------------------------------------------------------------

    @property
    def dispatched_offset(self) -> int:
        """The recorded offset: consume queue units of all records before it are on stable storage."""
        return self._mark.dispatched_offset

    def record(self) -> None:
        """Record the flushed offset in the mark, durably. @raise StoreError: writing failed."""
        self._write_mark(durably=True)

    def record_dispatched(self, offset: int) -> None:
        """
        Record that consume queue units of all records before C{offset} are on stable storage.

        @raise StoreError: writing failed.
        """
        offset = min(offset, self.flushed_record_end)
        if offset != self._mark.dispatched_offset:
            self._mark = attrs.evolve(self._mark, dispatched_offset=offset)
            self._write_mark(anyway=True)

    async def note_checkpoint(
        self, content: bytes, before: bytes | None, run_in_thread: RunInThread
    ) -> None:
        """
        Record the content of the checkpoint in the mark, durably, before the checkpoint is written.

        The mark counts as durable before anything else is written to its file: the next write goes to the
        other slot. Else that write, torn by a power cut, would take the note, and the mark that is left
        would not fit the new checkpoint.

        @param before: the content of now; None: there is no file.
        @raise OSError: syncing failed.
        @raise StoreError: writing failed.
        """
        crc = crc32(content)
        if crc == self._mark.checkpoint_crc and not self._mark_file.needs_sync:
            return
        if crc != self._mark.checkpoint_crc:
            self._mark = attrs.evolve(
                self._mark, checkpoint_crc=crc,
                previous_checkpoint_crc=-1 if before is None else crc32(before),
            )
            self._write_mark(anyway=True)
        noted, generation, self._is_noting = self._mark, self._mark_file.generation, True
        try:
            await run_in_thread(self._mark_file.datasync)
        finally:
            self._is_noting = False
        self._mark_file.synced(generation)
        self._write_mark(anyway=self._mark is not noted)

    def _write_mark(self, *, anyway: bool = False, durably: bool = False, clean: bool = False) -> None:
        end = self.flushed_record_end
        if self.doubtful and not clean:
            end = min(end, self.doubtful.start)
        mark = attrs.evolve(self._mark, end_offset=end, clean=clean)
        if mark == self._mark and not (anyway or durably):
            return
        if self._is_noting and not durably:
            return  # the end of the note writes it
        self._mark = mark
        with self._log.guard.storing("writing the log mark"):
            if durably:
                self._mark_file.write_durably(mark)
            else:
                self._mark_file.write(mark)
