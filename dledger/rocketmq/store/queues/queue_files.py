# -*- test-case-name: tests.broker.store.test_consume_queue -*-
"""
The files of a consume queue, and the layout of its units.

A broker has many queues, and most of them are small. So a file uses disk space only as it fills, and only a
few files are open.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from construct import Int32sb, Int64sb, Struct

from dledger.base.disk.disk import Disk
from dledger.base.disk.segment import SegmentList, file_name
from dledger.base.disk.unreadable import is_unreadable
from dledger.rocketmq.store.records.store_config import UNIT_SIZE
from protocols.wire.layout import struct_of

UNIT_DECLARATION = Struct(
    "offset" / Int64sb,  # of the record in the log
    "size" / Int32sb,  # of the record
    "tags_code" / Int64sb,  # hash of its tags; in the queues of delays, its delivery time in ms since 1970
)
UNIT = struct_of(UNIT_DECLARATION)
assert UNIT.size == UNIT_SIZE

#: Size in a unit that represents no message.
FILLER_SIZE = 0x7FFFFFFF
_FILLER = UNIT.pack(0, FILLER_SIZE, 0)
#: Files that one queue keeps open, except those with writes since the last flush.
HANDLES_MAX = 2


class Unit(NamedTuple):
    """
    The location of one message.

    @ivar queue_offset: its index in the queue.
    @ivar offset: of its record in the log.
    @ivar size: of its record, bytes; L{FILLER_SIZE}: there is no message.
    @ivar tags_code: hash of its tags; of a delayed message, the time of its delivery in ms since 1970.
    """

    queue_offset: int
    offset: int
    size: int
    tags_code: int


#: Whether a power cut took the first bytes of a unit. The arguments are the unit, and the C{offset} of the
#: unit before it, or -1 if it is the first one.
IsTorn: TypeAlias = Callable[[Unit, int], bool]


class QueueSegments(SegmentList):
    """
    The files of one queue.

    @ivar unsynced: offsets of closed files whose writes may not be on stable storage.
    """

    def __init__(self, disk: Disk, directory: str, file_size: int, offsets: tuple[int, ...] = ()) -> None:
        super().__init__(disk, directory, file_size, offsets)
        self._handles_max = HANDLES_MAX
        self.unreadable.opened()  # units are derived from the log
        self.unsynced: set[int] = set()

    def begin(self, index: int) -> None:
        """
        Create the first file, with units of no message before C{index}.

        @raise OSError: it failed; call it again.
        """
        base = self.base(index * UNIT_SIZE)
        if not self.has(base):
            self.create(base)
        self.pwrite(_FILLER * (index - base // UNIT_SIZE), base)

    def drop_all(self) -> None:
        """Delete every file, the last one first. @raise OSError: it failed."""
        while self.offsets:
            self.drop_last()

    def shed(self) -> None:
        """
        Close all files, even those with writes since the last flush. No flush of them may be under way.
        """
        assert not self.busy, "a flush uses the files"
        self.unsynced.update(self.dirty)
        self.close()

    def unsure(self) -> None:
        """
        After a crash: names of files may be in the cache only, and so may the zeroes after the last unit,
        without which a power cut would bring units back that were cut.
        """
        self.directory_dirty = bool(self.offsets)
        self.unsynced.update(self.offsets[-1:])

    def take_unsynced(self) -> list[str]:
        """
        Forget the closed files that may have writes not yet on stable storage, for a flush that begins.

        @return: their paths; the flush opens and syncs them.
        """
        paths = [self.path(offset) for offset in sorted(self.unsynced) if self.has(offset)]
        self.unsynced.clear()
        return paths

    def create(self, offset: int) -> None:
        """See L{SegmentList.create}; the file has its length, but no disk space is reserved."""
        assert not self.offsets or offset == self.offsets[-1] + self.file_size, (offset, self.offsets[-1])
        self._disk.makedirs(self.directory)
        path = self.path(offset)
        file = self._disk.open(path, create=True)
        try:
            file.pwrite(b"\0", self.file_size - 1)
        except OSError:
            file.close()
            # If it cannot be deleted either: a start takes a short file for one without units.
            with suppress(OSError):
                self._disk.unlink(path)
            raise
        self.offsets.append(offset)
        self.handles[offset] = file
        self.dirty[offset] = file
        self.directory_dirty = True
        self._shed(offset)


def unit_at(disk: Disk, directory: str, index: int, base: int) -> Unit | None:
    """
    A unit of a file that is not open; None if there is none.

    @param base: of the file's first byte in the queue.
    @raise OSError: reading failed.
    """
    file = disk.open(f"{directory}/{file_name(base)}")
    try:
        data = file.pread(UNIT_SIZE, index * UNIT_SIZE - base)
    finally:
        file.close()
    if len(data) < UNIT_SIZE:
        return None
    unit = Unit(index, *UNIT.unpack(data))
    return unit if unit.offset >= 0 and unit.size > 0 else None


def has_unit_below(disk: Disk, directory: str, offset: int, log_end: int) -> bool:
    """Whether a file begins with the unit of a record before C{log_end}, or with one that cannot be read."""
    try:
        unit = unit_at(disk, directory, offset // UNIT_SIZE, offset)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return True
    return unit is not None and unit.offset < log_end
