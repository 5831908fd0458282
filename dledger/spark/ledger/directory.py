# -*- test-case-name: tests.spark.test_scan -*-
"""
Mode C{path}: a member's directory, ours or Java's, live or stopped.

The index says where the records are, so no step is done for each entry: units are read in blocks, checked as
arrays, and cut into runs of whole records that follow each other in one file. The records are compared with
the index (L{dledger.spark.ledger.columns}). Files are read with C{pread}, which cannot fault when a file
shrinks.

Begin and end are those of L{dledger.spark.ledger.ends}: what is recorded as committed and cannot be read is
damage. To distinguish a range that has expired meanwhile from damage, the beginning of the ledger is read
again. A task may run where the directory is older than where it was planned: it waits until its range is
committed there.

Columns of the index alone are read from the index. Within a run of records the units confirm each other; the
first and the last one, and those where the term changes, are compared with their records.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from dledger.spark.formats.log import (
    Chunk,
    DamageError,
    Extent,
    FixedParts,
    Offsets,
    RecordLookup,
    await_end,
    lost,
    skipped,
)
from dledger.spark.formats.options import ScanOptions
from dledger.spark.formats.proof import Proof, of_group, of_record
from dledger.spark.ledger.ends import UNITS_AT_ONCE, MemberFiles
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE, MAGIC


class DirectoryLog:
    """One member's directory. Offsets are indexes. Implements L{dledger.spark.formats.log.ScannedLog}."""

    def __init__(self, options: ScanOptions) -> None:
        """@raise ReadError: the path is not a member's directory, or it cannot be read."""
        self._options = options
        self._files = MemberFiles(
            options.path, options.data_path, fail_on_damage=options.fail_on_damage
        )
        self._lookup = RecordLookup(pread=self._files.data.pread, doubtful=self._doubtful)

    def extent(self, *, needs_begin: bool = True) -> Extent:
        files = self._files
        files.look()
        # Without a committed entry, too, a begin must not be passed over later.
        return Extent(
            begin=files.begin_index, end=max(files.begin_index, files.committed_index + 1),
            note=f". {files.missing}" if files.missing else "", is_lost=bool(files.missing),
        )

    def group_id(self) -> str:
        return self._files.group_id()

    def proof(self, offset: int) -> Proof:
        files, index = self._files, offset - 1
        facts = of_group(files.group_id())
        if not files.begin_index <= index <= files.committed_index:
            return facts
        unit = files.unit(index)
        record = files.data.pread(unit[2], unit[1]) if unit is not None else b""
        found = of_record(record, index)
        if found is None or unit is None or (found["pos"], found["term"]) != (unit[1], unit[4]):
            if self._options.fail_on_damage:
                raise DamageError(f"{self._unreadable(index)}. With option failOnDamage=false it is skipped")
            return facts
        return {**facts, **found}

    def position_of(self, offset: int) -> int:
        files = self._files
        unit = files.unit(offset)
        if unit is not None and offset <= files.committed_index:
            return unit[1]
        unit = files.unit(offset - 1) if offset else None
        if unit is not None:
            return unit[1] + unit[2]
        return self._near(offset)

    def _near(self, offset: int) -> int:
        """About the position of an entry without a sound unit, or that has expired meanwhile."""
        extent = self.extent()
        if not extent.begin <= offset <= extent.end or extent.begin == extent.end:
            return 0
        if self._options.fail_on_damage:
            raise DamageError(f"{self._unreadable(offset)}. With option failOnDamage=false it is skipped")
        for index in range(offset - 1, extent.begin - 1, -1):
            unit = self._files.unit(index)
            if unit is not None:
                return unit[1] + unit[2]
        return 0

    def after(self, begin: int, end: int, count: int) -> int:
        return min(begin + count, end)

    def chunks(self, begin: int, end: int, *, with_data: bool) -> Iterator[Chunk]:
        await_end(self, self._options, end)
        index, unreadable = begin, 0
        while index < end:
            units = self._units(index, min(end - index, UNITS_AT_ONCE))
            at = 0
            for last in self._runs(units):
                chunk = self._chunk(units[at:last], index + at, with_data)
                if chunk is None:
                    break
                if index + at == begin and self._options.verify_crc:
                    chunk = attrs.evolve(chunk, chain_before=self._chain_before(begin))
                yield chunk
                at = last
            index += at
            if at < len(units) or not len(units):
                following = self._after_trouble(index)
                unreadable += following - index if following == index + 1 else 0
                index = following
        if unreadable:
            skipped(f"{self._options.path}: {unreadable} entries without a sound index unit were skipped")

    def _units(self, index: int, count: int) -> FixedParts:
        """Sound units from C{index} on: fewer than C{count} if the index ends or is damaged before."""
        units, is_sound = self._files.units(index, count)
        return units if is_sound.all() else units[: int(np.argmin(is_sound))]

    def _runs(self, units: FixedParts) -> list[int]:
        """
        Where runs end: at a change of file and where C{fetchBytes} are reached. The runs end before the first
        unit that does not reach the next one of its file, or that reaches beyond its file.
        """
        if not len(units):
            return []
        ends = units["pos"] + units["size"].astype(np.int64)
        # Every file ends with a blank, so adjacent records are in one file.
        breaks = np.flatnonzero(ends[:-1] != units["pos"][1:]) + 1
        found: list[int] = []
        first, files = 0, self._files.data
        for last in [*breaks.tolist(), len(units)]:
            base = files.base(int(units["pos"][last - 1]))
            is_torn = base >= 0 and ends[last - 1] > base + files.file_size
            is_torn |= last < len(units) and base == files.base(int(units["pos"][last]))
            last -= int(is_torn)
            run = ends[first:last]
            while first < last:
                limit = int(units["pos"][first]) + self._options.fetch_bytes
                step = max(int(np.searchsorted(run, limit, side="right")), 1)
                first, run = first + step, run[step:]
                found.append(first)
            if is_torn:
                break
        return found

    def _chunk(self, units: FixedParts, first: int, with_data: bool) -> Chunk | None:
        """Records of one run; None if their file is missing or too short."""
        position = int(units["pos"][0])
        end = int(units["pos"][-1]) + int(units["size"][-1])
        files = self._files.data
        base = files.base(position)
        if base < 0:
            return None
        with_data = with_data or not self._are_edges_sound(units)
        starts: Offsets = np.empty(len(units) + 1, dtype=np.int64)
        np.subtract(units["pos"], position, out=starts[:-1])
        starts[-1] = end - position
        data = None
        if with_data:
            data = files.pread(end - position, position)
            if len(data) < end - position:
                return None
        return Chunk(data=data, starts=starts, units=units, first=first, place=files.path(base),
                     place_at=position - base, records=self._lookup)

    def _doubtful(self, first: int, count: int) -> NDArray[np.bool_]:
        """Every entry may have a C{channel}: the index does not say which ones have none."""
        return np.ones(count, dtype=np.bool_)

    def _chain_before(self, index: int) -> int | None:
        """C{chain_crc} of the record before C{index}; None if that is not there, or not sound."""
        unit = self._files.unit(index - 1) if index else None
        header = self._files.data.pread(ENTRY_HEADER_SIZE, unit[1]) if unit is not None else b""
        if unit is None or len(header) < ENTRY_HEADER_SIZE:
            return None if index else 0
        magic, size, number, term, pos, _channel, chain_crc, _crc, _length = ENTRY_HEADER.unpack(header)
        return int(chain_crc) if (magic, pos, size, number, term) == unit else None

    def _are_edges_sound(self, units: FixedParts) -> bool:
        """Whether the units of a run agree with their records, where other units do not confirm them."""
        changes = np.flatnonzero(units["term"][1:] != units["term"][:-1])
        for at in sorted({0, len(units) - 1, *changes.tolist(), *(changes + 1).tolist()}):
            unit = units[at]
            header = self._files.data.pread(ENTRY_HEADER_SIZE, int(unit["pos"]))
            if len(header) < ENTRY_HEADER_SIZE:
                return False
            magic, size, index, term, pos, _channel, _chain, _crc, length = ENTRY_HEADER.unpack(header)
            if (magic, length) != (MAGIC, size - ENTRY_HEADER_SIZE):
                return False
            indexed = (int(unit[name]) for name in ("pos", "size", "index", "term"))
            if (pos, size, index, term) != tuple(indexed):
                return False
        return True

    def _after_trouble(self, index: int) -> int:
        """
        The index at which reading continues when C{index} could not be read.

        @raise DataLossError: the entry has expired, and C{failOnDataLoss} is set.
        @raise DamageError: it is damaged, and C{failOnDamage} is set.
        """
        files = self._files
        before = files.begin_index, files.data.offsets, files.index.offsets
        extent = self.extent()
        if extent.begin > index:
            return lost(self._options, index, extent.begin, note=extent.note)
        if before != (files.begin_index, files.data.offsets, files.index.offsets):
            return index  # a file has come or gone meanwhile: try again
        if self._options.fail_on_damage:
            raise DamageError(f"{self._unreadable(index)}. With option failOnDamage=false it is skipped")
        return index + 1

    def _unreadable(self, index: int) -> str:
        """Why an entry cannot be read: file and offset."""
        files = self._files.index
        position = index * INDEX_UNIT_SIZE
        base = files.base(position)
        if base < 0:
            return (f"entry {index} cannot be read: {files.directory} at {position}: the index file of that "
                    "offset is missing")
        what = f"entry {index} cannot be read: {files.path(base)} at {position - base}: "
        unit = self._files.unit(index)
        if unit is None:
            return what + "no sound index unit"
        data = self._files.data
        base = data.base(unit[1])
        if base < 0:
            return f"{what}the data file that it names is not there: {data.directory} at {unit[1]}"
        return f"{what}its unit and its record, {data.path(base)} at {unit[1] - base}, do not fit together"

    def close(self) -> None:
        self._files.close()
