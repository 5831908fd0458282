# -*- test-case-name: tests.node.test_node -*-
"""The life of a member in this process: its state, its ticks, and those who wait for its end."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure


class MemberLife:
    """
    Invariant: C{state} is C{starting}, C{running}, C{stopping}, then C{stopped} or C{failed}; states may be
    skipped, and none comes back.

    @ivar reason: why it ended; empty if it has not.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self.state = "starting"
        self.reason = ""
        self._clock = clock
        self._started_s = clock.seconds()
        self._ticking: LoopingCall | None = None
        self._ended: list[Deferred[None]] = []

    @property
    def uptime_s(self) -> float:
        """Seconds since the member was made."""
        return self._clock.seconds() - self._started_s

    @property
    def is_over(self) -> bool:
        """Whether the member has ended; those who wait may not know yet."""
        return self.state in ("stopped", "failed")

    def run(self, tick: Callable[[int], None], tick_ms: int, failed: Callable[[Failure], None]) -> None:
        """
        The member runs.

        @param tick: called every C{tick_ms} with the number of ticks that have passed.
        @param failed: called with the failure of C{tick}, which ends the ticks.
        """
        self.state = "running"
        self._ticking = LoopingCall.withCount(tick)
        self._ticking.clock = self._clock
        self._ticking.start(tick_ms / 1000, now=False).addErrback(failed)

    def end(self, state: str, reason: str) -> None:
        """The member has ended; L{stop_ticking} and L{notify} follow."""
        self.state = state
        self.reason = reason

    def stop_ticking(self) -> None:
        """No further tick comes."""
        ticking, self._ticking = self._ticking, None
        if ticking is not None and ticking.running:
            ticking.stop()

    def when_ended(self) -> Deferred[None]:
        """@return: fires when the member has ended, and everybody else was answered."""
        ended: Deferred[None] = Deferred()
        if self.is_over and self._ticking is None:
            ended.callback(None)
        else:
            self._ended.append(ended)
        return ended

    def notify(self) -> None:
        """Inform those who wait for the end."""
        ended, self._ended = self._ended, []
        for waiter in ended:
            waiter.callback(None)
