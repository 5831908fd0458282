# -*- test-case-name: tests.broker.store.test_store -*-
"""
What every store of messages has: a log, its consume queues, and their periodic work.

L{MessageStore.start} begins to dispatch and fires when all existing records are dispatched. The queues are
brought to stable storage every ten seconds, and then the place up to which they are complete is recorded.

The index by key follows the queues; its flushes are part of the checkpoint, and its failures are no failures
of the store.

A store is made of parts, and asks them without knowing their kind::

    log          L{StoredLog}: a commit log, or the committed part of a ledger
    checkpoints  L{StoreCheckpoints}: how the place is recorded, one coroutine for each kind of log
    dispatcher, queues, indexing    from L{OpenedFiles}

L{dledger.rocketmq.store.commit_log_store.CommitLogStore} and the store of a broker on a raft log make
the parts, and add what only their log can do; they override nothing that this class calls.

Source: DefaultMessageStore.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

import errno

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.rocketmq.store.checkpoints import StoreCheckpoints
from dledger.rocketmq.store.deleted_topics import DeletedTopics
from dledger.rocketmq.store.opened_files import AnyLog, OpenedFiles, StoreSurroundings
from dledger.rocketmq.store.queues.reput import ReputMessageService
from dledger.rocketmq.store.queues.unit_mending import UnitMending
from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.rocketmq.store.records.checkpoint import AbortFile
from dledger.rocketmq.store.records.events import Arrived
from dledger.rocketmq.store.records.message_log import StoredLog
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.rocketmq.store.sound_records import SoundRecords
from dledger.values.errors import StoreError

TICK_S = 0.5
CHECKPOINT_TICKS = 20
#: More ticks at once than these are logged: the reactor was busy elsewhere.
STALL_TICKS = 4
#: Errors that end by themselves: too few descriptors, a full disk.
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT)


class MessageStore:
    """
    Invariant: the abort file exists from the opening until L{close} has brought everything to stable storage.

    @ivar log: the log.
    @ivar queues: the consume queues.
    @ivar reput, dispatcher: read the log on, and put each record into its queue and the index by key.
    @ivar indexing: puts dispatched records into the index by key; None: there is none.
    @ivar bad_records: damaged records found so far.
    @ivar sound: reads records for consumers.
    @ivar deleted: knows where a topic begins in the log.
    @ivar unit_mending: makes units of consume queues again that the disk cannot read.
    @ivar is_ready: every message from before the start is in its queue, so new ones can be appended.
    """

    log_events = Logger()
    log: StoredLog

    def __init__(
        self, config: StoreConfig, opened: OpenedFiles[AnyLog], around: StoreSurroundings,
        checkpoints: StoreCheckpoints, *, gives_way: bool, bad_records: BadRecords,
    ) -> None:
        """@param gives_way: see L{ReputMessageService}."""
        self.config = config
        self.log = log = opened.log
        self.queues = queues = opened.queues
        self.is_ready = False
        self.bad_records = bad_records
        self.sound = SoundRecords(log, bad_records, record_size_max=config.record_size_max)
        self.deleted = DeletedTopics(queues, log, self.sound)
        self.indexing = opened.indexing
        self.dispatcher = dispatcher = opened.dispatcher
        self.reput = ReputMessageService(
            dispatcher, clock=around.clock, bound=lambda: log.record_end, arrived=self._arrived,
            failed=self._fail, gives_way=gives_way, is_awaited=around.is_awaited,
        )
        self._events = around.events
        self._disk = opened.disk
        self._hints = opened.hints
        self._lock = opened.lock
        self._failed = around.failed
        self._checkpoints = checkpoints
        self._has_failed = self._reported_scarce = self._is_checkpointed = False
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

    @property
    def written_end(self) -> int:
        """End of the last record, also of one that readers may not see yet."""
        return self.log.record_end

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
        self.log.flush().addErrback(self._fail)
        if self._ticks % CHECKPOINT_TICKS == 0:
            for path, why in self._hints.news().items():
                self.log_events.warn("hint {path}: {reason}", path=path, reason=why)
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
            self._is_checkpointed = True
            under_way = Deferred.fromCoroutine(self._checkpoints.write())
            under_way.addErrback(self._checkpoint_failed)
            under_way.addBoth(self._checkpointed)
        return done

    def _checkpoint_failed(self, failure: Failure) -> None:
        self._is_checkpointed = False
        error = failure.value
        if not isinstance(error, OSError) or not self._is_scarce(error, "the checkpoint"):
            self._fail(failure)

    def _is_scarce(self, error: OSError, doing: str) -> bool:
        """Whether descriptors or room are lacking: logged once, and tried again later."""
        if error.errno not in SCARCE:
            return False
        if not self._reported_scarce:
            self._reported_scarce = True
            self.log_events.error("{doing}: {error}; it is tried again", doing=doing, error=str(error))
        return True

    def _checkpointed(self, _: object) -> None:
        waiters, self._checkpoint_waiters = self._checkpoint_waiters, []
        for waiter in waiters:
            waiter.callback(None)

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
        if self._checkpoint_waiters:
            await self.checkpoint()  # it has begun before the last records were dispatched
        await self.checkpoint()
        await self.log.idle()
        try:
            if not self._has_failed and self._is_checkpointed:  # it has failed if the disk is full
                if self.indexing is not None:
                    self.indexing.close(is_clean=True)
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
        self.unit_mending.close()
        if self.indexing is not None:
            self.indexing.close(is_clean=False)
        self.log.abandon()
        self.queues.close()
        self._lock.close()
