# -*- test-case-name: tests.spark.test_topic_queues -*-
"""
Where the messages of some topics are in a broker's commit log, by the consume queues beside it.

A queue numbers its messages without a gap, and each message holds its number, so the queue proves itself: the
messages at the two units around a range, and those of all units in it, must have the topic, the queue and the
numbers of their units. Then none is missing between them. What does not fit is a L{QueueMisfit}; the caller
walks the log instead.

What cannot be seen here is said in docs/spark-reference.md (option C{byQueues}). Queues are written after
the log, and by a broker of ours in turns, so they are asked only about files of the log that are older than
the checkpoint says, which is the rule by which a broker itself trusts them after a crash.

Source: ConsumeQueue.java, StoreCheckpoint.java, CommitLog.recoverAbnormally (4.9.8, 5.3.3).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from dledger.base.disk.disk import ReadOnlyDisk
from dledger.base.disk.segment import SegmentReader, offsets_in
from dledger.spark.formats.log import FixedParts, Offsets
from dledger.spark.rocketmq.queue_ends import CHECKPOINT_NAME, FILLER_SIZE, QUEUES_NAME, UNIT
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.message import decode_message

#: Java subtracts this from the times of the checkpoint.
_MARGIN_MS = 3000
#: Bytes of a queue that are looked at in one step, where it should be empty.
_STEP_BYTES = 1024 * 1024
_DISK = ReadOnlyDisk()


class QueueMisfit(Exception):
    """A queue does not fit to the log, or is not there; the text says which and why."""


@attrs.frozen(kw_only=True, eq=False)
class Named:
    """
    Messages that queues name, in the order of the log, as arrays of one length.

    @ivar topics, queue_ids, numbers: what each message must hold; topics as numbers, in the caller's order.
    """

    positions: Offsets
    sizes: Offsets
    topics: Offsets
    queue_ids: Offsets
    numbers: Offsets


def trusted_until_ms(root: str) -> int:
    """
    Store time of messages that all queues on the disk name, as the checkpoint says; 0: it says nothing.

    @raise OSError: it cannot be read.
    """
    try:
        with open(f"{root}/{CHECKPOINT_NAME}", "rb") as file:
            data = file.read(16)
    except FileNotFoundError:
        return 0
    times = [int.from_bytes(data[at : at + 8], "big", signed=True) for at in (0, 8)]
    return max(min(times) - _MARGIN_MS, 0) if len(data) == 16 else 0


class QueuesOfTopics:
    """The queues of some topics, and the log that they name places of."""

    def __init__(self, root: str, topics: Sequence[str], log: SegmentReader) -> None:
        """
        @param log: shows its files; the caller closes it.
        @raise QueueMisfit: a topic has no queues.
        @raise OSError: they cannot be listed.
        """
        self._queues = [_Queue(f"{root}/{QUEUES_NAME}", topic, number, queue_id, log)
                        for number, topic in enumerate(topics)
                        for queue_id in _queue_ids(f"{root}/{QUEUES_NAME}/{topic}")]

    def is_clear(self, begin: int, end: int) -> bool:
        """Whether no message begins in a range. @raise QueueMisfit, OSError: see L{named}."""
        return all(queue.is_clear(begin, end) for queue in self._queues)

    def named(self, begin: int, end: int) -> Named:
        """
        The messages that begin in a range.

        @raise QueueMisfit: units do not rise, or those around the range are not of their messages.
        @raise OSError: a queue cannot be read.
        """
        found = [(queue, *queue.units(begin, end)) for queue in self._queues]
        positions, sizes, numbers, topics, ids = (np.concatenate([
            np.empty(0, dtype=np.int64), *(np.asarray(part, dtype=np.int64) for part in parts)
        ]) for parts in (
            [units["offset"] for _, _, units in found], [units["size"] for _, _, units in found],
            [np.arange(first, first + len(units)) for _, first, units in found],
            [np.full(len(units), queue.topic_number) for queue, _, units in found],
            [np.full(len(units), queue.queue_id) for queue, _, units in found],
        ))
        order = np.argsort(positions, kind="stable")
        positions, sizes = positions[order], sizes[order]
        if (positions[:-1] + sizes[:-1] > positions[1:]).any():
            raise QueueMisfit("queues name messages that overlap")
        return Named(positions=positions, sizes=sizes, topics=topics[order], queue_ids=ids[order],
                     numbers=numbers[order])

    def close(self) -> None:
        """Release the files of the queues."""
        for queue in self._queues:
            queue.close()


def _queue_ids(directory: str) -> list[int]:
    try:
        names = [name for name in os.listdir(directory) if name.isascii() and name.isdecimal()]
    except (FileNotFoundError, NotADirectoryError):
        names = []
    if not names:
        raise QueueMisfit(f"{directory}: the topic has no queues there")
    return sorted(map(int, names))


class _Queue:
    """One queue. Units are counted from the first one of its first file."""

    def __init__(self, root: str, topic: str, topic_number: int, queue_id: int, log: SegmentReader) -> None:
        self._topic = topic
        self.topic_number = topic_number
        self.queue_id = queue_id
        self._log = log
        directory = f"{root}/{topic}/{queue_id}"
        self._files = SegmentReader(_DISK, directory, handles_max=2)
        offsets = offsets_in(_DISK, directory)[0]
        size = _DISK.file_size(self._files.path(offsets[0])) if offsets else 0
        self._files.show(offsets, size)
        if not size or size % UNIT.itemsize or offsets[0] % UNIT.itemsize or (np.diff(offsets) != size).any():
            self._misfit("files are missing, or have another size")
        self._first = offsets[0] // UNIT.itemsize
        self._count = len(offsets) * size // UNIT.itemsize
        #: Numbers of units after which the queue is known to be empty.
        self._known_ends: set[int] = set()

    def _misfit(self, what: str) -> None:
        raise QueueMisfit(f"{self._files.directory}: {what}")

    def close(self) -> None:
        """Release the files."""
        self._files.close()

    def _read(self, at: int, count: int) -> FixedParts:
        """Units; of several files."""
        pieces, size = [], UNIT.itemsize
        position, left = (self._first + at) * size, min(count, self._count - at) * size
        while left > 0:
            data = self._files.pread(left, position)
            if not data or len(data) % size:
                self._misfit("a file is gone, or shorter than the others")
            pieces.append(data)
            position, left = position + len(data), left - len(data)
        return np.frombuffer(b"".join(pieces), dtype=UNIT)

    def _search(self, position: int) -> int:
        """The first unit that is unused, or names a message that begins at C{position} or after it."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            (unit,) = self._read(middle, 1)
            is_before = unit["size"] == FILLER_SIZE or (unit["size"] > 0 and unit["offset"] < position)
            low, high = (middle + 1, high) if is_before else (low, middle)
        return low

    def is_clear(self, begin: int, end: int) -> bool:
        """See L{QueuesOfTopics.is_clear}."""
        first = self._search(begin)
        if self._search(end) > first:
            return False
        self._check_edges(first, first, begin, end)
        return True

    def units(self, begin: int, end: int) -> tuple[int, FixedParts]:
        """The units of a range, and the number of the first one. See L{QueuesOfTopics.named}."""
        first, last = self._search(begin), self._search(end)
        units = self._read(first, last - first)
        self._check_edges(first, last, begin, end)
        positions = units["offset"].astype(np.int64)
        is_fit = (units["size"] > 0) & (units["size"] < FILLER_SIZE)
        is_fit &= (positions >= begin) & (positions < end)
        if not is_fit.all() or (positions[1:] <= positions[:-1]).any():
            self._misfit(f"units from {self._first + first} to {self._first + last} do not rise")
        return self._first + first, units

    def _check_edges(self, first: int, last: int, begin: int, end: int) -> None:
        """Check the units around those from C{first} to before C{last}."""
        if first == 0 and self._first:
            self._misfit(f"its first unit is {self._first}, and the messages before it may be in the range")
        if first:
            (unit,) = self._read(first - 1, 1)
            position = int(unit["offset"])
            is_gone = 0 <= position < self._log.offsets[0] and 0 < unit["size"] < FILLER_SIZE
            if not is_gone:
                self._check_message(first - 1, unit)
            if position >= begin:
                self._misfit(f"unit {self._first + first - 1} is not before the range")
        if last == self._count:
            return
        (unit,) = self._read(last, 1)
        if unit["size"] == 0:
            self._check_empty(last)
            return
        self._check_message(last, unit)
        if int(unit["offset"]) < end:
            self._misfit(f"unit {self._first + last} is not after the range")

    def _check_message(self, at: int, unit: np.void) -> None:
        """Check that a unit names the message of its number."""
        position, size, number = int(unit["offset"]), int(unit["size"]), self._first + at
        try:
            if not 0 < size <= self._log.file_size:
                raise WireError(f"a size of {size}")
            message = decode_message(self._log.pread(size, position), physical_offset=position)
        except WireError as error:
            self._misfit(f"unit {number} names no message: {error}")
        found = message.topic, message.queue_id, message.queue_offset, message.size
        if found != (self._topic, self.queue_id, number, size):
            self._misfit(f"unit {number} names a message with topic, queue, number and size {found}")

    def _check_empty(self, at: int) -> None:
        """Check that there is nothing from a unit on."""
        if at in self._known_ends:
            return
        for first in range(at, self._count, _STEP_BYTES // UNIT.itemsize):
            if self._read(first, _STEP_BYTES // UNIT.itemsize)["size"].any():
                self._misfit(f"unit {self._first + at} is zero, and others follow")
        self._known_ends.add(at)


def stops(named: Named, end: int, most_bytes: int) -> Iterator[int]:
    """
    Where stretches of the log end whose messages are read together: one, or more with at most C{most_bytes}.
    The last one ends at C{end}.
    """
    sums, first = np.cumsum(named.sizes), 0
    while True:
        before = int(sums[first - 1]) if first else 0
        first = max(int(np.searchsorted(sums, before + most_bytes, side="right")), first + 1)
        if first >= len(sums):
            break
        yield int(named.positions[first - 1] + named.sizes[first - 1])
    yield end
