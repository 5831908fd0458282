# -*- test-case-name: tests.broker.store.test_checkpoints -*-
"""
The checkpoints of a store with a commit log: the log's mark, and RocketMQ's file C{checkpoint}.

Rule: the mark has the content of the file before the file is written.

Source: DefaultMessageStore.java, StoreCheckpoint.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

from dledger.base.disk.file_table import BROKER_CHECKPOINT
from dledger.base.disk.hints import HintFile
from dledger.rocketmq.store.checkpoints import DispatchFlush
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.opened_files import OpenedFiles, StoreSurroundings
from dledger.rocketmq.store.records.checkpoint import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)


class LogCheckpoints:
    """A L{dledger.rocketmq.store.checkpoints.StoreCheckpoints}."""

    def __init__(self, root: str, opened: OpenedFiles[CommitLog], around: StoreSurroundings) -> None:
        """@param root: the directory of the store."""
        self._file = HintFile(opened.hints, BROKER_CHECKPOINT, root)
        self._content = self._file.read(bytes)
        self._times = decode_checkpoint(self._content or b"")
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
        await self._opened.log.flusher.note_checkpoint(content, self._content, self._run_in_thread)
        written: list[bool] = []
        await self._run_in_thread(lambda: written.append(self._file.write(content)))
        if written[0]:
            self._times = times
        # (After a failed fsync it may have the one or the other.)
        self._content = content if written[0] else self._file.read(bytes)
