# -*- test-case-name: tests.spark.test_pushed -*-
"""
What Spark asks of a batch scan besides its columns: ranges of some columns, a limit, counts. The jar
(L{dledger.spark.jvm}) takes them from a query; without it there are none.

Rule 1: the first scan of a data frame plans the parts of the log before it cuts them to its ranges, and later
scans cut the same parts. So all read one snapshot.
Rule 2: ranges of C{index} and C{term} are exact, because Spark does not compare these rows again: terms are
compared row by row, and the search for them only says which part of the log may have them. What the other
ranges leave in, Spark leaves out.
Rule 3: a search that cannot read an entry leaves nothing out. The tasks say what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TypeAlias, TypedDict

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dledger.base.time_search import search_leaders
from dledger.spark.formats.log import LogPart, ReadError, ScannedLog
from dledger.spark.formats.options import ROCKETMQ, ScanOptions
from dledger.spark.ledger.columns import Column, projection
from dledger.spark.rocketmq.commit_log import SparkCommitLog
from dledger.spark.scans.scan import Scan, columns_of
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE

#: First and last of each range, in order, with gaps between them.
Spans: TypeAlias = tuple[tuple[int, int], ...]

#: Of the metadata of a scan's first column: what the jar asks.
METADATA_KEY = "dledger"
#: Planning counts a log of as many tasks by itself: 512 MiB take a third of a second. From members and
#: archives, where entries have no index, half a task. Tasks of more bytes than these count as such ones.
COUNTED_TASKS, COUNTED_TASKS_FAR, _TASK_BYTES = 4.0, 0.5, 128 * 1024 * 1024
#: Entries of the first look for a row, and how much longer each look is than the one before.
_FIRST_LOOK, _GROWTH = 256, 4
#: A row of Spark, and a value of L{_SHORT}, in bytes: about.
_ROW_BYTES, _VALUE_BYTES = 8, 20
#: Columns without a fixed width whose values are short. The others may be as long as their record.
_SHORT = frozenset(("control", "topic"))
#: Bytes of a body of RocketMQ, of which its clients compress the long ones, for a byte of the log.
_UNPACKED = 8
#: More than Spark sends to every executor: the size of rows of which nothing is known.
_UNKNOWN_BYTES = 2**62
#: Ends of the numbers of Spark.
_LEAST, _MOST = -(2**63), 2**63 - 1
_INDEX, _TERM = ("index", "BIGINT"), ("term", "BIGINT")


@attrs.frozen(kw_only=True)
class Pinned:
    """
    What all scans of a data frame read.

    @ivar in_bytes: offsets are bytes of a broker's commit log.
    """

    parts: tuple[LogPart, ...]
    in_bytes: bool = False

    def pack(self) -> str:
        """As text, for the jar to keep."""
        return " ".join([str(int(self.in_bytes)), *(
            f"{part.begin},{part.end},{part.size_bytes},{int(part.is_archived)}" for part in self.parts)])

    @classmethod
    def unpack(cls, text: str) -> Pinned:
        """@param text: of L{pack}."""
        kind, *parts = text.split(" ")
        rows = [[int(field) for field in part.split(",")] for part in parts]
        return cls(in_bytes=kind == "1", parts=tuple(
            LogPart(begin=begin, end=end, size_bytes=size, is_archived=bool(archived))
            for begin, end, size, archived in rows))


def _spans(flat: Sequence[int] | None) -> Spans | None:
    return None if flat is None else tuple(zip(flat[::2], flat[1::2], strict=True))


class PushedMetadata(TypedDict, total=False):
    """
    The metadata that C{Pushed.java} makes. Ranges are first and last of each, one after the other.

    C{limit}, C{aggregates} and C{schema}, the columns of the data frame as JSON, are always there.
    """

    index: list[int]
    term: list[int]
    time: list[int]
    storetimestamp: list[int]
    physicaloffset: list[int]
    topic: list[str]
    limit: int
    aggregates: list[str]
    schema: str
    pinned: str


@attrs.frozen(kw_only=True)
class Pushed:
    """
    What is asked. Spans are None where nothing is asked; times in microseconds since 1970.

    @ivar topics: names of topics; None: all.
    @ivar limit: rows of each task; 0: all.
    @ivar aggregates: such as C{count(*)}, C{min(index)}: the row that is wanted instead of rows.
    @ivar pinned: None: this is the first scan.
    """

    index: Spans | None = None
    term: Spans | None = None
    time: Spans | None = None
    stored: Spans | None = None
    physical: Spans | None = None
    topics: tuple[str, ...] | None = None
    limit: int = 0
    aggregates: tuple[str, ...] = ()
    pinned: Pinned | None = None

    @classmethod
    def of(cls, asked: PushedMetadata) -> Pushed:
        """What the jar sends."""
        topics, pinned = asked.get("topic"), asked.get("pinned")
        return cls(
            index=_spans(asked.get("index")), term=_spans(asked.get("term")), time=_spans(asked.get("time")),
            stored=_spans(asked.get("storetimestamp")), physical=_spans(asked.get("physicaloffset")),
            topics=None if topics is None else tuple(topics), limit=asked["limit"],
            aggregates=tuple(asked["aggregates"]),
            pinned=None if pinned is None else Pinned.unpack(pinned),
        )


@attrs.frozen(kw_only=True)
class Planned:
    """
    A planned scan.

    @ivar parts: of its tasks.
    @ivar pinned: for the next scans of the data frame.
    @ivar rows: about; None: not known.
    @ivar size_bytes: of the rows in Spark, about.
    @ivar answer: the one row of aggregates; None: tasks compute it.
    """

    parts: tuple[LogPart, ...]
    pinned: Pinned
    rows: int | None
    size_bytes: int
    answer: tuple[int | None, ...] | None = None

    def report(self) -> dict[str, object]:
        """As C{LedgerPlan.java} reads it."""
        return {
            "pinned": self.pinned.pack(), "rows": -1 if self.rows is None else self.rows,
            "bytes": self.size_bytes, "answer": None if self.answer is None else list(self.answer),
        }


@attrs.frozen(kw_only=True)
class PushedScan:
    """
    A scan of which Spark asks more than columns. It can be pickled.

    @ivar scan: with the wanted columns; with C{aggregates} they are not looked at.
    """

    scan: Scan
    pushed: Pushed

    # -- planning -------------------------------------------------------------------------------

    def plan(self) -> Planned:
        """
        Plan the tasks; nothing is opened if the parts are known and no search is needed.

        @raise ReadError, OptionError: as L{Scan.plan}.
        """
        pushed, pinned = self.pushed, self.pushed.pinned
        if pinned is None:
            with closing(self.scan.log()) as log:
                pinned = Pinned(parts=tuple(self.scan.plan(log)), in_bytes=isinstance(log, SparkCommitLog))
                parts = self._narrowed(pinned, log)
        elif pushed.term is None:
            parts = self._narrowed(pinned, None)
        else:
            with closing(self.scan.log()) as log:
                parts = self._narrowed(pinned, log)
        rows = None if pinned.in_bytes else sum(part.end - part.begin for part in parts)
        if rows is not None and pushed.limit:
            rows = min(rows, pushed.limit * len(parts))
        return Planned(parts=tuple(parts), pinned=pinned, rows=rows, size_bytes=self._size(parts, rows),
                       answer=self._answer(parts) if pushed.aggregates else None)

    def _narrowed(self, pinned: Pinned, log: ScannedLog | None) -> list[LogPart]:
        """The parts that may have wanted rows. C{log}: needed for a search of terms."""
        pushed = self.pushed
        if () in (pushed.index, pushed.term, pushed.time, pushed.stored, pushed.physical, pushed.topics):
            return []
        parts = list(pinned.parts)
        if pinned.in_bytes:
            # A part is read from a place that the planning knows, so none is cut.
            spans = pushed.physical
            return [one for one in parts if spans is None or _hull(spans, one.begin, one.end) is not None]
        if pushed.index is not None:
            parts = _cut(parts, pushed.index)
        if pushed.time is not None and parts:
            parts = self._by_time(parts, pushed.time)
        if pushed.term is not None and parts:
            assert log is not None
            parts = self._by_term(parts, pushed.term, log)
        return parts

    def _by_time(self, parts: list[LogPart], spans: Spans) -> list[LogPart]:
        """See L{search_leaders}: times of leaders never fall, unless entries of them are damaged."""
        begin, end = parts[0].begin, parts[-1].end
        if not self.scan.options.fail_on_damage:
            return parts
        # In milliseconds: not later than the first wanted time, and later than the last one.
        since, until = spans[0][0] // 1000, spans[-1][1] // 1000 + 1
        first, last = begin, end
        try:
            if since > 0:
                first = self.scan.by_leaders(search_leaders(begin, end, since)).after
            if until <= _MOST // 1000:
                last = self.scan.by_leaders(search_leaders(begin, end, until)).first
        except ReadError:
            return parts
        return _cut(parts, ((first, last - 1),) if first < last else ())

    def _by_term(self, parts: list[LogPart], spans: Spans, log: ScannedLog) -> list[LogPart]:
        """Terms never fall along a log."""
        begin, end, look = parts[0].begin, parts[-1].end, self.scan.looking()
        try:
            log.extent()
            first = _first_of(look, log, begin, end, spans[0][0])
            last = _first_of(look, log, first, end, spans[-1][1] + 1)
        except ReadError:
            return parts
        return _cut(parts, ((first, last - 1),) if first < last else ())

    def _size(self, parts: Sequence[LogPart], rows: int | None) -> int:
        """
        Bytes of rows: those of the log for bodies and headers, the widths of the other columns. Spark sends
        few bytes to every executor, so these are rather too many.
        """
        options, columns = self.scan.options, self.scan.columns
        log_bytes = sum(part.size_bytes for part in parts)
        count = sum(part.end - part.begin for part in parts)
        names = {column.name.lower() for column in columns}
        # A part of a record is at most in two columns: headers and key, body and text.
        copies = min(sum(map(_is_long, columns)), 2)
        if options.format == ROCKETMQ and options.decompress and "body" in names:
            copies *= _UNPACKED
        if rows is None:
            return max(log_bytes * max(copies, 1), 1)
        # (positions that are damaged, or that an archive lacks, make no sense)
        if 2 * log_bytes < ENTRY_HEADER_SIZE * count:
            return _UNKNOWN_BYTES
        each = _ROW_BYTES + sum(map(_width, columns))
        bodies = max(log_bytes - ENTRY_HEADER_SIZE * count, 0) * rows // max(count, 1)
        return max(each * rows + bodies * copies, 1)

    # -- reading --------------------------------------------------------------------------------

    @property
    def _reading(self) -> ScanOptions:
        """The options of the tasks, which leave out messages that Spark would."""
        options, pushed = self.scan.options, self.pushed
        if pushed.stored:
            since, until = pushed.stored[0][0] // 1000, pushed.stored[-1][1] // 1000 + 1
            froms = [since, *([] if options.stored_from is None else [options.stored_from])]
            befores = [until, *([] if options.stored_before is None else [options.stored_before])]
            options = attrs.evolve(options, stored_from=max(froms), stored_before=min(befores))
        if pushed.topics is not None and not options.topics:
            options = attrs.evolve(options, topics=pushed.topics)
        return options

    def batches(self, part: LogPart) -> Iterator[pa.RecordBatch]:
        """
        The wanted rows of a part, in order, or the one row of its aggregates.

        @raise ReadError: as L{Scan.batches}.
        """
        if self.pushed.aggregates:
            yield self._row(self._totals([part]))
            return
        left, width = self.pushed.limit, len(self.scan.columns)
        for batch in self._rows(part, self.scan.columns, few=bool(left)):
            rows = pa.RecordBatch.from_arrays(batch.columns[:width], schema=self.scan.schema)
            if not self.pushed.limit:
                yield rows
                continue
            yield rows[:left]
            left -= rows.num_rows
            if left <= 0:
                return

    def _rows(
        self, part: LogPart, columns: Sequence[Column], *, few: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """
        Wanted rows, with columns after the wanted ones.

        @param few: read a little first, for a caller that may stop.
        """
        options, pushed = self._reading, self.pushed
        is_entries = options.format != ROCKETMQ
        # Parts are cut to one range; only what is between several is left out here.
        spans = {_INDEX: pushed.index if pushed.index is not None and len(pushed.index) > 1 else None,
                 _TERM: pushed.term}
        asked = {name: some for name, some in spans.items() if some is not None and is_entries}
        more = projection(columns_of(options), tuple(asked)) if asked else ()
        reading = attrs.evolve(self.scan, options=options, columns=(*columns, *more))
        for batch in reading.batches(part, first_look=_FIRST_LOOK if few else 0, growth=_GROWTH):
            for at, some in enumerate(asked.values(), len(columns)):
                is_wanted = _within(batch.column(at).to_numpy(), some)
                if not is_wanted.all():
                    batch = batch.filter(pa.array(is_wanted))
            yield batch

    # -- aggregates -----------------------------------------------------------------------------

    def _answer(self, parts: Sequence[LogPart]) -> tuple[int | None, ...] | None:
        """The row of the aggregates; None: too much is to be read for it here."""
        options = self.scan.options
        is_near = not options.bootstrap and not options.archive and not any(one.is_archived for one in parts)
        tasks = COUNTED_TASKS if is_near else COUNTED_TASKS_FAR
        most = int(tasks * min(options.partition_bytes, _TASK_BYTES))
        if not any(name.startswith("count") for name in self.pushed.aggregates):
            return self._ends(parts, most)
        return self._totals(parts) if sum(map(_cost, parts)) <= most else None

    def _ends(self, parts: Sequence[LogPart], most: int) -> tuple[int | None, ...] | None:
        """Index and term never fall, so the first and the last row have the least and the greatest."""
        found = _Totals()
        for pieces in (_forward(parts), _backward(parts)):
            left = most
            for piece in pieces:
                if left < 0:
                    return None
                one = self._counted([piece])
                found.add(one)
                if one.count:
                    break
                left -= _cost(piece)
            if not found.count:
                break
        return found.row(self.pushed.aggregates)

    def _totals(self, parts: Sequence[LogPart]) -> tuple[int | None, ...]:
        return self._counted(parts).row(self.pushed.aggregates)

    def _counted(self, parts: Sequence[LogPart]) -> _Totals:
        needs_term = any("term" in name for name in self.pushed.aggregates)
        wanted = (_INDEX, _TERM) if needs_term else (_INDEX,)
        columns, found = projection(columns_of(self.scan.options), wanted), _Totals()
        for part in parts:
            for batch in self._rows(part, columns):
                found.count_in(batch, needs_term=needs_term)
        return found

    def _row(self, values: tuple[int | None, ...]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [pa.array([value], pa.int64()) for value in values], names=list(self.pushed.aggregates))


@attrs.define
class _Totals:
    """Rows that were counted, the least and the greatest of their values; initially none."""

    count: int = 0
    least: dict[str, int] = attrs.Factory(dict)
    greatest: dict[str, int] = attrs.Factory(dict)

    def count_in(self, batch: pa.RecordBatch, *, needs_term: bool) -> None:
        """@param batch: C{index} and, if needed, C{term} come first."""
        if not batch.num_rows:
            return
        self.count += batch.num_rows
        for at, name in enumerate(("index", "term") if needs_term else ("index",)):
            values = batch.column(at).to_numpy()
            self._take(name, int(values.min()), int(values.max()))

    def _take(self, name: str, least: int, greatest: int) -> None:
        self.least[name] = min(self.least.get(name, least), least)
        self.greatest[name] = max(self.greatest.get(name, greatest), greatest)

    def add(self, other: _Totals) -> None:
        self.count += other.count
        for name, least in other.least.items():
            self._take(name, least, other.greatest[name])

    def row(self, aggregates: Sequence[str]) -> tuple[int | None, ...]:
        """The values of C{aggregates}; None: there was no row."""
        found: list[int | None] = []
        for one in aggregates:
            what, _, column = one.rstrip(")").partition("(")
            found.append(self.count if what == "count" else
                         (self.least if what == "min" else self.greatest).get(column))
        return tuple(found)


def _first_of(look: Scan, log: ScannedLog, begin: int, end: int, term: int) -> int:
    """
    The first entry of a range with this term or a higher one; C{end} if none.

    @param look: of L{Scan.looking}.
    @raise ReadError: an entry cannot be read.
    """
    low, high = begin, end
    # Most logs have one term, or are asked for the last one.
    early = [begin, end - 1]
    while low < high:
        middle = early.pop(0) if early else (low + high) // 2
        if low <= middle < high:
            is_before = look.entry(log, middle)[0] < term
            low, high = (middle + 1, high) if is_before else (low, middle)
    return low


def _within(values: NDArray[np.int64], spans: Spans) -> NDArray[np.bool_]:
    """Which values are in one of the spans."""
    if not spans:
        return np.zeros(len(values), dtype=np.bool_)
    if len(spans) == 1:
        return (values >= spans[0][0]) & (values <= spans[0][1])
    firsts, lasts = np.array(spans, dtype=np.int64).T
    at = np.searchsorted(firsts, values, side="right") - 1
    found: NDArray[np.bool_] = (at >= 0) & (values <= lasts[at])
    return found


def _hull(spans: Spans, begin: int, end: int) -> tuple[int, int] | None:
    """The range of spans from C{begin} to C{end} (exclusive, as that of the result); None: there are none."""
    inside = [(max(first, begin), min(last + 1, end)) for first, last in spans
              if first < end and begin <= last]
    return (inside[0][0], inside[-1][1]) if inside else None


def _cut(parts: Sequence[LogPart], spans: Spans) -> list[LogPart]:
    """What the parts have of the spans, as one range of each."""
    found = []
    for part in parts:
        hull = _hull(spans, part.begin, part.end)
        if hull is not None:
            found.append(_piece(part, *hull))
    return found


def _piece(part: LogPart, begin: int, end: int) -> LogPart:
    size = part.size_bytes * (end - begin) // max(part.end - part.begin, 1)
    return attrs.evolve(part, begin=begin, end=end, size_bytes=size)


def _forward(parts: Sequence[LogPart]) -> Iterator[LogPart]:
    """The parts in pieces, the first ones short."""
    look = _FIRST_LOOK
    for part in parts:
        begin = part.begin
        while begin < part.end:
            end = min(begin + look, part.end)
            yield _piece(part, begin, end)
            begin, look = end, look * _GROWTH


def _backward(parts: Sequence[LogPart]) -> Iterator[LogPart]:
    """The parts in pieces from the last one on, the first ones short."""
    look = _FIRST_LOOK
    for part in reversed(parts):
        end = part.end
        while part.begin < end:
            begin = max(end - look, part.begin)
            yield _piece(part, begin, end)
            end, look = begin, look * _GROWTH


def _cost(part: LogPart) -> int:
    """Bytes of the log, at least those of headers: a damaged position makes a part appear short."""
    return max(part.size_bytes, ENTRY_HEADER_SIZE * (part.end - part.begin))


def _is_long(column: Column) -> bool:
    return not pa.types.is_primitive(column.arrow) and column.name.lower() not in _SHORT


def _width(column: Column) -> int:
    """Bytes of a value in Spark; the log counts long ones."""
    if _is_long(column):
        return 0
    return column.arrow.bit_width // 8 if pa.types.is_primitive(column.arrow) else _VALUE_BYTES
