# -*- test-case-name: tests.broker.store.test_store -*-
"""
One RocketMQ store with a commit log: its directory, its log, its consume queues, and their periodic work.

L{CommitLogStore.open} locks and recovers a directory, written by us or by RocketMQ. The log is flushed every
half second; every ten seconds the queues are, too, and the checkpoint is written.

Source: DefaultMessageStore.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from dledger.base.disk.disk import Disk
from dledger.base.disk.expiry import Expiry
from dledger.base.disk.hints import Hints
from dledger.base.threads import RunInThread
from dledger.rocketmq.store.index.indexing import KeyIndexing
from dledger.rocketmq.store.index.key_index import KeyIndex
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.log.log_start import LogSeen, inspect_log
from dledger.rocketmq.store.log.record_mending import RecordMending
from dledger.rocketmq.store.log.scrub import Scrub
from dledger.rocketmq.store.log_checkpoints import LogCheckpoints
from dledger.rocketmq.store.opened_files import OpenedFiles, StoreSurroundings, has_files, lock_store
from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.store.queues.reput import Dispatcher
from dledger.rocketmq.store.queues.unit_check import TornUnits
from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.rocketmq.store.records.checkpoint import (
    AbortFile,
    decode_checkpoint,
    read_store_checkpoint,
)
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.rocketmq.store.records.plain_records import Placed, PlainMessage
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.rocketmq.store.store import MessageStore
from dledger.values.errors import DirectoryError, DLedgerError, StoreError
from protocols.wire.codes import ResponseCode

#: Files of the log that a power cut takes, at most, after the last one that it leaves.
FILES_LOST_MAX = 8


class CommitLogStore(MessageStore):
    """
    @ivar log: the commit log.
    @ivar scrub: reads the log again to find damaged records; the owner calls its C{tick} once a second.
    @ivar mending: takes sound copies of damaged records.
    """

    log: CommitLog

    def __init__(
        self, config: StoreConfig, opened: OpenedFiles[CommitLog], around: StoreSurroundings, *,
        is_slave: bool,
    ) -> None:
        log = opened.log
        self._log_checkpoints = LogCheckpoints(config.store_path_root_dir, opened, around)
        super().__init__(
            config, opened, around, self._log_checkpoints, gives_way=is_slave, bad_records=BadRecords()
        )
        self.scrub = Scrub(
            log, self.bad_records, opened.disk, config.commit_log_path, run_in_thread=around.run_in_thread,
            bytes_per_s=config.scrub_bytes_per_second,
        )
        self.mending = RecordMending(log, self.bad_records, check_from=self.scrub.check_from)
        self._expiry = Expiry(config.expiry_rules)
        self._expired = log.begin_offset  # what is before it is gone from the queues and the index, too

    @classmethod
    def open(
        cls, config: StoreConfig, disk: Disk, *, is_slave: bool, clock: IReactorTime,
        run_in_thread: RunInThread, failed: Callable[[Failure], None], events: BrokerEvents,
        is_awaited: Callable[[], bool] = lambda: True,
    ) -> CommitLogStore:
        """
        Lock, check and recover the store in C{config.store_path_root_dir}; create it if absent.

        @param is_slave: see L{CommitLog.open}.
        @param failed: called once if the store has failed; the owner then calls L{abandon}.
        @param events: hears of every append, cut and dispatch; must call L{log_was_cut} after a cut, and
            C{reput.wake} when the log has grown.
        @raise DirectoryError: the directory is in use, or its files do not fit; the text says what to do.
        @raise StoreError: reading or repairing it failed.
        """
        lock = lock_store(config, disk)
        log: CommitLog | None = None
        try:
            root, hints = config.store_path_root_dir, Hints(disk)
            abort = AbortFile(disk, root)
            checkpoint = read_store_checkpoint(hints, root)
            seen = inspect_log(config, disk, checkpoint=checkpoint, is_aborted=abort.is_there)
            if not seen.offsets:
                _refuse_raft_log(disk, root)
            abort.put(str(os.getpid()))
            log = CommitLog.open(
                config, disk, seen, is_slave=is_slave, run_in_thread=run_in_thread, events=events
            )
            queues, offset = _open_queues(config, hints, seen, log)
            dispatcher = Dispatcher(
                log, queues, config.delay_levels_ms, offset=offset, log_path=config.commit_log_path
            )
            indexing = None
            if config.message_index_enable:
                index = KeyIndex.open(
                    config, hints, log, log_end=log.record_end,
                    crashed=seen.crashed or seen.mark is None,
                    timestamp=decode_checkpoint(checkpoint or b"").index_msg_timestamp,
                )
                indexing = KeyIndexing(index, log, clock=clock)
            log.opened()
            return cls(
                config, OpenedFiles(
                    disk=disk, hints=hints, lock=lock, log=log, queues=queues, dispatcher=dispatcher,
                    indexing=indexing,
                ), StoreSurroundings(
                    clock=clock, run_in_thread=run_in_thread, failed=failed, events=events,
                    is_awaited=is_awaited,
                ), is_slave=is_slave,
            )
        except BaseException as error:
            if log is not None:
                log.abandon()
            lock.close()
            if isinstance(error, OSError):
                raise StoreError(f"{config.store_path_root_dir} cannot be opened: {error}") from error
            raise

    def start(self) -> Deferred[None]:
        if self.log.why_recovered:
            self.log_events.warn(
                "commit log ends at {offset}: {reason}",
                offset=self.log.end_offset, reason=self.log.why_recovered,
            )
        return super().start()

    # -- use -------------------------------------------------------------------------------------

    def append_plain(self, messages: Sequence[PlainMessage], now_ms: int) -> Placed:
        """
        See L{CommitLog.append_plain}.

        @raise DLedgerError: also DISK_FULL: the file system is nearly full; LEADER_NOT_READY: the queue
            offsets of new messages are not known yet.
        """
        if not self.is_ready:
            raise DLedgerError(ResponseCode.LEADER_NOT_READY, bytes_to_dispatch=self.reput.behind_bytes)
        if self._expiry.why_full:
            raise DLedgerError(ResponseCode.DISK_FULL, reason=self._expiry.why_full)
        return self.log.append_plain(messages, now_ms)

    def log_was_cut(self, end: int) -> None:
        """
        Cut the queues where the log was cut; an empty log now begins at C{end}.

        @param end: end of the log.
        @raise StoreError: the queues could not be cut.
        """
        self._log_checkpoints.log_was_cut()
        self.bad_records.forget(end)
        self.sound.forget()
        self.unit_mending.drop()
        try:
            if self.log.begin_offset == end:
                self.queues.destroy()
            else:
                self.queues.cut(end)
        except OSError as error:
            raise StoreError(f"cutting the consume queues: {error}") from error
        if self.indexing is not None:
            self.indexing.log_was_cut(end)
        self.dispatcher.offset = end if self.log.begin_offset == end else min(self.dispatcher.offset, end)
        if self.is_ready:
            self.log.queue_offsets = self.queues.next_indexes()

    def facts(self) -> dict[str, object]:
        return {
            **super().facts(), "mendedRecords": self.mending.mended, "scrubOffset": self.scrub.offset,
            "scrubRounds": self.scrub.rounds,
        }

    # -- room ------------------------------------------------------------------------------------

    @property
    def why_full(self) -> str:
        """Why messages are refused, as of the last check of the disk; empty if they are not."""
        return self._expiry.why_full

    def maintenance(self, now_s: float, local_hour: int, *, keep_from: int) -> list[str]:
        """
        Check the free disk space; delete old files of the log, and the queues' files that refer to them.

        @param now_s: seconds since 1970.
        @param local_hour: 0 to 23.
        @param keep_from: a slave or a reader still needs the bytes from here on. A disk that is nearly full
            ignores it; the last file, and bytes that are not dispatched yet, stay in any case. Until units of
            records are on stable storage, the records stay, too, unless the disk is full: else a loss of
            power could lower the next index of a queue.
        @return: paths of the deleted log files.
        @raise OSError: measuring or deleting failed; a later call tries again.
        @raise StoreError: the log is broken.
        """
        gone: list[str] = []
        try:
            self._measure()
            last = min(self.reput.offset, self.log.flushed_record_end)
            while len(gone) < Expiry.FILES_MAX and (second := self.log.second_file) is not None:
                is_durable = second <= self.log.flusher.dispatched_offset or self._expiry.disk_full
                free_to_go = second <= keep_from and is_durable
                if second > last or not self.log.wants_to_expire(
                    self._expiry, now_s, local_hour, free_to_go=free_to_go
                ):
                    break
                gone.append(self.log.expire_first())
            if self._expired != self.log.begin_offset:
                self.queues.expire(self.log.begin_offset)
                if self.indexing is not None:
                    self.indexing.index.expire(self.log.begin_offset)
                self._expired = self.log.begin_offset
                self._measure()
        except OSError:
            if not gone:
                raise
        return gone

    def _measure(self) -> None:
        self._expiry.rules = self.config.expiry_rules
        self.log.measure_room(self._expiry, self._disk)


def written_below(seen: LogSeen, log: CommitLog) -> int:
    """
    Every record of before a crash began below this offset: within the files that are there, also after the
    end of the log, or in those that a power cut took.
    """
    last = max((*seen.offsets, *(int(path.rpartition("/")[2]) for path in seen.left_over)), default=0)
    return max(log.end_offset, last + log.file_size) + FILES_LOST_MAX * log.file_size


def _refuse_raft_log(disk: Disk, root: str) -> None:
    """
    An empty commit log beside a raft log is a slip of the options: the queues and the offsets of consumers
    are those of the raft log, and would be cut.

    @raise DirectoryError: the directory has a raft log with entries.
    """
    for name in disk.listdir(root):
        if name.startswith("dledger-") and has_files(disk, f"{root}/{name}/data"):
            raise DirectoryError(
                f"{root} has no commit log, and a raft log with entries in {name}: set "
                "enableDLegerCommitLog=true and the other dLeger options of before, or name another "
                f"store_path_root_dir; or move {name} away to begin without its messages"
            )


def _refuse_other_queues(config: StoreConfig, log: CommitLog, reached: int) -> None:
    """
    @param reached: the end of the last message in the queues.
    @raise DirectoryError: no message of the log ends there.
    """
    if misfit := log.contradiction(reached):
        raise DirectoryError(
            f"{config.consume_queue_path} ends with a message that would end at {reached}, but in the commit "
            f"log {misfit}: these are the queues of another log. Move consumequeue, index and checkpoint "
            "away: the start makes them again from the log"
        )


def _open_queues(
    config: StoreConfig, hints: Hints, seen: LogSeen, log: CommitLog
) -> tuple[ConsumeQueues, int]:
    """The queues, and the offset from which the log must be dispatched again."""
    begin, end = log.begin_offset, log.end_offset
    if seen.mark is not None:
        known = max(min(seen.mark.dispatched_offset, end), begin)
    else:
        # As RocketMQ after a crash: dispatch everything after the checkpoint again. That there is no abort
        # file does not say that the last run ended in order: it may have been moved away with the mark.
        safe = decode_checkpoint(seen.checkpoint or b"").safe_timestamp
        known = min(log.start_after_crash(safe), end)
    crashed = seen.crashed or seen.mark is None
    opening = partial(
        ConsumeQueues.open, config, hints, log_begin=begin, is_trusted=seen.mark is not None,
        torn=TornUnits(log.read, range(begin, known), written_below(seen, log)),
        losing=lambda: log.flusher.record_dispatched(begin),
    )
    has_lost = reaches_beyond = False
    if seen.mark is None and not seen.crashed and seen.checkpoint is not None:
        whole = opening(log_end=end, crashed=False)  # for the sake of the units after the checkpoint
        whole.close()
        has_lost, reaches_beyond = whole.has_lost, whole.reach_beyond(end, crashed=False)
        if begin < end and not (has_lost or reaches_beyond):
            _refuse_other_queues(config, log, max(whole.log_end, begin))
    queues = opening(log_end=known, crashed=crashed)
    queues.has_lost |= has_lost
    reaches_beyond |= queues.reach_beyond(end, crashed=crashed)
    if begin < end and not queues.has_lost and reaches_beyond:
        log.flusher.record_dispatched(begin)
        queues.has_lost = True
        CommitLogStore.log_events.warn(
            "consume queues have messages beyond the end of the log, {end}: all queues are completed from it",
            end=end,
        )
    if queues.has_lost:
        known = begin
    if begin == end:
        try:
            queues.destroy()
        except OSError as error:
            raise StoreError(f"deleting consume queues: {error}") from error
        return queues, end
    # The queues may be an older copy than the mark: they are complete up to their last message.
    reached = max(queues.log_end, begin)
    if not queues.has_lost and reached < known:
        known = reached
        try:
            _refuse_other_queues(config, log, known)
        except BaseException:
            queues.close()
            raise
    if seen.mark is None or known < seen.mark.dispatched_offset:
        log.flusher.record_dispatched(known)
    return queues, known

