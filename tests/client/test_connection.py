# -*- test-case-name: tests.client.test_connection -*-
"""Every request has one outcome; nothing the other end sends breaks more than the connection."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import LogLevel, capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.connection import MemberLink, RequestLost, RequestRefused
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.java.json_bodies import encode_response
from protocols.wire.ledger.messages import (
    AppendRequest,
    AppendResponse,
    GetResponse,
    MetadataRequest,
    MetadataResponse,
    Response,
)
from protocols.wire.ledger.push import decode_frame, encode_request_frame, encode_response_frame
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from tests.protocols.fakes import turn_of


class ConnectionCase(SynchronousTestCase):
    """One connection, over a transport that only remembers."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.connection = MemberLink("n0", self.clock, turn_of(self.clock))
        self.transport = StringTransport()
        self.connection.protocol.makeConnection(self.transport)
        self.results: list[Response | Exception] = []

    def ask(self) -> None:
        """An append in flight."""
        self.connection.request(AppendRequest(group="g", bodies=(b"a",)), self.results.append)
        self.clock.advance(0)

    def reply(self, opaque: int, response: Response | None = None, code: int = 200, **more: str) -> bytes:
        """A remoting reply."""
        body = encode_response(response) if response is not None else b""
        return encode_command(RemotingCommand(code=code, flag=1, opaque=opaque, body=body, **more))

    def receive(self, data: bytes) -> None:
        """Bytes from the member."""
        self.connection.protocol.dataReceived(data)

    def lose(self) -> None:
        """The connection ends."""
        self.connection.protocol.connectionLost(Failure(ConnectionDone()))


class AnswerTests(ConnectionCase):
    """Answers and their requests."""

    def test_a_json_answer_comes_back(self) -> None:
        """The frame has the request; the answer comes back."""
        self.ask()
        command = decode_command(self.transport.value()[4:])
        self.assertEqual((command.code, command.flag, command.language), (RequestCode.APPEND, 0, "PYTHON"))
        self.receive(self.reply(command.opaque, AppendResponse(index=7)))
        self.assertEqual(self.results, [AppendResponse(index=7)])
        self.assertEqual(self.connection.outstanding, 0)

    def test_a_native_answer_comes_back(self) -> None:
        """A native frame has the request; the answer comes back."""
        self.connection.protocol.is_native = True
        self.ask()
        opaque, request = decode_frame(self.transport.value())
        self.assertEqual(request, AppendRequest(group="g", bodies=(b"a",)))
        self.receive(encode_response_frame(AppendResponse(index=7), opaque))
        self.assertEqual(self.results, [AppendResponse(index=7)])

    def test_in_any_order_and_any_pieces(self) -> None:
        """Two answers, the second first, cut everywhere."""
        for size in range(1, 60):
            self.setUp()
            self.ask()
            self.ask()
            stream = self.reply(2, AppendResponse(index=2))
            stream += encode_response_frame(AppendResponse(index=1), 1)
            for at in range(0, len(stream), size):
                self.receive(stream[at : at + size])
            self.assertEqual([r.index for r in self.results], [2, 1])

    def test_the_end_of_a_turn_is_reported(self) -> None:
        """Reported once per read, after its answers."""
        seen: list[int] = []
        self.connection.turn_ended.append(lambda: seen.append(len(self.results)))
        self.ask()
        self.ask()
        self.receive(self.reply(1, AppendResponse()) + self.reply(2, AppendResponse()))
        self.assertEqual(seen, [2])

    def test_unexpected_answers_are_dropped(self) -> None:
        """An answer to nothing, an answer twice, and a request are dropped."""
        self.ask()
        self.receive(self.reply(9, AppendResponse()))
        self.receive(encode_request_frame(MetadataRequest(), 9))
        self.receive(encode_command(RemotingCommand(code=50000, opaque=1, body=b"{}")))
        self.assertEqual(self.results, [])
        self.receive(self.reply(1, AppendResponse()) * 2)
        self.assertEqual(len(self.results), 1)
        self.assertFalse(self.transport.disconnecting)

    def test_opaque_numbers_wrap_like_java(self) -> None:
        """It stays a number that Java can hold."""
        self.connection.protocol.next_opaque = 0x7FFFFFFF
        for opaque in (0x7FFFFFFF, 1):
            self.ask()
            self.assertEqual(decode_command(self.transport.value()[4:]).opaque, opaque)
            self.transport.clear()

    def test_answer_of_another_kind(self) -> None:
        """An answer that is none: the outcome is not known."""
        self.connection.protocol.is_native = True
        self.ask()
        self.receive(encode_response_frame(GetResponse(), 1))
        self.assertIsInstance(self.results[0], RequestLost)

    def test_request_with_our_number(self) -> None:
        """A request from a member that has the number of one of ours: it breaks the format."""
        self.ask()
        self.receive(encode_request_frame(MetadataRequest(), 1))
        self.assertIsInstance(self.results[0], RequestLost)
        self.assertTrue(self.transport.disconnected)

    def test_a_congested_connection_is_bounded(self) -> None:
        """A congested connection takes requests up to its bound; one beyond it was certainly not sent."""
        self.connection.protocol.pauseProducing()
        body = b"x" * (1 << 20)
        for _ in range(40):
            self.connection.request(AppendRequest(group="g", bodies=(body,)), self.results.append)
            self.clock.advance(0)
        self.assertLess(len(self.transport.value()), 34 << 20)
        refused = self.results[0]
        assert isinstance(refused, RequestRefused)
        self.assertIs(refused.code, ResponseCode.LEADER_PENDING_FULL)
        self.assertEqual(self.connection.outstanding + len(self.results), 40)
        self.connection.protocol.resumeProducing()
        before = len(self.results)
        self.ask()
        self.assertEqual(len(self.results), before)

    def test_errors_of_remoting_differ(self) -> None:
        """Refused before a handler saw it, or broken in a handler: two different things."""
        for code, kind in ((1, RequestLost), (2, RequestRefused), (3, RequestRefused), (4, RequestLost)):
            self.setUp()
            self.ask()
            self.receive(self.reply(1, code=code, remark="why"))
            self.assertIsInstance(self.results[0], kind)
            self.assertIn("why", str(self.results[0]))

    def test_body_that_is_no_answer(self) -> None:
        """It is not known what happened, but the connection is open."""
        self.ask()
        self.receive(self.reply(1))
        self.assertIsInstance(self.results[0], RequestLost)
        self.assertTrue(self.connection.is_connected)


