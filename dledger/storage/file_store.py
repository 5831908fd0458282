# -*- test-case-name: tests.storage.test_file_store -*-
"""
The ledger in Java's files, written so that acknowledged entries survive a crash.

Rule 1: a write is laid out and checked before a file is touched; a refusal has changed nothing.
Rule 2: any failure after that is a L{StoreError}; the store then refuses everything but L{abandon}.
Rule 3: the mark is lowered durably before entries that it records are cut, and the cut is zeroed
durably before anything is written in its place.

Reads are in L{dledger.storage.store_reads}, flushes in L{dledger.storage.store_flush}. The store knows
nothing of terms, votes and roles beyond "a term never falls from one entry to the next".

Source: DLedgerMmapFileStore.java (0.3.1.2); differs: docs/divergence.md W5, W13, W14, W16, W18, W21.
"""

from __future__ import annotations

import errno

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.expiry import Expiry
from dledger.base.disk.segment import SegmentList
from dledger.base.errors import DLedgerError, StoreError
from dledger.config import DLedgerConfig
from dledger.storage import directory as door
from dledger.storage.records import Layout, check_batch, pack_bodies
from dledger.storage.store_flush import FlushJob, StoreFlush
from dledger.storage.store_reads import End
from protocols.wire.errors import WireError
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE, decode_header
from protocols.wire.ledger.messages import EntryBatch

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class FileStore(StoreFlush):
    """The ledger on disk; the invariants are those of L{dledger.storage.store_reads.StoreReads}."""

    @classmethod
    def open(cls, config: DLedgerConfig, disk: Disk) -> FileStore:
        """
        Lock, check and recover the directory C{config.self_path}; it is made if absent.

        @raise DirectoryError: the directory must not be opened as it is.
        @raise StoreError: reading or repairing the directory failed.
        """
        directory = door.look(config, disk)
        lock = door.lock(config, disk)
        try:
            # Look again: before we held the lock, another process may have changed the directory.
            directory = door.look(config, disk)
            recovered, mark_file = door.recover(config, disk, directory)
            return cls(config, disk, lock, mark_file, recovered)
        except OSError as error:
            lock.close()
            raise StoreError(f"{config.self_path} cannot be opened: {error}") from error
        except BaseException:
            lock.close()
            raise

    # -- append ----------------------------------------------------------------------------------

    def append_bodies(self, bodies: tuple[bytes, ...], term: int) -> tuple[int, ...]:
        """
        Write bodies as entries behind the end.

        @param term: term of every entry; not below that of the last entry.
        @return: stream offset of each record.
        @raise DLedgerError: DISK_FULL, and nothing has changed.
        @raise StoreError: a write failed.
        """
        assert bodies and term >= self._end_term, (len(bodies), term, self._end_term)
        self._check_room()
        first = self._end + 1
        layout = pack_bodies(
            bodies, first_index=first, term=term, end_position=self._end_position,
            previous_chain_crc=self._chain, file_size=self._data.file_size,
        )
        self._write(first, term, layout)
        whole = EntryBatch(first_index=first, count=len(bodies), term=term, records=layout.records)
        self._batches.add_written(whole, [ENTRY_HEADER_SIZE + len(body) for body in bodies])
        return tuple(layout.positions)

    def append_entries(self, entries: EntryBatch) -> None:
        """
        Check a leader's records and write them unchanged behind the end.

        @raise DLedgerError: INCONSISTENT_STATE (index, term, pos or a checksum does not fit) or
            DISK_FULL, and nothing has changed.
        @raise StoreError: a write failed.
        """
        self._check_room()
        first = self._end + 1
        if entries.first_index != first:
            raise DLedgerError(ResponseCode.INCONSISTENT_STATE, reason="entries do not follow the end",
                               first_index=entries.first_index, ledger_end_index=self._end)
        layout = check_batch(
            entries, first_index=first, last_term=self._end_term, end_position=self._end_position,
            previous_chain_crc=self._chain, file_size=self._data.file_size,
        )
        last_term = layout.terms[-1][1] if layout.terms else self._end_term
        one_term = not layout.terms or (len(layout.terms) == 1 and layout.terms[0][0] == first)
        self._write(first, last_term, layout)
        if one_term:
            self._batches.add(entries)
        else:
            self._batches.clear()

    def _check_room(self) -> None:
        if self._expiry.disk_full:
            raise DLedgerError(ResponseCode.DISK_FULL, reason=self._expiry.why_full)

    def _write(self, first: int, term: int, layout: Layout) -> None:
        with self._storing("writing"):
            self._make_room(first, layout)
            for position, blob in layout.runs:
                self._data.pwrite(blob, position)
            self._write_units(first, layout.units)
        if self._begin < 0:
            self._begin = first
            self._recent.reset(first)
            self._note_begin()
        self._end = first + len(layout.positions) - 1
        self._end_term = term
        self._end_position = layout.end_position
        self._chain = layout.chain_crc
        self._recent.extend(layout.positions, layout.terms)

    def _write_units(self, first: int, units: bytes) -> None:
        position = first * INDEX_UNIT_SIZE
        size = self._index.file_size
        while units:
            room = size - position % size
            self._index.pwrite(units[:room], position)
            units = units[room:]
            position += room

    def _make_room(self, first: int, layout: Layout) -> None:
        """Make all files that a write needs, or none of them."""
        last_unit = (first + len(layout.positions) - 1) * INDEX_UNIT_SIZE
        if self._data.reaches(layout.end_position - 1) and self._index.reaches(last_unit):
            return
        wanted = []
        for position, _ in layout.runs:
            if not self._data.has(self._data.base(position)):
                wanted.append((self._data, self._data.base(position)))
        base = self._index.base(first * INDEX_UNIT_SIZE)
        while base <= last_unit:
            if not self._index.has(base):
                wanted.append((self._index, base))
            base += self._index.file_size
        made: list[SegmentList] = []
        for segments, offset in wanted:
            try:
                segments.create(offset)
            except OSError as error:
                for back in reversed(made):
                    back.drop_last()
                if error.errno in _NO_ROOM:
                    raise DLedgerError(
                        ResponseCode.DISK_FULL, reason=f"no room for another file in {segments.directory}",
                        file_size=segments.file_size,
                    ) from error
                raise
            made.append(segments)

    # -- truncate --------------------------------------------------------------------------------

    def truncate_to(self, entry: EntryBatch, *, anew: bool = False) -> None:
        """
        Make this single entry the last one, durably.

        If the ledger holds the entry, cut behind it. If its index lies in the ledger or just behind it,
        but the ledger holds another entry or none there, cut at its index and write it. Otherwise restart
        the ledger with it. A restart needs an entry that is the first record of a file (else a reader
        could not find the beginning again) and keeps the commit: the ledger is empty, or all its
        entries lie below a leader's beginning.

        @param anew: restart even if the entry would fit behind the end.
        @raise DLedgerError: INCONSISTENT_STATE or DISK_FULL, and nothing has changed.
        @raise StoreError: a write or fsync failed.
        """
        index = entry.first_index
        if anew:
            self._start_anew(entry)
        elif self._begin >= 0 and self._begin <= index <= self._end and self.holds(entry):
            self._refuse_below_commit(index + 1)
            if index < self._end:
                self._cut(index, None)
            elif self._durable.index < self._end:
                self._sync_everything()
        elif self._begin >= 0 and self._begin <= index <= self._end + 1:
            self._refuse_below_commit(index)
            self._cut(index - 1, self._fitting(entry))
        elif self._begin < 0 and index == 0:
            self._cut(-1, self._fitting(entry))
        else:
            self._start_anew(entry)

    def _refuse_below_commit(self, first_gone: int) -> None:
        # Paired with the assert in the core: a majority holds the committed entries, so a leader that
        # wants to cut them is not our leader.
        if first_gone <= self._committed:
            raise DLedgerError(
                ResponseCode.INCONSISTENT_STATE, reason="committed entries would be cut",
                first_index_cut=first_gone, committed_index=self._committed,
            )

    def _before(self, index: int) -> tuple[int, int, int | None]:
        """Term, end position and C{chainCrc} of the entry before C{index}, which may not exist."""
        if index == self._end + 1:
            return self._end_term, self._end_position, self._chain
        if index == self._begin:
            return -1, self.position_of(index), (0 if index == 0 else None)
        last = self._read(index - 1, index - 1, 0, one_term=True)
        header = decode_header(last.records)
        return header.term, header.pos + header.size, header.chain_crc

    def _fitting(self, entry: EntryBatch) -> Layout:
        term, end_position, chain = self._before(entry.first_index)
        return check_batch(
            attrs.evolve(entry, count=1), first_index=entry.first_index, last_term=term,
            end_position=end_position, previous_chain_crc=chain, file_size=self._data.file_size,
        )

    def _cut(self, keep: int, layout: Layout | None) -> None:
        """Make C{keep} the last entry and write the one of C{layout} behind it, durably."""
        term, position, chain = self._before(keep + 1)
        written_end, units_end = self._end_position, (self._end + 1) * INDEX_UNIT_SIZE
        with self._storing("truncating"):
            if layout is not None:
                self._make_room(keep + 1, layout)
            self._lower(End(index=keep, term=term, position=position))
            kept = position if layout is None else layout.positions[0]
            for segments, end, first_kept, first_zero in (
                (self._data, written_end, kept, position),
                (self._index, units_end, (keep + 1) * INDEX_UNIT_SIZE, (keep + 1) * INDEX_UNIT_SIZE),
            ):
                segments.cut(first_kept, end if segments.base(end) == segments.base(first_kept) else None)
                if segments.base(first_zero) != segments.base(first_kept):
                    segments.zero(first_zero, segments.base(first_zero) + segments.file_size)
            self._sync_files()
        begin = self._begin if 0 <= self._begin <= keep else -1
        self._begin, self._end, self._end_term = begin, keep, term
        self._end_position, self._chain = position, chain or 0
        self._batches.clear()
        self._recent.cut(keep + 1)
        if layout is not None:
            self._write(keep + 1, layout.terms[-1][1] if layout.terms else term, layout)
        assert self._begin >= 0
        self._sync_everything()

    def _lower(self, end: End, repair_end_index: int | None = None) -> None:
        """Lower the mark durably: it records no entry behind C{end}."""
        self._epoch += 1
        if self._job is not None:
            self._job.end_index = min(self._job.end_index, end.index)
        if end.index < self._durable.index or repair_end_index is not None:
            self._durable = end
            self._index_end_position = min(self._index_end_position, end.position)
            if end.index < self._begin:
                self._begin_on_record = -1, 0
            mark = self._mark_now()
            if repair_end_index is not None:
                mark = attrs.evolve(mark, repair_end_index=repair_end_index)
            self._mark_file.write_durably(mark)

    def _start_anew(self, entry: EntryBatch) -> None:
        try:
            header = decode_header(entry.records)
        except WireError as error:
            raise DLedgerError(ResponseCode.INCONSISTENT_STATE, reason=str(error)) from None
        index = entry.first_index
        facts = {"index": index, "pos": header.pos, "begin": self._begin, "end": self._end}
        if header.pos < 0 or header.pos % self._data.file_size:
            raise DLedgerError(
                ResponseCode.INCONSISTENT_STATE,
                reason="the ledger does not reach this entry, and only the first record of a file can "
                       "begin a new ledger", **facts,
            )
        self._refuse_below_commit(index)
        layout = check_batch(
            attrs.evolve(entry, count=1), first_index=index, last_term=-1, end_position=header.pos,
            previous_chain_crc=0 if index == 0 else None, file_size=self._data.file_size,
        )
        with self._storing("restarting the ledger"):
            # Until the new beginning is written, the mark must record the acknowledged entries as owed.
            owed = max(self._durable.index, self._repair_end)
            self._lower(End(index=-1, term=-1, position=header.pos), repair_end_index=owed)
            for segments in (self._data, self._index):
                while segments.offsets:
                    segments.drop_last()
        self._begin, self._end, self._end_term = -1, index - 1, -1
        self._end_position, self._chain = header.pos, 0
        self._batches.clear()
        self._recent.reset(index)
        self._committed = max(self._committed, index - 1) if self._committed >= 0 else index - 1
        try:
            self._write(index, header.term, layout)
        except StoreError:
            raise
        except DLedgerError as error:  # files were deleted, and there is still no room
            self._broken = str(error)
            raise StoreError(self._broken) from error
        self._sync_everything()

    # -- room ------------------------------------------------------------------------------------

    def house_keeping(self, now_s: float, local_hour: int, *, keep_from_index: int) -> list[str]:
        """
        Measure the room on the disk and delete expired files.

        @param now_s: seconds since 1970.
        @param local_hour: 0 to 23.
        @param keep_from_index: first entry that a follower or a reader still needs. Force cleaning
            ignores it; entries that are not committed always stay.
        @return: paths of the deleted files.
        """
        deleted: list[str] = []
        with self._storing("house keeping"):
            self._expiry.look(self._disk, self._data, self._config.self_path)
            while len(deleted) < Expiry.FILES_MAX and len(self._data.offsets) > 1:
                following = self._scanner.first_record(self._data.offsets[1])
                if following is None or following[0] > self._end:
                    break
                last = following[0] - 1
                limit = self._committed if self._durable.index >= self._committed else self._durable.index
                # The last committed entry stays, too: a leader and a member with a diverged tail have at
                # least that entry in common.
                if last >= limit or not self._expiry.wants(
                    self._data, now_s, local_hour, free_to_go=last < keep_from_index
                ):
                    break
                deleted.append(self._data.path(self._data.offsets[0]))
                self._data.drop_first()
                self._begin = following[0]
            if deleted:
                base = self._index.base(self._begin * INDEX_UNIT_SIZE)
                while self._index.offsets and self._index.offsets[0] < base:
                    self._index.drop_first()
                self._expiry.look(self._disk, self._data, self._config.self_path)
        if deleted:
            self._note_begin()
            self._write_mark()
        return deleted

    # -- end -------------------------------------------------------------------------------------

    def clean_close(self) -> None:
        """Bring everything to stable storage, mark the directory clean, and release it."""
        assert self._job is None, "a flush is under way"
        if self._broken:
            self.abandon()
            return
        self._write_checkpoint()
        with self._storing("closing"):
            self._mark_file.write_durably(self._mark_now(clean=True))
        self.abandon()

    def abandon(self) -> None:
        """Release all handles without writing. A repeated call is harmless."""
        self._broken = self._broken or "it is closed"
        self._data.close()
        self._index.close()
        if self._job is None:
            self._mark_file.close()
        self._lock.close()


__all__ = ["FileStore", "FlushJob"]
