# -*- test-case-name: tests.protocols.test_outlet -*-
"""Output goes to the socket at once, in order, and nowhere else when the socket is full or gone."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable

from twisted.internet.interfaces import ISSLTransport, ITCPTransport
from twisted.internet.main import CONNECTION_DONE
from twisted.internet.protocol import Protocol
from twisted.internet.tcp import Connection, Server
from twisted.internet.testing import MemoryReactor, StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import directlyProvides

from protocols.outlet import AT_ONCE_BYTES_MAX, SEND_BYTES_MAX, Outlet, read_directly


class Socket:
    """
    A TCP transport as Twisted has it: C{write} goes to one buffer, C{doWrite} moves it to a second and
    gives that to the socket, which takes C{room} bytes.
    """

    def __init__(self) -> None:
        directlyProvides(self, ITCPTransport)
        self.room = 1 << 20
        self.is_broken = False
        self.sent = b""
        self.dataBuffer = b""
        self.producerPaused = False
        self.calls: list[str] = []
        self._later = b""
        self.resume: Callable[[], None] = lambda: None

    def getHandle(self) -> Socket:
        """The socket itself."""
        return self

    def send(self, data: bytes) -> int:
        """Straight to the socket."""
        self.calls.append("send")
        if self.is_broken or not self.room:
            raise BlockingIOError
        taken = min(self.room, len(data))
        self.sent += data[:taken]
        self.room -= taken
        return taken

    def write(self, data: bytes) -> None:
        """To the buffer."""
        self.calls.append("write")
        self._later += data

    def writeSequence(self, parts: Iterable[bytes]) -> None:
        """To the buffer, unjoined."""
        self.calls.append("writeSequence")
        self._later += b"".join(parts)

    def doWrite(self) -> None:
        """The call of the reactor when the socket has room."""
        self.calls.append("doWrite")
        self.dataBuffer, self._later = self.dataBuffer + self._later, b""
        taken = self.send(self.dataBuffer) if self.room else 0
        self.dataBuffer = self.dataBuffer[taken:]
        if not self.dataBuffer and self.producerPaused:
            self.producerPaused = False
            self.resume()


class OutletTests(SynchronousTestCase):
    """One transport after another state."""

    def setUp(self) -> None:
        self.socket = Socket()
        self.outlet = Outlet(self.socket)

    def test_at_once(self) -> None:
        """A socket with room is all that is asked."""
        self.outlet.send(b"one")
        self.outlet.send(b"two")
        self.assertEqual(self.socket.sent, b"onetwo")
        self.assertEqual(self.socket.calls, ["send"] * 2)

    def test_waiting_bytes(self) -> None:
        """Those in both buffers of a socket; another transport does not say."""
        transport = Connection(Kernel(), Protocol(), MemoryReactor())
        outlet = Outlet(transport)
        transport.dataBuffer, transport.offset = b"12345", 2
        transport._tempDataLen = 10
        self.assertEqual(outlet.waiting_bytes(99), 13)
        self.assertEqual(Outlet(StringTransport()).waiting_bytes(99), 99)

    def test_kernel(self) -> None:
        """The kernel takes little for an end that does not read, if that is asked for."""
        kernel = Kernel()
        transport = Connection(kernel, Protocol(), MemoryReactor())
        Outlet(transport)
        self.assertEqual(kernel.options, [])
        Outlet(transport, kernel_bytes_max=1000)
        self.assertEqual(kernel.options, [(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 1000)])

    def test_drop(self) -> None:
        """Of an ended connection no output is kept in either buffer."""
        transport = Connection(Kernel(), Protocol(), MemoryReactor())
        outlet = Outlet(transport)
        transport.dataBuffer, transport.offset = b"12345", 2
        transport._tempDataBuffer, transport._tempDataLen = [b"x" * 10], 10
        outlet.drop()
        self.assertEqual((outlet.waiting_bytes(99), transport.dataBuffer), (0, b""))
        self.assertEqual(transport._tempDataBuffer, [])

    def test_parts(self) -> None:
        """Small ones are one call to the socket; a long train goes the transport's way, and is not copied."""
        self.outlet.send(b"a", b"b")
        self.assertEqual(self.socket.calls, ["send"])
        self.socket.calls.clear()
        long = bytes(AT_ONCE_BYTES_MAX)
        self.outlet.send(b"c", long)
        self.outlet.send(b"d")
        self.assertEqual(self.socket.calls[0], "writeSequence")
        self.assertEqual(self.socket.sent, b"abc" + long + b"d")

    def test_what_does_not_fit_waits(self) -> None:
        """The rest goes to the transport, once, and what follows goes after it."""
        self.socket.room = 4
        self.outlet.send(b"abcdef")
        self.assertEqual(self.socket.sent, b"abcd")
        self.outlet.send(b"ghi")
        self.socket.room = 100
        self.outlet.send(b"jkl")
        self.assertEqual(self.socket.sent, b"abcdefghijkl")

    def test_emptied_by_the_reactor(self) -> None:
        """Then the next goes after the bytes that the reactor sent, and those after it at once again."""
        self.socket.room = 0
        self.outlet.send(b"a")
        self.socket.room = 100
        self.socket.doWrite()
        self.outlet.send(b"b")
        self.socket.calls.clear()
        self.outlet.send(b"c")
        self.assertEqual(self.socket.sent, b"abc")
        self.assertEqual(self.socket.calls, ["send"])

    def test_not_yet_seen_by_the_reactor(self) -> None:
        """Bytes that the transport took and has not looked at yet are in front of the next."""
        self.socket.room = 0
        self.outlet.send(b"a")
        self.socket.room = 1
        self.outlet.send(b"b")
        self.assertEqual(self.socket.sent, b"a")
        self.socket.room = 100
        self.outlet.send(b"c")
        self.assertEqual(self.socket.sent, b"abc")

    def test_producer_is_not_resumed_from_within(self) -> None:
        """A paused producer waits for the reactor."""
        self.socket.resume = lambda: self.fail("resumed from within send")
        self.socket.room = 0
        self.outlet.send(b"a")
        self.socket.producerPaused = True
        self.socket.room = 100
        self.outlet.send(b"b")
        self.assertEqual(self.socket.sent, b"")

    def test_lost(self) -> None:
        """No error from here: the reactor meets it again with the same bytes."""
        self.socket.is_broken = True
        self.outlet.send(b"a")
        self.assertEqual(self.socket.calls, ["send", "write"])

    def test_closed_before_the_last_output(self) -> None:
        """The reactor ends the connection when a later output has drained it."""
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        theirs.setblocking(False)
        reactor = MemoryReactor()
        transport = Server(ours, Protocol(), ("127.0.0.1", 1), None, 1, reactor)  # type: ignore[arg-type]
        outlet = Outlet(transport)
        outlet.send(b"x" * (8 << 20))
        transport.loseConnection()

        def receive() -> None:
            with contextlib.suppress(BlockingIOError):
                while theirs.recv(1 << 20):
                    pass

        while outlet.waiting_bytes(0) > 100_000:
            receive()
            transport.doWrite()
        receive()
        outlet.send(b"y")
        self.assertEqual((outlet.waiting_bytes(0), reactor.getWriters()), (0, [transport]))
        self.assertIs(transport.doWrite(), CONNECTION_DONE)

    def test_no_socket(self) -> None:
        """Anything else is merely written to."""
        transport = StringTransport()
        outlet = Outlet(transport)
        outlet.send(b"a")
        outlet.send(b"b")
        self.assertEqual(transport.value(), b"ab")


