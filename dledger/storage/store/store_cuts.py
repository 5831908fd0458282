# -*- test-case-name: tests.storage.test_file_store -*-
"""
Cuts of a ledger: its end is taken back as a leader says, or it starts anew with a later entry.

Rule 1: everything is checked, and room is made, before something is cut; a refusal has changed nothing.
Rule 2: the mark is lowered durably before entries that it records are cut, and the cut is zeroed durably
before anything is written there.
Rule 3: committed entries are never cut, and a cut of more than L{CUT_BYTES_MAX} is set aside first.
"""

from __future__ import annotations

from typing import Protocol

import attrs

from dledger.base.disk.segment import SegmentList
from dledger.storage.files.records import Layout, check_batch, configurations_in
from dledger.storage.start.configurations import ConfigurationList
from dledger.storage.start.open_ledger import End, MarkWriter, OpenLedger
from dledger.storage.store.chunk_sums import ChunkSums
from dledger.storage.store.state_keeper import StateKeeper
from dledger.storage.store.store_flush import StoreFlush
from dledger.storage.store.store_reads import StoreReads
from dledger.storage.store.store_room import StoreRoom
from dledger.values.errors import DLedgerError, StoreError
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import INDEX_UNIT_SIZE, decode_header

#: A leader's TRUNCATE of more bytes than this is set aside first. Less is zeroed: a short tail that was never
#: committed is raft's normal cut after a change of leader.
CUT_BYTES_MAX = 1024 * 1024


class WriteRecords(Protocol):
    """Writes records after the end, see L{dledger.storage.store.file_store.FileStore}."""

    def __call__(self, first: int, term: int, layout: Layout, *, lists: bool = True) -> None:
        """@param lists: list configuration entries before."""


@attrs.frozen(kw_only=True)
class StoreParts:
    """The parts of a store: those that a cut concerns."""

    ledger: OpenLedger
    data: SegmentList
    index: SegmentList
    marks: MarkWriter
    reads: StoreReads
    sums: ChunkSums
    members: ConfigurationList
    state: StateKeeper
    room: StoreRoom
    flush: StoreFlush


