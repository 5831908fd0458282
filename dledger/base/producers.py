# -*- test-case-name: tests.base.test_producers -*-
"""
What a ledger knows of its producers: which sequences are in it, and at which indexes.

The table is a fold of the producer entries of the ledger (L{protocols.wire.ledger.producers}), written or
not yet committed. Each body of a producer has a sequence, and the ledger takes only the one that follows its
last one. So of all attempts to append a body, one log has one at most: a leader that looks into the table of
its own ledger finds every earlier attempt that its ledger has.

Rule 1: a producer that the table does not know begins with sequence 0.
Rule 2: an index is told only if the table still has it. The last sequence of a producer is never forgotten
before the producer is.
Rule 3: the bounds are numbers of the ledger, not of the member: the producers whose last entries are the
oldest are forgotten first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple

import attrs

#: Producers that are remembered, and runs of entries of one of them.
PRODUCERS_MAX = 2048
RUNS_MAX = 1024


class Known(Enum):
    """What the table says about an append."""

    NEW = auto()
    REPEATED = auto()
    GAP = auto()
    FORGOTTEN = auto()
    UNKNOWN_PRODUCER = auto()


class Verdict(NamedTuple):
    """
    The answer about an append.

    @ivar first_index, found: REPEATED: index of its first body, and number of its bodies that are known to
        follow each other there.
    @ivar last_sequence: of the producer; -1: it has none.
    """

    known: Known
    first_index: int = -1
    found: int = 0
    last_sequence: int = -1


class NotedRun(NamedTuple):
    """
    Entries of a producer that follow each other in the ledger.

    @ivar sequence, first_index: of the first one.
    @ivar entries: number of them.
    @ivar told_at: index of the producer entry in front of them.
    """

    producer: str
    sequence: int
    first_index: int
    entries: int
    told_at: int


class _Runs:
    """Runs of one producer, in order: parallel arrays, because there may be a thousand of each."""

    __slots__ = ("entries", "indexes", "sequences", "told_at")

    def __init__(self) -> None:
        self.sequences = array("q")
        self.indexes = array("q")
        self.entries = array("q")
        self.told_at = array("q")

    @property
    def last_sequence(self) -> int:
        return self.sequences[-1] + self.entries[-1] - 1

    def _columns(self) -> tuple[array[int], ...]:
        return self.sequences, self.indexes, self.entries, self.told_at

    def add(self, run: NotedRun) -> None:
        for column, value in zip(self._columns(), run[1:], strict=True):
            column.append(value)
        if len(self.sequences) > 2 * RUNS_MAX:
            for column in self._columns():
                del column[:RUNS_MAX]

    def last_before(self, end_index: int) -> int:
        """The last sequence up to an entry; -1: none."""
        at = len(self.indexes) - 1
        while at >= 0 and self.indexes[at] > end_index:
            at -= 1
        if at < 0:
            return -1
        return self.sequences[at] + min(self.entries[at], end_index + 1 - self.indexes[at]) - 1

    def drop(self, first_gone: int, column: array[int]) -> None:
        """Drop the last runs whose number in C{column} is not below C{first_gone}."""
        while column and column[-1] >= first_gone:
            for each in self._columns():
                each.pop()


@attrs.define
class SequenceTable:
    """
    Invariant: C{_runs} is in the order of the last entries of the producers, and none is without a run.

    @ivar producers_max: of them are remembered.
    """

    producers_max: int = PRODUCERS_MAX
    _runs: dict[str, _Runs] = attrs.field(factory=dict, eq=False)
    _last_index: int = -1

    def __len__(self) -> int:
        """Number of producers."""
        return len(self._runs)

    def may_have_forgotten(self, producer: str) -> bool:
        """Whether entries of a producer that the table does not know may be in the ledger all the same."""
        return producer not in self._runs and len(self._runs) >= self.producers_max

    def judge(self, producer: str, sequence: int, count: int, end_index: int) -> Verdict:
        """
        What the ledger knows of C{count} bodies of a producer.

        @param sequence: of the first one, 0 or more.
        @param end_index: last index of the ledger: announced entries behind it have not come yet.
        """
        runs = self._runs.get(producer)
        last = -1 if runs is None else runs.last_before(end_index)
        if runs is None or last < 0:
            return Verdict(Known.UNKNOWN_PRODUCER if sequence else Known.NEW)
        if sequence > last:
            return Verdict(Known.NEW if sequence == last + 1 else Known.GAP, last_sequence=last)
        at = bisect_right(runs.sequences, sequence) - 1
        if at < 0:
            return Verdict(Known.FORGOTTEN, last_sequence=last)
        behind = sequence - runs.sequences[at]
        index = runs.indexes[at] + behind
        found = min(count, runs.entries[at] - behind, end_index + 1 - index)
        return Verdict(Known.REPEATED, index, found, last)

    def note(self, run: NotedRun) -> None:
        """The ledger has the producer entry in front of these entries, behind all that were noted before."""
        runs = self._runs.pop(run.producer, None)
        if runs is None or run.sequence != runs.last_sequence + 1:
            runs = _Runs()  # (The ledger has forgotten the producer between the two.)
        runs.add(run)
        self._runs[run.producer] = runs
        self._last_index = max(self._last_index, run.first_index + run.entries - 1)
        while len(self._runs) > self.producers_max:
            del self._runs[next(iter(self._runs))]

    def cut(self, first_gone: int) -> None:
        """
        The entries from C{first_gone} on are gone. Those that a producer entry before has announced may come
        back: they are in the log of the leader that wrote it.
        """
        if first_gone <= self._last_index:
            for runs in self._runs.values():
                runs.drop(first_gone, runs.told_at)
            self._tidy()

    def superseded(self, index: int) -> None:
        """The entry at C{index} is of another term than the one before: nothing that was announced for it."""
        if index > self._last_index:
            return
        for runs in self._runs.values():
            runs.drop(index, runs.indexes)
            if runs.indexes:
                runs.entries[-1] = min(runs.entries[-1], index - runs.indexes[-1])
        self._tidy()

    def _tidy(self) -> None:
        kept = [(name, runs) for name, runs in self._runs.items() if runs.indexes]
        self._runs = dict(sorted(kept, key=lambda item: item[1].indexes[-1]))
        self._last_index = max((runs.indexes[-1] + runs.entries[-1] - 1 for _, runs in kept), default=-1)

    def whole_before(self, end_index: int) -> int:
        """C{end_index}, or the last entry before the producer entry whose announced entries pass it."""
        return min((
            runs.told_at[at] - 1 for runs in self._runs.values() for at in range(len(runs.indexes))
            if runs.told_at[at] <= end_index < runs.indexes[at] + runs.entries[at] - 1
        ), default=end_index)

    def last_runs(self, end_index: int) -> Iterator[NotedRun]:
        """The last run of each producer up to an entry that is between two runs, in order."""
        for producer, runs in self._runs.items():
            at = bisect_right(runs.told_at, end_index) - 1
            if at >= 0:
                yield NotedRun(
                    producer, runs.sequences[at], runs.indexes[at], runs.entries[at], runs.told_at[at]
                )

    def add_older(self, older: Iterable[NotedRun]) -> None:
        """Add what is known of producers that the table does not know."""
        for run in older:
            if run.producer not in self._runs:
                self.note(run)
        self._tidy()
