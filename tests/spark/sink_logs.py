# -*- test-case-name: tests.spark.test_sink_crashes -*-
"""A log in memory for the sink, which fails when asked to, and a reader that knows the markers' rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any, Protocol

import attrs

from dledger.ledger.producers import Known, NotedRun, SequenceTable
from dledger.spark.sink.batch_append import BatchAppend, SinkBatch, SinkPatience
from dledger.spark.sink.markers import MarkerKind, SinkMarker, decode_marker, encode_marker
from dledger.spark.sink.sink_log import (
    BatchOutcome,
    BatchRows,
    OutOfStepError,
    PlacedBodies,
    digest_of_all,
)

SINK = "orders"
SETTLE_S = 3.0
#: Entries in which a sink that the group does not know is looked for.
NEWEST = 1000


class Crash(BaseException):
    """The driver dies here."""


class NoAnswer(BaseException):
    """A request has no outcome: it is sent again."""


class MemoryLog:
    """
    @ivar entries: term and body of each.
    @ivar producers: the group's table of producers.
    @ivar first: entries in front of it have expired.
    @ivar fault: asked before each append with its number and its bodies: None lets it be; else the number of
        bodies that come into the log, and the exception. Fewer than all: a new term begins after them.
    @ivar between: called with the number of an append, before it.
    @ivar late: numbered pieces, which come when L{deliver} is called.
    @ivar others: bodies of another writer.
    @ivar appends: how many were asked for, since L{restart}.
    @ivar read: indexes of the entries that were read.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = [(1, b"")]
        self.producers = SequenceTable()
        self.first, self.term, self.appends, self.ran = 0, 1, 0, 0
        self.fault: Callable[[int, Sequence[bytes]], tuple[int, BaseException] | None] = lambda *_: None
        self.between: Callable[[int], object] = lambda _: None
        self.late: list[tuple[str, int, list[bytes]]] = []
        self.others: list[bytes] = []
        self.read: set[int] = set()

    def put(self, bodies: Iterable[bytes]) -> None:
        """Entries of this term."""
        self.entries += [(self.term, body) for body in bodies]

    def other(self, *bodies: bytes) -> None:
        """Entries of another writer."""
        self.put(bodies)
        self.others += bodies

    def new_term(self) -> None:
        """Another leader, with its first entry."""
        self.term += 1
        self.entries.append((self.term, b""))

    # -- SinkLog --------------------------------------------------------------------------------

    def last_sequence(self, producer: str) -> int:
        """See L{SinkLog}."""
        return self.producers.judge(producer, 1 << 62, 1, len(self.entries) - 1).last_sequence

    def numbered(self, producer: str, sequence: int, bodies: Sequence[bytes]) -> PlacedBodies:
        """What a leader does with numbered bodies."""
        known, index, found, last = self.producers.judge(
            producer, sequence, len(bodies), len(self.entries) - 1
        )
        if known is Known.REPEATED:
            return PlacedBodies(index=index, count=found, is_repeated=True)
        if known is not Known.NEW:
            raise OutOfStepError(f"{known}, the last one is {last}")
        index = len(self.entries)
        self.producers.note(NotedRun(producer, sequence, index, len(bodies), index - 1))
        self.put(bodies)
        return PlacedBodies(index=index, count=len(bodies))

    def append(self, producer: str, sequence: int, bodies: Sequence[bytes]) -> PlacedBodies:
        """See L{SinkLog}."""
        number, self.appends = self.appends, self.appends + 1
        self.between(number)
        fault = self.fault(number, bodies)
        if fault is None:
            return self.numbered(producer, sequence, bodies)
        count, error = fault
        if count:
            self.numbered(producer, sequence, bodies[:count])
        if count < len(bodies):
            self.new_term()
        if not isinstance(error, NoAnswer):
            raise error
        placed = self.numbered(producer, sequence, bodies)
        return attrs.evolve(placed, was_unknown=True)

    def deliver(self) -> None:
        """What was under way comes."""
        late, self.late = self.late, []
        for producer, sequence, bodies in late:
            try:
                self.numbered(producer, sequence, bodies)
            except OutOfStepError:
                continue

    def first_index(self) -> int:
        """See L{SinkLog}."""
        return self.first

    def markers(self, begin: int, end: int) -> list[tuple[int, SinkMarker]]:
        """See L{SinkLog}."""
        assert self.first <= begin < end <= len(self.entries), (begin, end)
        self.read.update(range(begin, end))
        found = [(index, decode_marker(self.entries[index][1])) for index in range(begin, end)]
        return [(index, marker) for index, marker in found if marker is not None]

    def newest_markers(self) -> list[tuple[int, SinkMarker]]:
        """See L{SinkLog}."""
        end = len(self.entries)
        return self.markers(max(end - NEWEST, self.first), end) if end > self.first else []

    def rows_behind(self, index: int, count: int, end: int) -> list[bytes]:
        """See L{SinkLog}."""
        term = self.entries[index][0]
        rows = []
        for at in range(index + 1, min(index + 1 + count, end)):
            found, body = self.entries[at]
            self.read.add(at)
            if found != term:
                break
            rows.append(body)
        return rows

    # -- drivers --------------------------------------------------------------------------------

    def driver(
        self, rows: Sequence[bytes], batch: int = 0, *, sink: str = SINK, search_from: int = -1,
        is_new: bool = False, frame_bytes: int = 8, attempts_max: int = 20, is_strict: bool = True,
        sleep: Callable[[float], None] | None = None,
    ) -> BatchAppend:
        """A driver that has just begun, in a process of its own."""
        def new_run() -> str:
            self.ran += 1
            return f"{self.ran:016x}"

        return BatchAppend(
            self, BatchRows(count=len(rows), digest=digest_of_all(rows), all=lambda: iter(rows)),
            SinkBatch(sink=sink, number=batch, search_from=search_from, is_new=is_new),
            new_run=new_run, frame_bytes=frame_bytes, is_strict=is_strict, patience=SinkPatience(
                sleep=sleep or (lambda _: self.deliver()), settle_s=SETTLE_S, attempts_max=attempts_max,
            ),
        )

    def restart(self, rows: Sequence[bytes], batch: int = 0, **options: Any) -> BatchOutcome:
        """A driver that runs to its end without a fault."""
        self.fault, self.between, self.appends = lambda *_: None, lambda _: None, 0
        return self.driver(rows, batch, **options).run()

    # -- what a reader sees -----------------------------------------------------------------------

    def bodies(self) -> list[bytes]:
        """All but markers and the first entries of leaders."""
        seen, last = [], 0
        for term, body in self.entries:
            if term == last and decode_marker(body) is None:
                seen.append(body)
            last = term
        return seen

    def lacking(self, *expected: Sequence[bytes]) -> tuple[Counter[bytes], Counter[bytes]]:
        """Bodies that are missing, and bodies that are too many; both are empty if all is well."""
        wanted = Counter(body for bodies in (*expected, self.others) for body in bodies)
        found = Counter(self.bodies())
        return wanted - found, found - wanted


