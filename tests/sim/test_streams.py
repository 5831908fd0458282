# -*- test-case-name: tests.sim.test_streams -*-
"""Simulated byte streams: order, cuts, back-pressure, and every way to lose a connection."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.error import ConnectionRefusedError, TimeoutError
from twisted.internet.protocol import Factory, Protocol
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.members.network import GroupNetwork
from dledger.testing.world.clock import SimClock
from dledger.testing.world.process import SimProcess
from dledger.testing.world.streams import WINDOW_BYTES, ByteNetwork, StreamClient, StreamLink, StreamServer


class Owner:
    """A machine that never dies inside an event."""

    is_dying = False

    def event_ended(self) -> None:
        """Nothing to do."""


class Ear(Protocol):
    """Remembers received bytes."""

    def __init__(self) -> None:
        self.heard = b""
        self.reads = 0
        self.lost: list[str] = []
        self.events: list[str] = []

    # Twisted declares only ITransport.
    transport: Any = None

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


class _Listener(Factory):
    """Remembers its connections."""

    def __init__(self) -> None:
        self.ears: list[Ear] = []

    def buildProtocol(self, addr: object) -> Ear:
        """Another ear."""
        self.ears.append(Ear())
        return self.ears[-1]


class StreamTestCase(SynchronousTestCase):
    """A client machine c and a server machine s."""

    def setUp(self) -> None:
        self.clock = SimClock()
        self.network = self.make()
        self.c = self.process(1)
        self.s = self.process(2)
        self.listener = _Listener()
        StreamServer(self.network, "s", self.s).listen(self.listener)

    def make(self) -> ByteNetwork:
        """The network."""
        return ByteNetwork(self.clock, random.Random(1))

    def process(self, seed: int) -> SimProcess:
        """A process."""
        return SimProcess(self.clock, random.Random(seed), Owner())

    def run_for(self, seconds: float) -> None:
        """Time passes."""
        self.clock.run_until(self.clock.now_us + int(seconds * 1e6))

    def connect(self) -> Ear:
        """The client's end of a new connection; the server's is the last ear."""
        outcome = StreamClient(self.network, "c", self.c, "s").connect(Factory.forProtocol(Ear))
        self.run_for(1)
        ear = self.successResultOf(outcome)
        assert isinstance(ear, Ear)
        return ear

    def failing(self, seconds: float) -> Failure:
        """The failure of an attempt to connect, which must come within this time."""
        outcome = StreamClient(self.network, "c", self.c, "s").connect(Factory.forProtocol(Ear))
        self.run_for(seconds)
        return self.failureResultOf(outcome)

    @property
    def there(self) -> Ear:
        """The server's end of the newest connection."""
        return self.listener.ears[-1]

    def link(self) -> StreamLink:
        """The newest connection."""
        link = self.network.link_of("c", "s")
        assert link is not None
        return link


