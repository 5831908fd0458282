# -*- test-case-name: tests.spark.test_scan -*-
"""
The common interface of all sources of records, and the cutting of a range into parts.

An I{offset} counts entries where the log is a ledger (its indexes) and bytes where it is a broker's commit
log. Ends of ranges are exclusive, as Kafka's are. A log is opened where it is used, reads only committed
records, and raises only the errors defined here.
"""

from __future__ import annotations

import heapq
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias, runtime_checkable

import attrs
import numpy as np
from numpy.typing import NDArray

from dledger.spark.formats.options import ScanOptions
from dledger.spark.formats.proof import Proof

Offsets: TypeAlias = NDArray[np.int64]
#: The fixed parts of records: a structured array whose fields are those of a construct declaration.
FixedParts: TypeAlias = NDArray[np.void]


#: Pauses between attempts to read a log that is not ready, seconds: the first and the longest.
PAUSE_S, PAUSE_MAX_S = 0.02, 0.5
#: A log is not divided between processors into smaller parts: a task costs Spark about 30 ms.
PART_BYTES_MIN = 1024 * 1024


class ReadError(Exception):
    """The log cannot be read; the message says where, why, and if possible what to do."""


class DataLossError(ReadError):
    """
    Some of the wanted entries have expired, or the log is not the one that was read before, and
    C{failOnDataLoss} is set.
    """


class NotCommittedError(ReadError):
    """The wanted entries are not committed where they are read, or not yet."""


class DamageError(ReadError):
    """A record is not as it was written; the message names file (or member) and offset."""


class ScanWarning(UserWarning):
    """Records were left out, as an option allows; the message says how many."""


@attrs.frozen(kw_only=True)
class Extent:
    """
    The readable range of a log.

    @ivar begin: first offset that is still there.
    @ivar end: offset after the last committed record; C{begin} if there is no record.
    @ivar note: more about records before C{begin}, a sentence after a full stop; or empty.
    @ivar is_lost: records before C{begin} are missing, but have not expired; C{note} has the reason.
    """

    begin: int
    end: int
    note: str = ""
    is_lost: bool = False


@attrs.frozen(kw_only=True)
class LogPart:
    """
    A range that one task reads; C{end} is exclusive, C{size_bytes} an estimate.

    @ivar is_archived: it is read from option C{archive}, because the log itself does not have it any more.
    """

    begin: int
    end: int
    size_bytes: int
    is_archived: bool = False


@attrs.frozen(kw_only=True)
class RecordLookup:
    """
    What else can be learnt of records of which only the index was read.

    @ivar pread: bytes of the log: their number, their position. Fewer if a file is too short, or missing.
    @ivar doubtful: which of some entries (the first one, their number) may have a C{channel}.
    """

    pread: Callable[[int, int], bytes]
    doubtful: Callable[[int, int], NDArray[np.bool_]]


@attrs.frozen(kw_only=True)
class Chunk:
    """
    Whole records in memory, consecutive ones of the log unless C{positions} says where they were.

    @ivar data: their bytes, without gaps; None if only C{units} were wanted.
    @ivar starts: where each record begins in C{data}, then where the last one ends.
    @ivar units: their index units, if the log has an index.
    @ivar first: offset of the first record.
    @ivar chain_before: C{chain_crc} of the record before the first one; None: not known.
    @ivar place: a path or a member, for messages.
    @ivar place_at: byte in C{place} where C{data} begins.
    @ivar records: for records without C{data}.
    @ivar positions: where each record is in the log, if others that are left out lie between them.
    """

    data: bytes | memoryview | None
    starts: Offsets
    units: FixedParts | None = None
    first: int
    place: str
    place_at: int = 0
    chain_before: int | None = None
    records: RecordLookup | None = None
    positions: Offsets | None = None

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.starts) - 1


@runtime_checkable
class CutsItself(Protocol):
    """A source of records in files, which costs less to read by whole files."""

    def own_parts(self, begin: int, end: int) -> list[LogPart]:
        """See L{cut}."""


class ScannedLog(Protocol):
    """A source of records."""

    def extent(self, *, needs_begin: bool = True) -> Extent:
        """
        The range that can be read now.

        @param needs_begin: false: the caller goes on after the beginning, which may then be too high.
        @raise ReadError: the range cannot be found out.
        """

    def group_id(self) -> str:
        """
        The id of the log's group, as of the last L{extent}; empty if it is not known.

        @raise ReadError: the record of it cannot be read.
        """

    def proof(self, offset: int) -> Proof:
        """
        Facts by which this log is recognised later: of its group, and of the last record before C{offset} if
        that is in the last L{extent}.

        @raise ReadError: the record cannot be read.
        """

    def position_of(self, offset: int) -> int:
        """
        Bytes of the log before C{offset}, which is within the last L{extent}, its end included.

        @raise ReadError: the log cannot be read, or has changed meanwhile.
        """

    def after(self, begin: int, end: int, count: int) -> int:
        """
        The offset after C{count} records from C{begin} on, at most C{end}.

        @raise ReadError: it cannot be read.
        """

    def chunks(self, begin: int, end: int, *, with_data: bool) -> Iterator[Chunk]:
        """
        Records from C{begin} to C{end} (exclusive), in order, each once.

        @param with_data: false: C{units} without C{data} are enough.
        @raise ReadError: they cannot be read.
        """

    def close(self) -> None:
        """Release handles and connections."""


