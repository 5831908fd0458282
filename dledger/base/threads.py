# -*- test-case-name: tests.node.test_service,tests.broker.test_service -*-
"""
Threads for disk operations, so that the reactor does not block.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from dledger.base.reactor import Reactor

#: Seconds for which the end of a L{LoneThread} is waited for.
END_S = 1.0

#: Runs a function in a thread; the Deferred fires on the reactor's thread when it has returned.
RunInThread = Callable[[Callable[[], None]], Deferred[None]]


class DiskRunner(Protocol):
    """Runs disk operations beside the reactor: L{DiskThreads}, or a simulated thread."""

    def start(self) -> None:
        """Must precede the first L{run}."""

    def run(self, call: Callable[[], None]) -> Deferred[None]:
        """@return: fires on the reactor's thread when C{call} has returned."""

    def stop(self) -> None:
        """Wait for running calls, then end."""


class LoneThread:
    """
    One thread for calls that may never return: its end is not waited for beyond L{END_S}, and it does not
    hold the process.

    @ivar thread: runs the calls; after L{stop} it may still be in the last one.
    """

    def __init__(self, reactor: Reactor, *, name: str) -> None:
        """@param name: name of the thread, for people."""
        self._reactor = reactor
        self._calls: SimpleQueue[tuple[Callable[[], None], Deferred[None]] | None] = SimpleQueue()
        self.thread = Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; must precede the first L{run}."""
        self.thread.start()

    def run(self, call: Callable[[], None]) -> Deferred[None]:
        """@return: fires on the reactor when C{call} has returned in the thread; calls run in order."""
        done: Deferred[None] = Deferred()
        self._calls.put((call, done))
        return done

    def _work(self) -> None:
        while (task := self._calls.get()) is not None:
            call, done = task
            try:
                call()
            except BaseException:
                self._reactor.callFromThread(done.errback, Failure())
            else:
                self._reactor.callFromThread(done.callback, None)

    def stop(self) -> None:
        """Let the present call end for a moment, then go on without it."""
        self._calls.put(None)
        self.thread.join(END_S)


class DiskThreads:
    """A separate thread pool: in the reactor's pool, calls may have to wait for slow name lookups."""

    def __init__(self, reactor: Reactor, *, name: str, most: int = 1) -> None:
        """
        @param name: name of the threads, for people.
        @param most: at most this many calls run at once; with 1 they run in order.
        """
        self._reactor = reactor
        self._pool = ThreadPool(1, most, name=name)

    def start(self) -> None:
        """Start the pool; must precede the first L{run}."""
        self._pool.start()

    def run(self, call: Callable[[], None]) -> Deferred[None]:
        """@return: fires on the reactor when C{call} has returned in a thread."""
        return deferToThreadPool(self._reactor, self._pool, call)

    def stop(self) -> None:
        """Wait for running calls, then end the threads."""
        self._pool.stop()
