# -*- test-case-name: tests.protocols.test_ha -*-
"""
The two ends of a replication connection: a master's, L{HAConnection}, and a slave's, L{HAClient}.

They carry bytes. What may be sent, believed or refused is for their owners to decide; nothing here
starts a timer.

Rule 1: what is unsent is bounded. A master's end says when it is congested and when it is drained; a
slave's end keeps one report, the newest, for as long as the master does not read.
Rule 2: the order of what was sent is kept, whichever of the two roads it takes. While nothing is unsent,
frames go straight to the socket, many in one call and without being joined; the transport gets what the
socket did not take, and everything behind it until it is drained. (C{sendfile} was measured: a call for
each header and each body, and pages that the receiver takes up more slowly, cost what it saves.)
Rule 3: the owner is told of the end of a connection once, by whichever side it was ended.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any
from typing import Protocol as Interface

from twisted.internet.interfaces import IPushProducer, ISSLTransport, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from protocols.wire.errors import WireError
from protocols.wire.rocketmq.ha import (
    OFFSET_REPORT,
    TRANSFER_HEADER,
    Piece,
    ReportReader,
    TransferReader,
)

#: What a slave's transport reads at once.
RECEIVE_SIZE = 64 * 1024

#: When that was not everything, the slave's end reads so much behind it by itself, into a buffer that it
#: keeps: memory that is got for every read, and given back, costs as much as the copy.
BULK_SIZE = 512 * 1024

#: A master's transport with more than so many bytes is congested. It is small as only what the socket
#: refused gets there, and as the transport reads no more than this at once (reports, 8 bytes each).
UNSENT_SIZE_MAX = 1024

#: Frames that are sent in one call; the system takes no more than twice as many pieces.
FRAMES_MAX = 256


class HAMasterSink(Interface):
    """Owner of connections that slaves made to us. Does not raise."""

    def connected(self, connection: HAConnection) -> None:
        """Somebody has connected."""

    def reported(self, connection: HAConnection, offset: int) -> None:
        """The newest report of one read."""

    def drained(self, connection: HAConnection) -> None:
        """The connection takes frames again after L{HAConnection.is_congested}."""

    def connection_lost(self, connection: HAConnection, reason: str) -> None:
        """Nothing more will come, and frames go nowhere."""


class HASlaveSink(Interface):
    """Owner of connections that we made to a master. Does not raise."""

    def connected(self, client: HAClient) -> None:
        """The connection is ready for the first report."""

    def transferred(self, client: HAClient, pieces: Sequence[Piece]) -> None:
        """What one read brought, in order: see L{TransferReader.feed}. The views are valid for this call."""

    def connection_lost(self, client: HAClient, reason: str) -> None:
        """Nothing more will come, and reports go nowhere."""


@implementer(IPushProducer)
class _Stream(Protocol):
    """
    What both ends share.

    @ivar is_lost: nothing can be sent, and nothing that comes is looked at.
    @ivar is_congested: the transport holds more than it wants.
    """

    # Twisted types it as the smallest interface; ours is a stream that knows producers.
    transport: Any = None

    def __init__(self, *, buffer_size: int) -> None:
        self._buffer_size = buffer_size
        self._socket: socket.socket | None = None
        self._has_unsent = False
        self.is_lost = False
        self.is_congested = False

    @property
    def host(self) -> str:
        """The other end's address without its port."""
        return str(getattr(self._peer, "host", self._peer))

    @property
    def address(self) -> str:
        """The other end, for logs."""
        port = getattr(self._peer, "port", None)
        return self.host if port is None else f"{self.host}:{port}"

    @property
    def _peer(self) -> object:
        return self.transport.getPeer() if self.transport is not None else None

    def connectionMade(self) -> None:
        """See L{Protocol.connectionMade}."""
        transport: Any = self.transport
        if ITCPTransport.providedBy(transport):
            transport.setTcpNoDelay(True)
            transport.setTcpKeepAlive(True)
            handle = self.transport.getHandle()
            if isinstance(handle, socket.socket) and not ISSLTransport.providedBy(transport):
                self._socket = handle
        if hasattr(transport, "bufferSize"):
            transport.bufferSize = self._buffer_size
        transport.registerProducer(self, True)
        self._connected()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """See L{Protocol.connectionLost}."""
        self._lose(reason.getErrorMessage())

    def abort(self, reason: str) -> None:
        """End the connection now; what is not sent yet is lost. The owner is told before this returns."""
        if not self.is_lost and self.transport is not None:
            self._lose(reason)
            self.transport.abortConnection()

    def pauseProducing(self) -> None:
        """See L{IPushProducer}: the transport holds more than it wants."""
        self.is_congested = True

    def resumeProducing(self) -> None:
        """See L{IPushProducer}: the transport has sent everything."""
        self._has_unsent = self.is_congested = False
        if not self.is_lost:
            self._drained()

    def stopProducing(self) -> None:
        """See L{IPushProducer}: C{connectionLost} follows."""

    def _send(self, parts: Sequence[bytes | memoryview]) -> None:
        sent = 0
        if self._socket is not None and not self._has_unsent:
            try:
                sent = self._socket.sendmsg(parts)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._broken(error)
                return
        if sent < sum(map(len, parts)):
            # A transport that is not congested does not say when it is drained: for all we know it is not.
            self._has_unsent = True
            self.transport.write(b"".join(parts)[sent:])

    def _broken(self, error: OSError) -> None:
        self.abort(f"connection broken: {error}")

    def _lose(self, reason: str) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._socket = None
            self._ended(reason)

    def _connected(self) -> None:
        raise NotImplementedError

    def _drained(self) -> None:
        raise NotImplementedError

    def _ended(self, reason: str) -> None:
        raise NotImplementedError