class StreamTests(StreamTestCase):
    """Bytes."""

    def test_order_and_pieces(self) -> None:
        """All bytes come in order, in other pieces than they were sent."""
        self.network.cut_chance = 0.5
        here = self.connect()
        sent = b"".join(bytes([number]) * 50 for number in range(200))
        for at in range(0, len(sent), 100):
            here.transport.write(sent[at : at + 100])
        self.run_for(1)
        self.assertEqual(self.there.heard, sent)
        self.assertNotEqual(self.there.reads, 100)

    def test_answers(self) -> None:
        """Both ways, independently."""
        here = self.connect()
        here.transport.write(b"ask")
        self.there.transport.write(b"answer")
        self.run_for(1)
        self.assertEqual((self.there.heard, here.heard), (b"ask", b"answer"))

    def test_cut_holds_back(self) -> None:
        """Nothing is lost by a cut alone: it arrives when the link heals, in order."""
        here = self.connect()
        self.network.cut("c", "s")
        here.transport.write(b"one")
        here.transport.write(b"two")
        self.run_for(5)
        self.assertEqual(self.there.heard, b"")
        self.network.heal("c", "s")
        here.transport.write(b"three")
        self.run_for(1)
        self.assertEqual(self.there.heard, b"onetwothree")

    def test_one_way(self) -> None:
        """With the way back cut, requests arrive and answers do not."""
        here = self.connect()
        self.network.cut("s", "c")
        here.transport.write(b"ask")
        self.there.transport.write(b"answer")
        self.run_for(1)
        self.assertEqual((self.there.heard, here.heard), (b"ask", b""))

    def test_back_pressure(self) -> None:
        """A writer is paused when much is unread, and goes on when all is."""
        here = self.connect()
        here.transport.registerProducer(here, True)
        self.there.transport.pauseProducing()
        here.transport.write(bytes(WINDOW_BYTES + 1))
        self.run_for(5)
        self.assertEqual((here.events, self.there.heard), (["pause"], b""))
        self.there.transport.resumeProducing()
        self.run_for(1)
        self.assertEqual((here.events, len(self.there.heard)), (["pause", "resume"], WINDOW_BYTES + 1))

    def test_unread_bytes_are_joined(self) -> None:
        """What came while a reader did not read is one read."""
        here = self.connect()
        self.there.transport.pauseProducing()
        for _ in range(5):
            here.transport.write(b"x")
        self.run_for(1)
        self.there.transport.resumeProducing()
        self.run_for(1)
        self.assertEqual((self.there.heard, self.there.reads), (b"xxxxx", 1))

    def test_close_comes_behind_the_bytes(self) -> None:
        """The other end reads everything before it hears of the end."""
        here = self.connect()
        here.transport.write(b"last words")
        here.transport.loseConnection()
        here.transport.write(b"too late")
        self.run_for(1)
        self.assertEqual((self.there.heard, self.there.lost), (b"last words", ["ConnectionDone"]))
        self.assertEqual(here.lost, ["ConnectionDone"])

    def test_frozen(self) -> None:
        """A frozen process reads later; its machine accepts connections meanwhile."""
        self.s.freeze()
        here = self.connect()
        here.transport.write(b"ask")
        self.run_for(1)
        self.assertEqual(self.listener.ears, [])
        self.s.thaw()
        self.assertEqual(self.there.heard, b"ask")


class AttemptTests(StreamTestCase):
    """Connecting."""

    def test_nobody_listens(self) -> None:
        """The machine refuses at once."""
        self.network.stop_listening("s", self.s)
        self.failing(0.1).trap(ConnectionRefusedError)

    def test_no_connection_through_a_cut(self) -> None:
        """Whichever way is cut: the attempt ends after some seconds."""
        for source, target in (("c", "s"), ("s", "c")):
            self.network.cut(source, target)
            self.failing(4.1).trap(TimeoutError)
            self.network.heal_all()

    def test_attempts_are_repeated(self) -> None:
        """A cut that heals in time costs a second."""
        self.network.cut("c", "s")
        outcome = StreamClient(self.network, "c", self.c, "s").connect(Factory.forProtocol(Ear))
        self.run_for(0.5)
        self.network.heal_all()
        self.run_for(1)
        self.successResultOf(outcome)

    def test_no_power(self) -> None:
        """A machine without power does not even refuse."""
        self.network.died("s", self.s, silently=True)
        self.failing(4.1).trap(TimeoutError)

    def test_cancelled(self) -> None:
        """An attempt that is given up makes no connection."""
        outcome = StreamClient(self.network, "c", self.c, "s").connect(Factory.forProtocol(Ear))
        outcome.cancel()
        outcome.addErrback(lambda _: None)
        self.run_for(1)
        self.assertEqual(self.listener.ears, [])


