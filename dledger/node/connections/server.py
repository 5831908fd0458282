# -*- test-case-name: tests.node.test_server -*-
"""
The listening side of a member: its connections, and which of them belong to peers.

Rule 1: a peer has one incoming connection, and a connection speaks for one peer. A second connection that
speaks for the same peer is aborted while the first one lives, that is, while it was heard within L{LIVE_S},
unless it only asks METADATA, as every client may: then it is nobody's for the present, so that nobody cuts a
peer off from the answers of this member by speaking for it. Otherwise the first is aborted, and its queued
requests are dropped before the second is heard: pushes between a pair must be FIFO, and a late TRUNCATE of an
old connection must not be obeyed.
Rule 2: the number of connections is bounded, and clients leave some to members (L{ListeningSide}). A
connection that was taken for a member's has no place of a client.

Our own members ask something every second on a connection that is otherwise idle
(L{dledger.node.connections.peers}), so they are known to live. A Java leader beats every two seconds; Java's
other connections carry little, and give way to a newer one.

The L{RequestSink} behind this server decides the meaning of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dledger.base.serving.client_places import SHARE_PERCENT
from dledger.base.serving.listening import ListeningSide
from protocols.budgets import Budgets
from protocols.connection import TLS_LOSS
from protocols.ledger.connection import RequestSink, ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.socket_set import SocketSet
from protocols.turn import Turn
from protocols.wire.errors import BodyError, WireError

#: At most this many connections are open; further ones are closed at once.
CONNECTIONS_MAX = 4096

#: A connection that was heard within this many seconds lives. A peer whose machine lost power gets in with
#: its first attempt after this time; one whose process ended gets in at once, because the kernel reports
#: that.
LIVE_S = 3.0

#: A member that did not look after its connections for this long, seconds, stood still.
STOOD_STILL_S = 1.0

#: Takes an event that another party can repeat without end, and its facts; folds and logs it.
Note = Callable[[str, Mapping[str, object]], None]

#: At most this many different complaints about bodies are remembered and logged, each once.
_COMPLAINTS_MAX = 1024


class MemberServer(ListeningSide[ServerConnection]):
    """
    Invariant: C{_by_peer} holds only open connections of C{_connections}; C{_heard_s} has the time at which
    each of them was last found to have been heard.

    Implements L{RequestSink}.

    @ivar budgets: the memory that the connections share.
    @ivar wire_errors: number of connections aborted because the peer broke the format.
    @ivar body_errors: number of requests refused because of a malformed body.
    """

    def __init__(
        self, sink: RequestSink, turn: Turn, *, note: Note, connections_max: int = CONNECTIONS_MAX,
        share_percent: int = SHARE_PERCENT, budgets: Budgets | None = None,
    ) -> None:
        """
        @param share_percent: see L{ListeningSide}.
        @param budgets: shared by the connections.
        """
        super().__init__(turn, connections_max=connections_max, share_percent=share_percent)
        self.budgets = budgets if budgets is not None else Budgets()
        self._sink = sink
        self._sockets = SocketSet(turn)
        #: See L{RequestSink.requests_received}.
        self.requests_received = sink.requests_received
        self._note = note
        self._by_peer: dict[str, ServerConnection] = {}
        self._heard_s: dict[str, float] = {}
        self._swept_s = turn.seconds()
        self._complaints: set[tuple[str, str]] = set()
        self._next_serial = 1
        self.wire_errors = 0
        self.body_errors = 0

    def _make_connection(self) -> ServerConnection:
        connection = ServerConnection(self, self._turn, serial=self._next_serial, budgets=self.budgets)
        self._next_serial += 1
        return connection

    def claim(self, connection: ServerConnection, peer_id: str, *, is_binding: bool = True) -> bool:
        """
        Note that C{peer_id} sends on C{connection}.

        @param is_binding: its request is not one that any client may make.
        @return: whether to accept its requests as the peer's; False if the peer has a connection that
            lives, or this one speaks for another peer. It was aborted then, or stays open as a client's.
        """
        current = self._by_peer.get(peer_id)
        if current is connection:
            return True
        if connection.peer_id is not None:
            self._refuse(connection, peer_id, f"it spoke for {connection.peer_id} before")
            return False
        now_s = self._turn.seconds()
        if current is not None:
            if self._lives(peer_id, current, now_s):
                reason = "that member has another connection, which lives"
                self._refuse(connection, peer_id, reason, is_over=is_binding)
                return False
            current.peer_id = None  # so that its end does not count as a disconnected peer
            current.abort(f"{peer_id} opened a newer connection")
        connection.peer_id = peer_id
        self._by_peer[peer_id], self._heard_s[peer_id] = connection, now_s
        self.clients.leave(connection)
        self._sockets.give_back(connection.transport)
        connection.was_heard()  # from now on
        self._note("peer-connected", {"peer_id": peer_id, "address": connection.address})
        return True

    def end_calls(self, peer_id: str, reason: str) -> None:
        """End the connection on which somebody speaks for C{peer_id}, if there is one."""
        connection = self._by_peer.get(peer_id)
        if connection is not None:
            self._refuse(connection, peer_id, reason)

    def _lives(self, peer_id: str, current: ServerConnection, now_s: float) -> bool:
        if current.was_heard() or now_s - self._swept_s > STOOD_STILL_S:
            # (A process that stood still has not read what came meanwhile.)
            self._heard_s[peer_id] = now_s
        return now_s - self._heard_s[peer_id] < LIVE_S

    def _refuse(
        self, connection: ServerConnection, peer_id: str, reason: str, *, is_over: bool = True
    ) -> None:
        self._note("claim-refused", {"peer_id": peer_id, "address": connection.address, "reason": reason})
        if is_over:
            connection.abort(f"not taken for {peer_id}: {reason}")

    def sweep(self, now_s: float) -> None:
        """See L{ListeningSide.sweep}; also notes which peers were heard."""
        self._swept_s = now_s
        for peer_id, connection in self._by_peer.items():
            if connection.was_heard():
                self._heard_s[peer_id] = now_s
        super().sweep(now_s)

    # -- RequestSink of the connections ------------------------------------------------------

    def connected(self, connection: ServerConnection) -> None:
        super().connected(connection)
        self._sockets.take(connection.transport)
        self._sink.connected(connection)

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
                request_kind=ticket.kind.name, peer_id=speaker, reason=str(error)[:500],
            )
        self._sink.body_refused(connection, ticket, error)

    def drained(self, connection: ServerConnection) -> None:
        self._sink.drained(connection)

    def wire_broken(self, connection: ServerConnection, error: WireError) -> None:
        self.wire_errors += 1
        repeated = self.folding.happened(("format broken by", connection.peer_id))
        if repeated is not None:
            self.log.error(
                "{peer_id} at {address} broke the format, connection aborted: {reason}",
                peer_id=connection.peer_id, address=connection.address, reason=str(error), **repeated,
            )
        self._sink.wire_broken(connection, error)

    def connection_lost(self, connection: ServerConnection, reason: str) -> None:
        super().connection_lost(connection, reason)
        peer_id = connection.peer_id
        if peer_id is not None and self._by_peer.get(peer_id) is connection:
            del self._by_peer[peer_id], self._heard_s[peer_id]
            self._note("peer-disconnected", {"peer_id": peer_id, "reason": reason})
        elif reason.startswith(TLS_LOSS) and not connection.account.is_proven:
            host = connection.address.rpartition(":")[0]
            self._note("handshake-failed", {"address": host, "reason": reason})
        self._sink.connection_lost(connection, reason)
