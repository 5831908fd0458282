# -*- test-case-name: tests.sim.test_network -*-
"""Simulated connections: in order or not at all, and late from those that were given up."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.clock import SimClock
from dledger.testing.group.network import SimConnection, SimNetwork, WireCodec
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    PushEntryRequest,
    Request,
    Response,
)


class Recorder:
    """A member that notes what comes, and answers heartbeats."""

    def __init__(self, network: SimNetwork) -> None:
        self.is_up = True
        self.is_paused = False
        self.network = network
        self.events: list[object] = []
        self.held: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def hold_back(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> bool:
        """Keep it while paused."""
        if self.is_paused:
            self.held.append((action, arguments))
        return self.is_paused

    def request_came(self, connection: SimConnection, opaque: int, request: Request) -> None:
        """Note its term, answer a heartbeat."""
        self.events.append(request.term)
        if isinstance(request, HeartBeatRequest):
            self.network.reply(connection, opaque, HeartBeatResponse(group="g", term=request.term))

    def response_came(self, peer_id: str, request_id: int, response: Response) -> None:
        """Note it."""
        self.events.append(("answer", request_id))

    def connection_opened(self, peer_id: str) -> None:
        """Nothing to note."""

    def request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """Note it."""
        self.events.append(("failed", request_id))

    def connection_closed(self, connection: SimConnection, *, is_last: bool) -> None:
        """Note it."""
        self.events.append("closed")


class SimNetworkTests(SynchronousTestCase):
    """Two members, a and b."""

    def setUp(self) -> None:
        """Make them."""
        self.clock = SimClock()
        self.network = SimNetwork(self.clock, random.Random(1), WireCodec(native=True))
        self.a, self.b = Recorder(self.network), Recorder(self.network)
        self.network.add("a", self.a)
        self.network.add("b", self.b)
        self.sent = 0

    def send(self, count: int = 1, *, commit: bool = False) -> None:
        """C{a} sends so many requests; their terms count up from 1."""
        for _ in range(count):
            self.sent += 1
            fields = {"group": "g", "remote_id": "b", "local_id": "a", "leader_id": "a", "term": self.sent}
            request: Request = (
                PushEntryRequest(type=PushType.COMMIT, **fields) if commit  # type: ignore[arg-type]
                else HeartBeatRequest(**fields)  # type: ignore[arg-type]
            )
            self.network.send_request("a", "b", self.sent, request)

    def run_for(self, seconds: float) -> None:
        """Time passes."""
        self.clock.run_until(self.clock.now_us + int(seconds * 1e6))

    def test_order(self) -> None:
        """Requests arrive in order though each takes its own time; so do answers."""
        self.send(20)
        self.run_for(1)
        self.assertEqual(self.b.events, list(range(1, 21)))
        self.assertEqual(self.a.events, [("answer", number) for number in range(1, 21)])

    def test_cut_holds_back(self) -> None:
        """Nothing is lost by a cut alone: it arrives when the link heals, in order."""
        self.send()
        self.run_for(1)
        self.network.cut("a", "b")
        self.send(3, commit=True)
        self.run_for(5)
        self.assertEqual(self.b.events, [1])
        self.network.heal("a", "b")
        self.send(commit=True)
        self.run_for(1)
        self.assertEqual(self.b.events, [1, 2, 3, 4, 5])

    def test_one_way(self) -> None:
        """With the way back cut, requests arrive and answers do not."""
        self.send()
        self.run_for(1)
        self.network.cut("b", "a")
        self.send()
        self.run_for(1)
        self.assertEqual((self.b.events, self.a.events), ([1, 2], [("answer", 1)]))

    def test_no_connection_through_a_cut(self) -> None:
        """A connection that is not there yet cannot be made: requests fail, for a while at once."""
        self.network.cut("b", "a")
        self.send(2)
        self.run_for(1)
        self.assertEqual(self.a.events, [("failed", 1), ("failed", 2)])
        self.network.heal_all()
        self.run_for(1)
        self.send()
        self.run_for(1)
        self.assertEqual(self.b.events, [3])

    def test_lost_connection(self) -> None:
        """Both ends learn; what was under way is gone; the next request opens another."""
        self.send()
        self.run_for(1)
        self.send(commit=True)
        self.network.lose("a", "b")
        self.assertEqual(self.a.events[-1], ("failed", 2))
        self.assertEqual(self.b.events, [1, "closed"])
        self.send()
        self.run_for(1)
        self.assertEqual(self.b.events, [1, "closed", 3])

    def slow_then_fast(self) -> None:
        """C{a} gives a slow connection up with something under way, and uses another."""
        self.send()
        self.run_for(1)
        self.network.delay_connection("a", "b", 2_000_000)
        self.send(commit=True)
        self.run_for(0.1)
        self.network.reconnect("a", "b", late_us=10_000_000)
        self.assertEqual(self.a.events[-1], ("failed", 2))

    def test_late_bytes_are_not_acted_upon(self) -> None:
        """When the new connection speaks first, and the old one was silent, the old one is closed."""
        self.network.live_us = 500_000
        self.slow_then_fast()
        self.send(commit=True)
        self.run_for(5)
        self.assertEqual(self.b.events, [1, "closed", 3])

    def test_a_live_connection_stays(self) -> None:
        """While the old one was heard lately, the new one is reset; bytes under way still arrive."""
        self.slow_then_fast()
        self.send(commit=True)
        self.run_for(1)
        self.assertEqual(self.a.events[-1], ("failed", 3))
        self.run_for(2)
        self.assertEqual(self.b.events, [1, "closed", 2])
        self.run_for(3)
        self.send(commit=True)
        self.run_for(1)
        self.assertEqual(self.b.events, [1, "closed", 2, "closed", 4])

    def test_late_bytes_before_the_new_connection(self) -> None:
        """While the new one is silent, nothing says that the old one is over."""
        self.network.live_us = 500_000
        self.slow_then_fast()
        self.run_for(3)
        self.send(commit=True)
        self.run_for(1)
        self.assertEqual(self.b.events, [1, 2, "closed", 3])

    def test_metadata_does_not_tell(self) -> None:
        """A question that anybody may ask says nothing of whose connection it is."""
        self.slow_then_fast()
        self.network.send_request("a", "b", 99, MetadataRequest(group="g", remote_id="b", term=99))
        self.run_for(3)
        self.assertEqual(self.b.events, [1, 99, 2])

    def test_old_connection_kept(self) -> None:
        """Without that rule late bytes are acted upon: what the mutant does."""
        self.network.closes_old = False
        self.slow_then_fast()
        self.send(commit=True)
        self.run_for(3)
        self.assertEqual(self.b.events, [1, 3, 2])

    def test_killed_server(self) -> None:
        """The client of a killed process learns soon; that of a dead machine when it is back."""
        for silently in (False, True):
            self.a.events.clear()
            self.send()
            self.run_for(1)
            self.b.is_up = False
            self.network.member_died("b", silently=silently)
            self.send(commit=True)
            self.run_for(1)
            self.assertIn(("failed", self.sent), self.a.events) if not silently else self.assertNotIn(
                ("failed", self.sent), self.a.events)
            self.b.is_up = True
            self.run_for(1)
            self.send(commit=True)
            self.run_for(1)
        self.assertIn(("failed", self.sent), self.a.events)

    def test_killed_client(self) -> None:
        """The server of a killed client hears of it; of a dead machine it does not."""
        for silently, told in ((False, ["closed"]), (True, [])):
            self.b.events.clear()
            self.send()
            self.run_for(1)
            self.network.member_died("a", silently=silently)
            self.run_for(1)
            self.assertEqual(self.b.events[1:], told)

    def test_stalled_bytes_of_a_dead_connection(self) -> None:
        """After a cut, a client finds out that its server has died in the meantime."""
        self.send()
        self.run_for(1)
        self.network.cut("a", "b")
        self.send(commit=True)
        self.run_for(1)
        self.network.member_died("b", silently=True)
        self.network.heal("a", "b")
        self.run_for(1)
        self.assertIn(("failed", 2), self.a.events)

    def test_paused(self) -> None:
        """A paused member reads later."""
        self.b.is_paused = True
        self.send()
        self.run_for(1)
        self.assertEqual(self.b.events, [])
        self.b.is_paused = False
        for action, arguments in self.b.held:
            action(*arguments)
        self.assertEqual(self.b.events, [1])

    def test_pushes_are_counted(self) -> None:
        """By sender, receiver and type."""
        self.send(3, commit=True)
        self.assertEqual(self.network.pushes, {("a", "b", PushType.COMMIT): 3})


class WireCodecTests(SynchronousTestCase):
    """Messages come out as they went in, in both formats."""

    def test_round_trip(self) -> None:
        """But for what a Java-like group does not say."""
        request = HeartBeatRequest(group="g", remote_id="b", local_id="a", leader_id="a", term=3,
                                   wire_version=1, heart_beat_interval_ms=600)
        for native in (True, False):
            self.assertEqual(WireCodec(native=native).request_through(request, 7), request)
        hidden = WireCodec(native=False, hides_wire_version=True).request_through(request, 7)
        assert isinstance(hidden, HeartBeatRequest)
        self.assertEqual((hidden.wire_version, hidden.heart_beat_interval_ms), (0, 0))
