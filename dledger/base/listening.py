# -*- test-case-name: tests.node.test_server,tests.broker.test_router -*-
"""
The common part of all listening sides: a bounded number of connections, closed together.

Knows nothing of the messages on them.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger

from protocols.connection import AnsweringConnection

_C = TypeVar("_C", bound=AnsweringConnection)


class ListeningSide(ServerFactory, Generic[_C]):
    """
    Invariant: C{_connections} are the connections that are ready and not lost.

    @ivar connections_refused: number of connections refused, beyond the bound or during the close.
    """

    log = Logger()
    noisy = False

    def __init__(self, *, connections_max: int) -> None:
        """
        @param connections_max: at most this many connections are open; further ones are closed at once.
        """
        self._connections: set[_C] = set()
        self._connections_max = connections_max
        self._is_closing = False
        self.connections_refused = 0

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def buildProtocol(self, addr: IAddress | None) -> _C | None:
        """See L{ServerFactory.buildProtocol}."""
        if self._is_closing or len(self._connections) >= self._connections_max:
            self.connections_refused += 1
            self.log.warn(
                "connection from {address} refused: {connections} are open, {connections_max} are allowed",
                address=str(addr), connections=len(self._connections), connections_max=self._connections_max,
            )
            return None
        connection = self._make_connection()
        connection.factory = self
        return connection

    def _make_connection(self) -> _C:
        raise NotImplementedError

    def connected(self, connection: _C) -> None:
        """A connection is ready."""
        self._connections.add(connection)

    def connection_lost(self, connection: _C, reason: str) -> None:
        """A connection has ended."""
        self._connections.discard(connection)

    def sweep(self, now_s: float) -> None:
        """Close idle connections. Called regularly."""
        for connection in list(self._connections):
            connection.sweep(now_s)

    def close_all(self) -> None:
        """Accept no more connections, and end each one when its output has been sent."""
        self._is_closing = True
        for connection in list(self._connections):
            connection.close()

    def abort_all(self, reason: str) -> None:
        """End the remaining connections now."""
        self._is_closing = True
        for connection in list(self._connections):
            connection.abort(reason)
