# -*- test-case-name: tests.node.test_server -*-
"""The listening side: one connection per peer, bounds, complaints."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving import listening
from dledger.base.serving.client_places import ClientPlaces
from dledger.base.serving.folding import QUIET_S
from dledger.node.connections.server import LIVE_S, MemberServer
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.errors import BodyError
from protocols.wire.ledger.messages import MetadataRequest
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.protocols.fakes import FakeTransport, SeenRequests, native_request, plug, turn_of, unplug

ASK = MetadataRequest(group="g", remote_id="n0")


class ServerTestCase(SynchronousTestCase):
    """A server with an owner that only remembers."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.sink = SeenRequests()
        self.notes: list[tuple[str, dict[str, object]]] = []
        self.server = MemberServer(
            self.sink, turn_of(self.clock), connections_max=3,
            note=lambda event, facts: self.notes.append((event, dict(facts))),
        )

    def connect(self) -> tuple[ServerConnection, FakeTransport]:
        """Somebody connects."""
        connection = self.server.buildProtocol(None)
        assert connection is not None
        return connection, plug(connection)


class ConnectionTests(ServerTestCase):
    """How many there are."""

    def test_requests_go_to_the_owner(self) -> None:
        """Requests go to the owner with their connection."""
        connection, _ = self.connect()
        connection.dataReceived(native_request(ASK, 1))
        self.assertEqual([request for _, request in self.sink.requests], [ASK])
        self.assertEqual(self.sink.connections, [connection])

    def test_the_number_of_connections_is_bounded(self) -> None:
        """One too many is refused, and shown to the log; when another ends there is room again."""
        connections = [self.connect()[0] for _ in range(3)]
        for connection in connections:
            connection.account.prove()
        with capturedLogs() as events:
            self.assertIsNone(self.server.buildProtocol(None))
        self.assertEqual((events[0]["connections"], events[0]["connections_max"]), (3, 3))
        self.assertEqual((self.server.connections, self.server.connections_refused), (3, 1))
        unplug(connections[0])
        self.assertIsNotNone(self.server.buildProtocol(None))
        self.assertEqual(self.sink.lost, ["Connection was closed cleanly."])

    def test_refusals_are_folded(self) -> None:
        """A flood of connections makes one line, and a last one with their number."""
        for _ in range(3):
            self.connect()[0].account.prove()
        with capturedLogs() as events:
            for _ in range(500):
                self.server.buildProtocol(None)
            self.clock.advance(QUIET_S)
            self.server.sweep(self.clock.seconds())
        self.assertEqual([event.get("times") for event in events], [None, 500])

    def test_a_stranger_makes_room(self) -> None:
        """The oldest connection without a valid request ends for a new one."""
        known, silent, newer = [self.connect()[0] for _ in range(3)]
        known.account.prove()
        self.connect()
        self.assertEqual([one.is_lost for one in (known, silent, newer)], [False, True, False])
        self.assertEqual((self.server.connections, self.server.connections_replaced), (3, 1))

    def test_few_are_replaced_in_a_turn(self) -> None:
        """The descriptor of an ended connection is free when the turn is over, not before."""
        self.patch(listening, "REPLACED_A_TURN", 2)
        for _ in range(3):
            self.connect()
        for _ in range(2):
            self.connect()
        self.assertIsNone(self.server.buildProtocol(None))
        self.clock.advance(0)
        self.assertIsNotNone(self.server.buildProtocol(None))

    def test_clients_leave_places_for_peers(self) -> None:
        """A connection that was taken for a member's has no place of a client."""
        self.server.clients = ClientPlaces(3, share_percent=100)
        connections = [self.connect()[0] for _ in range(3)]
        self.assertEqual([self.server.no_place(one) == "" for one in connections], [True, False, False])
        self.server.claim(connections[0], "n1")
        self.assertEqual([self.server.no_place(one) == "" for one in connections[1:]], [True, False])
        self.assertTrue(self.server.has_place(connections[1]))
        self.assertFalse(self.server.has_place(connections[2]))
        unplug(connections[1])
        self.assertEqual(self.server.no_place(connections[2]), "")
        self.server.sweep(self.clock.seconds())
        self.assertEqual([one.is_lost for one in connections], [False, True, False])

    def test_places_are_reported(self) -> None:
        """The log has the reason once, and the number is counted."""
        self.server.clients = ClientPlaces(3, share_percent=100)
        connections = [self.connect()[0] for _ in range(3)]
        with capturedLogs() as events:
            reasons = [self.server.no_place(one) for one in connections]
        self.assertIn("1 clients are connected, which is the limit here", reasons[2])
        self.assertEqual([event["reason"] for event in events], reasons[1:2])
        self.assertEqual(self.server.connections_refused, 2)

    def test_closing_ends_all_connections(self) -> None:
        """Everything ends, and nothing new is accepted."""
        transports = [self.connect()[1] for _ in range(2)]
        self.server.close_all()
        self.assertTrue(all(transport.disconnecting for transport in transports))
        self.assertFalse(any(transport.disconnected for transport in transports))
        self.assertIsNone(self.server.buildProtocol(None))

    def test_an_abort_ends_the_rest(self) -> None:
        """What did not end by itself."""
        transports = [self.connect()[1] for _ in range(2)]
        self.server.close_all()
        self.server.abort_all("time is up")
        self.assertTrue(all(transport.disconnected for transport in transports))
        self.assertEqual(self.sink.lost, ["time is up"] * 2)
        self.assertEqual(self.server.connections, 0)

    def test_the_sweep_closes_idle_connections(self) -> None:
        """Idle ones are closed."""
        connection, _ = self.connect()
        self.server.sweep(0)
        self.server.sweep(200)
        self.assertTrue(connection.is_lost)
        self.assertEqual(self.server.connections, 0)


