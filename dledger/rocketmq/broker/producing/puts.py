# -*- test-case-name: tests.broker.sending.test_puts -*-
"""
The only path of messages into a master's log, for every sender and format::

    checked (each batch) -> put: refused? -> one append -> replication and flush -> status

The messages of one read of a connection are one put: one append, one wait for slaves and for the disk. Its
L{LogWriter} knows how the log is written and replicated::

    messages = pipeline.checked(batch) + ...        # raises ValueError: this batch cannot be stored
    placed, done = pipeline.put(messages)           # raises NotPut: nothing was stored
    done.addCallback(answer)                        # PutStatus of all of them; never fails

Rule 1: a refused put changes nothing.
Rule 2: a failure in the middle of an append ends the broker: the content of the disk is unknown.
Rule 3: the L{LogWriter} bounds the number of waiting puts, L{PENDING_MAX} the number of waiting messages.

Source: DefaultCommitLogStore.asyncPutMessage, CommitLog.asyncPutMessage (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from dledger.base.histogram import Histogram
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.replication.service import HAService
from dledger.rocketmq.store.commit_log_store import CommitLogStore
from dledger.rocketmq.store.queues.consume_queues import TOPIC_CHARACTERS_MAX
from dledger.rocketmq.store.records.plain_records import Placed, PlainMessage, plain_batch
from dledger.rocketmq.store.records.records import MIN_BLANK_SIZE, NewMessage
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.codes import ResponseCode

#: Messages that may wait for slaves or for the disk at once; more are refused before they are stored.
PENDING_MAX = 262_144

_Result = TypeVar("_Result")


class NotPut(Exception):
    """
    Nothing was stored.

    @ivar status: the result for the producer.
    @ivar reason: the reason, as text.
    """

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.status.name}: {self.reason}"


class Put(NamedTuple):
    """
    Messages that are stored.

    @ivar placed: their offsets; if C{is_placed} is false, its lists are filled before C{done} fires.
    @ivar done: fires with the result for the producers, now or later; never fails.
    @ivar is_placed: whether the offsets are known already.
    """

    placed: Placed
    done: Deferred[PutStatus]
    is_placed: bool = True


class LogWriter(Protocol):
    """
    Appends messages to the log of a broker, and waits until they are replicated.

    @ivar always_waits: producers that do not want to wait do so all the same: no offset is known before.
    @ivar topic_characters_max: of a topic, with its prefixes.
    @ivar together_bytes_max: of the records of a batch: more may not fit.
    """

    always_waits: bool
    topic_characters_max: int
    together_bytes_max: int

    def refusal(self) -> NotPut | None:
        """The reason why the next append would be refused; None if it would not."""

    def check(self, messages: Sequence[NewMessage], *, are_copies: bool = False) -> int:
        """
        Check that these messages can be stored together.

        @param are_copies: of stored messages: C{max_message_size} may have been larger then.
        @return: total bytes of their records.
        @raise ValueError: they cannot; the text says why.
        """

    def append(self, messages: Sequence[PlainMessage], now_ms: int, *, waits: bool) -> Put:
        """
        Append messages that were checked.

        @param now_ms: their store timestamp.
        @param waits: whether a producer waits for slaves or disk.
        @raise DLedgerError: nothing was stored.
        @raise StoreError: a write failed; the log is broken.
        """


class ReplicatedLog:
    """The L{LogWriter} of a master's commit log, which slaves copy. Implements L{LogWriter}."""

    always_waits = False
    topic_characters_max = TOPIC_CHARACTERS_MAX

    def __init__(self, store: CommitLogStore, ha: HAService) -> None:
        self._store = store
        self._ha = ha
        self._is_master = ha.master is not None
        self.together_bytes_max = store.log.file_size - MIN_BLANK_SIZE

    def refusal(self) -> NotPut | None:
        if not self._is_master:
            return NotPut(PutStatus.SERVICE_NOT_AVAILABLE, "messages are put to the slave")
        status = self._ha.refusal()
        if status is not None:
            return NotPut(status, _REASONS.get(status, "replication is not running"))
        return None

    def check(self, messages: Sequence[NewMessage], *, are_copies: bool = False) -> int:
        return self._store.log.check(messages, are_copies=are_copies)

    def append(self, messages: Sequence[PlainMessage], now_ms: int, *, waits: bool) -> Put:
        placed = self._store.append_plain(messages, now_ms)
        return Put(placed, self._ha.submit(placed.end, waits=waits))


_REASONS = {
    PutStatus.OS_PAGE_CACHE_BUSY: "too many puts wait for slaves or for the disk already",
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: "in-sync replicas not enough",
}


