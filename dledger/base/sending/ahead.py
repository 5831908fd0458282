# -*- test-case-name: tests.base.test_ahead -*-
"""
Reading batches in order, one batch ahead of the reader.

Rule 1: at most one batch is read before the reader asks for it. A reader that asks again before it has the
batch that it has asked for is refused: one of the two would be lost.
Rule 2: a closed reading ends; it does not fail.

This module knows neither the content nor the source of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.python.failure import Failure

_B = TypeVar("_B")


class ReadingAhead(Generic[_B]):
    """
    Base class: a subclass reads the batches, and sets C{_is_done} when no more will come.

    @ivar is_closed: L{close} was called.
    """

    def __init__(self, end: Callable[[], _B]) -> None:
        """
        @param end: makes the value that is returned at the end; it is falsy, unlike any batch.
        """
        self._end = end
        self._is_done = self._is_asked = False
        self.is_closed = False
        self._ahead: Deferred[_B] | None = None
        self._reading: Deferred[_B] | None = None

    def _next_batch(self) -> Deferred[_B]:
        """For subclasses: the next batch; the one after it is requested when this one fires."""
        if self._is_asked:
            return fail(RuntimeError("the batch before has not come yet: wait for it first"))
        self._is_asked = True
        ready = self._ahead or self._start()
        self._ahead = None
        return ready.addBoth(self._answered).addCallback(self._look_ahead)

    def _answered(self, outcome: _B | Failure) -> _B | Failure:
        self._is_asked = False
        return outcome

    def _start(self) -> Deferred[_B]:
        reading = self._reading = Deferred.fromCoroutine(self._read_on())
        return reading.addErrback(self._maybe_closed)

    async def _read_on(self) -> _B:
        """The next batch."""
        raise NotImplementedError

    def _maybe_closed(self, failure: Failure) -> _B:
        if self._is_done and failure.check(CancelledError):
            return self._end()
        failure.raiseException()

    def _look_ahead(self, batch: _B) -> _B:
        if batch and not self._is_done:
            self._ahead = self._start()
        return batch

    def close(self) -> None:
        """Request nothing more; a waiting reader gets the end value."""
        self._is_done = self.is_closed = True
        ahead, self._ahead = self._ahead, None
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
        if ahead is not None:
            ahead.addErrback(lambda _: None)  # its result is no longer needed
