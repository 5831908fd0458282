# -*- test-case-name: tests.base.test_producers -*-
"""
What a ledger knows of its producers: which sequences are in it, and at which indexes.

The table is a fold of the producer entries of the ledger (L{protocols.wire.ledger.producers}), written or
not yet committed. Each body of a producer has a sequence, and the ledger takes only the one that follows its
last one. So of all attempts to append a body, one log has one at most: a leader that looks into the table of
its own ledger finds every earlier attempt that its ledger has.

Rule 1: a producer that the table does not know begins with sequence 0.
Rule 2: an index is reported only if the table still has it. The last sequence of a producer is never
forgotten before the producer is.
Rule 3: there is one order, the place in the ledger. The producers whose last entries are the oldest are
forgotten first, also where a table is made of a file and of entries after it: those of the file come first.
Rule 4: a run of entries is reported by its producer entry with their number, or is I{open}: it has all
entries of programs that follow in its term, up to the next entry that a member has made for itself.
Rule 5: which producers are remembered depends on the ledger alone: not on who folded it, in how many pieces,
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

#: Producers that are remembered, and runs of entries of one of them that are remembered at least.
PRODUCERS_MAX = 2048
RUNS_MAX = 1024
#: Runs that a cut may take, at most: no leader has more appends that are not committed. (A ledger that was
#: not informed of a commit for longer, as under a Java leader, has only more entries that will not be cut.)
UNCOMMITTED_MAX = 16_384
#: C{entries} of an open run that goes on: more than any ledger has.
OPEN_ENTRIES = 1 << 48


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
    @ivar entries: number of them; L{OPEN_ENTRIES}: all that follow, until the run is closed.
    @ivar told_at: index of the producer entry in front of them.
    @ivar open_term: the term of an open run, also when it is closed; -1: the producer entry reported
        C{entries}.
    """

    producer: str
    sequence: int
    first_index: int
    entries: int
    told_at: int
    open_term: int = -1


class _Runs:
    """
    Runs of one producer, in order: parallel arrays, because there may be a thousand of each.

    A producer that was forgotten and comes again has a new I{life}: what was before counts again if the
    entries of the new one are cut.

    @ivar lives: the numbers of the first runs of its lives, except of the first life.
    """

    __slots__ = ("entries", "indexes", "lives", "open_terms", "sequences", "told_at")

    def __init__(self) -> None:
        self.sequences = array("q")
        self.indexes = array("q")
        self.entries = array("q")
        self.told_at = array("q")
        self.open_terms = array("q")
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
        return self.sequences, self.indexes, self.entries, self.told_at, self.open_terms

    def at(self, number: int, producer: str) -> NotedRun:
        """One of the runs."""
        return NotedRun(producer, *(column[number] for column in self._columns()))

    def whole_before(self, end_index: int) -> int:
        """See L{SequenceTable.whole_before}."""
        number = bisect_right(self.told_at, end_index) - 1
        return end_index if number < 0 else _whole_before(self.at(number, ""), end_index)

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


def _whole_before(run: NotedRun, end_index: int) -> int:
    """C{end_index}, or the last entry before the producer entry of a run that is cut there."""
    # An open run is reported by its first entry: a later entry says where it ends.
    needed = run.first_index if run.open_term >= 0 else run.first_index + run.entries - 1
    return run.told_at - 1 if run.told_at <= end_index < needed else end_index


class _Replaced(NamedTuple):
    """The announced entries from C{begin} on, which another term has replaced: as they were."""

    begin: int
    runs: list[tuple[NotedRun, bool]]


