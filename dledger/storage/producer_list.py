# -*- test-case-name: tests.storage.test_producer_list,tests.storage.test_reader_table -*-
"""
The producers and the readers of a ledger: folded while it is written, saved beside it, folded again at a
start.

Rule 1: the log alone tells. The file has the last run of each producer up to a committed entry, so that a
start need not read the log from its begin: it reads the entries behind that one, and those that recovery has
looked at.
Rule 2: the file is there once the ledger has a producer entry. A file that is damaged is as good as none:
then the last entries that recovery looks at count, and what was before is forgotten.
Rule 3: while a part that must be read has a hole, nothing is known, and no producer may append.

Source: none, this is ours; docs/exactly-once.md, docs/readers.md.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from zlib import crc32

from construct import Int32sb, Int32ub, Struct

from dledger.base.disk.disk import Disk, is_no_room
from dledger.base.errors import DamagedEntryError, DLedgerError
from dledger.base.producers import NotedRun, SequenceTable
from dledger.storage.open_ledger import OpenLedger
from dledger.storage.reader_table import ReaderTable
from dledger.storage.records import Layout
from dledger.storage.store_flush import LedgerFlush
from dledger.storage.store_reads import StoreReads
from protocols.wire.errors import BodyError, WireError
from protocols.wire.fastjson import as_int, as_list, read_object, write_object
from protocols.wire.layout import struct_of
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.ledger.entry import iterate_records
from protocols.wire.ledger.machine_entries import is_machine_entry
from protocols.wire.ledger.producer_entries import decode_producer_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL, ProducerRun
from protocols.wire.ledger.readers import ReaderState, decode_reader_entry, is_reader_entry

PRODUCERS_NAME = "producers"

PRODUCERS_DECLARATION = Struct(
    "magic" / Int32sb,  # "DLPT"
    "version" / Int32sb,
    "crc" / Int32ub,  # CRC-32 of the text, JSON, which follows
)
_HEADER = struct_of(PRODUCERS_DECLARATION)
_MAGIC, _VERSION = 0x444C5054, 1
_WORD = PRODUCER_CHANNEL.to_bytes(4, "big")
_SCAN_BYTES = 1024 * 1024
#: The file is written again when the ledger has grown by this.
SAVE_EVERY_BYTES = 32 * 1024 * 1024

#: A producer entry, or a reader entry: its index, and what it says.
_Told = tuple[ProducerRun, ...] | ReaderState
_Announced = tuple[int, _Told]


def _decoded(body: bytes) -> _Told:
    """@raise WireError: it is malformed, or of a later version."""
    if is_machine_entry(body):
        return ()
    return decode_reader_entry(body) if is_reader_entry(body) else decode_producer_entry(body)


class ProducerList:
    """
    Invariant: C{table} and C{readers} are None, or the folds of the ledger up to its end.
    """

    def __init__(self, ledger: OpenLedger, reads: StoreReads, *, scanned_from: int) -> None:
        """@param scanned_from: recovery has looked at the entries from here on."""
        self._ledger = ledger
        self._reads = reads
        self._scanned_from = scanned_from
        self._path = f"{ledger.config.self_path}/{PRODUCERS_NAME}"
        self._has_file = False
        self._saved_position = 0
        self._is_changed = False
        self.table: SequenceTable | None = SequenceTable()
        self.readers: ReaderTable | None = ReaderTable()

    # -- a start ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """
        Fold what the ledger, which was just opened, has.

        @raise StoreError: it could not be read.
        """
        ledger = self._ledger
        saved_index, older, readers = self._read_file(ledger.disk)
        table, index = SequenceTable(), self._scanned_from
        if self._has_file:
            index = min(index, saved_index + 1)
        index = max(index, ledger.begin_index, 0)
        try:
            while index <= ledger.end_index:
                index = self._fold_from(table, readers, index)
        except DamagedEntryError:
            self.table = self.readers = None
            return
        table.add_older(older)
        self.table, self.readers = table, readers
        is_any = bool(len(table) or readers.at(ledger.committed_index))
        self._is_changed = self._is_changed or (is_any and not self._has_file)

    def hole_shrank(self) -> None:
        """An entry of a hole is back, or a hole was cut. @raise StoreError: the ledger could not be read."""
        if self.table is None and not self._ledger.holes.holes:
            self.begin()

    def _fold_from(self, table: SequenceTable, readers: ReaderTable, index: int) -> int:
        """@return: index of the first entry that was not looked at."""
        batch = self._reads.read_unchecked(index, end_index=self._ledger.end_index, max_bytes=_SCAN_BYTES)
        if _WORD in batch.records:
            end_index = index + batch.count - 1
            batch = self._reads.read_range(index, end_index=end_index, max_bytes=_SCAN_BYTES)
            for header, body in iterate_records(batch):
                if header.channel == PRODUCER_CHANNEL:
                    try:
                        runs = _decoded(body)
                    except WireError:
                        continue  # (Written by a later version; its entries are not known to this one.)
                    if isinstance(runs, ReaderState):
                        readers.note(header.index, runs)
                        continue
                    end_index = self._end_of_term(header.index, header.term, runs)
                    self._fold(table, header.index, end_index, runs)
        return index + batch.count

    def _end_of_term(self, index: int, term: int, runs: Sequence[ProducerRun]) -> int:
        """Last one of the announced entries that the ledger has, or may still get, with this term."""
        told = max((run.distance + run.entries - 1 for run in runs), default=0)
        low, high = index, min(index + told, self._ledger.end_index)
        if self._reads.term_of(high) == term:
            return index + told
        while low < high:
            middle = (low + high + 1) // 2
            if self._reads.term_of(middle) == term:
                low = middle
            else:
                high = middle - 1
        return low

    @staticmethod
    def _fold(table: SequenceTable, at: int, end_index: int, runs: Sequence[ProducerRun]) -> None:
        for producer, sequence, distance, entries in runs:
            entries = min(entries, end_index + 1 - at - distance)
            if entries > 0:
                table.note(NotedRun(producer, sequence, at + distance, entries, at))

    def _read_file(self, disk: Disk) -> tuple[int, list[NotedRun], ReaderTable]:
        """@return: its committed index, its runs, its readers; -1 and none without a sound file."""
        ledger, self._has_file = self._ledger, disk.exists(self._path)
        if not self._has_file:
            return -1, [], ReaderTable()
        data = disk.read_file(self._path)
        try:
            magic, version, crc = _HEADER.unpack_from(data)
            text = data[_HEADER.size :]
            if (magic, version) != (_MAGIC, _VERSION) or crc32(text) != crc:
                raise ValueError("its version or its checksum does not fit")
            told = read_object(text)
            index, rows = as_int(told["index"]), map(as_list, as_list(told["producers"]))
            if index > max(ledger.end_index, ledger.begin_index - 1):
                raise ValueError(f"it is of index {index}, the ledger ends at {ledger.end_index}")
            held = map(as_list, as_list(told.get("readers", [])))
            readers = ReaderTable.of_rows(held, ledger.end_index)
            return index, [NotedRun(str(row[0]), *map(as_int, row[1:])) for row in rows], readers
        except (ValueError, KeyError, TypeError, BodyError, struct.error):
            self._has_file = False
            return -1, [], ReaderTable()

    # -- writes ----------------------------------------------------------------------------------

    def read(self, layout: Layout) -> list[_Announced]:
        """
        The producer and reader entries that are about to be written.

        @raise DLedgerError: INCONSISTENT_STATE: one cannot be read.
        """
        found = []
        for index, _, body in layout.producers:
            try:
                found.append((index, _decoded(body)))
            except WireError as error:
                raise DLedgerError(ResponseCode.INCONSISTENT_STATE, index=index, reason=str(error)) from None
        return found

    def written(self, layout: Layout, term_before: int, announced: Sequence[_Announced]) -> None:
        """
        Entries were written.

        @param term_before: of the entry before them.
        @param announced: see L{read}.
        """
        table, self._is_changed = self.table, self._is_changed or bool(announced)
        if table is None:
            return
        terms = [index for index, term in layout.terms if term != term_before]
        for index in terms:
            table.superseded(index)
        for at, runs in announced:
            if isinstance(runs, ReaderState):
                assert self.readers is not None
                self.readers.note(at, runs)
                continue
            behind = next((index for index in terms if index > at), None)
            self._fold(table, at, 2**62 if behind is None else behind - 1, runs)
        if announced and not self._has_file:
            self.save()

    def cut(self, first_gone: int) -> None:
        """The ledger was cut."""
        if self.table is not None and self.readers is not None:
            self.table.cut(first_gone)
            self.readers.cut(first_gone)

    # -- the file --------------------------------------------------------------------------------

    def _content(self) -> bytes:
        assert self.table is not None and self.readers is not None
        committed_index = self._ledger.committed_index
        index = self.table.whole_before(committed_index)
        told = {"index": index, "producers": [list(run) for run in self.table.last_runs(index)]}
        readers = self.readers.rows(committed_index)
        text = write_object({**told, "readers": readers} if readers else told)
        return _HEADER.pack(_MAGIC, _VERSION, crc32(text)) + text

    def with_file(self, job: LedgerFlush | None) -> LedgerFlush | None:
        """Let a flush write the file, if the ledger has grown enough. @return: the flush."""
        position = self._ledger.end_position
        has_grown = abs(position - self._saved_position) >= SAVE_EVERY_BYTES
        if job is not None and self._is_changed and self.table is not None and has_grown:
            content = self._content()
            self._is_changed, self._saved_position = False, position
            job.add_step(lambda: self._write(content))
        return job

    def save(self) -> None:
        """Write the file, if it would differ. @raise StoreError: writing failed."""
        if self._is_changed and self.table is not None:
            with self._ledger.guard.storing("writing the list of producers failed"):
                self._write(self._content())
            self._is_changed, self._saved_position = False, self._ledger.end_position

    def _write(self, content: bytes) -> None:
        """Without room, do nothing: it is written later. @raise OSError: writing failed."""
        try:
            self._ledger.disk.write_file(self._path, content)
            self._has_file = True
        except OSError as error:
            if not is_no_room(error):
                raise
