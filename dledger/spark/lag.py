# -*- test-case-name: tests.spark.test_lag -*-
"""
How far a streaming query is behind the end of each group that it reads.

Spark 4.3 takes no metrics from a Python source (C{tests.spark.test_upstream}), but the progress of a query
has the offset where the last batch ended, and the end of the log. Both carry a proof, which names
positions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from dledger.spark.formats.proof import PROOF_KEY
from protocols.wire.fastjson import JsonObject, as_int, as_object


class GroupLag(NamedTuple):
    """
    What a query has still to read of one group, as of its last progress.

    C{None} is a number that the offsets do not say, which is not the same as 0.

    @ivar entries: committed, and not read; None in the commit log of a broker, whose offsets are bytes, and
        if neither offset is after a readable record.
    @ivar bytes: of the log, from the end of the last record that was read to the end of the last committed
        one, with the blanks at the ends of files; None after a record that was not readable, and
        after an offset without a proof.
    """

    group: str
    entries: int | None
    bytes: int | None


def lag_of(progress: Mapping[str, object] | None) -> list[GroupLag]:
    """
    The lag of each source of this format, in the order of the query's sources.

    @param progress: C{query.lastProgress}, which is None at first, or the C{progress} of an event of a
        listener.
    @return: without sources of other formats, and without those that have read no batch yet.
    """
    found: list[GroupLag] = []
    # (Spark's own types, which have no types.)
    sources = cast("Iterable[Mapping[str, object]]", progress["sources"] if progress else ())
    for source in sources:
        ended, latest = _decoded(source.get("endOffset")), _decoded(source.get("latestOffset"))
        # Only this format has proofs: other sources have offsets of other shapes.
        found += [_lag(name, ended, latest) for name in ended
                  if PROOF_KEY + name in latest and name in latest]
    return found


def _decoded(offset: object) -> JsonObject:
    """An offset of a progress, which is JSON; empty if there is none."""
    try:
        found = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:  # other sources have offsets in other forms
        return {}
    return found if isinstance(found, dict) else {}


def _lag(group: str, ended: JsonObject, latest: JsonObject) -> GroupLag:
    begin, end = as_int(ended[group]), as_int(latest[group])
    before, proof = as_object(ended.get(PROOF_KEY + group, {})), as_object(latest[PROOF_KEY + group])
    # A log may be shorter than what was read: failOnDataLoss=false waits until it is not.
    ahead = max(end - begin, 0)
    if "bytes" in proof or "bytes" in before:
        return GroupLag(group, entries=None, bytes=ahead)
    if not ahead:
        return GroupLag(group, entries=0, bytes=0)
    if "pos" not in proof and "pos" not in before:
        # An offset may be an entry or a byte.
        return GroupLag(group, entries=None, bytes=None)
    first, last = _position(begin, before), _position(end, proof)
    return GroupLag(group, entries=ahead, bytes=None if first is None or last is None else last - first)


def _position(offset: int, proof: JsonObject) -> int | None:
    """Bytes of a ledger before an offset; None: its proof does not say."""
    if not offset:
        return 0
    if "pos" not in proof:
        return None
    return as_int(proof["pos"]) + as_int(proof["size"])


class LagListener(StreamingQueryListener):
    """
    Reports the lag of every query of a session after each progress:
    C{spark.streams.addListener(LagListener(notify))}.

    Spark calls listeners in a thread of their own, and drops their errors.
    """

    def __init__(self, notify: Callable[[str, list[GroupLag]], object]) -> None:
        """@param notify: called with the query's name, or its id, and L{lag_of} its progress."""
        self._notify = notify

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch has ended, or a while without a batch."""
        progress = event.progress
        found = lag_of(progress)
        if found:
            self._notify(progress["name"] or str(progress["id"]), found)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """The last progress still holds."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last progress was the last word."""
