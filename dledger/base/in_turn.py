# -*- test-case-name: tests.base.test_in_turn -*-
"""
Asynchronous calls that run one after the other.

With Twisted's C{DeferredLock} the end of each call begins the next one inside itself. A few hundred calls
that have nothing to wait for then exceed Python's stack: the rest never runs, and the lock is held for ever.
Here a loop runs them, however many a peer has asked for at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

_T = TypeVar("_T")


class InTurn:
    """
    Invariant: while calls wait, the loop runs.

    @ivar outstanding: number of calls that have not ended.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], Coroutine[Deferred[object], object, None]]] = deque()
        self._is_running = False
        self.outstanding = 0

    def run(self, call: Callable[[], Deferred[_T]]) -> Deferred[_T]:
        """
        Run C{call} when all earlier ones have ended.

        @return: its result. If it is cancelled before C{call} begins, C{call} does not begin.
        """
        done: Deferred[_T] = Deferred()

        async def step() -> None:
            try:
                result = None if done.called else await call()
            except Exception:
                failure = Failure()
                self.outstanding -= 1
                done.errback(failure)
            else:
                self.outstanding -= 1
                done.callback(result)  # type: ignore[arg-type]  # (ignored if it was cancelled)

        self._waiting.append(step)
        self.outstanding += 1
        if not self._is_running:
            # It does not fail: failures are those of the calls.
            Deferred.fromCoroutine(self._loop())
        return done

    async def _loop(self) -> None:
        self._is_running = True
        while self._waiting:
            await self._waiting.popleft()()
        self._is_running = False