class PeerTests(ServerTestCase):
    """A peer speaks on one connection, and a connection for one peer."""

    def pass_time(self, seconds: float) -> None:
        """Sweep by sweep."""
        for _ in range(round(seconds / 0.2)):
            self.clock.advance(0.2)
            self.server.sweep(self.clock.seconds())

    def test_a_connection_may_claim_twice(self) -> None:
        """A connection may say again whose it is."""
        connection, _ = self.connect()
        self.assertTrue(self.server.claim(connection, "n1"))
        self.assertTrue(self.server.claim(connection, "n1"))
        self.assertEqual(connection.peer_id, "n1")

    def test_a_live_connection_stays(self) -> None:
        """Whoever else speaks for its peer is ended, a hundred times; the first is not even reported."""
        first, transport = self.connect()
        self.server.claim(first, "n1")
        self.pass_time(LIVE_S - 0.4)
        first.dataReceived(native_request(ASK, 1))
        self.pass_time(LIVE_S - 0.4)
        for _ in range(100):
            other, other_transport = self.connect()
            self.assertFalse(self.server.claim(other, "n1"))
            self.assertTrue(other_transport.disconnected)
        self.assertFalse(transport.disconnected)
        self.assertEqual(first.peer_id, "n1")
        self.assertEqual([event for event, _ in self.notes], ["peer-connected", *["claim-refused"] * 100])

    def test_a_question_ends_no_connection(self) -> None:
        """What any client may ask does not end a second connection; later it is taken for the member."""
        first, _ = self.connect()
        self.server.claim(first, "n1")
        other, transport = self.connect()
        self.assertFalse(self.server.claim(other, "n1", is_binding=False))
        self.assertIsNone(other.peer_id)
        self.assertFalse(transport.disconnected)
        self.pass_time(LIVE_S)
        self.assertTrue(self.server.claim(other, "n1", is_binding=False))
        self.assertEqual(other.peer_id, "n1")

    def test_asks_for_two(self) -> None:
        """A connection that has spoken for one member ends when it asks for another."""
        first, transport = self.connect()
        self.server.claim(first, "n1")
        self.assertFalse(self.server.claim(first, "n2", is_binding=False))
        self.assertTrue(transport.disconnected)

    def test_after_a_standstill(self) -> None:
        """A member that stood still has unread what its peer sent: the peer's connection stays."""
        first, _ = self.connect()
        self.server.claim(first, "n1")
        self.pass_time(1)
        self.clock.advance(10)
        other, _ = self.connect()
        self.assertFalse(self.server.claim(other, "n1"))
        self.pass_time(LIVE_S + 0.2)
        other, _ = self.connect()
        self.assertTrue(self.server.claim(other, "n1"))

    def test_newer_ends_a_silent_one(self) -> None:
        """The owner hears that the older is lost before the newer is listened to."""
        older, older_transport = self.connect()
        newer, _ = self.connect()
        self.server.claim(older, "n1")
        self.pass_time(LIVE_S)
        self.assertTrue(self.server.claim(newer, "n1"))
        self.assertTrue(older_transport.disconnected)
        self.assertEqual(self.sink.lost, ["n1 opened a newer connection"])
        older.dataReceived(native_request(ASK, 1))
        self.assertEqual(self.sink.calls, [])
        self.assertTrue(self.server.claim(newer, "n1"))

    def test_older_that_speaks_late(self) -> None:
        """It introduces itself after the other one: it is the one that is ended."""
        older, older_transport = self.connect()
        newer, newer_transport = self.connect()
        self.assertTrue(self.server.claim(newer, "n1"))
        self.assertFalse(self.server.claim(older, "n1"))
        self.assertTrue(older_transport.disconnected)
        self.assertFalse(newer_transport.disconnected)
        self.assertTrue(self.server.claim(newer, "n1"))

    def test_after_a_loss(self) -> None:
        """A lost connection is nobody's any more, and the next is not held against it."""
        first, _ = self.connect()
        self.server.claim(first, "n1")
        unplug(first)
        second, _ = self.connect()
        self.assertTrue(self.server.claim(second, "n1"))
        self.assertEqual(len(self.sink.lost), 1)

    def test_two_peers_do_not_disturb_each_other(self) -> None:
        """They do not disturb each other."""
        first, _ = self.connect()
        second, _ = self.connect()
        self.server.claim(first, "n1")
        self.server.claim(second, "n2")
        self.assertEqual(self.sink.lost, [])

    def test_a_connection_that_changes_its_mind(self) -> None:
        """It spoke for one member, and cannot speak for another: it is ended."""
        connection, _ = self.connect()
        self.server.claim(connection, "n1")
        self.assertFalse(self.server.claim(connection, "n2"))
        self.assertTrue(connection.is_lost)
        other, _ = self.connect()
        self.assertTrue(self.server.claim(other, "n2"))


