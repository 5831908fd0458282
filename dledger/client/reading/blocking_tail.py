# -*- test-case-name: tests.client.test_blocking_tail -*-
"""
The entries of a log from an index on, for a program without a reactor.

Rule 1: an error, Ctrl-C, or what a signal's handler raises ends the wait for entries, not the iterator: the
next call goes on, and leaves nothing out.
Rule 2: an iterator that was closed, or whose end was reached, stays at its end. One that is no longer needed
is closed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from dledger.base.process.reactor_thread import Outcome, ReactorThread
from dledger.client.answers.values import Entry
from dledger.client.reading.tail_reading import TailReading
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode

_B = TypeVar("_B", bound=Sequence[Entry])


class BlockingBatches(Generic[_B]):
    """
    An iterator of batches; one thread uses it.

    @ivar tail: reads them.
    @ivar ahead: the batch that is asked for; None once it is handed out.
    """

    def __init__(self, thread: ReactorThread, tail: TailReading[_B], idle_s: float | None) -> None:
        """@param idle_s: end after that many seconds without a new entry; None: never."""
        self._thread = thread
        self.tail = tail
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
            self._thread.begin(self.tail.next_batch, self.ahead)
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
        self._is_over = True
        if self.tail.is_closed:
            raise DLedgerError(ResponseCode.NETWORK_ERROR, reason="the log was closed")
        raise StopIteration

    def close(self) -> None:
        """Read no more."""
        self._is_over = True
        with suppress(DLedgerError):  # the log is closed, or was opened in another process
            self._thread.run(self.tail.close)

    def __del__(self) -> None:
        if not self._is_over:
            self.close()


class BlockingEntries:
    """An iterator of entries; one thread uses it. @ivar batches: those that have them."""

    def __init__(self, batches: BlockingBatches[list[Entry]]) -> None:
        self.batches = batches
        self._ready: Iterator[Entry] = iter(())

    def __iter__(self) -> BlockingEntries:
        return self

    def __next__(self) -> Entry:
        while True:
            for entry in self._ready:  # the rest of a batch
                return entry
            batch = self.batches.peek()
            self._ready, self.batches.ahead = iter(batch), None

    def close(self) -> None:
        """Read no more."""
        self._ready = iter(())
        self.batches.close()
