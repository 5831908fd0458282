# -*- test-case-name: tests.spark.test_sink_crashes -*-
"""A log in memory for the sink, which fails as it is told, and a reader that knows the markers' rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from dledger.spark.sink.batch_append import (
    BatchAppend,
    BatchOutcome,
    BatchRows,
    NoOutcomeError,
    digest_of_all,
)
from dledger.spark.sink.markers import SinkMarker, decode_marker

SINK = "orders"
SETTLE_S = 3.0


class Crash(BaseException):
    """The driver dies here."""


class MemoryLog:
    """
    @ivar entries: term and body of each.
    @ivar first: entries in front of it have expired.
    @ivar fault: asked before each append with its number and its bodies: None lets it be; else the number of
        bodies that come into the log, and the exception. Fewer than all: a new term begins behind them.
    @ivar between: called with the number of an append, before it.
    @ivar late: pieces that come when L{deliver} is called.
    @ivar others: bodies of another writer.
    @ivar appends: how many were asked for, since L{restart}.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = [(1, b"")]
        self.first, self.term, self.appends, self.ran = 0, 1, 0, 0
        self.fault: Callable[[int, Sequence[bytes]], tuple[int, BaseException] | None] = lambda *_: None
        self.between: Callable[[int], object] = lambda _: None
        self.late: list[list[bytes]] = []
        self.others: list[bytes] = []
        self.reads = 0

    def put(self, bodies: Sequence[bytes]) -> None:
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

    def append(self, bodies: Sequence[bytes]) -> int:
        """See L{SinkLog}."""
        number, self.appends = self.appends, self.appends + 1
        self.between(number)
        fault = self.fault(number, bodies)
        index = len(self.entries)
        if fault is None:
            self.put(bodies)
            return index
        count, error = fault
        self.put(bodies[:count])
        if count < len(bodies):
            self.new_term()
        raise error

    def deliver(self) -> None:
        """What was under way comes."""
        for piece in self.late:
            self.put(piece)
        self.late = []

    def first_index(self) -> int:
        """See L{SinkLog}."""
        return self.first

    def markers(self, begin: int, end: int) -> list[tuple[int, SinkMarker]]:
        """See L{SinkLog}."""
        assert self.first <= begin < end <= len(self.entries), (begin, end)
        self.reads += end - begin
        found = [(index, decode_marker(self.entries[index][1])) for index in range(begin, end)]
        return [(index, marker) for index, marker in found if marker is not None]

    def rows_behind(self, index: int, count: int, end: int) -> list[bytes]:
        """See L{SinkLog}."""
        term = self.entries[index][0]
        rows = []
        for found, body in self.entries[index + 1 : min(index + 1 + count, end)]:
            if found != term:
                break
            rows.append(body)
        return rows

    # -- drivers --------------------------------------------------------------------------------

    def driver(self, rows: Sequence[bytes], batch: int = 0, **options: object) -> BatchAppend:
        """A driver that has just begun, in a process of its own."""
        def new_run() -> str:
            self.ran += 1
            return f"{self.ran:016x}"

        given: dict[str, object] = {
            "sink": SINK, "batch": batch, "new_run": new_run, "sleep": lambda _: self.deliver(),
            "settle_s": SETTLE_S, "frame_bytes": 8, **options,
        }
        batch_rows = BatchRows(count=len(rows), digest=digest_of_all(rows), all=lambda: iter(rows))
        return BatchAppend(self, batch_rows, **given)  # type: ignore[arg-type]

    def restart(self, rows: Sequence[bytes], batch: int = 0, **options: object) -> BatchOutcome:
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


def unknown(what: str = "no answer") -> NoOutcomeError:
    """The outcome is not known."""
    return NoOutcomeError(what)
