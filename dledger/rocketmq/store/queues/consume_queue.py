# -*- test-case-name: tests.broker.store.test_consume_queue -*-
"""
One consume queue: the offsets, in the commit log, of the messages of one queue of one topic.

It has units of 20 bytes in files of equal size; unit C{i} is at byte C{20 * i}. All units can be rebuilt
from the commit log, so nothing here waits for stable storage; the log mark records up to which log offset the
units are on stable storage.

Rule 1: units follow one another without a gap, and their offsets rise. A record that is in the queue
already is skipped. A record whose index is higher than the next one is put at the end nevertheless, as
RocketMQ does (a master that lost units continues its count), and is counted.
Rule 2: a queue whose first record does not have index 0 begins in the middle of a file; the space before it
is filled with units that no reader takes for messages. If the log has none of its records (any more), it
begins so again: a power cut may have taken units of expired records, or the first files and no later one.
Rule 3: a unit with a size of 0 ends the queue.
Rule 3a: a power cut can leave the end of a unit without its beginning: zeroes are there, so the unit points
too low; or it leaves units, and not those before them. At a start after a crash such last units are dropped;
their records are dispatched again. All others stay (L{dledger.rocketmq.store.queues.unit_check}), also
those of damaged records: no later message takes their place.
Rule 4: a record with index 0 after others means that its topic was deleted and created again: the queue
restarts with it. RocketMQ then skips everything up to the old end, on slaves and after a rebuild.
Rule 5: units that the disk cannot read are made again from the log
(L{dledger.rocketmq.store.queues.unit_mending}); until then they are neither served nor passed over. If
a start cannot say where the queue ends, it keeps the units before, and all records are dispatched again.

Source: ConsumeQueue.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from dledger.base.disk.disk import Disk, File
from dledger.base.disk.segment import file_name, list_segments
from dledger.rocketmq.store.queues.queue_files import (
    FILLER_SIZE,
    UNIT,
    IsTorn,
    Unit,
    has_unit_below,
)
from dledger.rocketmq.store.queues.queue_list import ListedQueue
from dledger.rocketmq.store.queues.queue_units import QueueUnits
from dledger.rocketmq.store.records.store_config import UNIT_SIZE
from dledger.values.errors import DirectoryError

#: Bytes of new units in memory above which L{ConsumeQueue.put} writes them.
PENDING_BYTES_MAX = 256 * 1024
#: Units before the last one that must rise to it, at a start after a crash.
_RISING = 32


class ConsumeQueue(QueueUnits):
    """
    Invariant: units C{begin_index} to C{next_index - 1} exist.

    @ivar log_end: end of the last unit's record in the log; 0 without units.
    @ivar misplaced: count of records that were put at another index than their own; see rule 1.
    @ivar begun_anew: count of restarts; see rule 4.
    @ivar has_lost: a start found no file for units of the log that it was asked for, or cannot read where
        they end.
    @ivar had_files: a start found a file.
    @ivar cut_from: a start has cut units from this offset of the log on; -1: none.
    @ivar begin_found: an offset of the log, and the index of the first unit at or after it (C{begin_from}).
    """

    def __init__(self, disk: Disk, directory: str, file_size: int, offsets: tuple[int, ...] = ()) -> None:
        super().__init__(disk, directory, file_size, offsets)
        self._begin_index = self.next_index
        self.log_end = 0
        self.misplaced = 0
        self.begun_anew = 0
        self.has_lost = False
        self.had_files = bool(offsets)
        self.cut_from = -1
        self.begin_found = (0, 0)
        self._has_to_fill = False

    @classmethod
    def open(
        cls, disk: Disk, directory: str, file_size: int, *, log_begin: int, log_end: int, is_trusted: bool,
        crashed: bool, is_torn: IsTorn, losing: Callable[[], None] = lambda: None,
    ) -> ConsumeQueue:
        """
        Open the queue in C{directory} as far as its records are in the log.

        @param log_begin, log_end: bounds of the log; units of records outside do not count, and those after
            C{log_end} are cut.
        @param is_trusted: all units below C{log_end} are known to exist.
        @param crashed: names of files, and the zeroes after a cut, may be in the cache only, so the next
            flush syncs them; and the last units may be torn.
        @param is_torn: judges the last units after a crash.
        @param losing: called before units of records below C{log_end} are given up, as a file before them is
            missing, or some cannot be read: it must record durably that they have to be dispatched again.
        @raise DirectoryError: the directory has foreign files.
        @raise OSError: reading or cutting failed.
        """
        listing = list_segments(disk, directory, file_size, "mapped_file_size_consume_queue")
        offsets = listing.offsets
        row = next((at for at in range(1, len(offsets)) if offsets[at] != offsets[at - 1] + file_size),
                   len(offsets))
        kept, behind_gap = offsets[:row], offsets[row:]
        if listing.unfinished_size and not crashed and not is_trusted:
            raise DirectoryError(
                f"{directory}/{file_name(listing.unfinished[0])} has {listing.unfinished_size} bytes, but "
                f"mapped_file_size_consume_queue={file_size}: start with the size of its files"
            )
        unsure = *behind_gap, *listing.unfinished
        # (A file without a byte says of no other size; nor does any, if the mark knows the queues: it is
        # damaged. After an orderly end it had units.)
        has_lost = bool(listing.unfinished) and not crashed or any(
            has_unit_below(disk, directory, offset, log_end) for offset in unsure
        )
        if has_lost:
            losing()
        # Files whose creation a crash interrupted, or before which a power cut took one.
        for offset in reversed(unsure):
            disk.unlink(f"{directory}/{file_name(offset)}")
        queue = cls(disk, directory, file_size, kept)
        queue.has_lost = has_lost
        queue.had_files = bool(offsets)
        queue._recover(
            log_begin, log_end, is_trusted=is_trusted, is_torn=is_torn if crashed else None, losing=losing
        )
        if crashed:
            queue._segments.unsure()
        return queue

    def _recover(
        self, log_begin: int, log_end: int, *, is_trusted: bool, is_torn: IsTorn | None,
        losing: Callable[[], None],
    ) -> None:
        offsets = self._segments.offsets
        if not offsets:
            return
        first, behind = offsets[0] // UNIT_SIZE, (offsets[-1] + self._segments.file_size) // UNIT_SIZE
        self.next_index = behind  # until it is known
        if not is_trusted:
            third = offsets[max(len(offsets) - 3, 0)] // UNIT_SIZE
            behind = self._scan(third, behind)
        end = self._search(first, behind, lambda unit: not 0 < unit[1] or unit[0] >= log_end)
        after = self._unit(end) if end < behind else None
        if after is not None and after[1] > 0:
            self.cut_from = after[0]
        is_lost = self._is_unsure
        while end > first:
            if self._unit(end - 1) is None:
                is_lost = True
            elif is_torn is None:
                break
            elif not self._is_torn(end - 1, first, log_end, is_torn):
                if not self._falls(end - 1, first):
                    break
                is_lost = True  # torn, or the disk has lost units that it had
            end -= 1
        if is_lost:
            losing()
            self.has_lost = True
        self._segments.cut(end * UNIT_SIZE)
        self.next_index = end
        self._note_last()
        self._begin_index = first
        self.expire(log_begin)

    def _falls(self, index: int, first: int) -> bool:
        """
        Rule 3a: whether the units before one do not rise to it, so that some were lost. @param index: of a
        unit that can be read.
        """
        unit, at = self._unit(index), index
        while unit is not None and unit[1] != FILLER_SIZE and first < at and at > index - _RISING:
            at -= 1
            offset, unit = unit[0], self._unit(at)
            if unit is not None and unit[1] != FILLER_SIZE and (unit[1] <= 0 or unit[0] >= offset):
                return True
        return False

    def _is_torn(self, index: int, first: int, log_end: int, is_torn: IsTorn) -> bool:
        """Rule 3a. @param index: of a unit that can be read."""
        unit = self._unit(index)
        assert unit is not None
        offset, size, tags_code = unit
        if size <= 0 or offset >= log_end:
            return True  # (after it was a torn one)
        if size == FILLER_SIZE:
            return offset != 0
        before = self._unit(index - 1) if index > first else None
        behind = -1 if before is None or before[1] == FILLER_SIZE else before[0]
        return is_torn(Unit(index, offset, size, tags_code), behind)

    def _note_last(self) -> None:
        """Update C{log_end} from the last unit; from one before it that can be read if it cannot."""
        self.log_end = 0
        first = self._segments.offsets[0] // UNIT_SIZE if self._segments.offsets else self.next_index
        _, unit = self._next_readable(self.next_index - 1, first - 1, -1)
        if unit is not None and unit[1] != FILLER_SIZE:
            self.log_end = unit[0] + unit[1]

    # -- put -------------------------------------------------------------------------------------

    @property
    def has_pending(self) -> bool:
        """Whether units wait to be written."""
        return bool(self._pending)

    def put(self, index: int, offset: int, size: int, tags_code: int) -> bool:
        """
        Put the unit of a record. It can be read at once; L{write} writes it.

        @param index: the record's own queue offset.
        @return: False if the queue had it already.
        @raise OSError: writing units, or deleting the queue's files (rule 4), failed.
        """
        if offset + size <= self.log_end:
            return False
        if index == 0 < self.next_index and offset >= self.log_end:
            self.destroy()
            self.begun_anew += 1
        elif index != self.next_index and self.is_empty:
            self.begin(index)
        elif index < self.next_index:
            return False
        elif index > self.next_index:
            self.misplaced += 1
        self._pending += UNIT.pack(offset, size, tags_code)
        self.next_index += 1
        self.log_end = offset + size
        if len(self._pending) >= PENDING_BYTES_MAX:
            self.write()
        return True

    def begin(self, index: int) -> None:
        """
        Rule 2: continue with a unit at C{index}; there are no messages before it.

        @raise OSError: deleting files failed.
        """
        self._drop()
        self.next_index = self._begin_index = index
        self._has_to_fill = index > 0

    def write(self) -> None:
        """
        Write the pending units.

        @raise OSError: writing failed.
        """
        position = self.next_index * UNIT_SIZE - len(self._pending)
        view = memoryview(bytes(self._pending))
        segments = self._segments
        if self._has_to_fill and view:
            segments.begin(position // UNIT_SIZE)
            self._has_to_fill = False
        while view:
            base = segments.base(position)
            if not segments.has(base):
                segments.create(base)
            size = min(len(view), base + segments.file_size - position)
            segments.pwrite(view[:size], position)
            position += size
            view = view[size:]
        self._pending.clear()

    # -- read ------------------------------------------------------------------------------------

    @property
    def begin_index(self) -> int:
        """The lowest index whose record is still in the log; L{next_index} if there is none."""
        return self._begin_index

    @property
    def is_empty(self) -> bool:
        """Whether the log has none of its records, or never had one."""
        return self._begin_index == self.next_index

    def read(self, index: int, count: int) -> list[Unit]:
        """As L{packed}, unpacked."""
        return [
            Unit(index + at, *unit) for at, unit in enumerate(UNIT.iter_unpack(self.packed(index, count)))
        ]

    def packed(self, index: int, count: int) -> bytearray:
        """
        Read up to C{count} units from C{index} on; fewer at the end of the queue.

        @param index: C{begin_index} to C{next_index}.
        @raise OSError: reading failed. EIO: the disk cannot read the first of them, which is being made again
            from the log; for others after it, this read ends before them.
        """
        assert self._begin_index <= index <= self.next_index, (self._begin_index, index, self.next_index)
        end = min(index + count, self.next_index)
        written = self.next_index - len(self._pending) // UNIT_SIZE
        at, found = index, bytearray()
        while at < min(end, written):
            data, lost = self._load(at, min(end, written) - at)
            if lost:
                end = min(lost)
                data = data[: (end - at) * UNIT_SIZE]
                if end == index:
                    raise OSError(errno.EIO, f"unit {index} cannot be read; it is being made again")
            found += data
            at += len(data) // UNIT_SIZE
        if at < end:
            found += self._pending[(at - written) * UNIT_SIZE : (end - written) * UNIT_SIZE]
        return found

    # -- changes of the log ------------------------------------------------------------------------

    def cut(self, log_end: int) -> None:
        """Drop the units of records from C{log_end} on. @raise OSError: cutting failed."""
        if self.log_end <= log_end:
            return
        self.write()
        low = max(self._begin_index, self._segments.offsets[0] // UNIT_SIZE)
        end = self._search(low, self.next_index, lambda unit: unit[0] >= log_end)
        if self._is_unsure:
            raise OSError(errno.EIO, f"unit {end} cannot be read: it is not known where to cut")
        self.mended = {at: unit for at, unit in self.mended.items() if at < end}
        self.begin_found = (0, 0)
        self._segments.cut(end * UNIT_SIZE)
        self.next_index = end
        self._begin_index = min(self._begin_index, end)
        self._note_last()

    def expire(self, log_begin: int) -> None:
        """
        Delete the files whose records are all before C{log_begin}, where the log begins now.

        @raise OSError: deleting failed.
        """
        if self._pending:
            self.write()
        segments = self._segments
        if not segments.offsets:
            return
        self._begin_index = self._search(
            max(self._begin_index, segments.offsets[0] // UNIT_SIZE), self.next_index,
            lambda unit: unit[1] != FILLER_SIZE and unit[0] >= log_begin,
        )
        if self.mended:
            self.mended = {at: unit for at, unit in self.mended.items() if at >= self._begin_index}
        while len(segments.offsets) > 1 and segments.offsets[1] <= self._begin_index * UNIT_SIZE:
            segments.drop_first()

    def first_from(self, log_offset: int) -> int:
        """
        The index of the first record at or after an offset of the log; L{next_index} if there is none.

        @raise OSError: reading failed. EIO: units that nobody knows hide it.
        """
        if self.log_end <= log_offset:
            return self.next_index
        found = self._search(
            self._begin_index, self.next_index,
            lambda unit: unit[1] != FILLER_SIZE and unit[0] >= log_offset,
        )
        if self._is_unsure:
            raise OSError(errno.EIO, f"unit {found} and those after it cannot be read")
        return found

    def destroy(self) -> None:
        """Delete every file. @raise OSError: deleting failed."""
        self._drop()
        self.next_index = self._begin_index = self.log_end = 0

    def _drop(self) -> None:
        self._pending.clear()
        self.mended.clear()
        self.cut_from = -1
        self.begin_found = (0, 0)
        self._has_to_fill = False
        self._segments.drop_all()

    # -- files -----------------------------------------------------------------------------------

    @property
    def listed(self) -> ListedQueue:
        """What the list of queues has of it. Without a file, no flush has seen units of it."""
        offsets = self._segments.offsets
        return ListedQueue(offsets[0] // UNIT_SIZE if offsets else None, self.next_index)

    @property
    def is_clean(self) -> bool:
        """Whether everything is on stable storage and no flush is under way."""
        segments = self._segments
        return not (self._pending or segments.dirty or segments.directory_dirty or segments.busy
                    or segments.unsynced)

    def shed(self) -> bool:
        """
        Write the pending units and close the files; the next flush opens those that it needs.

        @return: False if a flush uses them: nothing is closed.
        @raise OSError: writing failed.
        """
        if self._segments.busy:
            return False
        self.write()
        self._segments.shed()
        return True

    def flush_failed(self) -> None:
        """The flush has failed: all files need another one."""
        self._segments.unsynced.update(self._segments.offsets)
        self._segments.directory_dirty = bool(self._segments.offsets)

    def take_dirty(self) -> tuple[list[File], list[str], str]:
        """
        Begin a flush: write the pending units, and return the files that need a sync.

        @return: the open files; paths of closed ones; and the directory if names in it are new, else an empty
            text. The caller calls L{release} when the flush has ended.
        """
        self.write()
        paths = self._segments.take_unsynced()
        files = self._segments.take_dirty()
        self._segments.busy = frozenset(files)
        directory = self._segments.directory if self._segments.directory_dirty else ""
        self._segments.directory_dirty = False
        return files, paths, directory

    def release(self) -> None:
        """The flush has ended."""
        self._segments.release()

    def close(self) -> None:
        """Close the files; they are opened again when needed."""
        self._segments.close()
