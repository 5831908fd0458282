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
Rule 3: there is one order, the place in the ledger. The producers whose last entries are the oldest are
forgotten first, also where a table is made of a file and of entries after it: those of the file come first.
Rule 4: which producers are remembered depends on the ledger alone: not on who folded it, in how many pieces,
after how many starts, or on what was cut meanwhile.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

import attrs

#: Producers that are remembered, and runs of entries of one of them.
PRODUCERS_MAX = 2048
RUNS_MAX = 1024
#: Runs that a cut may take, at most: no leader has more appends that are not committed. (A ledger that was
#: not told of a commit for longer, as under a Java leader, has only more entries that will not be cut.)
UNCOMMITTED_MAX = 16_384


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
    """
    Runs of one producer, in order: parallel arrays, because there may be a thousand of each.

    A producer that was forgotten and comes again has a new I{life}: what was before counts again if the
    entries of the new one are cut.

    @ivar lives: the numbers of the first runs of its lives, except of the first life.
    """

    __slots__ = ("entries", "indexes", "lives", "sequences", "told_at")

    def __init__(self) -> None:
        self.sequences = array("q")
        self.indexes = array("q")
        self.entries = array("q")
        self.told_at = array("q")
        self.lives = array("q")

    @property
    def last_sequence(self) -> int:
        return self.sequences[-1] + self.entries[-1] - 1

    @property
    def last_index(self) -> int:
        return self.indexes[-1] + self.entries[-1] - 1

    @property
    def born(self) -> int:
        """Number of the first run of its present life."""
        return self.lives[-1] if self.lives else 0

    def _columns(self) -> tuple[array[int], ...]:
        return self.sequences, self.indexes, self.entries, self.told_at

    def add(self, run: NotedRun, *, is_born: bool) -> None:
        """@param is_born: a life begins with this run."""
        if self.sequences and (is_born or run.sequence != self.last_sequence + 1):
            self.lives.append(len(self.sequences))
        for column, value in zip(self._columns(), run[1:], strict=True):
            column.append(value)

    def forget(self, number: int) -> None:
        """Forget the first C{number} runs."""
        for column in self._columns():
            del column[:number]
        self.lives = array("q", [life - number for life in self.lives if life > number])

    def last_before(self, end_index: int) -> int:
        """The last sequence up to an entry; -1: none."""
        at, born = len(self.indexes) - 1, self.born
        while at >= born and self.indexes[at] > end_index:
            at -= 1
        if at < born:
            return -1
        return self.sequences[at] + min(self.entries[at], end_index + 1 - self.indexes[at]) - 1

    def pop(self, producer: str) -> tuple[NotedRun, bool]:
        """Take off the last run. @return: it, and whether a life began with it."""
        run = NotedRun(producer, *(column.pop() for column in self._columns()))
        is_born = bool(self.lives) and self.lives[-1] == len(self.indexes)
        if is_born:
            self.lives.pop()
        return run, is_born


class _Replaced(NamedTuple):
    """The announced entries from C{begin} on, which another term has replaced: as they were."""

    begin: int
    runs: list[tuple[NotedRun, bool]]


