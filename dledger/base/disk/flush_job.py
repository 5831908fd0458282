# -*- test-case-name: tests.base.test_flush_job -*-
"""
What one flush of a store brings to stable storage.

A job is captured on the reactor's thread, run in any thread, and counts when its store has heard that it
ended well. L{dledger.rocketmq.store.log.log_flush} says which job runs when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs

from dledger.base.disk.segment import SegmentList
from dledger.base.disk.two_slots import SlotFile

#: A store that flushes all the time brings its mark to stable storage with one flush in this many.
MARK_SYNC_EVERY = 8

_Mark = TypeVar("_Mark")


@attrs.define(eq=False, kw_only=True)
class FlushJob:
    """
    @ivar epoch: of the store when the job was captured. A cut begins a new epoch: what the job has flushed
        then proves nothing about what was written after the cut.
    @ivar mark_generation: of the mark that the job brings to stable storage; -1: none.
    """

    epoch: int
    mark_generation: int = -1
    _steps: list[Callable[[], None]] = attrs.Factory(list)

    def add_files(self, segments: SegmentList) -> None:
        """Take what was written to C{segments} so far; L{SegmentList.release} follows."""
        self._steps += segments.begin_flush()

    def add_mark(self, mark_file: SlotFile[_Mark]) -> None:
        """Take the newest mark, if it is not on stable storage; L{SlotFile.synced} follows."""
        if mark_file.needs_sync:
            self.mark_generation = mark_file.generation
            self._steps.append(mark_file.datasync)

    def add_step(self, step: Callable[[], None]) -> None:
        """Take something else: it runs after what was taken before."""
        self._steps.append(step)

    def run(self) -> None:
        """
        Wait for stable storage. Any thread.

        @raise OSError: it is not known what is on stable storage; the store must not be used any more.
        """
        for step in self._steps:
            step()
