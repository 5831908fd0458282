# -*- test-case-name: tests.broker.store.test_checkpoints -*-
"""
The checkpoints of a store with a commit log: the log's mark, and RocketMQ's file C{checkpoint}.

Rule: the mark has the content of the file before the file is written.

Source: DefaultMessageStore.java, StoreCheckpoint.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

from dledger.rocketmq.store.checkpoints import DispatchFlush
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.opened_files import OpenedFiles, StoreSurroundings
from dledger.rocketmq.store.records.checkpoint import (
    CHECKPOINT_NAME,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    read_small,
)


class LogCheckpoints:
    """A L{dledger.rocketmq.store.checkpoints.StoreCheckpoints}."""

    def __init__(self, root: str, opened: OpenedFiles[CommitLog], around: StoreSurroundings) -> None:
        """@param root: the directory of the store. @raise OSError: the file cannot be read."""
        self._path = f"{root}/{CHECKPOINT_NAME}"
        self._times = decode_checkpoint(read_small(opened.disk, self._path) or b"")
        self._opened = opened
        self._run_in_thread = around.run_in_thread
        self._cuts = 0

    def log_was_cut(self) -> None:
        """Dispatched records are gone: the checkpoint that is under way records nothing."""
        self._cuts += 1

    async def write(self) -> None:
        """See L{dledger.rocketmq.store.checkpoints.StoreCheckpoints.write}."""
        log, cuts = self._opened.log, self._cuts
        dispatched = DispatchFlush(self._opened, self._run_in_thread)
        await log.flush()
        await self._record(dispatched.ahead(self._times))
        await dispatched.run()
        if cuts != self._cuts:
            return
        log.flusher.record_dispatched(dispatched.offset)
        if dispatched.store_timestamp:
            await self._record(dispatched.times())

    async def _record(self, times: Checkpoint) -> None:
        if times == self._times:
            return
        content = encode_checkpoint(times)
        await self._opened.log.flusher.note_checkpoint(content, self._run_in_thread)
        await self._run_in_thread(lambda: self._opened.disk.write_file(self._path, content))
        self._times = times
