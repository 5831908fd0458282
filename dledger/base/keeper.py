# -*- test-case-name: tests.base.test_keeper -*-
"""
Keeps one connection to one address: made when a caller needs it, shared, and made again for the next caller
after a loss.

Rule 1: at most one attempt is under way; all callers wait for it, and all are informed of its outcome.
Rule 2: a caller that stops waiting does not disturb the others.

Its owner makes (and probes) the connections, reports their loss, and ends them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

_C = TypeVar("_C")


class Keeper(Generic[_C]):
    """
    Invariant: there are waiting callers only while an attempt is under way.

    @ivar connection: the present connection, or None.
    """

    def __init__(self, make: Callable[[], Deferred[_C]], *, stops_alone: bool = False) -> None:
        """
        @param make: begins an attempt.
        @param stops_alone: cancel the attempt when its last waiting caller has gone.
        """
        self.connection: _C | None = None
        self._make = make
        self._stops_alone = stops_alone
        self._attempt: Deferred[_C] | None = None
        self._waiters: list[Deferred[_C]] = []
        self._closed: Exception | None = None

    def ready(self) -> Deferred[_C]:
        """
        @return: fires with the connection; fails with the reason why none can be made. Cancelling stops the
            wait.
        """
        done: Deferred[_C] = Deferred(self._forget)
        if self._closed is not None:
            done.errback(self._closed)
        elif self.connection is not None:
            done.callback(self.connection)
        else:
            self._waiters.append(done)
            if self._attempt is None:
                self._attempt = self._make()
                self._attempt.addCallbacks(self._made, self._failed)
        return done

    def _forget(self, done: Deferred[_C]) -> None:
        if done in self._waiters:
            self._waiters.remove(done)
            if self._stops_alone and not self._waiters and self._attempt is not None:
                self._attempt.cancel()

    def _made(self, connection: _C) -> None:
        self._attempt = None
        self.connection = connection
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.called:  # the one before may have cancelled it
                waiter.callback(connection)

    def _failed(self, failure: Failure) -> None:
        self._attempt = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.called:
                waiter.errback(self._closed or failure.value)

    def lost(self, connection: _C) -> bool:
        """Forget a connection that has ended. @return: whether it was the present one."""
        is_present = self.connection is connection
        if is_present:
            self.connection = None
        return is_present

    def close(self, error: Exception) -> None:
        """
        Cancel the attempt. Callers get C{error}, those that wait and later ones: none of them has cancelled
        anything. An open connection stays; the owner ends it.
        """
        self._closed = error
        if self._attempt is not None:
            self._attempt.cancel()
