# -*- test-case-name: tests.raft_broker.test_store -*-
"""
The store of a broker on a raft log: the consume queues of the messages in the ledger of its member.

The ledger is the member's. This store has the directory of the broker: the queues, and a small file that
reports up to where they are complete (L{dledger.raft_broker.checkpoints}). Another one does so for the tables
(L{dledger.rocketmq.metadata.tables_mark}); the dispatch begins at the earlier one of both places. Only
committed messages are in queues, so no queue is ever cut while the broker runs; a start cuts the units after
the recorded place, as a crash may have left holes before them.

Source: DefaultMessageStore.load, DLedgerCommitLog.recover (4.9.8); differs: docs/raft-broker.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from dledger.base.disk.disk import Disk
from dledger.base.disk.file_table import DISPATCHED
from dledger.base.disk.hints import HintFile, Hints
from dledger.base.threads import RunInThread
from dledger.raft_broker.checkpoints import (
    UNITS_UNKNOWN,
    Dispatched,
    RaftCheckpoints,
    decode_dispatched,
    encode_dispatched,
    units_of,
)
from dledger.raft_broker.entry_dispatch import EntryDispatch
from dledger.raft_broker.entry_indexing import EntryIndexing
from dledger.raft_broker.raft_log import RaftLog
from dledger.rocketmq.metadata.tables_mark import LogPlace, place_of_tables
from dledger.rocketmq.store.index.key_index import KeyIndex
from dledger.rocketmq.store.opened_files import OpenedFiles, StoreSurroundings, has_files, lock_store
from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.store.queues.unit_check import TornUnits
from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.rocketmq.store.records.checkpoint import (
    AbortFile,
    decode_checkpoint,
    read_store_checkpoint,
)
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.rocketmq.store.store import MessageStore
from dledger.values.errors import DirectoryError, StoreError


class RaftStore(MessageStore):
    """
    @ivar log: the committed part of the ledger.
    @ivar held: the place up to which the files of the tables held its metadata when it was opened.
    """

    log: RaftLog

    @classmethod
    def open(
        cls, config: StoreConfig, disk: Disk, log: RaftLog, *, clock: IReactorTime,
        run_in_thread: RunInThread, failed: Callable[[Failure], None], events: BrokerEvents,
        is_awaited: Callable[[], bool] = lambda: True,
    ) -> RaftStore:
        """
        Lock the directory of the broker, and open its queues.

        @param log: of a ledger that is open.
        @raise DirectoryError: the directory is in use, or its files do not fit.
        @raise StoreError: reading or repairing failed.
        """
        lock = lock_store(config, disk)
        try:
            root, hints = config.store_path_root_dir, Hints(disk)
            abort = AbortFile(disk, root)
            mark = HintFile(hints, DISPATCHED, root).read(lambda data: decode_dispatched(data, log.file_size))
            # Without a mark nothing says that the last run ended in order: both may have been moved away.
            crashed = abort.is_there or mark is None
            if mark is None and has_files(disk, config.commit_log_path):
                raise DirectoryError(
                    f"{config.commit_log_path} has the log of a broker without a raft log, whose messages "
                    "this one would not show: leave out enableDLegerCommitLog, or name another "
                    "store_path_root_dir; or move its files away to begin without them"
                )
            abort.put(str(os.getpid()))
            mark = cls._mark_of(log, mark)
            queues, known = cls._open_queues(config, hints, log, mark, crashed=crashed)
            log.show_to(known)
            if queues.has_lost:
                known = log.begin_offset
            held = cls._held(config, hints, log)
            dispatch = EntryDispatch(
                log, queues, config.delay_levels_ms, offset=max(min(known, held.offset), log.begin_offset),
                held=held.offset, events=events, expire=queues.expire,
            )
            indexing = None
            if config.message_index_enable:
                checkpoint = decode_checkpoint(read_store_checkpoint(hints, root) or b"")
                index = KeyIndex.open(
                    config, hints, log, log_end=log.ledger_end, crashed=crashed,
                    timestamp=checkpoint.index_msg_timestamp,
                )
                indexing = EntryIndexing(index, log, clock=clock)
            return cls(
                config, OpenedFiles(
                    disk=disk, hints=hints, lock=lock, log=log, queues=queues, dispatcher=dispatch,
                    indexing=indexing,
                ), StoreSurroundings(
                    clock=clock, run_in_thread=run_in_thread, failed=failed, events=events,
                    is_awaited=is_awaited,
                ), dispatch, known=known, held=held,
            )
        except BaseException as error:
            log.abandon()
            lock.close()
            if isinstance(error, OSError):
                raise StoreError(f"{config.store_path_root_dir} cannot be opened: {error}") from error
            raise

    @classmethod
    def _mark_of(cls, log: RaftLog, mark: Dispatched | None) -> Dispatched | None:
        """
        The mark, if it is of this log. A lowered one has no queues that could be another log's.
        """
        if mark is None or mark.units == UNITS_UNKNOWN or log.has(mark.place):
            return mark
        cls.log_events.warn(
            "the queues were made from a log with other entries before {offset}: all queues are built again",
            offset=mark.place.offset,
        )
        return None

    @classmethod
    def _held(cls, config: StoreConfig, hints: Hints, log: RaftLog) -> LogPlace:
        """
        The place up to which the files of the tables hold the metadata of this log; its begin if that is not
        certain.
        """
        found = place_of_tables(hints, config.config_path)
        if isinstance(found, LogPlace):
            if log.has(found):
                return found
            found = f"the tables were saved with a log that has other entries before {found.offset}"
        if log.begin_offset < log.ledger_end:
            cls.log_events.warn("{reason}: all metadata in the log are read again", reason=found)
        return LogPlace(log.begin_offset, 0)

    @classmethod
    def _open_queues(
        cls, config: StoreConfig, hints: Hints, log: RaftLog, mark: Dispatched | None, *, crashed: bool,
    ) -> tuple[ConsumeQueues, int]:
        """
        @return: the queues, and the offset up to which they are complete. If messages before the mark are
            missing, as after somebody has deleted queues to have them built again, that is the log's begin.
        """
        begin, end = log.begin_offset, log.ledger_end
        known = begin if mark is None else max(min(mark.place.offset, end), begin)
        file = HintFile(hints, DISPATCHED, config.store_path_root_dir)
        lowered = encode_dispatched(Dispatched(LogPlace(begin, 0), UNITS_UNKNOWN), log.file_size)

        def lower() -> None:
            file.lower(lowered)

        queues = ConsumeQueues.open(
            config, hints, log_begin=begin, log_end=known, is_trusted=mark is not None, crashed=crashed,
            torn=TornUnits(log.read_any, range(begin, known), end + 2 * log.file_size),
            losing=lower,
        )
        is_known = mark is not None and mark.place.offset == known and mark.units != UNITS_UNKNOWN
        found = units_of(queues)
        if mark is None or not is_known or queues.has_lost or found == mark.units:
            return queues, known
        queues.close()
        lower()
        cls.log_events.warn(
            "the queues have {found} messages before {offset}, not {expected}: all queues are built again",
            found=found, offset=known, expected=mark.units,
        )
        return cls._open_queues(config, hints, log, None, crashed=crashed)

    def __init__(
        self, config: StoreConfig, opened: OpenedFiles[RaftLog], around: StoreSurroundings,
        entries: EntryDispatch, *, known: int, held: LogPlace,
    ) -> None:
        """
        @param entries: the dispatcher of C{opened}.
        @param known: see L{RaftCheckpoints}.
        """
        self._raft_checkpoints = RaftCheckpoints(config.store_path_root_dir, opened, around, known=known)
        self.held = held
        super().__init__(
            config, opened, around, self._raft_checkpoints, gives_way=False, bad_records=BadRecords()
        )
        self._entries = entries

    def applied(self) -> LogPlace:
        """
        Up to which place the tables have the metadata of the log now.

        @raise OSError: the log cannot be read.
        """
        offset = self._entries.applied_offset
        return LogPlace(offset, self.log.tail_check(offset))

    def forget_topic(self, topic: str) -> None:
        """
        Keep the queues: other members have them, too, and would take the messages of a new topic of this name
        for known ones if its offsets began at 0 again. Their files go with the messages in the log.
        """

    @property
    def written_end(self) -> int:
        return self.log.ledger_end

    @property
    def needed_index(self) -> int:
        """
        The queues need the entries after this one: after a crash they are dispatched again, and a queue whose
        entries have expired until then would give out queue offsets twice.
        """
        return self.log.first_index_from(self._raft_checkpoints.settled_offset) - 1

    def facts(self) -> dict[str, object]:
        return {**super().facts(), "entriesPassedOver": self._entries.passed_over}

    def expire_queues(self) -> None:
        """
        Delete the files of queues and index whose messages the ledger has deleted.

        @raise StoreError: deleting failed.
        """
        try:
            self.queues.expire(self.log.begin_offset)
            if self.indexing is not None:
                self.indexing.index.expire(self.log.begin_offset)
        except OSError as error:
            raise StoreError(f"deleting old files of queues: {error}") from error