class HAConnection(_Stream):
    """
    A master's end: reports come in, frames go out.

    @ivar serial: rises with every connection that was accepted.
    """

    def __init__(self, sink: HAMasterSink, *, serial: int = 0) -> None:
        super().__init__(buffer_size=UNSENT_SIZE_MAX)
        self._sink = sink
        self._reader = ReportReader()
        self.serial = serial

    def dataReceived(self, data: bytes) -> None:
        """See L{Protocol.dataReceived}."""
        if self.is_lost:
            return
        try:
            offset = self._reader.feed(data)
        except WireError as error:
            self.abort(f"broken format: {error}")
            return
        if offset is not None:
            self._sink.reported(self, offset)

    def heartbeat(self, offset: int) -> None:
        """Send a frame without a body. @param offset: what will be sent next."""
        if not self.is_lost:
            self._send((TRANSFER_HEADER.pack(offset, 0),))

    def transfer(self, offset: int, data: bytes, *, batch_size: int) -> None:
        """
        Send a stretch of the log, in as many frames as it needs. Nothing happens on a lost connection.

        @param data: at least one byte, of at most L{FRAMES_MAX} frames.
        @param batch_size: the most bytes in the body of one frame.
        """
        if self.is_lost:
            return
        view = memoryview(data)
        parts: list[bytes | memoryview] = []
        for at in range(0, len(data), batch_size):
            body = view[at : at + batch_size]
            parts.append(TRANSFER_HEADER.pack(offset + at, len(body)))
            parts.append(body)
        assert 2 <= len(parts) <= 2 * FRAMES_MAX, f"{len(data)} bytes in batches of {batch_size}"
        self._send(parts)

    def _connected(self) -> None:
        self._sink.connected(self)

    def _drained(self) -> None:
        self._sink.drained(self)

    def _ended(self, reason: str) -> None:
        self._sink.connection_lost(self, reason)


class HAClient(_Stream):
    """A slave's end: frames come in, reports go out."""

    def __init__(self, sink: HASlaveSink) -> None:
        super().__init__(buffer_size=RECEIVE_SIZE)
        self._sink = sink
        self._reader = TransferReader()
        self._waiting_report = -1
        self._bulk = memoryview(bytearray(BULK_SIZE))

    def dataReceived(self, data: bytes) -> None:
        """See L{Protocol.dataReceived}."""
        if self.is_lost:
            return
        pieces: list[Piece] = []
        broken: WireError | None = None
        try:
            for piece in self._reader.feed(data):
                pieces.append(piece)
            for piece in self._reader.feed(self._behind(data)):
                pieces.append(piece)
        except WireError as error:
            broken = error
        if pieces:
            # What stands before the damage was said, whether or not it came in the same read.
            self._sink.transferred(self, pieces)
        if broken is not None:
            self.abort(f"broken format: {broken}")

    def _behind(self, data: bytes) -> memoryview:
        """What there is already behind a read that was full, until the next call."""
        size = 0
        if len(data) >= RECEIVE_SIZE and self._socket is not None:
            try:
                size = self._socket.recv_into(self._bulk)
            except OSError:
                size = 0  # nothing, or an error that the transport will meet as well
        return self._bulk[:size]

    def report(self, offset: int) -> None:
        """
        Tell the master. Of the reports that have to wait for the transport only the newest is sent.

        @param offset: the first byte that we do not have.
        """
        if self.is_lost:
            return
        if self.is_congested:
            self._waiting_report = offset
        else:
            self._send((OFFSET_REPORT.pack(offset),))

    def _connected(self) -> None:
        self._sink.connected(self)

    def _drained(self) -> None:
        if self._waiting_report >= 0:
            offset, self._waiting_report = self._waiting_report, -1
            self.report(offset)

    def _ended(self, reason: str) -> None:
        self._sink.connection_lost(self, reason)