@attrs.define
class SequenceTable:
    """
    Invariants: C{_runs} has the C{producers_max} producers whose last entries are the last ones of the
    ledger, C{_spare} those before them, both in the order of their last entries, and none is without a run.
    What L{judge} says depends on C{_runs} alone, so on the ledger alone.

    After a cut some of the spare ones are among the last again. As many are kept as runs may be cut: those
    behind the committed entry. So it is with the runs whose entries another term has replaced: they may come
    back when that term is cut.

    @ivar producers_max: of them are remembered.
    @ivar gap_end: the entries before this one were not all folded: a producer whose last known ones are
        before it may have others.
    """

    producers_max: int = PRODUCERS_MAX
    gap_end: int = 0
    _runs: OrderedDict[str, _Runs] = attrs.field(factory=OrderedDict, eq=False)
    _spare: OrderedDict[str, _Runs] = attrs.field(factory=OrderedDict, eq=False)
    _uncommitted: deque[tuple[int, int]] = attrs.field(factory=deque, eq=False)  # told_at, last index
    _replaced: list[_Replaced] = attrs.field(factory=list, eq=False)
    _last_index: int = -1

    def __len__(self) -> int:
        """Number of producers that are remembered."""
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
        if sequence > last and runs.told_at[-1] < self.gap_end:
            return Verdict(Known.UNKNOWN_PRODUCER)
        if sequence > last:
            return Verdict(Known.NEW if sequence == last + 1 else Known.GAP, last_sequence=last)
        at = bisect_right(runs.sequences, sequence, runs.born) - 1
        if at < runs.born:
            return Verdict(Known.FORGOTTEN, last_sequence=last)
        behind = sequence - runs.sequences[at]
        index = runs.indexes[at] + behind
        found = min(count, runs.entries[at] - behind, end_index + 1 - index)
        return Verdict(Known.REPEATED, index, found, last)

    def note(self, run: NotedRun) -> None:
        """The ledger has the producer entry in front of these entries, behind all that were noted before."""
        runs = self._runs.pop(run.producer, None)
        is_born = runs is None
        if runs is None:
            runs = self._spare.pop(run.producer, None) or _Runs()
        runs.add(run, is_born=is_born)
        self._runs[run.producer] = runs
        self._last_index = max(self._last_index, runs.last_index)
        self._uncommitted.append((run.told_at, runs.last_index))
        if len(runs.indexes) >= 2 * RUNS_MAX + len(self._uncommitted):
            runs.forget(RUNS_MAX)
        while len(self._runs) > self.producers_max:
            name, oldest = self._runs.popitem(last=False)
            self._spare[name] = oldest

    def settle(self, committed_index: int) -> None:
        """The entries up to C{committed_index} will not be cut: forget whom only their cut could recall."""
        uncommitted = self._uncommitted
        while uncommitted and (uncommitted[0][1] <= committed_index or len(uncommitted) > UNCOMMITTED_MAX):
            uncommitted.popleft()
        while len(self._spare) > len(uncommitted):
            self._spare.popitem(last=False)
        while self._replaced and self._replaced[0].begin <= committed_index:
            del self._replaced[0]

    def cut(self, first_gone: int) -> None:
        """
        The entries from C{first_gone} on are gone. Those that a producer entry before has announced may come
        back: they are in the log of the leader that wrote it.
        """
        while self._uncommitted and self._uncommitted[-1][0] >= first_gone:
            self._uncommitted.pop()
        if first_gone <= self._last_index:
            for producer, runs in self._all():
                while runs.told_at and runs.told_at[-1] >= first_gone:
                    runs.pop(producer)
        elif not self._replaced or self._replaced[-1].begin < first_gone:
            return
        while self._replaced and self._replaced[-1].begin >= first_gone:
            replaced = self._replaced.pop()
            for run, is_born in replaced.runs:
                if run.told_at < first_gone:
                    self._recall(run, is_born=is_born)
        self._tidy()

    def begin_anew(self, committed_index: int, begin_index: int) -> None:
        """The ledger goes on at C{begin_index}: the entries between are not known, nor whose they are."""
        self.cut(committed_index + 1)
        self._replaced.clear()
        for _, known in self._all():
            if known.last_index > committed_index:
                known.forget(len(known.indexes))
        self._tidy()
        self.gap_end = begin_index

    def _recall(self, run: NotedRun, *, is_born: bool) -> None:
        runs = self._runs.get(run.producer) or self._spare.setdefault(run.producer, _Runs())
        if runs.indexes and runs.indexes[-1] == run.first_index:
            runs.pop(run.producer)
        runs.add(run, is_born=is_born)

    def superseded(self, index: int) -> None:
        """The entry at C{index} is of another term than the one before: nothing that was announced for it."""
        if index > self._last_index:
            return
        gone: list[tuple[NotedRun, bool]] = []
        for producer, runs in self._all():
            at = len(gone)
            while runs.indexes and runs.last_index >= index:
                run, is_born = runs.pop(producer)
                gone.insert(at, (run, is_born))
                if run.first_index < index:
                    runs.add(run._replace(entries=index - run.first_index), is_born=is_born)
        self._replaced.append(_Replaced(index, gone))
        if len(self._replaced) > UNCOMMITTED_MAX:
            del self._replaced[0]
        self._tidy()

    def _all(self) -> Iterator[tuple[str, _Runs]]:
        yield from self._spare.items()
        yield from self._runs.items()

    def _tidy(self) -> None:
        """Put everything in order after entries went."""
        kept = [pair for pair in self._all() if pair[1].indexes]
        kept.sort(key=lambda pair: pair[1].indexes[-1])
        first = max(len(kept) - self.producers_max, 0)
        self._spare, self._runs = OrderedDict(kept[:first]), OrderedDict(kept[first:])
        self._last_index = max((runs.last_index for _, runs in kept), default=-1)

    def whole_before(self, end_index: int) -> int:
        """C{end_index}, or the last entry before the producer entry whose announced entries pass it."""
        whole = end_index
        for _, runs in self._all():
            at = bisect_right(runs.told_at, end_index) - 1
            if at >= 0 and end_index < runs.indexes[at] + runs.entries[at] - 1:
                whole = min(whole, runs.told_at[at] - 1)
        for replaced in self._replaced:
            for run, _ in replaced.runs:
                if run.told_at <= end_index < run.first_index + run.entries - 1:
                    whole = min(whole, run.told_at - 1)
        return whole

    def last_runs(self, end_index: int) -> list[NotedRun]:
        """
        The last run of each producer that is remembered at an entry that is between two runs, in order: noted
        again they make a table that says the same of every producer, except the indexes of earlier runs.
        """
        found = []
        for producer, runs in self._all():
            at = bisect_right(runs.told_at, end_index) - 1
            if at >= 0:
                found.append(NotedRun(
                    producer, runs.sequences[at], runs.indexes[at], runs.entries[at], runs.told_at[at]
                ))
        return sorted(found, key=lambda run: run.first_index)[-self.producers_max :]
