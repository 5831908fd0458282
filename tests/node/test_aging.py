# -*- test-case-name: tests.node.test_aging -*-
"""When a leader writes an age entry."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.requests.aging import AGAIN_S, ProducerAging
from dledger.node.requests.appends import AppendResult
from dledger.node.requests.group_clock import GroupClock
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import GroupFold, GroupState, Marked
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.own.age_entries import AGE_STEP_MS, decode_age_entry
from protocols.wire.ledger.own.own_entries import AGE_CHANNEL, SESSION_CHANNEL
from protocols.wire.ledger.own.session_entries import Session, encode_session_entry
from tests.node.test_group_clock import FakeLeading

LIMIT_MS = 168 * AGE_STEP_MS
STEP_S = AGE_STEP_MS / 1000


class AgingTests(SynchronousTestCase):
    """A leader, its clocks, and its log."""

    def setUp(self) -> None:
        self.group: GroupFold | None = GroupFold(GroupState())
        self.group.take([Marked(0, 1, SESSION_CHANNEL, body=encode_session_entry([Session(1, "p")]))])
        self.group.commit(0)
        self.is_leader = True
        self.wall_s = 1_700_000_000.0
        self.now_s = 50.0
        self.members = FakeLeading(3)
        self.appended: list[Deferred[AppendResult]] = []
        self.clocks_ms: list[int] = []
        self.aging = self.make(LIMIT_MS)

    def make(self, limit_ms: int) -> ProducerAging:
        """With a limit."""
        clock = GroupClock(
            AGE_STEP_MS, leading=self.members, wall_s=lambda: self.wall_s, note=lambda *_: None)
        return ProducerAging(
            self, limit_ms, is_leader=lambda: self.is_leader, clock=clock, append=self.append)

    def append(self, channel: int, body: bytes) -> Deferred[AppendResult]:
        """The entry is in the log at once, and its append is under way."""
        assert self.group is not None
        entry = decode_age_entry(body)
        self.assertEqual((channel, entry.limit_ms), (AGE_CHANNEL, LIMIT_MS))
        self.clocks_ms.append(entry.clock_ms)
        self.group.take([Marked(len(self.clocks_ms), 1, AGE_CHANNEL, body=body)])
        self.appended.append(Deferred())
        return self.appended[-1]

    def sweep(self, seconds: float = 0.0) -> int:
        """After that long. @return: the number of age entries."""
        self.wall_s += seconds
        self.now_s += seconds
        self.aging.sweep(self.now_s)
        return len(self.clocks_ms)

    def done(self) -> None:
        """The append has ended."""
        self.appended[-1].callback(AppendResult(index=1, pos=1, term=1, count=1))

    def test_an_entry_an_hour(self) -> None:
        """And one at a time."""
        self.assertEqual(self.sweep(), 1)
        self.assertEqual(self.sweep(10 * STEP_S), 1, "one is under way")
        self.done()
        self.assertEqual(self.sweep(), 2)
        self.done()
        self.assertEqual((self.sweep(STEP_S - 1), self.sweep(1)), (2, 3))
        self.assertEqual(self.clocks_ms[2] - self.clocks_ms[1], AGE_STEP_MS)

    def test_a_clock_that_was_set_back_waits(self) -> None:
        """No entry is written until it has come beyond the highest one in the log."""
        self.sweep()
        self.done()
        self.wall_s -= 10 * STEP_S
        self.assertEqual((self.sweep(10 * STEP_S), self.sweep(STEP_S)), (1, 2))

    def test_a_refused_entry_is_tried_again_later(self) -> None:
        """Not in a tight loop."""
        self.sweep()
        assert self.group is not None
        self.group.cut(1)
        self.appended[-1].errback(DLedgerError(ResponseCode.NOT_LEADER))
        self.assertEqual((self.sweep(AGAIN_S / 2), self.sweep(AGAIN_S)), (1, 2))

    def test_a_clock_that_is_far_ahead_lets_nobody_wait(self) -> None:
        """The log gets the time of the majority; without it none."""
        self.members = FakeLeading(3, 3)
        self.aging = self.make(LIMIT_MS)
        self.assertEqual(self.sweep(), 0)
        true_ms = int(self.wall_s * 1000)
        self.members.said = {"n1": true_ms, "n2": true_ms}
        self.assertEqual(self.sweep(400 * 24 * STEP_S), 1)
        self.assertEqual(self.clocks_ms, [true_ms])

    def test_nobody_writes_without_need(self) -> None:
        """Not a follower, not without producers, not without the state, and not with the limit 0."""
        group, self.is_leader = self.group, False
        self.assertEqual(self.sweep(), 0)
        self.is_leader = True
        for other in (None, GroupFold(GroupState())):
            self.group = other
            self.assertEqual(self.sweep(), 0)
        self.group, self.aging = group, self.make(0)
        self.assertEqual(self.sweep(), 0)
