# -*- test-case-name: tests.spark.test_sink_batch,tests.spark.test_sink_crashes -*-
"""
Appends the rows of one batch, each once, whatever happened to earlier attempts.

    BEGIN ... ROWS row row row  ROWS row row  END        entries of others may lie between the pieces

Rule 1: an attempt begins with a BEGIN marker of a new run, and only then reads: what is in front of that
marker does not change any more. It counts the rows of the batch that are there, of any run, and appends the
others.
Rule 2: rows travel in one request behind their ROWS marker, and a member writes a request as one piece: the
entries behind the marker, as far as they have its term, are those rows. One request is under way at a time.
Rule 3: if a request has no known outcome, or another run has begun the batch, a request may still be under
way: the attempt waits C{settle_s}, and begins again with rule 1.
Rule 4: behind every answer the writer looks at the entries that others have put in between. A BEGIN of
another run takes the batch over: this run ends, and appends nothing more.

Rows are compared as a multiset, by a digest of each: Spark may run the batch again in another order.

Knows nothing of members, sockets and Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Protocol

import attrs

from dledger.spark.basics.log import skipped
from dledger.spark.sink.markers import MarkerKind, SinkMarker, encode_marker

#: Most rows in one request.
_FRAME_ROWS_MAX = 4096
#: The search for markers goes back in steps, in entries: the first, and the longest.
_STEP, _STEP_MAX = 1024, 1 << 16
_DIGEST_MAX = 1 << 64


class SinkError(Exception):
    """The batch cannot be appended; the message says what is in the log, and what to do."""


class TakenOverError(SinkError):
    """Another run of the same sink appends the batch."""


class NoOutcomeError(Exception):
    """What was sent may be in the log, now or later."""


class _Disturbed(Exception):
    """Rows of the batch have come that were counted as missing."""


def digest_of(row: bytes) -> int:
    """64 bits that tell rows apart."""
    return int.from_bytes(blake2b(row, digest_size=8).digest())


def digest_of_all(rows: Iterable[bytes]) -> int:
    """64 bits that tell batches apart, whatever the order of their rows."""
    return sum(map(digest_of, rows)) % _DIGEST_MAX


class SinkLog(Protocol):
    """The group's log, as far as a batch needs it."""

    def append(self, bodies: Sequence[bytes]) -> int:
        """
        Append C{bodies} as one piece; returns the index of the first one, once all are committed.

        @raise NoOutcomeError: they may be in the log, now or later.
        @raise SinkError: they are certainly not in the log, and will not be taken.
        """

    def first_index(self) -> int:
        """The first entry that is still there. @raise ReadError: it cannot be found out."""

    def markers(self, begin: int, end: int) -> list[tuple[int, SinkMarker]]:
        """
        Markers from C{begin} to C{end} (exclusive) with their indexes.

        @raise ReadError: the entries cannot be read.
        """

    def rows_behind(self, index: int, count: int, end: int) -> list[bytes]:
        """
        The bodies of at most C{count} entries behind C{index}, in front of C{end}, as far as they have the
        same term.

        @raise ReadError: they cannot be read.
        """


@attrs.frozen(kw_only=True)
class BatchRows:
    """
    The rows of a batch.

    @ivar count, digest: of all rows; the latter is the sum of L{digest_of}.
    @ivar all: each row in order, each time it is called.
    """

    count: int
    digest: int
    all: Callable[[], Iterator[bytes]]


@attrs.frozen(kw_only=True)
class BatchOutcome:
    """
    A batch is in the log.

    @ivar appended: rows that this call has appended; the others were there.
    @ivar doubled: rows that are there twice, because a request came later than C{settle_s}.
    @ivar late: likewise, rows of earlier batches that came behind the end of theirs.
    """

    appended: int
    doubled: int = 0
    late: int = 0


@attrs.define(kw_only=True)
class _Found:
    """
    The state of a batch in the log, in front of a BEGIN marker.

    @ivar since: no marker of the batch is in front of this index.
    @ivar is_bounded: false: earlier entries have expired, and may have been markers of the batch.
    @ivar last_foreign: index of the last marker of the batch by a run of another process; -1: none.
    """

    pieces: list[tuple[int, SinkMarker]]
    end: SinkMarker | None
    since: int
    is_bounded: bool
    last_foreign: int = -1


