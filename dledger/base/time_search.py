# -*- test-case-name: tests.base.test_time_search -*-
"""
The entries of a log from a time on, found by halving; whoever searches reads the entries.

Entries have times if leaders give them (docs/times.md): these never fall with the index. Else they have
them if their clients do (docs/envelopes.md). Each time is of the clock of one client then, so times rise with
the index only as far as these clocks agree.

Rule 1: the search takes times of clients from L{SKEW_MS} before the one that is wanted: clocks that differ by
less hide no entry.
Rule 2: the answer is the entry after the last one that is known to be earlier, and the begin of the log if
none is. Entries without a time may be later than the one that is wanted, so they are in the answer: at the
begin of a log whose first time entry has expired, in the terms of Java leaders, at the end.
Rule 3: while it looks for a time a search passes long runs of entries without one; it goes back into those
that it passed after the last entry known to be earlier.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import attrs

#: Clocks of clients may differ by this, milliseconds.
SKEW_MS = 60_000


class TimeSearch:
    """
    Ask L{look} where to read, and say what was found there, until L{look} is None.

    @ivar found: the entry after the last one that is known to be earlier; before L{look} is None, one before
        it.
    @ivar has_times: an entry with a time was met.
    """

    def __init__(self, begin: int, end: int, moment_ms: int) -> None:
        """
        @param end: exclusive.
        @param moment_ms: since 1970.
        """
        self.found = self._low = begin
        self._high = end
        self.has_times = self._is_back = False
        self._wanted = moment_ms

    @property
    def look(self) -> tuple[int, int] | None:
        """Read from the first of these indexes on, at most up to the second, exclusive. None: the end."""
        return (self._middle, self._high) if self._low < self._high else None

    @property
    def _middle(self) -> int:
        return (self._low + self._high) // 2

    def met(self, index: int, time_ms: int, *, skew_ms: int = SKEW_MS) -> None:
        """
        The first entry with a time, from the look's begin on.

        @param skew_ms: how much earlier its time may be than that of entries before it.
        """
        self.has_times = True
        if time_ms >= self._wanted - skew_ms:
            self._high = self._middle
        else:
            self.found = self._low = index + 1
        self._turn_back()

    def met_none(self, behind: int) -> None:
        """
        No entry has a time.

        @param behind: the index after the last one that was read.
        """
        if behind >= self._high or self._is_back:
            self._high = self._middle
        else:
            self._low = behind
        self._turn_back()

    def _turn_back(self) -> None:
        """The search has passed entries without a time up to its end: look whether earlier ones are there."""
        if self._low >= self._high and not self._is_back:
            self._is_back = True
            self._low, self._high = self.found, self._low


@attrs.frozen
class Question:
    """
    What a search by times of leaders asks about an entry.

    @ivar needs_time: whether its time is asked for, besides its term.
    """

    index: int
    needs_time: bool


class FoundSpan(NamedTuple):
    """
    What a search by times of leaders finds. The entries between have no time of a leader that is known.

    @ivar after: the entry after the last one that is known to be earlier; the begin if none is.
    @ivar first: the first entry known to be of the time or later; the end if none is.
    """

    after: int
    first: int


class _Last(NamedTuple):
    """The last time that is known at an entry, in milliseconds, and the entry that has it; -1 for none."""

    time_ms: int = -1
    at_index: int = -1


#: Takes, for each question, the term of the entry, and its time in milliseconds; None: it has none.
Search = Generator[Question, tuple[int, int | None], FoundSpan]


def search_leaders(begin: int, end: int, moment_ms: int) -> Search:
    """
    Search by the times of leaders.

    These times never fall, but whole terms may have none: of a Java leader, or of one without the option. So
    the last time that is known at an entry is compared, which never falls either.
    """
    known: dict[int, tuple[int, _Last]] = {}
    after, low, high = begin, begin, end
    while low < high:
        middle = (low + high) // 2
        last = yield from _last_at(begin, middle, known)
        if last.time_ms >= moment_ms:
            high = middle
        else:
            low = middle + 1
            after = max(last.at_index + 1, begin)
    return FoundSpan(after, low)


def _last_at(
    begin: int, index: int, known: dict[int, tuple[int, _Last]]
) -> Generator[Question, tuple[int, int | None], _Last]:
    """
    The last time at an entry or before it.

    @param known: by term: up to which entry it has no time, and the last time before it. It learns.
    """
    passed: list[tuple[int, int]] = []
    found = _Last()
    while index >= begin:
        term, time_ms = yield Question(index, needs_time=False)
        last, before = known.get(term, (-1, _Last()))
        if index <= last:
            found = before
            break
        term, time_ms = yield Question(index, needs_time=True)
        if time_ms is not None:
            found = _Last(time_ms, index)
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
