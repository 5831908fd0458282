# -*- test-case-name: tests.spark.test_sink_crashes -*-
"""A log in memory for the sink, which fails when asked to, and a reader that knows the markers' rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from dledger.spark.sink.batch_append import BatchAppend, SinkBatch, SinkPatience
from dledger.spark.sink.markers import SinkMarker, decode_marker
from dledger.spark.sink.sink_log import (
    FORGOTTEN,
    BatchOutcome,
    BatchRows,
    OutOfStepError,
    PlacedBodies,
    digest_of_all,
)
from dledger.values.ledger.group_state import GroupFold, GroupState, Known, Marked
from protocols.wire.ledger.own.age_entries import AGE_STEP_MS, encode_age_entry
from protocols.wire.ledger.own.own_entries import (
    AGE_CHANNEL,
    HIDDEN,
    SESSION_CHANNEL,
    TERM_START_CHANNEL,
    is_hidden,
    slot_channels,
    slot_of,
)
from protocols.wire.ledger.own.session_entries import Session, encode_session_entry
from protocols.wire.ledger.producers import SEQUENCE_MAX

SINK = "orders"


class Crash(BaseException):
    """The driver dies here."""


class NoAnswer(BaseException):
    """A request has no outcome: it is sent again."""


class Written(NamedTuple):
    """An entry."""

    term: int
    channel: int
    body: bytes


class MemoryLog:
    """
    @ivar entries: all, from index 0 on.
    @ivar group: the state of producers after them.
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
        self.entries: list[Written] = []
        self.group = GroupFold(GroupState())
        self.first, self.term, self.appends, self.ran = 0, 0, 0, 0
        self.fault: Callable[[int, Sequence[bytes]], tuple[int, BaseException] | None] = lambda *_: None
        self.between: Callable[[int], object] = lambda _: None
        self.late: list[tuple[str, int, list[bytes], tuple[int, ...]]] = []
        self.others: list[bytes] = []
        self.read: set[int] = set()
        self.new_term()

    def put(self, channels: Iterable[int], bodies: Iterable[bytes]) -> None:
        """Entries of this term."""
        first = len(self.entries)
        self.entries += [Written(self.term, *pair) for pair in zip(channels, bodies, strict=True)]
        self.group.take([
            Marked(index, term, channel, 1, body if channel < 0 else b"")
            for index, (term, channel, body) in enumerate(self.entries[first:], first) if channel
        ])
        self.group.commit(len(self.entries) - 1)

    def other(self, *bodies: bytes) -> None:
        """Entries of another writer."""
        self.put([0] * len(bodies), bodies)
        self.others += bodies

    def new_term(self) -> None:
        """Another leader, with its first entry."""
        self.term += 1
        self.put([TERM_START_CHANNEL], [b""])

    def forget_all(self) -> None:
        """The producers have been quiet for too long."""
        for clock_ms in (0, AGE_STEP_MS):
            self.put([AGE_CHANNEL], [encode_age_entry(clock_ms, AGE_STEP_MS)])
        assert not self.group.state.producers

    # -- SinkLog --------------------------------------------------------------------------------

    def last_sequence(self, producer: str) -> int:
        """See L{SinkLog}."""
        verdict = self.group.judge(producer, SEQUENCE_MAX, 1)
        return FORGOTTEN if verdict.known is Known.FORGOTTEN_PRODUCER else verdict.last

    def numbered(
        self, producer: str, sequence: int, bodies: Sequence[bytes], hidden: tuple[int, ...]
    ) -> PlacedBodies:
        """What a leader does with numbered bodies."""
        known, index, found, last = self.group.judge(producer, sequence, len(bodies))
        if known is Known.REPEATED and index >= self.first:
            there = [entry.body for entry in self.entries[index : index + found]]
            is_other = there != list(bodies[:found])
            return PlacedBodies(index=index, count=1 if is_other else found, is_other=is_other)
        if known is not Known.NEW:
            is_expired = known in (Known.FORGOTTEN, Known.REPEATED)
            raise OutOfStepError(f"{known}, the last one is {last}", is_expired=is_expired)
        if self.group.producer(producer) is None:
            session = Session(self.group.free_slots(1)[0], producer)
            self.put([SESSION_CHANNEL], [encode_session_entry([session])])
        of_it = self.group.producer(producer)
        assert of_it is not None
        index, channels = len(self.entries), slot_channels(of_it.slot, sequence, len(bodies))
        for number in hidden:
            if number < len(bodies):
                channels[number] |= HIDDEN
        self.put(channels, bodies)
        return PlacedBodies(index=index, count=len(bodies))

    def append(
        self, producer: str, sequence: int, bodies: Sequence[bytes], hidden: tuple[int, ...]
    ) -> PlacedBodies:
        """See L{SinkLog}."""
        number, self.appends = self.appends, self.appends + 1
        self.between(number)
        fault = self.fault(number, bodies)
        if fault is None:
            return self.numbered(producer, sequence, bodies, hidden)
        count, error = fault
        if count:
            self.numbered(producer, sequence, bodies[:count], hidden)
        if count < len(bodies):
            self.new_term()
        if not isinstance(error, NoAnswer):
            raise error
        return self.numbered(producer, sequence, bodies, hidden)

    def deliver(self) -> None:
        """What was under way comes."""
        late, self.late = self.late, []
        for request in late:
            try:
                self.numbered(*request)
            except OutOfStepError:
                continue

    def first_index(self) -> int:
        """See L{SinkLog}."""
        return self.first

    def markers(self, begin: int, end: int) -> list[tuple[int, SinkMarker]]:
        """See L{SinkLog}."""
        assert self.first <= begin < end <= len(self.entries), (begin, end)
        self.read.update(range(begin, end))
        found = [(index, decode_marker(entry.body)) for index, entry in enumerate(self.entries)
                 if begin <= index < end and entry.channel >= HIDDEN]
        return [(index, marker) for index, marker in found if marker is not None]

    def rows_behind(self, index: int, count: int, end: int) -> list[bytes]:
        """See L{SinkLog}."""
        piece, rows = self.entries[index], list[bytes]()
        for at in range(index + 1, min(index + 1 + count, end)):
            term, channel, body = self.entries[at]
            self.read.add(at)
            if term != piece.term or channel >> 8 != slot_of(piece.channel):
                break
            rows.append(body)
        return rows

    # -- drivers --------------------------------------------------------------------------------

    def driver(
        self, rows: Sequence[bytes], batch: int = 0, *, sink: str = SINK, is_new: bool = False,
        frame_bytes: int = 8, attempts_max: int = 20, is_strict: bool = True,
    ) -> BatchAppend:
        """A driver that has just begun, in a process of its own."""
        def new_run() -> str:
            self.ran += 1
            return f"{self.ran:016x}"

        return BatchAppend(
            self, BatchRows(count=len(rows), digest=digest_of_all(rows), all=lambda: iter(rows)),
            SinkBatch(sink=sink, number=batch, is_new=is_new), new_run=new_run, frame_bytes=frame_bytes,
            is_strict=is_strict,
            patience=SinkPatience(sleep=lambda _: self.deliver(), attempts_max=attempts_max),
        )

    def restart(self, rows: Sequence[bytes], batch: int = 0, **options: Any) -> BatchOutcome:
        """A driver that runs to its end without a fault."""
        self.fault, self.between, self.appends = lambda *_: None, lambda _: None, 0
        return self.driver(rows, batch, **options).run()

    # -- what a reader sees -----------------------------------------------------------------------

    def bodies(self) -> list[bytes]:
        """All that readers are shown."""
        return [entry.body for entry in self.entries if not is_hidden(entry.channel, 1)]

    def lacking(self, *expected: Sequence[bytes]) -> tuple[Counter[bytes], Counter[bytes]]:
        """Bodies that are missing, and bodies that are too many; both are empty if all is well."""
        wanted = Counter(body for bodies in (*expected, self.others) for body in bodies)
        found = Counter(self.bodies())
        return wanted - found, found - wanted
