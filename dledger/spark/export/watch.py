# -*- test-case-name: tests.spark.test_export_watch -*-
"""
How far an export that follows a log is: its lag, its last commit, its troubles, and whether that is in order.

The age of the oldest committed entry that is not exported is by the log's own time, if the export reads a
column with it; else from when the export first saw an end of the log after it, which is later than the truth
for entries that were there before the export began.

One thread writes, others ask. Knows nothing of clocks.
"""

from __future__ import annotations

import threading
from collections import deque

import attrs

from dledger.values.exports import ExportProgress, ExportStatus

#: Ends of the log that are remembered; further ones are looked at together.
_SEEN_MAX = 1_000


class ExportWatch:
    """See the module. Times are monotonic unless their description says otherwise."""

    def __init__(self, *, max_lag_ms: int) -> None:
        """@param max_lag_ms: what lasts longer is not in order; 0: any lag is, and a minute of trouble."""
        self._max_lag_ms = max_lag_ms
        self._lock = threading.Lock()
        self._progress: ExportProgress | None = None
        self._next: int | None = None
        #: Ends of the log after what is exported, and when each was first seen.
        self._seen: deque[tuple[int, int]] = deque()
        self._looked_ms = self._failing_ms = -1
        self._status = ExportStatus()

    def read(self, progress: ExportProgress, now_ms: int) -> None:
        """The log was looked at."""
        with self._lock:
            self._progress = progress
            self._next = progress.visible
            self._looked_ms = now_ms
            self._failing_ms = -1
            last = self._seen[-1][0] if self._seen else progress.visible
            if last is not None and progress.end > last:
                if len(self._seen) >= _SEEN_MAX:
                    self._seen.pop()  # its entries count as seen with those before
                    self._seen.append((progress.end, self._seen.pop()[1]))
                else:
                    self._seen.append((progress.end, now_ms))
            self._drop()

    def _drop(self) -> None:
        while self._seen and self._next is not None and self._seen[0][0] <= self._next:
            self._seen.popleft()

    def committed(self, last: int, rows: int, version: str, wall_s: float) -> None:
        """A part is visible. @param last: its last offset. @param wall_s: seconds since 1970."""
        with self._lock:
            self._next = last + 1
            if self._progress is not None:
                self._progress = attrs.evolve(self._progress, oldest_ms=None)
            self._status = attrs.evolve(
                self._status, commits=self._status.commits + 1, rows=self._status.rows + rows,
                last_commit_s=wall_s, last_offset=last, version=version,
            )
            self._drop()

    def failed(self, error: Exception, now_ms: int, *, stops: bool = True) -> None:
        """Something went wrong. @param stops: nothing is exported until the next L{read}."""
        with self._lock:
            self._status = attrs.evolve(self._status, errors=self._status.errors + 1, error=str(error))
            if stops and self._failing_ms < 0:
                self._failing_ms = now_ms

    def status(self, now_ms: int, wall_s: float) -> ExportStatus:
        """As of now. @param wall_s: seconds since 1970."""
        with self._lock:
            progress, after = self._progress, self._next
            status = attrs.evolve(
                self._status, next=after,
                failing_s=max(now_ms - self._failing_ms, 0) / 1000 if self._failing_ms >= 0 else 0.0,
                silent_s=max(now_ms - self._looked_ms, 0) / 1000 if self._looked_ms >= 0 else -1.0,
            )
            if progress is not None and after is not None:
                is_behind = progress.end > after
                lag_s = 0.0
                if is_behind and progress.oldest_ms is not None:
                    lag_s = max(wall_s - progress.oldest_ms / 1000, 0.0)
                elif is_behind and self._seen:
                    lag_s = max(now_ms - self._seen[0][1], 0) / 1000
                status = attrs.evolve(
                    status, end=progress.end, lag_s=round(lag_s, 3),
                    lag_entries=None if progress.are_bytes else max(progress.end - after, 0),
                    lag_bytes=progress.lag_bytes if is_behind else 0,
                )
        return attrs.evolve(status, problems=tuple(self._problems(status)))

    def _problems(self, status: ExportStatus) -> list[str]:
        most_s = (self._max_lag_ms or 60_000) / 1000
        if status.silent_s < 0:
            return ["the log has not been read yet"]
        found = []
        if self._max_lag_ms and status.lag_s > most_s:
            found.append(f"the oldest entry that is not exported is {status.lag_s:.0f} s old, and {most_s:g} "
                         "s are allowed (--max-lag)")
        if status.failing_s > most_s:
            found.append(f"for {status.failing_s:.0f} s nothing can be exported: {status.error}")
        elif status.silent_s > most_s:
            found.append(f"for {status.silent_s:.0f} s the export has not looked at the log")
        return found
