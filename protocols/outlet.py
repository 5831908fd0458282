# -*- test-case-name: tests.protocols.test_outlet -*-
"""
Sends output without waiting for the reactor, if the socket takes it at once.

C{transport.write} buffers its data until the reactor has polled: this costs two more system calls and a
round of the reactor per answer, a tenth of the total time of a log that appends one entry at a time.
L{Outlet} offers the data to the socket first; the rest, and all later output, goes through the transport's
buffer.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Protocol, TypeGuard

from twisted.internet.interfaces import IProtocol, ISSLTransport, ITCPTransport, ITransport
from twisted.internet.tcp import Connection as TCPConnection

#: Linux has it since 3.12; Python does not name it in each version.
_TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25 if sys.platform == "linux" else None)

#: Above this size the socket does not take everything at once, and the copy would cost more than a poll.
AT_ONCE_BYTES_MAX = 256 * 1024


#: Bytes that the reactor offers the socket at a time; with Twisted's 128 KiB a pull of 4 MiB takes 32 rounds.
SEND_BYTES_MAX = 1024 * 1024


class _Socket(Protocol):
    """The part of Twisted's TCP transports that is used here. Their interfaces do not have all of it."""

    SEND_LIMIT: int
    dataBuffer: bytes
    offset: int
    producerPaused: bool
    _tempDataBuffer: list[bytes]
    _tempDataLen: int

    def write(self, data: bytes) -> None: ...

    def writeSequence(self, data: Iterable[bytes]) -> None: ...

    def getHandle(self) -> socket.socket: ...

    def doWrite(self) -> object: ...

    def startWriting(self) -> None: ...


def read_directly(transport: ITransport, protocol: IProtocol) -> None:
    """
    Let C{transport} call C{protocol.dataReceived} directly.

    An endpoint and a C{ClientService} each put a wrapper between the socket and our protocol. The wrappers
    need only the beginning and the end of the connection; passing on small reads costs noticeable time.
    """
    between = getattr(transport, "protocol", None)
    if _is_socket(transport) and between is not None and between is not protocol:
        between.dataReceived = protocol.dataReceived


def _is_socket(transport: object) -> TypeGuard[_Socket]:
    # A TLS transport provides the interface of the socket beneath it too, and lends its methods.
    return (
        ITCPTransport.providedBy(transport) and not ISSLTransport.providedBy(transport)
        and hasattr(transport, "doWrite")
    )


def carrier_of(transport: ITransport) -> TCPConnection | None:
    """The socket of Twisted's that carries a connection by TCP, plain or with TLS over it; else None."""
    beneath = transport if _is_socket(transport) else getattr(transport, "transport", None)
    return beneath if isinstance(beneath, TCPConnection) else None


class Outlet:
    """
    The sending half of one transport. No other code may write to the transport.

    Invariant: while C{is_drained}, the buffer of a socket is empty.

    @ivar is_drained: whether the socket has taken everything, as of the last output; True if it does
        not say.
    @ivar written_bytes: size of all output so far.
    @param transport: any transport; if it is not a plain TCP socket (TLS, test), C{write} is used, and the
        socket beneath TLS is offered the result.
    @param kernel_bytes_max: bytes that the kernel takes beyond the other end's room; 0: as it likes.
    """

    def __init__(self, transport: ITransport, *, kernel_bytes_max: int = 0) -> None:
        self._transport = transport
        self._socket: _Socket | None = transport if _is_socket(transport) else None
        self._send: Callable[[bytes], int] = _sends_nothing
        beneath = getattr(transport, "transport", None)  # of TLS: the socket that carries it
        self._beneath: _Socket | None = (
            beneath if _is_socket(beneath) and hasattr(beneath, "doWrite") else None
        )
        self.is_drained = True
        self.written_bytes = 0
        if self._socket is not None:
            self._socket.SEND_LIMIT = SEND_BYTES_MAX
        carrier = self._socket or self._beneath
        handle = None if carrier is None else carrier.getHandle()
        if self._socket is not None and handle is not None:
            self._send = handle.send
        if kernel_bytes_max and handle is not None and _TCP_NOTSENT_LOWAT is not None:
            with contextlib.suppress(OSError):  # not by TCP, or the system does not know it
                handle.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, kernel_bytes_max)

    def drop(self) -> None:
        """The connection has ended: keep no output, which Twisted would until its transport is collected."""
        self._send = _sends_nothing
        for carrier in (self._socket, self._beneath):
            if carrier is not None:
                carrier.dataBuffer = b""
                carrier.offset = 0
                carrier._tempDataLen = 0
                carrier._tempDataBuffer = []
        unsent = getattr(self._transport, "_appSendBuffer", None)
        if isinstance(unsent, list):
            unsent.clear()

    def unsent_bytes(self, known: int) -> int:
        """As L{waiting_bytes}; no look is needed if the socket has taken everything."""
        if self._socket is not None and self.is_drained:
            return 0
        return self.waiting_bytes(known)

    def waiting_bytes(self, known: int) -> int:
        """Bytes that the socket has not taken yet; C{known} for a transport that does not say."""
        transport, before = self._socket, 0
        if transport is None:
            if self._beneath is None:
                return known
            transport = self._beneath
            before = sum(map(len, getattr(self._transport, "_appSendBuffer", ())))
        return before + len(transport.dataBuffer) - int(transport.offset) + int(transport._tempDataLen)

    def send(self, *parts: bytes) -> int:
        """
        Send C{parts} after all earlier output.

        @return: their total size in bytes.

        Never fails: the reactor notices a lost connection later, by the same system call.
        This call may pause the producer of the transport, but never resumes it.
        """
        transport = self._socket
        size = sum(map(len, parts))
        self.written_bytes += size
        if transport is None:
            self._transport.write(b"".join(parts))
            beneath = self._beneath
            if beneath is not None and not beneath.producerPaused:
                self.is_drained = _offer(beneath)
            return size
        if self.is_drained and size <= AT_ONCE_BYTES_MAX:
            data = b"".join(parts)
            try:
                sent = self._send(data)
            except OSError:  # no room, or the connection is lost
                sent = 0
            if sent != size:
                self.is_drained = False
                transport.write(data[sent:])
            return size
        self.is_drained = False
        transport.writeSequence(parts)
        if not transport.producerPaused:  # otherwise doWrite could resume the producer
            self.is_drained = _offer(transport)
        return size


def _offer(transport: _Socket) -> bool:
    """Offer its output to the socket. @return: whether the socket has taken all of it."""
    if transport.doWrite() is not None:
        transport.startWriting()  # it is at its end: the reactor meets that by the same call, and ends it
    return not transport.dataBuffer


def _sends_nothing(_data: bytes) -> int:
    """Instead of a socket."""
    return 0
