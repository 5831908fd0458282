# -*- test-case-name: tests.core.test_room -*-
"""Members whose disks are full: the leader, and the reasons of the others."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.transfer import FULL_AGAIN_JAVA_MS, FULL_AGAIN_MS, PREFERRED_CHECK_INTERVAL_MS
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_FLAG_DISK_FULL, WIRE_VERSION
from protocols.wire.ledger.messages import VoteRequest
from tests.core.helpers import Bench, ListLedger, events, heart_beat, propose
from tests.core.test_transfer import asks, leader


class FullTests(SynchronousTestCase):
    """A leader whose disk is full hands over to a peer that has room."""

    def full(self, *full_peers: str, **options: Any) -> Bench:
        """A leader with two followers, some of which said that their disks are full."""
        bench = leader("n1", "n2", **options)
        for peer_id in full_peers:
            bench.core.member.peers.full.add(peer_id)
        return bench

    def refused(self, bench: Bench) -> tuple[fx.Effect, ...]:
        """An append finds no room."""
        assert isinstance(bench.ledger, ListLedger)
        bench.ledger.refuse = ResponseCode.DISK_FULL
        return propose(bench, 1)[1]

    def test_a_full_leader_hands_over(self) -> None:
        """At once, when the first append is refused."""
        bench = self.full()
        effects = self.refused(bench)
        self.assertEqual(asks(effects), [("n1", 1)])
        self.assertIn("leaving-full", events(effects))

    def test_not_to_a_full_one(self) -> None:
        """The other one is asked; if both are full, none is."""
        self.assertEqual(asks(self.refused(self.full("n1"))), [("n2", 1)])
        self.assertEqual(asks(self.refused(self.full("n1", "n2"))), [])

    def test_java_is_asked_seldom(self) -> None:
        """A Java peer does not say whether it is full."""
        bench = self.full("n2")
        bench.core.member.peers.wire_versions["n1"] = 0
        self.assertEqual(asks(self.refused(bench)), [("n1", 1)])
        bench.core.transfer.giving = None
        bench.now_ms += FULL_AGAIN_MS
        bench.confirm("n1")
        bench.core.member.peers.full.add("n2")
        self.assertEqual(asks(self.refused(bench)), [])
        bench.now_ms += FULL_AGAIN_JAVA_MS
        bench.core.member.peers.last_heard_ms["n1"] = bench.now_ms
        self.assertEqual(asks(self.refused(bench)), [("n1", 1)])

    def test_preferred_leader_is_full(self) -> None:
        """It gets leadership when it has room again."""
        bench = self.full("n1", preferred_leader_ids=("n1",))
        bench.now_ms += PREFERRED_CHECK_INTERVAL_MS
        self.assertEqual(asks(bench.step(ev.Ticked())), [])

    def test_reported_by_heartbeats(self) -> None:
        """The answer to a heartbeat says whether the disk is full; the advertised version is unchanged."""
        bench = Bench.make(ListLedger.of(1)).follow("n1", 2)
        for is_full, version in ((True, WIRE_VERSION | WIRE_FLAG_DISK_FULL), (False, WIRE_VERSION)):
            bench.step(ev.RoomChecked(is_full))
            answer = bench.ask(heart_beat("n1", 2))
            self.assertEqual(answer.wire_version, version)
            member = self.full().core.member
            member.peers.heard("n1", version, member.out.now_ms)
            member.peers.heard_state("n1", version, member.out.now_ms)
            self.assertEqual("n1" in member.peers.full, is_full)
            self.assertEqual(member.peers.wire_versions["n1"], WIRE_VERSION)

    def test_a_refusal_says_nothing(self) -> None:
        """A member that does not know its sender yet refuses heartbeats, without flags."""
        member = self.full().core.member
        member.peers.heard_state("n1", WIRE_VERSION | WIRE_FLAG_DISK_FULL, member.out.now_ms)
        member.peers.heard_state("n1", WIRE_VERSION, member.out.now_ms, ResponseCode.UNKNOWN_MEMBER)
        self.assertIn("n1", member.peers.full)
        member.peers.heard_state("n1", WIRE_VERSION, member.out.now_ms)
        self.assertNotIn("n1", member.peers.full)

    def test_others_come_first(self) -> None:
        """A follower with a full disk waits twice as long before it asks for votes; then it does."""
        waits = []
        for is_full in (False, True):
            bench = Bench.make(ListLedger.of(1)).follow("n1", 2)
            bench.step(ev.RoomChecked(is_full))
            began_ms = bench.now_ms
            bench.run_until(VoteRequest)
            waits.append(bench.now_ms - began_ms)
        self.assertGreater(waits[1], waits[0] + 800)
