# -*- test-case-name: tests.aio.test_event_loop -*-
"""An event loop as a clock and as a source of connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.error import AlreadyCalled, AlreadyCancelled, ConnectError
from twisted.internet.interfaces import IDelayedCall, IReactorTime, ITCPTransport
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from dledger.client.event_loop import LoopClock, LoopConnections, LoopTransport


def run(story: Callable[[], Awaitable[object]], *, seconds: float = 30.0) -> None:
    """Run a coroutine in a loop of its own."""

    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await story()

    asyncio.run(bounded())


class ClockTests(SynchronousTestCase):
    """Calls in time."""

    def test_calls(self) -> None:
        """In order of time; a cancelled one never comes; each is known while it is outstanding."""

        async def story() -> None:
            clock = LoopClock(asyncio.get_running_loop())
            verifyObject(IReactorTime, clock)
            seen: list[object] = []
            done = asyncio.Event()
            clock.callLater(0.02, done.set)
            clock.callLater(0.01, seen.append, "later")
            verifyObject(IDelayedCall, clock.callLater(0, seen.append, "soon"))
            never = clock.callLater(0.005, seen.append, "never")
            never.cancel()
            self.assertFalse(never.active())
            self.assertEqual(len(clock.getDelayedCalls()), 3)
            await done.wait()
            self.assertEqual((seen, clock.getDelayedCalls()), (["soon", "later"], []))

        run(story)

    def test_moved(self) -> None:
        """A call can be moved both ways, until it was made or cancelled."""

        async def story() -> None:
            clock = LoopClock(asyncio.get_running_loop())
            done = asyncio.Event()
            call = clock.callLater(1000, done.set)
            call.delay(1000)
            self.assertLess(abs(call.getTime() - clock.seconds() - 2000), 100)
            call.reset(0.001)
            await done.wait()
            self.assertRaises(AlreadyCalled, call.cancel)
            self.assertRaises(AlreadyCalled, call.reset, 1)
            other = clock.callLater(1000, done.clear)
            other.cancel()
            self.assertRaises(AlreadyCancelled, other.cancel)
            self.assertRaises(AlreadyCancelled, other.delay, 1)

        run(story)


class Recorder(Protocol):
    """Its input, and whether its transport is full."""

    transport: Any

    def __init__(self) -> None:
        self.received = b""
        self.pauses: list[str] = []
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connectionMade(self) -> None:
        self.transport.registerProducer(self, True)

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def connectionLost(self, reason: Any = None) -> None:
        self.lost.set_result(reason.type.__name__)

    def pauseProducing(self) -> None:
        """The transport is full."""
        self.pauses.append("full")

    def resumeProducing(self) -> None:
        """It is not."""
        self.pauses.append("empty")


class ConnectionTests(SynchronousTestCase):
    """Connections to a server of the same loop."""

    def setUp(self) -> None:
        self.serving: set[asyncio.Task[None]] = set()

    async def server(self, serve: Callable[..., Awaitable[None]]) -> str:
        """@return: its address."""

        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self.serving.add(task)
            await serve(reader, writer)

        server = await asyncio.start_server(served, "127.0.0.1", 0)
        self.addCleanup(server.close)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def connected(self, connections: LoopConnections, address: str) -> Recorder:
        """A protocol with an open connection."""
        recorder = Recorder()
        made = connections.endpoint_for(address).connect(Factory.forProtocol(lambda: recorder))
        self.assertIs(await made.asFuture(asyncio.get_running_loop()), recorder)
        return recorder

    def test_both_ways(self) -> None:
        """Bytes, addresses, options of the socket, an orderly end."""

        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(4))
            await reader.read()
            writer.close()

        async def story() -> None:
            connections = LoopConnections(asyncio.get_running_loop(), 5.0)
            address = await self.server(echo)
            recorder = await self.connected(connections, address)
            transport = recorder.transport
            verifyObject(ITCPTransport, transport)
            transport.writeSequence([b"ab", b"cd"])
            while recorder.received != b"abcd":
                await asyncio.sleep(0)
            peer = transport.getPeer()
            self.assertEqual(f"{peer.host}:{peer.port}", address)
            self.assertEqual(transport.getHost().host, "127.0.0.1")
            for on in (True, False):
                transport.setTcpNoDelay(on)
                transport.setTcpKeepAlive(on)
                self.assertEqual((transport.getTcpNoDelay(), transport.getTcpKeepAlive()), (on, on))
            transport.loseConnection()
            self.assertTrue(transport.disconnecting)
            transport.write(b"too late")
            await connections.closed()
            self.assertEqual(await recorder.lost, "ConnectionDone")

        run(story)

    def test_full(self) -> None:
        """A producer is paused while the other end does not read, and resumed; reading can be paused, too."""
        size = 32 * 1024 * 1024

        async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"first")
            await reading.wait()
            await reader.readexactly(size)
            writer.write(b"second")
            written.set()
            await reader.read()
            writer.close()

        async def story() -> None:
            connections = LoopConnections(asyncio.get_running_loop(), 5.0)
            recorder = await self.connected(connections, await self.server(slow))
            recorder.transport.pauseProducing()
            recorder.transport.write(bytes(size))
            self.assertEqual(recorder.pauses, ["full"])
            reading.set()
            while recorder.pauses != ["full", "empty"]:
                await asyncio.sleep(0)
            await written.wait()
            for _ in range(10):
                await asyncio.sleep(0)
            self.assertNotIn(b"second", recorder.received)
            recorder.transport.resumeProducing()
            while recorder.received != b"firstsecond":
                await asyncio.sleep(0)
            recorder.transport.unregisterProducer()
            connections.abort()
            await connections.closed()
            await recorder.lost
            recorder.transport.pauseProducing()
            recorder.transport.resumeProducing()

        reading, written = asyncio.Event(), asyncio.Event()
        run(story)

    def test_lost(self) -> None:
        """A connection that breaks says so."""

        async def broken(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.get_extra_info("socket").setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER: RST
            writer.transport.abort()

        async def story() -> None:
            connections = LoopConnections(asyncio.get_running_loop(), 5.0)
            recorder = await self.connected(connections, await self.server(broken))
            recorder.transport.write(b"x")
            self.assertIn(await recorder.lost, ("ConnectionLost", "ConnectionDone"))
            await connections.closed()

        run(story)

    def test_left_at_once(self) -> None:
        """A peer that has left before anybody asks for its address: a connection that ends, and no error."""

        class Unnamed(asyncio.Transport):
            """As asyncio's own, when getpeername has failed."""

            def get_extra_info(self, name: str, default: Any = None) -> Any:
                """Nothing is known."""
                return default

        async def story() -> None:
            connections = LoopConnections(asyncio.get_running_loop(), 5.0)
            transport = LoopTransport(Factory.forProtocol(Recorder), connections)
            transport.connection_made(Unnamed())
            self.assertIsInstance(transport.protocol, Recorder)
            self.assertEqual((transport.getPeer().host, transport.getHost().port), ("0.0.0.0", 0))
            transport.connection_lost(None)
            await connections.closed()

        run(story)

    def test_not_connected(self) -> None:
        """Refused, too late, not wanted, cancelled: an error each, and nothing is left open."""

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async def story() -> None:
            loop = asyncio.get_running_loop()
            address = await self.server(hold)
            connections = LoopConnections(loop, 5.0)
            with self.assertRaises(ConnectError):
                await self.connected(connections, "127.0.0.1:1")
            with self.assertRaises(ConnectError) as late:
                await self.connected(LoopConnections(loop, 0.0), address)
            self.assertIn("within 0 s", str(late.exception))
            unwanted: Any = type("Unwanted", (), {"buildProtocol": lambda self, addr: None})()
            with self.assertRaises(ConnectError):
                await connections.endpoint_for(address).connect(unwanted).asFuture(loop)
            connecting = connections.endpoint_for(address).connect(Factory.forProtocol(Recorder))
            connecting.addErrback(lambda _: None)
            await asyncio.sleep(0)
            connecting.cancel()
            await connections.closed()
            self.assertEqual(connections._open, set())
            await asyncio.gather(*self.serving)

        run(story)
