# -*- test-case-name: tests.node.test_server,tests.broker.test_router -*-
"""
The common part of all listening sides: a bounded number of connections, closed together.

Rule 1: at the bound, a new connection takes the place of the oldest one that has not sent a valid request.
So idle connections of strangers do not keep clients and peers out. If every connection has sent one, the
new one is refused. In one turn, at most L{REPLACED_A_TURN} are replaced: the system has the descriptor of an
ended connection until the turn is over.
Rule 2: clients do not get all connections (L{ClientPlaces}), so there is always room for a newcomer, whose
first request is answered: it has a place, or is informed why not, and ends.

Knows nothing of the messages on them.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from twisted.internet.interfaces import IAddress
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger

from dledger.base.serving.client_places import SHARE_PERCENT, ClientPlaces
from dledger.base.serving.folding import Folding
from protocols.connection import AnsweringConnection
from protocols.turn import Turn

#: Most connections that are ended in one turn for newer ones.
REPLACED_A_TURN = 16

_C = TypeVar("_C", bound=AnsweringConnection)


class ListeningSide(ServerFactory, Generic[_C]):
    """
    Invariant: C{_connections} are the connections that are ready and not lost, oldest first.

    @ivar clients: the places of clients.
    @ivar folding: decides which repeated log lines of strangers are written.
    @ivar connections_refused: number of connections refused: beyond a bound or a share, or during the close.
    @ivar connections_replaced: number of connections that ended for a newer one.
    @ivar connections_max: this number may be open.
    """

    log = Logger()
    noisy = False

    def __init__(self, turn: Turn, *, connections_max: int, share_percent: int = SHARE_PERCENT) -> None:
        """
        @param connections_max: at most this many connections are open.
        @param share_percent: of the places of clients, those that one address may have.
        """
        self._turn = turn
        self._connections: dict[_C, None] = {}
        self.connections_max = connections_max
        self._is_closing = False
        self._replaced_now = 0
        self.clients = ClientPlaces(connections_max, share_percent=share_percent)
        self.folding = Folding(turn.seconds)
        self.connections_refused = 0
        self.connections_replaced = 0

    def limit(self, connections_max: int, share_percent: int) -> None:
        """Other limits from now on, see L{__init__}; open connections stay."""
        self.connections_max = connections_max
        self.clients.limit(connections_max, share_percent=share_percent)

    def keep_share(self, share_percent: int) -> None:
        """See L{limit}."""
        if share_percent != self.clients.share_percent:
            self.limit(self.connections_max, share_percent)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def buildProtocol(self, addr: IAddress | None) -> _C | None:
        if self._is_closing or not self._has_room():
            reason = f"{len(self._connections)} are open, {self.connections_max} are allowed"
            self._refused(str(addr), reason)
            return None
        connection = self._make_connection()
        connection.factory = self
        return connection

    def _refused(self, address: str, reason: str) -> None:
        self.connections_refused += 1
        repeated = self.folding.happened(("connection refused",))
        if repeated is not None:
            self.log.warn(
                "connection from {address} refused: {reason}", address=address, reason=reason,
                connections=len(self._connections), connections_max=self.connections_max, **repeated,
            )

    def has_place(self, connection: _C) -> bool:
        """Whether there is a place for a client's connection."""
        return not self.clients.refusal(connection, connection.address.rpartition(":")[0])

    def no_place(self, connection: _C) -> str:
        """
        Called with the first valid request of a client. If there is no place for it, that is counted and
        logged, and the caller answers and closes the connection.

        @return: why there is none; empty: it has a place from now on.
        """
        host = connection.address.rpartition(":")[0]
        reason = self.clients.refusal(connection, host)
        if reason:
            self._refused(connection.address, reason)
        else:
            self.clients.take(connection, host)
        return reason

    def _has_room(self) -> bool:
        if len(self._connections) < self.connections_max:
            return True
        stranger = next((one for one in self._connections if not one.account.is_proven), None)
        if stranger is None or self._replaced_now >= REPLACED_A_TURN:
            return False
        if not self._replaced_now:
            self._turn.work(self._turn_over)
        self._replaced_now += 1
        self.connections_replaced += 1
        stranger.abort("its place was needed, and it has sent no valid request")
        return True

    def _turn_over(self) -> None:
        self._replaced_now = 0

    def _make_connection(self) -> _C:
        raise NotImplementedError

    def connected(self, connection: _C) -> None:
        """A connection is ready."""
        self._connections[connection] = None

    def connection_lost(self, connection: _C, reason: str) -> None:
        """A connection has ended."""
        self._connections.pop(connection, None)
        self.clients.leave(connection)

    def sweep(self, now_s: float) -> None:
        """Close idle connections; report repeated events that are over. Called regularly."""
        for connection in list(self._connections):
            connection.sweep(now_s)
        for key, episode in self.folding.sweep(now_s):
            self.log.warn(
                "{event}: {times} times in {since_s} s, now over", event=" ".join(map(str, key)),
                times=episode.times, since_s=round(episode.last_s - episode.begin_s),
            )

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
