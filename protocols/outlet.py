# -*- test-case-name: tests.protocols.test_outlet -*-
"""
Output that does not wait for the reactor when the socket would take it at once.

C{transport.write} keeps what it is given until the reactor has polled: two more calls to the kernel and
a round of the reactor between an answer and its way out. For a log that appends one entry at a time
these are a tenth of the whole time. Here the socket is asked first; what it does not take goes the
ordinary way, and whatever follows goes behind it.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IProtocol, ITCPTransport

#: More than this the socket does not take at once, and copying it to find out would cost more than a poll.
AT_ONCE_BYTES_MAX = 256 * 1024


#: What the reactor offers the socket at a time; of Twisted's 128 KiB a pull of 4 MiB makes 32 rounds.
SEND_BYTES_MAX = 1024 * 1024


def read_directly(transport: Any, protocol: IProtocol) -> None:
    """
    What C{transport} reads goes to C{protocol} by one call.

    An endpoint and a C{ClientService} put a protocol of theirs each between a socket and ours. They want to
    hear of its beginning and its end, and hand everything else on; of a small read that is a noticeable part.
    """
    between = getattr(transport, "protocol", None)
    if _is_socket(transport) and between is not None and between is not protocol:
        between.dataReceived = protocol.dataReceived


def _is_socket(transport: Any) -> bool:
    # TLS provides the interface, but has records of its own and no such method.
    return ITCPTransport.providedBy(transport) and hasattr(transport, "writeSomeData")


class Outlet:
    """
    The sending half of one transport. Nobody else may write to it.

    Invariant: while C{_is_drained}, the transport holds nothing that was not given to the socket.

    @param transport: any; one that is no plain TCP socket (TLS, a test's) is merely written to.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._is_socket = _is_socket(transport)
        self._is_drained = True
        if self._is_socket:
            transport.SEND_LIMIT = SEND_BYTES_MAX

    def send(self, *parts: bytes) -> int:
        """
        Send C{parts} behind all that was sent before.

        @return: how many bytes they are.

        Never fails: when the connection is lost the reactor finds it by the same call, in its own time.
        The producer of the transport may be paused from in here, but is never resumed.
        """
        transport = self._transport
        size = sum(map(len, parts))
        if not self._is_socket:
            transport.write(b"".join(parts))
            return size
        if self._is_drained and size <= AT_ONCE_BYTES_MAX:
            data = b"".join(parts)
            sent = transport.writeSomeData(data)
            if sent != size:
                self._is_drained = False
                transport.write(data[sent:] if isinstance(sent, int) else data)
            return size
        self._is_drained = False
        transport.writeSequence(parts)
        if not transport.producerPaused:  # else the producer would be resumed from in here
            transport.doWrite()
            self._is_drained = not transport.dataBuffer
        return size
