# -*- test-case-name: tests.client.test_readers -*-
"""
A named reader for a program without a reactor.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType

from dledger.base.reactor_thread import Outcome, ReactorThread
from dledger.client.answers.values import Entry
from dledger.client.reading.readers import NamedReader
from dledger.values.errors import DLedgerError


class BlockingReader:
    """
    An iterator of the entries that no process of this name has committed. Use it as a context manager, or
    L{close} it; one thread uses it.
    """

    def __init__(self, thread: ReactorThread, reader: NamedReader) -> None:
        self._thread = thread
        self._reader = reader
        self._ready: deque[Entry] = deque()
        self._ahead: Outcome[list[Entry]] | None = None

    @property
    def name(self) -> str:
        """Of the reader."""
        return self._reader.name

    @property
    def holder(self) -> str:
        """Id of this process."""
        return self._reader.holder

    @property
    def token(self) -> int:
        """Fencing token of the lease; see L{NamedReader.token}."""
        return self._reader.token

    def __iter__(self) -> BlockingReader:
        return self

    def __next__(self) -> Entry:
        """
        The next entry; waits for it.

        @raise LeaseLost: another process has the entries of this one, or may get them.
        @raise LeaseHeld: other processes had them until the time-out.
        @raise Expired: expiry has deleted the next entry. L{commit} of a later one goes on.
        """
        while True:
            if self._reader.must_check:
                self._thread.wait(self._reader.check_lease)
            while self._ready:
                entry = self._ready.popleft()
                if entry.index > self._reader.done_index:
                    self._reader.handed_index = entry.index
                    return entry
            # (Ctrl-C may come while this waits: what was asked for is kept for the next call.)
            if self._ahead is None:
                self._ahead = Outcome()
            if not self._ahead.is_begun:
                self._thread.begin(self._reader.next_batch, self._ahead)
            try:
                entries = self._ahead.result()
            except DLedgerError:
                self._ahead = None
                raise
            ready = deque(entries)
            self._ready = ready  # from here to the next line nothing interrupts
            self._ahead = None
            if not entries:
                raise StopIteration

    def commit(self, index: int | None = None, *, wait: bool = True) -> int:
        """
        All entries up to one are done; returns when the group knows it. Asking twice does no harm.

        @param index: the last one; None: the last one that was handed out.
        @param wait: False: return at once; the place is committed within about a second, together with those
            that follow, and by L{close}. After a crash, what was done since is handed out again.
        @return: the next index of the reader: all before it is done.
        @raise LeaseLost: nothing was committed: another process has these entries, or may get them.
        @raise NotYet: it is not in the log.
        @raise Timeout: it may have been committed: commit again.
        """
        return self._thread.wait(lambda: self._reader.commit(index, wait=wait))

    def close(self) -> None:
        """
        Read no more, and give the lease back. Nothing is committed, but what L{commit} was
        given with C{wait=False}.
        """
        self._ready.clear()
        if not self._thread.is_stopped:
            self._thread.wait(self._reader.close)

    def __enter__(self) -> BlockingReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
