# -*- test-case-name: tests.node.test_status -*-
"""Counters and the picture that is made of them."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.reporting.status import (
    Counters,
    NodeStatus,
    bytes_behind,
    count,
)
from protocols.wire.ledger.messages import AppendRequest, GetRequest, PullRequest
from tests.node.rig import Rig


class CountersTests(SynchronousTestCase):
    """Numbers that rise."""

    def test_a_candidacy_has_one_result(self) -> None:
        """A candidacy has one result; who only follows has none."""
        counters = Counters()
        for role, leader_id in (
            ("follower", "n1"), ("follower", None), ("candidate", None), ("candidate", None),
            ("leader", "n0"), ("follower", None), ("candidate", None), ("follower", "n1"), ("follower", "n1"),
        ):
            counters.roles.note(role, leader_id)
        self.assertEqual(counters.roles.elections, {"undecided": 1, "won": 1, "lost": 1})
        self.assertEqual(counters.roles.leader_changes, 3)

    def test_events_are_counted_by_name(self) -> None:
        """By name."""
        table: dict[str, int] = {}
        count(table, "a")
        count(table, "a", 2)
        self.assertEqual(table, {"a": 3})

    def test_counters_start_at_nothing(self) -> None:
        """At nothing, and each its own."""
        self.assertEqual(Counters().refusals, {})
        self.assertIsNot(Counters().refusals, Counters().refusals)


class NodeStatusTests(SynchronousTestCase):
    """One node at one moment."""

    def test_after_some_work(self) -> None:
        """What was done is there."""
        rig = Rig().lead()
        client = rig.client()
        client.send(AppendRequest(bodies=(b"abc", b"d"), **rig.base()))
        client.send(GetRequest(begin_index=0, **rig.base()))
        rig.clock.advance(0)
        client.send(PullRequest(begin_index=0, **rig.base()))
        client.answers()
        status = rig.node.status()
        self.assertEqual((status.counts.requests, status.counts.gets, status.counts.pulls), (3, 1, 1))
        self.assertEqual((status.counts.appends, status.counts.append_bytes), (2, 4))
        self.assertEqual(status.counts.pulled_bytes, 2 * 48 + 4)
        self.assertEqual((status.connections.incoming, status.connections.body_errors), (1, 0))
        self.assertEqual(status.pull_waiters, 0)
        self.assertEqual(status.member.committed_index, 1)
        self.assertEqual(status.peers.addresses, {"n0": "127.0.0.1:20911"})
        self.assertFalse(status.store.is_full)

    def test_before_the_start(self) -> None:
        """There is a picture from the first moment, and its tables are not the node's own."""
        rig = Rig()
        status = rig.node.status()
        self.assertEqual((status.state, status.uptime_s), ("starting", 0))
        count(rig.node.counters.reports, "x")
        self.assertEqual(status.counts.reports, {})

    def test_a_status_cannot_change(self) -> None:
        """It is a value."""
        self.assertTrue(attrs.has(NodeStatus))
        status = Rig().node.status()
        self.assertRaises(attrs.exceptions.FrozenInstanceError, setattr, status, "state", "x")


class _Log:
    """A ledger that begins late; it must not be asked about entries that it lacks."""

    ledger_begin_index, ledger_end_index, end_position = 209, 330, 20_000

    def position_of(self, index: int) -> int:
        """See L{dledger.node.reporting.status.WrittenLedger}."""
        assert self.ledger_begin_index <= index <= self.ledger_end_index, index
        return self.end_position - 50 * (self.ledger_end_index + 1 - index)


class LagTests(SynchronousTestCase):
    """Bytes that a member lacks."""

    def test_an_unknown_peer_lacks_the_whole_log(self) -> None:
        """A peer whose end is not known, or before the begin, lacks all that the log has."""
        for index, expected in ((-1, 6100), (100, 6100), (208, 6100), (209, 6050), (329, 50), (330, 0)):
            self.assertEqual(bytes_behind(_Log(), index, unknown=-1), expected, index)