class BatchAppend:
    """
    One batch of one sink, for one call of L{run}.

    @ivar _runs: the runs of this call, the present one last.
    @ivar _quiet_from: runs of other processes whose markers are in front of this index were waited for.
    """

    def __init__(
        self,
        log: SinkLog,
        rows: BatchRows,
        *,
        sink: str,
        batch: int,
        new_run: Callable[[], str],
        sleep: Callable[[float], None],
        settle_s: float,
        frame_bytes: int,
        search_from: int = 0,
        is_new: bool = False,
        attempts_max: int = 20,
        is_strict: bool = True,
    ) -> None:
        """
        @param new_run: gives another 16 hexadecimal digits each time.
        @param frame_bytes: of rows in one request, but at least one row.
        @param search_from: no marker of the sink is in front of this index.
        @param is_new: nobody has used this name of a sink before, so nothing is searched.
        @param attempts_max: of attempts whose requests have no known outcome.
        @param is_strict: false: where the proof is missing, warn and go on.
        """
        self._log, self._rows = log, rows
        self._sink, self._batch = sink, batch
        self._new_run, self._sleep = new_run, sleep
        self._settle_s, self._frame_bytes = settle_s, frame_bytes
        self._search_from, self._attempts_max = search_from, attempts_max
        self._is_new, self._is_strict = is_new, is_strict
        self._runs: list[str] = []
        self._quiet_from = -1
        self._appended = self._late_rows = 0

    def run(self) -> BatchOutcome:
        """
        Append what is missing.

        @raise SinkError: it could not be appended, or not all of it; the next call goes on.
        @raise ReadError: the log cannot be read.
        """
        if not self._rows.count:
            return BatchOutcome(appended=0)  # a batch without rows leaves no trace
        problem: Exception = _Disturbed("another run of the sink has begun the batch")
        for attempt in range(self._attempts_max):
            if attempt:
                self._sleep(self._settle_s)
            try:
                outcome = self._attempt()
            except (NoOutcomeError, _Disturbed) as error:
                problem = error
                continue
            if outcome is not None:
                return outcome
        raise SinkError(
            f"{self._name}: gave up after {self._attempts_max} attempts, the last one: {problem}. Some rows "
            "may be in the log; the batch is continued when it is run again"
        )

    @property
    def _name(self) -> str:
        return f"batch {self._batch} of sink {self._sink!r}"

    def _marker(self, kind: MarkerKind, *, count: int = 0, since: int = 0, digest: int = 0) -> bytes:
        return encode_marker(SinkMarker(
            kind=kind, sink=self._sink, batch=self._batch, run=self._runs[-1], count=count, since=since,
            digest=f"{digest:016x}",
        ))

    def _attempt(self) -> BatchOutcome | None:
        """One attempt; None: another process may have a request under way, so another one must follow."""
        self._runs.append(self._new_run())
        self._late_rows = 0
        begin = self._log.append([self._marker(MarkerKind.BEGIN)])
        if self._is_new:
            self._search_from, self._is_new = begin, False
        found = self._search(begin)
        if found.end is not None:
            self._compare(found.end)
            return BatchOutcome(appended=self._appended, late=self._late_rows)
        if found.last_foreign > self._quiet_from:
            self._quiet_from = begin
            return None
        self._check_bounded(found)
        missing, surplus = self._missing(found, begin)
        index = begin + 1
        for piece in self._frames(missing):
            marker = self._marker(MarkerKind.ROWS, count=len(piece), since=found.since)
            at = self._log.append([marker, *piece])
            self._appended += len(piece)
            self._look_between(index, at)
            index = at + 1 + len(piece)
        digest = self._rows.digest
        at = self._log.append([self._marker(
            MarkerKind.END, count=self._rows.count, since=index, digest=digest
        )])
        surplus += self._late(index, at)
        return BatchOutcome(appended=self._appended, doubled=surplus, late=self._late_rows)

    # -- reading --------------------------------------------------------------------------------

    def _search(self, begin: int) -> _Found:
        """The state of the batch in front of C{begin}; its pieces come newest first."""
        first = max(self._log.first_index(), 0)
        stop = max(first, self._search_from)
        is_bounded = first <= self._search_from
        found = _Found(pieces=[], end=None, since=begin, is_bounded=is_bounded)
        is_ended = False  # what is in front of an END was looked at by the run that appended it
        position, step = begin, _STEP
        while position > stop:
            start = max(stop, position - step)
            for index, marker in reversed(self._log.markers(start, position)):
                if marker.sink != self._sink:
                    continue
                self._note(found, index, marker)
                is_ended |= marker.kind is MarkerKind.END
                if not is_ended:
                    self._count_late(index, marker, begin)
                if (marker.kind is MarkerKind.ROWS and marker.batch == self._batch) or (
                    marker.kind is MarkerKind.END and marker.batch < self._batch
                ):
                    if marker.since >= first:
                        found.is_bounded = True
                        stop = max(stop, marker.since)
            position, step = start, min(2 * step, _STEP_MAX)
        return found

    def _note(self, found: _Found, index: int, marker: SinkMarker) -> None:
        if marker.batch > self._batch:
            raise SinkError(
                f"{self._name} comes behind batch {marker.batch}, which is in the log at index {index}: "
                "sinkId belongs to another query, or the checkpoint is older than the log. Take another "
                "sinkId for another query"
            )
        if marker.batch < self._batch:
            return
        found.since = min(found.since, index)
        if marker.run not in self._runs:
            found.last_foreign = max(found.last_foreign, index)
        if marker.kind is MarkerKind.ROWS:
            found.pieces.append((index, marker))
        elif marker.kind is MarkerKind.END:
            found.end = marker

    def _compare(self, end: SinkMarker) -> None:
        if (end.count, end.digest) == (self._rows.count, f"{self._rows.digest:016x}"):
            return
        self._object(
            f"{self._name} is in the log with {end.count} rows (digest {end.digest}), and now has "
            f"{self._rows.count} (digest {self._rows.digest:016x}): sinkId belongs to another query, or the "
            "query gives other rows when a batch is run again", "the rows that are in the log stay"
        )

    def _check_bounded(self, found: _Found) -> None:
        if found.is_bounded or (not self._batch and found.last_foreign < 0):
            return
        self._object(
            f"{self._name}: the end of the batch before it has expired, so it is not known whether rows of "
            "this one have", "the rows that are not in the log are appended"
        )

    def _object(self, what: str, otherwise: str) -> None:
        if self._is_strict:
            raise SinkError(f"{what}. With option failOnDataLoss=false {otherwise}")
        skipped(f"{what}; {otherwise}")

    def _missing(self, found: _Found, begin: int) -> tuple[Iterator[bytes], int]:
        """The rows that the log does not have, and how many it has twice."""
        held: Counter[int] = Counter()
        for index, marker in found.pieces:
            held.update(map(digest_of, self._log.rows_behind(index, marker.count, begin)))
        if not held:
            return self._rows.all(), 0
        wanted = Counter(map(digest_of, self._rows.all()))
        foreign = sum(count for digest, count in held.items() if digest not in wanted)
        if foreign:
            self._object(
                f"{self._name}: {foreign} rows that an earlier run has appended are not in the batch any "
                "more: the query gives other rows when a batch is run again",
                "they stay, and the missing ones follow"
            )
        surplus = sum((held - wanted).values()) - foreign
        return self._without(held), surplus

    def _without(self, held: Counter[int]) -> Iterator[bytes]:
        for row in self._rows.all():
            digest = digest_of(row)
            if held[digest] > 0:
                held[digest] -= 1
            else:
                yield row

    # -- appending ------------------------------------------------------------------------------

    def _frames(self, rows: Iterator[bytes]) -> Iterator[list[bytes]]:
        piece: list[bytes] = []
        size = 0
        for row in rows:
            if piece and (size + len(row) > self._frame_bytes or len(piece) >= _FRAME_ROWS_MAX):
                yield piece
                piece, size = [], 0
            piece.append(row)
            size += len(row)
        if piece:
            yield piece

    def _others(self, begin: int, end: int) -> Iterator[tuple[int, SinkMarker]]:
        """Markers of this sink that are not of the present run."""
        if begin < end:
            for index, marker in self._log.markers(begin, end):
                if marker.sink == self._sink and marker.run != self._runs[-1]:
                    yield index, marker

    def _look_between(self, begin: int, end: int) -> None:
        for index, marker in self._others(begin, end):
            if marker.kind is MarkerKind.BEGIN and marker.run not in self._runs:
                raise TakenOverError(
                    f"{self._name}: another run of the sink ({marker.run}, batch {marker.batch}) has begun: "
                    "two drivers write with the same sinkId. This one ends"
                )
            if marker.kind is MarkerKind.ROWS and marker.batch == self._batch:
                raise _Disturbed(f"rows of an earlier request came late, behind index {begin}")
            self._count_late(index, marker, end)

    def _late(self, begin: int, end: int) -> int:
        """Rows of the batch in front of its END marker that were not counted."""
        count = 0
        for index, marker in self._others(begin, end):
            self._count_late(index, marker, end)
            if marker.kind is MarkerKind.ROWS and marker.batch == self._batch:
                count += len(self._log.rows_behind(index, marker.count, end))
        return count

    def _count_late(self, index: int, marker: SinkMarker, end: int) -> None:
        if marker.kind is MarkerKind.ROWS and marker.batch < self._batch:
            self._late_rows += len(self._log.rows_behind(index, marker.count, end))
