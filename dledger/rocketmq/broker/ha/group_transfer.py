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

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.base.process.waiters import ThresholdWaiters
from dledger.rocketmq.broker.ha.acks import Acks
from dledger.rocketmq.broker.ha.ports import LogPort
from dledger.rocketmq.broker.ha.put_status import PutStatus, done

#: An offset above every real one.
NOWHERE = 1 << 62


class _Puts:
    """
    Puts that wait for offsets, in rows: the puts of a row wait for the same count of slaves, or the disk.

    Invariant: a put is in C{_by_token} and in the waiters of one row, or in neither; at most C{pending_max}
    wait.
    """

    def __init__(self, late: PutStatus, *, pending_max: int) -> None:
        """@param late: result of a put at its deadline, and of a put that cannot wait."""
        self._late = late
        self._pending_max = pending_max
        self._by_token: dict[int, tuple[Deferred[PutStatus], int]] = {}
        self._rows: dict[int, ThresholdWaiters] = {}
        self._last = 0
        self.is_stopped = False

    def __len__(self) -> int:
        return len(self._by_token)

    @property
    def is_full(self) -> bool:
        return len(self._by_token) >= self._pending_max

    def wait(self, row: int, offset: int, deadline_ms: int) -> Deferred[PutStatus]:
        if self.is_full or self.is_stopped:
            return done(self._late)
        waiters = self._rows.get(row)
        if waiters is None:
            waiters = self._rows[row] = ThresholdWaiters(self._pending_max)
        self._last = token = self._last + 1
        waiter: Deferred[PutStatus] = Deferred(self._cancelled)
        self._by_token[token] = (waiter, offset)
        waiters.add(token, threshold=offset, deadline_ms=deadline_ms)
        return waiter

    def _cancelled(self, cancelled: Deferred[PutStatus]) -> None:
        # Cancelling is rare, so this searches; an index by Deferred would slow down every put.
        for token, (waiter, _) in self._by_token.items():
            if waiter is cancelled:
                del self._by_token[token]
                for waiters in self._rows.values():
                    waiters.remove(token)
                return

    def lowest(self, default: int) -> int:
        """The lowest offset that a put waits for."""
        return min((offset for _, offset in self._by_token.values()), default=default)

    def reached(self, offset_of: Callable[[int], int]) -> list[int]:
        """Remove and return the puts whose row has reached their offsets."""
        tokens: list[int] = []
        for row, waiters in self._rows.items():
            if len(waiters):
                tokens += waiters.reached(offset_of(row))
        return tokens

    def take_all(self) -> list[int]:
        """Remove and return every put, in order of arrival."""
        return sorted(token for waiters in self._rows.values() for token in waiters.take_all())

    def fire(self, tokens: Iterable[int], status: PutStatus) -> None:
        for waiter, _ in [self._by_token.pop(token) for token in tokens]:
            waiter.callback(status)

    def expire(self, now_ms: int) -> None:
        late: list[int] = []
        for waiters in self._rows.values():
            late += waiters.expired(now_ms)
        self.fire(late, self._late)

    def stop(self) -> None:
        self.is_stopped = True
        self.fire(self.take_all(), self._late)


class GroupTransferService:
    """Puts that wait for slaves, in a row for each number of slaves that they need."""

    def __init__(self, acks: Acks, *, pending_max: int) -> None:
        self._acks = acks
        self._puts = _Puts(PutStatus.FLUSH_SLAVE_TIMEOUT, pending_max=pending_max)

    def __len__(self) -> int:
        """Puts that wait."""
        return len(self._puts)

    @property
    def is_full(self) -> bool:
        """Whether no further put can wait."""
        return self._puts.is_full

    def wait(self, offset: int, *, needed: int, deadline_ms: int) -> Deferred[PutStatus]:
        """
        Wait until C{needed} slaves hold everything below C{offset}.

        @return: fires with C{PUT_OK}; with C{FLUSH_SLAVE_TIMEOUT} at the deadline, or at once if
            C{pending_max} puts wait already or after L{stop}. Cancelling ends the wait.
        """
        assert needed >= 1, needed
        self._settle(offset)
        if self._acks.held(needed) >= offset:
            return done(PutStatus.PUT_OK)
        return self._puts.wait(needed, offset, deadline_ms)

    def _settle(self, next_offset: int) -> None:
        if self._acks.has_young:
            self._acks.settle(self._puts.lowest(next_offset))

    def acked(self) -> None:
        """Fire the puts that a new acknowledgement of a slave satisfies."""
        self._settle(NOWHERE)
        self._puts.fire(self._puts.reached(self._acks.held), PutStatus.PUT_OK)

    def expire(self, now_ms: int) -> None:
        """Give up on the puts whose deadline has come."""
        self._puts.expire(now_ms)

    def stop(self) -> None:
        """Answer the waiting puts: no slave will acknowledge them; some slaves may have their messages."""
        self._puts.stop()


class FlushedPuts:
    """
    Puts that wait for the disk. The log shares flushes; see L{dledger.base.process.group_flush}.

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
        self._log = log
        self._tell_failed = failed
        self._tell_flushed = flushed
        self._puts = _Puts(PutStatus.FLUSH_DISK_TIMEOUT, pending_max=pending_max)
        self._is_asked = self._is_broken = False

    def __len__(self) -> int:
        """Puts that wait."""
        return len(self._puts)

    @property
    def is_full(self) -> bool:
        """Whether no further put can wait."""
        return self._puts.is_full

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
        waiter = self._puts.wait(0, offset, deadline_ms)
        if not self._is_asked:
            self.flush()
        return waiter

    def expire(self, now_ms: int) -> None:
        """Give up on the puts whose deadline has come."""
        self._puts.expire(now_ms)

    def flush(self) -> None:
        """Flush what was appended so far, unless a flush of ours is under way."""
        if self._is_asked or self._is_broken or self._puts.is_stopped:
            return
        if self._log.flushed_offset < self._log.end_offset:
            self._is_asked = True
            self._log.flush().addCallbacks(self._flushed, self._failed)

    def stop(self) -> None:
        """Answer the waiting puts; request no further flush."""
        self._puts.stop()

    def _flushed(self, offset: int) -> None:
        self._is_asked = False
        reached = self._puts.reached(lambda _: offset)
        if len(self._puts) > len(reached):
            self.flush()
        self._tell_flushed()
        self._puts.fire(reached, PutStatus.PUT_OK)

    def _failed(self, failure: Failure) -> None:
        self._is_asked, self._is_broken = False, True
        waiting = self._puts.take_all()
        self._tell_failed(failure)
        self._puts.fire(waiting, PutStatus.UNKNOWN_ERROR)
