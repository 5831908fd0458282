# -*- test-case-name: tests.spark.test_export_follow -*-
"""
An export that never ends: look at the log, export its new entries, say when to look again.

Rule: if a log cannot be read for a while (its member is restarted, the network is down), the export tries
again after ever longer waits; a log that could never be read is an error at once, and so are lost and damaged
entries.

Knows nothing of clocks, threads and signals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from dledger.spark.export.exporter import Exporter
from dledger.spark.formats.log import DamageError, DataLossError, ReadError

#: Longest time between two attempts, unless the interval is longer.
RETRY_MS_MAX = 30_000


class Follower:
    """
    @ivar on_trouble: called with the error, and the milliseconds until the next attempt.
    """

    def __init__(self, exporter: Exporter, *, interval_ms: int) -> None:
        """@param interval_ms: between two looks at the log without an error; at least 1."""
        assert interval_ms > 0
        self.on_trouble: Callable[[ReadError, int], None] = lambda error, wait_ms: None
        self._exporter = exporter
        self._interval_ms = interval_ms
        self._failures = 0
        self._has_read = False

    def turn(self, now_ms: int) -> int:
        """
        Export the new entries; the time it takes grows with their number.

        @param now_ms: monotonic.
        @return: milliseconds until the next turn.
        @raise ReadError: see the rule of this module.
        @raise ExportError: as L{Exporter.step}.
        @raise OSError: a file cannot be written.
        """
        try:
            self._exporter.step(now_ms, is_last=False)
        except (DataLossError, DamageError):
            raise
        except ReadError as error:
            if not self._has_read:
                raise
            self._failures += 1
            wait_ms = min(self._interval_ms << min(self._failures, 20), max(RETRY_MS_MAX, self._interval_ms))
            self.on_trouble(error, wait_ms)
            return wait_ms
        self._has_read = True
        self._failures = 0
        return self._interval_ms

    def end(self) -> None:
        """
        Make the rows visible that were read. If the log cannot be read now, the next run reads them again.

        @raise ExportError, OSError: as L{Exporter.step}.
        """
        with contextlib.suppress(ReadError):
            self._exporter.finish()
