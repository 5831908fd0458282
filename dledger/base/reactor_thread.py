# -*- test-case-name: tests.client.test_reactor_thread -*-
"""
A private reactor in its own thread, for programs without a reactor.

Rule 1: the global reactor is neither installed nor touched. A program may use this beside a reactor of its
own, and any number of these threads may run at once.
Rule 2: the thread and its files end with the last reference to their object, also if nobody has stopped it.
Rule 3: a forked process has no such thread, only a copy of its memory: every call fails at once there.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Generic, Protocol, TypeVar, cast

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.base.forks import OpenedHere
from dledger.base.reactor import Reactor, whole_reactor
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode

_T = TypeVar("_T")
_STOP_WAIT_S = 5.0


def new_reactor() -> Reactor:
    """The best reactor for this platform, not installed."""
    try:
        from twisted.internet.epollreactor import EPollReactor as Best
    except ImportError:
        from twisted.internet.selectreactor import SelectReactor as Best
    reactor = Best()
    # Else Twisted would take this thread for the thread of the program's own reactor.
    reactor._registerAsIOThread = False
    return whole_reactor(reactor)


class Outcome(Generic[_T]):
    """
    The result of work on the reactor thread, for a caller that blocks on it.

    Not a Future: a Future's Condition is acquired by Python code. Ctrl-C there could leave it taken, and the
    reactor's thread would wait for ever. A plain lock is acquired atomically.

    @ivar is_begun: whether the work has begun; it begins once.
    """

    def __init__(self) -> None:
        self._unreported = threading.Lock()
        self._unreported.acquire()
        self._is_reported = self.is_begun = False
        self._result: _T | None = None
        self._error: BaseException | None = None

    def set_result(self, result: _T) -> None:
        """Set the result. @raise InvalidStateError: there is an outcome already."""
        self._must_be_open()
        self._result = result
        self._notify()

    def set_exception(self, error: BaseException) -> None:
        """Set the error. @raise InvalidStateError: there is an outcome already."""
        self._must_be_open()
        self._error = error
        self._notify()

    def _must_be_open(self) -> None:
        if not self._unreported.locked():
            raise InvalidStateError("there is an outcome already")

    def _notify(self) -> None:
        self._is_reported = True
        try:
            self._unreported.release()
        except RuntimeError:  # another thread released it in between
            raise InvalidStateError("there is an outcome already") from None

    def result(self, timeout: float | None = None) -> _T:
        """
        Wait for the result, and return it or raise its error.

        @param timeout: seconds; None: for ever.
        @raise TimeoutError: there is no outcome yet; the caller may wait again.
        """
        # (Ctrl-C may come between the two calls, and the caller may wait again.)
        if not self._is_reported:
            if not self._unreported.acquire(timeout=-1 if timeout is None else timeout):
                raise TimeoutError
            self._unreported.release()
        if self._error is not None:
            raise self._error
        return cast(_T, self._result)


class _Settable(Protocol):
    """A L{Future} or an L{Outcome}, of any kind of result."""

    def set_exception(self, error: BaseException, /) -> None:
        """Set the error. @raise InvalidStateError: there is an outcome already."""

    def __hash__(self) -> int: ...


class ReactorThread:
    """
    A reactor in its own thread.

    Invariant: C{_open} holds every outcome until it is set; it is empty when the thread ends.

    @ivar thread: runs the reactor; it ends some time after L{stop}.
    @ivar reactor: runs until L{stop}; use it only through L{run}, L{start}, L{begin} and L{wait}.
    """

    def __init__(self, name: str, reactor: Reactor | None = None) -> None:
        self.reactor = reactor if reactor is not None else new_reactor()
        self._is_stopped = False
        self._opened = OpenedHere()
        # Held while another thread wakes the reactor up, so that its pipe is not closed meanwhile: after a
        # close, the descriptor's number may belong to another file when it is written to.
        self._gate = threading.Lock()
        self._over = threading.Event()
        self._open: set[_Settable] = set()
        # The thread has no reference to this object, whose end it would put off for ever.
        self.thread = threading.Thread(
            target=_run, args=(self.reactor, self._gate, self._over, self._open), name=name, daemon=True
        )
        self.thread.start()
        self._lasts: list[Callable[[], object]] = []
        self._forgotten = weakref.finalize(
            self, _end_forgotten, name, self.reactor, self._over, self._opened, self._lasts
        )
        self._forgotten.atexit = False

    def when_forgotten(self, last: Callable[[], object]) -> None:
        """@param last: called in the thread if nobody calls L{stop}. It must not refer to this object."""
        self._lasts.append(last)

    @property
    def is_stopped(self) -> bool:
        """Whether L{stop} was called."""
        return self._is_stopped

    def run(self, call: Callable[..., object], *args: object) -> None:
        """
        Run C{call} in the reactor's thread, soon.

        @raise DLedgerError: the thread was stopped, or this process was forked from the thread's own.
        """
        self.check_process()
        if self._is_stopped or not self._call(call, *args):
            raise DLedgerError(ResponseCode.NETWORK_ERROR, reason="the log is closed")

    def check_process(self) -> None:
        """
        Called before any lock is taken, because the other process may have held it when it forked.

        @raise DLedgerError: this process was forked from the thread's own.
        """
        self._opened.check()

    def _call(self, call: Callable[..., object], *args: object) -> bool:
        """@return: False if the reactor has ended."""
        with self._gate:
            if not self._over.is_set():
                self.reactor.callFromThread(call, *args)
            return not self._over.is_set()

    def start(self, story: Callable[[], Deferred[_T]]) -> Future[_T]:
        """
        Call C{story} in the reactor's thread.

        @return: the outcome of its Deferred, for callers that collect Futures. To wait for an outcome
            use L{begin}.
        """
        future: Future[_T] = Future()
        self._run(story, future)
        return future

    def begin(self, story: Callable[[], Deferred[_T]], outcome: Outcome[_T] | None = None) -> Outcome[_T]:
        """
        Call C{story} in the reactor's thread.

        @param outcome: filled with that of its Deferred. A caller that Ctrl-C has interrupted before may ask
            again with the same one: the story is called once.
        @return: the outcome. Ctrl-C can interrupt the wait for it.
        """
        if outcome is None:
            outcome = Outcome()
        self._run(story, outcome)
        return outcome

    def _run(self, story: Callable[[], Deferred[_T]], future: Future[_T] | Outcome[_T]) -> None:
        opened = self._open
        opened.add(future)

        def settle(result: _T | Failure) -> None:
            opened.discard(future)
            with suppress(InvalidStateError):  # the outcome was set or cancelled before
                if isinstance(result, Failure):
                    assert result.value is not None
                    future.set_exception(result.value)
                else:
                    future.set_result(result)

        def begin() -> None:
            if isinstance(future, Outcome):
                if future.is_begun:
                    return
                future.is_begun = True
            try:
                story().addBoth(settle)
            except Exception as error:
                settle(Failure(error))

        try:
            self.run(begin)
        except BaseException:
            opened.discard(future)
            raise

    def wait(self, story: Callable[[], Deferred[_T]]) -> _T:
        """L{begin}, and wait for the result."""
        return self.begin(story).result()

    def stop(self, last: Callable[[], object]) -> None:
        """
        Run C{last} in the reactor's thread, stop the reactor, and wait for its thread, at most
        C{_STOP_WAIT_S} seconds. Every open outcome fails.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        self._forgotten.detach()
        if not self._opened.is_here:
            return  # the thread and its connections belong to the other process

        def end() -> None:
            try:
                last()
            finally:
                # Give the reactor one more turn, so that the outcomes set by C{last} are delivered.
                self.reactor.callLater(0, self._end_reactor)

        self._call(end)
        if threading.current_thread() is not self.thread:
            self.thread.join(_STOP_WAIT_S)
        _notify_closed(self._open)

    def _end_reactor(self) -> None:
        with suppress(Exception):
            self.reactor.stop()


