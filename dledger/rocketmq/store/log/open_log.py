# -*- test-case-name: tests.broker.store.test_commit_log -*-
"""
The state that the parts of an open commit log share: its files, its beginning and its end.

L{dledger.rocketmq.store.log.commit_log.CommitLog} changes it.
L{dledger.rocketmq.store.log.log_flush.LogFlusher} knows how much of it is on stable storage.
"""

from __future__ import annotations

from dledger.base.disk.guard import DiskGuard
from dledger.base.disk.segment import SegmentList, file_name
from dledger.base.disk.sparse import data_pieces
from dledger.rocketmq.store.records.body_check import BodyCheck
from dledger.rocketmq.store.records.records import RecordWalk
from dledger.rocketmq.store.records.set_aside import copy_file, next_directory

_SCAN_BYTES = 1024 * 1024


class LogSegments(SegmentList):
    """The files of the log, and their descriptors."""

    def descriptor(self, position: int) -> int | None:
        """Descriptor of the file that holds C{position}; None if files have no descriptor."""
        fileno = getattr(self._file(self.base(position)), "fileno", None)
        return None if fileno is None else int(fileno())

    def new_aside(self) -> str:
        """A directory for files that the log gives up; not created yet."""
        return next_directory(self._disk, self.directory)

    def make_aside(self, directory: str) -> None:
        """Create a directory for files that the log gives up. @raise OSError: it cannot be created."""
        self._disk.makedirs(directory)

    def copy_aside(self, position: int, directory: str) -> None:
        """
        Copy the file that holds C{position}: its first part stays in the log. May run in another thread.

        @raise OSError: copying failed.
        """
        base = self.base(position)
        source = self._disk.open(self.path(base))
        try:
            copy_file(self._disk, source, directory, base, self.file_size)
        finally:
            source.close()

    def move_aside(self, paths: tuple[str, ...], directory: str) -> None:
        """Move files that are none of the log's any more. @raise OSError: moving failed."""
        self._disk.makedirs(directory)
        for path in paths:
            self._disk.rename(path, f"{directory}/{path.rpartition('/')[2]}")
        self._disk.sync_directory(directory)
        self._disk.sync_directory(self.directory)

    def keep_damaged(self, offset: int, data: bytes) -> str:
        """
        Copy damaged bytes of the log, durably, to a file of their own. May run in another thread.

        @param offset: of the bytes in the log, which gives the file its name.
        @return: the path of the file.
        @raise OSError: writing failed.
        """
        directory = f"{self.directory}.damaged"
        self._disk.makedirs(directory)
        path = whole = f"{directory}/{file_name(offset)}"
        number = 1
        while self._disk.exists(path):
            number += 1
            path = f"{whole}-{number}"
        file = self._disk.open(path, create=True)
        try:
            file.pwrite(data, 0)
            file.datasync()
        finally:
            file.close()
        self._disk.sync_directory(directory)
        return path

    def sync_file(self, position: int) -> None:
        """
        Bring the file that holds C{position} to stable storage. May run in another thread.

        @raise OSError: syncing failed.
        """
        file = self._disk.open(self.path(self.base(position)))
        try:
            file.datasync()
        finally:
            file.close()

    def holds_bytes(self, path: str) -> bool:
        """Whether a file has a byte that is not zero. @raise OSError: it cannot be read."""
        source = self._disk.open(path)
        try:
            for at in range(0, source.size(), _SCAN_BYTES):
                data = source.pread(_SCAN_BYTES, at)
                if data.count(0) != len(data):
                    return True
        finally:
            source.close()
        return False

    def last_written(self, position: int) -> int:
        """
        Offset after the last byte from C{position} on that is not zero; C{position} if all are zero. Holes of
        a sparse file are not read.
        """
        for offset in reversed(self.offsets):
            low = max(0, position - offset)
            file = self._file(offset)
            file.datasync()  # file systems have shown bytes that they had not stored yet as a hole
            for start in reversed(data_pieces(file, low, self.file_size, _SCAN_BYTES)):
                left = self.pread(_SCAN_BYTES, offset + start).rstrip(b"\0")
                if left:
                    return offset + start + len(left)
            if offset <= position:
                break
        return position


class OpenLog:
    """
    Invariant: C{begin_offset <= walk.end <= end}, and only zeroes follow the end.

    @ivar guard: knows whether the files can still be used.
    @ivar end: the first offset after the log; perhaps in the middle of a record.
    @ivar walk: has parsed every byte before C{end}; C{walk.end} is the end of the last whole record.
    @ivar bodies: has checked the bodies of a master's bytes; elsewhere than at C{end} it must restart.
    @ivar epoch: rises with every cut.
    @ivar empty_at: where the first file will begin if there is none.
    """

    __slots__ = ("bodies", "empty_at", "end", "epoch", "guard", "segments", "walk")

    def __init__(self, segments: LogSegments, end: int) -> None:
        self.segments = segments
        self.guard = DiskGuard("the commit log")
        self.end = self.empty_at = end
        self.walk = RecordWalk(segments.file_size, end)
        self.bodies = BodyCheck(segments.file_size, end)
        self.epoch = 0

    @property
    def begin_offset(self) -> int:
        """The lowest offset in the log; 0 for a log that never had a file."""
        return self.segments.offsets[0] if self.segments.offsets else self.empty_at
