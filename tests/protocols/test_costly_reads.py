# -*- test-case-name: tests.protocols.test_costly_reads -*-
"""Reads of clients wait when a turn has taken long, and requests that are slow to parse are few."""

from __future__ import annotations

import weakref

from protocols.connection import LOOSE_PER_READ
from protocols.ledger.connection import FRAMES_MAX, PIECE_PRICE, ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.put_off import SHORT_READ_BYTES, SLICE_BYTES, PutOffReads
from protocols.turn import READS_S
from protocols.wire.fastjson import REQUEST_VALUES_MAX
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.java.json_bodies import REQUEST_BYTES_MAX, REQUEST_TOLERANT_BYTES_MAX, WITH_CONTENT
from protocols.wire.ledger.messages import AppendRequest, PullRequest, Request
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.protocols.fakes import ASK, BEAT, native_request, remoting_request, unplug
from tests.protocols.test_connection import ServerTestCase


class CostlyReadTests(ServerTestCase):
    """One connection among others."""

    def test_late_turn(self) -> None:
        """A read of a client waits for the next turn; order is kept."""
        self.connection.turn.is_late = True
        self.connection.dataReceived(remoting_request(ASK, 1))
        self.connection.dataReceived(remoting_request(BEAT, 2))
        self.assertEqual(self.sink.requests, [])
        self.connection.turn.next_reads()
        self.assertEqual([request for _, request in self.sink.requests], [ASK, BEAT])
        self.assertEqual(self.transport.producerState, "producing")

    def test_no_more_is_read_while_many_bytes_wait(self) -> None:
        """A short read that waits for one turn does not stop the reading, which costs two system calls."""
        frame = remoting_request(BEAT, 1)
        self.connection.turn.is_late = True
        few = SHORT_READ_BYTES // len(frame)
        self.connection.dataReceived(frame * few)
        self.assertEqual((self.sink.requests, self.transport.producerState), ([], "producing"))
        self.connection.dataReceived(frame)
        self.assertEqual((self.sink.requests, self.transport.producerState), ([], "paused"))
        self.connection.turn.next_reads()
        self.assertEqual(len(self.sink.requests), few + 1)
        self.assertEqual(self.transport.producerState, "producing")

    def test_late_turn_of_a_peer(self) -> None:
        """Heartbeats, votes and pushes come first."""
        self.connection.turn.is_late = True
        self.connection.peer_id = "n1"
        self.connection.dataReceived(remoting_request(BEAT, 2))
        self.assertEqual(len(self.sink.requests), 1)

    def test_late_turn_and_a_lost_connection(self) -> None:
        """Nothing is handed over."""
        self.connection.turn.is_late = True
        self.connection.dataReceived(remoting_request(ASK, 1))
        unplug(self.connection)
        self.connection.turn.next_reads()
        self.assertEqual(self.sink.requests, [])

    def test_long_read_in_slices(self) -> None:
        """A long read gets a slice of each turn; nothing is lost, doubled, or out of order."""
        turn = self.connection.turn
        turn.is_late = True
        count = 3 * SLICE_BYTES // len(remoting_request(BEAT, 1))
        self.connection.dataReceived(b"".join(remoting_request(BEAT, 1 + opaque) for opaque in range(count)))
        self.connection.dataReceived(remoting_request(ASK, count + 1))
        seen = []
        while self.connection.put_off.is_waiting:
            is_full = self.connection.put_off.waiting_bytes > SHORT_READ_BYTES
            self.assertEqual(self.transport.producerState, "paused" if is_full else "producing")
            turn.is_late = True
            (_cost, _serial, read) = turn.long_reads.pop() if turn.long_reads else turn.short_reads.pop()
            read()
            seen.append(len(self.sink.requests))
        self.assertEqual(len(seen), 4)
        self.assertEqual([ticket.opaque for ticket, _ in self.sink.requests], list(range(1, count + 2)))
        self.assertEqual(self.transport.producerState, "producing")

    def test_last_slice_is_short(self) -> None:
        """Nothing is left waiting when the turn ends early: no other turn would come for it."""
        frame = remoting_request(BEAT, 1)
        count = SLICE_BYTES // len(frame) + 5
        self.connection.turn.is_late = True
        self.connection.dataReceived(frame * count)
        self.connection.turn.next_reads()
        self.assertEqual(len(self.sink.requests), count)
        self.assertFalse(self.connection.put_off.is_waiting)

    def test_held(self) -> None:
        """While the owner lets requests wait, reads wait after them, also those of a slice under way."""
        reads, turn = self.connection.put_off, self.connection.turn
        reads.hold()
        self.connection.dataReceived(remoting_request(BEAT, 1))
        turn.next_reads()
        self.assertEqual((self.sink.requests, self.transport.producerState), ([], "paused"))
        reads.release()
        turn.next_reads()
        self.assertEqual((len(self.sink.requests), self.transport.producerState), (1, "producing"))
        turn.is_late = True
        self.connection.dataReceived(remoting_request(BEAT, 2) * SLICE_BYTES)
        self.patch(self.sink, "requests_received", lambda *_: reads.hold())
        turn.next_reads()
        self.assertEqual((len(turn.long_reads), len(turn.short_reads), reads.is_waiting), (0, 0, True))

    def test_lost_between_slices(self) -> None:
        """The rest is dropped."""
        turn = self.connection.turn
        turn.is_late = True
        self.connection.dataReceived(remoting_request(BEAT, 1) * SLICE_BYTES)
        (_cost, _serial, read) = turn.long_reads.pop()
        self.patch(self.sink, "requests_received", lambda *_: unplug(self.connection))
        read()
        self.assertFalse(self.connection.put_off.is_waiting)
        self.assertEqual((len(turn.long_reads), len(turn.short_reads)), (0, 0))

    def test_ended_connection_keeps_no_memory(self) -> None:
        """Its reads refer to it no longer, so it does not wait for the collector of reference cycles."""

        class Owner:
            def handle(self, data: bytes) -> None:
                """Take bytes."""

        owner = Owner()
        reads = PutOffReads(
            self.connection.turn, owner.handle, changed=lambda: None, cost_s=lambda: 0.0, uncut=lambda: 0,
            must_wait=lambda: False,
        )
        kept = weakref.ref(owner)
        reads.drop()
        del owner
        self.assertIsNone(kept())

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

    def test_large_request(self) -> None:
        """Only requests with content of clients, or with entries, may be large; others are not parsed."""
        for kind in RequestCode:
            self.sink.refused.clear()
            self.sink.calls.clear()
            body = b'{"group":"g","x":"' + b"x" * REQUEST_BYTES_MAX + b'"}'
            self.connection.dataReceived(encode_command(RemotingCommand(code=int(kind), opaque=1, body=body)))
            reasons = [str(error) for _, error in self.sink.refused]
            self.assertEqual(any("are allowed" in one for one in reasons), kind not in WITH_CONTENT, kind)

    def test_many_values(self) -> None:
        """Only members of the group may send as many as a batch of a leader has."""
        body = b'{"group":"g","x":[' + b"1," * REQUEST_VALUES_MAX + b"1]}"
        frame = encode_command(RemotingCommand(code=int(RequestCode.APPEND), opaque=1, body=body))
        self.connection.dataReceived(frame)
        self.assertEqual((len(self.sink.requests), len(self.sink.refused)), (0, 1))
        self.connection.peer_id = "n1"
        self.connection.dataReceived(frame)
        self.assertEqual(len(self.sink.requests), 1)

    def test_pieces_by_price(self) -> None:
        """A long read is handed over in pieces; expensive requests make short ones."""
        pull = PullRequest(group="g", remote_id="n0", begin_index=0)
        append = AppendRequest(group="g", remote_id="n0", bodies=(b"x",))
        bad = encode_command(RemotingCommand(code=int(RequestCode.METADATA), opaque=1, body=b"{"))
        for frame, most in (
            (native_request(append, 1), FRAMES_MAX), (native_request(pull, 1), PIECE_PRICE // 4),
            (remoting_request(append, 1), FRAMES_MAX), (remoting_request(pull, 1), PIECE_PRICE // 5 + 1),
        ):
            self.sink.calls.clear()
            self.connection.dataReceived(frame * 200)
            self.assertEqual({len(call) for call in self.sink.calls[:-1]}, {most})
            self.assertEqual(len(self.sink.requests), 200)
        refused: list[int] = []
        self.patch(self.connection.turn, "has_room", lambda: refused.append(len(self.sink.refused)) or True)
        self.connection.dataReceived(bad * 200)
        self.assertEqual((refused[0], len(self.sink.refused)), (PIECE_PRICE // 4, 200))

    def test_long_read_ends_with_the_turn(self) -> None:
        """When the pieces have taken their time, the rest waits as bytes, and comes in the next turns."""
        received = self.sink.requests_received

        def slow(connection: ServerConnection, requests: list[tuple[Ticket, Request]]) -> None:
            self.clock.rightNow += 0.6 * READS_S
            received(connection, requests)

        self.patch(self.sink, "requests_received", slow)
        frame = native_request(AppendRequest(group="g", remote_id="n0", bodies=(b"x",)), 1)
        self.connection.dataReceived(frame * (4 * FRAMES_MAX))
        self.assertEqual(len(self.sink.requests), FRAMES_MAX)
        self.connection.dataReceived(frame)
        self.assertEqual((len(self.sink.requests), self.transport.producerState), (FRAMES_MAX, "paused"))
        self.clock.pump([0.1] * 8)
        self.assertEqual(len(self.sink.requests), 4 * FRAMES_MAX + 1)
        self.assertEqual(self.transport.producerState, "producing")
