# -*- test-case-name: tests.broker.store.test_mark_fit -*-
"""
Whether a log mark speaks of the files that it lies beside.

An operator may have put another commit log in the place of the one that the mark was written for: the
slave's, a backup. A start that believed the mark would end the log in the middle of it, and the next messages
would be written over sound records. So a start is refused if the files contradict the mark.

Rule 1: only what is sound contradicts: a record with its own offset and checksum that lies across the end,
or, after a run that ended in order, one that begins at it or after it. Damage contradicts nothing.
Rule 2: after such a run, a log whose last sound record ends before the mark does, with nothing but zeros
between them, is an older one. (After a crash they may be records that a disk has lost.)

As a rule a start reads L{_PIECE} bytes before the end, and L{_SEARCHED} bytes of zeros after it.
"""

from __future__ import annotations

from dledger.base.disk.segment import SegmentList
from dledger.rocketmq.store.records.records import MIN_BLANK_SIZE, check_record
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, START, START_SIZE

_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK))
_PIECE = 64 * 1024
#: Bytes on each side of the end that are searched for a sound record: more than the largest one has.
_SEARCHED = 16 * 1024 * 1024


def contradiction(files: SegmentList, end: int, *, is_clean: bool) -> str:
    """
    What in the files contradicts that the log ends at C{end}; empty if nothing does.

    @param is_clean: nothing was written since the mark, so nothing may be after the end.
    @raise OSError: reading failed.
    """
    if not files.offsets:
        return ""
    before = _last_before(files, end)
    if before is not None and before[1] > end:
        return f"a sound record at {before[0]} reaches to {before[1]}"
    if is_clean and before is not None and before[1] < end and _is_zero(files, before[1], end):
        return f"its last sound record ends at {before[1]}, and zeros follow"
    behind = _first_from(files, end) if is_clean else None
    return "" if behind is None else f"a sound record begins at {behind}, after that end"


def _last_before(files: SegmentList, end: int) -> tuple[int, int] | None:
    """The last sound record or blank that begins before C{end}, in the same file: its begin and its end."""
    base = files.base(end - 1)
    if end <= files.offsets[0] or not files.has(base):
        return None
    high = end
    while high > max(base, end - _SEARCHED):
        low = max(base, high - _PIECE)
        # (The magic of a record at the end of the piece lies after it.)
        data = files.pread(high - low + START_SIZE, low)
        starts = sorted({at - 4 for magic in _MAGICS for at in _found(data, magic)}, reverse=True)
        for at in starts:
            if 0 <= at < high - low and (size := _sound_size(files, low + at, base)):
                return low + at, low + at + size
        high = low
    return None


def _first_from(files: SegmentList, end: int) -> int | None:
    """The first sound record at C{end} or after it."""
    at, searched = end, 0
    while searched < _SEARCHED and files.has(base := files.base(at)):
        data = files.pread(min(_PIECE + START_SIZE, base + files.file_size - at), at)
        if any(data):
            for start in sorted(found - 4 for magic in _MAGICS[:2] for found in _found(data, magic)):
                if start >= 0 and _sound_size(files, at + start, base):
                    return at + start
        step = min(_PIECE, base + files.file_size - at)
        at, searched = at + step, searched + step
    return None


def _found(data: bytes, magic: bytes) -> list[int]:
    places, at = [], data.find(magic)
    while at >= 0:
        places.append(at)
        at = data.find(magic, at + 1)
    return places


def _sound_size(files: SegmentList, offset: int, base: int) -> int:
    """The size of the sound record or blank at C{offset}, of the file at C{base}; 0: there is none."""
    room = base + files.file_size - offset
    if room < MIN_BLANK_SIZE:
        return 0
    size, magic = START.unpack(files.pread(START_SIZE, offset))
    if magic == MAGIC_BLANK:
        return room if size == room else 0
    if not 0 < size <= room - MIN_BLANK_SIZE:
        return 0
    try:
        return check_record(files.pread(size, offset), 0, offset, room - MIN_BLANK_SIZE)[0]
    except WireError:
        return 0


def _is_zero(files: SegmentList, begin: int, end: int) -> bool:
    while begin < end:
        data = files.pread(min(_PIECE, end - begin), begin)
        if any(data) or not data:
            return False
        begin += len(data)
    return True
