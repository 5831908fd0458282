# -*- test-case-name: tests.broker.ha.test_tail -*-
"""
The offset from which a slave compares its log with its master's.

A slave that reports less than it holds is sent the rest again, and can compare. That works with
every RocketMQ: a report above 0 is served from exactly that offset. To prove equality the compared bytes must
hold the start of a record: bodies and blanks of two different logs may be equal, but the offset of a record,
its timestamps and checksums are not.

Records are searched backwards, by their magic number and their own offset in the log.

This module knows nothing of connections. It searches at most L{SEARCH_SIZE_MAX} bytes.
"""

from __future__ import annotations

from dledger.rocketmq.replication.ports import LogPort
from protocols.wire.rocketmq.layout import HEAD, HEAD_SIZE, MAGIC_V1, MAGIC_V2, START_DECLARATION

_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_MAGIC_AT = START_DECLARATION.subcons[0].sizeof()
_PHYSICAL_OFFSET = 6  # position among the fields of a head

#: Bytes to search: a body is at most 4 MiB, and a record adds little to it.
SEARCH_SIZE_MAX = 8 * 1024 * 1024
#: Bytes of one read of the search; it goes back from the end.
CHUNK_SIZE = 64 * 1024

#: The lowest first report of a slave that is not empty: 0 means an empty slave.
FIRST_REPORT_MIN = 1


def record_start_below(log: LogPort, offset: int) -> int:
    """
    The highest start of a record at or below C{offset}, in the same file; the start of the file if none
    is found.

    @param offset: C{begin_offset} to C{end_offset} of a log that is not empty.
    """
    file_offset = offset - offset % log.file_size
    high = offset
    lowest = max(file_offset, offset - SEARCH_SIZE_MAX)
    while high > lowest:
        low = max(lowest, high - CHUNK_SIZE)
        found = _last_start(log, low, high)
        if found >= 0:
            return found
        high = low
    return file_offset


def _last_start(log: LogPort, low: int, high: int) -> int:
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


def verification_start(log: LogPort, *, below: int, size: int) -> int:
    """
    The first report of a slave that is not empty: the master sends the log from there on again.

    @param below: end of the range to compare, which begins C{size} bytes before it or earlier.
    """
    offset = max(below - size, log.begin_offset)
    return max(record_start_below(log, offset), log.begin_offset, FIRST_REPORT_MIN)


def first_difference(ours: bytes, theirs: bytes | memoryview) -> int:
    """
    Index of the first byte in which two equally long pieces differ; their length if they are equal.
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
