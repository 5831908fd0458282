# -*- test-case-name: tests.protocols.test_ha -*-
"""Both ends of a replication connection: bytes, back-pressure, order, and ends."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from typing import Any

from twisted.internet.interfaces import IPushProducer, ITCPTransport
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer
from zope.interface.verify import verifyObject

from protocols.rocketmq.ha import FRAMES_MAX, RECEIVE_SIZE, UNSENT_SIZE_MAX, HAClient, HAConnection
from protocols.wire.rocketmq.ha import TRANSFER_HEADER, Piece, TransferReader, encode_report
from tests.broker.ha.fakes import plug, unplug


class SeenSlaves:
    """A master that remembers."""

    def __init__(self) -> None:
        self.reports: list[int] = []
        self.events: list[str] = []

    def connected(self, connection: HAConnection) -> None:
        """Remember."""
        self.events.append("connected")

    def reported(self, connection: HAConnection, offset: int) -> None:
        """Remember."""
        self.reports.append(offset)

    def drained(self, connection: HAConnection) -> None:
        """Remember."""
        self.events.append("drained")

    def connection_lost(self, connection: HAConnection, reason: str) -> None:
        """Remember."""
        self.events.append(f"lost: {reason}")


class SeenMaster:
    """A slave that remembers; aborts at the offset that it is given."""

    def __init__(self, aborts_at: int = -1) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.reads = 0
        self.lost: list[str] = []
        self.aborts_at = aborts_at

    def connected(self, client: HAClient) -> None:
        """Nothing to do."""

    def transferred(self, client: HAClient, pieces: Sequence[Piece]) -> None:
        """Remember."""
        self.reads += 1
        for offset, data in pieces:
            self.pieces.append((offset, bytes(data)))
            if offset == self.aborts_at:
                client.abort("enough")

    def connection_lost(self, client: HAClient, reason: str) -> None:
        """Remember."""
        self.lost.append(reason)


@implementer(ITCPTransport)
class SocketTransport(StringTransport):
    """A transport whose socket is there for everybody, as Twisted's is."""

    def __init__(self, handle: socket.socket) -> None:
        super().__init__(lenient=True)
        self.handle = handle
        self.bufferSize = 65536
        self.options: list[str] = []
        self.is_aborted = False

    def getHandle(self) -> socket.socket:
        """The socket."""
        return self.handle

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Remember."""
        self.options.append("no delay")

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Remember."""
        self.options.append("keep alive")

    def abortConnection(self) -> None:
        """Remember."""
        self.is_aborted = True

    def write(self, data: bytes) -> None:
        """As Twisted's: more than C{bufferSize} bytes are too many."""
        super().write(data)
        if len(self.value()) > self.bufferSize:
            self.producer.pauseProducing()  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class MasterEndTests(SynchronousTestCase):
    """L{HAConnection}."""

    def setUp(self) -> None:
        self.seen = SeenSlaves()
        self.connection = HAConnection(self.seen, serial=7)
        self.transport = plug(self.connection)

    def test_producer(self) -> None:
        """It is registered as a streaming producer."""
        verifyObject(IPushProducer, self.connection)
        self.assertIs(self.transport.producer, self.connection)
        self.assertTrue(self.transport.streaming)

    def test_reports(self) -> None:
        """Of one read the newest; in two pieces as in one."""
        self.connection.dataReceived(encode_report(1) + encode_report(5)[:3])
        self.connection.dataReceived(encode_report(5)[3:])
        self.assertEqual(self.seen.reports, [1, 5])

    def test_bad_report(self) -> None:
        """An offset below zero ends the connection, once, with the reason."""
        self.connection.dataReceived(encode_report(-2))
        self.assertTrue(self.transport.is_aborted)
        self.connection.dataReceived(encode_report(3))
        unplug(self.connection)
        self.assertEqual(self.seen.reports, [])
        lost = "lost: broken format: offset report: offset=-2 below 0"
        self.assertEqual(self.seen.events, ["connected", lost])

    def test_frames(self) -> None:
        """A stretch is cut into frames of at most the batch size; the last is short."""
        self.connection.transfer(100, bytes(range(250)), batch_size=100)
        data = self.transport.take()
        self.assertEqual(data[:12], TRANSFER_HEADER.pack(100, 100))
        self.assertEqual(data[112:124], TRANSFER_HEADER.pack(200, 100))
        self.assertEqual(data[224:236], TRANSFER_HEADER.pack(300, 50))
        pieces: list[Piece] = []
        TransferReader().feed(data, pieces)
        log = b"".join(bytes(piece) for _, piece in pieces)
        self.assertEqual(log, bytes(range(250)))

    def test_too_many_frames(self) -> None:
        """More frames than one call takes are a mistake of the caller."""
        self.connection.transfer(0, bytes(FRAMES_MAX), batch_size=1)
        self.assertRaises(AssertionError, self.connection.transfer, 0, bytes(FRAMES_MAX + 1), batch_size=1)

    def test_heartbeat(self) -> None:
        """A header that announces the next bytes."""
        self.connection.heartbeat(326)
        self.assertEqual(self.transport.take(), TRANSFER_HEADER.pack(326, 0))

    def test_back_pressure(self) -> None:
        """The owner sees that it is congested, and is informed when it is not any more."""
        self.connection.pauseProducing()
        self.assertTrue(self.connection.is_congested)
        self.connection.resumeProducing()
        self.assertFalse(self.connection.is_congested)
        self.assertEqual(self.seen.events, ["connected", "drained"])

    def test_lost(self) -> None:
        """Reported once; nothing is sent any more, nothing drained."""
        unplug(self.connection)
        unplug(self.connection)
        self.connection.transfer(0, b"abc", batch_size=10)
        self.connection.heartbeat(3)
        self.connection.resumeProducing()
        self.connection.abort("again")
        self.assertEqual(self.transport.take(), b"")
        self.assertEqual(self.seen.events, ["connected", "lost: Connection was closed cleanly."])

    def test_address(self) -> None:
        """For logs, and for distinguishing slaves."""
        self.assertEqual((self.connection.host, self.connection.address), ("10.0.0.1", "10.0.0.1:4711"))


