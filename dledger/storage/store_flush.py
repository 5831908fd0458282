# -*- test-case-name: tests.storage.test_store_flush -*-
"""
The durable half of the file store: flushes, the commit mark, the checkpoint.

A flush is captured by L{StoreFlush.prepare_flush}, run anywhere, and counts from
L{StoreFlush.finish_flush} on. A failed one is never tried again.

The mark is written after each flush and brought to stable storage by every
L{StoreFlush.mark_sync_every}-th flush or checkpoint after it, never in front of the acknowledgement
of the entries that it records. What remains: if power fails I{and} a record behind the newest
durable mark is damaged on the medium although it was fsynced, it is taken for a torn tail. A killed
process leaves no such window.

The index is derived from the data, so a flush does not wait for it; a checkpoint does, and the mark
says up to where.

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
    What one flush has to bring to stable storage.

    @ivar end_index: every entry up to here is on stable storage when L{run} has ended. Lowered by a
        truncation that happens in the meantime, so read it after L{StoreFlush.finish_flush}.
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
        Wait for stable storage. Any thread.

        @raise OSError: it is not known what is there now; the member must stop.
        """
        for step in self._steps:
            step()


class StoreFlush(StoreReads):
    """
    Invariant: C{_job} is the flush that is under way, or None; there is never a second one.

    @cvar mark_sync_every: a sync-flushing member brings the mark to stable storage with every so many
        flushes (and with every checkpoint); others with every flush.
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
        """Put the first record on record: it changed, or was written just now."""
        with self._storing("reading the beginning"):
            self._begin_on_record = (
                (self._data.offsets[0], begin_crc_of(self._data)) if self._data.offsets else (-1, 0)
            )

    def _sync_files(self) -> None:
        self._data.sync()
        self._index.sync()

    def _sync_everything(self) -> None:
        """All that was written, and the mark that says so; on this thread."""
        with self._storing("syncing"):
            self._sync_files()
            self._durable = End(index=self._end, term=self._end_term, position=self._end_position)
            self._index_end_position = self._end_position
            self._mark_file.write_durably(self._mark_now())

    def record_commit(self, committed_index: int) -> None:
        """Remember how far readers may see; written at the next flush or checkpoint."""
        assert committed_index <= self._end, (committed_index, self._end)
        self._committed = max(self._committed, committed_index)

    def end_repair(self) -> None:
        """Clear the repairing mark, durably, with all that was brought back."""
        self._repair_end = -1
        self._sync_everything()

    def prepare_flush(self) -> FlushJob | None:
        """
        Capture what must reach stable storage; None when all of it has. On the reactor's thread.

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
        """The job has run without an error. On the reactor's thread."""
        assert job is self._job, "not the flush that is under way"
        self._job = None
        self._mark_file.synced(job.mark_generation)
        self._data.release()
        self._index.release()
        if job.checkpoint:
            self._checkpoint = job.checkpoint
        # What was synced meanwhile on this thread is not taken back.
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
        Write mark and checkpoint if there is news. Called every C{check_point_interval}.

        Where a flush is due or under way the next one writes the checkpoint, off this thread; a call
        that finds it still unwritten writes it here.
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