def _run(
    reactor: Reactor, gate: threading.Lock, over: threading.Event, opened: set[_Settable]
) -> None:
    """The thread."""
    reactor.run(installSignalHandlers=False)
    with gate:
        over.set()
        # A stopped reactor keeps its wake-up pipe and poll object until it is garbage-collected.
        for reader in list(getattr(reactor, "_internalReaders", ())):
            reader.connectionLost(None)
        poller = getattr(reactor, "_poller", None)
        if poller is not None:
            poller.close()
    _notify_closed(opened)  # includes calls that came after the reactor's last turn


def _notify_closed(opened: set[_Settable]) -> None:
    for future in list(opened):
        with suppress(InvalidStateError):
            future.set_exception(DLedgerError(ResponseCode.NETWORK_ERROR, reason="the log was closed"))


def _end_forgotten(
    name: str, reactor: Reactor, over: threading.Event, opened: OpenedHere,
    lasts: list[Callable[[], object]],
) -> None:
    """
    Nobody can stop a thread any more: let it end. The garbage collector calls this, in any thread and between
    any two steps of it, so it takes no lock and does not wait.
    """
    if over.is_set() or not opened.is_here:
        return

    def end() -> None:
        try:
            for last in lasts:
                last()
        finally:
            reactor.callLater(0, reactor.stop)

    reactor.callFromThread(end)
    warnings.warn(f"{name} was not closed", ResourceWarning, stacklevel=2)
