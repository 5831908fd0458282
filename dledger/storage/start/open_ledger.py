# -*- test-case-name: tests.storage.test_file_store,tests.storage.test_store_flush -*-
"""
The files of a ledger in use, and where it begins and ends: the state that the parts of a store share.

L{dledger.storage.store.file_store.FileStore} changes it; L{dledger.storage.store.store_reads.StoreReads} only
reads it. L{MarkWriter} keeps the commit mark: how much of it is on stable storage, and where it begins.

Rule: the mark records nothing that is not on stable storage. It is lowered durably before entries that it
records are cut.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import Disk, is_no_room
from dledger.base.disk.flush_job import FlushJob
from dledger.base.disk.guard import DiskGuard
from dledger.base.disk.hints import Hints
from dledger.base.disk.segment import SegmentList
from dledger.base.disk.set_aside import SetAside
from dledger.storage.files.commit_mark import CommitMark, MarkFile
from dledger.storage.files.hole_list import HoleList
from dledger.storage.files.records import BodyStamps
from dledger.storage.start.directory import RecoveredLedger
from dledger.storage.start.recovery import begin_crc_of
from dledger.values.ledger.config import DLedgerConfig


@attrs.frozen(kw_only=True)
class End:
    """Where a ledger ends: last index, its term, stream offset after it."""

    index: int
    term: int
    position: int


@attrs.define(eq=False, kw_only=True)
class OpenLedger:
    """
    Invariants: C{begin_index <= end_index} unless the ledger is empty (both -1); data and index hold only
    zeroes after the end.

    @ivar hints: of its directory.
    @ivar guard: says whether the files can still be used.
    @ivar begin_index: first index present; -1 when empty.
    @ivar end_index, end_term: of the last entry; -1 when empty.
    @ivar end_position: stream offset in bytes after the last record.
    @ivar chain_crc: C{chainCrc} of the last record, 0 if there is none.
    @ivar is_end_proven: whether C{chain_crc} is known: a start found the record before the last one sound, or
        the last one was written or compared since.
    @ivar committed_index: last index known to be committed; -1 for none.
    @ivar repair_end_index: -1, or the end that a leader must bring the ledger past again.
    @ivar epoch: rises with every cut.
    @ivar holes: entries between C{begin_index} and C{end_index} whose records are damaged.
    @ivar stamps: writes positions into the bodies of clients.
    @ivar aside: keeps data files, and bytes of them, that leave the ledger without having expired.
    """

    config: DLedgerConfig
    disk: Disk
    hints: Hints
    data: SegmentList
    index: SegmentList
    guard: DiskGuard
    begin_index: int
    end_index: int
    end_term: int
    end_position: int
    chain_crc: int
    committed_index: int
    repair_end_index: int
    holes: HoleList
    is_end_proven: bool = True
    epoch: int = 0
    stamps: BodyStamps = attrs.Factory(BodyStamps)
    aside: SetAside = attrs.Factory(lambda self: SetAside(self.disk), takes_self=True)

    @classmethod
    def of(cls, config: DLedgerConfig, hints: Hints, recovered: RecoveredLedger) -> OpenLedger:
        """The ledger that recovery has found. From now on any damage is borne."""
        found = recovered.found
        for files in (recovered.data, recovered.index):
            files.unreadable.opened()
        return cls(
            config=config, disk=hints.disk, hints=hints, data=recovered.data, index=recovered.index,
            guard=DiskGuard("the store", path=config.self_path), begin_index=found.begin_index,
            end_index=found.end_index, end_term=found.end_term, end_position=found.end_position,
            chain_crc=found.chain_crc, committed_index=recovered.committed_index,
            repair_end_index=recovered.repair_end_index, holes=recovered.holes, aside=recovered.aside,
            is_end_proven=found.end_index < 1 or recovered.holes.end_index < found.end_index - 1,
        )

    @property
    def end(self) -> End:
        """Where it ends now."""
        return End(index=self.end_index, term=self.end_term, position=self.end_position)


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