class Kernel:
    """The socket below a real transport: takes all that it is offered, and remembers how much that was."""

    def __init__(self) -> None:
        self.offered: list[int] = []
        self.options: list[tuple[int, int, int]] = []

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """As C{socket.setsockopt}."""
        self.options.append((level, option, value))

    def send(self, data: bytes) -> int:
        """As C{socket.send}."""
        self.offered.append(len(data))
        return len(data)

    def setblocking(self, _flag: bool) -> None:
        """It never blocks."""

    def fileno(self) -> int:
        """None that anybody could poll."""
        return -1


class LongAnswerTests(SynchronousTestCase):
    """Twisted's own transport, with a socket that takes whatever it is offered."""

    def test_rounds(self) -> None:
        """A pull of 4 MiB takes five rounds of the reactor; of what Twisted offers at a time it takes 33."""
        kernel = Kernel()
        transport = Connection(kernel, Protocol(), MemoryReactor())
        transport.connected = True
        answer = [b"head", *[bytes(64 * 1024)] * 64]
        Outlet(transport).send(*answer)
        for _ in range(100):
            if transport.dataBuffer or transport._tempDataBuffer:
                transport.doWrite()
        self.assertEqual(sum(kernel.offered), 4 + 4 * 1024 * 1024)
        self.assertEqual(max(kernel.offered), SEND_BYTES_MAX)
        self.assertEqual(len(kernel.offered), 5)  # the head is more than the four


class ReadDirectlyTests(SynchronousTestCase):
    """The layers between a socket and our protocol are passed by."""

    def test_passed_by(self) -> None:
        """Reads come to ours at once; the end of the connection still goes the whole way."""
        ours, between = Protocol(), Protocol()
        socket = Socket()
        socket.protocol = between  # type: ignore[attr-defined]
        read_directly(socket, ours)
        self.assertEqual(between.dataReceived, ours.dataReceived)
        self.assertNotEqual(between.connectionLost, ours.connectionLost)

    def test_tls_over_a_socket(self) -> None:
        """TLS lends all interfaces and methods of its socket: its bytes still go through it, both ways."""
        ours, between, secure = Protocol(), Protocol(), Socket()
        directlyProvides(secure, ITCPTransport, ISSLTransport)
        secure.protocol = between  # type: ignore[attr-defined]
        read_directly(secure, ours)
        self.assertNotEqual(between.dataReceived, ours.dataReceived)
        Outlet(secure).send(b"not in the clear")
        self.assertEqual((secure.calls, secure.sent), (["write"], b""))

    def test_socket_beneath_tls(self) -> None:
        """What TLS makes of the bytes is offered to the socket at once, if it takes any."""
        class Secure:
            """TLS over a socket."""

            def __init__(self) -> None:
                self.transport = Socket()

            def write(self, data: bytes) -> None:
                """Passed on, changed."""
                self.transport.write(data.upper())

        for is_paused, sent in ((False, b"HELLO"), (True, b"")):
            secure = Secure()
            secure.transport.producerPaused = is_paused
            self.assertEqual(Outlet(secure).send(b"he", b"llo"), 5)
            self.assertEqual(secure.transport.sent, sent)

    def test_tls_is_not(self) -> None:
        """A transport that makes something of the bytes keeps its protocol."""
        ours, between = Protocol(), Protocol()
        transport = StringTransport()
        transport.protocol = between  # type: ignore[attr-defined]
        read_directly(transport, ours)
        self.assertNotEqual(between.dataReceived, ours.dataReceived)

    def test_nothing_between(self) -> None:
        """A server's connection is the socket's own protocol."""
        ours = Protocol()
        socket = Socket()
        socket.protocol = ours  # type: ignore[attr-defined]
        read_directly(socket, ours)
        self.assertNotIn("dataReceived", vars(ours))
