# -*- test-case-name: tests.base.test_waiters -*-
"""
Tokens that wait for a number: appends for C{committed_index}, reads for a confirmed heartbeat round,
a follower's answers for C{flushed_index}, HA producers for an offset.

A token leaves exactly once: reached, expired, or removed. Tokens leave in order of threshold; equal
thresholds in order of token (tokens are issued in rising order). A far threshold never hides a near
deadline, and no call scans all tokens.

Source: DLedger's pending closures, RocketMQ's GroupTransferService, Kafka's purgatory.
"""

from __future__ import annotations

import heapq

import attrs


@attrs.define
class ThresholdWaiters:
    """
    Invariant: a token is in C{_waiting} until it leaves; heap items of other tokens are stale, and
    C{add} bounds their number.

    @ivar capacity: at most this many tokens wait; callers check before C{add}, which asserts it.
    """

    capacity: int
    _waiting: dict[int, tuple[int, int]] = attrs.Factory(dict)
    _by_threshold: list[tuple[int, int]] = attrs.Factory(list)
    _by_deadline: list[tuple[int, int]] = attrs.Factory(list)

    def __len__(self) -> int:
        """Number of waiting tokens."""
        return len(self._waiting)

    def __contains__(self, token: object) -> bool:
        """Whether C{token} still waits."""
        return token in self._waiting

    def add(self, token: int, *, threshold: int, deadline_ms: int) -> None:
        """Wait until the number reaches C{threshold} or the time C{deadline_ms}. Tokens are unique."""
        waiting, count = self._waiting, len(self._waiting)
        assert count < self.capacity, "the caller must refuse before the table is full"
        assert token not in waiting, "a token waits once"
        stale_from = 2 * count + 64
        if len(self._by_threshold) > stale_from or len(self._by_deadline) > stale_from:
            self._forget_stale()
        waiting[token] = (threshold, deadline_ms)
        heapq.heappush(self._by_threshold, (threshold, token))
        heapq.heappush(self._by_deadline, (deadline_ms, token))

    def reached(self, number: int) -> list[int]:
        """Take out, in order, every token whose threshold is C{number} or less."""
        ready = []
        heap = self._by_threshold
        while heap and heap[0][0] <= number:
            threshold, token = heapq.heappop(heap)
            waiting = self._waiting
            if token in waiting and waiting[token][0] == threshold:
                del waiting[token]
                ready.append(token)
        return ready

    def expired(self, now_ms: int) -> list[int]:
        """Take out every token whose deadline is C{now_ms} or earlier."""
        late = []
        heap = self._by_deadline
        while heap and (heap[0][0] <= now_ms or heap[0][1] not in self._waiting):
            deadline_ms, token = heapq.heappop(heap)
            found = self._waiting.get(token)
            if found is not None and found[1] == deadline_ms:
                del self._waiting[token]
                late.append(token)
        return late

    def remove(self, token: int) -> bool:
        """Forget a token. @return: whether it waited."""
        return self._waiting.pop(token, None) is not None

    def take_all(self) -> list[int]:
        """Take out every token, in order of arrival."""
        tokens = list(self._waiting)
        self._waiting.clear()
        self._by_threshold.clear()
        self._by_deadline.clear()
        return tokens

    def _forget_stale(self) -> None:
        self._by_threshold = [(found[0], token) for token, found in self._waiting.items()]
        self._by_deadline = [(found[1], token) for token, found in self._waiting.items()]
        heapq.heapify(self._by_threshold)
        heapq.heapify(self._by_deadline)
