# -*- test-case-name: tests.protocols.test_ha -*-
"""
The two ends of a replication connection: a master's, L{HAConnection}, and a slave's, L{HAClient}.

They carry bytes; their owners decide which bytes to send, accept or refuse. This module starts no timers.

Rule 1: unsent bytes are bounded. A master's end reports when it is congested and when it is drained; a
slave's end keeps only the newest report while the master does not read.
Rule 2: output stays in order on both of its ways. While no bytes are unsent, frames go directly to the
socket, many in one call and without being joined; the transport gets the bytes that the socket did not
take, and all later ones until it is drained. (C{sendfile} was measured: one call for each header and each
body, and pages that the receiver takes more slowly, cost as much as it saves.)
Rule 3: when either side ends the connection, the owner is informed once.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Protocol as Interface

from twisted.internet.interfaces import IPushProducer, ISSLTransport, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from protocols.transports import StreamTransport
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.ha import (
    OFFSET_REPORT,
    OFFSET_REPORT_SIZE,
    TRANSFER_HEADER,
    TRANSFER_HEADER_SIZE,
    Piece,
    ReportReader,
    TransferReader,
)

#: Bytes of one read of a slave's transport.
RECEIVE_SIZE = 64 * 1024

#: After a full read, the slave's end itself reads up to this many bytes more into a permanent buffer:
#: memory allocated and freed for every read costs as much as the copy.
BULK_SIZE = 512 * 1024

#: A master's transport with more than this many unsent bytes is congested. The bound is small because the
#: transport gets only the bytes that the socket refused. It is also the size of one read (8-byte reports).
UNSENT_SIZE_MAX = 1024

#: At most this many frames are sent in one call; each is two of the pieces that IOV_MAX bounds.
FRAMES_MAX = 256


class HAMasterSink(Interface):
    """Owner of incoming connections from slaves. Does not raise."""

    def connected(self, connection: HAConnection) -> None:
        """A connection is ready."""

    def reported(self, connection: HAConnection, offset: int) -> None:
        """The newest report of one read."""

    def drained(self, connection: HAConnection) -> None:
        """The connection takes frames again after L{HAConnection.is_congested}."""

    def connection_lost(self, connection: HAConnection, reason: str) -> None:
        """The connection has ended; later frames are dropped."""


class HASlaveSink(Interface):
    """Owner of outgoing connections to a master. Does not raise."""

    def connected(self, client: HAClient) -> None:
        """The connection is ready for the first report."""

    def transferred(self, client: HAClient, pieces: Sequence[Piece]) -> None:
        """The pieces of one read, in order: see L{TransferReader.feed}. Views are valid in this call only."""

    def connection_lost(self, client: HAClient, reason: str) -> None:
        """The connection has ended; later reports are dropped."""


@implementer(IPushProducer)
class _Stream(Protocol):
    """
    The common part of both ends.

    @ivar is_lost: the connection has ended: output and input are dropped.
    @ivar is_congested: the transport's buffer is full.
    """

    transport: StreamTransport

    def __init__(self, *, buffer_size: int) -> None:
        self._buffer_size = buffer_size
        self._socket: socket.socket | None = None
        self._has_unsent = False
        self.is_lost = False
        self.is_congested = False

    @property
    def host(self) -> str:
        """The address of the other end, without its port."""
        return str(getattr(self._peer, "host", self._peer))

    @property
    def local_host(self) -> str:
        """The address of this end, without its port."""
        here = self.transport.getHost() if self.transport is not None else None
        return str(getattr(here, "host", here))

    @property
    def address(self) -> str:
        """The address of the other end, for logs."""
        port = getattr(self._peer, "port", None)
        return self.host if port is None else f"{self.host}:{port}"

    @property
    def _peer(self) -> object:
        return self.transport.getPeer() if self.transport is not None else None

    def connectionMade(self) -> None:
        transport = self.transport
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
        self._lose(reason.getErrorMessage())

    def abort(self, reason: str) -> None:
        """End the connection now; unsent output is lost. The owner is informed before this returns."""
        if not self.is_lost and self.transport is not None:
            self._lose(reason)
            self.transport.abortConnection()

    def pauseProducing(self) -> None:
        """See C{IPushProducer}: the transport's buffer is full."""
        self.is_congested = True

    def resumeProducing(self) -> None:
        """See C{IPushProducer}: the transport has sent everything."""
        self._has_unsent = self.is_congested = False
        if not self.is_lost:
            self._drained()

    def stopProducing(self) -> None:
        """See C{IPushProducer}: C{connectionLost} follows."""

    def _send(self, parts: Sequence[bytes | memoryview], size: int) -> None:
        """@param size: bytes of all parts."""
        sent = 0
        if self._socket is not None and not self._has_unsent:
            try:
                sent = self._socket.sendmsg(parts)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._broken(error)
                return
        if sent < size:
            # A transport that is not congested does not report that it is drained: assume it is not.
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
        self._has_reported = False
        self.serial = serial

    def dataReceived(self, data: bytes) -> None:
        if self.is_lost:
            return
        try:
            offset = self._reader.feed(data)
        except WireError as error:
            self.abort(f"broken format: {error}")
            return
        if offset is None:
            return
        if not self._has_reported:
            # The first report says whether this is a slave that we understand.
            self._has_reported = True
            self._sink.reported(self, self._reader.first)
            if self.is_lost or offset == self._reader.first:
                return
        self._sink.reported(self, offset)

    def heartbeat(self, offset: int) -> None:
        """Send a frame without a body. @param offset: log offset of the next transfer."""
        if not self.is_lost:
            self._send((TRANSFER_HEADER.pack(offset, 0),), TRANSFER_HEADER_SIZE)

    def transfer(self, offset: int, data: bytes, *, batch_size: int) -> None:
        """
        Send a range of the log in one or more frames. Nothing happens on a lost connection.

        @param offset: log offset of C{data}.
        @param data: at least one byte; at most L{FRAMES_MAX} frames.
        @param batch_size: maximum bytes in the body of one frame.
        """
        if self.is_lost:
            return
        size = len(data)
        if 0 < size <= batch_size:
            self._send((TRANSFER_HEADER.pack(offset, size), data), TRANSFER_HEADER_SIZE + size)
            return
        view = memoryview(data)
        parts: list[bytes | memoryview] = []
        for at in range(0, size, batch_size):
            body = view[at : at + batch_size]
            parts.append(TRANSFER_HEADER.pack(offset + at, len(body)))
            parts.append(body)
        assert 2 <= len(parts) <= 2 * FRAMES_MAX, f"{size} bytes in batches of {batch_size}"
        self._send(parts, size + len(parts) // 2 * TRANSFER_HEADER_SIZE)

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
        if self.is_lost:
            return
        pieces: list[Piece] = []
        broken: WireError | None = None
        try:
            self._reader.feed(data, pieces)
            if len(data) >= RECEIVE_SIZE and self._socket is not None:
                self._reader.feed(self._more(self._socket), pieces)
        except WireError as error:
            broken = error
        if pieces:
            # The valid pieces before the damage are handled, even if they came in the same read.
            self._sink.transferred(self, pieces)
        if broken is not None:
            self.abort(f"broken format: {broken}")

    def _more(self, handle: socket.socket) -> memoryview:
        """Read the bytes available after a full read. The view is valid until the next call."""
        try:
            size = handle.recv_into(self._bulk)
        except OSError:
            size = 0  # no bytes, or an error that the transport will meet as well
        return self._bulk[:size]

    def report(self, offset: int) -> None:
        """
        Report progress to the master. If reports must wait for the transport, only the newest is sent.

        @param offset: log offset of the first byte that this slave lacks.
        """
        if self.is_lost:
            return
        if self.is_congested:
            self._waiting_report = offset
        else:
            self._send((OFFSET_REPORT.pack(offset),), OFFSET_REPORT_SIZE)

    def _connected(self) -> None:
        self._sink.connected(self)

    def _drained(self) -> None:
        if self._waiting_report >= 0:
            offset, self._waiting_report = self._waiting_report, -1
            self.report(offset)

    def _ended(self, reason: str) -> None:
        self._sink.connection_lost(self, reason)

