# -*- test-case-name: tests.storage.test_chunk_sums -*-
"""
The checksums of the chunks of a ledger, made while its entries are written.

A follower that is far behind is pushed whole chunks; nobody checks their records one by one, so these sums
say that the bytes are still those that were written. Each data file has a file of rows in C{chunks}, of the
same name::

    first_index, last_index, position, end_position, term    8 bytes each
    chain_crc, records_crc, units_crc, crc of this row       4 bytes each

Rule 1: nothing depends on these files. A row that is missing, torn or of other bytes costs time: the
entries are pushed one by one. So rows are not brought to stable storage, and trouble with these files ends
their use until the next house-keeping, not the store's. That, and a start, ends each file before a torn row:
in the file of a full data file nothing else would, and verification would find it until the entries expire.
Rule 2: what is cut from the ledger is cut here. Should a row of a former tail come back after a loss of
power, its C{chain_crc}, which continues through all entries before, shows it (L{ChunkSums.read}).
Rule 3: no chunk has a configuration entry, entries of two terms, or a hole.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import attrs
from construct import Int32sb, Struct

from dledger.base.disk.disk import File, is_no_room
from dledger.base.disk.file_table import CHUNKS
from dledger.base.disk.segment import file_name, offsets_in
from dledger.base.disk.unreadable import read_copy
from dledger.storage.files.chunk_rows import NO_ROW, pack_row, torn_row, unpack_rows
from dledger.storage.files.records import Layout
from dledger.storage.start.open_ledger import OpenLedger
from dledger.values.ledger.chunks import UNIT_BYTES, ChunkSum
from protocols.wire.checksums import crc32
from protocols.wire.layout import struct_of
from protocols.wire.ledger.batches import EntryChunk
from protocols.wire.ledger.entry import (
    CHAIN_CRC_AT,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
)

#: A chunk that ends early is recorded if it has at least this part of the wanted size.
_SHORTEST_PART = 8
#: Most files whose rows stay in memory.
_FILES_KEPT = 4
#: The trouble of a member that makes no chunks.
_OFF = "push_chunk_bytes=0"

_CHAIN_CRC = struct_of(Struct("chain_crc" / Int32sb))

assert INDEX_UNIT_SIZE == UNIT_BYTES


@attrs.define(kw_only=True)
class _Growing:
    """The chunk at the end of the ledger, as far as it goes. C{size}: bytes of records and units."""

    first_index: int
    position: int
    term: int
    end_position: int
    count: int = 0
    size: int = 0
    chain_crc: int = 0
    records_crc: int = 0
    units_crc: int = 0

class ChunkSums:
    """
    Invariant: C{_rows} has rows of entries of the ledger only, rising; C{_names} has the offsets of the data
    files that have a file of rows.

    @ivar trouble: why no sums are made and reported now; empty if all is well.
    """

    def __init__(self, ledger: OpenLedger) -> None:
        self._ledger = ledger
        self._bytes_max = ledger.config.push_chunk_bytes
        self._directory = f"{ledger.config.self_path}/{CHUNKS.name.partition('/')[0]}"
        self._growing: _Growing | None = None
        self._rows: dict[int, list[ChunkSum]] = {}
        self._denied: set[int] = set()
        self._names: set[int] = set()
        self._handle: tuple[int, File] | None = None
        self.trouble = "not looked at yet"
        self.try_again()

    def try_again(self) -> None:
        """The files may be usable again. Each row is compared with the ledger before it counts."""
        if self.trouble in ("", _OFF):
            return
        self.trouble = "" if self._bytes_max else _OFF
        disk = self._ledger.disk
        try:
            if disk.exists(self._directory):
                self._names.update(offsets_in(disk, self._directory)[0])
            self._prune()
            for base in sorted(self._names):
                if (number := torn_row(read_copy(disk, self._path_of(base)))) >= 0:
                    self._write(base, number, NO_ROW)
        except OSError as error:
            self._failed(error)

    # -- appends -------------------------------------------------------------------------------------

    def written(self, first_index: int, count: int, term: int, layout: Layout, *, is_listed: bool) -> None:
        """
        Entries were written after the last one.

        @param count: number of entries. @param term: of the last of them.
        @param is_listed: there is a configuration entry among them.
        """
        if self.trouble:
            return
        growing = self._growing
        if (
            growing is not None and growing.term == term and growing.end_position == layout.runs[0][0]
            and layout.sums is None and not is_listed
        ):  # (Terms never fall, so all entries have this one.)
            records_size = layout.end_position - growing.end_position
            size = growing.size + records_size + count * INDEX_UNIT_SIZE
            if size < self._bytes_max and records_size == len(layout.records):  # (There is no blank.)
                growing.records_crc = crc32(layout.records, growing.records_crc)  # nearly every append
                growing.units_crc = crc32(layout.units, growing.units_crc)
                growing.count += count
                growing.size = size
                growing.end_position = layout.end_position
                growing.chain_crc = layout.chain_crc
                return
        terms = layout.terms
        if is_listed or len(terms) > 1 or (terms and terms[0][0] != first_index):
            self.close()
            return
        if layout.sums is not None:
            self._received(first_index, term, layout)
            return
        if growing is not None and (growing.term != term or growing.end_position != layout.positions[0]):
            self.close()
        at, offset, file_size = 0, 0, self._ledger.data.file_size
        while at < count:
            begin = layout.positions[at]
            following = begin - begin % file_size + file_size
            until = count
            if layout.end_position > following:
                until = bisect_left(layout.positions, following, at)
            offset = self._extend(first_index, term, layout, at, until, offset)
            at = until
            if at < count:
                self.close()

    def _received(self, first_index: int, term: int, layout: Layout) -> None:
        """A leader's chunk is one here, too."""
        self.close()
        assert layout.sums is not None
        self._record(ChunkSum(
            first_index, first_index + layout.entries - 1, layout.runs[-1][0], layout.end_position, term,
            layout.chain_crc, *layout.sums,
        ))

    def _extend(self, first_index: int, term: int, layout: Layout, at: int, until: int, offset: int) -> int:
        """
        Add the records of a layout from number C{at} to before C{until}, which lie in one file.

        @param offset: where the first of them begins in C{layout.records}. @return: where the last one ends.
        """
        positions = layout.positions
        records, units = memoryview(layout.records), memoryview(layout.units)
        _, last, size, _, _ = INDEX_UNIT.unpack_from(layout.units, (until - 1) * INDEX_UNIT_SIZE)
        end_position = last + size
        while at < until:
            position = positions[at]
            growing = self._growing
            if growing is None:
                growing = self._growing = _Growing(
                    first_index=first_index + at, position=position, term=term, end_position=position,
                )
            upto = _upto(positions, at, until, end_position, self._bytes_max - growing.size)
            if upto == at and growing.count:
                self.close()
                continue
            upto = max(upto, at + 1)
            end = end_position if upto == until else positions[upto]
            last_at = offset + positions[upto - 1] - position + CHAIN_CRC_AT
            growing.records_crc = crc32(records[offset : offset + end - position], growing.records_crc)
            growing.units_crc = crc32(units[at * INDEX_UNIT_SIZE : upto * INDEX_UNIT_SIZE], growing.units_crc)
            growing.chain_crc = _CHAIN_CRC.unpack_from(layout.records, last_at)[0]
            growing.count += upto - at
            growing.size += end - position + (upto - at) * INDEX_UNIT_SIZE
            growing.end_position = end
            offset, at = offset + end - position, upto
            if at < until or growing.size >= self._bytes_max:
                self.close()
        return offset

    def close(self) -> None:
        """The chunk at the end of the ledger grows no more."""
        growing, self._growing = self._growing, None
        if growing is not None and not self.trouble and growing.size * _SHORTEST_PART >= self._bytes_max:
            self._record(ChunkSum(
                growing.first_index, growing.first_index + growing.count - 1, growing.position,
                growing.end_position, growing.term, growing.chain_crc, growing.records_crc, growing.units_crc,
            ))

    def _record(self, chunk: ChunkSum) -> None:
        base = self._ledger.data.base(chunk.position)
        try:
            rows = self._rows_of(base)
            while rows and (
                rows[-1].last_index >= chunk.first_index or rows[-1].end_position > chunk.position
            ):  # (Of a former tail. It came back with a loss of power; the ledger has grown past it since.)
                rows.pop()
            self._write(base, len(rows), pack_row(chunk) + NO_ROW)
            rows.append(chunk)
        except OSError as error:
            self._failed(error)

    # -- cuts ----------------------------------------------------------------------------------------

    def cut(self, next_index: int) -> None:
        """C{next_index} and the entries after it are gone."""
        growing = self._growing
        if growing is not None and growing.first_index + growing.count > next_index:
            self._growing = None
        try:
            self._prune()
            for base in sorted(self._names, reverse=True):
                rows = self._rows_of(base, checked=False)
                kept = bisect_left(rows, next_index, key=lambda row: row.last_index)
                if kept < len(rows):
                    self._denied.difference_update([row.first_index for row in rows[kept:]])
                    del rows[kept:]
                    self._write(base, kept, NO_ROW)
                if kept:
                    return
        except OSError as error:
            self._failed(error)

    def files_gone(self) -> None:
        """Data files are gone: forget their chunks."""
        try:
            self._prune()
        except OSError as error:
            self._failed(error)

    def begin_anew(self) -> None:
        """All entries are gone."""
        self._growing = None
        self._denied.clear()
        self.files_gone()

    def _prune(self) -> None:
        for base in [one for one in self._names if not self._ledger.data.has(one)]:
            if self._handle is not None and self._handle[0] == base:
                self._release()
            self._names.discard(base)
            self._rows.pop(base, None)
            self._ledger.disk.unlink(self._path_of(base))

    def _failed(self, error: OSError) -> None:
        self._ledger.hints.failed(self._directory, str(error) or type(error).__name__)
        if not is_no_room(error):
            self.trouble = str(error) or type(error).__name__
            self._growing = None
            self._rows.clear()
            self._release()

    # -- reads ---------------------------------------------------------------------------------------

    def behind(self, index: int, position: int) -> ChunkSum | None:
        """
        The first chunk that begins with C{index} or after it, in the same data file; None if there is none.

        @param position: stream offset of the record of C{index}.
        """
        if self.trouble:
            return None
        ledger = self._ledger
        try:
            rows = self._rows_of(ledger.data.base(position))
        except OSError as error:
            self._failed(error)
            return None
        for at in range(bisect_left(rows, index, key=lambda row: row.first_index), len(rows)):
            row = rows[at]
            if row.first_index not in self._denied and not (
                ledger.holes.end_index >= row.first_index
                and any(one.first_index <= row.last_index and one.last_index >= row.first_index
                        for one in ledger.holes.holes)
            ):
                return row
        return None

    def read(self, chunk: ChunkSum) -> EntryChunk | None:
        """
        The bytes of a chunk; the receiver compares them with the sums. None if the row is not of these bytes:
        then it is not reported again.

        @raise StoreError: the files cannot be read.
        """
        ledger = self._ledger
        size, units = chunk.end_position - chunk.position, b""
        with ledger.guard.storing("reading a chunk failed"):
            records = ledger.data.pread(size, chunk.position)
            while len(units) < chunk.entries * INDEX_UNIT_SIZE:
                at = chunk.first_index * INDEX_UNIT_SIZE + len(units)
                piece = ledger.index.pread(chunk.entries * INDEX_UNIT_SIZE - len(units), at)
                if not piece:
                    break
                units = units + piece if units else piece
        if len(records) != size or not _is_of(chunk, records, units):
            self.deny(chunk.first_index)
            return None
        return EntryChunk(
            first_index=chunk.first_index, count=chunk.entries, term=chunk.term, records=records, units=units,
            records_crc=chunk.records_crc, units_crc=chunk.units_crc,
        )

    def deny(self, first_index: int) -> None:
        """The chunk that begins with this index is not reported again by this process."""
        self._denied.add(first_index)

    # -- files -----------------------------------------------------------------------------------

    def _path_of(self, base: int) -> str:
        return f"{self._directory}/{file_name(base)}"

    def _rows_of(self, base: int, *, checked: bool = True) -> list[ChunkSum]:
        """The rows of the data file at C{base}. @param checked: of entries that the ledger has, only."""
        rows = self._rows.get(base)
        if rows is None:
            ledger = self._ledger
            rows = unpack_rows(ledger.disk.read_file(self._path_of(base))) if base in self._names else []
            end = ledger.data.file_size + base
            while checked and rows and (
                rows[-1].last_index > ledger.end_index or rows[-1].end_position > min(ledger.end_position,
                end) or rows[0].position < base
            ):
                rows.pop()
            if len(self._rows) >= _FILES_KEPT:
                del self._rows[next(iter(self._rows))]
            self._rows[base] = rows
        return rows

    def _write(self, base: int, number: int, data: bytes) -> None:
        if self._handle is None or self._handle[0] != base:
            self._release()
            disk, path = self._ledger.disk, self._path_of(base)
            if base not in self._names:
                disk.makedirs(self._directory)
            file = disk.open(path, create=base not in self._names and not disk.exists(path))
            self._names.add(base)
            self._handle = base, file
        self._handle[1].pwrite(data, number * len(NO_ROW))

    def _release(self) -> None:
        if self._handle is not None:
            handle, self._handle = self._handle, None
            handle[1].close()

    def abandon(self) -> None:
        """Release the handles."""
        self._release()