@attrs.define
class SequenceTable:
    """
    Invariants: C{_runs} has the C{producers_max} producers whose last entries are the last ones of the
    ledger, C{spare} those before them, both in the order of their last entries, and none is without a run.
    What L{judge} says depends on C{_runs} alone, so on the ledger alone.

    After a cut some of the spare ones are among the last again. As many are kept as runs may be cut: those
    after the committed entry. So it is with the runs whose entries another term has replaced: they may come
    back when that term is cut.

    @ivar producers_max: of them are remembered.
    @ivar had_open_runs: whether an open run was noted.
    @ivar gap_end: the entries before this one were not all folded: a producer whose last known ones are
        before it may have others.
    @ivar spare: producers beyond the limit, kept while entries that drop them may be cut.
    @ivar uncommitted: entries that may be cut and that changed the table.
    """

    producers_max: int = PRODUCERS_MAX
    gap_end: int = 0
    had_open_runs: bool = False
    _runs: OrderedDict[str, _Runs] = attrs.field(factory=OrderedDict, eq=False)
    spare: OrderedDict[str, _Runs] = attrs.field(factory=OrderedDict, eq=False)
    uncommitted: deque[tuple[int, int]] = attrs.field(factory=deque, eq=False)  # told_at, see note()
    _replaced: list[_Replaced] = attrs.field(factory=list, eq=False)
    _last_index: int = -1

    def __len__(self) -> int:
        """Number of producers that are remembered."""
        return len(self._runs)

    @property
    def open_term(self) -> int:
        """The term of the open run that goes on; -1: there is none."""
        runs = self._runs[next(reversed(self._runs))] if self._runs else None
        return -1 if runs is None or runs.entries[-1] != OPEN_ENTRIES else runs.open_terms[-1]

    def may_have_forgotten(self, producer: str) -> bool:
        """Whether entries of a producer that the table does not know may be in the ledger all the same."""
        return producer not in self._runs and len(self._runs) >= self.producers_max

    def judge(self, producer: str, sequence: int, count: int, end_index: int) -> Verdict:
        """
        What the ledger knows of C{count} bodies of a producer.

        @param sequence: of the first one, 0 or more.
        @param end_index: last index of the ledger: announced entries after it have not come yet.
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
        """The ledger has the producer entry in front of these entries, after all that were noted before."""
        runs = self._runs.pop(run.producer, None)
        is_born = runs is None
        if runs is None:
            runs = self.spare.pop(run.producer, None) or _Runs()
        runs.add(run, is_born=is_born)
        self.had_open_runs = self.had_open_runs or run.open_term >= 0
        self._runs[run.producer] = runs
        self._last_index = max(self._last_index, runs.last_index)
        told_by = run.first_index if run.open_term >= 0 else runs.last_index
        self.uncommitted.append((run.told_at, told_by))
        if len(runs.indexes) >= 2 * RUNS_MAX + len(self.uncommitted):
            runs.forget(RUNS_MAX)
        while len(self._runs) > self.producers_max:
            name, oldest = self._runs.popitem(last=False)
            self.spare[name] = oldest

    def close(self, index: int) -> None:
        """The entry at C{index}, of the same term, is none of a program: an open run before it ends."""
        if self.open_term < 0:
            return
        name = next(reversed(self._runs))
        runs = self._runs[name]
        if runs.told_at[-1] < index:
            runs.entries[-1] = max(index - runs.indexes[-1], 0)
            self._last_index = index - 1
            if not runs.entries[-1]:
                runs.pop(name)
                self._tidy()

    def settle(self, committed_index: int) -> None:
        """The entries up to C{committed_index} will not be cut: forget whom only their cut could recall."""
        uncommitted = self.uncommitted
        while uncommitted and (uncommitted[0][1] <= committed_index or len(uncommitted) > UNCOMMITTED_MAX):
            uncommitted.popleft()
        while len(self.spare) > len(uncommitted):
            self.spare.popitem(last=False)
        while self._replaced and self._replaced[0].begin <= committed_index:
            del self._replaced[0]

    def cut(self, first_gone: int) -> None:
        """
        The entries from C{first_gone} on are gone. Those that a producer entry before has announced may come
        back: they are in the log of the leader that wrote it.
        """
        while self.uncommitted and self.uncommitted[-1][0] >= first_gone:
            self.uncommitted.pop()
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
            if known.last_index <= committed_index:
                continue
            if known.open_terms[-1] >= 0 and known.indexes[-1] <= committed_index:
                known.entries[-1] = committed_index + 1 - known.indexes[-1]
            else:
                known.forget(len(known.indexes))
        self._tidy()
        self.gap_end = begin_index

    def _recall(self, run: NotedRun, *, is_born: bool) -> None:
        runs = self._runs.get(run.producer) or self.spare.setdefault(run.producer, _Runs())
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
        yield from self.spare.items()
        yield from self._runs.items()

    def _tidy(self) -> None:
        """Put everything in order after entries went."""
        kept = [pair for pair in self._all() if pair[1].indexes]
        kept.sort(key=lambda pair: pair[1].indexes[-1])
        first = max(len(kept) - self.producers_max, 0)
        self.spare = OrderedDict(kept[:first])
        self._runs = OrderedDict(kept[first:])
        self._last_index = max((runs.last_index for _, runs in kept), default=-1)

    def whole_before(self, end_index: int) -> int:
        """C{end_index}, or the last entry before the producer entry whose announced entries pass it."""
        whole = end_index
        for _, runs in self._all():
            whole = min(whole, runs.whole_before(end_index))
        for replaced in self._replaced:
            for run, _ in replaced.runs:
                whole = min(whole, _whole_before(run, end_index))
        return whole

    def last_runs(self, end_index: int) -> list[NotedRun]:
        """
        The last run of each producer that is remembered at an entry that is between two runs, in order: noted
        again they make a table that says the same of every producer, except the indexes of earlier runs. One
        that was open at that entry is open.
        """
        found = []
        for producer, runs in self._all():
            at = bisect_right(runs.told_at, end_index) - 1
            if at >= 0:
                run = runs.at(at, producer)
                if run.open_term >= 0 and run.first_index + run.entries > end_index:
                    run = run._replace(entries=OPEN_ENTRIES)  # Where it was closed comes later.
                found.append(run)
        return sorted(found, key=lambda run: run.first_index)[-self.producers_max :]