class ComplaintTests(ServerTestCase):
    """Malformed frames and requests."""

    def nonsense(self, body: bytes) -> bytes:
        """A PUSH with a nonsensical body."""
        return encode_command(RemotingCommand(code=51004, opaque=2, body=body))

    def test_a_broken_format_is_counted(self) -> None:
        """Counted, and the log names peer and reason."""
        connection, _ = self.connect()
        self.server.claim(connection, "n1")
        with capturedLogs() as events:
            connection.dataReceived(b"nonsense")
        (event,) = [event for event in events if event["log_level"] is LogLevel.error]
        self.assertEqual(event["peer_id"], "n1")
        self.assertIn("0x6e", event["reason"])
        self.assertEqual(self.server.wire_errors, 1)

    def test_a_complaint_is_logged_once(self) -> None:
        """Per peer; each is counted and passed on."""
        connection, _ = self.connect()
        self.server.claim(connection, "n1")
        with capturedLogs() as events:
            connection.dataReceived(self.nonsense(b"{") + self.nonsense(b"{"))
        self.assertEqual(len([event for event in events if event["log_level"] is LogLevel.error]), 1)
        self.assertEqual(self.server.body_errors, 2)
        self.assertEqual(len(self.sink.refused), 2)
        with capturedLogs() as events:
            other, _ = self.connect()
            self.server.claim(other, "n2")
            other.dataReceived(self.nonsense(b"{"))
        self.assertEqual(len([event for event in events if event["log_level"] is LogLevel.error]), 1)

    def test_values_do_not_make_it_another_complaint(self) -> None:
        """What differs in numbers only was said before."""
        connection, _ = self.connect()
        ticket = Ticket(1, False, ASK.kind, 10)
        with capturedLogs() as events:
            for value in range(5):
                self.server.body_refused(connection, ticket, BodyError(f"index={value} is negative"))
            self.server.body_refused(connection, ticket, BodyError("DLedger 0.4 peer: entries"))
        self.assertEqual(len([event for event in events if event["log_level"] is LogLevel.error]), 2)