class WrittenLog(Protocol):
    """A log that an earlier version appends to. C{entries}: as many as it has."""

    @property
    def entries(self) -> Sized: ...

    def put(self, bodies: Iterable[bytes]) -> None:
        """Append them in one request."""

    def new_term(self) -> None:
        """Another leader follows."""


class EarlierSink:
    """
    Entries of the sink of an earlier version: BEGIN, rows after ROWS, END; nothing is numbered.

    @ivar run: of its process.
    """

    def __init__(self, log: WrittenLog, run: str = "e" * 16, sink: str = SINK) -> None:
        self.log, self.run, self.sink = log, run, sink
        self._since = 0

    def _marker(self, kind: MarkerKind, batch: int, count: int = 0, since: int = 0, digest: int = 0) -> bytes:
        return encode_marker(SinkMarker(
            kind=kind, sink=self.sink, batch=batch, run=self.run, count=count, since=since,
            digest=f"{digest:016x}",
        ))

    def begin(self, batch: int) -> None:
        """A run begins a batch."""
        self._since = len(self.log.entries)
        self.log.put([self._marker(MarkerKind.BEGIN, batch)])

    def rows(self, batch: int, *rows: bytes, taken: int = -1) -> None:
        """One request; C{taken}: the number of its bodies that came into the log, then the leader died."""
        bodies = [self._marker(MarkerKind.ROWS, batch, len(rows), self._since), *rows]
        self.log.put(bodies if taken < 0 else bodies[:taken])
        if taken >= 0:
            self.log.new_term()

    def end(self, batch: int, rows: Sequence[bytes]) -> None:
        """All rows of the batch are there."""
        since = len(self.log.entries)
        self.log.put([self._marker(MarkerKind.END, batch, len(rows), since, digest_of_all(rows))])

    def whole(self, batch: int, rows: Sequence[bytes]) -> None:
        """A batch, from its begin to its end."""
        self.begin(batch)
        self.rows(batch, *rows)
        self.end(batch, rows)
