# -*- test-case-name: tests.storage.test_producer_list,tests.storage.test_producer_writes -*-
"""
The producers, the readers and the times of a ledger: folded while it is written, saved beside it, folded
again at a start.

Rule 1: the log alone shows. The file has the last run of each producer up to a committed entry, so that a
start need not read the log from its begin: it reads the entries after that one, and those that recovery has
looked at.
Rule 2: the file is there once the ledger has a producer entry. A file that is damaged is as good as none:
then the last entries that recovery looks at count, and what was before is forgotten.
Rule 3: while a part that must be read has a hole, nothing is known, and no producer may append.

Source: none, this is ours; docs/exactly-once.md, docs/readers.md, docs/times.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from construct import Int32sb, Int32ub, Struct

from dledger.base.disk.disk import Disk, is_no_room
from dledger.ledger.producers import OPEN_ENTRIES, PRODUCERS_MAX, NotedRun, SequenceTable
from dledger.storage.files.reader_table import ReaderTable
from dledger.storage.files.records import Layout
from dledger.storage.files.time_table import NotedTime, TimeTable
from dledger.storage.start.open_ledger import OpenLedger
from dledger.storage.store.store_flush import LedgerFlush
from dledger.storage.store.store_reads import StoreReads
from dledger.values.errors import DamagedEntryError, DLedgerError
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError, WireError
from protocols.wire.fastjson import as_int, as_list, read_object, write_object
from protocols.wire.layout import struct_of
from protocols.wire.ledger.entry import EntryHeader, iterate_records
from protocols.wire.ledger.own.configuration import CONFIGURATION_CHANNEL
from protocols.wire.ledger.own.machine_entries import is_machine_entry
from protocols.wire.ledger.own.producer_entries import decode_producer_entry
from protocols.wire.ledger.own.time_entries import decode_time_entry, is_time_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL, ProducerRun
from protocols.wire.ledger.readers import ReaderState, decode_reader_entry, is_reader_entry

PRODUCERS_NAME = "producers"

PRODUCERS_DECLARATION = Struct(
    "magic" / Int32sb,  # "DLPT"
    "version" / Int32sb,
    "crc" / Int32ub,  # CRC-32 of the text, JSON, which follows
)
_HEADER = struct_of(PRODUCERS_DECLARATION)
#: A file without open runs has the first version, and its rows do not report them.
_MAGIC, _VERSION, _OPEN_VERSION = 0x444C5054, 1, 2
_WORD, _MEMBERS_WORD = PRODUCER_CHANNEL.to_bytes(4, "big"), CONFIGURATION_CHANNEL.to_bytes(4, "big")
_CLOSED_COLUMNS = 5
_SCAN_BYTES = 1024 * 1024
#: The file is written again when the ledger has grown by this.
SAVE_EVERY_BYTES = 32 * 1024 * 1024

#: A producer entry, a reader entry, or a time entry (milliseconds): its index, its term, and what it says.
_Told = tuple[ProducerRun, ...] | ReaderState | int
_Announced = tuple[int, int, _Told]


def _decoded(body: bytes) -> _Told:
    """@raise WireError: it is malformed, or of a later version."""
    if is_machine_entry(body):
        return ()
    if is_time_entry(body):
        return decode_time_entry(body)
    return decode_reader_entry(body) if is_reader_entry(body) else decode_producer_entry(body)


def _noted(at: int, term: int, run: ProducerRun) -> NotedRun:
    entries, open_term = (run.entries, -1) if run.entries else (OPEN_ENTRIES, term)
    return NotedRun(run.producer, run.sequence, at + run.distance, entries, at, open_term)


class ProducerList:
    """
    Invariant: C{table}, C{readers} and C{times} are None, or the folds of the ledger up to its end.
    """

    def __init__(self, ledger: OpenLedger, reads: StoreReads, *, scanned_from: int) -> None:
        """@param scanned_from: recovery has looked at the entries from here on."""
        self._ledger = ledger
        self._reads = reads
        self._scanned_from = scanned_from
        self._path = f"{ledger.config.self_path}/{PRODUCERS_NAME}"
        self._has_file = False
        self._saved_position = 0
        self._saved_index = -1
        self._is_changed = False
        self._first_folded = 0  # by a start: it needs the entries from here on
        self._announced_index = -1  # of the last entry that the file should have, once it is committed
        self.table: SequenceTable | None = SequenceTable(PRODUCERS_MAX)
        self.readers: ReaderTable | None = ReaderTable()
        self.times: TimeTable | None = TimeTable()

    # -- a start ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """
        Fold what the ledger, which was just opened, has.

        @raise StoreError: it could not be read.
        """
        ledger = self._ledger
        saved_index, gap_end, saved, (readers, times) = self._read_file(ledger.disk)
        index = self._scanned_from
        if self._has_file:
            index = min(index, saved_index + 1)
            if ledger.begin_index > saved_index + 1:  # It has begun anew since.
                gap_end = ledger.begin_index
        self._first_folded = index = max(index, ledger.begin_index, 0)
        table = SequenceTable(PRODUCERS_MAX, gap_end)
        for run in saved:
            if run.told_at < index:  # The log names the others again.
                table.note(run)
        try:
            while index <= ledger.end_index:
                index = self._fold_from(table, readers, times, index)
        except DamagedEntryError:
            self.table = self.readers = self.times = None
            return
        self.table = table
        self.readers = readers
        self.times = times
        self._saved_index = saved_index
        is_any = bool(len(table) or readers.at(ledger.committed_index) or times.last)
        self._is_changed = is_any and not (self._has_file and saved_index == ledger.end_index)

    def hole_shrank(self) -> None:
        """An entry of a hole is back, or a hole was cut. @raise StoreError: the ledger could not be read."""
        if self.table is None and self._ledger.holes.end_index < self._first_folded:
            self.begin()

    def _fold_from(self, table: SequenceTable, readers: ReaderTable, times: TimeTable, index: int) -> int:
        """@return: index of the first entry that was not looked at."""
        batch = self._reads.read_unchecked(index, end_index=self._ledger.end_index, max_bytes=_SCAN_BYTES)
        end_index, open_term = index + batch.count - 1, table.open_term
        if _WORD in batch.records or (open_term >= 0 and _MEMBERS_WORD in batch.records):
            batch = self._reads.read_range(index, end_index=end_index, max_bytes=_SCAN_BYTES)
            end_index = index + batch.count - 1
            for header, body in iterate_records(batch):
                if 0 <= open_term != header.term:
                    table.superseded(header.index)
                elif header.channel:
                    table.close(header.index)
                if header.channel == PRODUCER_CHANNEL:
                    self._fold_entry(table, readers, times, header, body)
                open_term = table.open_term
            table.settle(self._ledger.committed_index)
        elif open_term >= 0 and self._reads.term_of(end_index) != open_term:
            table.superseded(self._end_of_term(index - 1, end_index, open_term) + 1)
        return end_index + 1

    def _fold_entry(
        self, table: SequenceTable, readers: ReaderTable, times: TimeTable, header: EntryHeader, body: bytes
    ) -> None:
        """An entry of the channel of producers, at a start."""
        try:
            runs = _decoded(body)
        except WireError:
            return  # (Written by a later version; its entries are not known to this one.)
        if isinstance(runs, ReaderState):
            readers.note(header.index, runs)
            return
        if isinstance(runs, int):
            times.note(NotedTime(header.index, header.term, runs), self._ledger.committed_index)
            return
        for run in runs:
            table.note(_noted(header.index, header.term, run))
        if not runs:
            return
        # Last one of the announced entries, of an open run the first one: another term may have come before.
        end_index = self._ledger.end_index
        last = header.index + runs[-1].distance + max(runs[-1].entries, 1) - 1
        if self._reads.term_of(min(last, end_index)) != header.term:
            last = self._end_of_term(header.index, min(last, end_index), header.term)
        elif not runs[-1].entries:
            return
        table.superseded(last + 1)

    def _end_of_term(self, low: int, high: int, term: int) -> int:
        """The last entry of a term: C{low} is one, or is before its first one; C{high} is after it."""
        while low < high:
            middle = (low + high + 1) // 2
            if self._reads.term_of(middle) == term:
                low = middle
            else:
                high = middle - 1
        return low

    def _read_file(self, disk: Disk) -> tuple[int, int, list[NotedRun], tuple[ReaderTable, TimeTable]]:
        """
        @return: committed index, end of the gap, runs, readers and times; -1, 0 and none without a sound
            file.
        """
        ledger, self._has_file = self._ledger, disk.exists(self._path)
        if not self._has_file:
            return -1, 0, [], (ReaderTable(), TimeTable())
        data = disk.read_file(self._path)
        try:
            magic, version, crc = _HEADER.unpack_from(data)
            text = data[_HEADER.size :]
            if magic != _MAGIC or version not in (_VERSION, _OPEN_VERSION) or crc32(text) != crc:
                raise ValueError("its version or its checksum does not fit")
            told = read_object(text)
            index, rows = as_int(told["index"]), map(as_list, as_list(told["producers"]))
            if index > max(ledger.end_index, ledger.begin_index - 1):
                raise ValueError(f"it is of index {index}, the ledger ends at {ledger.end_index}")
            held = map(as_list, as_list(told.get("readers", [])))
            readers = ReaderTable.of_rows(held, ledger.end_index)
            times = TimeTable.of_rows(map(as_list, as_list(told.get("times", []))), ledger.end_index)
            runs = [NotedRun(str(row[0]), *map(as_int, row[1:])) for row in rows]
            return index, as_int(told.get("gap_end", 0)), runs, (readers, times)
        except (ValueError, KeyError, TypeError, BodyError, struct.error):
            self._has_file = False
            return -1, 0, [], (ReaderTable(), TimeTable())

    # -- writes ----------------------------------------------------------------------------------

    def read(self, layout: Layout) -> list[_Announced]:
        """
        The producer, reader and time entries that are about to be written.

        @raise DLedgerError: INCONSISTENT_STATE: one cannot be read.
        """
        found = []
        for index, term, body in layout.producers:
            try:
                found.append((index, term, _decoded(body)))
            except WireError as error:
                raise DLedgerError(ResponseCode.INCONSISTENT_STATE, index=index, reason=str(error)) from None
        return found

    def written(
        self, layout: Layout, term_before: int, announced: Sequence[_Announced], listed: Sequence[int] = ()
    ) -> None:
        """
        Entries were written.

        @param term_before: of the entry before them.
        @param announced: see L{read}.
        @param listed: the indexes of configuration entries.
        """
        table = self.table
        if announced:
            self._is_changed = True
            self._announced_index = announced[-1][0]
        if table is None:
            return
        changes = {index for index, term in layout.terms if term != term_before}
        entries = {index: (term, told) for index, term, told in announced}
        for index in sorted({*changes, *entries, *listed}):
            if index in changes:
                table.superseded(index)
            else:
                table.close(index)
            term, told = entries.get(index, (-1, ()))
            if isinstance(told, ReaderState):
                assert self.readers is not None
                self.readers.note(index, told)
                continue
            if isinstance(told, int):
                assert self.times is not None
                self.times.note(NotedTime(index, term, told), self._ledger.committed_index)
                continue
            for run in told:
                table.note(_noted(index, term, run))
        table.settle(self._ledger.committed_index)
        if announced and not self._has_file:
            self.save()

    def cut(self, first_gone: int) -> None:
        """The ledger was cut."""
        if self.table is not None and self.readers is not None and self.times is not None:
            self.table.cut(first_gone)
            self.readers.cut(first_gone)
            self.times.cut(first_gone)

    def begin_anew(self, begin_index: int) -> None:
        """The ledger goes on at C{begin_index}, after entries that it never had."""
        committed_index, self._is_changed = self._ledger.committed_index, True
        if self.table is None or self.readers is None or self.times is None:
            self.table = SequenceTable(PRODUCERS_MAX)
            self.readers = ReaderTable()
            self.times = TimeTable()
        self.table.begin_anew(committed_index, begin_index)
        self.readers.cut(committed_index + 1)
        self.times.cut(committed_index + 1)

    # -- the file --------------------------------------------------------------------------------

    def _content(self) -> tuple[int, bytes]:
        """@return: the entry up to which it counts, the file."""
        assert self.table is not None and self.readers is not None and self.times is not None
        committed_index = self._ledger.committed_index
        index = self.table.whole_before(committed_index)
        runs = self.table.last_runs(index)
        version = _OPEN_VERSION if any(run.open_term >= 0 for run in runs) else _VERSION
        told = {"index": index, "producers": [
            list(run if version == _OPEN_VERSION else run[:_CLOSED_COLUMNS]) for run in runs
        ]}
        if self.table.gap_end:
            told["gap_end"] = self.table.gap_end
        for name, rows in (
            ("readers", self.readers.rows(committed_index)), ("times", self.times.rows(committed_index))
        ):
            if rows:
                told[name] = rows
        text = write_object(told)
        return index, _HEADER.pack(_MAGIC, version, crc32(text)) + text

    def with_file(self, job: LedgerFlush | None) -> LedgerFlush | None:
        """Let a flush write the file, if the ledger has grown enough. @return: the flush."""
        position = self._ledger.end_position
        has_grown = abs(position - self._saved_position) >= SAVE_EVERY_BYTES
        if job is not None and self._is_changed and self.table is not None and has_grown:
            index, content = self._content()
            self._is_changed = self._announced_index > index
            self._saved_position = position
            job.add_step(lambda: self._write(index, content))
        return job

    def save(self) -> None:
        """Write the file, if it would differ. @raise StoreError: writing failed."""
        if self._is_changed and self.table is not None:
            with self._ledger.guard.storing("writing the list of producers failed"):
                index, content = self._content()
                self._is_changed = self._announced_index > index
                self._write(index, content)
            self._saved_position = self._ledger.end_position

    def before_expiry(self, last_index: int) -> None:
        """
        The entries up to C{last_index} are about to be deleted: let the file have their producers, if there
        is room for it.

        @raise StoreError: writing failed.
        """
        if self._saved_index < last_index:
            self.save()

    def _write(self, index: int, content: bytes) -> None:
        """Without room, do nothing: it is written later. @raise OSError: writing failed."""
        try:
            self._ledger.disk.write_file(self._path, content)
            self._has_file = True
            self._saved_index = index
        except OSError as error:
            self._is_changed = True
            if not is_no_room(error):
                raise