class EndTests(StreamTestCase):
    """Ends of connections and processes."""

    def test_lost(self) -> None:
        """Both ends learn; what was under way is gone."""
        here = self.connect()
        here.transport.write(b"x")
        self.network.lose("c", "s")
        self.run_for(1)
        self.assertEqual((here.lost, self.there.lost), (["ConnectionLost"], ["ConnectionLost"]))
        self.assertEqual(self.there.heard, b"")

    def test_late_bytes(self) -> None:
        """Of a connection that its client has lost, what was under way still arrives; nothing comes back."""
        here = self.connect()
        old = self.there
        self.network.delay_connection("c", "s", 2_000_000)
        here.transport.write(b"late")
        self.run_for(0.1)
        self.network.reconnect("c", "s", late_us=10_000_000)
        again = self.connect()
        again.transport.write(b"new")
        self.run_for(0.1)
        self.assertEqual((old.heard, self.there.heard, here.lost), (b"", b"new", ["ConnectionLost"]))
        self.run_for(3)
        self.assertEqual((old.heard, old.lost), (b"late", []))
        old.transport.write(b"answer")
        self.run_for(1)
        self.assertEqual((here.heard, old.lost), (b"", []))
        self.run_for(10)
        self.assertEqual(old.lost, ["ConnectionLost"])

    def test_dark(self) -> None:
        """Of a dark connection neither end hears anything, ever."""
        here = self.connect()
        self.network.darken("c", "s")
        here.transport.write(b"x")
        here.transport.loseConnection()
        self.run_for(60)
        self.assertEqual((self.there.heard, self.there.lost), (b"", []))

    def test_half_open(self) -> None:
        """The client's end is gone, and connects again; the server's is not reported."""
        here = self.connect()
        old = self.there
        self.network.half_open("c", "s")
        self.connect().transport.write(b"again")
        self.run_for(60)
        self.assertEqual((here.lost, old.lost, self.there.heard), (["ConnectionLost"], [], b"again"))

    def test_broken(self) -> None:
        """The client learns at once, the server later, some pieces are lost: never one in the middle."""
        for _ in range(30):
            here = self.connect()
            for number in range(9):
                here.transport.write(bytes([number]))
            self.network.break_between("c", "s", late_us=1_000_000)
            self.assertEqual(here.lost, ["ConnectionLost"])
            self.run_for(2)
            self.assertEqual(self.there.lost, ["ConnectionLost"])
            self.assertTrue(bytes(range(9)).startswith(self.there.heard))

    def test_killed(self) -> None:
        """The peer of a killed process reads its last bytes, then hears of its end."""
        here = self.connect()
        self.there.transport.write(b"written")
        self.s.end()
        self.network.died("s", self.s, silently=False)
        self.run_for(1)
        self.assertEqual((here.heard, here.lost), (b"written", ["ConnectionLost"]))

    def test_without_power(self) -> None:
        """A dead machine informs nobody; when it is up again it resets old connections."""
        here = self.connect()
        self.s.end()
        self.network.died("s", self.s, silently=True)
        here.transport.write(b"x")
        self.run_for(5)
        self.assertEqual(here.lost, [])
        StreamServer(self.network, "s", self.process(3)).listen(self.listener)
        here.transport.write(b"x")
        self.run_for(1)
        self.assertEqual(here.lost, ["ConnectionLost"])

    def test_end_behind_a_cut(self) -> None:
        """A cut link holds back the end of a connection, too."""
        here = self.connect()
        self.network.cut("s", "c")
        self.there.transport.abortConnection()
        self.run_for(5)
        self.assertEqual((self.there.lost, here.lost), (["ConnectionLost"], []))
        self.network.heal_all()
        self.run_for(1)
        self.assertEqual(here.lost, ["ConnectionLost"])

    def test_dead_processes_do_nothing(self) -> None:
        """What Python collects of a dead process sends nothing, and asks the network for no chance."""
        here = self.connect()
        self.c.end()
        before = self.network.rng.getstate()
        here.transport.write(b"x")
        here.transport.abortConnection()
        StreamClient(self.network, "c", self.c, "s").connect(Factory.forProtocol(Ear))
        self.assertEqual(self.network.rng.getstate(), before)
        self.run_for(1)
        self.assertEqual(self.there.heard, b"")

    def test_nothing_is_kept(self) -> None:
        """The network forgets connections of which neither end knows."""
        for _ in range(3):
            self.connect().transport.loseConnection()
            self.run_for(1)
        self.assertEqual(self.network.links, {})


class HiddenMakeTests(StreamTestCase):
    """A network between members that hides that they are of our make."""

    def make(self) -> ByteNetwork:
        network = GroupNetwork(self.clock, random.Random(1), frozenset(("c", "s")))
        network.hides_make = True
        return network

    def test_keys_are_renamed(self) -> None:
        """No byte more or less; other hosts see them as they are."""
        self.connect().transport.write(b'{"wireVersion":1}')
        self.run_for(1)
        self.assertEqual(self.there.heard, b'{"xireVersion":1}')
        network = self.network
        assert isinstance(network, GroupNetwork)
        network.members = frozenset(("s",))
        self.connect().transport.write(b'{"wireVersion":1}')
        self.run_for(1)
        self.assertEqual(self.there.heard, b'{"wireVersion":1}')
