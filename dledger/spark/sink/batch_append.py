# -*- test-case-name: tests.spark.test_sink_batch,tests.spark.test_sink_crashes -*-
"""
Appends the rows of one batch, each once, no matter what happened to earlier attempts::

    PIECE row row row     PIECE row row DONE        two requests; entries of others may lie between them

A sink is a producer of the group (docs/exactly-once.md): its entries, rows and markers, are numbered, and the
log takes each number once, in order. The number is not a number of a row, because Spark promises no order of
rows when it runs a batch again. Markers are hidden entries, and their bodies differ from attempt to attempt.

Rule 1: an attempt asks the group for the last number of the sink, and looks at that entry: a DONE says which
batch is complete. Else a batch was interrupted: its rows are read and taken away from this one. It never
reads what is not the sink's, except to find the PIECE in front of the last row of an interrupted batch.
Rule 2: the first request gets the next number. If somebody else was first, nothing was appended, and the
attempt begins again with rule 1: more of the batch may be there.
Rule 3: one request is under way at a time. If a later one finds its number taken, another driver appends,
and this one ends. So at each append the log has exactly what this attempt has read or appended.
Rule 4: after a request without an outcome the same one is sent again. The log says whether what has its
numbers is the same: each request begins with a marker of its attempt, so the same is its own.
Rule 5: a member writes a request as one piece: the entries after a PIECE, as far as they have its term and
are the sink's, are its rows.

Rows are compared as a multiset, by a digest of each: Spark may run the batch again in another order.

Knows nothing of members, sockets and Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from dledger.spark.formats.log import skipped
from dledger.spark.sink.markers import MarkerKind, SinkMarker, encode_marker
from dledger.spark.sink.sink_log import (
    FORGOTTEN,
    BatchOutcome,
    BatchRows,
    OutOfStepError,
    SinkError,
    SinkLog,
    TakenOverError,
    digest_of,
    producer_of,
)
from protocols.wire.ledger.push_layout import BODIES_MAX

#: Most rows in one request: besides two markers.
_FRAME_ROWS_MAX = BODIES_MAX - 2
#: Most entries that are read at once, to find a marker.
_STEP_MAX = 65_536
#: Pause after a request of another run came first, seconds.
_PAUSE_S = 0.1


class _Disturbed(Exception):
    """The log has other entries of the sink than were read: begin again."""


@attrs.frozen(kw_only=True)
class _Standing:
    """
    The entries of the batch that are there.

    @ivar sequence: the next one of the sink.
    @ivar since: index of the last marker of the batch; 0: there is none.
    @ivar held: digests of the rows that are there.
    @ivar end: the marker that says that all of it is there.
    """

    sequence: int
    since: int = 0
    held: Counter[int] = attrs.Factory(Counter)
    end: SinkMarker | None = None


@attrs.frozen(kw_only=True)
class SinkBatch:
    """
    One batch of one sink.

    @ivar is_new: nobody has used this name of a sink before.
    """

    sink: str
    number: int
    is_new: bool = False


@attrs.frozen(kw_only=True)
class SinkPatience:
    """
    How an append waits for others.

    @ivar sleep: waits this number of seconds.
    @ivar attempts_max: of attempts that others disturb.
    """

    sleep: Callable[[float], None]
    attempts_max: int = 20


class BatchAppend:
    """
    One batch of one sink, for one call of L{run}.

    @ivar _runs: the runs of this call, the present one last.
    """

    def __init__(
        self, log: SinkLog, rows: BatchRows, batch: SinkBatch, *, new_run: Callable[[], str],
        patience: SinkPatience, frame_bytes: int, is_strict: bool = True,
    ) -> None:
        """
        @param new_run: gives another 16 hexadecimal digits each time.
        @param frame_bytes: of rows in one request, but at least one row.
        @param is_strict: false: where the proof is missing, warn and go on.
        """
        self._log = log
        self._rows = rows
        self._sink = batch.sink
        self._batch = batch.number
        self._producer = producer_of(batch.sink)
        self._new_run = new_run
        self._patience = patience
        self._frame_bytes = frame_bytes
        self._is_new = batch.is_new
        self._is_strict = is_strict
        self._runs: list[str] = []
        self._appended = 0

    def run(self) -> BatchOutcome:
        """
        Append what is missing.

        @raise SinkError: it could not be appended, or not all of it; the next call goes on.
        @raise ReadError: the log cannot be read.
        """
        if not self._rows.count:
            return BatchOutcome(appended=0)  # a batch without rows leaves no trace
        problem: Exception | None = None
        for _ in range(self._patience.attempts_max):
            self._runs.append(self._new_run())
            try:
                return self._attempt()
            except (OutOfStepError, _Disturbed) as error:
                problem = error
            self._patience.sleep(_PAUSE_S)
        raise SinkError(
            f"{self._name}: gave up after {self._patience.attempts_max} attempts, the last one: {problem}. "
            "Some rows may be in the log; the batch is continued when it is run again. If the leader lacks a "
            "part of the log after the last entries of the sink, hand its leadership to another member first"
        )

    @property
    def _name(self) -> str:
        return f"batch {self._batch} of sink {self._sink!r}"

    def _marker(self, kind: MarkerKind, *, count: int = 0, since: int = 0, digest: int = 0) -> bytes:
        return encode_marker(SinkMarker(
            kind=kind, sink=self._sink, batch=self._batch, run=self._runs[-1], count=count, since=since,
            digest=f"{digest:016x}",
        ))

    def _attempt(self) -> BatchOutcome:
        standing = self._standing()
        if standing.end is not None:
            self._compare(standing.end, standing.since)
            return BatchOutcome(appended=self._appended)
        missing = self._missing(standing.held, standing.since)
        sequence, since, is_first = standing.sequence, standing.since, True
        for piece, is_last in _with_last(self._frames(missing)):
            bodies = [self._marker(MarkerKind.PIECE, count=len(piece), since=since), *piece] if piece else []
            hidden = [0] if piece else []
            if is_last:
                hidden.append(len(bodies))
                bodies.append(self._marker(
                    MarkerKind.DONE, count=self._rows.count, digest=self._rows.digest
                ))
            since = self._append(sequence, bodies, tuple(hidden), is_first=is_first)
            sequence, is_first = sequence + len(bodies), False
            self._appended += len(piece)
        return BatchOutcome(appended=self._appended)

    # -- what is there --------------------------------------------------------------------------

    def _standing(self) -> _Standing:
        if self._is_new:
            self._is_new = False  # a second attempt has something to find
            return _Standing(sequence=0)
        last = self._log.last_sequence(self._producer)
        if last == FORGOTTEN:
            self._object_to_forgetting()
            return _Standing(sequence=0)
        sequence = last + 1
        first = max(self._log.first_index(), 0)
        while last >= 0:
            try:
                index = self._place_of(last)
            except OutOfStepError as error:
                if not error.is_expired:
                    raise
                return self._expired(sequence)
            if index < first:
                return self._expired(sequence)
            found = self._near(index, first)
            if found is not None and found[1].kind is MarkerKind.LOOK:
                last -= 1
                continue
            return self._from_marker(found, index, sequence, first)
        return _Standing(sequence=sequence)

    def _place_of(self, sequence: int) -> int:
        """Index of an entry of this sink."""
        # If the entry has gone with a leader that had not committed it, this comes in its place.
        return self._log.append(self._producer, sequence, [self._marker(MarkerKind.LOOK)], (0,)).index

    def _near(self, index: int, first: int) -> tuple[int, SinkMarker] | None:
        """The marker of this sink at C{index}, or the next one in front of it; None: it has expired."""
        end, step = index + 1, 1
        while end > first:
            begin = max(end - step, first)
            for at, marker in reversed(self._log.markers(begin, end)):
                if marker.sink == self._sink:
                    return at, marker
            end, step = begin, min(2 * step, _STEP_MAX)
        return None

    def _from_marker(
        self, found: tuple[int, SinkMarker] | None, index: int, sequence: int, first: int
    ) -> _Standing:
        """@param index: of the last entry of the sink; C{found}: the marker there, or in front of it."""
        if found is None:
            return self._expired(sequence)
        at, marker = found
        if marker.batch > self._batch:
            self._comes_late(at, marker)
        if marker.batch < self._batch:
            return _Standing(sequence=sequence)
        if marker.kind is MarkerKind.DONE:
            return _Standing(sequence=sequence, since=at, end=marker)
        return self._interrupted(at, marker, index, sequence, first)

    def _interrupted(
        self, at: int, marker: SinkMarker, index: int, sequence: int, first: int
    ) -> _Standing:
        """The rows of a batch that has pieces, the last one at C{at}."""
        since, end = at, index + 1
        held: Counter[int] = Counter()
        while True:
            held.update(map(digest_of, self._log.rows_behind(at, marker.count, end)))
            if not marker.since:
                return _Standing(sequence=sequence, since=since, held=held)
            end, at = at, marker.since
            if at < first:
                return self._expired(sequence)
            found = self._near(at, at)
            if found is None:
                raise SinkError(f"{self._name}: its marker at index {end} names one at {at}, where none is")
            marker = found[1]

    def _expired(self, sequence: int) -> _Standing:
        self._object_to_expiry()
        return _Standing(sequence=sequence)

    # -- refusals -------------------------------------------------------------------------------

    def _comes_late(self, index: int, marker: SinkMarker) -> None:
        raise SinkError(
            f"{self._name} comes after batch {marker.batch}, which is in the log at index {index}: "
            "sinkId belongs to another query, or the checkpoint is older than the log. Take another "
            "sinkId for another query"
        )

    def _compare(self, end: SinkMarker, index: int) -> None:
        if (end.count, end.digest) == (self._rows.count, f"{self._rows.digest:016x}"):
            return
        self._object(
            f"{self._name} is in the log with {end.count} rows (digest {end.digest}), up to index {index}, "
            f"and now has {self._rows.count} (digest {self._rows.digest:016x}): sinkId belongs to another "
            "query, or the query gives other rows when a batch is run again",
            "the rows that are in the log stay"
        )

    def _object_to_expiry(self) -> None:
        self._object(
            f"{self._name}: the end of the batch before it has expired, so it is not known whether rows of "
            "this one have expired with it", "the rows that are not in the log are appended"
        )

    def _object_to_forgetting(self) -> None:
        if not self._batch:
            return  # Most often it is a new sink.
        self._object(
            f"{self._name}: the group does not know the sink, or has forgotten it (producers_expire_hours), "
            "so it is not known whether an earlier run of this batch has appended rows. Look for them: "
            "dledger tail --control shows the markers of the sink", "all rows of the batch are appended"
        )

    def _object(self, what: str, otherwise: str) -> None:
        if self._is_strict:
            raise SinkError(f"{what}. With option failOnDataLoss=false {otherwise}")
        skipped(f"{what}; {otherwise}")

    # -- appending ------------------------------------------------------------------------------

    def _missing(self, held: Counter[int], index: int) -> Iterator[bytes]:
        """The rows that the log does not have."""
        if not held:
            return self._rows.all()
        wanted = Counter(map(digest_of, self._rows.all()))
        foreign = (held - wanted).total()
        if foreign:
            self._object(
                f"{self._name}: {foreign} rows that an earlier run has appended, its last marker at index "
                f"{index}, are not in the batch any more: the query gives other rows when a batch is run "
                "again", "they stay, and the missing ones follow"
            )
        return self._without(held)

    def _without(self, held: Counter[int]) -> Iterator[bytes]:
        for row in self._rows.all():
            digest = digest_of(row)
            if held[digest] > 0:
                held[digest] -= 1
            else:
                yield row

    def _frames(self, rows: Iterator[bytes]) -> Iterator[list[bytes]]:
        piece: list[bytes] = []
        size = 0
        for row in rows:
            if piece and (size + len(row) > self._frame_bytes or len(piece) >= _FRAME_ROWS_MAX):
                yield piece
                piece, size = [], 0
            piece.append(row)
            size += len(row)
        yield piece  # empty, if no row is missing

    def _append(
        self, sequence: int, bodies: Sequence[bytes], hidden: tuple[int, ...], *, is_first: bool
    ) -> int:
        """Append bodies whose first one is a marker of this run. @return: index of that one."""
        try:
            placed = self._log.append(self._producer, sequence, bodies, hidden)
        except OutOfStepError as error:
            if is_first:
                raise
            if error.is_expired:
                raise self._taken_over("long ago") from None
            raise SinkError(f"{self._name}: the log lacks entries that were acknowledged: {error}") from None
        if placed.is_other:
            if is_first:
                raise _Disturbed(f"another run of the sink has begun the batch at index {placed.index}")
            raise self._taken_over(f"at index {placed.index}")
        if placed.count < len(bodies):
            raise _Disturbed(f"a leader died when it had {placed.count} of {len(bodies)} entries")
        return placed.index

    def _taken_over(self, where: str) -> TakenOverError:
        return TakenOverError(
            f"{self._name}: another run of the sink has begun {where}: two drivers write with the same "
            "sinkId. This one ends"
        )


def _with_last(pieces: Iterable[list[bytes]]) -> Iterator[tuple[list[bytes], bool]]:
    """Each piece, and whether it is the last one."""
    held: list[list[bytes]] = []
    for piece in pieces:
        if held:
            yield held.pop(), False
        held.append(piece)
    yield from ((piece, True) for piece in held)
