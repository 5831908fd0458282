# -*- test-case-name: tests.broker.sending.test_puts -*-
"""
The one way by which messages come into a master's log, whoever sends them and in whichever format::

    check (each batch by itself) -> put: may it be stored? -> one append -> replication and flush -> status

All that one read of a connection has brought is one put: one append, one wait for slaves and for the disk. A
batch is what stands in one file together; a single message is a batch of one.

    found = pipeline.put([batch, batch, ...])       # raises NotPut: nothing was stored
    found.appended                                  # for each batch, where its messages stand
    found.done.addCallback(answer)                  # PutStatus of all of them; never fails

Rule 1: a put that was refused has changed nothing.
Rule 2: what fails in the middle of an append ends the broker: it is not known what is on the disk.
Rule 3: what waits is bounded: in puts by L{HAService}, in messages here.

Source: DefaultMessageStore.asyncPutMessage, CommitLog.asyncPutMessage (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from dledger.base.errors import DLedgerError, StoreError
from dledger.broker.ha.put_status import PutStatus
from dledger.broker.ha.service import HAService
from dledger.broker.store.commit_log import Appended
from dledger.broker.store.plain_records import Placed, PlainMessage
from dledger.broker.store.records import NewMessage
from dledger.broker.store.store import MessageStore
from protocols.wire.ledger.codes import ResponseCode

#: Messages that may wait for slaves or for the disk at once; more are refused before they are stored.
PENDING_MAX = 262_144

_Result = TypeVar("_Result")


class NotPut(Exception):
    """
    Nothing was stored.

    @ivar status: what the producer is told.
    @ivar reason: why.
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

    @ivar appended: for each batch, where its messages stand, in order.
    @ivar done: fires with what the producers are told, now or later; never fails.
    """

    appended: list[tuple[Appended, ...]]
    done: Deferred[PutStatus]


class PlainPut(NamedTuple):
    """
    Plain messages that are stored.

    @ivar done: see L{Put}.
    """

    placed: Placed
    done: Deferred[PutStatus]


_REASONS = {
    PutStatus.OS_PAGE_CACHE_BUSY: "too many puts wait for slaves or for the disk already",
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: "in-sync replicas not enough",
}


class PutPipeline:
    """
    Invariant: C{_problem} is why the store refused the last messages; empty if it took them.

    @ivar pending: messages that are stored and not answered yet.
    @ivar stored: messages so far.
    """

    log = Logger()

    def __init__(
        self, store: MessageStore, ha: HAService, *, wall_ms: Callable[[], int],
        failed: Callable[[str], None], pending_max: int = PENDING_MAX,
    ) -> None:
        """
        @param wall_ms: ms since 1970.
        @param failed: told why the broker cannot go on.
        """
        self._store = store
        self._ha = ha
        self._wall_ms = wall_ms
        self._failed = failed
        self._pending_max = pending_max
        self._closed = ""
        self._idle: list[Deferred[None]] = []
        self._is_master = ha.master is not None
        self._problem = ""
        self.pending = 0
        self.stored = 0

    def check(self, messages: Sequence[NewMessage]) -> None:
        """
        That a batch can be stored. To be asked before L{put}: what one sender did wrong costs the others
        nothing.

        @raise ValueError: it cannot; the message says why.
        """
        self._store.log.check(messages)

    def refusal(self) -> NotPut | None:
        """Why nothing would be stored now; None if it would."""
        if self._closed:
            return NotPut(PutStatus.SERVICE_NOT_AVAILABLE, self._closed)
        if not self._is_master:
            return NotPut(PutStatus.SERVICE_NOT_AVAILABLE, "messages are put to the slave")
        status = self._ha.refusal()
        if status is not None:
            return NotPut(status, _REASONS.get(status, "replication is not running"))
        if self.pending >= self._pending_max:
            return NotPut(PutStatus.OS_PAGE_CACHE_BUSY, f"{self.pending} messages wait already")
        return None

    def put(self, batches: Sequence[Sequence[NewMessage]], *, waits: bool = True) -> Put:
        """
        Store messages, each batch found sound by L{check}.

        @param waits: False if no producer wants to wait for slaves or disk: C{done} has fired then.
        @raise NotPut: nothing was stored.
        """
        appended = self._stored(lambda now_ms: self._store.append(batches, now_ms))
        last = appended[-1][-1]
        return Put(appended, self._submitted(last.offset + last.size, sum(map(len, appended)), waits))

    def put_plain(self, messages: Sequence[PlainMessage], *, waits: bool = True) -> PlainPut:
        """
        As L{put}, of messages by the short road.

        @raise NotPut: nothing was stored.
        """
        placed = self._stored(lambda now_ms: self._store.append_plain(messages, now_ms))
        return PlainPut(placed, self._submitted(placed.end, len(messages), waits))

    def _stored(self, append: Callable[[int], _Result]) -> _Result:
        """What C{append} makes of the time. @raise NotPut: nothing was stored."""
        refused = self.refusal()
        if refused is not None:
            raise refused
        try:
            stored = append(self._wall_ms())
        except StoreError as error:
            reason = str(error.facts["reason"])
            self._failed(reason)
            raise NotPut(PutStatus.UNKNOWN_ERROR, reason) from error
        except DLedgerError as error:
            self._tell(_why(error))
            raise NotPut(PutStatus.SERVICE_NOT_AVAILABLE, _why(error)) from error
        if self._problem:
            self._tell("")
        return stored

    def _tell(self, problem: str) -> None:
        """What the store has against messages is logged when it begins, and when it is over."""
        if problem and not self._problem:
            self.log.warn("messages are refused: {reason}", reason=problem)
        elif not problem:
            self.log.info("messages are taken again")
        self._problem = problem

    def _submitted(self, end_offset: int, count: int, waits: bool) -> Deferred[PutStatus]:
        status = self._ha.submit(end_offset, waits=waits)
        self.stored += count
        if not status.called:
            self.pending += count
            status.addBoth(self._ended, count)
        return status

    def _ended(self, status: _Result, count: int) -> _Result:
        self.pending -= count
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
        """Refuse everything from now on; what waits is answered all the same."""
        self._closed = reason

    def when_idle(self) -> Deferred[None]:
        """@return: fires when nothing waits any more."""
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
