# -*- test-case-name: tests.storage.test_holes -*-
"""
Finding sound records: by their index unit, at the beginning of a file, and after a damaged record.

Rule: nothing covers the header of a record after damage, because its C{chainCrc} continues from a record
that is not known. So it counts only if the index confirms it, and if the record after it does not deny it;
without the index, the record I{behind} the first one that looks right is the first that counts.

Nothing is written here.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import attrs

from dledger.base.disk.segment import SegmentList
from dledger.storage.files.records import DamagedRecord, Walk, record_fits, walk_records
from protocols.wire.ledger.bounds import INDEX_MAX
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    MIN_BLANK_SIZE,
)

_UNITS_AT_ONCE = 512
_CHUNK = 1024 * 1024
#: How every record begins.
_BEGINNING = MAGIC.to_bytes(4, "big")


@attrs.frozen(kw_only=True)
class Gap:
    """
    Where records are missing.

    @ivar index, position: of the first missing record.
    @ivar term: of the record before it; -1 for any.
    @ivar last_index: the record after the gap has this index at most.
    @ivar units_max, bytes_max: index units, and bytes after C{position}, that may be looked at; then only
        the beginnings of the next files are.
    """

    index: int
    position: int
    term: int
    last_index: int
    units_max: int = INDEX_MAX
    bytes_max: int = 1 << 62


class RecordFinder:
    """Finds records in the data files of a ledger; the index helps where it is right."""

    def __init__(self, data: SegmentList, index: SegmentList) -> None:
        self.data = data
        self.index = index

    def first_record(self, offset: int) -> tuple[int, int, int] | None:
        """
        Index, term and position of the first record at or after the start of the file at C{offset};
        None if no sound header is found.
        """
        while self.data.has(offset):
            header = self.data.pread(ENTRY_HEADER_SIZE, offset)
            if len(header) < ENTRY_HEADER_SIZE:
                return None
            if BLANK.unpack_from(header)[0] == BLANK_MAGIC:
                offset += self.data.file_size
                continue
            magic, size, index, term, pos, _, _, _, length = ENTRY_HEADER.unpack(header)
            sound = magic == MAGIC and size == length + ENTRY_HEADER_SIZE and pos == offset
            if sound and 0 <= index < 1 << 58:
                return index, term, pos
            return None
        return None

    def unit(self, index: int) -> tuple[int, int, int, int, int] | None:
        """The index unit of an entry: magic, pos, size, index, term; None if absent or not its own."""
        position = index * INDEX_UNIT_SIZE
        if not self.index.has(self.index.base(position)):
            return None
        data = self.index.pread(INDEX_UNIT_SIZE, position)
        if len(data) < INDEX_UNIT_SIZE:
            return None
        unit: tuple[int, int, int, int, int] = INDEX_UNIT.unpack(data)
        return unit if unit[0] == MAGIC and unit[3] == index else None

    def corrected_unit(self, index: int) -> tuple[int, int, int, int, int]:
        """The index unit of an entry that was just corrected. @raise OSError: the disk does not give it."""
        unit = self.unit(index)
        if unit is None:
            path = self.index.path(self.index.base(index * INDEX_UNIT_SIZE))
            raise OSError(
                errno.EIO, "an index unit that was just written cannot be read: the disk fails", path
            )
        return unit

    def agreed_unit(self, index: int) -> tuple[int, int, int, int, int] | None:
        """The index unit of an entry, if the header that it leads to says the same; else None."""
        unit = self.unit(index)
        if unit is None or unit[1] < 0 or not self.data.has(self.data.base(unit[1])):
            return None
        header = self.data.pread(ENTRY_HEADER_SIZE, unit[1])
        if len(header) < ENTRY_HEADER_SIZE:
            return None
        magic, size, found, term, pos, _, _, _, _ = ENTRY_HEADER.unpack(header)
        return unit if unit == (magic, pos, size, found, term) else None

    def index_at(self, position: int) -> int:
        """Index of the entry whose index unit leads to C{position}; -1 if there is none."""
        for offset in self.index.offsets:
            for unit in self._units(offset // INDEX_UNIT_SIZE, INDEX_MAX):
                if unit[1] == position:
                    return unit[3]
                if unit[1] > position:
                    return -1
        return -1

    def behind(self, gap: Gap) -> tuple[int, int] | None:
        """Index and position of a sound record after a gap, the first that counts; None if none is found."""
        return self._by_index(gap) or self._by_content(gap) or self._by_file(gap)

    # -- the three ways ----------------------------------------------------------------------------

    def _units(self, first_index: int, last_index: int) -> Iterator[tuple[int, int, int, int, int]]:
        """The index units from C{first_index} on that are their entries' own."""
        at = first_index * INDEX_UNIT_SIZE
        while at <= last_index * INDEX_UNIT_SIZE and self.index.has(self.index.base(at)):
            data = self.index.pread(_UNITS_AT_ONCE * INDEX_UNIT_SIZE, at)
            whole = len(data) - len(data) % INDEX_UNIT_SIZE
            if not whole:
                return
            if any(data):
                for number, unit in enumerate(INDEX_UNIT.iter_unpack(data[:whole]), at // INDEX_UNIT_SIZE):
                    if unit[0] == MAGIC and unit[3] == number <= last_index:
                        yield unit
            at += whole

    def _by_index(self, gap: Gap) -> tuple[int, int] | None:
        last = min(gap.last_index, gap.index + gap.units_max)
        for _, position, _, index, term in self._units(gap.index + 1, last):
            if term >= gap.term and self._has_room(gap, index, position) and (
                self.agreed_unit(index) is not None and self._is_sound(index, position)
            ):
                return index, position
        return None

    def _has_room(self, gap: Gap, index: int, position: int) -> bool:
        return position - gap.position >= (index - gap.index) * ENTRY_HEADER_SIZE

    def _is_sound(self, index: int, position: int) -> bool:
        """Whether the record is whole, and the record after it does not deny it."""
        walk = Walk(index=index, position=position)
        try:
            self._walk_two(walk)
        except DamagedRecord as damage:
            return walk.count == 1 and not damage.is_chain_broken
        return walk.count > 0

    def _walk_two(self, walk: Walk) -> None:
        """Pass one record, and the one after it if that is in the same file."""
        file_end = self.data.base(walk.position) + self.data.file_size
        start, wanted = walk.position, ENTRY_HEADER_SIZE
        for _ in range(2):
            header = self.data.pread(ENTRY_HEADER_SIZE, start + wanted - ENTRY_HEADER_SIZE)
            if len(header) < ENTRY_HEADER_SIZE:
                break
            size = BLANK.unpack_from(header)[1]
            if size < ENTRY_HEADER_SIZE or not record_fits(size, file_end - start):
                break
            wanted += size
            if start + wanted > file_end:
                break
        walk_records(self.data.pread(min(wanted, file_end - start), start), walk, max_count=2, one_term=False,
                     size_max=self.data.file_size)

    def _by_content(self, gap: Gap) -> tuple[int, int] | None:
        """Look for headers in the file of the gap."""
        if not self.data.has(self.data.base(gap.position)):
            return None
        file_end = self.data.base(gap.position) + self.data.file_size
        at, end = gap.position + 1, min(file_end, gap.position + gap.bytes_max)
        while at < end:
            size = min(_CHUNK, end - at)
            data = self.data.pread(min(size + ENTRY_HEADER_SIZE, file_end - at), at)
            found = data.find(_BEGINNING)
            while 0 <= found < size and found + ENTRY_HEADER_SIZE <= len(data):
                place = self._confirmed(gap, data[found : found + ENTRY_HEADER_SIZE], at + found)
                if place is not None:
                    return place
                found = data.find(_BEGINNING, found + 1)
            at += size
        return None

    def _confirmed(self, gap: Gap, header: bytes, position: int) -> tuple[int, int] | None:
        """The record at C{position}, or the one after it, if it may be the one after the gap."""
        _, size, index, term, pos, _, _, _, length = ENTRY_HEADER.unpack(header)
        if pos != position or size != length + ENTRY_HEADER_SIZE or not gap.index < index <= gap.last_index:
            return None
        if term < gap.term or not self._has_room(gap, index, position):
            return None
        if self.agreed_unit(index) is not None:
            return (index, position) if self._is_sound(index, position) else None
        walk = Walk(index=index, position=position)
        try:
            self._walk_two(walk)
        except DamagedRecord:
            return None
        if walk.count < 2 or not walk.chain_crc or index >= gap.last_index:
            return None
        return index + 1, position + size

    def _by_file(self, gap: Gap) -> tuple[int, int] | None:
        """Look at the beginnings of the next files."""
        for offset in self.data.offsets:
            if offset <= gap.position:
                continue
            header = self.data.pread(ENTRY_HEADER_SIZE, offset)
            if len(header) == ENTRY_HEADER_SIZE and header.startswith(_BEGINNING):
                place = self._confirmed(gap, header, offset)
                if place is not None:
                    return place
        return None


assert MIN_BLANK_SIZE < ENTRY_HEADER_SIZE
