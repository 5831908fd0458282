# -*- test-case-name: tests.node.test_group_clock -*-
"""What time it is, for the leader of a group."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.beliefs import PeerClocks
from dledger.node.requests.group_clock import GroupClock
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.own.time_entries import TIME_MS_MAX

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
TRUE_MS = 1_700_000_000_000


class FakeLeading:
    """
    The leader n0 in a term.

    @ivar said: what the others say.
    """

    is_leader = True

    def __init__(self, term: int, voters: int = 1) -> None:
        self.term = term
        self.said: dict[str, int] = {}
        self._voters = Membership(voters={f"n{one}": f"127.0.0.1:{one + 1}" for one in range(voters)})

    def majority_clock_ms(self, own_ms: int) -> int:
        """As of the member's state."""
        return self._voters.held({**self.said, "n0": own_ms}, -1)


class GroupClockTests(SynchronousTestCase):
    """A leader whose clock is right, or not."""

    def setUp(self) -> None:
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.own_ms = TRUE_MS

    def now(self, voters: int, *said: int) -> int:
        """The time. @param said: by n1, n2 and so on; -1: nothing."""
        leading = FakeLeading(3, voters)
        leading.said = {f"n{number}": one for number, one in enumerate(said, 1) if one >= 0}
        return GroupClock(
            HOUR_MS, leading=leading, wall_s=lambda: self.own_ms / 1000,
            note=lambda event, facts: self.events.append((event, facts)),
        ).now_ms()

    def test_a_leader_is_believed_within_the_bound(self) -> None:
        """Its own clock counts, ahead up to the bound, and behind by any time."""
        for own_ms in (TRUE_MS, TRUE_MS + HOUR_MS, TRUE_MS - 400 * DAY_MS):
            self.own_ms = own_ms
            self.assertEqual(self.now(3, TRUE_MS, TRUE_MS), own_ms)
        self.assertEqual(self.events, [])

    def test_beyond_the_bound_the_majority_is_right(self) -> None:
        """The time goes on with theirs, so it need not stand still later."""
        self.own_ms = TRUE_MS + HOUR_MS + 1
        self.assertEqual(self.now(3, TRUE_MS, TRUE_MS), TRUE_MS)
        self.assertEqual(self.events, [("clock-ahead", {"seconds": 3600})])
        self.own_ms = TRUE_MS + 400 * DAY_MS
        self.assertEqual(self.now(3, TRUE_MS, -1), TRUE_MS, "one of three is away")
        self.assertEqual(self.now(5, TRUE_MS, self.own_ms, TRUE_MS - 5, TRUE_MS), TRUE_MS)
        self.assertEqual(self.now(2, TRUE_MS), TRUE_MS)

    def test_without_the_clocks_of_a_majority_there_is_no_time(self) -> None:
        """Nobody confirms the clock of the leader."""
        self.assertEqual((self.now(3, -1, -1), self.now(5, TRUE_MS, -1, -1, -1)), (-1, -1))
        self.assertEqual(self.now(1), TRUE_MS)

    def test_no_clock_is_out_of_the_calendar(self) -> None:
        """Times before 1970 count as 1970."""
        for own_ms, shown in ((-5, 0), (10 * TIME_MS_MAX, TIME_MS_MAX)):
            self.own_ms = own_ms
            self.assertEqual(self.now(1), shown)


class PeerClocksTests(SynchronousTestCase):
    """What the clocks of the others show."""

    def test_clocks_go_on(self) -> None:
        """With the monotonic time of this member; a peer that keeps its own to itself is left out."""
        clocks = PeerClocks()
        clocks.heard("n1", 5000, 100)
        clocks.heard("n2", -1, 100)
        self.assertEqual(clocks.now(350, 9000), {"n1": 5250})
        clocks.heard("n1", 4000, 400)
        clocks.heard("n1", -1, 500)
        self.assertEqual((clocks.now(9400, 9000), clocks.now(9401, 9000)), ({"n1": 13000}, {}))
        clocks.forget()
        self.assertEqual(clocks.now(400, 9000), {})
