# -*- test-case-name: tests.broker.store.test_store -*-
"""
What every store of messages has: a log, its consume queues, and their periodic work.

L{MessageStore.start} begins to dispatch and fires when all existing records are dispatched. The queues are
brought to stable storage every ten seconds, and then the place up to which they are complete is recorded.

The index by key follows the queues; its flushes are part of the checkpoint, and its failures are no failures
of the store.

The stores are L{dledger.rocketmq.broker.store.commit_log_store.CommitLogStore}, and that of a broker on a
raft log.

Rule: the recorded place covers only records whose units were on stable storage before it was written.

Source: DefaultMessageStore.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.disk.disk import Disk, File
from dledger.base.process.threads import RunInThread
from dledger.rocketmq.broker.basics.events import Arrived, BrokerEvents
from dledger.rocketmq.broker.store.index.indexing import KeyIndexing
from dledger.rocketmq.broker.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.broker.store.queues.reput import Dispatcher, ReputMessageService
from dledger.rocketmq.broker.store.queues.unit_mending import UnitMending
from dledger.rocketmq.broker.store.records.bad_records import BadRecords
from dledger.rocketmq.broker.store.records.body_check import body_problem
from dledger.rocketmq.broker.store.records.checkpoint import AbortFile
from dledger.rocketmq.broker.store.records.message_log import MessageLog
from dledger.rocketmq.broker.store.records.store_config import StoreConfig
from dledger.values.errors import DirectoryError, StoreError
from protocols.wire.rocketmq.layout import MAGIC_V1, MAGIC_V2, MIN_MESSAGE_SIZE, WALKED

STORE_LOCK_NAME = "lock"
TICK_S = 0.5
CHECKPOINT_TICKS = 20
#: More ticks at once than these are logged: the reactor was busy elsewhere.
STALL_TICKS = 4
#: Errors that end by themselves: too few descriptors, a full disk.
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)


def lock_store(config: StoreConfig, disk: Disk) -> File:
    """
    Lock the directory of a store; create it if absent.

    @raise DirectoryError: another process has it, or it cannot be written.
    """
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


AnyLog = TypeVar("AnyLog", bound=MessageLog)


@attrs.frozen(kw_only=True)
class OpenedFiles(Generic[AnyLog]):
    """
    The files of a store, recovered.

    @ivar lock: of the directory; released at the end.
    @ivar dispatcher: puts records of the log into the queues.
    @ivar indexing: puts messages into the index by key; None: there is none.
    """

    disk: Disk
    lock: File
    log: AnyLog
    queues: ConsumeQueues
    dispatcher: Dispatcher
    indexing: KeyIndexing | None


@attrs.frozen(kw_only=True)
class StoreSurroundings:
    """
    The surroundings of a store: time, threads, and who hears of it.

    @ivar failed: called once if the store has failed; the owner then calls L{MessageStore.abandon}.
    @ivar events: hears of every dispatch; must call C{reput.wake} when the log has grown.
    """

    clock: IReactorTime
    run_in_thread: RunInThread
    failed: Callable[[Failure], None]
    events: BrokerEvents


class MessageStore:
    """
    Invariant: the abort file exists from the opening until L{close} has brought everything to stable storage.

    @ivar log: the log.
    @ivar queues: the consume queues.
    @ivar reput, dispatcher: read the log on, and put each record into its queue and the index by key.
    @ivar indexing: puts dispatched records into the index by key; None: there is none.
    @ivar bad_records: damaged records found so far.
    @ivar unit_mending: makes units of consume queues again that the disk cannot read.
    @ivar is_ready: every message from before the start is in its queue, so new ones can be appended.
    """

    log_events = Logger()
    log: MessageLog

    def __init__(
        self, config: StoreConfig, opened: OpenedFiles[AnyLog], around: StoreSurroundings, *,
        gives_way: bool, bad_records: BadRecords,
    ) -> None:
        """@param gives_way: see L{ReputMessageService}."""
        self.config = config
        self.log = log = opened.log
        self.queues = queues = opened.queues
        self.is_ready = False
        self.bad_records = bad_records
        self.indexing = opened.indexing
        self.dispatcher = dispatcher = opened.dispatcher
        self.reput = ReputMessageService(
            dispatcher, clock=around.clock, bound=lambda: log.record_end, arrived=self._arrived,
            failed=self._fail, gives_way=gives_way,
        )
        self._events = around.events
        self._disk = opened.disk
        self._lock = opened.lock
        self._run_in_thread = around.run_in_thread
        self._failed = around.failed
        self._has_failed = self._told_scarce = False
        self._cuts = 0
        self._ticks = 0
        self._ticking = LoopingCall.withCount(self._tick)
        self._ticking.clock = around.clock
        self._checkpoint_waiters: list[Deferred[None]] = []
        self.unit_mending = UnitMending(queues, log, dispatcher.another, around.clock)
        queues.mend = self.unit_mending.mend

    def start(self) -> Deferred[None]:
        """
        Dispatch and flush from now on.

        @return: fires when all existing records are dispatched; the store is then ready.
        """
        self._ticking.start(TICK_S, now=False).addErrback(self._fail)
        self.reput.start()
        if self.indexing is not None:
            self.indexing.start(self.reput)
        return self.reput.caught_up().addCallback(lambda _: self._ready())

    def _ready(self) -> None:
        if not self._has_failed:
            self.log.queue_offsets = self.queues.next_indexes()
            self.is_ready = True

    def _arrived(self, arrived: Arrived) -> None:
        if self.indexing is not None:
            self.indexing.wake()
        self._events.arrived(arrived)

    # -- use -------------------------------------------------------------------------------------

    def is_sound(self, offset: int, record: bytes) -> bool:
        """Whether a record, as its consume queue describes it, can be served; else it is noted."""
        size = len(record)
        if size < MIN_MESSAGE_SIZE:
            problem = f"log at {offset}: size={size} is too small for a record"
        else:
            length, magic, own = WALKED.unpack_from(record)
            if length != size or own != offset:
                problem = f"log at {offset}: size={length} and own offset {own}, not {size} and {offset}"
            elif magic not in (MAGIC_V1, MAGIC_V2):  # readers of ours would fail for all that came with it
                problem = f"log at {offset}: magic={magic & 0xFFFFFFFF:08x} is not that of a message"
            else:
                problem = body_problem(record, 0, offset)
        if problem:
            self.bad_records.note(offset, problem)
        return not problem

    def forget_topic(self, topic: str) -> None:
        """
        Delete the queues of a topic; a new one of its name begins at 0.

        @raise StoreError: deleting failed.
        """
        try:
            self.queues.destroy(topic)
        except OSError as error:
            raise StoreError(f"deleting the queues of {topic}: {error}") from error
        for key in [key for key in self.log.queue_offsets if key[0] == topic]:
            del self.log.queue_offsets[key]

    def has_dispatched(self, offset: int) -> bool:
        """Whether all records before an offset of the log are in their queues."""
        return self.log.record_end - self.reput.behind_bytes >= offset

    def facts(self) -> dict[str, object]:
        """What a broker reports of its log besides, by the names of its runtime table."""
        if self.indexing is None:
            return {}
        return {
            "indexBehindBytes": self.indexing.behind_bytes, "indexProblem": self.indexing.index.why_failed,
        }

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
        if self.indexing is not None:
            self.indexing.tick()
        self._flush_log()
        if self._ticks % CHECKPOINT_TICKS == 0:
            if self.reput.behind_bytes:
                self.log_events.info(
                    "dispatching: at {offset}, {bytes} bytes to go",
                    offset=self.reput.offset, bytes=self.reput.behind_bytes,
                )
            self.checkpoint()

    def _flush_log(self) -> None:
        """Bring the log to stable storage. Called every L{TICK_S}."""

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
        offset, timestamp = self.dispatcher.offset, self.dispatcher.store_timestamp
        index = None if self.indexing is None else self.indexing.index
        flush = None if index is None else index.prepare_flush()
        await self._before_checkpoint()
        if index is not None and flush is not None:
            await index.flush(flush, self._run_in_thread)
        with_files = self.queues.prepare_flush()
        has_failed = True
        try:
            await self._run_in_thread(lambda: run_steps(with_files))
            has_failed = False
        finally:
            self.queues.finish_flush(has_failed=has_failed)
        if cuts == self._cuts:  # else a cut has removed dispatched records meanwhile
            await self._record_dispatched(offset, timestamp)

    @property
    def _indexed_ms(self) -> int:
        """Store timestamp of the last record in the index on stable storage, ms; 0: none."""
        return 0 if self.indexing is None else self.indexing.index.end_timestamp

    async def _before_checkpoint(self) -> None:
        """Bring to stable storage what the queues refer to."""

    async def _record_dispatched(self, offset: int, store_timestamp: int) -> None:
        """
        The units of all records before C{offset} are on stable storage: record that.

        @param store_timestamp: of the last of these records, ms; 0 for none.
        """
        raise NotImplementedError

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
        if self.indexing is not None:
            await self.indexing.finish()
        self.reput.stop()
        self.is_ready = False
        await self.checkpoint()
        await self.idle()
        try:
            if not self._has_failed:
                if self.indexing is not None:
                    self.indexing.close(is_clean=True)
                self._close_log()
                AbortFile(self._disk, self.config.store_path_root_dir).remove()
        finally:
            self.abandon()

    def idle(self) -> Deferred[None]:
        """@return: fires when no flush of the log is under way."""
        return succeed(None)

    def _close_log(self) -> None:
        """Record that the log was closed in order. @raise OSError: that failed."""

    def _abandon_log(self) -> None:
        """Release the log without writing. May be repeated."""

    def abandon(self) -> None:
        """Release everything without writing; the next start recovers as after a crash. May be repeated."""
        if self._ticking.running:
            self._ticking.stop()
        self.is_ready = False
        self.reput.stop()
        self.unit_mending.close()
        if self.indexing is not None:
            self.indexing.close(is_clean=False)
        self._abandon_log()
        self.queues.close()
        self._lock.close()


def run_steps(steps: Sequence[Callable[[], None]]) -> None:
    """Run all in order, in the thread of the caller."""
    for step in steps:
        step()