class SocketTests(SynchronousTestCase):
    """The straight road to the socket, and its order with the transport's."""

    def setUp(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.addCleanup(self.theirs.close)
        self.addCleanup(ours.close)
        for end in (ours, self.theirs):
            end.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.seen = SeenSlaves()
        self.connection = HAConnection(self.seen)
        self.transport = SocketTransport(ours)
        self.connection.makeConnection(self.transport)  # type: ignore[arg-type]

    def receive(self) -> bytes:
        """Everything that is in the socket."""
        parts = []
        while True:
            try:
                parts.append(self.theirs.recv(1 << 20))
            except BlockingIOError:
                return b"".join(parts)

    def test_options(self) -> None:
        """Small frames do not wait, dead peers are noticed, the transport keeps little."""
        self.assertEqual(self.transport.options, ["no delay", "keep alive"])
        self.assertEqual(self.transport.bufferSize, UNSENT_SIZE_MAX)

    def test_straight(self) -> None:
        """Bytes that the socket takes never reach the transport."""
        self.connection.transfer(0, b"abc", batch_size=10)
        self.assertEqual(self.receive(), TRANSFER_HEADER.pack(0, 3) + b"abc")
        self.assertEqual(self.transport.value(), b"")

    def test_order(self) -> None:
        """However the socket and the transport take turns, the stream is what was sent, in order."""
        rng = random.Random(5)
        sent, got = bytearray(), bytearray()
        for _ in range(300):
            if not self.connection.is_congested:
                body = rng.randbytes(1 + int(rng.random() ** 4 * 60_000))
                self.connection.transfer(len(sent), body, batch_size=1 << 20)
                sent += TRANSFER_HEADER.pack(len(sent), len(body)) + body
            if rng.random() < 0.3:
                got += self.receive()
            if rng.random() < 0.3:
                got += self.receive()
                got += self.transport.value()  # the transport is always behind the socket
                self.transport.clear()
                self.connection.resumeProducing()
        got += self.receive() + self.transport.value()
        self.assertEqual(bytes(got), bytes(sent))
        self.assertIn("drained", self.seen.events)

    def test_broken_socket(self) -> None:
        """An error of the socket ends the connection; the owner is informed."""
        self.theirs.close()
        self.connection.transfer(0, b"abc", batch_size=10)
        self.assertTrue(self.transport.is_aborted)
        self.assertIn("lost: connection broken", self.seen.events[-1])


class SlaveEndTests(SynchronousTestCase):
    """L{HAClient}."""

    def setUp(self) -> None:
        self.seen = SeenMaster()
        self.client = HAClient(self.seen)
        self.transport = plug(self.client)

    def test_frames(self) -> None:
        """The pieces of one read come in one call."""
        self.client.dataReceived(TRANSFER_HEADER.pack(0, 3) + b"abc" + TRANSFER_HEADER.pack(3, 0))
        self.assertEqual(self.seen.pieces, [(0, b"abc"), (3, b"")])
        self.assertEqual(self.seen.reads, 1)

    def test_what_is_behind(self) -> None:
        """A full read is followed by another one, straight from the socket; others are not."""
        ours, theirs = socket.socketpair()
        self.addCleanup(theirs.close)
        self.addCleanup(ours.close)
        ours.setblocking(False)
        client = HAClient(self.seen)
        client.makeConnection(SocketTransport(ours))  # type: ignore[arg-type]
        body = random.Random(1).randbytes(3 * RECEIVE_SIZE)
        stream = b"".join(
            TRANSFER_HEADER.pack(at, 1000) + body[at : at + 1000] for at in range(0, RECEIVE_SIZE, 1000)
        )
        theirs.sendall(stream[RECEIVE_SIZE:])
        client.dataReceived(stream[:RECEIVE_SIZE])
        self.assertEqual(self.seen.reads, 1)
        end = self.seen.pieces[-1][0] + 1000
        self.assertEqual(b"".join(data for _, data in self.seen.pieces), body[:end])
        theirs.sendall(TRANSFER_HEADER.pack(end, 3) + b"abc")
        client.dataReceived(TRANSFER_HEADER.pack(end, 0))
        self.assertEqual((self.seen.reads, self.seen.pieces[-1]), (2, (end, b"")))
        theirs.close()
        ours.recv(1000)
        client.dataReceived(b"".join(TRANSFER_HEADER.pack(end, 0) for _ in range(RECEIVE_SIZE // 12 + 1)))
        self.assertEqual((self.seen.lost, self.seen.reads), ([], 3))

    def test_bad_frame(self) -> None:
        """The frames before the damage count; the connection ends, once."""
        self.client.dataReceived(TRANSFER_HEADER.pack(0, 3) + b"abc" + TRANSFER_HEADER.pack(3, -1))
        self.assertEqual(self.seen.pieces, [(0, b"abc")])
        self.assertTrue(self.transport.is_aborted)
        unplug(self.client)
        self.assertEqual(len(self.seen.lost), 1)
        self.assertIn("body_size=-1 outside", self.seen.lost[0])

    def test_abort_within_a_read(self) -> None:
        """An owner that has had enough gets no further read."""
        self.seen.aborts_at = 0
        self.client.dataReceived(TRANSFER_HEADER.pack(0, 3) + b"abc")
        self.client.dataReceived(TRANSFER_HEADER.pack(3, 3) + b"def")
        self.assertEqual(self.seen.pieces, [(0, b"abc")])
        self.assertEqual(self.seen.lost, ["enough"])

    def test_reports(self) -> None:
        """Eight bytes each."""
        self.client.report(326)
        self.assertEqual(self.transport.take(), bytes.fromhex("0000000000000146"))

    def test_report_waits(self) -> None:
        """While the master does not read only the newest report is kept."""
        self.client.pauseProducing()
        for offset in range(1000):
            self.client.report(offset)
        self.assertEqual(self.transport.take(), b"")
        self.client.resumeProducing()
        self.assertEqual(self.transport.take(), encode_report(999))
        self.client.resumeProducing()
        self.assertEqual(self.transport.take(), b"")

    def test_lost(self) -> None:
        """Nothing is sent any more."""
        unplug(self.client)
        self.client.report(5)
        self.assertEqual(self.transport.take(), b"")
