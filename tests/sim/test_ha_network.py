# -*- test-case-name: tests.sim.test_ha_network -*-
"""Simulated byte streams: order, delays, back-pressure, and every way to lose a connection."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from twisted.internet.error import ConnectError
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.brokers.network import (
    WINDOW_SIZE,
    SimClientEndpoint,
    SimReactor,
    SimServerEndpoint,
    SimStreams,
)
from dledger.testing.clock import SimClock


class Proc:
    """A process that can end."""

    def __init__(self) -> None:
        self.life = 1

    def run(self, life: int, action: Callable[..., Any], *arguments: Any) -> None:
        """While it lives."""
        if life == self.life:
            action(*arguments)


class Ear(Protocol):
    """Remembers."""

    def __init__(self) -> None:
        self.heard = b""
        self.reads = 0
        self.lost: list[str] = []
        self.events: list[str] = []

    def dataReceived(self, data: bytes) -> None:
        """Remember."""
        self.heard += data
        self.reads += 1

    def connectionLost(self, reason: Failure = None) -> None:  # type: ignore[assignment]
        """Remember."""
        self.lost.append(reason.type.__name__)

    def pauseProducing(self) -> None:
        """Remember."""
        self.events.append("pause")

    def resumeProducing(self) -> None:
        """Remember."""
        self.events.append("resume")

    def stopProducing(self) -> None:
        """Nothing to do."""


class Ears:
    """A factory of them."""

    def __init__(self) -> None:
        self.made: list[Ear] = []

    def buildProtocol(self, address: object) -> Ear:
        """One more."""
        self.made.append(Ear())
        return self.made[-1]


class StreamTests(SynchronousTestCase):
    """Two machines."""

    def setUp(self) -> None:
        self.clock = SimClock()
        self.network = SimStreams(self.clock, random.Random(1))
        self.one, self.two = Proc(), Proc()
        self.served = Ears()
        self.successResultOf(SimServerEndpoint(self.network, "b", self.two).listen(self.served))

    def connect(self) -> tuple[Ear, Ear]:
        """Both ends."""
        outcome = SimClientEndpoint(self.network, "a", self.one, "b").connect(Ears())
        self.clock.run_until(self.clock.now_us + 10_000)
        return self.successResultOf(outcome), self.served.made[-1]

    def wait(self, us: int = 10_000_000) -> None:
        """Time passes."""
        self.clock.run_until(self.clock.now_us + us)

    def test_bytes(self) -> None:
        """In order, in pieces, both ways."""
        here, there = self.connect()
        self.network.piece_size = 10
        for _ in range(20):
            here.transport.write(bytes(range(100)))
        there.transport.write(b"back")
        self.wait()
        self.assertEqual((there.heard, here.heard), (bytes(range(100)) * 20, b"back"))
        self.assertGreater(there.reads, 200)
        self.assertEqual(there.transport.getPeer().host, "a")

    def test_back_pressure(self) -> None:
        """Too much in flight pauses the producer, until all has arrived."""
        here, _ = self.connect()
        here.transport.registerProducer(here, True)
        here.transport.write(bytes(WINDOW_SIZE + 1))
        here.transport.write(bytes(10))
        self.assertEqual(here.events, ["pause"])
        self.wait()
        self.assertEqual(here.events, ["pause", "resume"])

    def test_refused(self) -> None:
        """Nobody listens there, or not any more, or the link is cut."""
        for target in ("c", "b", "b"):
            outcome = SimClientEndpoint(self.network, "a", self.one, target).connect(Ears())
            if target == "b":
                self.network.cut("b", "a")
            self.wait()
            self.failureResultOf(outcome, ConnectError)
            self.network.heal_all()
            self.two.life = 2
            self.network.cut("x", "y")

    def test_closed(self) -> None:
        """Both ends learn of it; what comes later is not sent."""
        here, there = self.connect()
        here.transport.abortConnection()
        self.wait()
        self.assertEqual((here.lost, there.lost), (["ConnectionDone"], ["ConnectionDone"]))
        here.transport.write(b"abc")
        self.wait()
        self.assertEqual(there.heard, b"")
        self.assertEqual(self.network.between("a", "b"), [])

    def test_cut(self) -> None:
        """Bytes wait for the link to heal, and arrive in order."""
        here, there = self.connect()
        self.network.cut("a", "b")
        here.transport.write(b"abc")
        there.transport.write(b"xyz")
        self.wait()
        self.assertEqual((there.heard, here.heard), (b"", b"xyz"))
        here.transport.write(b"def")
        self.network.heal_all()
        self.wait()
        self.assertEqual(there.heard, b"abcdef")

    def test_dark(self) -> None:
        """Bytes vanish, and nobody is told."""
        here, there = self.connect()
        self.network.darken("a", "b")
        here.transport.write(b"abc")
        here.transport.abortConnection()
        self.wait()
        self.assertEqual((there.heard, there.lost), (b"", []))

    def test_half_open(self) -> None:
        """The client is told, the server is not."""
        here, there = self.connect()
        self.network.half_open("a", "b")
        self.wait()
        self.assertEqual((here.lost, there.lost), (["ConnectionLost"], []))

    def test_broken(self) -> None:
        """Both ends learn of it, each in its time."""
        here, there = self.connect()
        self.network.break_between("b", "a")
        self.wait()
        self.assertEqual((here.lost, there.lost), (["ConnectionLost"], ["ConnectionLost"]))

    def test_killed(self) -> None:
        """The peer of a killed process is told; that of a machine without power is not."""
        for silently, lost in ((False, ["ConnectionLost"]), (True, [])):
            here, there = self.connect()
            self.network.died("b", silently=silently)
            self.wait()
            self.assertEqual((here.lost, there.lost), (lost, []))
            self.network.listen("b", self.two, self.served)

    def test_reset(self) -> None:
        """Who writes to an end that is gone learns of it."""
        here, there = self.connect()
        self.network.cut("b", "a")
        there.transport.abortConnection()
        self.wait()
        self.assertEqual(here.lost, [])
        self.network.heal_all()
        here.transport.write(b"abc")
        self.wait()
        self.assertEqual((here.lost, there.heard), (["ConnectionLost"], b""))


class ReactorTests(SynchronousTestCase):
    """Timers of a process."""

    def test_calls(self) -> None:
        """In time, once, unless cancelled, or the process has ended."""
        clock, process = SimClock(), Proc()
        reactor = SimReactor(clock, process)
        seen: list[int] = []
        reactor.callLater(1, seen.append, 1)
        gone = reactor.callLater(2, seen.append, 2)
        late = reactor.callLater(3, seen.append, 3)
        gone.cancel()
        clock.run_until(2_500_000)
        self.assertEqual((seen, gone.active(), late.active()), ([1], False, True))
        self.assertEqual(round(reactor.seconds() - 1000, 3), 2.5)
        process.life = 2
        clock.run_until(5_000_000)
        self.assertEqual(seen, [1])
