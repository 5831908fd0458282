# -*- test-case-name: tests.node.test_flush -*-
"""
Flushes of a member's ledger, as the core asks for them: L{dledger.base.process.group_flush} runs them, their
outcomes are fed back.

The core asks for one at a time, see L{dledger.core.replication.flusher}; a failed one ends the member.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.base.process.group_flush import Flushable, GroupFlush
from dledger.base.process.threads import RunInThread
from dledger.core.state.effects import FlushLedger, Report
from dledger.core.state.inputs import EntriesFlushed, Input, StoreFailed
from dledger.node.reporting.status import Counters
from dledger.storage.store.store_flush import LedgerFlush
from dledger.values.errors import StoreError

#: An fsync of at least this many seconds is reported.
SLOW_FSYNC_S = 0.5


class LedgerFlusher:
    """Turns C{FlushLedger} into C{EntriesFlushed} or C{StoreFailed}."""

    def __init__(
        self,
        *,
        store: Flushable[LedgerFlush],
        run_in_thread: RunInThread,
        feed: Callable[[Input], None],
        seconds: Callable[[], float],
        counters: Counters,
        report: Callable[[Report], None],
    ) -> None:
        """@param report: is informed about slow fsyncs."""
        self._group = GroupFlush(store, run_in_thread)
        self._feed = feed
        self._seconds = seconds
        self._counters = counters
        self._report = report

    def start(self, effect: FlushLedger) -> None:
        """Sync entries up to C{end_index}; then C{EntriesFlushed} or C{StoreFailed} is fed."""
        assert not self._group.is_running, "one flush at a time"
        self._group.flush().addCallback(self._done, effect, self._seconds()).addErrback(self._failed)

    def _done(self, job: LedgerFlush | None, effect: FlushLedger, began_s: float) -> None:
        end_index = effect.end_index
        if job is not None:
            took_s = self._seconds() - began_s
            self._counters.fsync.observe(took_s)
            if took_s >= SLOW_FSYNC_S:
                self._report(Report(event="slow-fsync", facts={"seconds": round(took_s, 3)}))
            end_index = job.end_index  # a truncation in the meantime has lowered it
        self._feed(EntriesFlushed(flush_id=effect.flush_id, end_index=end_index))

    def _failed(self, failure: Failure) -> None:
        self._counters.flush_failures += 1
        error = failure.value
        reason = error.facts["reason"] if isinstance(error, StoreError) else failure.getErrorMessage()
        self._feed(StoreFailed(reason=str(reason)))

    def idle(self) -> Deferred[None]:
        """@return: fires when no flush is running."""
        return self._group.idle()
