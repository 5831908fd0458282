# -*- test-case-name: tests.sim.test_clock -*-
"""
Simulated time: a queue of actions.

Actions run in order of time, and in order of arrival at equal times, so one seed gives one history.
No action is cancelled: an action that is no longer wanted checks that and returns.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TypeVarTuple

_Ts = TypeVarTuple("_Ts")


class SimClock:
    """
    A queue of actions in microseconds of simulated time.

    Invariant: C{now_us} never falls.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self._heap: list[tuple[int, int, Callable[..., object], tuple[object, ...]]] = []
        self._sequence = 0

    def after(self, delay_us: int, action: Callable[[*_Ts], object], *arguments: *_Ts) -> None:
        """Run C{action} when C{delay_us} microseconds have passed."""
        self._sequence = sequence = self._sequence + 1
        heapq.heappush(self._heap, (self.now_us + delay_us, sequence, action, arguments))

    def at(self, when_us: int, action: Callable[[*_Ts], object], *arguments: *_Ts) -> None:
        """Run C{action} at C{when_us}, or at once if that time has passed."""
        self._sequence = sequence = self._sequence + 1
        heapq.heappush(self._heap, (max(when_us, self.now_us), sequence, action, arguments))

    def run_until(self, end_us: int) -> None:
        """Run every action up to and including C{end_us}; then it is C{end_us}."""
        heap = self._heap
        pop = heapq.heappop
        while heap and heap[0][0] <= end_us:
            when_us, _, action, arguments = pop(heap)
            self.now_us = when_us
            action(*arguments)
        self.now_us = max(self.now_us, end_us)

    def __len__(self) -> int:
        """Number of actions that have not run."""
        return len(self._heap)
