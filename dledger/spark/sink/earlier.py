# -*- test-case-name: tests.spark.test_sink_earlier -*-
"""
Finds the batches of a sink that its group does not know as a producer: those of earlier versions,
which numbered nothing, and those of a producer that the group has forgotten.

    BEGIN ... ROWS row row row  ROWS row row  END        entries of others may lie between the pieces

Rule 1: the search is in front of a BEGIN that was appended for it: what is in front of that does not change
any more, and a driver of an earlier version that sees it after its own ends.
Rule 2: rows travelled in one request after their marker, and a member writes a request as one piece: the
entries after a ROWS or a PIECE, as far as they have its term, are those rows.
Rule 3: if the last marker of the batch is of another run, a request of that run may still be under way: the
caller waits, appends another BEGIN and searches again.

This reads bodies of others. It is needed once in the life of a sink: from then on the group knows it.
"""

from __future__ import annotations

import attrs

from dledger.spark.sink.markers import MarkerKind, SinkMarker
from dledger.spark.sink.sink_log import SinkLog

#: The search goes back in steps, in entries: the first, and the longest.
_STEP, STEP_MAX = 1024, 1 << 16
_PIECES = (MarkerKind.ROWS, MarkerKind.PIECE)
_ENDS = (MarkerKind.END, MarkerKind.DONE)


@attrs.define(kw_only=True)
class FoundBatch:
    """
    The state of a batch in the log, in front of an entry.

    @ivar pieces: markers with rows after them, the newest one first.
    @ivar end: the marker that says that all of it is there.
    @ivar later: the marker of a later batch, and its index.
    @ivar is_bounded: false: earlier entries have expired, and may have been markers of the batch.
    @ivar last_foreign: index of the last marker of the batch by a run of another process; -1: none.
    """

    is_bounded: bool
    pieces: list[tuple[int, SinkMarker]] = attrs.Factory(list)
    end: SinkMarker | None = None
    later: tuple[int, SinkMarker] | None = None
    last_foreign: int = -1


def find_batch(
    log: SinkLog, sink: str, batch: int, runs: list[str], *, begin: int, search_from: int
) -> FoundBatch:
    """
    The state of a batch in front of C{begin}.

    @param runs: of this process.
    @param search_from: no marker of the sink is in front of this index.
    @raise ReadError: the log cannot be read.
    """
    first = max(log.first_index(), 0)
    stop = max(first, search_from)
    found = FoundBatch(is_bounded=first <= search_from)
    position, step = begin, _STEP
    while position > stop and found.later is None:
        start = max(stop, position - step)
        for index, marker in reversed(log.markers(start, position)):
            if marker.sink != sink:
                continue
            if marker.batch > batch:
                found.later = (index, marker)
                break
            _note(found, index, marker, batch, runs)
            if marker.kind in _ENDS and marker.batch < batch:
                # No marker of this batch is in front of it, of an END: in front of what that says.
                since = index if marker.kind is MarkerKind.DONE else marker.since
            elif marker.kind is MarkerKind.ROWS and marker.batch == batch:
                since = marker.since
            else:
                continue
            if since >= first:
                found.is_bounded = True
                stop = max(stop, since)
        position, step = start, min(2 * step, STEP_MAX)
    return found


def _note(found: FoundBatch, index: int, marker: SinkMarker, batch: int, runs: list[str]) -> None:
    if marker.batch < batch:
        return
    if marker.run not in runs:
        found.last_foreign = max(found.last_foreign, index)
    if marker.kind in _PIECES:
        found.pieces.append((index, marker))
    elif marker.kind in _ENDS and found.end is None:
        found.end = marker
