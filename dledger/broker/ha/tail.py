# -*- test-case-name: tests.broker.ha.test_tail -*-
"""
Where a slave begins to compare its log with its master's.

A slave that reports less than it holds is sent the rest once more, and can compare. That works with
every RocketMQ: a report above 0 is served from exactly there. To prove anything the stretch must hold the
start of a record: bodies and blanks of two logs that differ may well be equal, the place of a record, its
timestamps and checksums are not.

Records are found from behind, by their magic number and by the offset that each has of itself.

Knows nothing of connections. Reads at most L{SEARCH_SIZE_MAX} bytes.
"""

from __future__ import annotations

from dledger.broker.ha.ports import CommitLog
from protocols.wire.rocketmq.layout import HEAD, HEAD_SIZE, MAGIC_V1, MAGIC_V2, START_DECLARATION

_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_MAGIC_AT = START_DECLARATION.subcons[0].sizeof()
_PHYSICAL_OFFSET = 6  # its place among the fields of a head

#: A record is never longer than 4 MiB and what stands around its body.
SEARCH_SIZE_MAX = 8 * 1024 * 1024
_CHUNK_SIZE = 64 * 1024

#: The lowest first report of a slave that holds something: 0 would say that it holds nothing.
FIRST_REPORT_MIN = 1


def record_start_below(log: CommitLog, offset: int) -> int:
    """
    The highest start of a record at or below C{offset}, in the same file: where the file begins if none
    is found.

    @param offset: C{begin_offset} to C{end_offset}, not both.
    """
    file_offset = offset - offset % log.file_size
    high = offset
    lowest = max(file_offset, offset - SEARCH_SIZE_MAX)
    while high > lowest:
        low = max(lowest, high - _CHUNK_SIZE)
        found = _last_start(log, low, high)
        if found >= 0:
            return found
        high = low
    return file_offset


def _last_start(log: CommitLog, low: int, high: int) -> int:
    """The highest start of a record from C{low} to C{high}, both included; -1 for none."""
    data = log.read(low, high - low + HEAD_SIZE)
    at = len(data)
    while at > 0:
        at = max(data.rfind(magic, 0, at) for magic in _MAGICS)
        start = at - _MAGIC_AT
        if not 0 <= start <= len(data) - HEAD_SIZE:
            continue
        physical_offset: int = HEAD.unpack_from(data, start)[_PHYSICAL_OFFSET]
        if physical_offset == low + start:
            return physical_offset
    return -1


def verification_start(log: CommitLog, *, below: int, size: int) -> int:
    """
    The first report of a slave that holds something: it will be sent everything from there on again.

    @param below: the comparison reaches at least from C{size} bytes below here up to here.
    """
    offset = max(below - size, log.begin_offset)
    return max(record_start_below(log, offset), log.begin_offset, FIRST_REPORT_MIN)


def first_difference(ours: bytes, theirs: bytes | memoryview) -> int:
    """
    Index of the first byte in which two equally long pieces differ; their length if there is none.
    """
    if ours == theirs:
        return len(ours)
    low, high = 0, len(ours)  # equal below low; a difference below high
    view = memoryview(ours)
    while high - low > 1:
        middle = (low + high) // 2
        if view[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle
    return low
