# -*- test-case-name: tests.base.test_set_aside -*-
"""
Files and bytes that leave a log without being deleted: they are kept in a directory beside it.

The last files of C{<directory>} go to C{<directory>.set-aside}, under their name with a suffix that says in
which term; so does a copy of bytes that are about to be zeroed. Nothing there is ever overwritten, read or
deleted by us: an operator decides. Files of zeroes hold nothing, and are deleted.

Java reads every name in a directory of segments as a number, so nothing may be kept in it.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.segment import SegmentList, file_name

_CHUNK = 1024 * 1024


@attrs.frozen(kw_only=True)
class KeptFile:
    """A file that was set aside, and its bytes."""

    path: str
    size: int


def set_aside_directory(directory: str) -> str:
    """Where the files of C{directory} are kept."""
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

        @param is_written: it is known to hold something.
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
        Set aside the files after the one that holds C{position}; -1: all files. The last comes first.

        @param written_end: the files before this stream offset are known to hold something.
        """
        while segments.offsets and segments.offsets[-1] > position:
            is_written = segments.offsets[-1] < written_end
            self.file(segments.forget_last(), term, is_written=is_written)

    def bytes_of(self, segments: SegmentList, position: int, term: int) -> None:
        """
        Copy the bytes from C{position} to the end of its file, without the zeroes at the end; durable on
        return. Nothing is copied if all are zeroes.
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