class StoreCuts:
    """Cuts the ledger of one store, by the rules of this module."""

    def __init__(self, parts: StoreParts, write: WriteRecords) -> None:
        self._ledger = parts.ledger
        self._data = parts.data
        self._index = parts.index
        self._storing = parts.ledger.guard.storing
        self._marks = parts.marks
        self._reads = parts.reads
        self._sums = parts.sums
        self._members = parts.members
        self._state = parts.state
        self._room = parts.room
        self._flush = parts.flush
        self._write = write

    def truncate_to(
        self, entry: EntryBatch, *, anew: bool = False, reported: tuple[Membership, ...] = ()
    ) -> None:
        """See L{dledger.storage.store.file_store.FileStore.truncate_to}."""
        index = entry.first_index
        begin, end = self._ledger.begin_index, self._ledger.end_index
        if anew:
            self._start_anew(entry, reported)
        elif begin >= 0 and begin <= index <= end and self._reads.holds(entry):
            self._refuse_below_commit(index + 1)
            if index < end:
                self._cut(index, None)
            elif self._marks.durable.index < end:
                self._flush.sync()
        elif begin >= 0 and begin <= index <= end + 1:
            self._refuse_below_commit(index)
            self._cut(index - 1, self._fitting(entry))
        elif begin < 0 and index == 0:
            self._cut(-1, self._fitting(entry))
        else:
            self._start_anew(entry, reported)

    def _refuse_below_commit(self, first_gone: int) -> None:
        # Paired with the assert in the core: a majority holds the committed entries, so a leader that
        # cuts one of them is not our leader.
        committed = self._ledger.committed_index
        if first_gone <= committed:
            raise DLedgerError(ResponseCode.INCONSISTENT_STATE, reason="committed entries would be cut",
                               first_index_cut=first_gone, committed_index=committed)

    def _before(self, index: int) -> tuple[int, int, int | None]:
        """Term, end position and C{chainCrc} of the entry before C{index}; there may be none."""
        ledger = self._ledger
        if index == ledger.end_index + 1:
            return ledger.end_term, ledger.end_position, ledger.chain_crc
        if index == ledger.begin_index:
            return -1, self._reads.position_of(index), (0 if index == 0 else None)
        last = self._reads.read_range(index - 1, end_index=index - 1, max_bytes=0)
        header = decode_header(last.records)
        return header.term, header.pos + header.size, header.chain_crc

    def _fitting(self, entry: EntryBatch) -> Layout:
        term, end_position, chain = self._before(entry.first_index)
        return check_batch(
            attrs.evolve(entry, count=1), first_index=entry.first_index, last_term=term,
            end_position=end_position, previous_chain_crc=chain, file_size=self._data.file_size,
        )

    def _cut(self, keep: int, layout: Layout | None) -> None:
        """Make C{keep} the last entry, and write the one of C{layout} after it; durable."""
        ledger = self._ledger
        if keep == ledger.end_index and layout is not None and ledger.holes.end_index <= keep:
            last_term = layout.terms[-1][1] if layout.terms else ledger.end_term
            self._write(keep + 1, last_term, layout)
            return self._flush.sync()
        term, position, chain = self._before(keep + 1)
        written_end, units_end = ledger.end_position, (ledger.end_index + 1) * INDEX_UNIT_SIZE
        with self._storing("truncating failed"):
            if layout is not None:
                self._room.make(keep + 1, layout)
            kept = position if layout is None else layout.positions[0]
            tails = (
                (self._data, written_end, kept, position),
                (self._index, units_end, (keep + 1) * INDEX_UNIT_SIZE, (keep + 1) * INDEX_UNIT_SIZE),
            )
            next_end = 0 if layout is None else layout.end_position
            for segments, segments_end, first_kept, first_zero in tails:
                for start in sorted({first_kept, first_zero}):
                    file_end = segments.base(start) + segments.file_size
                    self._room.require_in_place(segments, start, min(file_end, max(segments_end, next_end)))
                next_end = 0 if layout is None else (keep + 2) * INDEX_UNIT_SIZE
            is_large = written_end - position > CUT_BYTES_MAX
            if is_large:
                self._room.or_refused(
                    lambda: ledger.aside.bytes_of(self._data, position, ledger.end_term),
                    "set aside what a leader cuts", self._data.file_size,
                )
            owed = None
            if ledger.holes.end_index > keep:
                # It may have acknowledged the entries that it lacks, and is about to forget that it did.
                owed = max(ledger.repair_end_index, ledger.end_index)
            end = End(index=keep, term=term, position=position)
            self._room.or_refused(lambda: self._flush.lower(end, repair_end_index=owed), "record a cut")
            ledger.repair_end_index = ledger.repair_end_index if owed is None else owed
            if is_large:
                ledger.aside.files_behind(self._data, kept, ledger.end_term, written_end=written_end)
            for segments, segments_end, first_kept, first_zero in tails:
                is_same = segments.base(segments_end) == segments.base(first_kept)
                segments.cut(first_kept, segments_end if is_same else None)
                if segments.base(first_zero) != segments.base(first_kept):
                    segments.zero(first_zero, segments.base(first_zero) + segments.file_size)
            self._flush.sync_files()
        ledger.begin_index = ledger.begin_index if 0 <= ledger.begin_index <= keep else -1
        ledger.end_index = keep
        ledger.end_term = term
        ledger.end_position = position
        ledger.chain_crc = chain or 0
        ledger.is_end_proven = True
        ledger.holes.cut(keep + 1)
        self._reads.cut(keep + 1)
        self._sums.cut(keep + 1)
        self._members.cut(keep + 1)
        self._state.cut(keep + 1)
        if layout is not None:
            self._write_after_cut(keep + 1, layout.terms[-1][1] if layout.terms else term, layout)
        assert ledger.begin_index >= 0
        self._flush.sync()

    def _start_anew(self, entry: EntryBatch, reported: tuple[Membership, ...]) -> None:
        try:
            header = decode_header(entry.records)
        except WireError as error:
            raise DLedgerError(ResponseCode.INCONSISTENT_STATE, reason=str(error)) from None
        index, ledger = entry.first_index, self._ledger
        facts = {"index": index, "pos": header.pos, "begin": ledger.begin_index, "end": ledger.end_index}
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
        with self._storing("starting anew failed"):
            self._room.require(self._data.step + self._index.step)
            self._state.before_expiry(ledger.committed_index)
            # Until the new beginning is durable, the mark must record the end of the acknowledged entries.
            owed = max(self._marks.durable.index, ledger.repair_end_index)
            end = End(index=-1, term=-1, position=header.pos)
            self._room.or_refused(lambda: self._flush.lower(end, repair_end_index=owed), "record a cut")
            ledger.aside.files_behind(self._data, -1, ledger.end_term, written_end=ledger.end_position)
            while self._index.offsets:
                self._index.drop_last()
        ledger.begin_index = -1
        ledger.end_index = index - 1
        ledger.end_term = -1
        ledger.end_position = header.pos
        ledger.chain_crc = 0
        ledger.holes.cut(-1)
        self._reads.begin_anew(index)
        self._sums.begin_anew()
        self._members.begin_anew(index, ledger.committed_index, reported)
        self._state.begin_anew(index)
        ledger.committed_index = max(ledger.committed_index, index - 1)
        self._write_after_cut(index, header.term, layout)
        self._flush.sync()

    def _write_after_cut(self, first: int, term: int, layout: Layout) -> None:
        """As L{_write}, when there is no way back. @raise StoreError: it failed, also for want of room."""
        self._members.note_after_cut(configurations_in(layout.marked))
        try:
            self._write(first, term, layout, lists=False)
        except StoreError:
            raise
        except DLedgerError as error:  # the ledger is smaller than before, and there is still no room
            raise self._ledger.guard.fail(str(error)) from error
