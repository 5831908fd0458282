# -*- test-case-name: tests.client.test_blocking -*-
"""The outcome of many appends in one call, as the client without a reactor reports it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import attrs

from dledger.client.answers.values import Appended


@attrs.frozen(kw_only=True)
class AppendSummary:
    """
    Result of L{Log.append_many}.

    @ivar count: number of bodies, all of them acknowledged.
    @ivar first_index, last_index: indexes of the first and the last entry; -1 without bodies. Entries
        of other writers may lie between them.
    @ivar seconds: seconds from the first body to the last acknowledgement.
    @ivar runs: the places of the bodies, in order: runs of consecutive indexes, as many as other writers have
        interrupted. C{offset} of a run is the number of bodies before it.
    """

    count: int
    first_index: int
    last_index: int
    seconds: float
    runs: tuple[Appended, ...] = ()

    def index_of(self, number: int) -> int:
        """
        Index of a body's entry.

        @param number: of the body, from 0.
        @raise IndexError: there was no such body.
        """
        if not 0 <= number < self.count:
            raise IndexError(f"body {number} of {self.count}")
        run = self.runs[bisect_right(self.runs, number, key=_offset) - 1]
        return run.index + number - run.offset

    @property
    def rate(self) -> float:
        """Acknowledged entries per second."""
        return self.count / self.seconds if self.seconds > 0 else 0.0


class AppendInterrupted(KeyboardInterrupt):
    """
    Ctrl-C in L{Log.append_many}.

    @ivar acknowledged: number of acknowledged bodies.
    @ivar unknown: number of bodies without an outcome: each may be in the log, now or later. Both follow the
        outcomes that still come. L{Log.close} ends all: a body that was never sent then counts no more.
    """

    def __init__(
        self, acknowledged: int, unknown: int, latest: Callable[[], tuple[int, int]] | None = None
    ) -> None:
        """@param latest: the present numbers."""
        super().__init__(f"{acknowledged} acknowledged, {unknown} unknown")
        self._latest = latest or (lambda: (acknowledged, unknown))

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged bodies."""
        return self._latest()[0]

    @property
    def unknown(self) -> int:
        """Number of bodies without an outcome."""
        return self._latest()[1]


def _offset(run: Appended) -> int:
    return run.offset
