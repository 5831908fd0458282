# -*- test-case-name: tests.broker.store.test_unit_mending -*-
"""
Makes units of consume queues again that the disk cannot read, from the records of the log.

Rule 1: the log is read from the record of the last readable unit before them to that of the first one after
them, by the dispatcher of the log. A few are made at once, by the read that misses them; the rest of a long
way through the log in later turns, and that read fails until then.
Rule 2: made units are kept in memory, and written where they were, so that the disk takes another sector. If
it does not, they stay in memory.
Rule 3: where the log is damaged, the walk goes on with the next file of the log; a record found there has the
place that it names. A unit whose record is not found is passed over by readers; nothing is written for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from dledger.rocketmq.store.queues.consume_queue import ConsumeQueue
from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.store.queues.queue_files import FILLER_SIZE, UNIT, Unit
from dledger.rocketmq.store.queues.queue_list import QueueKey
from dledger.rocketmq.store.queues.reput import Dispatcher, Puts
from dledger.rocketmq.store.records.message_log import MessageLog
from dledger.rocketmq.store.records.store_config import UNIT_SIZE
from dledger.values.errors import StoreError
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import HEAD, HEAD_SIZE

#: Bytes of the log that are read in one turn, and seconds between two turns.
SLICE_BYTES = 1024 * 1024
PAUSE_S = 0.02
#: Units that are kept in memory at most; then the oldest are made again when they are asked for.
KEPT_MAX = 65_536
#: Stretches of units that wait for their turn at most; more are found again by the next read.
WAITING_MAX = 64

#: For readers: a unit whose message does not exist. (No record begins at such an offset.)
_GONE = UNIT.pack(-1, FILLER_SIZE, 0)


@attrs.define
class _Found:
    """
    The units of one queue that a walk meets.

    @ivar lost: the wanted ones.
    @ivar following: index of the next unit, if no record is missed before it.
    @ivar shift: how far the index of a record is above that of its unit.
    @ivar has_missed: records may have been missed since the last unit.
    """

    key: QueueKey
    lost: range
    following: int
    has_missed: bool
    shift: int = 0
    units: dict[int, bytes] = attrs.Factory(dict)
    unwritten: int = 0

    def put(self, topic: str, queue_id: int, index: int, offset: int, size: int, tags_code: int) -> bool:
        """
        Take a unit of the queue; see rules 1 and 4 of L{dledger.rocketmq.store.queues.consume_queue}.
        """
        if (topic, queue_id) != self.key:
            return False
        if not index:
            self.units.clear()
            self.following = 0
            self.shift = 0
        if self.has_missed:
            self.following = max(index - self.shift, self.following)
            self.has_missed = False
        at = self.following
        if index < at:
            return False
        self.shift = index - at
        self.following += 1
        if at in self.lost:
            self.units[at] = UNIT.pack(offset, size, tags_code)
        return False

    def write(self) -> None:
        """Nothing is written here."""

    @property
    def is_whole(self) -> bool:
        """Whether all wanted units were met."""
        return len(self.units) == len(self.lost)


@attrs.define
class _Job:
    """One stretch of units that cannot be read. @ivar stop: the walk through the log ends here."""

    queue: ConsumeQueue
    found: _Found
    walk: Dispatcher
    stop: int


class UnitMending:
    """
    Invariant: C{_call} is scheduled while jobs wait.

    @ivar mended: units made again since the start.
    """

    log_events = Logger()

    def __init__(
        self, queues: ConsumeQueues, log: MessageLog, walk: Callable[[Puts, int], Dispatcher],
        clock: IReactorTime,
    ) -> None:
        """@param walk: makes a dispatcher that puts into the first argument, from an offset of the log on."""
        self._queues = queues
        self._log = log
        self._walk = walk
        self._clock = clock
        self._jobs: deque[_Job] = deque()
        self._call: IDelayedCall | None = None
        self._kept: deque[tuple[QueueKey, range]] = deque()
        self._kept_count = 0
        self._is_closed = False
        self.mended = 0

    @property
    def waiting(self) -> int:
        """Number of stretches of units that are being made again."""
        return len(self._jobs)

    def mend(self, key: QueueKey, lost: AbstractSet[int]) -> None:
        """
        The disk cannot read these units of a queue: make them, and those around them, again.

        @raise OSError: lack of descriptors.
        """
        queue = self._queues.get(*key)
        if self._is_closed or queue is None:
            return
        done = -1
        for index in sorted(lost):
            if index < done:
                continue
            if any(job.found.key == key and index in job.found.lost for job in self._jobs):
                continue
            low, before, done, behind = queue.neighbours(index)
            job = self._job(key, queue, range(low, done), before, behind)
            if not self._step(job) and len(self._jobs) < WAITING_MAX:
                self._jobs.append(job)
        if self._jobs and self._call is None:
            self._call = self._clock.callLater(PAUSE_S, self._turn)

    def _job(
        self, key: QueueKey, queue: ConsumeQueue, lost: range, before: Unit | None, behind: Unit | None
    ) -> _Job:
        log, lead = self._log, self._log.record_lead
        start, shift = log.begin_offset, 0
        is_known = before is not None and before.size != FILLER_SIZE and before.offset >= start
        if before is not None and is_known:
            start = before.offset + before.size
            head = log.read(before.offset, HEAD_SIZE)
            if len(head) == HEAD_SIZE and HEAD.unpack(head)[0] == before.size:
                shift = max(HEAD.unpack(head)[5] - before.queue_offset, 0)
        stop = log.record_end if behind is None else behind.offset - lead
        found = _Found(key, lost, following=lost.start, has_missed=not is_known, shift=shift)
        return _Job(queue, found, self._walk(found, start), stop)

    def _step(self, job: _Job) -> bool:
        """One slice. @return: whether the job has ended."""
        walk, found = job.walk, job.found
        end = walk.offset + SLICE_BYTES
        while not found.is_whole and walk.offset < job.stop:
            at = walk.offset
            if at >= end:
                return False
            is_damaged = False
            try:
                walk.step(bound=job.stop, bytes_max=end - at)
            except (StoreError, OSError) as error:
                is_damaged = isinstance(error.__cause__, WireError)
                if not is_damaged and isinstance(error, OSError):
                    return False  # lack of descriptors ends by itself
                if not is_damaged:
                    self._reported("their messages cannot be read: {error}", job, error=str(error))
                    return True
            if is_damaged or walk.offset == at:
                found.has_missed = True
                walk.offset += self._log.file_size - walk.offset % self._log.file_size
        self._finish(job)
        return True

    def _turn(self) -> None:
        self._call = None
        job = self._jobs[0]
        if self._queues.get(*job.found.key) is not job.queue or self._step(job):
            self._jobs.popleft()
        if self._jobs:
            self._call = self._clock.callLater(PAUSE_S, self._turn)

    def _finish(self, job: _Job) -> None:
        found, queue = job.found, job.queue
        for at in found.lost:
            queue.mended[at] = found.units.get(at, _GONE)
        self.mended += len(found.units)
        written, per_file = 0, queue.file_size // UNIT_SIZE
        # A part of a block is written with filler for the rest, which looks sound from then on. So a file
        # with units that are gone is left: when the log is sound again they are made from it.
        left = {at // per_file for at in found.lost if at not in found.units}
        for run in _runs([at for at in sorted(found.units) if at // per_file not in left], per_file):
            try:
                if queue.rewrite(run.start, b"".join(found.units[at] for at in run)):
                    written += len(run)
                    for at in run:
                        del queue.mended[at]
            except OSError as error:
                self._reported("those cannot be written where they were: {error}", job, error=str(error))
                break
        self._keep(found)
        self._reported(
            "{made} were made again from the log, {written} of them were written where they were, {gone} have"
            " no message that can be read", job, made=len(found.units), written=written,
            gone=len(found.lost) - len(found.units),
        )

    def _keep(self, found: _Found) -> None:
        """Bound the units in memory."""
        same = [one for one in self._kept if one == (found.key, found.lost)]
        for one in same:
            self._kept.remove(one)
            self._kept_count -= len(one[1])
        self._kept.append((found.key, found.lost))
        self._kept_count += len(found.lost)
        while self._kept_count > KEPT_MAX and len(self._kept) > 1:
            key, old = self._kept.popleft()
            self._kept_count -= len(old)
            queue = self._queues.get(*key)
            for at in old if queue is not None else ():
                queue.mended.pop(at, None)  # type: ignore[union-attr]

    def _reported(self, text: str, job: _Job, **facts: object) -> None:
        (topic, queue_id), lost = job.found.key, job.found.lost
        self.log_events.error(
            "the disk cannot read units {low} to {high} of the consume queue {queue}: " + text,
            low=lost.start, high=lost.stop - 1, queue=f"{topic}/{queue_id}", **facts,
        )

    def drop(self) -> None:
        """The log was cut: what is being made may be of records that are gone."""
        self._jobs.clear()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def close(self) -> None:
        """Make nothing from now on."""
        self._is_closed = True
        self.drop()


def _runs(indexes: Sequence[int], per_file: int) -> Iterator[range]:
    """The runs of consecutive indexes, each within one file of C{per_file} units."""
    start = 0
    for at in range(1, len(indexes) + 1):
        if at == len(indexes) or indexes[at] != indexes[at - 1] + 1 or indexes[at] % per_file == 0:
            yield range(indexes[start], indexes[at - 1] + 1)
            start = at
