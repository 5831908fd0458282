# -*- test-case-name: tests.base.test_segment -*-
"""
A stream of bytes in files of equal size, named by the offset of their first byte.

L{SegmentReader} reads them and never writes; L{SegmentList} owns them and writes. They know names, lengths,
handles, and which files hold writes that are not on stable storage yet; they know nothing of records.
A writer makes files with their final length, and reserves room in them before it writes: all at once, or in
steps, so that a file of a gibibyte does not take that much for its first record. Files are opened when first
used; at most L{HANDLES_MAX} clean ones stay open.

A sector that the disk cannot read is damage like any other: it reads as bytes that no record, index unit or
blank has, and that are not the zeros after the end (L{dledger.base.disk.unreadable}). The checks of the
readers find it, and it is mended if there is another copy.

Source: MmapFileList.java (0.3.1.2).
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Sequence

import attrs

from dledger.base.disk.disk import Disk, File
from dledger.base.disk.sparse import data_pieces
from dledger.base.disk.unreadable import BLOCK, Unreadable, is_unreadable
from dledger.values.errors import DirectoryError

HANDLES_MAX = 64
_CHUNK = 1024 * 1024
_ZEROS = bytes(_CHUNK)


def file_name(offset: int) -> str:
    """Name of the file whose first byte has this stream offset."""
    return f"{offset:020d}"


def offsets_in(disk: Disk, directory: str) -> tuple[list[int], str]:
    """
    The offsets that names in a directory stand for, rising; and the first name that is none of a segment's.

    @raise OSError: it cannot be listed.
    """
    offsets: list[int] = []
    foreign = ""
    for name in disk.listdir(directory):
        if len(name) == 20 and name.isascii() and name.isdecimal() and int(name) < 2**63:
            offsets.append(int(name))
        else:
            foreign = foreign or name
    return offsets, foreign


@attrs.frozen(kw_only=True)
class Listing:
    """
    The segments in a directory.

    @ivar offsets: offsets of the whole files before the first short file, rising.
    @ivar unfinished: offsets of the first short file and of all files after it.
    @ivar unfinished_size: length of the first short file.
    """

    offsets: tuple[int, ...] = ()
    unfinished: tuple[int, ...] = ()
    unfinished_size: int = 0


def wrong_length(path: str, size: int, file_size: int, option: str) -> DirectoryError:
    """The error for a file whose length differs from the configured one."""
    return DirectoryError(
        f"{path} has {size} bytes, but {option}={file_size}: start with the size that the "
        "ledger was made with (one for all members), or move a damaged file away"
    )


def list_segments(disk: Disk, directory: str, file_size: int, option: str) -> Listing:
    """
    The segments of a directory; an absent directory holds none.

    @param option: the configuration's name of C{file_size}, for the message.
    @raise DirectoryError: the directory holds a foreign file, or a file of a wrong length or offset.
    """
    if not disk.exists(directory):
        return Listing()
    try:
        found, foreign = offsets_in(disk, directory)
    except NotADirectoryError:
        raise DirectoryError(f"{directory} is not a directory: move it out of the way") from None
    if foreign:
        raise DirectoryError(
            f"{directory}/{foreign} is not a file of the ledger (names are 20 digits): move it away"
        )
    offsets: list[int] = []
    unfinished: list[int] = []
    unfinished_size = 0
    for offset in found:
        path = f"{directory}/{file_name(offset)}"
        try:
            size = disk.file_size(path)
        except IsADirectoryError:
            raise DirectoryError(f"{path} is not a regular file: move it away") from None
        if size > file_size or offset % file_size:
            raise wrong_length(path, size, file_size, option)
        if size < file_size and not unfinished:
            unfinished_size = size
        if size < file_size or unfinished:
            unfinished.append(offset)
        else:
            offsets.append(offset)
    return Listing(offsets=tuple(offsets), unfinished=tuple(unfinished), unfinished_size=unfinished_size)


class SegmentReader:
    """
    A row of segments, read only. Another process may make, delete and write files in the meantime.

    @ivar offsets: of the files, rising; as of the last L{show}. C{handles}: the open files, by offset.
    @ivar file_size: bytes of every file; 0 if there is none.
    @ivar unreadable: what the disk could not read, and how much of it is borne.
    """

    def __init__(self, disk: Disk, directory: str, *, handles_max: int = HANDLES_MAX) -> None:
        """@param handles_max: files that stay open at most."""
        self.unreadable = Unreadable()
        self._disk = disk
        self.directory = directory
        self.file_size = 0
        self.offsets: list[int] = []
        self.handles: dict[int, File] = {}
        self._handles_max = handles_max

    def show(self, offsets: Sequence[int], file_size: int) -> None:
        """These are the files now; files that are gone are closed."""
        self.offsets = list(offsets)
        self.file_size = file_size
        for offset in set(self.handles).difference(offsets):
            self.handles.pop(offset).close()

    def path(self, offset: int) -> str:
        """Path of the file at C{offset}."""
        return f"{self.directory}/{file_name(offset)}"

    def base(self, position: int) -> int:
        """Offset of the file that holds stream offset C{position}; -1 if there is none."""
        at = bisect_right(self.offsets, position) - 1
        if at < 0 or position >= self.offsets[at] + self.file_size:
            return -1
        return self.offsets[at]

    def hold(self, position: int, max_bytes: int, max_files: int) -> None:
        """
        Open the files from stream offset C{position} on, two at least: one that is deleted afterwards can
        still be read, and its room is free only when it is closed here.

        @param max_bytes, max_files: of them, beyond the first two.
        """
        first = max(bisect_right(self.offsets, position) - 1, 0)
        count = max(2, min(max_bytes // max(self.file_size, 1), max_files))
        wanted = self.offsets[first : first + count]
        self._handles_max = max(self._handles_max, len(wanted) + 1)
        for offset in [one for one in self.handles if one < position - self.file_size]:
            self.handles.pop(offset).close()
        for offset in wanted:
            try:
                self._file(offset)
            except FileNotFoundError:
                return

    def pread(self, size: int, position: int) -> bytes:
        """
        Up to C{size} bytes at stream offset C{position}, not beyond the end of that file; none where there is
        no file.
        """
        base = self.base(position)
        if base < 0 or size <= 0:
            return b""
        try:
            file = self._file(base)
        except FileNotFoundError:
            return b""
        return self._read(file, min(size, base + self.file_size - position), position - base)

    def _read(self, file: File, size: int, start: int) -> bytes:
        try:
            return file.pread(size, start)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return self.unreadable.read_around(file, size, start)

    def _file(self, offset: int) -> File:
        file = self.handles.get(offset)
        if file is None:
            file = self.handles[offset] = self._open(offset)
            if len(self.handles) > self._handles_max:
                self._shed(offset)
        return file

    def _open(self, offset: int) -> File:
        try:
            return self._disk.open(self.path(offset))
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._shed(offset):
                raise
            return self._disk.open(self.path(offset))

    def _shed(self, keep: int) -> bool:
        """Close a file other than C{keep} that may be closed. @return: whether there was one."""
        for offset, file in list(self.handles.items()):
            if offset != keep and not self._is_in_use(offset, file):
                del self.handles[offset]
                file.close()
                return True
        return False

    def _is_in_use(self, offset: int, file: File) -> bool:
        """Whether an open file must stay open."""
        return False

    def close(self) -> None:
        """Release all handles."""
        for file in self.handles.values():
            file.close()
        self.handles = {}


class SegmentList(SegmentReader):
    """
    Segments that belong to this process.

    Invariant: C{offsets} rise by C{file_size}; a file in C{dirty} is open.

    @ivar reserved_end: stream offset to which room was reserved for writes after the last record; 0: not
        known, after a start or a cut.
    """

    def __init__(
        self, disk: Disk, directory: str, file_size: int, offsets: tuple[int, ...] = (), *, step: int = 0
    ) -> None:
        """@param step: bytes that are reserved at a time, see L{reserve}; 0: a whole file when it is made."""
        super().__init__(disk, directory)
        self.step = min(step, file_size)
        self.reserved_end = 0
        self.show(offsets, file_size)
        self.dirty: dict[int, File] = {}
        self.directory_dirty = False
        self.busy: frozenset[File] = frozenset()
        self._dropped: list[File] = []

    def base(self, position: int) -> int:
        """Offset of the file that holds stream offset C{position}, whether or not it was made yet."""
        return position - position % self.file_size

    def has(self, offset: int) -> bool:
        """Whether a file starts at C{offset}, which is a multiple of C{file_size}."""
        return bool(self.offsets) and self.offsets[0] <= offset <= self.offsets[-1]

    def _file(self, offset: int) -> File:
        file = self.handles.get(offset)
        if file is None:
            assert self.has(offset), (self.directory, offset, self.offsets[:1], self.offsets[-1:])
            return super()._file(offset)
        return file

    def _is_in_use(self, offset: int, file: File) -> bool:
        return offset in self.dirty or file in self.busy

    def create(self, offset: int) -> None:
        """
        Make the file at C{offset}, after the last one.

        @raise OSError: ENOSPC, and nothing has changed.
        """
        assert not self.offsets or offset == self.offsets[-1] + self.file_size, (offset, self.offsets[-1])
        self._disk.makedirs(self.directory)
        reserved = self.step or self.file_size
        file = self._disk.open(self.path(offset), create=True, size=self.file_size, reserved=reserved)
        self.reserved_end = offset + reserved
        self.offsets.append(offset)
        self.handles[offset] = file
        self.dirty[offset] = file
        self.directory_dirty = True
        if len(self.handles) > self._handles_max:
            self._shed(offset)

    def reserve(self, position: int, end: int) -> None:
        """
        Reserve room for a write from C{position} to C{end}, within one file, which exists; and for the
        following ones, to the next multiple of C{step}. What is before C{position} has its room.

        @raise OSError: ENOSPC, and nothing has changed.
        """
        if not self.step or end <= self.reserved_end:
            return
        base = self.base(position)
        start = max(position, self.reserved_end) if self.reserved_end > base else position
        until = min(-(-(end - base) // self.step) * self.step, self.file_size)
        self._file(base).reserve(start - base, base + until - start)
        self.reserved_end = base + until

    def pread(self, size: int, position: int) -> bytes:
        """
        Up to C{size} bytes at stream offset C{position}, which a file holds; not beyond the end of that file.
        """
        start = position % self.file_size
        return self._read(self._file(position - start), min(size, self.file_size - start), start)

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Write at stream offset C{position}, within one file."""
        start = position % self.file_size
        assert start + len(data) <= self.file_size
        base, handles = position - start, self.handles
        file = handles[base] if base in handles else self._file(base)
        self.dirty[base] = file
        file.pwrite(data, start)

    def mend(self, data: bytes | memoryview, position: int) -> None:
        """
        Write over bytes that the disk may not be able to read. The system writes whole blocks, and reads the
        rest of one before it changes a part, so an unreadable rest is written, too, as it reads:
        L{dledger.base.disk.unreadable.FILLER}.
        """
        file_start = self.base(position)
        start, end = position - file_start, position - file_start + len(data)
        low, high = start - start % BLOCK, min(-(-end // BLOCK) * BLOCK, self.file_size)
        failures, file = self.unreadable.failures, self._file(file_start)
        before, behind = self._read(file, start - low, low), self._read(file, high - end, end)
        if failures != self.unreadable.failures:
            data, position = b"".join((before, data, behind)), file_start + low
        self.pwrite(data, position)

    def zero(self, position: int, end: int) -> None:
        """
        Zero the bytes from C{position} to C{end}, within one file. Chunks that are zero are not written
        again. Holes of a sparse file are not read: a read of 1 GiB of them costs seconds and memory.
        """
        file_start = self.base(position)
        file = self._file(file_start)
        if end - position > _CHUNK:
            file.datasync()  # file systems have shown bytes that they had not stored yet as a hole
        for start in data_pieces(file, position - file_start, end - file_start, _CHUNK):
            size = min(_CHUNK, end - file_start - start)
            zeros = _ZEROS if size == _CHUNK else bytes(size)
            if self.pread(size, file_start + start) != zeros:
                self.mend(zeros, file_start + start)

    def drop_last(self, aside: str = "") -> None:
        """Delete the last file, durably. @param aside: move it to this directory instead."""
        self._drop(self.offsets[-1], aside)
        self.offsets.pop()

    def drop_first(self) -> None:
        """
        Delete the first file; durably, or else the next sync includes it. The owner has recorded where its
        data begin, and does not miss or believe a file before that.

        @raise OSError: it failed, and nothing has changed.
        """
        self._disk.unlink(self.path(self.offsets[0]))
        self._release(self.offsets.pop(0))
        try:
            self._disk.sync_directory(self.directory)
        except OSError:
            self.directory_dirty = True

    def forget_last(self) -> str:
        """Close the last file, which stays where it is, but not as a segment. @return: its path."""
        offset = self.offsets.pop()
        self._release(offset)
        return self.path(offset)

    def _drop(self, offset: int, aside: str = "") -> None:
        self._release(offset)
        if aside:
            self._disk.rename(self.path(offset), f"{aside}/{file_name(offset)}")
        else:
            self._disk.unlink(self.path(offset))
        self._disk.sync_directory(self.directory)

    def _release(self, offset: int) -> None:
        self.reserved_end = 0
        file = self.handles.pop(offset, None)
        self.dirty.pop(offset, None)
        if file is None:
            return
        if file in self.busy:  # a flush in another thread uses it
            self._dropped.append(file)
        else:
            file.close()

    def cut(self, position: int, written_end: int | None = None, *, aside: str = "") -> None:
        """
        Delete the files after the one that holds C{position}, and zero that one from C{position} on.

        @param written_end: stream offset after which all bytes are zero; None: not known.
        @param aside: move the files to this directory instead; and the one that begins at C{position}, too.
        """
        while self.offsets and (self.offsets[-1] > position or (aside and self.offsets[-1] == position)):
            self.drop_last(aside)
        end = self.base(position) + self.file_size
        if self.has(self.base(position)):
            self.zero(position, end if written_end is None else min(end, written_end))

    def touch_from(self, position: int) -> None:
        """Mark the files from the one that holds C{position} on as dirty: the next sync includes them."""
        for offset in self.offsets:
            if offset >= self.base(position):
                self.dirty[offset] = self._file(offset)
                self.directory_dirty = True

    def touch(self, position: int, end: int) -> None:
        """Mark the files with the bytes from C{position} to C{end} as dirty: the next sync includes them."""
        for offset in self.offsets:
            if self.base(position) <= offset < end:
                self.dirty[offset] = self._file(offset)

    def modified_s(self, offset: int) -> float:
        """Time of the last write to the file at C{offset}, in seconds since 1970."""
        return self._file(offset).modified_s()

    def sync(self) -> None:
        """Bring all writes to stable storage, including those of a flush under way."""
        for file in self.busy.difference(self._dropped):
            file.datasync()
        for file in self.take_dirty():
            file.datasync()
        if self.directory_dirty or self.busy:
            self._disk.sync_directory(self.directory)
            self.directory_dirty = False

    def sync_directory(self) -> None:
        """Bring the file names to stable storage. May run in another thread."""
        self._disk.sync_directory(self.directory)

    def begin_flush(self) -> list[Callable[[], None]]:
        """
        Hand what was written so far to a flush in another thread; it counts as clean from now on.

        @return: the calls that bring it to stable storage. L{release} follows when they have ended.
        """
        files, self.dirty = self.dirty.values(), {}
        self.busy = frozenset(files)
        steps: list[Callable[[], None]] = [file.datasync for file in files]
        if self.directory_dirty:
            self.directory_dirty = False
            steps.append(self.sync_directory)
        return steps

    def take_dirty(self) -> list[File]:
        """Return the files whose writes may not be on stable storage, and count them as clean."""
        taken = list(self.dirty.values())
        self.dirty = {}
        return taken

    def release(self) -> None:
        """Forget the ended flush, and close the files that were dropped during it."""
        self.busy = frozenset()
        for file in self._dropped:
            file.close()
        self._dropped = []

    def close(self) -> None:
        """Release all handles, except those that a flush in another thread uses."""
        for file in self.handles.values():
            if file not in self.busy:
                file.close()
        self.handles = {}
        self.dirty = {}
