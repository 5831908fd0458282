# -*- test-case-name: tests.broker.metadata.test_files -*-
"""
All tables of a broker's metadata, and their files in C{config/}.

A file is replaced by rename after fsync; before that its old content goes to C{.bak} in the same way. So one
of the two is whole at any time, and C{.bak} is read if the file itself is missing or malformed, as RocketMQ
does. With a raft log a mark of the tables lies beside them (L{dledger.rocketmq.metadata.tables_mark}).

Source: ConfigManager, MixAll.string2File (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred, succeed

from dledger.base.disk.disk import Disk
from dledger.base.disk.file_table import TABLES_APPLIED
from dledger.base.disk.hints import HintFile, Hints
from dledger.base.disk.unreadable import read_copy
from dledger.base.in_turn import InTurn
from dledger.base.threads import RunInThread
from dledger.rocketmq.metadata.changed_options import ChangedOptions
from dledger.rocketmq.metadata.offsets import ConsumerOffsets, DelayOffsets, never_deleted
from dledger.rocketmq.metadata.order_info import OrderInfos
from dledger.rocketmq.metadata.tables import FileTable, Groups, RequestModes, Topics
from dledger.rocketmq.metadata.tables_mark import (
    LOGGED_FILES,
    NO_FILE,
    FollowedLog,
    LogPlace,
    Sums,
    encode_tables_mark,
)
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from protocols.wire.checksums import crc32
from protocols.wire.errors import BodyError


class Metadata:
    """
    Invariant: a table that is not dirty equals its file. A file says nothing of messages that are not on
    stable storage: offsets that are younger than the log would pass over messages that it lost.
    The mark of the tables holds for the files at any time; C{_sums} has the checksums of those that it names.

    @ivar hints: the mark of the tables.
    @ivar restored: paths of malformed or missing files that were read from C{.bak}, and not written since.
    """

    def __init__(
        self, disk: Disk, directory: str, *, now_ms: int, place_of: Callable[[str], int] = never_deleted,
        flush_log: Callable[[], Deferred[None]] = lambda: succeed(None), followed: FollowedLog | None = None,
    ) -> None:
        """
        Nothing is read: see L{load}.

        @param directory: C{config} in the store's root.
        @param now_ms: for data versions, ms since 1970.
        @param place_of: see L{ConsumerOffsets}.
        @param flush_log: brings the messages of this moment to stable storage; called before each write.
        @param followed: a raft log: it is noted beside the files up to which place they hold it; None: none.
        """
        self._disk = disk
        self._directory = directory
        self.hints = Hints(disk)
        self._mark_file = HintFile(self.hints, TABLES_APPLIED, directory)
        self._saving = InTurn()
        self.topics = Topics(now_ms)
        self.groups = Groups(now_ms)
        self.consumer_offsets = ConsumerOffsets(now_ms, place_of)
        self.delay_offsets = DelayOffsets(now_ms)
        self.request_modes = RequestModes()
        self.changed_options = ChangedOptions()
        self.order_info = OrderInfos()
        self.restored: list[str] = []
        self._flush_log = flush_log
        self._applied = None if followed is None else followed.applied
        self._held = LogPlace(0, 0) if followed is None else followed.held
        self._sums = dict.fromkeys(LOGGED_FILES, NO_FILE)

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
            data = read_copy(self._disk, one)
            if one == path and table.file_name in self._sums:
                self._sums[table.file_name] = crc32(data)
            try:
                table.load(data)
            except BodyError as error:
                reasons.append(f"{one}: {error}" if data else f"{one} is empty, or cannot be read")
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
        try:
            place = None if self._applied is None else self._applied()
            if not dirty and place in (None, self._held):
                return
            contents = {table.file_name: table.file_bytes() for table in dirty}
            for table in dirty:
                table.is_dirty = False
            await self._flush_log()
            sums = {
                name: crc32(contents[name]) if name in contents else known
                for name, known in self._sums.items()
            }
            marked: list[bool] = []
            await run_in_thread(lambda: marked.append(self._write(contents, sums, place)))
        except (OSError, StoreError, DLedgerError) as error:
            for table in dirty:
                table.is_dirty = True
            raise StoreError(f"{self._directory} cannot be written: {error}") from error
        written = {f"{self._directory}/{name}" for name in contents}
        self.restored = [path for path in self.restored if path not in written]
        self._sums = sums
        if place is not None and marked[0]:
            self._held = place

    def _write(
        self, contents: Mapping[str, bytes], after: Mapping[str, int], place: LogPlace | None
    ) -> bool:
        """
        Replace files. Runs in a thread, one call at a time.

        @param contents: by names of files.
        @param after: checksums of the logged files with these contents.
        @param place: up to which they hold the log; None: it is a plain one.
        @return: whether the mark says so.
        """
        disk, directory, before = self._disk, self._directory, self._sums
        disk.makedirs(directory)
        if contents and place is not None:
            sums: Sums = {name: (before[name], after[name]) for name in after}
            self._mark_file.write(encode_tables_mark(self._held, sums))
        for name, data in contents.items():
            path = f"{directory}/{name}"
            if path not in self.restored and disk.exists(path) and (old := read_copy(disk, path)):
                disk.write_file(path + ".bak", old)
            disk.write_file(path, data)
        return place is not None and self._mark_file.write(
            encode_tables_mark(place, {name: (one, one) for name, one in after.items()})
        )
