# -*- test-case-name: tests.broker.ha.test_group_transfer -*-
"""
Puts that wait: for slaves (L{GroupTransferService}) and for the disk (L{FlushedPuts}).

A put waits for an offset with a deadline of its own. It leaves when the offset is reached, in order of
offsets, or at its deadline; other puts do not hold it up. Nothing is polled: acknowledgements and flushes
wake exactly those that they satisfy; C{expire} is called regularly.

Rule: a Deferred is removed from its table before it fires.

Source: GroupTransferService.java, CommitLog.GroupCommitService and FlushDiskWatcher (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import TypeAlias

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.rocketmq.replication.acks import Acks
from dledger.rocketmq.replication.ports import LogPort
from dledger.rocketmq.replication.put_status import PutStatus, done

#: An offset above every real one, and a time after every deadline.
NOWHERE = NEVER_MS = 1 << 62

_Waiter: TypeAlias = "Deferred[PutStatus]"


class _Puts:
    """
    Puts that wait for offsets, in rows: the puts of a row wait for the same count of slaves, or the disk.

    Invariant: C{_rows} are heaps of all waiting puts: offset, number of the put, deadline in ms, Deferred.
    C{count} is their number, at most C{pending_max}; none has a deadline before C{_earliest_ms}.
    """

    def __init__(self, late: PutStatus, *, pending_max: int) -> None:
        """@param late: result of a put at its deadline, and of a put that cannot wait."""
        self._late = late
        self._pending_max = pending_max
        self._rows: dict[int, list[tuple[int, int, int, Deferred[PutStatus]]]] = {}
        self._earliest_ms = NEVER_MS
        self._last = 0
        self.count = 0
        self.is_stopped = False

    def __len__(self) -> int:
        """Puts that wait."""
        return self.count

    def _wait(self, row: int, offset: int, deadline_ms: int) -> Deferred[PutStatus]:
        if self.count >= self._pending_max or self.is_stopped:
            return done(self._late)
        waiter: Deferred[PutStatus] = Deferred(self._cancelled)
        self._last += 1
        self.count += 1
        heappush(self._rows.setdefault(row, []), (offset, self._last, deadline_ms, waiter))
        if deadline_ms < self._earliest_ms:
            self._earliest_ms = deadline_ms
        return waiter

    def _cancelled(self, cancelled: Deferred[PutStatus]) -> None:
        # Cancelling is rare, so this searches; an index by Deferred would slow down every put.
        self._take(lambda put: put[3] is cancelled)

    def _take(self, goes: Callable[[tuple[int, int, int, Deferred[PutStatus]]], bool]) -> list[_Waiter]:
        """Remove and return the puts for which C{goes} is true, in order of arrival."""
        taken = []
        for row, heap in self._rows.items():
            taken += [put for put in heap if goes(put)]
            self._rows[row] = [put for put in heap if not goes(put)]
            heapify(self._rows[row])
        self.count -= len(taken)
        return [put[3] for put in sorted(taken, key=itemgetter(1))]

    def _lowest(self, default: int) -> int:
        """The lowest offset that a put waits for."""
        return min((heap[0][0] for heap in self._rows.values() if heap), default=default)

    def _reached(self, offset_of: Callable[[int], int]) -> list[_Waiter]:
        """Remove and return the puts whose row has reached their offsets."""
        taken: list[_Waiter] = []
        for row, heap in self._rows.items():
            if heap:
                offset = offset_of(row)
                while heap and heap[0][0] <= offset:
                    taken.append(heappop(heap)[3])
                    self.count -= 1
        return taken

    def _take_all(self) -> list[_Waiter]:
        """Remove and return every put, in order of arrival."""
        return self._take(lambda _put: True)

    def expire(self, now_ms: int) -> None:
        """Give up on the puts whose deadline has come."""
        if now_ms < self._earliest_ms:
            return
        late = self._take(lambda put: put[2] <= now_ms)
        self._earliest_ms = min((put[2] for heap in self._rows.values() for put in heap), default=NEVER_MS)
        fire(late, self._late)

    def stop(self) -> None:
        """Answer the waiting puts, and all that come later, as if their deadline had come."""
        self.is_stopped = True
        fire(self._take_all(), self._late)


def fire(waiters: Iterable[_Waiter], status: PutStatus) -> None:
    """Answer puts that wait no longer."""
    for waiter in waiters:
        waiter.callback(status)


class GroupTransferService(_Puts):
    """Puts that wait for slaves, in a row for each number of slaves that they need."""

    def __init__(self, acks: Acks, *, pending_max: int) -> None:
        super().__init__(PutStatus.FLUSH_SLAVE_TIMEOUT, pending_max=pending_max)
        self._acks = acks

    def wait(self, offset: int, *, needed: int, deadline_ms: int) -> Deferred[PutStatus]:
        """
        Wait until C{needed} slaves hold everything below C{offset}.

        @return: fires with C{PUT_OK}; with C{FLUSH_SLAVE_TIMEOUT} at the deadline, or at once if
            C{pending_max} puts wait already or after L{stop}. Cancelling ends the wait.
        """
        assert needed >= 1, needed
        if self._acks.has_young:
            self._settle(offset)
        if self._acks.held(needed) >= offset:
            return done(PutStatus.PUT_OK)
        return self._wait(needed, offset, deadline_ms)

    def _settle(self, next_offset: int) -> None:
        self._acks.settle(self._lowest(next_offset))

    def acked(self) -> None:
        """Fire the puts that a new acknowledgement of a slave satisfies."""
        if self._acks.has_young:
            self._settle(NOWHERE)
        fire(self._reached(self._acks.held), PutStatus.PUT_OK)


class FlushedPuts(_Puts):
    """
    Puts that wait for the disk. The log shares flushes; see L{dledger.rocketmq.store.log.log_flush}.

    Invariant: while a put waits, a flush is requested. After a failed flush no put waits, and no put is ever
    reported as flushed again.
    """

    def __init__(
        self,
        log: LogPort,
        *,
        pending_max: int,
        failed: Callable[[Failure], None] = lambda failure: None,
        flushed: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param failed: called when a flush has failed; the broker has to stop.
        @param flushed: called after every flush, before the puts that waited for it fire.
        """
        super().__init__(PutStatus.FLUSH_DISK_TIMEOUT, pending_max=pending_max)
        self._log = log
        self._notify_failed = failed
        self._notify_flushed = flushed
        self._is_asked = self._is_broken = False

    def wait(self, offset: int, *, deadline_ms: int) -> Deferred[PutStatus]:
        """
        Wait until everything below C{offset} is on stable storage.

        @return: fires with C{PUT_OK}; with C{FLUSH_DISK_TIMEOUT} at the deadline, or at once if
            C{pending_max} puts wait already or after L{stop}; with C{UNKNOWN_ERROR} if the flush fails.
        """
        if self._is_broken:
            return done(PutStatus.UNKNOWN_ERROR)
        if self._log.flushed_offset >= offset:
            return done(PutStatus.PUT_OK)
        waiter = self._wait(0, offset, deadline_ms)
        if not self._is_asked:
            self.flush()
        return waiter

    def flush(self) -> None:
        """Flush what was appended so far, unless a flush of ours is under way."""
        if self._is_asked or self._is_broken or self.is_stopped:
            return
        if self._log.flushed_offset < self._log.end_offset:
            self._is_asked = True
            self._log.flush().addCallbacks(self._flushed, self._failed)

    def _flushed(self, offset: int) -> None:
        self._is_asked = False
        reached = self._reached(lambda _: offset)
        if self.count:
            self.flush()
        self._notify_flushed()
        fire(reached, PutStatus.PUT_OK)

    def _failed(self, failure: Failure) -> None:
        self._is_asked = False
        self._is_broken = True
        waiting = self._take_all()
        self._notify_failed(failure)
        fire(waiting, PutStatus.UNKNOWN_ERROR)
