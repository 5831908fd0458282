# -*- test-case-name: tests.protocols.test_socket_set -*-
"""Many sockets read as one: in one pass, fairly, and each for itself when it fails."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
from collections.abc import Callable
from unittest import SkipTest

from twisted.internet import task
from twisted.internet.error import ConnectionDone
from twisted.internet.protocol import Protocol, connectionDone
from twisted.internet.tcp import Server
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from protocols import socket_set
from protocols.put_off import SHORT_READ_BYTES
from protocols.socket_set import FOUND_MAX, SocketSet
from protocols.turn import READS_S, Turn

_LONG = b"l" * (SHORT_READ_BYTES + 1)


class _Heard(Protocol):
    """Notes its reads in C{world.heard}. @ivar cost_s: how far one read moves the clock."""

    cost_s = 0.0
    bug = False
    then: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, world: SocketSetCase, name: str) -> None:
        self.world = world
        self.name = name
        self.lost: Failure | None = None

    def dataReceived(self, data: bytes) -> None:
        self.world.turn.read(self._take, data)

    def _take(self, data: bytes) -> None:
        self.world.clock.advance(self.cost_s)
        self.world.heard.append((self.name, data[:4]))
        self.world.read_bytes[self.name] = self.world.read_bytes.get(self.name, 0) + len(data)
        self.then()
        self.world.turn.output(lambda: self.world.heard.append((self.name, b"written")))
        if self.bug:
            raise RuntimeError("a bug")

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost = reason
        if self.bug and reason.check(ConnectionDone):
            raise RuntimeError("a bug")


class SocketSetCase(SynchronousTestCase):
    """On the ends of socket pairs, without a reactor that runs."""

    def setUp(self) -> None:
        if not socket_set._CAN_POLL:
            raise SkipTest("this system has no epoll")
        self.clock = task.Clock()
        self.reactor = MemoryReactorClock()
        self.failures: list[Failure] = []
        self.turn = Turn(self.clock, self.failures.append)
        self.sockets = SocketSet(self.turn)
        self.heard: list[tuple[str, bytes]] = []
        self.read_bytes: dict[str, int] = {}
        self.serial = 0

    def made(self, name: str) -> tuple[_Heard, Server, socket.socket]:
        """A connection that the set has taken, and the other end."""
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        heard = _Heard(self, name)
        transport = Server(ours, heard, ("127.0.0.1", 1), None, 1, self.reactor)  # type: ignore[arg-type]
        heard.makeConnection(transport)
        self.sockets.take(transport)  # type: ignore[arg-type]
        return heard, transport, theirs


class SocketSetTests(SocketSetCase):
    """What one pass does."""

    def test_one_reader(self) -> None:
        """The reactor reads the set alone, and a pass hands over everything before any output."""
        made = [self.made(name) for name in "ab"]
        self.assertEqual(self.reactor.getReaders(), [self.sockets])
        for _, _, theirs in made:
            theirs.send(b"hey")
        self.sockets.doRead()
        self.assertEqual(sorted(self.heard[:2]), [("a", b"hey"), ("b", b"hey")])
        self.assertEqual([one for _, one in self.heard[2:]], [b"written", b"written"])

    def test_short_reads_come_first(self) -> None:
        """A long read waits for the short ones of the pass; its connection's bytes stay in order."""
        (_, _, flood), (_, _, other) = self.made("flood"), self.made("other")
        flood.send(_LONG)
        other.send(b"hey")
        self.sockets.doRead()
        self.assertEqual(self.heard[:2], [("other", b"hey"), ("flood", b"llll")])

    def test_what_follows_a_long_read(self) -> None:
        """It waits for it, although it is short, and comes in the same pass."""
        self.patch(socket_set, "FOUND_MAX", 1)
        (_, _, flood), (heard, _, other) = self.made("flood"), self.made("other")
        flood.send(_LONG)
        other.send(b"hey")
        heard.then = lambda: flood.send(b"tail")
        self.sockets.doRead()
        self.assertEqual(self.heard[:2], [("other", b"hey"), ("flood", b"llll")])
        self.assertEqual(self.read_bytes["flood"], len(_LONG) + 4)

    def test_a_late_turn(self) -> None:
        """A pass ends when the turn is late; the next one goes on where it ended."""
        made = [self.made(str(number)) for number in range(4)]
        for heard, _, theirs in made:
            heard.cost_s = READS_S / 2
            theirs.send(b"one")
        self.sockets.doRead()
        first = [name for name, what in self.heard if what == b"one"]
        self.assertEqual(len(first), 2)
        for name in first:
            made[int(name)][2].send(b"two")
        self.sockets.doRead()
        self.assertEqual(sorted(name for name, what in self.heard if what == b"one"), ["0", "1", "2", "3"])

    def test_many(self) -> None:
        """More sockets than one look finds."""
        made = [self.made(str(number)) for number in range(FOUND_MAX + 3)]
        for _, _, theirs in made:
            theirs.send(b"one")
        self.sockets.doRead()
        self.assertEqual(len(set(self.heard)), 2 * len(made))

    def test_the_end(self) -> None:
        """A connection whose other end has gone ends; without any, the reactor reads the set no longer."""
        (one, _, first), (other, transport, _) = self.made("a"), self.made("b")
        first.close()
        self.sockets.doRead()
        self.assertIsNotNone(one.lost)
        self.assertIsNone(other.lost)
        self.assertEqual(self.reactor.getReaders(), [self.sockets])
        transport.loseConnection()
        self.sockets.doRead()
        self.assertIsNotNone(other.lost)
        self.assertEqual(self.reactor.getReaders(), [])
        self.made("c")[2].send(b"hey")
        self.sockets.doRead()
        self.assertIn(("c", b"hey"), self.heard)

    def test_no_descriptor_for_it(self) -> None:
        """The reactor itself reads a connection for which there is no epoll; the set reads the next ones."""

        def epoll() -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        kept = select.epoll
        self.patch(socket_set.select, "epoll", epoll)
        _, transport, theirs = self.made("a")
        self.assertEqual(self.reactor.getReaders(), [transport])
        theirs.send(b"hey")
        transport.doRead()
        self.assertEqual(self.heard[0], ("a", b"hey"))
        self.patch(socket_set.select, "epoll", kept)
        self.made("b")[2].send(b"hey")
        self.sockets.doRead()
        self.assertIn(("b", b"hey"), self.heard)

    def test_no_descriptor_after_a_pause(self) -> None:
        """The only connection pauses, and goes on when no descriptor is left."""
        _, transport, theirs = self.made("a")
        transport.pauseProducing()
        self.assertEqual(self.reactor.getReaders(), [])
        self.patch(socket_set.select, "epoll", None)
        transport.resumeProducing()
        theirs.send(b"hey")
        self.sockets.doRead()
        self.assertEqual(self.heard[0], ("a", b"hey"))

    def test_a_bug(self) -> None:
        """An exception ends its connection, and is logged; the others are read."""
        (one, _, first), (other, _, second) = self.made("a"), self.made("b")
        one.bug = True
        first.send(b"hey")
        second.send(b"hey")
        self.sockets.doRead()
        self.assertIsNotNone(one.lost)
        self.assertIsNone(other.lost)
        self.assertIn(("b", b"hey"), self.heard)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_a_bug_at_the_end(self) -> None:
        """It is logged, and the others are read in the next pass at the latest."""
        (one, _, first), (_, _, second) = self.made("a"), self.made("b")
        one.bug = True
        first.close()
        second.send(b"hey")
        self.sockets.doRead()
        self.sockets.doRead()
        self.assertIn(("b", b"hey"), self.heard)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_output_that_waits(self) -> None:
        """What the socket does not take at once is written when it has room."""
        _, transport, theirs = self.made("a")
        size = 4 * 1024 * 1024
        transport.write(b"x" * size)
        got = 0
        for _ in range(1000):
            self.sockets.doRead()
            got += len(theirs.recv(1 << 20))
            if got == size:
                break
        self.assertEqual(got, size)

    def test_given_back(self) -> None:
        """The reactor reads and writes what was given back, as far as it was read and written."""
        _, transport, theirs = self.made("a")
        transport.write(b"x")
        self.sockets.give_back(transport)  # type: ignore[arg-type]
        self.assertEqual(self.reactor.getReaders(), [transport])
        self.assertEqual(self.reactor.getWriters(), [transport])
        theirs.send(b"hey")
        transport.doRead()
        self.assertEqual(self.heard[0], ("a", b"hey"))
        _, paused, _ = self.made("b")
        paused.pauseProducing()
        self.sockets.give_back(paused)  # type: ignore[arg-type]
        self.assertNotIn(paused, self.reactor.getReaders())

    def test_a_paused_connection_is_not_read(self) -> None:
        """Until it goes on."""
        _, transport, theirs = self.made("a")
        self.made("b")
        theirs.send(b"hey")
        transport.pauseProducing()
        self.sockets.doRead()
        self.assertEqual(self.heard, [])
        transport.resumeProducing()
        self.sockets.doRead()
        self.assertEqual(self.heard[0], ("a", b"hey"))


