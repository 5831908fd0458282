# -*- test-case-name: tests.spark.test_topic_queues -*-
"""
The shorter road through a broker's commit log: option C{byQueues}. Only the messages of the wanted topics are
read, at the places that the consume queues name; every message read is compared with its unit. Where a queue
does not fit, a warning says so, and the log is walked from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dledger.base.disk.segment import SegmentReader
from dledger.spark.formats.log import Chunk, LogPart, Offsets, skipped
from dledger.spark.formats.options import ScanOptions
from dledger.spark.rocketmq.messages import cut_out, find
from dledger.spark.rocketmq.queue_ends import store_root
from dledger.spark.rocketmq.topic_queues import Named, QueueMisfit, QueuesOfTopics, stops, trusted_until_ms
from protocols.wire.rocketmq.layout import MIN_MESSAGE_SIZE

#: Messages that are nearer than this are read at once, with what is between them.
_GAP_BYTES = 64 * 1024


class QueueRoad:
    """
    Reads by the queues of a store.

    @ivar trusted_end: the queues are asked only about messages before it: a file's first byte.
    """

    def __init__(
        self, options: ScanOptions, files: SegmentReader, first_stored_ms: Callable[[int], int]
    ) -> None:
        """
        @param files: of the log.
        @param first_stored_ms: store time of a file's first message, -1: not known.
        """
        self._options = options
        self._files = files
        self._queues: QueuesOfTopics | None = None
        self.trusted_end = 0
        try:
            root = store_root(files.directory)
            until_ms = trusted_until_ms(root) if root is not None else 0
            if root is None or not until_ms:
                raise QueueMisfit("no checkpoint is beside the log")
            self._queues = QueuesOfTopics(root, options.topics, files)
            for base in reversed(files.offsets):
                if 0 <= first_stored_ms(base) <= until_ms:
                    self.trusted_end = base
                    break
        except (QueueMisfit, OSError) as error:
            self._leave(error, files.offsets[0] if files.offsets else 0)

    def _leave(self, error: Exception, position: int) -> None:
        skipped(f"{self._files.directory}: the log is walked from {position} on, because queues do not fit: "
                f"{error}")
        self.trusted_end = 0

    def wanted(self, parts: list[LogPart]) -> list[LogPart]:
        """The parts in which there may be a message."""
        found = []
        for part in parts:
            try:
                queues = self._queues if part.end <= self.trusted_end else None
                if queues is not None and queues.is_clear(part.begin, part.end):
                    continue
            except (QueueMisfit, OSError) as error:
                self._leave(error, part.begin)
            found.append(part)
        return found

    def chunks(self, begin: int, end: int) -> Generator[Chunk, None, int]:
        """
        The wanted messages of a range, as far as the queues are trusted.

        @return: where to go on without them.
        """
        end = min(end, self.trusted_end)
        if begin >= end or self._queues is None:
            return begin
        position = begin
        try:
            for stop in stops(self._queues.named(begin, end), end, self._options.fetch_bytes):
                # Each stretch is proved by itself, before any of it is shown: those after it may not fit.
                named = self._queues.named(position, stop)
                if len(named.positions):
                    yield self._chunk(named)
                position = stop
        except (QueueMisfit, OSError) as error:
            self._leave(error, position)
        return position

    def _chunk(self, named: Named) -> Chunk:
        positions, sizes = named.positions, named.sizes
        data = self._read(positions, positions + sizes)
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        if len(data) != int(starts[-1]) or (sizes < MIN_MESSAGE_SIZE).any():
            raise QueueMisfit(f"a message from {positions[0]} to {positions[-1]} has another size")
        found = find(data, starts[:-1], starts[1:], positions)
        is_fit = found.is_sound & (found.head["queue_id"] == named.queue_ids)
        is_fit &= found.head["queue_offset"] == named.numbers
        if is_fit.all():
            topics = pa.array([topic.encode() for topic in self._options.topics], type=pa.binary())
            wanted = topics.take(pa.array(named.topics))
            is_fit &= np.asarray(pc.equal(cut_out(data, found.topic, found.topic_ends), wanted))
        if not is_fit.all():
            at = int(np.argmin(is_fit))
            raise QueueMisfit(f"the message at {positions[at]} is not unit {named.numbers[at]} of queue "
                              f"{named.queue_ids[at]}")
        return Chunk(data=data, starts=starts, first=int(positions[0]), positions=positions,
                     place=self._files.directory)

    def _read(self, begins: Offsets, ends: Offsets) -> bytes:
        """The bytes of messages, one after the other."""
        bases = np.searchsorted(np.array(self._files.offsets), begins, side="right")
        is_apart = (begins[1:] - ends[:-1] > _GAP_BYTES) | (bases[1:] != bases[:-1])
        edges = [0, *(np.flatnonzero(is_apart) + 1).tolist(), len(begins)]
        pieces: list[bytes | memoryview] = []
        for first, last in zip(edges, edges[1:], strict=False):
            position = int(begins[first])
            run = self._files.pread(int(ends[last - 1]) - position, position)
            if (begins[first + 1 : last] == ends[first : last - 1]).all():
                pieces.append(run)
                continue
            view = memoryview(run)
            places = zip((begins[first:last] - position).tolist(), (ends[first:last] - position).tolist(),
                         strict=True)
            pieces += [view[begin:end] for begin, end in places]
        return b"".join(pieces)

    def close(self) -> None:
        """Release the files of the queues."""
        if self._queues is not None:
            self._queues.close()
