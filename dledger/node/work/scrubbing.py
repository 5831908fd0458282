# -*- test-case-name: tests.node.test_scrubbing -*-
"""
When a member scrubs its store, see L{dledger.storage.store.scrub}: small steps at a bounded rate, and a pause
after each pass. Damage is a hole of the store from then on, which the core reports and repairs.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from twisted.logger import Logger

from dledger.node.reporting.status import Counters
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig

#: Bytes of one step: short enough for a turn, also on a slow disk.
STEP_BYTES = 128 * 1024
#: Seconds between two log lines about a file that cannot be read.
TROUBLE_S = 60.0


class Scrubbing:
    """
    @ivar next_s: time of the next step, on the clock of C{seconds}; infinity: never.
    """

    def __init__(
        self, config: DLedgerConfig, store: FileStore, seconds: Callable[[], float], counters: Counters,
        log: Logger,
    ) -> None:
        """@param log: of the member."""
        self._self_id = config.self_id
        self._store = store
        self._seconds = seconds
        self._counters = counters
        self._log = log
        self._found = 0
        self._trouble_s = float("-inf")
        # A member that is started often would read the first segments again and again, and never the last.
        store.scrub_from(random.Random(f"{config.self_id} {seconds()}").random())
        self._pace(config)
        self.next_s = seconds() + self._pause_s if self._rate else float("inf")

    def _pace(self, config: DLedgerConfig) -> None:
        self._rate = config.scrub_bytes_per_s
        self._pause_s = config.scrub_pause_ms / 1000

    def reread(self, config: DLedgerConfig) -> None:
        """Another rate or pause from now on."""
        before = self._rate, self._pause_s
        self._pace(config)
        if before != (self._rate, self._pause_s):
            self.next_s = self._seconds() + min(self._pause_s, 1.0) if self._rate else float("inf")

    def step(self) -> None:
        """
        Check the next bytes.

        @raise StoreError: the store is broken.
        """
        done = self._store.scrub(min(STEP_BYTES, self._rate))
        now_s = self._seconds()
        self.next_s = now_s + done.checked_bytes / self._rate
        self._counters.scrubbed_bytes += done.checked_bytes
        self._found += done.damaged + done.mended
        if done.mended:
            self._log.warn(
                "{mended} damaged index units or blanks in closed segments were written again",
                mended=done.mended, self_id=self._self_id,
            )
        if done.trouble:
            self._found += 1
            if now_s - self._trouble_s >= TROUBLE_S:
                self._trouble_s = now_s
                self._log.error("a part of a closed segment cannot be read: {trouble}", trouble=done.trouble,
                                self_id=self._self_id)
        if done.is_end:
            self._counters.scrub_passes += 1
            self.next_s = now_s + self._pause_s
            if self._found:
                self._log.warn("the scrub of the closed segments has found damage at {found} places",
                               found=self._found, self_id=self._self_id)
            self._found = 0
