# -*- test-case-name: tests.broker.verify.test_store_check -*-
"""
Compares consume queues with the log.

The log is read once, in order, and each of its messages is looked up in its queue, whose units are read in
blocks: the next one is nearly always the next unit. Memory is bounded by L{BLOCKS_MAX} blocks, and by a few
numbers for each queue.

Rule 1: a message may have a lower index in its queue than its own (a master that lost units continues its
count), so it is found by its place in the log, which rises in a queue.
Rule 2: a message before the first unit of its queue has left it, or is of a topic that was deleted; one whose
index the queue has already is repeated. Neither is a finding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.segment import file_name, offsets_in
from dledger.rocketmq.store.queues.queue_files import FILLER_SIZE, UNIT, Unit
from dledger.rocketmq.store.queues.queue_list import ListedQueue, QueueKey
from dledger.rocketmq.store.queues.unit_check import ReadLog, points_to_record
from dledger.rocketmq.store.records.records import Record, read_record
from dledger.rocketmq.store.records.store_config import UNIT_SIZE
from dledger.rocketmq.verify.report import StoreReport
from protocols.wire.errors import WireError

#: Units of a block, and blocks that are kept.
_BLOCK = 1024
BLOCKS_MAX = 512

_AGAIN = (
    "with the broker stopped, move this directory away: the next start makes the queue again from the log"
)


@attrs.define
class CheckedQueue:
    """
    One queue.

    @ivar first, end: indexes of its first unit, and after its last.
    @ivar following: where the unit of its next message is expected.
    @ivar last_index: the index of its last message, as the message itself says.
    @ivar found: messages that it has.
    """

    directory: str
    file_size: int
    first: int
    end: int
    following: int = 0
    last_index: int = -1
    found: int = 0


class QueueCheck:
    """All queues of a store."""

    def __init__(self, disk: Disk, root: str, report: StoreReport) -> None:
        """@param root: the directory of the consume queues."""
        self._disk = disk
        self._report = report
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self.queues: dict[QueueKey, CheckedQueue] = {}
        for topic in sorted(disk.listdir(root)) if disk.exists(root) else ():
            for number in self._names(f"{root}/{topic}"):
                try:
                    self._open(topic, number, f"{root}/{topic}/{number}")
                except OSError as error:
                    report.add(f"{root}/{topic}/{number}", f"it cannot be read: {error.strerror}", _AGAIN)
        report.queues = len(self.queues)
        #: After the last message that any queue has.
        self.dispatched_end = max((self._end_of(one) for one in self.queues.values()), default=0)

    def _names(self, directory: str) -> list[str]:
        try:
            return sorted(self._disk.listdir(directory))
        except OSError as error:
            self._report.add(directory, f"not a directory with queues: {error.strerror}", "move it away")
            return []

    def _open(self, topic: str, number: str, directory: str) -> None:
        report, disk = self._report, self._disk
        if not number.isdecimal():
            report.add(directory, "not a queue: its name must be a number", "move it away")
            return
        found, foreign = offsets_in(disk, directory)
        if foreign:
            report.add(f"{directory}/{foreign}", "not a file of the queue: names are 20 digits",
                       "move it away")
        if not found:
            return
        sizes = {disk.file_size(f"{directory}/{file_name(offset)}") for offset in found}
        file_size = max(sizes)
        if len(sizes) > 1 or file_size % UNIT_SIZE or not file_size:
            report.add(directory, f"its files have {sorted(sizes)} bytes", _AGAIN)
        if any(later != earlier + file_size for earlier, later in zip(found, found[1:], strict=False)):
            report.add(directory, "a file between its first and its last is missing", _AGAIN)
            return
        queue = CheckedQueue(directory, max(file_size, UNIT_SIZE), found[0] // UNIT_SIZE, 0)
        queue.end = self._find_end(queue, found[0] // UNIT_SIZE, (found[-1] + queue.file_size) // UNIT_SIZE)
        queue.first = self._bisect(queue, lambda unit: unit[1] != FILLER_SIZE, queue.first, queue.end)
        queue.following = queue.first
        self.queues[topic, int(number)] = queue

    def _find_end(self, queue: CheckedQueue, first: int, behind: int) -> int:
        return self._bisect(queue, lambda unit: unit[1] <= 0, first, behind)

    def _bisect(
        self, queue: CheckedQueue, is_after: Callable[[tuple[int, int, int]], bool], first: int, behind: int
    ) -> int:
        """The first index from C{first} on whose unit is after something; C{behind} if there is none."""
        while first < behind:
            middle = (first + behind) // 2
            if is_after(self._unit(queue, middle)):
                behind = middle
            else:
                first = middle + 1
        return first

    def _unit(self, queue: CheckedQueue, index: int) -> tuple[int, int, int]:
        """Place, size and code; a size of 0 where nothing can be read."""
        units = queue.file_size // UNIT_SIZE
        block = index // units * units + index % units // _BLOCK * _BLOCK
        key = queue.directory, block
        data = self._blocks.get(key)
        if data is None:
            data = self._read(queue, block, min(_BLOCK, units - block % units))
            self._blocks[key] = data
            if len(self._blocks) > BLOCKS_MAX:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(key)
        at = (index - block) * UNIT_SIZE
        return UNIT.unpack_from(data, at) if at + UNIT_SIZE <= len(data) else (0, 0, 0)

    def _read(self, queue: CheckedQueue, index: int, count: int) -> bytes:
        position = index * UNIT_SIZE
        base = position - position % queue.file_size
        path = f"{queue.directory}/{file_name(base)}"
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return b""
        try:
            return file.pread(count * UNIT_SIZE, position - base)
        except OSError as error:
            self._report.add(path, f"it cannot be read: {error.strerror}", _AGAIN, offset=index)
            return b""
        finally:
            file.close()

    def _end_of(self, queue: CheckedQueue) -> int:
        if queue.end <= queue.first:
            return 0
        offset, size, _ = self._unit(queue, queue.end - 1)
        return offset + size

    def places(self, topic: str, number: int) -> list[tuple[int, int]]:
        """Where the messages of a queue are in the log, and their sizes, in bytes."""
        queue = self.queues.get((topic, number))
        indexes = () if queue is None else range(queue.first, queue.end)
        return [] if queue is None else [self._unit(queue, index)[:2] for index in indexes]

    # -- messages of the log -----------------------------------------------------------------------

    def message(self, offset: int, record: Record, begins_at: Mapping[str, int]) -> None:
        """
        A message of the log, in order.

        @param begins_at: of the topics that there are: messages before it are of a deleted one.
        """
        topic = record.topic.decode("utf-8", "replace")
        if offset >= self.dispatched_end:
            self._report.undispatched += 1
            return
        queue = self.queues.get((topic, record.queue_id))
        if queue is None or queue.end <= queue.first:
            if topic in begins_at and offset >= begins_at[topic]:
                self._lacks(f"{topic}/{record.queue_id}", "there is no such queue", offset, record)
            return
        index = queue.following
        if index >= queue.end or self._unit(queue, index)[0] != offset:
            index = self._bisect(queue, lambda unit: unit[0] >= offset, queue.first, queue.end)
            if index >= queue.end or self._unit(queue, index)[0] != offset:
                self._absent(queue, offset, record, begins_at.get(topic, 0))
                return
        place, size, code = self._unit(queue, index)
        if (size, code) != (record.size, record.tags_code):
            self._report.add(
                queue.directory, f"its unit {index} has size={size} and tagsCode={code}, and the message at "
                f"{place} {record.size} and {record.tags_code}", _AGAIN, offset=index,
            )
        queue.following = index + 1
        queue.found += 1
        queue.last_index = record.queue_offset

    def _absent(self, queue: CheckedQueue, offset: int, record: Record, begins_at: int) -> None:
        if record.queue_offset <= queue.last_index:
            self._report.repeated += 1
        elif offset >= max(self._unit(queue, queue.first)[0], begins_at):
            self._lacks(queue.directory, "it has no unit for it", offset, record)

    def _lacks(self, file: str, what: str, offset: int, record: Record) -> None:
        self._report.add(
            file, f"{what}: the message at {offset} of the log, index {record.queue_offset}", _AGAIN,
            offset=record.queue_offset,
        )

    # -- without a walk through the log ------------------------------------------------------------

    def compare(self, read_log: ReadLog, begin: int, end: int, delay_levels_ms: Sequence[int]) -> None:
        """
        Compare each unit with the record that it points to. Messages that no queue has are not found.

        @param read_log: see L{finish}. @param begin, end: of the log.
        """
        for (topic, number), queue in self.queues.items():
            first = self._bisect(queue, lambda unit: unit[0] >= begin, queue.first, queue.end)
            self._report.units += queue.end - first
            before = -1
            for index in range(first, queue.end):
                offset, size, code = self._unit(queue, index)
                if size == FILLER_SIZE:
                    continue
                is_sound = before < offset and offset + size <= end and points_to_record(
                    read_log, topic, number, index=index, offset=offset, size=size,
                )
                before = offset
                try:
                    is_sound = is_sound and read_record(
                        read_log(offset, size), 0, offset, size, delay_levels_ms).tags_code == code
                except WireError:
                    is_sound = False
                if not is_sound:
                    self._report.add(
                        queue.directory, f"its unit {index} points to {offset}, where no message of the "
                        "queue is, or one with another tag", _AGAIN, offset=index,
                    )

    def compare_ends(self, listed: Mapping[QueueKey, ListedQueue]) -> None:
        """Compare the ends of queues with the list that an orderly end has left."""
        for key, queue in self.queues.items():
            if key in listed and queue.end != listed[key].next_index:
                self._report.add(queue.directory, f"its units end at {queue.end}, and ended at "
                                 f"{listed[key].next_index} when the broker stopped", _AGAIN)

    # -- units without a message --------------------------------------------------------------------

    def finish(self, read_log: ReadLog, begin: int, end: int) -> None:
        """
        Look for units that point to no message, in queues that have more units than messages.

        @param read_log: reads up to a number of bytes of the log from an offset on.
        @param begin, end: of the log.
        """
        for (topic, number), queue in self.queues.items():
            first = self._bisect(queue, lambda unit: unit[0] >= begin, queue.first, queue.end)
            self._report.units += queue.end - first
            if queue.end - first > queue.found:
                self._check_units(topic, number, queue, first, read_log, end)

    def _check_units(
        self, topic: str, number: int, queue: CheckedQueue, first: int, read_log: ReadLog, end: int
    ) -> None:
        before = -1
        for index in range(first, queue.end):
            offset, size, code = self._unit(queue, index)
            unit = Unit(index, offset, size, code)
            is_sound = before < offset and offset + size <= end and points_to_record(
                read_log, topic, number, index=index, offset=offset, size=size,
            )
            if not is_sound and not self._report.is_lost(offset):
                self._report.add(
                    queue.directory, f"its unit {unit.queue_offset} points to {offset}, where no message of "
                    "the queue is", _AGAIN, offset=index,
                )
            before = offset
