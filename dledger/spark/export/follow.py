# -*- test-case-name: tests.spark.test_export_follow -*-
"""
An export that never ends: look at the log, export its new entries, say when to look again; and now and then
maintain its tables.

Rule 1: if a log cannot be read for a while (its member is restarted, the network is down), the export tries
again after ever longer waits; a log that could never be read is an error at once, and so are lost and damaged
entries.
Rule 2: between the maintenance of two tables there is a turn, so that commits do not wait for all of them.
Maintenance that fails is tried again an hour later.

Knows nothing of clocks, threads and signals.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from dledger.spark.export.exporter import Exporter
from dledger.spark.export.files import ExportError
from dledger.spark.export.table_target import ExportTable
from dledger.spark.formats.log import DamageError, DataLossError, ReadError

#: Longest time between two attempts, unless the interval is longer.
RETRY_MS_MAX = 30_000
#: Between two times of maintenance; every C{EXPIRE_EVERY}th also forgets old versions.
MAINTAIN_MS = 3_600_000
EXPIRE_EVERY = 24


class Follower:
    """
    @ivar on_trouble: called with the error, and the milliseconds until the next attempt.
    @ivar on_maintained: called with what was done to a table.
    """

    def __init__(
        self, exporter: Exporter, *, interval_ms: int,
        maintain: Callable[[ExportTable, bool], str] | None = None,
    ) -> None:
        """
        @param interval_ms: between two looks at the log without an error; at least 1.
        @param maintain: called with a table, and whether to forget old versions, too; raises L{ExportError}
            if it cannot be done now.
        """
        assert interval_ms > 0
        self.on_trouble: Callable[[Exception, int], None] = lambda error, wait_ms: None
        self.on_maintained: Callable[[str], None] = lambda said: None
        self._exporter = exporter
        self._interval_ms = interval_ms
        self._maintain = maintain
        self._maintained_ms: int | None = None
        self._rounds = 0
        self._due: list[ExportTable] = []
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
        return self._interval_ms if self._maintain is None else self._maintained(self._maintain, now_ms)

    def _maintained(self, maintain: Callable[[ExportTable, bool], str], now_ms: int) -> int:
        """One table, if it is time. @return: milliseconds until the next turn."""
        if self._maintained_ms is None:
            self._maintained_ms = now_ms
        if not self._due and now_ms - self._maintained_ms >= MAINTAIN_MS:
            self._maintained_ms = now_ms
            self._rounds += 1
            self._due = self._exporter.tables()
        if self._due and not self._exporter.should_stop():
            table = self._due.pop()
            try:
                said = maintain(table, self._rounds % EXPIRE_EVERY == 1)
                if said:
                    self.on_maintained(said)
            except ExportError as error:
                self.on_trouble(error, MAINTAIN_MS)
        return 1 if self._due else self._interval_ms

    def end(self) -> None:
        """
        Make the rows visible that were read. If the log cannot be read now, the next run reads them again.

        @raise ExportError, OSError: as L{Exporter.step}.
        """
        with contextlib.suppress(ReadError):
            self._exporter.finish()
