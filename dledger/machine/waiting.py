# -*- test-case-name: tests.machine.test_runner -*-
"""
The requests that wait for the state machine of a member: commands for the results of their entries, queries
until the machine has come to an index.

Rule 1: each wait ends once: with the result, at its deadline, or when the machine stops.
Rule 2: the last results are kept for a while, whose ever they are (L{RECENT_BYTES}): a command that learns
the index of its entry only after that was applied still has its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
from twisted.internet.defer import Deferred

from dledger.base.waiters import ThresholdWaiters
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode

#: Bytes of results that are kept for commands that come late; each counts as L{RECENT_OVERHEAD} more.
RECENT_BYTES = 1024 * 1024
RECENT_OVERHEAD = 64


@attrs.frozen(kw_only=True)
class WaitBounds:
    """@ivar waits_max: queries that wait, at most. @ivar wait_ms: the time for each request."""

    waits_max: int
    wait_ms: int


class MachineWaits:
    """
    Invariant: a wait is in one of C{_results} and C{_waits} until it fires; C{_recent} is in the order of the
    entries, and C{_recent_bytes} is its size.
    """

    def __init__(self, bounds: WaitBounds, now_ms: Callable[[], int]) -> None:
        self._waits_max = waits_max = bounds.waits_max
        self._wait_ms = bounds.wait_ms
        self._now_ms = now_ms
        self._results: dict[int, tuple[Deferred[bytes], int]] = {}
        self._waits = ThresholdWaiters(capacity=waits_max)
        self._waiting: dict[int, Deferred[int]] = {}
        self._tokens = 0
        self._recent: dict[int, bytes] = {}
        self._recent_bytes = 0

    def result_of(self, index: int, applied_index: int) -> Deferred[bytes]:
        """See L{dledger.machine.answering.AnsweringMachine.result_of}."""
        waiter: Deferred[bytes] = Deferred()
        found = self._recent.get(index)
        if found is not None:
            waiter.callback(found)
        elif index <= applied_index:
            waiter.errback(unknown(f"the result of the entry {index} is not known any more"))
        else:
            self._results[index] = (waiter, self._now_ms() + self._wait_ms)
        return waiter

    def when_applied(self, index: int) -> Deferred[int]:
        """@return: fires with the applied index, which is C{index} or more."""
        waiter: Deferred[int] = Deferred()
        if len(self._waits) >= self._waits_max:
            waiter.errback(DLedgerError(
                ResponseCode.LEADER_PENDING_FULL, reason=f"{len(self._waits)} queries wait"
            ))
        else:
            self._tokens += 1
            self._waiting[self._tokens] = waiter
            self._waits.add(self._tokens, threshold=index, deadline_ms=self._now_ms() + self._wait_ms)
        return waiter

    def applied(self, results: Mapping[int, bytes], applied_index: int) -> None:
        """More entries are in the state. @param results: by their indexes, in order."""
        recent, waiting = self._recent, self._results
        for index, result in results.items():
            recent[index] = result
            self._recent_bytes += len(result) + RECENT_OVERHEAD
            if waiting:
                waiter = waiting.pop(index, None)
                if waiter is not None and not waiter[0].called:
                    waiter[0].callback(result)
        while self._recent_bytes > RECENT_BYTES and len(recent) > 1:
            self._recent_bytes -= len(recent.pop(next(iter(recent)))) + RECENT_OVERHEAD
        for token in self._waits.reached(applied_index):
            self._waiting.pop(token).callback(applied_index)

    def sweep(self, now_ms: int, applied_index: int) -> None:
        """End the waits whose time is over."""
        late = [index for index, (_, deadline_ms) in self._results.items() if deadline_ms <= now_ms]
        for index in late:
            self._results.pop(index)[0].errback(unknown(f"the entry {index} is not applied yet"))
        for token in self._waits.expired(now_ms):
            self._waiting.pop(token).errback(DLedgerError(
                ResponseCode.TIMEOUT, reason=f"the state machine has come to {applied_index} only"
            ))

    def end(self, reason: str, code: ResponseCode) -> None:
        """No wait has an end any more. @param code: for queries; the results of commands are unknown."""
        self._recent.clear()
        self._recent_bytes = 0
        results, self._results = self._results, {}
        for waiter, _ in results.values():
            waiter.errback(unknown(reason))
        self._waits.take_all()
        waiting, self._waiting = self._waiting, {}
        for asked in waiting.values():
            asked.errback(DLedgerError(code, reason=reason))


def unknown(reason: str) -> DLedgerError:
    """The command is in the log; what came of it is not known here."""
    return DLedgerError(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, reason=reason)
