# -*- test-case-name: tests.base.test_time_search -*-
"""The halving by time, with a reader that sees a few entries at a time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.time_search import SKEW_MS, FoundSpan, TimeSearch, search_leaders

_NOW_MS = 1_800_000_000_000


def searched(times: list[int | None], begin: int, moment_ms: int, at_once: int) -> tuple[TimeSearch, int]:
    """@return: the search at its end, and the number of looks."""
    search, looks = TimeSearch(begin, len(times), moment_ms), 0
    while (look := search.look) is not None:
        first, behind = look
        looks += 1
        assert begin <= first < behind <= len(times) and looks < 1000
        for index in range(first, min(behind, first + at_once)):
            time_ms = times[index]
            if time_ms is not None:
                search.met(index, time_ms)
                break
        else:
            search.met_none(min(behind, first + at_once))
    return search, looks


def is_parted(runs: list[tuple[int, int | None]]) -> bool:
    """Whether no two runs without a time are adjacent."""
    full = [one for count, one in runs if count]
    return all(a is not None or b is not None for a, b in zip(full, full[1:], strict=False))


def after_earlier(times: list[int | None], begin: int, moment_ms: int) -> int:
    """The answer, by a walk over all entries: after the last one that is known to be earlier."""
    earlier = [at for at, time_ms in enumerate(times) if time_ms is not None and time_ms < moment_ms]
    return max([begin, *(at + 1 for at in earlier)])


class SearchTests(SynchronousTestCase):
    """The search finds the entry after the last earlier one, and reads few entries for it."""

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.none() | st.integers(0, 30), max_size=60), st.integers(0, 31), st.integers(0, 5))
    def test_rising(self, drawn: list[int | None], wanted: int, begin: int) -> None:
        """With times that rise it finds that entry, with entries without a time anywhere."""
        rising = iter(sorted(one for one in drawn if one is not None))
        times = [None if one is None else _NOW_MS + next(rising) for one in drawn]
        begin = min(begin, len(times))
        search, _looks = searched(times, begin, _NOW_MS + wanted + SKEW_MS, len(times) + 1)
        self.assertEqual(search.found, after_earlier(times, begin, _NOW_MS + wanted))
        has_times = any(one is not None for one in times[begin:])
        self.assertEqual(search.has_times, has_times)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(0, 30)), max_size=9),
           st.integers(0, 31), st.integers(1, 4))
    def test_short_looks(self, runs: list[tuple[int, int | None]], wanted: int, at_once: int) -> None:
        """A reader that sees few entries at a time leaves out none that may be of the time or later."""
        rising = iter(sorted(one for _, one in runs if one is not None))
        times = [_NOW_MS + when if when is not None else None for count, one in runs
                 for when in [None if one is None else next(rising)] for _ in range(count)]
        search, _looks = searched(times, 0, _NOW_MS + wanted + SKEW_MS, at_once)
        expected = after_earlier(times, 0, _NOW_MS + wanted)
        self.assertLessEqual(search.found, expected)
        if all(count <= at_once for count, one in runs if one is None) and is_parted(runs):
            self.assertEqual(search.found, expected)

    def test_begin_without_times(self) -> None:
        """Entries without a time before the first one that has one may be of the time, however many."""
        times: list[int | None] = [None] * 5000 + list(range(_NOW_MS, _NOW_MS + 100))
        for moment_ms in (0, _NOW_MS - 1, _NOW_MS):
            search, looks = searched(times, 3, moment_ms + SKEW_MS, 1000)
            self.assertEqual((search.found, search.has_times), (3, True))
            self.assertLess(looks, 40)
        self.assertEqual(searched(times, 3, _NOW_MS + 1 + SKEW_MS, 1000)[0].found, 5001)

    def test_end_without_times(self) -> None:
        """Nor are those left out that come after the last one with a time; those before it are."""
        times: list[int | None] = [*range(_NOW_MS, _NOW_MS + 100), *[None] * 5000]
        search, looks = searched(times, 0, _NOW_MS + 1000 + SKEW_MS, 1000)
        self.assertEqual((search.found, search.has_times), (100, True))
        self.assertLess(looks, 40)

    def test_clocks(self) -> None:
        """Clocks that differ by less than the tolerance hide no entry."""
        times: list[int | None] = [
            _NOW_MS + 1000 * number + (SKEW_MS * number * 7 % 11 * 2 // 11 - SKEW_MS // 2) * (number % 2)
            for number in range(500)
        ]
        for wanted in range(0, 500, 7):
            moment = _NOW_MS + 1000 * wanted
            search, _looks = searched(times, 0, moment, 1)
            first = next(at for at, time_ms in enumerate(times) if time_ms is not None and time_ms >= moment)
            self.assertLessEqual(search.found, first)

    def test_cost(self) -> None:
        """About log2 of the entries are looked at, whether times begin early or late."""
        for untimed in (0, 75_000, 99_000):
            times: list[int | None] = [None] * untimed + list(range(_NOW_MS, _NOW_MS + 100_000 - untimed))
            search, looks = searched(times, 0, _NOW_MS + 500 + SKEW_MS, 2_000)
            self.assertEqual(search.found, untimed + 500)
            self.assertLess(looks, 20 + untimed // 2_000)


class LeaderTests(SynchronousTestCase):
    """By times of leaders, which never fall, and which whole terms may lack."""

    def found(self, log: list[tuple[int, int | None]], begin: int, moment_ms: int) -> tuple[FoundSpan, int]:
        """@return: the result, and the number of questions."""
        search, asked = search_leaders(begin, len(log), moment_ms), 0
        try:
            question = next(search)
            while True:
                asked += 1
                term, time_ms = log[question.index]
                question = search.send((term, time_ms if question.needs_time else None))
        except StopIteration as done:
            return done.value, asked

    @given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(-6, 3), max_size=9)), max_size=9),
           st.integers(0, 30))
    def test_any_log(self, terms: list[tuple[bool, list[int]]], begin: int) -> None:
        """As a walk over all entries finds it; a step of 0 or more notes a time, which counts in its term."""
        log: list[tuple[int, int | None]] = []
        last = 0
        for term, (is_timed, steps) in enumerate(terms):
            known: int | None = None
            for step in steps:
                if is_timed and step >= 0:
                    known = last = last + step
                log.append((term, known))
        begin = min(begin, len(log))
        for moment_ms in range(last + 2):
            first = next((at for at in range(begin, len(log)) if (log[at][1] or 0) >= moment_ms
                          and log[at][1] is not None), len(log))
            after = after_earlier([time_ms for _, time_ms in log], begin, moment_ms)
            self.assertEqual(self.found(log, begin, moment_ms)[0], (after, first), moment_ms)

    def test_unknown_in_a_term(self) -> None:
        """Damage hides the times of some entries of a term: none that may be of the time is left out."""
        log: list[tuple[int, int | None]] = [(1, 50)] * 3 + [(2, 100)] * 9 + [(2, None)] * 8 + [(2, 200)] * 9
        for moment_ms, after in ((50, 0), (51, 3), (101, 12), (200, 12), (201, 29)):
            found = self.found(log, 0, moment_ms)[0]
            self.assertLessEqual(found.after, after, moment_ms)

    def test_cost(self) -> None:
        """A million entries without a time after a few with one cost some dozens of questions."""
        log: list[tuple[int, int | None]] = [(1, 100)] * 14 + [(2, None)] * 1_000_000 + [(3, 900)]
        self.assertEqual(self.found(log, 0, 50)[0], (0, 0))
        found, asked = self.found(log, 0, 500)
        self.assertEqual(found, (14, len(log) - 1))
        self.assertLess(asked, 100)
