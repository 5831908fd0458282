# -*- test-case-name: tests.broker.ha.test_group_transfer -*-
"""
Waiting puts: for slaves (L{GroupTransferService}) and for the disk (L{GroupCommitService}).

A put waits for an offset, with its own deadline. It ends when the offset is reached, in order of
offsets, or at its deadline, independently of other puts. Nothing is polled: acknowledgements and
flushes wake exactly the puts that they satisfy; C{expire} is called regularly.

Rule: a Deferred is removed from its table before it fires.

Source: GroupTransferService.java, CommitLog.GroupCommitService and FlushDiskWatcher (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.base.waiters import ThresholdWaiters
from dledger.broker.ha.acks import Acks
from dledger.broker.ha.ports import CommitLog
from dledger.broker.ha.put_status import PutStatus, done

#: Above every offset.
NOWHERE = 1 << 62


class _Puts:
    """Deferreds by number, each with its awaited offset; removed before they fire."""

    def __init__(self, forget: Callable[[int], object]) -> None:
        self._by_token: dict[int, tuple[Deferred[PutStatus], int]] = {}
        self._forget = forget
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_token)

    def add(self, offset: int) -> tuple[int, Deferred[PutStatus]]:
        self._last = token = self._last + 1
        waiter: Deferred[PutStatus] = Deferred(self._cancelled)
        self._by_token[token] = (waiter, offset)
        return token, waiter

    def _cancelled(self, cancelled: Deferred[PutStatus]) -> None:
        # Cancelling is rare: a search here is cheaper than a second table that every put updates.
        for token, (waiter, _) in self._by_token.items():
            if waiter is cancelled:
                del self._by_token[token]
                self._forget(token)
                return

    def lowest(self, default: int) -> int:
        """The lowest awaited offset."""
        return min((offset for _, offset in self._by_token.values()), default=default)

    def fire(self, tokens: Iterable[int], status: PutStatus) -> None:
        for waiter, _ in [self._by_token.pop(token) for token in tokens]:
            waiter.callback(status)


class GroupTransferService:
    """
    Puts that wait for slaves.

    Invariant: C{_waiting[n]} holds the puts that need n slaves; together they are C{len(self)}, at most
    C{pending_max}.
    """

    def __init__(self, acks: Acks, *, pending_max: int) -> None:
        self._acks = acks
        self._pending_max = pending_max
        self._puts = _Puts(self._forget)
        self._waiting: dict[int, ThresholdWaiters] = {}
        self._is_stopped = False

    def __len__(self) -> int:
        """Puts that wait."""
        return len(self._puts)

    @property
    def is_full(self) -> bool:
        """Whether C{pending_max} puts wait."""
        return len(self._puts) >= self._pending_max

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
        if self.is_full or self._is_stopped:
            return done(PutStatus.FLUSH_SLAVE_TIMEOUT)
        waiters = self._waiting.get(needed)
        if waiters is None:
            waiters = self._waiting[needed] = ThresholdWaiters(self._pending_max)
        token, waiter = self._puts.add(offset)
        waiters.add(token, threshold=offset, deadline_ms=deadline_ms)
        return waiter

    def _forget(self, token: int) -> None:
        for waiters in self._waiting.values():
            waiters.remove(token)

    def _settle(self, next_offset: int) -> None:
        if self._acks.has_young:
            self._acks.settle(self._puts.lowest(next_offset))

    def acked(self) -> None:
        """Fire the puts that a new acknowledgement of a slave satisfies."""
        self._settle(NOWHERE)
        reached: list[int] = []
        for needed, waiters in self._waiting.items():
            if len(waiters):
                reached += waiters.reached(self._acks.held(needed))
        self._puts.fire(reached, PutStatus.PUT_OK)

    def expire(self, now_ms: int) -> None:
        """End the puts whose deadline has passed."""
        late: list[int] = []
        for waiters in self._waiting.values():
            late += waiters.expired(now_ms)
        self._puts.fire(late, PutStatus.FLUSH_SLAVE_TIMEOUT)

    def stop(self) -> None:
        """End all waits: the messages are stored here, and perhaps on slaves."""
        self._is_stopped = True
        tokens = [token for waiters in self._waiting.values() for token in waiters.take_all()]
        self._puts.fire(sorted(tokens), PutStatus.FLUSH_SLAVE_TIMEOUT)


class GroupCommitService:
    """
    Puts that wait for the disk. One flush at a time serves all puts that wait when it begins.

    Invariant: while puts wait, a flush is under way. After a failed flush no put waits, and nothing
    is ever reported as flushed again.
    """

    def __init__(
        self,
        log: CommitLog,
        *,
        pending_max: int,
        failed: Callable[[Failure], None] = lambda failure: None,
        flushed: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param failed: called when a flush has failed; the broker has to stop.
        @param flushed: called after every flush, before the waiting puts fire.
        """
        self._log = log
        self._pending_max = pending_max
        self._tell_failed = failed
        self._tell_flushed = flushed
        self._waiters = ThresholdWaiters(pending_max)
        self._puts = _Puts(self._waiters.remove)
        self._under_way: Deferred[None] | None = None
        self._is_broken = self._is_stopped = False

    def __len__(self) -> int:
        """Puts that wait."""
        return len(self._puts)

    @property
    def is_full(self) -> bool:
        """Whether C{pending_max} puts wait."""
        return len(self._puts) >= self._pending_max

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
        if self.is_full or self._is_stopped:
            return done(PutStatus.FLUSH_DISK_TIMEOUT)
        token, waiter = self._puts.add(offset)
        self._waiters.add(token, threshold=offset, deadline_ms=deadline_ms)
        self._flush()
        return waiter

    def expire(self, now_ms: int) -> None:
        """End the puts whose deadline has passed."""
        self._puts.fire(self._waiters.expired(now_ms), PutStatus.FLUSH_DISK_TIMEOUT)

    def flush(self) -> None:
        """Begin a flush if there are unflushed bytes and no flush is under way."""
        if not self._is_broken and self._log.flushed_offset < self._log.end_offset:
            self._flush()

    def stop(self) -> Deferred[None]:
        """
        End all waits with C{FLUSH_DISK_TIMEOUT}.

        @return: fires when no flush is under way.
        """
        self._is_stopped = True
        self._puts.fire(self._waiters.take_all(), PutStatus.FLUSH_DISK_TIMEOUT)
        stopped: Deferred[None] = Deferred()
        if self._under_way is None:
            stopped.callback(None)
        else:
            self._under_way.addCallback(lambda _: stopped.callback(None))
        return stopped

    def _flush(self) -> None:
        if self._under_way is None and not self._is_stopped:
            self._under_way = Deferred()
            self._log.flush().addCallbacks(self._flushed, self._failed)

    def _flushed(self, offset: int) -> None:
        ended, self._under_way = self._under_way, None
        assert ended is not None
        reached = self._waiters.reached(offset)
        if len(self._waiters):
            self._flush()
        self._tell_flushed()
        self._puts.fire(reached, PutStatus.PUT_OK)
        ended.callback(None)

    def _failed(self, failure: Failure) -> None:
        ended, self._under_way = self._under_way, None
        assert ended is not None
        self._is_broken = True
        waiting = self._waiters.take_all()
        self._tell_failed(failure)
        self._puts.fire(waiting, PutStatus.UNKNOWN_ERROR)
        ended.callback(None)
