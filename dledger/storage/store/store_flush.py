# -*- test-case-name: tests.storage.test_store_flush -*-
"""
The flushing part of a file store: flushes, and Java's checkpoint.

L{StoreFlush.prepare_flush} captures a flush, any thread runs it, and it counts from
L{StoreFlush.finish_flush} on. L{dledger.rocketmq.store.log.log_flush} says when, and what a failure means.

The mark is written after each flush, and reaches stable storage with a later flush or checkpoint: with the
next one if flushing is C{async}, with one in L{MARK_SYNC_EVERY} if it is C{sync}; the entries that it records
are acknowledged before that. A window remains: if power fails I{and} a record after the newest durable mark
is damaged on the medium although it was fsynced, it is taken for a torn tail. A killed process leaves none.

The index is derived from the data, so a flush does not wait for it. A checkpoint does, and the mark records
up to where.

Source: FlushDataService in DLedgerMmapFileStore.java (0.3.1.2); differs: docs/divergence.md W6.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.file_table import LEDGER_CHECKPOINT
from dledger.base.disk.flush_job import MARK_SYNC_EVERY, FlushJob
from dledger.base.disk.hints import HintFile
from dledger.storage.files.properties import encode_ledger_checkpoint
from dledger.storage.start.open_ledger import End, MarkWriter, OpenLedger
from dledger.storage.store.state_keeper import StateKeeper
from dledger.values.errors import StoreError


@attrs.define(eq=False, kw_only=True)
class LedgerFlush(FlushJob):
    """
    A flush of a ledger.

    @ivar end: of the ledger when it was captured.
    @ivar end_index: entries up to here are on stable storage when L{run} has ended. A truncation lowers it:
        read it after L{StoreFlush.finish_flush}.
    @ivar index_end_position: index units of records below are on stable storage then; -1: none.
    @ivar checkpoint: content of the checkpoint that it has written; empty: none.
    """

    end: End
    end_index: int
    index_end_position: int = -1
    checkpoint: bytes = b""

    def add_checkpoint(self, file: HintFile, content: bytes) -> None:
        """Write the checkpoint after what was taken before. If that fails, a later flush writes it."""
        def write() -> None:
            self.checkpoint = content if file.write(content) else b""

        self.add_step(write)


class StoreFlush:
    """
    Invariant: C{job} is the flush that is under way, or None; there is never a second one.
    """

    def __init__(self, ledger: OpenLedger, marks: MarkWriter, state: StateKeeper) -> None:
        self._ledger = ledger
        self._marks = marks
        self._state = state
        self.job: LedgerFlush | None = None
        self._flushes = 0
        self._checkpoint_due = False
        self._checkpoint = b""
        self._file = HintFile(ledger.hints, LEDGER_CHECKPOINT, ledger.config.self_path)

    # -- flush -----------------------------------------------------------------------------------

    def prepare_flush(self) -> LedgerFlush | None:
        """
        Capture what must reach stable storage; None when everything has. On the reactor's thread.

        At most one job is under way.

        @raise StoreError: the store is broken.
        """
        assert self.job is None, "a flush is under way"
        ledger = self._ledger
        if ledger.guard.broken:
            ledger.guard.check()
        if not ledger.data.dirty and not self._checkpoint_due:
            return None
        is_sync = ledger.config.is_sync
        end = End(index=ledger.end_index, term=ledger.end_term, position=ledger.end_position)
        job = LedgerFlush(
            epoch=ledger.epoch, end=end, end_index=end.index, steps=ledger.data.begin_flush()
        )
        if self._checkpoint_due or not is_sync:
            job.add_files(ledger.index)
            job.index_end_position = job.end.position
        self._flushes += 1
        if self._checkpoint_due or not is_sync or self._flushes % MARK_SYNC_EVERY == 0:
            self._marks.add_to(job)
        if self._checkpoint_due:
            job.add_checkpoint(self._file, self._checkpoint_now())
        self._checkpoint_due = False
        self._state.add_to(job)
        self.job = job
        return job

    def finish_flush(self, job: LedgerFlush) -> None:
        """
        The job has run without an error. On the reactor's thread.

        @raise StoreError: the mark could not be written.
        """
        assert job is self.job, "not the flush that is under way"
        self._release()
        if job.checkpoint:
            self._checkpoint = job.checkpoint
        self._marks.flushed(job, job.end, job.index_end_position)

    def flush_failed(self, reason: str) -> StoreError:
        """The job that is under way has failed. @return: the error that says that the store is broken."""
        self._release()
        return self._ledger.guard.fail(reason)

    def _release(self) -> None:
        self.job = None
        for segments in (self._ledger.data, self._ledger.index):
            if segments.busy:
                segments.release()
        if self._state.is_saving:
            self._state.flush_ended()

    def sync(self) -> None:
        """
        Bring everything that was written, and the mark that says so, to stable storage, on this thread.

        @raise StoreError: that failed.
        """
        with self._ledger.guard.storing("syncing failed"):
            self.sync_files()
            self._marks.all_synced()

    def sync_files(self) -> None:
        """As L{sync}, without the mark. @raise OSError: that failed."""
        self._ledger.data.sync()
        self._ledger.index.sync()

    def lower(self, end: End, *, repair_end_index: int | None = None) -> None:
        """
        Entries after C{end} will be cut: a flush that is under way counts for none of them, and the mark
        records none of them, durably on return.

        @param repair_end_index: see L{MarkWriter.lower}.
        @raise OSError: the mark could not be written.
        """
        self._ledger.epoch += 1
        if self.job is not None:
            self.job.end_index = min(self.job.end_index, end.index)
        self._marks.lower(end, repair_end_index=repair_end_index)

    # -- the checkpoint --------------------------------------------------------------------------

    def _checkpoint_now(self) -> bytes:
        durable_index = self._marks.durable.index
        return encode_ledger_checkpoint(min(self._ledger.committed_index, durable_index), durable_index)

    def check_point(self, *, force: bool = False) -> None:
        """
        Write mark and checkpoint if they say something new. Called every C{check_point_interval}.

        If a flush is due or under way, the next flush writes the checkpoint, off this thread. A second call
        that finds it still unwritten writes it here.

        @raise StoreError: writing failed.
        """
        self._marks.write()
        if self._checkpoint_now() == self._checkpoint and not self._ledger.index.dirty and not force:
            return
        idle = self.job is None and not self._ledger.data.dirty
        if not (force or self._checkpoint_due or idle):
            self._checkpoint_due = True
            return
        if self.job is None:
            self.write_checkpoint()

    def write_checkpoint(self) -> bool:
        """
        Sync everything and write the checkpoint, on this thread.

        @return: whether the checkpoint was written; if not, it is tried again later.
        @raise StoreError: syncing failed.
        """
        self._checkpoint_due = False
        self.sync()
        content = self._checkpoint_now()
        if not self._file.write(content):
            return False
        self._checkpoint = content
        return True
