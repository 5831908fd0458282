# -*- test-case-name: tests.node.test_aging -*-
"""
Lets time pass for the producers that a group remembers: an age entry an hour, by the leader, and only while
there is a producer that could be forgotten.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred

from dledger.node.requests.appends import AppendResult
from dledger.node.requests.group_clock import GroupClock
from dledger.storage.store.file_store import FileStore
from protocols.wire.ledger.own.age_entries import AGE_STEP_MS, encode_age_entry
from protocols.wire.ledger.own.own_entries import AGE_CHANNEL

#: Seconds before an age entry that was refused is tried again.
AGAIN_S = 10.0


class ProducerAging:
    """Invariant: one age entry of this member is under way at most."""

    def __init__(
        self, ledger: FileStore, limit_ms: int, *, is_leader: Callable[[], bool],
        clock: GroupClock, append: Callable[[int, bytes], Deferred[AppendResult]],
    ) -> None:
        """@param limit_ms: producers that are quiet for longer are forgotten; 0: none is."""
        self._ledger = ledger
        self._limit_ms = limit_ms
        self._is_leader = is_leader
        self._clock = clock
        self._append = append
        self._is_waiting = False
        self._next_s = 0.0

    def sweep(self, now_s: float) -> None:
        """Write an age entry, if one is due. @param now_s: of the monotonic clock."""
        group = self._ledger.group
        if not self._limit_ms or self._is_waiting or now_s < self._next_s or group is None:
            return
        if not group.state.has_producers or not self._is_leader():
            return
        clock_ms = self._clock.now_ms()
        if clock_ms < 0 or (0 <= group.clock_ms and clock_ms - group.clock_ms < AGE_STEP_MS):
            return
        self._is_waiting = True
        self._next_s = now_s + AGAIN_S
        self._append(AGE_CHANNEL, encode_age_entry(clock_ms, self._limit_ms)).addBoth(self._ended)

    def _ended(self, _: object) -> None:
        self._is_waiting = False  # (What was refused is due again.)