class EndTests(ConnectionCase):
    """The connection ends."""

    def test_a_lost_connection_reports_all(self) -> None:
        """Everything outstanding is reported in order, then the owner, then the end of the turn."""
        order: list[str] = []
        for name in ("a", "b"):
            self.connection.request(
                MetadataRequest(), lambda result, name=name: order.append(f"{name} {type(result).__name__}")
            )
        self.connection.lost = lambda _: order.append("lost")
        self.connection.turn_ended.append(lambda: order.append("turn"))
        self.lose()
        self.assertEqual(order, ["a RequestLost", "b RequestLost", "lost", "turn"])
        self.assertFalse(self.connection.is_connected)

    def test_garbage_costs_the_connection(self) -> None:
        """Costs the connection, but not the answers before it."""
        self.ask()
        self.ask()
        with capturedLogs() as events:
            self.receive(self.reply(1, AppendResponse(index=1)) + b"\xff" * 9)
        answer, lost = self.results
        self.assertEqual(answer, AppendResponse(index=1))
        self.assertIsInstance(lost, RequestLost)
        self.assertTrue(self.transport.disconnected)
        self.assertFalse(self.connection.is_connected)
        self.lose()
        self.assertEqual(len(self.results), 2)
        (event,) = [event for event in events if event["log_level"] is LogLevel.warn]
        self.assertEqual(event["peer_id"], "n0")

    def test_a_bad_header_costs_the_connection(self) -> None:
        """A remoting frame whose header cannot be read costs the connection, too."""
        self.receive(b"\0\0\0\x08\x07\0\0\0abcd")
        self.assertTrue(self.transport.disconnected)

    def test_a_caller_gets_its_outcome(self) -> None:
        """For a caller that waits: answer, time-out, loss, cancellation; no timer is left."""
        metadata = MetadataRequest()
        answered, late = self.connection.ask(metadata, 1.0), self.connection.ask(metadata, 2.0)
        lost, cancelled = self.connection.ask(metadata, 9.0), self.connection.ask(metadata, 9.0)
        cancelled.addErrback(lambda _: None)
        cancelled.cancel()
        self.receive(self.reply(1, MetadataResponse()))
        self.assertEqual(self.successResultOf(answered), MetadataResponse())
        self.clock.advance(2.0)
        error = self.failureResultOf(late, DLedgerError).value
        self.assertIs(error.code, ResponseCode.TIMEOUT)
        self.receive(self.reply(2, MetadataResponse()))
        self.lose()
        self.failureResultOf(lost, RequestLost)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.failureResultOf(self.connection.ask(metadata, 1.0), RequestLost)

    def test_a_closed_connection_takes_nothing(self) -> None:
        """Takes no more requests at once."""
        self.connection.close()
        self.assertTrue(self.transport.disconnecting)
        self.assertRaises(AssertionError, self.connection.request, MetadataRequest(), self.results.append)
