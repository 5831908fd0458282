# -*- test-case-name: tests.broker.store.test_log_flush -*-
"""
The durable part of a commit log: its flushes, and the log mark, which records how much is on stable storage.

L{dledger.base.process.group_flush} runs the flushes. The mark is written after each flush, and every
L{MARK_SYNC_EVERY}th time it is brought to stable storage. If power fails in between, recovery finds the
records after the newest durable mark by parsing; see L{dledger.rocketmq.store.log.log_recovery}.

Source: GroupCommitService, FlushRealTimeService in CommitLog.java (4.9.8).
"""

from __future__ import annotations

import attrs
from twisted.internet.defer import Deferred, succeed

from dledger.base.disk.flush_job import MARK_SYNC_EVERY, FlushJob
from dledger.base.process.group_flush import GroupFlush
from dledger.base.process.threads import RunInThread
from dledger.rocketmq.store.log.log_mark import LogMark, LogMarkFile
from dledger.rocketmq.store.log.open_log import OpenLog
from dledger.values.errors import StoreError
from protocols.wire.checksums import crc32


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

    Implements L{dledger.base.process.group_flush.Flushable}.

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

    async def note_checkpoint(self, content: bytes, run_in_thread: RunInThread) -> None:
        """
        Record the content of the checkpoint in the mark, durably, before the checkpoint is written.

        The mark counts as durable before anything else is written to its file: the next write goes to the
        other slot. Else that write, torn by a power cut, would take the note, and the mark that is left
        would not fit the new checkpoint.

        @raise OSError: syncing failed.
        @raise StoreError: writing failed.
        """
        crc = crc32(content)
        if crc == self._mark.checkpoint_crc and not self._mark_file.needs_sync:
            return
        if crc != self._mark.checkpoint_crc:
            self._mark = attrs.evolve(
                self._mark, checkpoint_crc=crc, previous_checkpoint_crc=self._mark.checkpoint_crc
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
