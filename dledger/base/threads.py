# -*- test-case-name: tests.node.test_service,tests.broker.test_service -*-
"""
Threads that wait for the disk, so that the reactor does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

#: Runs a function in a thread; the Deferred fires on the reactor's thread when it has returned.
RunInThread = Callable[[Callable[[], None]], Deferred[None]]


class DiskThreads:
    """A few threads of one's own: what waits for the reactor's common ones may wait for somebody's names."""

    def __init__(self, reactor: Any, *, name: str, most: int = 1) -> None:
        """
        @param name: of the threads, for people.
        @param most: as many calls run at once; with one they run in order.
        """
        self._reactor = reactor
        self._pool = ThreadPool(1, most, name=name)

    def start(self) -> None:
        """Before the first L{run}."""
        self._pool.start()

    def run(self, call: Callable[[], None]) -> Deferred[None]:
        """@return: fires on the reactor when C{call} has returned in a thread."""
        return deferToThreadPool(self._reactor, self._pool, call)

    def stop(self) -> None:
        """Wait for what runs, and end."""
        self._pool.stop()
