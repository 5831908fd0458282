# -*- test-case-name: tests.client.test_blocking -*-
"""
A reactor of our own in a thread of its own, for programs that have none.

Rule: the global reactor is neither installed nor touched; a program that runs one may use this beside
it, and any number of these may run at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.errors import DLedgerError
from protocols.wire.codes import ResponseCode

_T = TypeVar("_T")
_STOP_WAIT_S = 5.0


def new_reactor() -> Any:
    """The best reactor of this platform, not installed."""
    try:
        from twisted.internet.epollreactor import EPollReactor as Best
    except ImportError:
        from twisted.internet.selectreactor import SelectReactor as Best
    reactor = Best()
    # Else the thread would be taken for the one of the program's own reactor.
    reactor._registerAsIOThread = False
    return reactor


class ReactorThread:
    """
    @ivar reactor: runs until L{stop}; everything with it happens through L{run} and L{wait}.
    """

    def __init__(self, name: str, reactor: Any = None) -> None:
        self.reactor = reactor if reactor is not None else new_reactor()
        self._is_stopped = False
        self._open: set[Future[Any]] = set()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        reactor = self.reactor
        reactor.run(installSignalHandlers=False)
        # A reactor that is over keeps its wake-up pipe and poll object until it is collected.
        for reader in list(getattr(reactor, "_internalReaders", ())):
            reader.connectionLost(None)
        poller = getattr(reactor, "_poller", None)
        if poller is not None:
            poller.close()

    @property
    def is_stopped(self) -> bool:
        """Whether L{stop} was called."""
        return self._is_stopped

    def run(self, call: Callable[..., object], *args: object) -> None:
        """Have C{call} run in the reactor's thread, soon."""
        if self._is_stopped:
            raise DLedgerError(ResponseCode.NETWORK_ERROR, reason="the log is closed")
        self.reactor.callFromThread(call, *args)

    def start(self, story: Callable[[], Deferred[_T]]) -> Future[_T]:
        """
        Call C{story} in the reactor's thread.

        @return: has the outcome of its Deferred. Waiting for it can be interrupted with Ctrl-C.
        """
        future: Future[_T] = Future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)

        def settle(result: _T | Failure) -> None:
            with suppress(InvalidStateError):  # too late, or nobody waits any more
                if isinstance(result, Failure):
                    future.set_exception(result.value)
                else:
                    future.set_result(result)

        def begin() -> None:
            try:
                story().addBoth(settle)
            except Exception as error:
                settle(Failure(error))

        self.run(begin)
        return future

    def wait(self, story: Callable[[], Deferred[_T]]) -> _T:
        """The outcome of L{start}, waited for."""
        return self.start(story).result()

    def stop(self, last: Callable[[], object]) -> None:
        """
        Run C{last} in the reactor's thread, stop the reactor, and wait for its thread. Who still waits
        for the outcome of something is told that there will be none.
        """
        if self._is_stopped:
            return
        self._is_stopped = True

        def end() -> None:
            try:
                last()
            finally:
                # One more turn, so that what C{last} told waiting threads is out.
                self.reactor.callLater(0, self._end_reactor)

        self.reactor.callFromThread(end)
        if threading.current_thread() is not self._thread:
            self._thread.join(_STOP_WAIT_S)
        for future in list(self._open):
            with suppress(InvalidStateError):
                future.set_exception(DLedgerError(ResponseCode.NETWORK_ERROR, reason="the log was closed"))

    def _end_reactor(self) -> None:
        with suppress(Exception):
            self.reactor.stop()
