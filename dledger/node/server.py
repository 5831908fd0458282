# -*- test-case-name: tests.node.test_server -*-
"""
The listening side of a member: its connections, and which of them belong to peers.

Rule 1: a peer has one incoming connection. When it sends on a newer one, the older is aborted and its
queued requests are dropped first: pushes between a pair must be FIFO, and a late TRUNCATE of an old
connection must not be obeyed. If the older connection sends last, it is still the one aborted.
Rule 2: the number of connections is bounded. Clients get all places but L{PEER_PLACES}: when they have more,
the newest of them end.

The L{RequestSink} behind this server decides the meaning of requests.
"""

from __future__ import annotations

from dledger.base.listening import ListeningSide
from protocols.budgets import Budgets
from protocols.ledger.connection import RequestSink, ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.turn import Turn
from protocols.wire.errors import BodyError, WireError
from protocols.wire.ledger.messages import Request

#: At most this many connections are open; further ones are closed at once.
CONNECTIONS_MAX = 4096

#: Places that only members of the group keep.
PEER_PLACES = 16

#: At most this many different complaints about bodies are remembered and logged, each once.
_COMPLAINTS_MAX = 1024


class MemberServer(ListeningSide[ServerConnection]):
    """
    Invariant: C{_by_peer} holds only open connections of C{_connections}.

    @ivar budgets: the memory that the connections share.
    @ivar wire_errors: number of connections aborted because the peer broke the format.
    @ivar body_errors: number of requests refused because of a malformed body.
    """

    def __init__(
        self, sink: RequestSink, turn: Turn, *, connections_max: int = CONNECTIONS_MAX,
        budgets: Budgets | None = None,
    ) -> None:
        """@param budgets: shared by the connections."""
        super().__init__(turn, connections_max=connections_max)
        self.budgets = budgets if budgets is not None else Budgets()
        self._sink = sink
        self._by_peer: dict[str, ServerConnection] = {}
        self._complaints: set[tuple[str, str]] = set()
        self._next_serial = 1
        self.wire_errors = 0
        self.body_errors = 0

    def _make_connection(self) -> ServerConnection:
        connection = ServerConnection(self, self._turn, serial=self._next_serial, budgets=self.budgets)
        self._next_serial += 1
        return connection

    def claim(self, connection: ServerConnection, peer_id: str) -> bool:
        """
        Note that C{peer_id} sends on C{connection}.

        @return: whether to accept its requests; False if the connection was aborted because the peer
            has a newer one.
        """
        current = self._by_peer.get(peer_id)
        if current is connection:
            return True
        if current is not None and current.serial > connection.serial:
            connection.abort(f"{peer_id} has a newer connection")
            return False
        if connection.peer_id is not None and self._by_peer.get(connection.peer_id) is connection:
            del self._by_peer[connection.peer_id]
        connection.peer_id = peer_id
        self._by_peer[peer_id] = connection
        if current is not None:
            current.peer_id = None  # so that its end does not count as a disconnected peer
            current.abort(f"{peer_id} opened a newer connection")
        self.log.info("peer {peer_id} connected from {address}", peer_id=peer_id, address=connection.address)
        return True

    def sweep(self, now_s: float) -> None:
        """See L{ListeningSide.sweep}; also ends the newest clients that have taken places of peers."""
        super().sweep(now_s)
        places = max(self._connections_max - PEER_PLACES, self._connections_max // 2)
        if len(self._connections) > places:
            clients = [one for one in self._connections if one.account.is_proven and one.peer_id is None]
            for connection in clients[places:]:
                self.connections_replaced += 1
                connection.abort(f"{places} clients are connected, which is the limit")

    # -- RequestSink of the connections ------------------------------------------------------

    def connected(self, connection: ServerConnection) -> None:
        """See L{RequestSink.connected}."""
        super().connected(connection)
        self._sink.connected(connection)

    def requests_received(
        self, connection: ServerConnection, requests: list[tuple[Ticket, Request]]
    ) -> None:
        """See L{RequestSink.requests_received}."""
        self._sink.requests_received(connection, requests)

    def body_refused(self, connection: ServerConnection, ticket: Ticket, error: BodyError) -> None:
        """See L{RequestSink.body_refused}: counted, logged once per sender and complaint."""
        self.body_errors += 1
        speaker = connection.peer_id or connection.address.rpartition(":")[0]
        # Complaints differ in their values; the text before the first value identifies a repetition.
        complaint = (speaker, str(error).partition("=")[0][:200])
        if complaint not in self._complaints and len(self._complaints) < _COMPLAINTS_MAX:
            self._complaints.add(complaint)
            self.log.error(
                "{request_kind} of {peer_id} refused: {reason} (logged once)",
                request_kind=ticket[2].name, peer_id=speaker, reason=str(error),
            )
        self._sink.body_refused(connection, ticket, error)

    def drained(self, connection: ServerConnection) -> None:
        """See L{RequestSink.drained}."""
        self._sink.drained(connection)

    def wire_broken(self, connection: ServerConnection, error: WireError) -> None:
        """See L{RequestSink.wire_broken}."""
        self.wire_errors += 1
        repeated = self.folding.happened(("format broken by", connection.peer_id))
        if repeated is not None:
            self.log.error(
                "{peer_id} at {address} broke the format, connection aborted: {reason}",
                peer_id=connection.peer_id, address=connection.address, reason=str(error), **repeated,
            )
        self._sink.wire_broken(connection, error)

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        """See L{RequestSink.connection_lost}."""
        super().connection_lost(connection, reason)
        peer_id = connection.peer_id
        if peer_id is not None and self._by_peer.get(peer_id) is connection:
            del self._by_peer[peer_id]
            self.log.info(
                "connection of peer {peer_id} ended: {reason}", peer_id=peer_id, reason=reason
            )
        self._sink.connection_lost(connection, reason)
