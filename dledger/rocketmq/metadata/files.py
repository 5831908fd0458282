# -*- test-case-name: tests.broker.metadata.test_files -*-
"""
All tables of a broker's metadata, and their files in C{config/}.

A file is replaced by rename after fsync; before that its old content goes to C{.bak} in the same way. So one
of the two is whole at any time, and C{.bak} is read if the file itself is missing or malformed, as RocketMQ
does.

Source: ConfigManager, MixAll.string2File (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred, succeed

from dledger.base.disk.disk import Disk
from dledger.base.process.in_turn import InTurn
from dledger.base.process.threads import RunInThread
from dledger.rocketmq.metadata.changed_options import ChangedOptions
from dledger.rocketmq.metadata.offsets import ConsumerOffsets, DelayOffsets
from dledger.rocketmq.metadata.order_info import OrderInfos
from dledger.rocketmq.metadata.tables import FileTable, Groups, RequestModes, Topics
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from protocols.wire.errors import BodyError


class Metadata:
    """
    Invariant: a table that is not dirty equals its file. A file says nothing of messages that are not on
    stable storage: offsets that are younger than the log would pass over messages that it lost.

    @ivar flush_log: brings the messages of this moment to stable storage; called before each write.
    @ivar restored: paths of malformed or missing files that were read from C{.bak}.
    """

    def __init__(self, disk: Disk, directory: str, *, now_ms: int) -> None:
        """
        Nothing is read: see L{load}.

        @param directory: C{config} in the store's root.
        @param now_ms: for data versions, ms since 1970.
        """
        self._disk = disk
        self._directory = directory
        self._saving = InTurn()
        self.topics = Topics(now_ms)
        self.groups = Groups(now_ms)
        self.consumer_offsets = ConsumerOffsets(now_ms)
        self.delay_offsets = DelayOffsets(now_ms)
        self.request_modes = RequestModes()
        self.changed_options = ChangedOptions()
        self.order_info = OrderInfos()
        self.restored: list[str] = []
        self.flush_log: Callable[[], Deferred[None]] = lambda: succeed(None)

    @property
    def tables(self) -> tuple[FileTable, ...]:
        """Every table."""
        return (
            self.topics, self.groups, self.consumer_offsets, self.delay_offsets, self.request_modes,
            self.changed_options, self.order_info,
        )

    def load(self) -> None:
        """
        Read the files that exist.

        @raise DirectoryError: a file and its C{.bak} are both unusable.
        @raise StoreError: reading failed.
        """
        for table in self.tables:
            path = f"{self._directory}/{table.file_name}"
            try:
                self._load(table, path)
            except OSError as error:
                raise StoreError(f"{path} cannot be read: {error}") from error

    def _load(self, table: FileTable, path: str) -> None:
        reasons = []
        for one in (path, path + ".bak"):
            if not self._disk.exists(one):
                continue
            data = self._disk.read_file(one)
            try:
                table.load(data)
            except BodyError as error:
                reasons.append(f"{one}: {error}" if data else f"{one} is empty")
                continue
            if one != path:
                self.restored.append(path)
                table.is_dirty = True
            return
        if reasons:
            raise DirectoryError(
                f"{'; '.join(reasons)}. Put a sound copy there (a master or slave has one, and so has a "
                "backup); or remove the file and its .bak to begin without"
            )

    def save(self, run_in_thread: RunInThread) -> Deferred[None]:
        """
        Write the changed tables, in their current state, off the reactor. A call while a save is under way
        waits for that save first.

        @return: fires when they are on stable storage. Fails with L{StoreError} if a write failed; that table
            stays dirty and the next call writes it again.
        """
        return self._saving.run(lambda: Deferred.fromCoroutine(self._save(run_in_thread)))

    async def _save(self, run_in_thread: RunInThread) -> None:
        dirty = [table for table in self.tables if table.is_dirty]
        if not dirty:
            return
        steps = [self._write_step(table) for table in dirty]
        for table in dirty:
            table.is_dirty = False
        try:
            await self.flush_log()
            await run_in_thread(lambda: _run(steps))
        except (OSError, StoreError, DLedgerError) as error:
            for table in dirty:
                table.is_dirty = True
            raise StoreError(f"{self._directory} cannot be written: {error}") from error

    def _write_step(self, table: FileTable) -> Callable[[], None]:
        path, content, disk = f"{self._directory}/{table.file_name}", table.file_bytes(), self._disk

        def write() -> None:
            disk.makedirs(self._directory)
            if disk.exists(path):
                before = disk.read_file(path)
                if before:
                    disk.write_file(path + ".bak", before)
            disk.write_file(path, content)

        return write


def _run(steps: list[Callable[[], None]]) -> None:
    for step in steps:
        step()
