# -*- test-case-name: tests.broker.store.test_consume_queue -*-
"""
The units of one consume queue, wherever they are: in its files, in memory because they are not written yet,
or made again from the log because the disk cannot read them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TypeAlias

from dledger.base.disk.disk import Disk
from dledger.rocketmq.store.queues.queue_files import FILLER_SIZE, UNIT, QueueSegments, Unit
from dledger.rocketmq.store.records.store_config import UNIT_SIZE

_NONE: frozenset[int] = frozenset()
_READ_BYTES = 1024 * 1024 // UNIT_SIZE * UNIT_SIZE
#: Stretches of unreadable units that are passed in one direction when the next readable one is looked for.
_STRETCHES_MAX = 16

_Predicate: TypeAlias = "Callable[[tuple[int, int, int]], bool]"


class QueueUnits:
    """
    Invariant: C{_pending} holds the last units before C{next_index}, which are not written yet.

    @ivar next_index: index of the next unit.
    @ivar mended: units that the disk could not read, as they were made again.
    @ivar mend: called with the indexes of units that the disk cannot read; puts them into C{mended}, at once
        or later. None while the queue is opened.
    @ivar file_size: bytes of every file.
    """

    def __init__(self, disk: Disk, directory: str, file_size: int, offsets: tuple[int, ...] = ()) -> None:
        self._segments = QueueSegments(disk, directory, file_size, offsets)
        self._pending = bytearray()
        self.next_index = offsets[0] // UNIT_SIZE if offsets else 0
        self._is_unsure = False
        self.mended: dict[int, bytes] = {}
        self.mend: Callable[[AbstractSet[int]], None] | None = None
        self.file_size = file_size

    def _load(
        self, index: int, count: int, *, mends: bool = True
    ) -> tuple[bytes | bytearray, AbstractSet[int]]:
        """
        Written units, up to the end of a file.

        @param mends: have those that cannot be read made again.
        @return: their bytes, and the indexes of those that the disk cannot read and that are not mended.
        """
        segments = self._segments
        failures = segments.unreadable.failures
        data = segments.pread(count * UNIT_SIZE, index * UNIT_SIZE)
        if segments.unreadable.failures == failures:
            return data, _NONE
        lost = self._in_bad_parts(index).intersection(range(index, index + len(data) // UNIT_SIZE))
        if mends and self.mend is not None and not lost <= self.mended.keys():
            self.mend(lost - self.mended.keys())
            return self._load(index, count, mends=False)
        patched = bytearray(data)
        for at in lost & self.mended.keys():
            start = (at - index) * UNIT_SIZE
            patched[start : start + UNIT_SIZE] = self.mended[at]
        return patched, lost - self.mended.keys()

    def _in_bad_parts(self, index: int) -> set[int]:
        """Indexes that the last failed read could not read. @param index: of a unit in the same file."""
        base = self._segments.base(index * UNIT_SIZE)
        found: set[int] = set()
        for start, stop in self._segments.unreadable.parts:
            stop = min(stop, self.file_size)
            found.update(range((base + start) // UNIT_SIZE, -(-(base + stop) // UNIT_SIZE)))
        return found

    def _unit(self, index: int, *, mends: bool = True) -> tuple[int, int, int] | None:
        """
        The unit at C{index}; None if it cannot be read, or nobody knows it. @param mends: see L{_load}.
        """
        start = self.next_index - len(self._pending) // UNIT_SIZE
        if self._pending and index >= start:
            offset, size, code = UNIT.unpack_from(self._pending, (index - start) * UNIT_SIZE)
        else:
            data, lost = self._load(index, 1, mends=mends)
            if lost:
                return None
            offset, size, code = UNIT.unpack(data)
        # (One whose record could not be read either says nothing of its place.)
        return None if offset < 0 else (offset, size, code)

    def _next_readable(self, index: int, end: int, step: int) -> tuple[int, tuple[int, int, int] | None]:
        """
        The nearest unit from C{index} on, before C{end}, that can be read. @param step: 1: up; -1: down.

        @return: its index and the unit; None instead of a unit if there is none, or none near enough: then
            no unit before that index can be read.
        """
        for _ in range(_STRETCHES_MAX):
            if (end - index) * step <= 0:
                return end, None
            unit = self._unit(index, mends=False)
            if unit is not None:
                return index, unit
            bad = self._in_bad_parts(index)
            if bad and index not in self.mended:
                index = max(bad) + 1 if step > 0 else min(bad) - 1
                continue
            # Nobody knows it, or its neighbours. (An earlier process may have made them again.)
            while (end - index) * step > 0 and self._unit(index, mends=False) is None and (
                index in self.mended or not self._in_bad_parts(index)
            ):
                index += step
        return index, None

    def neighbours(self, index: int) -> tuple[int, Unit | None, int, Unit | None]:
        """
        What is around a unit that the disk cannot read, for who makes it again.

        @return: the lowest index of the unreadable units around it, the readable unit before that one, an
            index after them, and the readable unit there; None: none there, or none near enough.
        """
        first = self._segments.offsets[0] // UNIT_SIZE
        before, one = self._next_readable(index - 1, first - 1, -1)
        behind, other = self._next_readable(index + 1, self.next_index, 1)
        return (
            before + 1, None if one is None else Unit(before, *one),
            behind, None if other is None else Unit(behind, *other),
        )

    def rewrite(self, index: int, units: bytes) -> bool:
        """
        Write units of one file where the disk could not read them; a disk takes another sector then.

        @param index: of the first.
        @return: whether they can be read again.
        @raise OSError: writing failed.
        """
        segments, position = self._segments, index * UNIT_SIZE
        end = position + len(units)
        failures = segments.unreadable.failures
        self._load(index, len(units) // UNIT_SIZE, mends=False)
        if failures == segments.unreadable.failures:
            return True  # the disk has changed its mind, or somebody has written them
        base = segments.base(position)
        if end == self.next_index * UNIT_SIZE - len(self._pending):
            # Nothing is after them yet; a sector is sound again only if the whole of it is written.
            stop = base + max((stop for _, stop in segments.unreadable.parts), default=0)
            units += bytes(max(min(stop, base + segments.file_size) - end, 0))
        segments.mend(units, position)
        failures = segments.unreadable.failures
        return segments.pread(len(units), position) == units and failures == segments.unreadable.failures

    # -- searches --------------------------------------------------------------------------------

    def _search(self, low: int, high: int, is_behind: _Predicate) -> int:
        """
        The first index from C{low} on for which C{is_behind} is true, as for all later; else C{high}. If
        units that cannot be read hide it, an index before it, and C{_is_unsure} is true then.
        """
        self._is_unsure = False
        while low < high:
            middle = (low + high) // 2
            unit, at = self._unit(middle), middle
            if unit is None:
                at, unit = self._next_readable(middle, low - 1, -1)
            if unit is None:
                at, unit = self._next_readable(middle, high, 1)
                if unit is None or is_behind(unit):
                    self._is_unsure = True
                    return low
            if is_behind(unit):
                high = at
            else:
                low = at + 1
        return low

    def _scan(self, index: int, behind: int) -> int:
        """The first index from C{index} on without a unit, or whose record is before the previous one."""
        last = -1
        while index < behind:
            data, lost = self._load(index, min(_READ_BYTES // UNIT_SIZE, behind - index))
            for offset, size, _ in UNIT.iter_unpack(data):
                if index in lost:
                    index += 1
                    continue
                if size <= 0 or offset < 0 or (size != FILLER_SIZE and offset <= last):
                    return index
                if size != FILLER_SIZE:
                    last = offset
                index += 1
        return index
