# -*- test-case-name: tests.node.test_group_clock -*-
"""
The time as the leader writes it into the log: that of its clock, as far as the members believe it.

Rule 1: a clock that is more than a bound ahead of what a majority of the voters say is not believed: the time
is theirs then. They say it with each vote and each answer to a heartbeat
(L{dledger.core.state.beliefs.PeerClocks}).
Rule 2: while a majority has not said its clocks, there is no time. Java members never do, so where they are
the majority there is none at all. A leader that members of ours have elected has their clocks from the votes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dledger.core.state.member_state import MemberState
from protocols.wire.ledger.own.time_entries import TIME_MS_MAX


class GroupClock:
    """@ivar ahead_max_ms: the bound."""

    def __init__(
        self, ahead_max_ms: int, *, leading: MemberState, wall_s: Callable[[], float],
        note: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        """
        @param wall_s: seconds since 1970.
        @param note: writes an event down.
        """
        self.ahead_max_ms = ahead_max_ms
        self._leading = leading
        self._wall_s = wall_s
        self._note = note

    def own_ms(self) -> int:
        """What the own clock shows, milliseconds since 1970, 0 to L{TIME_MS_MAX}."""
        return min(max(int(self._wall_s() * 1000), 0), TIME_MS_MAX)

    def majority_ms(self) -> int:
        """The latest time that a majority says to have reached; -1: it has not said."""
        return self._leading.majority_clock_ms(self.own_ms())

    def now_ms(self) -> int:
        """The time, at most that of the own clock, see the rules; -1: there is none."""
        own_ms = self.own_ms()
        said_ms = self._leading.majority_clock_ms(own_ms)
        if said_ms < 0 or own_ms - said_ms <= self.ahead_max_ms:
            return own_ms if said_ms >= 0 else -1
        self._note("clock-ahead", {"seconds": (own_ms - said_ms) // 1000})
        return said_ms
