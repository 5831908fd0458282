# -*- test-case-name: tests.storage.test_store_flush -*-
"""
Keeps the commit mark of an open ledger: how much of it is on stable storage, and where it begins.

Rule: the mark records nothing that is not on stable storage. It is lowered durably before entries that it
records are cut.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import is_no_room
from dledger.base.disk.flush_job import FlushJob
from dledger.storage.files.commit_mark import CommitMark, MarkFile
from dledger.storage.start.open_ledger import End, OpenLedger
from dledger.storage.start.recovery import begin_crc_of


class MarkWriter:
    """
    Invariant: C{durable.index <= ledger.end_index}.

    @ivar durable: entries up to here are on stable storage.
    @ivar begin_crc: CRC-32 of the ledger's first header, as the mark records it.
    """

    def __init__(self, ledger: OpenLedger, file: MarkFile, mark: CommitMark) -> None:
        """@param mark: as recovery has written it."""
        self._ledger = ledger
        self._file = file
        self._mark = mark
        self.durable = ledger.end
        self._index_end_position = ledger.end_position
        self._begin_position = mark.begin_position
        self.begin_crc = mark.begin_crc

    def note_begin(self) -> None:
        """Record the first record: it changed, or was written just now."""
        data = self._ledger.data
        with self._ledger.guard.storing("reading the beginning failed"):
            self._begin_position = data.offsets[0] if data.offsets else -1
            self.begin_crc = begin_crc_of(data)

    def begin_will_be(self, position: int) -> None:
        """
        The files before stream offset C{position} will be deleted; recorded durably before the first goes.

        @raise OSError: it could not be written, and no file may go.
        """
        before = self._begin_position, self.begin_crc
        crc = begin_crc_of(self._ledger.data, position)
        self._begin_position = position
        self.begin_crc = crc
        try:
            self._file.write_durably(self._now())
        except OSError:
            self._begin_position, self.begin_crc = before
            raise

    def lower(self, end: End, *, repair_end_index: int | None = None) -> None:
        """
        Record no more than C{end} from now on; durable on return.

        @param repair_end_index: recorded in this one mark instead of the ledger's; None: the ledger's.
        @raise OSError: it could not be written, and nothing has changed.
        """
        if end.index >= self.durable.index and repair_end_index is None:
            return
        before = self.durable, self._index_end_position, self._begin_position, self.begin_crc, self._mark
        self.durable = end
        self._index_end_position = min(self._index_end_position, end.position)
        if end.index < self._ledger.begin_index:
            self._begin_position = -1
            self.begin_crc = 0
        mark = self._now()
        if repair_end_index is not None:
            mark = attrs.evolve(mark, repair_end_index=repair_end_index)
        try:
            self._file.write_durably(mark)
        except OSError:
            self.durable, self._index_end_position, self._begin_position, self.begin_crc, self._mark = before
            raise

    def all_synced(self) -> None:
        """
        Data and index are on stable storage up to the end: record that, durably, or later as L{write} does.

        @raise OSError: it could not be written, for another reason than room.
        """
        before = self._mark
        self.durable = self._ledger.end
        self._index_end_position = self._ledger.end_position
        try:
            self._file.write_durably(self._now())
        except OSError as error:
            if not is_no_room(error):
                raise
            self._mark = before

    def add_to(self, job: FlushJob) -> None:
        """Let C{job} bring the newest mark to stable storage. L{flushed} follows."""
        job.add_mark(self._file)

    def flushed(self, job: FlushJob, end: End, index_end_position: int) -> None:
        """
        C{job} has run without an error. Unless the ledger was cut since it was captured, data is on stable
        storage up to C{end}, and the index up to the record at C{index_end_position}: the mark says so. This
        does not lower what was synced in the meantime.

        @raise StoreError: the mark could not be written.
        """
        if job.mark_generation >= 0:
            self._file.synced(job.mark_generation)
        if job.epoch == self._ledger.epoch:
            if end.index > self.durable.index:
                self.durable = end
            self._index_end_position = max(self._index_end_position, index_end_position)
        self.write()

    def write(self) -> None:
        """
        Write the mark if it says something new; it does not wait for stable storage.

        Without room (a file system may need some to overwrite) a later call tries again: the mark in the file
        says less, and a start reads more of the log.
        """
        before = self._mark
        if self._now() == before:
            return
        guard = self._ledger.guard
        if guard.broken:
            guard.check()
        try:
            self._file.write(self._mark)
        except OSError as error:
            if not is_no_room(error):
                raise guard.fail(f"writing the commit mark failed: {error}") from error
            self._mark = before

    def close_clean(self) -> None:
        """Record, durably, that the store was closed in order."""
        with self._ledger.guard.storing("closing failed"):
            self._file.write_durably(self._now(clean=True))

    def note_damage(self, index: int) -> str:
        """
        Record durably that an entry is damaged, so that the next start cuts there and comes up repairing.

        @return: why that failed; empty if it did not.
        """
        try:
            self._file.write_durably(attrs.evolve(self._now(), damaged_index=index))
        except OSError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Release the handle."""
        self._file.close()

    def _now(self, *, clean: bool = False) -> CommitMark:
        ledger, durable = self._ledger, self.durable
        self._mark = CommitMark(
            committed_index=min(ledger.committed_index, durable.index),
            end_index=durable.index,
            end_term=durable.term,
            end_position=durable.position,
            begin_position=self._begin_position,
            begin_crc=self.begin_crc,
            index_end_position=self._index_end_position,
            repair_end_index=ledger.repair_end_index,
            data_file_size=ledger.data.file_size,
            index_file_size=ledger.index.file_size,
            clean=clean,
        )
        return self._mark
