# -*- test-case-name: tests.base.test_time_search -*-
"""
The first entry of a log from a time on, found by halving; whoever searches reads the entries.

Entries have times if leaders give them (docs/times.md): these never fall with the index. Else they have
them if their clients do (docs/envelopes.md). Each time is of the clock of one client then, so times rise with
the index only as far as these clocks agree.

Rule 1: the search takes times of clients from L{SKEW_MS} before the one that is wanted: clocks that differ by
less hide no entry.
Rule 2: a run of entries without a time counts as older: a log has no times before its clients began to give
them.
"""

from __future__ import annotations

from collections.abc import Generator

import attrs

#: Clocks of clients may differ by this, milliseconds.
SKEW_MS = 60_000


class TimeSearch:
    """
    Ask L{look} where to read, and say what was found there, until L{look} is None.

    @ivar found: the first entry, when L{look} is None; the end of the range if all are older.
    @ivar has_times: an entry with a time was met.
    @ivar has_older: one of them is older than what is searched, and so is what came before it.
    """

    def __init__(self, begin: int, end: int, moment_ms: int) -> None:
        """
        @param end: exclusive.
        @param moment_ms: since 1970.
        """
        self.found = end
        self.has_times = self.has_older = False
        self._low = begin
        self._high = end
        self._wanted = moment_ms

    @property
    def look(self) -> tuple[int, int] | None:
        """Read from the first of these indexes on, at most up to the second, exclusive. None: the end."""
        return ((self._low + self._high) // 2, self._high) if self._low < self._high else None

    def met(self, index: int, time_ms: int, *, skew_ms: int = SKEW_MS) -> None:
        """
        The first entry with a time, from the look's begin on.

        @param skew_ms: how much earlier its time may be than that of entries before it.
        """
        self.has_times = True
        if time_ms >= self._wanted - skew_ms:
            self.found = index
            self._high = (self._low + self._high) // 2
        else:
            self.has_older = True
            self._low = index + 1

    def met_none(self, behind: int) -> None:
        """
        No entry has a time.

        @param behind: the index after the last one that was read.
        """
        if behind >= self._high:
            self._high = (self._low + self._high) // 2
        else:
            self._low = behind


@attrs.frozen
class Question:
    """
    What a search by times of leaders asks about an entry.

    @ivar needs_time: whether its time is asked for, besides its term.
    """

    index: int
    needs_time: bool


#: Takes, for each question, the term of the entry, and its time in milliseconds; None: it has none.
Search = Generator[Question, tuple[int, int | None], int]


def search_leaders(begin: int, end: int, moment_ms: int) -> Search:
    """
    The first entry with a time of a leader from C{moment_ms} on; C{end} if there is none.

    These times never fall, but whole terms may have none: of a Java leader, or of one without the option. So
    the last time that is known at an entry is compared, which never falls either.
    """
    known: dict[int, tuple[int, int]] = {}
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        if (yield from _time_at(begin, middle, known)) >= moment_ms:
            high = middle
        else:
            low = middle + 1
    return low


def _time_at(
    begin: int, index: int, known: dict[int, tuple[int, int]]
) -> Generator[Question, tuple[int, int | None], int]:
    """
    The last time at an entry or before it; -1: there is none.

    @param known: by term: up to which entry it has no time, and the last time before it. It learns.
    """
    passed: list[tuple[int, int]] = []
    found = -1
    while index >= begin:
        term, time_ms = yield Question(index, needs_time=False)
        last, before = known.get(term, (-1, -1))
        if index <= last:
            found = before
            break
        term, time_ms = yield Question(index, needs_time=True)
        if time_ms is not None:
            found = time_ms
            break
        passed.append((term, index))
        if last >= 0:
            found = before
            break
        low = begin
        while low < index:  # the first entry of the term
            middle = (low + index) // 2
            if (yield Question(middle, needs_time=False))[0] < term:
                low = middle + 1
            else:
                index = middle
        index -= 1
    known.update({term: (at, found) for term, at in passed})
    return found
