# -*- test-case-name: tests.sim.test_corpus -*-
"""
Schedules that are worth another look, because they reached kinds of states that none before them had.

A schedule is written in one line: its seed, its focus, and its turns. At a turn all random streams of the
simulated group begin anew, from the seed and the salt of the turn; so two schedules with the same line but
for the last turn are the same up to that time, and differ after it::

    412 named-readers 12034567:3

This is seed 412 with the focus C{named-readers} (C{-}: none), up to 12.034567 simulated seconds; the rest is
played with salt 3. A corpus is a text file, see L{Corpus.text}. The kinds that it says of a line hold for the
code that wrote it; with other code the line may reach others, and is a schedule like any other.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from dledger.testing.group.focuses import FOCUSES
from dledger.testing.group.group_states import KINDS_MAX

#: Longest file of a corpus.
FILE_BYTES_MAX = 2_000_000
#: Most turns of a schedule.
TURNS_MAX = 6
#: A salt is below this number.
SALTS = 1 << 16
#: Places of a schedule from which others may turn off, at most.
PLACES_MAX = 3
#: No schedule is longer than this, microseconds: a day.
_TIME_MAX_US = 86_400_000_000

_NO_FOCUS = "-"
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_KIND_DIGITS = 3
assert len(_DIGITS) ** _KIND_DIGITS == KINDS_MAX


class CorpusError(ValueError):
    """A line is no schedule, or a file no corpus."""


def _number(text: str, below: int, what: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < below):
        raise CorpusError(f"{what} is {text[:40]!r}, not a number below {below}")
    return int(text)


@attrs.frozen(order=True)
class PlayedLine:
    """
    A schedule.

    @ivar focus_name: one of L{FOCUSES}; empty: none.
    @ivar turns: time of each turn, microseconds, rising, and its salt.
    """

    seed: int
    focus_name: str = ""
    turns: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        turns = (f"{at_us}:{salt}" for at_us, salt in self.turns)
        return " ".join((str(self.seed), self.focus_name or _NO_FOCUS, *turns))

    @classmethod
    def parse(cls, text: str) -> PlayedLine:
        """@raise CorpusError: it is no such line."""
        seed, *words = text.split() or [""]
        focus, *turns = words or [""]
        if focus != _NO_FOCUS and focus not in FOCUSES:
            raise CorpusError(f"{focus[:40]!r} is no focus, and not {_NO_FOCUS!r}")
        if len(turns) > TURNS_MAX:
            raise CorpusError(f"{len(turns)} turns, at most {TURNS_MAX} are allowed")
        found: list[tuple[int, int]] = []
        for turn in turns:
            at_us, colon, salt = turn.partition(":")
            if not colon:
                raise CorpusError(f"the turn {turn[:40]!r} is not TIME:SALT")
            found.append((_number(at_us, _TIME_MAX_US, "the time of a turn"), _number(salt, SALTS, "a salt")))
            if len(found) > 1 and found[-1][0] <= found[-2][0]:
                raise CorpusError(f"the turn {turn[:40]!r} is not after the one before")
        return cls(_number(seed, 1 << 62, "the seed"), "" if focus == _NO_FOCUS else focus, tuple(found))

    def turned(self, at_us: int, salt: int) -> PlayedLine:
        """The same up to C{at_us}, and another after it."""
        return attrs.evolve(self, turns=(*(turn for turn in self.turns if turn[0] < at_us), (at_us, salt)))


@attrs.frozen
class CorpusEntry:
    """
    A schedule of a corpus.

    @ivar places_us: times at which it had just reached a new kind of state.
    @ivar kinds: those that it reached, and no other entry has.
    """

    line: PlayedLine
    places_us: tuple[int, ...]
    kinds: frozenset[int]

    def __str__(self) -> str:
        kinds = "".join(
            _DIGITS[kind >> 12] + _DIGITS[kind >> 6 & 63] + _DIGITS[kind & 63] for kind in sorted(self.kinds)
        )
        return f"{self.line} | {' '.join(map(str, self.places_us))} | {kinds}"

    @classmethod
    def parse(cls, text: str) -> CorpusEntry:
        """@raise CorpusError: it is no such line."""
        parts = text.split("|")
        if len(parts) != 3:
            raise CorpusError(f"{len(parts)} parts with | between them, not 3")
        places = tuple(_number(place, _TIME_MAX_US, "a place") for place in parts[1].split())
        digits = parts[2].strip()
        if len(digits) % _KIND_DIGITS or not digits or not _VALUES.keys() >= set(digits):
            raise CorpusError("the kinds are not groups of three letters, digits, - and _")
        if not 0 < len(places) <= PLACES_MAX:
            raise CorpusError(f"{len(places)} places, not 1 to {PLACES_MAX}")
        values = [_VALUES[digit] for digit in digits]
        kinds = (high << 12 | middle << 6 | low
                 for high, middle, low in zip(values[::3], values[1::3], values[2::3], strict=True))
        return cls(PlayedLine.parse(parts[0]), places, frozenset(kinds))


class Corpus:
    """
    Entries, each of which has kinds of states that no other one has.

    @ivar seconds: simulated seconds with faults of all its schedules.
    @ivar entries: by their schedules, the oldest first.
    """

    def __init__(self, seconds: float, entries: Iterable[CorpusEntry] = ()) -> None:
        self.seconds = seconds
        self.entries = {entry.line: entry for entry in entries}
        self._owners = {kind: entry.line for entry in self.entries.values() for kind in entry.kinds}

    @property
    def kinds(self) -> int:
        """Number of kinds of states that its schedules reached."""
        return len(self._owners)

    def add(self, line: PlayedLine, reached: Mapping[int, int]) -> bool:
        """
        A schedule has passed. It becomes an entry if it reached a new kind, and takes the place of those
        entries all of whose kinds it reached, too.

        @param reached: each kind, and when it was first, microseconds.
        @return: whether it became an entry.
        """
        # After the faults most schedules are the same: a turn there leads nowhere.
        reached = {kind: at_us for kind, at_us in reached.items() if at_us < self.seconds * 1e6}
        new = {kind: at_us for kind, at_us in reached.items() if kind not in self._owners}
        if not new or line in self.entries:
            return False
        times = sorted(set(new.values()))
        shared = Counter(self._owners[kind] for kind in reached if kind in self._owners)
        kinds = set(new)
        for other, count in shared.items():
            if count == len(self.entries[other].kinds):
                kinds |= self.entries.pop(other).kinds
        places = tuple(sorted({times[0], times[len(times) // 2], times[-1]}))
        self.entries[line] = CorpusEntry(line, places, frozenset(kinds))
        self._owners.update(dict.fromkeys(kinds, line))
        return True

    def drawn(self, rng: random.Random) -> tuple[PlayedLine, int] | None:
        """
        A schedule, and the time at which others turn off from it; None: there is none. One with more kinds
        for itself comes more often: the choices of its seed lead to more.
        """
        entries = [entry for entry in self.entries.values() if len(entry.line.turns) < TURNS_MAX]
        if not entries:
            return None
        (entry,) = rng.choices(entries, [len(entry.kinds) for entry in entries])
        return entry.line, entry.places_us[int(rng.random() * len(entry.places_us))] + 1

    # -- the file -----------------------------------------------------------------------------

    def text(self) -> str:
        """
        The first line has the seconds; each other one an entry: its schedule, its places, its kinds, with
        C{|} between them. Entries with the fewest kinds are left out if it were too long.
        """
        head = f"# dledger schedules of {self.seconds:g} s\n"
        reported = {line: f"{entry}\n" for line, entry in self.entries.items()}
        size = len(head) + sum(map(len, reported.values()))
        for entry in sorted(self.entries.values(), key=lambda entry: len(entry.kinds)):
            if size <= FILE_BYTES_MAX:
                break
            size -= len(reported.pop(entry.line))
        return head + "".join(reported.values())

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        aside.write_text(self.text())
        aside.replace(path)

    @classmethod
    def load(cls, path: Path, seconds: float) -> Corpus:
        """
        The corpus of a file; an empty one if there is none.

        @raise CorpusError: it is too long, a line is no entry, or it is of schedules of other lengths.
        """
        if not path.exists():
            return cls(seconds)
        if path.stat().st_size > FILE_BYTES_MAX:
            raise CorpusError(f"{path} is longer than {FILE_BYTES_MAX} bytes")
        head, *lines = path.read_text(errors="replace").splitlines() or [""]
        wanted = cls(seconds).text().strip()
        if head.strip() != wanted:
            raise CorpusError(f"{path}, line 1: {head[:60]!r}, not {wanted!r}")
        entries = []
        for number, line in enumerate(lines, 2):
            try:
                entries.append(CorpusEntry.parse(line))
            except CorpusError as error:
                raise CorpusError(f"{path}, line {number}: {error}") from None
        return cls(seconds, entries)
