# -*- test-case-name: tests.base.test_set_aside -*-
"""
Keeps the files and bytes that a log gives up, in a directory beside the log.

A file of C{<directory>} is moved to C{<directory>.set-aside}; its new name ends in the term of the last entry
of the log, and in C{-2}, C{-3} if there is such a file. Bytes that are about to be zeroed are copied there
first. We never overwrite, read or delete these files: an operator decides about them. A file of zeroes holds
nothing, so it is deleted instead.

They are not kept in the directory itself, because Java reads every name there as a number.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.segment import SegmentList, file_name

_CHUNK = 1024 * 1024


@attrs.frozen(kw_only=True)
class KeptFile:
    """
    A file that was set aside.

    @ivar size: bytes.
    """

    path: str
    size: int


def set_aside_directory(directory: str) -> str:
    """The directory in which files of C{directory} are kept."""
    return f"{directory}.set-aside"


def kept_files(disk: Disk, directory: str) -> list[KeptFile]:
    """Everything that was ever set aside from C{directory}. @raise OSError: it cannot be listed."""
    kept = set_aside_directory(directory)
    if not disk.exists(kept):
        return []
    paths = [f"{kept}/{name}" for name in disk.listdir(kept)]
    return [KeptFile(path=path, size=disk.file_size(path)) for path in paths]


class SetAside:
    """
    Sets files and bytes aside.

    @ivar kept: what was set aside, in order.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.kept: list[KeptFile] = []

    def _place(self, directory: str, name: str, term: int) -> str:
        kept = set_aside_directory(directory)
        self._disk.makedirs(kept)
        path = whole = f"{kept}/{name}.set-aside-{term}"
        number = 1
        while self._disk.exists(path):
            number += 1
            path = f"{whole}-{number}"
        return path

    def file(self, path: str, term: int, *, is_written: bool = False) -> None:
        """
        Set one file aside, or delete it if it has no byte but zeroes; durable on return.

        @param is_written: it is known to have a byte that is not zero.
        """
        directory, _, name = path.rpartition("/")
        size = self._disk.file_size(path)
        if not is_written and self._is_blank(path, size):
            self._disk.unlink(path)
        else:
            to = self._place(directory, name, term)
            self._disk.rename(path, to)
            self.kept.append(KeptFile(path=to, size=size))
        self._disk.sync_directory(directory)

    def _is_blank(self, path: str, size: int) -> bool:
        file = self._disk.open(path)
        try:
            return not any(file.pread(_CHUNK, at).strip(b"\0") for at in range(0, size, _CHUNK))
        finally:
            file.close()

    def files_behind(
        self, segments: SegmentList, position: int, term: int, *, written_end: int = 0
    ) -> None:
        """
        Set aside the files after the one that holds an offset of the log, the last file first.

        @param position: the offset; -1: all files are set aside.
        @param written_end: files before this offset are known to have a byte that is not zero.
        """
        while segments.offsets and segments.offsets[-1] > position:
            is_written = segments.offsets[-1] < written_end
            self.file(segments.forget_last(), term, is_written=is_written)

    def bytes_of(self, segments: SegmentList, position: int, term: int) -> None:
        """
        Copy the bytes from an offset of the log to the end of their file, durably, without the zeroes at the
        end. If all are zeroes, nothing is copied.

        @raise OSError: it failed; no copy is left.
        """
        base = segments.base(position)
        if not segments.has(base):
            return
        start, end = position, base + segments.file_size
        while end > start:
            size = min(_CHUNK, end - start)
            rest = len(segments.pread(size, end - size).rstrip(b"\0"))
            if rest:
                end += rest - size
                break
            end -= size
        if end <= start:
            return
        path = self._place(segments.directory, f"{file_name(base)}.from-{start - base}", term)
        file = self._disk.open(path, create=True, size=end - start)
        try:
            for at in range(start, end, _CHUNK):
                file.pwrite(segments.pread(min(_CHUNK, end - at), at), at - start)
            file.datasync()
        except OSError:
            file.close()
            self._disk.unlink(path)
            raise
        file.close()
        self._disk.sync_directory(set_aside_directory(segments.directory))
        self.kept.append(KeptFile(path=path, size=end - start))
