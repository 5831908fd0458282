# -*- test-case-name: tests.broker.store.test_commit_log -*-
"""
The state that the parts of an open commit log share: its files, its beginning and its end.

L{dledger.broker.store.commit_log.CommitLog} changes it. L{dledger.broker.store.log_flush.LogFlusher} knows
how much of it is on stable storage.
"""

from __future__ import annotations

from dledger.base.disk.guard import DiskGuard
from dledger.base.disk.segment import SegmentList
from dledger.broker.store.records import RecordWalk


class LogSegments(SegmentList):
    """The files of the log, and their descriptors."""

    def descriptor(self, position: int) -> int | None:
        """Descriptor of the file that holds C{position}; None if files have no descriptor."""
        fileno = getattr(self._file(self.base(position)), "fileno", None)
        return None if fileno is None else int(fileno())


class OpenLog:
    """
    Invariant: C{begin_offset <= walk.end <= end}, and only zeroes follow the end.

    @ivar guard: knows whether the files can still be used.
    @ivar end: the first offset behind the log; perhaps in the middle of a record.
    @ivar walk: has parsed every byte before C{end}; C{walk.end} is the end of the last whole record.
    @ivar epoch: rises with every cut.
    @ivar empty_at: where the first file will begin if there is none.
    """

    __slots__ = ("empty_at", "end", "epoch", "guard", "segments", "walk")

    def __init__(self, segments: LogSegments, end: int) -> None:
        self.segments = segments
        self.guard = DiskGuard("the commit log")
        self.end = self.empty_at = end
        self.walk = RecordWalk(segments.file_size, end)
        self.epoch = 0

    @property
    def begin_offset(self) -> int:
        """The lowest offset in the log; 0 for a log that never had a file."""
        return self.segments.offsets[0] if self.segments.offsets else self.empty_at