class OrderTests(SocketSetCase):
    """What a pass finds of one connection stays in order, and nobody waits for ever."""

    def bytes_of(self, name: str) -> list[bytes]:
        """The begins of its reads."""
        return [what for one, what in self.heard if one == name and what != b"written"]

    def test_output_after_a_long_read(self) -> None:
        """A long read waits, and its socket is found again, with more bytes and room for output."""
        self.patch(socket_set, "FOUND_MAX", 1)
        (_, transport, flood), (heard, _, other) = self.made("flood"), self.made("other")
        flood.send(b"1111" + _LONG)
        other.send(b"hey")

        def then() -> None:
            flood.send(b"2222" + _LONG)
            transport.startWriting()

        heard.then = then
        for _ in range(2):
            self.sockets.doRead()
        self.assertEqual(self.bytes_of("flood"), [b"1111", b"2222"])

    def test_end_after_a_long_read(self) -> None:
        """The other end has sent all: the long read comes, and then the end."""
        self.patch(socket_set, "FOUND_MAX", 1)
        (flooding, _, flood), (heard, _, other) = self.made("flood"), self.made("other")
        flood.send(b"1111" + _LONG)
        other.send(b"hey")
        heard.then = lambda: flood.shutdown(socket.SHUT_WR)
        for _ in range(2):
            self.sockets.doRead()
        self.assertEqual(self.bytes_of("flood"), [b"1111"])
        self.assertIsNotNone(flooding.lost)

    def test_a_bug_at_an_end(self) -> None:
        """It costs the others none of their bytes."""
        for names in ("ab", "ba"):
            made = {name: self.made(name) for name in names}
            made["a"][0].bug = True
            made["b"][2].send(_LONG)
            made["a"][2].close()
            for _ in range(2):
                self.sockets.doRead()
            self.assertEqual(self.read_bytes.pop("b"), len(_LONG))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 2)

    def test_paused_by_another(self) -> None:
        """It is not read, although it was found before."""
        (first, _, one), (_, transport, other) = self.made("a"), self.made("b")
        one.send(b"one")
        other.send(b"two")

        def then() -> None:
            transport.write(b"x" * (4 << 20))
            transport.pauseProducing()

        first.then = then
        self.sockets.doRead()
        self.assertEqual(self.bytes_of("b"), [])

    def test_a_pass_has_an_end(self) -> None:
        """Also if its reads do not reach the turn: a handshake of TLS, a part of a record."""
        self.patch(socket_set, "FOUND_MAX", 1)
        heard, _, theirs = self.made("tls")
        reads: list[bytes] = []

        def received(data: bytes) -> None:
            reads.append(data)
            self.clock.advance(READS_S / 10)
            theirs.send(b"x")

        heard.dataReceived = received  # type: ignore[method-assign]
        theirs.send(b"x")
        self.sockets.doRead()
        self.assertLess(len(reads), 20)

    def test_busy_ones_delay_nobody(self) -> None:
        """Output is sent, and an end is noticed, while others use up each turn."""
        _, transport, theirs = self.made("reader")
        ending, _, gone = self.made("gone")
        size = 4 << 20
        transport.write(b"x" * size)
        for _ in range(2):
            self.sockets.doRead()
        gone.close()
        made = [self.made(str(number)) for number in range(4)]
        for heard, _, busy in made:
            heard.cost_s = READS_S * 0.6
            busy.send(b"one")
        theirs.setblocking(False)
        received = 0
        for _ in range(300):
            self.heard.clear()
            self.sockets.doRead()
            for name in [name for name, what in self.heard if what == b"one"]:
                made[int(name)][2].send(b"one")
            self.clock.advance(0)
            with contextlib.suppress(BlockingIOError):
                received += len(theirs.recv(1 << 20))
        self.assertEqual(received, size)
        self.assertIsNotNone(ending.lost)
