# -*- test-case-name: tests.broker.store.test_store -*-
"""
One RocketMQ store: its directory, its commit log, its consume queues, and their periodic work.

L{MessageStore.open} locks and recovers a directory, written by us or by RocketMQ; L{MessageStore.start}
begins to dispatch and fires when all existing records are dispatched. The log is flushed every half second;
every ten seconds the queues are, too, and the checkpoint is written.

Rule: the checkpoint covers only records that were on stable storage before it was written, and the mark
records the checkpoint's content before the checkpoint is written.

Source: DefaultMessageStore.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.disk.disk import Disk, File
from dledger.base.disk.expiry import Expiry
from dledger.base.errors import DirectoryError, DLedgerError, StoreError
from dledger.base.threads import RunInThread
from dledger.broker.common.events import BrokerEvents
from dledger.broker.store.bad_records import BadRecords
from dledger.broker.store.body_check import body_problem
from dledger.broker.store.checkpoint import (
    CHECKPOINT_NAME,
    AbortFile,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    read_small,
)
from dledger.broker.store.commit_log import CommitLog
from dledger.broker.store.consume_queues import ConsumeQueues
from dledger.broker.store.log_start import LogSeen, inspect_log
from dledger.broker.store.plain_records import Placed, PlainMessage
from dledger.broker.store.record_mending import RecordMending
from dledger.broker.store.reput import Dispatcher, ReputMessageService
from dledger.broker.store.scrub import Scrub
from dledger.broker.store.store_config import StoreConfig
from dledger.broker.store.unit_check import TornUnits
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.rocketmq.layout import MIN_MESSAGE_SIZE, WALKED

STORE_LOCK_NAME = "lock"
TICK_S = 0.5
CHECKPOINT_TICKS = 20
#: More ticks at once than these are logged: the reactor was busy elsewhere.
STALL_TICKS = 4
#: Errors that end by themselves: too few descriptors, a full disk.
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)


def _lock(config: StoreConfig, disk: Disk) -> File:
    root = config.store_path_root_dir
    try:
        disk.makedirs(root)
        return disk.lock(f"{root}/{STORE_LOCK_NAME}")
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise DirectoryError(
                f"{root} is in use by another process: stop that one first, or name another "
                "store_path_root_dir"
            ) from error
        raise DirectoryError(f"{root} must be a directory that this user can write to: {error}") from error


class MessageStore:
    """
    Invariant: the abort file exists from L{open} until L{close} has brought everything to stable storage.

    @ivar log: the commit log.
    @ivar queues: the consume queues.
    @ivar reput: dispatches the log's records into the queues.
    @ivar bad_records: damaged records found so far.
    @ivar scrub: reads the log again to find damaged records; the owner calls its C{tick} once a second.
    @ivar mending: takes sound copies of damaged records.
    @ivar is_ready: every message from before the start is in its queue, so new ones can be appended.
    """

    log_events = Logger()

    def __init__(
        self, config: StoreConfig, disk: Disk, lock: File, log: CommitLog, queues: ConsumeQueues,
        dispatcher: Dispatcher, *, is_slave: bool, clock: IReactorTime, run_in_thread: RunInThread,
        failed: Callable[[Failure], None], events: BrokerEvents,
    ) -> None:
        self.config = config
        self.log = log
        self.queues = queues
        self.is_ready = False
        self.bad_records = BadRecords()
        self.reput = ReputMessageService(
            dispatcher, clock=clock, bound=lambda: log.record_end, arrived=events.arrived, failed=self._fail,
            gives_way=is_slave,
        )
        self._disk = disk
        self._lock = lock
        self._dispatcher = dispatcher
        self._run_in_thread = run_in_thread
        self._failed = failed
        self._has_failed = self._told_scarce = False
        self._cuts = 0
        self._ticks = 0
        self._ticking = LoopingCall.withCount(self._tick)
        self._ticking.clock = clock
        self._checkpoint_waiters: list[Deferred[None]] = []
        self._checkpoint = b""
        self.scrub = Scrub(
            log, self.bad_records, disk, config.commit_log_path, run_in_thread=run_in_thread,
            bytes_per_s=config.scrub_bytes_per_second,
        )
        self.mending = RecordMending(log, self.bad_records, check_from=self.scrub.check_from)
        self._expiry = Expiry(config.expiry_rules)

    @classmethod
    def open(
        cls, config: StoreConfig, disk: Disk, *, is_slave: bool, clock: IReactorTime,
        run_in_thread: RunInThread, failed: Callable[[Failure], None], events: BrokerEvents,
    ) -> MessageStore:
        """
        Lock, check and recover the store in C{config.store_path_root_dir}; create it if absent.

        @param is_slave: see L{CommitLog.open}.
        @param failed: called once if the store has failed; the owner then calls L{abandon}.
        @param events: hears of every append, cut and dispatch; must call L{log_was_cut} after a cut, and
            C{reput.wake} when the log has grown.
        @raise DirectoryError: the directory is in use, or its files do not fit; the text says what to do.
        @raise StoreError: reading or repairing it failed.
        """
        lock = _lock(config, disk)
        log: CommitLog | None = None
        try:
            root = config.store_path_root_dir
            abort = AbortFile(disk, root)
            checkpoint = read_small(disk, f"{root}/{CHECKPOINT_NAME}")
            seen = inspect_log(config, disk, checkpoint=checkpoint, is_aborted=abort.is_there)
            abort.put(str(os.getpid()))
            log = CommitLog.open(
                config, disk, seen, is_slave=is_slave, run_in_thread=run_in_thread, events=events
            )
            queues, offset = _open_queues(config, disk, seen, log)
            dispatcher = Dispatcher(log, queues, config.delay_levels_ms, offset=offset)
            return cls(
                config, disk, lock, log, queues, dispatcher, is_slave=is_slave,
                clock=clock, run_in_thread=run_in_thread, failed=failed, events=events,
            )  # fmt: skip
        except BaseException as error:
            if log is not None:
                log.abandon()
            lock.close()
            if isinstance(error, OSError):
                raise StoreError(f"{config.store_path_root_dir} cannot be opened: {error}") from error
            raise

    def start(self) -> Deferred[None]:
        """
        Dispatch and flush from now on.

        @return: fires when all existing records are dispatched; the store is then ready.
        """
        self._ticking.start(TICK_S, now=False).addErrback(self._fail)
        if self.log.why_recovered:
            self.log_events.warn(
                "commit log ends at {offset}: {reason}",
                offset=self.log.end_offset, reason=self.log.why_recovered,
            )
        self.reput.start()
        return self.reput.caught_up().addCallback(lambda _: self._ready())

    def _ready(self) -> None:
        if not self._has_failed:
            self.log.queue_offsets = self.queues.next_indexes()
            self.is_ready = True

    # -- use -------------------------------------------------------------------------------------

    def is_sound(self, offset: int, record: bytes) -> bool:
        """Whether a record, as its consume queue describes it, can be served; else it is noted."""
        size = len(record)
        if size < MIN_MESSAGE_SIZE:
            problem = f"log at {offset}: size={size} is too small for a record"
        else:
            length, _, own = WALKED.unpack_from(record)
            if length != size or own != offset:
                problem = f"log at {offset}: size={length} and own offset {own}, not {size} and {offset}"
            else:
                problem = body_problem(record, 0, offset)
        if problem:
            self.bad_records.note(offset, problem)
        return not problem

    def append_plain(self, messages: Sequence[PlainMessage], now_ms: int) -> Placed:
        """
        See L{CommitLog.append_plain}.

        @raise DLedgerError: also DISK_FULL: the file system is nearly full; LEADER_NOT_READY: the queue
            offsets of new messages are not known yet.
        """
        self._refuse()
        return self.log.append_plain(messages, now_ms)

    def _refuse(self) -> None:
        """@raise DLedgerError: the store takes no message now."""
        if not self.is_ready:
            raise DLedgerError(ResponseCode.LEADER_NOT_READY, bytes_to_dispatch=self.reput.behind_bytes)
        if self._expiry.disk_full:
            raise DLedgerError(ResponseCode.DISK_FULL, reason=self.why_full)

    def log_was_cut(self, end: int) -> None:
        """
        Cut the queues where the log was cut; an empty log now begins at C{end}.

        @param end: end of the log.
        @raise StoreError: the queues could not be cut.
        """
        self._cuts += 1
        self.bad_records.forget(end)
        try:
            if self.log.begin_offset == end:
                self.queues.destroy()
            else:
                self.queues.cut(end)
        except OSError as error:
            raise StoreError(f"cutting the consume queues: {error}") from error
        self._dispatcher.offset = end if self.log.begin_offset == end else min(self._dispatcher.offset, end)
        if self.is_ready:
            self.log.queue_offsets = self.queues.next_indexes()

    # -- room ------------------------------------------------------------------------------------

    @property
    def why_full(self) -> str:
        """Why messages are refused, as of the last check of the disk; empty if they are not."""
        return self._expiry.why_full

    def house_keeping(self, now_s: float, local_hour: int, *, keep_from: int) -> list[str]:
        """
        Check the free disk space; delete old files of the log, and the queues' files that refer to them.

        @param now_s: seconds since 1970.
        @param local_hour: 0 to 23.
        @param keep_from: a slave or a reader still needs the bytes from here on. A disk that is nearly full
            ignores it; the last file, and bytes that are not dispatched yet, stay in any case.
        @return: paths of the deleted log files.
        @raise StoreError: measuring or deleting failed.
        """
        gone: list[str] = []
        try:
            self._measure()
            last = min(self.reput.offset, self.log.flushed_record_end)
            while len(gone) < Expiry.FILES_MAX and (second := self.log.second_file) is not None:
                free_to_go = second <= keep_from
                if second > last or not self.log.wants_to_expire(
                    self._expiry, now_s, local_hour, free_to_go=free_to_go
                ):
                    break
                gone.append(self.log.expire_first())
            if gone:
                self.queues.expire(self.log.begin_offset)
                self._measure()
        except OSError as error:
            raise StoreError(f"deleting old files: {error}") from error
        return gone

    def _measure(self) -> None:
        self.log.measure_room(self._expiry, self._disk)

    # -- flush -----------------------------------------------------------------------------------

    def _tick(self, count: int) -> None:
        if count > STALL_TICKS:
            self.log_events.warn(
                "reactor stalled for {seconds} s: nothing was flushed", seconds=count * TICK_S
            )
        self._ticks += 1
        try:
            self.queues.write()
        except OSError as error:
            if not self._is_scarce(error, "writing the consume queues"):
                self._fail(Failure(StoreError(f"writing the consume queues: {error}")))
            return
        self.log.flush().addErrback(self._fail)
        if self._ticks % CHECKPOINT_TICKS == 0:
            if self.reput.behind_bytes:
                self.log_events.info(
                    "dispatching: at {offset}, {bytes} bytes to go",
                    offset=self.reput.offset, bytes=self.reput.behind_bytes,
                )
            self.checkpoint()

    def checkpoint(self) -> Deferred[None]:
        """
        Bring log and queues to stable storage, off the reactor, and write the checkpoint.

        @return: fires when it is done or has failed (C{failed} of L{open} is called). While a checkpoint is
            under way, this call waits for that one.
        """
        done: Deferred[None] = Deferred()
        self._checkpoint_waiters.append(done)
        if len(self._checkpoint_waiters) == 1:
            under_way = Deferred.fromCoroutine(self._write_checkpoint())
            under_way.addErrback(self._checkpoint_failed)
            under_way.addBoth(self._checkpointed)
        return done

    def _checkpoint_failed(self, failure: Failure) -> None:
        error = failure.value
        if not isinstance(error, OSError) or not self._is_scarce(error, "the checkpoint"):
            self._fail(failure)

    def _is_scarce(self, error: OSError, doing: str) -> bool:
        """Whether descriptors or room are lacking: logged once, and tried again later."""
        if error.errno not in SCARCE:
            return False
        if not self._told_scarce:
            self._told_scarce = True
            self.log_events.error("{doing}: {error}; it is tried again", doing=doing, error=str(error))
        return True

    def _checkpointed(self, _: object) -> None:
        waiters, self._checkpoint_waiters = self._checkpoint_waiters, []
        for waiter in waiters:
            waiter.callback(None)

    async def _write_checkpoint(self) -> None:
        cuts = self._cuts
        offset, timestamp = self._dispatcher.offset, self._dispatcher.store_timestamp
        await self.log.flush()
        with_files = self.queues.prepare_flush()
        has_failed = True
        try:
            await self._run_in_thread(lambda: _run(with_files))
            has_failed = False
        finally:
            self.queues.finish_flush(has_failed=has_failed)
        if cuts != self._cuts:
            return  # a cut has removed dispatched records meanwhile
        self.log.flusher.record_dispatched(offset)
        if not timestamp:
            return
        content = encode_checkpoint(
            Checkpoint(physic_msg_timestamp=timestamp, logics_msg_timestamp=timestamp)
        )
        if content != self._checkpoint:
            sync_note = self.log.flusher.note_checkpoint(content)
            path = f"{self.config.store_path_root_dir}/{CHECKPOINT_NAME}"
            await self._run_in_thread(lambda: _run([sync_note, lambda: self._disk.write_file(path, content)]))
            self._checkpoint = content

    # -- end -------------------------------------------------------------------------------------

    def _fail(self, failure: Failure) -> None:
        if not self._has_failed:
            self._has_failed = True
            self.is_ready = False
            self.log_events.failure("the store has failed", failure)
            self._failed(failure)

    def close(self) -> Deferred[None]:
        """
        Dispatch all whole records, bring everything to stable storage, and remove the abort file.

        @return: fires when the directory is released. Fails with L{StoreError} if a flush or a write failed;
            the next start then recovers as after a crash.
        """
        return Deferred.fromCoroutine(self._close())

    async def _close(self) -> None:
        if self._ticking.running:
            self._ticking.stop()
        await self.reput.caught_up()
        self.reput.stop()
        self.is_ready = False
        await self.checkpoint()
        await self.log.idle()
        try:
            if not self._has_failed:
                self.log.clean_close()
                AbortFile(self._disk, self.config.store_path_root_dir).remove()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release everything without writing; the next start recovers as after a crash. May be repeated."""
        if self._ticking.running:
            self._ticking.stop()
        self.is_ready = False
        self.reput.stop()
        self.log.abandon()
        self.queues.close()
        self._lock.close()


