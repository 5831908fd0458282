# -*- test-case-name: tests.protocols.test_costly_reads -*-
"""Reads of clients wait when a turn has taken long, and requests that are slow to parse are few."""

from __future__ import annotations

from protocols.connection import LOOSE_PER_READ
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.json_bodies import REQUEST_TOLERANT_BYTES_MAX, REQUEST_VALUES_MAX
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.protocols.fakes import remoting_request, unplug
from tests.protocols.test_connection import ASK, BEAT, ServerTestCase


class CostlyReadTests(ServerTestCase):
    """One connection among others."""

    def test_late_turn(self) -> None:
        """A read of a client waits for the next turn, and no more is read meanwhile; order is kept."""
        self.connection._turn.is_late = True
        self.connection.dataReceived(remoting_request(ASK, 1))
        self.connection.dataReceived(remoting_request(BEAT, 2))
        self.assertEqual((self.sink.requests, self.transport.producerState), ([], "paused"))
        self.connection._turn._next_reads()
        self.assertEqual([request for _, request in self.sink.requests], [ASK, BEAT])
        self.assertEqual(self.transport.producerState, "producing")

    def test_late_turn_of_a_peer(self) -> None:
        """Heartbeats, votes and pushes come first."""
        self.connection._turn.is_late = True
        self.connection.peer_id = "n1"
        self.connection.dataReceived(remoting_request(BEAT, 2))
        self.assertEqual(len(self.sink.requests), 1)

    def test_late_turn_and_a_lost_connection(self) -> None:
        """Nothing is handed over."""
        self.connection._turn.is_late = True
        self.connection.dataReceived(remoting_request(ASK, 1))
        unplug(self.connection)
        self.connection._turn._next_reads()
        self.assertEqual(self.sink.requests, [])

    def test_loose_requests(self) -> None:
        """A few of one read are parsed by the slow parser; the next are refused, and answered 411."""
        loose = b"{group:'g',remoteId:'n0'}"
        frame = encode_command(RemotingCommand(code=int(RequestCode.METADATA), opaque=1, body=loose))
        self.connection.dataReceived(frame * (LOOSE_PER_READ + 3))
        self.assertEqual((len(self.sink.requests), len(self.sink.refused)), (LOOSE_PER_READ, 3))
        self.connection.dataReceived(frame)
        self.assertEqual(len(self.sink.requests), LOOSE_PER_READ + 1)

    def test_large_loose_request(self) -> None:
        """Refused: no Java member or client writes it."""
        loose = b"{group:'g',remoteId:'n0',x:'" + b"x" * REQUEST_TOLERANT_BYTES_MAX + b"'}"
        command = RemotingCommand(code=int(RequestCode.METADATA), opaque=1, body=loose)
        self.connection.dataReceived(encode_command(command))
        self.assertEqual((len(self.sink.requests), len(self.sink.refused)), (0, 1))

    def test_many_values(self) -> None:
        """Only members of the group may send as many as a batch of a leader has."""
        body = b'{"group":"g","x":[' + b"1," * REQUEST_VALUES_MAX + b"1]}"
        frame = encode_command(RemotingCommand(code=int(RequestCode.METADATA), opaque=1, body=body))
        self.connection.dataReceived(frame)
        self.assertEqual((len(self.sink.requests), len(self.sink.refused)), (0, 1))
        self.connection.peer_id = "n1"
        self.connection.dataReceived(frame)
        self.assertEqual(len(self.sink.requests), 1)
