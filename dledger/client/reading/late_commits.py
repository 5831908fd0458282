# -*- test-case-name: tests.client.test_readers -*-
"""
Commits of a named reader that nobody waits for: one a second has them all.

Rule: a place is kept until it was committed or the lease is over; an answer that was lost is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode

#: Least seconds between two commits that nobody waits for.
LATE_COMMIT_S = 1.0


class LateCommits:
    """
    The last place that a program gave and nobody has committed yet.

    Invariant: with a place (C{_index} >= 0), either a call is planned or a commit is under way.
    """

    log = Logger()

    def __init__(
        self, clock: IReactorTime, name: str,
        commit: Callable[[int], Coroutine[Deferred[object], object, int]],
    ) -> None:
        """
        @param name: of the reader, for messages.
        @param commit: commits a place.
        """
        self._clock = clock
        self._name = name
        self._commit = commit
        self._index = -1
        self._call: IDelayedCall | None = None
        self._is_under_way = False
        self._is_troubled = False

    def note(self, index: int) -> None:
        """All entries up to one are done; the group knows it about a second later."""
        self._index = max(self._index, index)
        self._plan()

    def done(self, index: int) -> None:
        """All up to C{index} was committed."""
        if index >= self._index:
            self.take()

    def take(self) -> int:
        """@return: the place that nobody has committed; -1: none. It is not kept any more."""
        index, self._index = self._index, -1
        call, self._call = self._call, None
        if call is not None and call.active():
            call.cancel()
        return index

    def _plan(self) -> None:
        if self._call is None and not self._is_under_way:
            self._call = self._clock.callLater(LATE_COMMIT_S, self._send)

    def _send(self) -> None:
        self._call = None
        self._is_under_way = True
        Deferred.fromCoroutine(self._sent())

    async def _sent(self) -> None:
        try:
            await self._commit(self._index)
            self._is_troubled = False
        except DLedgerError as error:
            # (The reader reports a lost lease; and a place that was taken meanwhile is no trouble.)
            if self._index >= 0 and not self._is_troubled and error.code is not ResponseCode.LEASE_LOST:
                self._is_troubled = True
                self.log.warn("reader {name}: its place {index} is not committed yet, it is tried again: "
                              "{reason}", name=self._name, index=self._index, reason=str(error))
        finally:
            self._is_under_way = False
            if self._index >= 0:
                self._plan()
