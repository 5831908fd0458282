# -*- test-case-name: tests.broker.store.test_checkpoints -*-
"""
A checkpoint brings everything that is dispatched to stable storage, then records the place up to which that
is so::

    DispatchFlush            the place of this moment, and the state of the index
    ... of the log           what index and queues refer to: a commit log's bytes
    DispatchFlush.ahead      RocketMQ's file has the time of the index
    DispatchFlush.run        index, then queues
    ... of the log           the place is recorded, unless that is not so any more

How a kind of log does its two parts is one coroutine of its own, L{StoreCheckpoints.write}, which has the
place and all that it remembers across its awaits as local variables.

Rule: nothing is recorded that was not on stable storage before, except the time of the index: after a crash
RocketMQ's start deletes files of the index with younger records, also with all older ones that they have, and
puts records again from the times of log and queues on alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from dledger.base.threads import RunInThread
from dledger.rocketmq.store.opened_files import AnyLog, OpenedFiles
from dledger.rocketmq.store.records.checkpoint import Checkpoint


class StoreCheckpoints(Protocol):
    """The checkpoints of one store."""

    async def write(self) -> None:
        """
        Write one, off the reactor. Not called while one is under way.

        @raise OSError: a file could not be written; the last checkpoint holds.
        @raise StoreError: the log is broken.
        """


class DispatchFlush:
    """
    One flush of the files that the dispatch fills: the index by key and the consume queues.

    @ivar offset: end of the last record that is dispatched when this is made; after L{run} the units of all
        records before it are on stable storage, unless the log was cut meanwhile.
    @ivar store_timestamp: of that record, ms; 0: none was dispatched.
    """

    def __init__(self, opened: OpenedFiles[AnyLog], run_in_thread: RunInThread) -> None:
        """Take the place and the index's state of this moment. L{run} has to be called."""
        self.offset = opened.dispatcher.offset
        self.store_timestamp = opened.dispatcher.store_timestamp
        self._index = None if opened.indexing is None else opened.indexing.index
        self._of_index = None if self._index is None else self._index.prepare_flush()
        self._queues = opened.queues
        self._run_in_thread = run_in_thread

    async def run(self) -> None:
        """
        Bring both to stable storage. The log must be there before. A failure of the index is none here.

        @raise OSError: writing the queues failed.
        """
        if self._index is not None and self._of_index is not None:
            await self._index.flush(self._of_index, self._run_in_thread)
        steps = self._queues.prepare_flush()
        has_failed = True
        try:
            await self._run_in_thread(lambda: _run_steps(steps))
            has_failed = False
        finally:
            self._queues.finish_flush(has_failed=has_failed)

    def ahead(self, times: Checkpoint) -> Checkpoint:
        """The content of RocketMQ's file before L{run}. @param times: that of now."""
        index = 0 if self._of_index is None else self._of_index.mark.header.end_timestamp
        return attrs.evolve(times, index_msg_timestamp=max(times.index_msg_timestamp, index))

    def times(self) -> Checkpoint:
        """The content of RocketMQ's file, after L{run}."""
        return Checkpoint(
            physic_msg_timestamp=self.store_timestamp, logics_msg_timestamp=self.store_timestamp,
            index_msg_timestamp=0 if self._index is None else self._index.end_timestamp,
        )


def _run_steps(steps: Sequence[Callable[[], None]]) -> None:
    """Run all in order, in the thread of the caller."""
    for step in steps:
        step()