class PutPipeline:
    """
    Invariant: C{_problem} is the reason why the store refused the last messages; empty if it took them.

    @ivar always_waits, topic_characters_max: see L{LogWriter}.
    @ivar pending: number of messages that are stored and not answered yet.
    @ivar stored: number of messages so far.
    @ivar put_s: seconds from each put to the result for its producers.
    """

    log = Logger()

    def __init__(
        self, writer: LogWriter, *, wall_ms: Callable[[], int], seconds: Callable[[], float],
        failed: Callable[[str], None], pending_max: int = PENDING_MAX,
    ) -> None:
        """
        @param wall_ms: ms since 1970.
        @param seconds: a monotonic clock.
        @param failed: called with the reason when the broker cannot continue.
        """
        self._writer = writer
        self._wall_ms = wall_ms
        self._seconds = seconds
        self._failed = failed
        #: Puts messages that were read earlier, and wait for the end of the turn; None: there are none.
        self.before: Callable[[], None] | None = None
        self._pending_max = pending_max
        self._closed = ""
        self._idle: list[Deferred[None]] = []
        self._problem = ""
        self.always_waits = writer.always_waits
        self.topic_characters_max = writer.topic_characters_max
        self.pending = 0
        self.stored = 0
        self.put_s = Histogram()

    def checked(self, batch: Sequence[NewMessage], *, are_copies: bool = False) -> list[PlainMessage]:
        """
        Check messages that go into one file together, and convert them for L{put}. Check each batch
        separately, so that a mistake of one sender does not affect the others.

        @param are_copies: see L{LogWriter.check}.
        @raise ValueError: they cannot be stored; the text says why.
        """
        self._writer.check(batch, are_copies=are_copies)
        return plain_batch(batch)

    def refusal(self) -> NotPut | None:
        """The reason why a put would be refused now; None if it would not."""
        if self._closed:
            return NotPut(PutStatus.SERVICE_NOT_AVAILABLE, self._closed)
        refused = self._writer.refusal()
        if refused is not None:
            return refused
        if self.pending >= self._pending_max:
            return NotPut(PutStatus.OS_PAGE_CACHE_BUSY, f"{self.pending} messages wait already")
        return None

    def put(self, messages: Sequence[PlainMessage], *, waits: bool = True) -> Put:
        """
        Store messages, at least one.

        @param messages: from L{checked}, or checked by an equal rule.
        @param waits: False if no producer waits for slaves or disk; C{done} has then fired already, unless
            the log C{always_waits}.
        @raise NotPut: nothing was stored.
        """
        if self.before is not None:
            self.before()
        refused = self.refusal()
        if refused is not None:
            raise refused
        began_s = self._seconds()
        try:
            put = self._writer.append(messages, self._wall_ms(), waits=waits)
        except StoreError as error:
            reason = str(error.facts["reason"])
            self._failed(reason)
            raise NotPut(PutStatus.UNKNOWN_ERROR, reason) from error
        except DLedgerError as error:
            self._notify(_why(error))
            raise NotPut(PutStatus.SERVICE_NOT_AVAILABLE, _why(error)) from error
        if self._problem:
            self._notify("")
        count = len(messages)
        self.stored += count
        if not put.done.called:
            self.pending += count
            put.done.addBoth(self._ended, count, began_s)
        else:
            self.put_s.observe(self._seconds() - began_s)
        return put

    def _notify(self, problem: str) -> None:
        """Log the beginning and the end of a problem for which the store refuses messages."""
        if problem and not self._problem:
            self.log.warn("messages are refused: {reason}", reason=problem)
        elif not problem:
            self.log.info("messages are taken again")
        self._problem = problem

    def _ended(self, status: _Result, count: int, began_s: float) -> _Result:
        self.pending -= count
        self.put_s.observe(self._seconds() - began_s)
        if not self.pending and self._idle:
            idle, self._idle = self._idle, []
            for waiter in idle:
                waiter.callback(None)
        return status

    @property
    def is_closed(self) -> bool:
        """Whether L{close} was called."""
        return bool(self._closed)

    def close(self, reason: str) -> None:
        """Refuse all later puts; waiting puts are still answered."""
        self._closed = reason

    def when_idle(self) -> Deferred[None]:
        """@return: fires when no put waits."""
        if not self.pending:
            return succeed(None)
        waiter: Deferred[None] = Deferred(self._forget)
        self._idle.append(waiter)
        return waiter

    def _forget(self, waiter: Deferred[None]) -> None:
        if waiter in self._idle:
            self._idle.remove(waiter)


def _why(error: DLedgerError) -> str:
    if error.code == ResponseCode.LEADER_NOT_READY:
        return f"the store is still being dispatched: {error.facts.get('bytes_to_dispatch')} bytes to go"
    return f"the disk is full: {error.facts.get('reason')}"
