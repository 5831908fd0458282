# -*- test-case-name: tests.spark.test_scan -*-
"""
Mode C{path}: a member's directory, ours or Java's, live or stopped.

The index says where the records are, so no step is done for each entry: units are read in blocks, checked as
arrays, and cut into runs of whole records that follow each other in one file. The records are compared with
the index (L{dledger.spark.columns}). Files are read with C{pread}, which cannot fault when a file shrinks.

To tell a range that has expired meanwhile from damage, the beginning of the ledger is read again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dledger.base.errors import DirectoryError, StoreError
from dledger.spark.log import Chunk, DamageError, Extent, FixedParts, Offsets, ReadError, lost, skipped
from dledger.spark.options import ScanOptions
from dledger.storage.reader import LogReader
from protocols.wire.layout import dtype_of
from protocols.wire.ledger.entry import (
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_DECLARATION,
    INDEX_UNIT_SIZE,
    MAGIC,
)

UNIT_DTYPE = np.dtype(dtype_of(INDEX_UNIT_DECLARATION))
assert UNIT_DTYPE.itemsize == INDEX_UNIT_SIZE
#: Index units in one read.
_UNITS_AT_ONCE = 128 * 1024


class DirectoryLog:
    """One member's directory. Offsets are indexes."""

    def __init__(self, options: ScanOptions) -> None:
        """@raise ReadError: the path is not a member's directory, or it cannot be read."""
        self._options = options
        try:
            self._reader = LogReader.open(options.path, data_path=options.data_path)
        except DirectoryError as error:
            raise ReadError(str(error)) from None
        except StoreError as error:
            raise ReadError(str(error.facts["reason"])) from None

    def extent(self) -> Extent:
        """See L{dledger.spark.log.ScannedLog.extent}."""
        self._refresh()
        reader = self._reader
        if reader.begin_index < 0 or reader.committed_index < 0:
            # Empty, or nothing is known to be committed; yet a begin must not be passed over later.
            begin = max(reader.begin_index, 0)
            return Extent(begin=begin, end=begin)
        return Extent(begin=reader.begin_index, end=reader.committed_index + 1)

    def _refresh(self) -> None:
        try:
            self._reader.refresh()
        except (StoreError, OSError) as error:
            raise ReadError(f"{self._options.path} cannot be read: {error}") from None

    def position_of(self, offset: int) -> int:
        """See L{dledger.spark.log.ScannedLog.position_of}."""
        unit = self._reader.unit(offset)
        if unit is not None and offset <= self._reader.committed_index:
            return unit[1]
        unit = self._reader.unit(offset - 1) if offset else None
        if unit is not None:
            return unit[1] + unit[2]
        extent = self.extent()
        if extent.begin >= extent.end:
            return 0
        raise ReadError(
            f"{self._options.path}: the index has no sound unit for entry {offset}; "
            f"there are entries {extent.begin}..{extent.end - 1}"
        )

    def after(self, begin: int, end: int, count: int) -> int:
        """See L{dledger.spark.log.ScannedLog.after}."""
        return min(begin + count, end)

    def chunks(self, begin: int, end: int, *, with_data: bool) -> Iterator[Chunk]:
        """See L{dledger.spark.log.ScannedLog.chunks}."""
        index, unreadable = begin, 0
        while index < end:
            units = self._units(index, min(end - index, _UNITS_AT_ONCE))
            at = 0
            for last in self._runs(units):
                chunk = self._chunk(units[at:last], index + at, with_data)
                if chunk is None:
                    break
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
        data = self._reader.index.pread(count * INDEX_UNIT_SIZE, index * INDEX_UNIT_SIZE)
        units = np.frombuffer(data, dtype=UNIT_DTYPE, count=len(data) // INDEX_UNIT_SIZE)
        expected = np.arange(index, index + len(units), dtype=np.int64)
        is_sound = (units["magic"] == MAGIC) & (units["index"] == expected)
        is_sound &= units["size"] >= ENTRY_HEADER_SIZE
        is_sound &= units["pos"] >= 0
        if not is_sound.all():
            units = units[: int(np.argmin(is_sound))]
        return units

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
        first, files = 0, self._reader.data
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
        files = self._reader.data
        base = files.base(position)
        if base < 0:
            return None
        starts: Offsets = np.empty(len(units) + 1, dtype=np.int64)
        np.subtract(units["pos"], position, out=starts[:-1])
        starts[-1] = end - position
        data = None
        if with_data:
            data = files.pread(end - position, position)
            if len(data) < end - position:
                return None
        return Chunk(data=data, starts=starts, units=units, first=first, place=files.path(base),
                     place_at=position - base)

    def _after_trouble(self, index: int) -> int:
        """
        The index at which reading continues when C{index} could not be read.

        @raise DataLossError: the entry has expired, and C{failOnDataLoss} is set.
        @raise DamageError: it is damaged, and C{failOnDamage} is set.
        """
        before = self._reader.begin_index, self._reader.data.offsets, self._reader.index.offsets
        extent = self.extent()
        if extent.begin > index:
            lost(self._options, index, extent.begin)
            return extent.begin
        if before != (self._reader.begin_index, self._reader.data.offsets, self._reader.index.offsets):
            return index  # a file has come or gone meanwhile: try again
        files = self._reader.index
        position = index * INDEX_UNIT_SIZE
        base = max(files.base(position), 0)
        what = (f"entry {index} cannot be read: {files.path(base)} at {position - base}: "
                "no sound index unit, or the data file that it names is not there")
        if self._options.fail_on_damage:
            raise DamageError(f"{what}. With option failOnDamage=false it is skipped")
        return index + 1

    def close(self) -> None:
        """See L{dledger.spark.log.ScannedLog.close}."""
        self._reader.close()
