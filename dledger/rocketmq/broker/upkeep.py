# -*- test-case-name: tests.broker.test_service -*-
"""
Periodic work on the files of a broker: deletes old files of the log, writes changed metadata.

Rule 1: at most one save of metadata is under way. A save that failed is repeated by a later tick.
Rule 2: a problem is logged when it begins and when it ends.

Source: DefaultCommitLogStore.cleanFilesPeriodically, BrokerController.initialize (4.9.8).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.threads import RunInThread
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.replication.service import HAService
from dledger.rocketmq.store.commit_log_store import CommitLogStore
from dledger.values.errors import StoreError


class MetadataSaver:
    """Writes metadata; L{Metadata.save} brings the changed tables to stable storage."""

    log = Logger()

    def __init__(self, metadata: Metadata, run_in_thread: RunInThread) -> None:
        self._metadata = metadata
        self._run_in_thread = run_in_thread
        self._under_way: Deferred[None] = succeed(None)
        self._is_saving = False
        self._is_closed = False
        self._problem = ""

    def save(self) -> None:
        """Begin to write the changed tables, unless a save is under way or L{close} was called."""
        if not self._is_saving and not self._is_closed:
            self._is_saving = True
            saved = self._metadata.save(self._run_in_thread)
            self._under_way = saved.addCallbacks(self._saved, self._not_saved)

    def close(self) -> Deferred[None]:
        """
        Begin no further save.

        @return: fires when the save under way has ended; never fails.
        """
        self._is_closed = True
        return self._under_way

    def _saved(self, _: None) -> None:
        self._is_saving = False
        for path, why in self._metadata.hints.news().items() if self._metadata.hints.fresh else ():
            self.log.warn("hint {path}: {reason}", path=path, reason=why)
        if self._problem:
            self._problem = ""
            self.log.info("metadata can be written again")

    def _not_saved(self, failure: Failure) -> None:
        self._is_saving = False
        problem = failure.getErrorMessage()
        if problem != self._problem:
            self._problem = problem
            self.log.failure("metadata cannot be written", failure)


class Maintenance:
    """Deletes old files of the log, except files with bytes that a connected slave lacks."""

    log = Logger()

    def __init__(
        self, store: CommitLogStore, ha: HAService, *, wall_s: Callable[[], float],
        failed: Callable[[str], None],
    ) -> None:
        """
        @param wall_s: seconds since 1970.
        @param failed: called with the reason when the broker cannot continue.
        """
        self._store = store
        self._ha = ha
        self._wall_s = wall_s
        self._failed = failed
        self._trouble = ""

    def keep(self, *, at_any_hour: bool = False) -> None:
        """
        Check the free disk space; delete the old files that may go. A slave whose replication has stopped
        deletes none: it may have the only copy.

        @param at_any_hour: not only in the hours of C{delete_when}.
        """
        if self._ha.slave is not None and self._ha.slave.is_stopped:
            return
        store, now_s = self._store, self._wall_s()
        acks = [one.ack_offset for one in self._ha.status().slaves if one.ack_offset >= 0]
        was_full = store.why_full
        hour = time.localtime(now_s).tm_hour
        if at_any_hour:
            hour = min(store.config.expiry_rules.delete_hours, default=hour)
        try:
            gone = store.maintenance(now_s, hour, keep_from=min([store.log.end_offset, *acks]))
        except StoreError as error:
            self._failed(f"house-keeping: {error}")
            return
        except OSError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self.log.error("house-keeping: {reason}; it is tried again", reason=self._trouble)
            return
        self._trouble = ""
        if gone:
            self.log.info("deleted {count} old files of the log; it begins at {offset} now",
                          count=len(gone), offset=store.log.begin_offset)
        if store.why_full != was_full:
            if store.why_full:
                self.log.warn("messages are refused: {reason}", reason=store.why_full)
            else:
                self.log.info("there is room on the disk again; messages are taken")
