# -*- test-case-name: tests.client.test_blocking_tail -*-
"""
Reading batches in order, for a program without a reactor.

Rule 1: an error, Ctrl-C, or what a signal's handler raises ends the wait for a batch, not the iterator: the
next call goes on, and leaves nothing out.
Rule 2: an iterator that was closed, or whose end was reached, stays at its end. One that is no longer needed
is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred

from dledger.base.reactor_thread import Outcome, ReactorThread
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode

_B = TypeVar("_B")


class BatchSource(Protocol[_B]):
    """Where batches come from; as L{ReadingAhead<dledger.base.sending.ahead.ReadingAhead>}."""

    is_closed: bool

    def next_batch(self) -> Deferred[_B]:
        """The next batch; what is false in a condition, at the end."""


class BlockingBatches(Generic[_B]):
    """
    An iterator of batches; one thread uses it.

    @ivar source: has them.
    @ivar ahead: the batch that is asked for; None once it is handed out.
    """

    def __init__(
        self, thread: ReactorThread, source: BatchSource[_B], close: Callable[[], None], *,
        idle_s: float | None = None,
    ) -> None:
        """
        @param close: closes the source; called in the reactor's thread.
        @param idle_s: end after that many seconds without a batch; None: never.
        """
        self._thread = thread
        self.source = source
        self._close = close
        self._idle_s = idle_s
        self.ahead: Outcome[_B] | None = None
        self._is_over = False

    def __iter__(self) -> BlockingBatches[_B]:
        return self

    def __next__(self) -> _B:
        batch = self.peek()
        self.ahead = None
        return batch

    def peek(self) -> _B:
        """
        The next batch, which stays the next one until C{ahead} is None: Ctrl-C may come at any place.

        @raise StopIteration: there is none.
        """
        if self._is_over:
            raise StopIteration
        if self.ahead is None:
            self.ahead = Outcome()
        if not self.ahead.is_begun:
            self._thread.begin(self.source.next_batch, self.ahead)
        try:
            batch = self.ahead.result(self._idle_s)
        except TimeoutError:
            self.close()
            raise StopIteration from None
        except DLedgerError:
            self.ahead = None
            raise
        if batch:
            return batch
        was_closed = self.source.is_closed
        self.close()
        if was_closed:
            raise DLedgerError(ResponseCode.NETWORK_ERROR, reason="the log was closed")
        raise StopIteration

    def close(self) -> None:
        """Read no more."""
        if not self._is_over:
            self._is_over = True
            with suppress(DLedgerError):  # the log is closed, or was opened in another process
                self._thread.run(self._close)

    def __del__(self) -> None:
        self.close()