def _run(steps: Sequence[Callable[[], None]]) -> None:
    for step in steps:
        step()


def _open_queues(
    config: StoreConfig, disk: Disk, seen: LogSeen, log: CommitLog
) -> tuple[ConsumeQueues, int]:
    """The queues, and the offset from which the log must be dispatched again."""
    begin, end = log.begin_offset, log.end_offset
    if seen.mark is not None:
        known = max(min(seen.mark.dispatched_offset, end), begin)
    elif seen.crashed:
        # As RocketMQ: dispatch everything behind the checkpoint again.
        safe = decode_checkpoint(seen.checkpoint or b"").safe_timestamp
        known = min(log.start_after_crash(safe), end)
    else:
        known = end
    queues = ConsumeQueues.open(
        config, disk, log_begin=begin, log_end=known, is_trusted=seen.mark is not None,
        crashed=seen.crashed,
        # (A file that a power cut took may have held records, too.)
        torn=TornUnits(log.read, range(begin, known), end + 2 * log.file_size),
    )
    if begin == end:
        try:
            queues.destroy()
        except OSError as error:
            raise StoreError(f"deleting consume queues: {error}") from error
        return queues, end
    if seen.mark is None and not seen.crashed:
        known = max(queues.log_end, begin)
    if seen.mark is None:
        log.flusher.record_dispatched(known)
    return queues, known

