# -*- test-case-name: tests.broker.store.test_log_flush -*-
"""
The durable half of the commit log: group-committed flushes off the reactor, and the log mark.

One flush is under way at a time; what is asked for meanwhile shares the next one. A failed fsync is never
tried again: the log is broken from then on, and must be opened anew.

The mark is written after each flush, and brought to stable storage by every L{LogFlush.mark_sync_every}-th
flush after it. Where power fails in between, the records behind the newest durable mark are found by
parsing; see L{dledger.broker.store.log_recovery}.

Source: GroupCommitService, FlushRealTimeService in CommitLog.java (4.9.8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias
from zlib import crc32

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.base.disk.segment import SegmentList
from dledger.base.errors import DLedgerError, StoreError
from dledger.base.threads import RunInThread
from dledger.broker.store.log_mark import LogMark, LogMarkFile
from dledger.broker.store.records import RecordWalk
from protocols.wire.ledger.codes import ResponseCode

#: Callers that may wait for a flush at a time.
WAITERS_MAX = 65536


@attrs.define(eq=False)
class FlushJob:
    """
    What one flush brings to stable storage.

    @ivar end: every byte of the log before it.
    @ivar record_end: the end of the last whole record among them.
    """

    end: int
    record_end: int
    epoch: int
    mark_generation: int
    steps: list[Callable[[], None]]

    def run(self) -> None:
        """
        Wait for stable storage. Any thread.

        @raise OSError: it is not known what is there now.
        """
        for step in self.steps:
            step()


_Waiter: TypeAlias = "tuple[int, Deferred[int]]"


class LogFlush:
    """
    Invariant: C{flushed_record_end <= flushed_offset <= end_offset}; C{_job} is the flush that is under way,
    or None; C{_waiters} wait for ends that no flush so far covers, and rise.

    @cvar mark_sync_every: flushes for each one that waits for the mark, too.
    """

    mark_sync_every = 8

    def __init__(
        self, segments: SegmentList, mark_file: LogMarkFile, mark: LogMark, end: int,
        run_in_thread: RunInThread,
    ) -> None:
        self._segments = segments
        self._mark_file = mark_file
        self._mark = mark
        self._run_in_thread = run_in_thread
        self._end = self._flushed = self._flushed_record_end = end
        self._walk = RecordWalk(segments.file_size, end)
        self._epoch = 0
        self._flushes = 0
        self._broken = ""
        self._job: FlushJob | None = None
        self._waiters: deque[_Waiter] = deque()
        self._idle_waiters: list[Deferred[None]] = []

    @property
    def end_offset(self) -> int:
        """The first offset that is not held; perhaps in the middle of a record."""
        return self._end

    @property
    def record_end(self) -> int:
        """Behind the last whole record."""
        return self._walk.end

    @property
    def flushed_offset(self) -> int:
        """Everything below survives a power cut."""
        return self._flushed

    @property
    def flushed_record_end(self) -> int:
        """Behind the last record of which everything survives a power cut."""
        return self._flushed_record_end

    @property
    def broken(self) -> str:
        """Why nothing more can be done with it; empty while it is sound."""
        return self._broken

    @contextmanager
    def _storing(self, what: str) -> Iterator[None]:
        """What fails in here leaves memory and files apart, and ends the use of this object."""
        if self._broken:
            raise StoreError(f"the commit log has failed before: {self._broken}")
        try:
            yield
        except OSError as error:
            self._broken = f"{what}: {error}"
            raise StoreError(self._broken) from error

    # -- flush -----------------------------------------------------------------------------------

    def flush(self) -> Deferred[int]:
        """
        Bring to stable storage what has been appended before the call.

        @return: fires with L{flushed_offset}; fails with L{StoreError}, after which nothing more may be
            promised, or with L{DLedgerError} LEADER_PENDING_FULL: too many wait already. Cancelling stops the
            wait, not the flush.
        """
        if self._broken:
            return _failed(StoreError(f"the commit log has failed before: {self._broken}"))
        done: Deferred[int] = Deferred(self._forget)
        if self._flushed >= self._end:
            done.callback(self._flushed)
            return done
        if len(self._waiters) >= WAITERS_MAX:
            return _failed(DLedgerError(ResponseCode.LEADER_PENDING_FULL, flushes_waited_for=WAITERS_MAX))
        self._waiters.append((self._end, done))
        if self._job is None:
            self._start()
        return done

    def _forget(self, done: Deferred[int]) -> None:
        self._waiters = deque(waiter for waiter in self._waiters if waiter[1] is not done)

    def _start(self) -> None:
        job = self.prepare_flush()
        under_way = self._run_in_thread(job.run)
        under_way.addCallbacks(lambda _: self.finish_flush(job), self._flush_failed)
        under_way.addErrback(self._flush_failed)
        under_way.addBoth(lambda _: self._go_on())

    def prepare_flush(self) -> FlushJob:
        """Capture what must reach stable storage. On the reactor's thread; at most one job is under way."""
        assert self._job is None, "a flush is under way"
        files = self._segments.take_dirty()
        steps: list[Callable[[], None]] = [file.datasync for file in files]
        if self._segments.directory_dirty:
            self._segments.directory_dirty = False
            steps.append(self._segments.sync_directory)
        self._flushes += 1
        job = FlushJob(self._end, self._walk.end, self._epoch, -1, steps)
        if self._mark_file.needs_sync and self._flushes % self.mark_sync_every == 0:
            job.mark_generation = self._mark_file.generation
            steps.append(self._mark_file.datasync)
        self._segments.busy = frozenset(files)
        self._job = job
        return job

    def finish_flush(self, job: FlushJob) -> None:
        """The job has run without an error. On the reactor's thread."""
        assert job is self._job, "not the flush that is under way"
        self._job = None
        self._segments.release()
        self._mark_file.synced(job.mark_generation)
        if job.epoch == self._epoch:
            self._flushed = max(self._flushed, job.end)
            self._flushed_record_end = max(self._flushed_record_end, job.record_end)
        self._write_mark()

    def _flush_failed(self, failure: Failure) -> None:
        self._job = None
        self._segments.release()
        if not self._broken:
            self._broken = f"fsync: {failure.getErrorMessage()}"

    def _go_on(self) -> None:
        """A flush has ended: tell who waited for it, begin the next one."""
        ready: list[_Waiter] = []
        while self._waiters and (self._broken or min(self._waiters[0][0], self._end) <= self._flushed):
            ready.append(self._waiters.popleft())
        if self._waiters:
            self._start()
        broken, flushed = self._broken, self._flushed
        for _, done in ready:
            if not broken:
                done.callback(flushed)
            else:
                done.errback(StoreError(f"the commit log has failed: {broken}"))
        if self._job is None:
            idle, self._idle_waiters = self._idle_waiters, []
            for waiter in idle:
                waiter.callback(None)

    def idle(self) -> Deferred[None]:
        """@return: fires when no flush is under way."""
        waiter: Deferred[None] = Deferred()
        if self._job is None:
            waiter.callback(None)
        else:
            self._idle_waiters.append(waiter)
        return waiter

    def sync(self) -> None:
        """
        Bring everything to stable storage, on this thread.

        @raise StoreError: it is not there.
        """
        with self._storing("syncing the commit log"):
            self._segments.sync()
        self._flushed, self._flushed_record_end = self._end, self._walk.end

    # -- the mark --------------------------------------------------------------------------------

    @property
    def dispatched_offset(self) -> int:
        """Consume queue units of all records before it are on stable storage, as far as is recorded."""
        return self._mark.dispatched_offset

    def record_dispatched(self, offset: int) -> None:
        """
        Consume queue units of all records before C{offset} are on stable storage.

        @raise StoreError: that could not be written down.
        """
        offset = min(offset, self._flushed_record_end)
        if offset != self._mark.dispatched_offset:
            self._mark = attrs.evolve(self._mark, dispatched_offset=offset)
            self._write_mark(anyway=True)

    def note_checkpoint(self, content: bytes) -> Callable[[], None]:
        """
        Before the checkpoint is written: note what will stand there.

        @return: brings the note to stable storage; to be run, in any thread, before the checkpoint is.
        @raise StoreError: it failed.
        """
        crc = crc32(content)
        if crc != self._mark.checkpoint_crc:
            self._mark = attrs.evolve(
                self._mark, checkpoint_crc=crc, previous_checkpoint_crc=self._mark.checkpoint_crc
            )
            self._write_mark(anyway=True)
        return self._mark_file.datasync

    def _write_mark(self, *, anyway: bool = False, durably: bool = False, clean: bool = False) -> None:
        mark = attrs.evolve(self._mark, end_offset=self._flushed_record_end, clean=clean)
        if mark == self._mark and not (anyway or durably):
            return
        self._mark = mark
        with self._storing("writing the log mark"):
            if durably:
                self._mark_file.write_durably(mark)
            else:
                self._mark_file.write(mark)


def _failed(error: Exception) -> Deferred[int]:
    done: Deferred[int] = Deferred()
    done.errback(error)
    return done