def _upto(positions: Sequence[int], at: int, until: int, end_position: int, room: int) -> int:
    """The number after the last record from C{at} on that fits into C{room} bytes with its index unit."""
    begin = positions[at]
    if end_position - begin + (until - at) * INDEX_UNIT_SIZE <= room:
        return until

    def taken(number: int) -> int:
        return positions[number] - begin + (number - at) * INDEX_UNIT_SIZE

    return at + bisect_right(range(at + 1, until), room, key=taken)


def _is_of(chunk: ChunkSum, records: bytes, units: bytes) -> bool:
    """Whether these bytes begin and end with the records that the row reports."""
    if len(units) != chunk.entries * INDEX_UNIT_SIZE:
        return False
    _, last, size, _, _ = INDEX_UNIT.unpack_from(units, len(units) - INDEX_UNIT_SIZE)
    at = last - chunk.position
    if not 0 <= at <= len(records) - ENTRY_HEADER_SIZE or last + size != chunk.end_position:
        return False
    first, found = ENTRY_HEADER.unpack_from(records), ENTRY_HEADER.unpack_from(records, at)
    return (
        first[2:5] == (chunk.first_index, chunk.term, chunk.position)
        and found[2:5] == (chunk.last_index, chunk.term, last)
        and found[6] == chunk.chain_crc
    )
