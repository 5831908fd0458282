# -*- test-case-name: tests.storage.test_store_flush -*-
"""
The durable half of the file store: flushes, the commit mark, the checkpoint.

L{StoreFlush.prepare_flush} captures a flush, any thread may run it, and it counts from
L{StoreFlush.finish_flush} on. A failed flush is never tried again.

The mark is written after each flush and brought to stable storage by every
L{StoreFlush.mark_sync_every}-th flush or checkpoint after it. An acknowledgement never waits for the mark
that records its entries. One risk remains: if power fails I{and} the medium damages a record behind the
newest durable mark although it was fsynced, recovery takes it for a torn tail. A killed process leaves no
such window.

The index is derived from the data, so a flush does not wait for it; a checkpoint does, and the mark
records up to which position.

Source: FlushDataService in DLedgerMmapFileStore.java (0.3.1.2); differs: docs/divergence.md W6.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.base.disk.disk import Disk, File
from dledger.base.errors import StoreError
from dledger.config import DLedgerConfig
from dledger.storage.commit_mark import MarkFile
from dledger.storage.directory import Recovered
from dledger.storage.properties import CHECKPOINT_NAME, encode_checkpoint
from dledger.storage.recovery import begin_crc_of
from dledger.storage.store_reads import End, StoreReads


class FlushJob:
    """
    The work of one flush.

    @ivar end_index: every entry up to here is on stable storage when L{run} has ended. A truncation in
        the meantime lowers it, so read it after L{StoreFlush.finish_flush}.
    """

    def __init__(self, end: End, steps: list[Callable[[], None]], epoch: int, mark_generation: int) -> None:
        self.end_index = end.index
        self.end = end
        self.epoch = epoch
        self.mark_generation = mark_generation
        self.covers_index = -1
        self.checkpoint: bytes = b""
        self._steps = steps

    def run(self) -> None:
        """
        Wait for stable storage. Any thread may call this.

        @raise OSError: a sync failed, the state of the files is unknown, and the member must stop.
        """
        for step in self._steps:
            step()


class StoreFlush(StoreReads):
    """
    Invariant: C{_job} is the flush that is under way, or None; there is never a second one.

    @cvar mark_sync_every: number of flushes after which a sync-flushing member brings the mark to stable
        storage (and with every checkpoint); other members do it with every flush.
    """

    mark_sync_every = 8

    def __init__(
        self, config: DLedgerConfig, disk: Disk, lock: File, mark_file: MarkFile, recovered: Recovered
    ) -> None:
        super().__init__(config, disk, lock, mark_file, recovered)
        self._job: FlushJob | None = None
        self._flushes = 0
        self._checkpoint_due = False
        self._checkpoint = b""

    def _note_begin(self) -> None:
        """Keep position and CRC of the first record for the mark: the record is new or has changed."""
        with self._storing("reading the beginning"):
            self._begin_on_record = (
                (self._data.offsets[0], begin_crc_of(self._data)) if self._data.offsets else (-1, 0)
            )

    def _sync_files(self) -> None:
        self._data.sync()
        self._index.sync()

    def _sync_everything(self) -> None:
        """Bring all writes, and the mark that records them, to stable storage on this thread."""
        with self._storing("syncing"):
            self._sync_files()
            self._durable = End(index=self._end, term=self._end_term, position=self._end_position)
            self._index_end_position = self._end_position
            self._mark_file.write_durably(self._mark_now())

    def record_commit(self, committed_index: int) -> None:
        """Raise the committed index; the next flush or checkpoint writes it."""
        assert committed_index <= self._end, (committed_index, self._end)
        self._committed = max(self._committed, committed_index)

    def end_repair(self) -> None:
        """Clear the repairing state durably, together with all writes before."""
        self._repair_end = -1
        self._sync_everything()

    def prepare_flush(self) -> FlushJob | None:
        """
        Capture the writes that must reach stable storage; None if there are none. On the reactor's thread.

        At most one job is under way.
        """
        assert self._job is None, "a flush is under way"
        if self._broken:
            raise StoreError(f"the store has failed before: {self._broken}")
        if not self._data.dirty and not self._checkpoint_due:
            return None
        end = End(index=self._end, term=self._end_term, position=self._end_position)
        files = self._data.take_dirty()
        steps: list[Callable[[], None]] = [file.datasync for file in files]
        if self._data.directory_dirty:
            self._data.directory_dirty = False
            steps.append(self._data.sync_directory)
        job = FlushJob(end, steps, self._epoch, self._mark_file.generation)
        self._flushes += 1
        with_mark = not self._config.is_sync or self._flushes % self.mark_sync_every == 0
        if self._checkpoint_due or not self._config.is_sync:
            units = self._index.take_dirty()
            self._index.busy = frozenset(units)
            steps.extend(file.datasync for file in units)
            if self._index.directory_dirty:
                self._index.directory_dirty = False
                steps.append(self._index.sync_directory)
            job.covers_index = end.position
            with_mark = True
        if with_mark and self._mark_file.needs_sync:
            steps.append(self._mark_file.datasync)
        else:
            job.mark_generation = -1
        if self._checkpoint_due:
            job.checkpoint = self._checkpoint_now()
            steps.append(lambda: self._disk.write_file(self._checkpoint_path(), job.checkpoint))
        self._checkpoint_due = False
        self._data.busy = frozenset(files)
        self._job = job
        return job

    def finish_flush(self, job: FlushJob) -> None:
        """Count a job that has run without an error. On the reactor's thread."""
        assert job is self._job, "not the flush that is under way"
        self._job = None
        self._mark_file.synced(job.mark_generation)
        self._data.release()
        self._index.release()
        if job.checkpoint:
            self._checkpoint = job.checkpoint
        # A sync on this thread in the meantime may have gone further: never lower its result.
        if job.epoch == self._epoch:
            self._durable = max(self._durable, job.end, key=lambda end: end.index)
            self._index_end_position = max(self._index_end_position, job.covers_index)
        self._write_mark()

    def _write_mark(self) -> None:
        before = self._mark
        if self._mark_now() != before:
            with self._storing("writing the commit mark"):
                self._mark_file.write(self._mark)

    def _checkpoint_path(self) -> str:
        return f"{self._config.self_path}/{CHECKPOINT_NAME}"

    def _checkpoint_now(self) -> bytes:
        return encode_checkpoint(min(self._committed, self._durable.index), self._durable.index)

    def check_point(self, *, force: bool = False) -> None:
        """
        Write mark and checkpoint if they changed. Called every C{check_point_interval}.

        If a flush is due or under way, the next flush writes the checkpoint, off this thread; if the next
        call finds it still unwritten, that call writes it here.
        """
        self._write_mark()
        if self._checkpoint_now() == self._checkpoint and not self._index.dirty and not force:
            return
        idle = self._job is None and not self._data.dirty
        if not (force or self._checkpoint_due or idle):
            self._checkpoint_due = True
            return
        if self._job is None:
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        self._checkpoint_due = False
        self._sync_everything()
        content = self._checkpoint_now()
        with self._storing("writing the checkpoint"):
            self._disk.write_file(self._checkpoint_path(), content)
        self._checkpoint = content
