# -*- test-case-name: tests.storage.test_time_table -*-
"""
What a ledger knows of the times of its entries: the last of its time entries
(L{protocols.wire.ledger.own.time_entries}).

Older ones are not kept: nobody asks a member for the time of an entry, readers find it in the log. The last
one is needed where the next one is written, which is never earlier. As entries that are not committed may be
cut, those since the last committed one are kept, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import attrs

#: Most time entries that are kept for a ledger whose end is not committed.
PENDING_MAX = 4096


@attrs.frozen
class NotedTime:
    """
    A time entry.

    @ivar index, term: of the entry.
    @ivar time_ms: milliseconds since 1970.
    """

    index: int
    term: int
    time_ms: int


@attrs.define
class TimeTable:
    """Invariant: C{_noted} is in the order of the ledger."""

    _noted: deque[NotedTime] = attrs.field(factory=deque)

    @property
    def last(self) -> NotedTime | None:
        """The last time entry of the ledger, committed or not; None: it has none."""
        return self._noted[-1] if self._noted else None

    def note(self, noted: NotedTime, committed_index: int) -> None:
        """
        The ledger has a time entry, after all that were noted before.

        @param committed_index: entries up to here are never cut.
        """
        known = self._noted
        known.append(noted)
        while len(known) > 1 and (known[1].index <= committed_index or len(known) > PENDING_MAX):
            known.popleft()

    def cut(self, first_gone: int) -> None:
        """The entries from C{first_gone} on are gone. None of them was committed."""
        while self._noted and self._noted[-1].index >= first_gone:
            self._noted.pop()

    def rows(self, committed_index: int) -> list[list[int]]:
        """The last one up to a committed entry, for a file; see L{of_rows}. Empty: there is none."""
        kept = [noted for noted in self._noted if noted.index <= committed_index][-1:]
        return [[noted.index, noted.term, noted.time_ms] for noted in kept]

    @classmethod
    def of_rows(cls, rows: Iterable[list[object]], end_index: int) -> TimeTable:
        """
        The table that L{rows} wrote, without an entry after C{end_index}: it has gone with the power.

        @raise ValueError, TypeError: it did not.
        """
        table = cls()
        for index, term, time_ms in rows:
            noted = NotedTime(int(str(index)), int(str(term)), int(str(time_ms)))
            if noted.index <= end_index:
                table._noted.append(noted)
        return table