def skipped(what: str) -> None:
    """Warn the user that records were left out: once for each task, on the worker's standard error."""
    warnings.warn(what, ScanWarning, stacklevel=3)


def lost(options: ScanOptions, begin: int, first: int, *, end: int | None = None, note: str = "") -> int:
    """
    Report that the entries from C{begin} on have expired.

    @param first: the first offset that is still there.
    @param end: end of the wanted range, exclusive; None: it has none.
    @param note: more about the reason.
    @return: where reading continues: C{first}, at most C{end}.
    @raise DataLossError: C{failOnDataLoss} is set.
    """
    following = first if end is None else min(first, end)
    what = (f"{options.source}: offsets {begin}..{following - 1} have expired; the first one still there is "
            f"{first}{note}")
    if options.fail_on_data_loss:
        raise DataLossError(f"{what}. With option failOnDataLoss=false reading continues at {following}")
    skipped(f"{what}; reading continues at {following}")
    return following


def await_end(log: ScannedLog, options: ScanOptions, end: int) -> Extent:
    """
    The extent of C{log} as soon as it reaches C{end}, which was committed elsewhere, or earlier.

    @raise NotCommittedError: it does not reach it for C{requestTimeoutMs}.
    @raise ReadError: the extent cannot be found out.
    """
    deadline, pause = time.monotonic() + options.request_timeout_ms / 1000, PAUSE_S
    while True:
        extent = log.extent(needs_begin=False)
        if extent.end >= end:
            return extent
        left = deadline - time.monotonic()
        if left <= 0:
            raise NotCommittedError(
                f"{options.source}: entries up to offset {end - 1} were committed when they were read or "
                f"planned, but it ends at {extent.end}, and has not reached them for "
                f"{options.request_timeout_ms} ms (requestTimeoutMs): it lags behind, or it went back "
                "(restored, or made anew)"
            )
        time.sleep(min(pause, left))
        pause = min(2 * pause, PAUSE_MAX_S)


def cut(log: ScannedLog, options: ScanOptions, begin: int, end: int) -> list[LogPart]:
    """
    Cut a range into parts of about C{partitionBytes} and at most C{maxRecordsPerPartition} offsets, at least
    C{minPartitions} of them if there are enough offsets, or one for each processor. The largest part is
    halved until that is reached; each cut reads a position of the log, or more where entries differ in size.
    """
    if begin >= end:
        return []
    return log.own_parts(begin, end) if isinstance(log, CutsItself) else halved(log, options, begin, end)


def halved(log: ScannedLog, options: ScanOptions, begin: int, end: int) -> list[LogPart]:
    """See L{cut}; there is an offset in the range."""
    position = log.position_of(begin)
    # Largest first; among equal ones the first in the log.
    heap = [(position - log.position_of(end), begin, end, position)]
    wanted = options.min_partitions or min(options.processors, -heap[0][0] // PART_BYTES_MIN)
    whole: list[tuple[int, int, int]] = []  # parts of one offset, which cannot be halved
    while heap:
        size, first, last, position = heap[0]
        if len(heap) + len(whole) >= wanted and -size <= options.partition_bytes * 3 // 2:
            break
        heapq.heappop(heap)
        if last - first < 2:
            whole.append((first, last, -size))
            continue
        middle, middle_position = _halved(log, first, last, position, position - size)
        heapq.heappush(heap, (position - middle_position, first, middle, position))
        heapq.heappush(heap, (middle_position - position + size, middle, last, middle_position))
    whole += [(first, last, -size) for size, first, last, _ in heap]
    parts = [LogPart(begin=first, end=last, size_bytes=size) for first, last, size in sorted(whole)]
    return capped(parts, options.max_records_per_partition)


def _halved(log: ScannedLog, first: int, last: int, position: int, end_position: int) -> tuple[int, int]:
    """
    An offset between C{first} and C{last}, with about half of the bytes before it, and its position.

    @param position, end_position: of C{first} and of C{last}, which are at least two apart.
    """
    target, slack = (position + end_position) // 2, (end_position - position) // 8
    low, high = first, last
    while high - low > 2:
        middle = (low + high) // 2
        found = log.position_of(middle)
        if abs(found - target) <= slack:
            return middle, found
        low, high = (middle, high) if found < target else (low, middle)
    # Never an end of the range, also with damaged positions: each cut makes parts smaller.
    middle = min(max((low + high) // 2, first + 1), last - 1)
    return middle, log.position_of(middle)


def capped(parts: list[LogPart], most: int) -> list[LogPart]:
    """These parts, cut where they have more than C{most} offsets; 0: there is no limit."""
    if not most:
        return parts
    found = []
    for part in parts:
        pieces = -(-(part.end - part.begin) // most)
        edges = [part.begin + (part.end - part.begin) * number // pieces for number in range(pieces + 1)]
        found += [attrs.evolve(part, begin=first, end=last, size_bytes=part.size_bytes // pieces)
                  for first, last in zip(edges, edges[1:], strict=False)]
    return found


def furthest(log: ScannedLog, begin: int, end: int, max_bytes: int) -> int:
    """
    The highest offset up to C{end} with at most C{max_bytes} between C{begin} and it; at least one entry
    beyond C{begin} if there is one.
    """
    if begin >= end:
        return begin
    limit = log.position_of(begin) + max_bytes
    low, high = begin + 1, end
    while low < high:
        middle = (low + high + 1) // 2
        if log.position_of(middle) <= limit:
            low = middle
        else:
            high = middle - 1
    return low
