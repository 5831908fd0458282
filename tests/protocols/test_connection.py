# -*- test-case-name: tests.protocols.test_connection -*-
"""The end of a server, and both together, with transports and clocks that are not real."""

from __future__ import annotations

from OpenSSL import SSL
from twisted.internet.error import VerifyError
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from protocols.connection import loss_sentence
from protocols.ledger.connection import ClientConnection, ServerConnection
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import (
    AppendResponse,
    GetRequest,
    GetResponse,
    HeartBeatResponse,
    MetadataResponse,
    Response,
)
from protocols.wire.ledger.push import decode_frame
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.protocols.fakes import (
    APPEND,
    ASK,
    BEAT,
    SeenAnswers,
    SeenRequests,
    native_request,
    native_response,
    plug,
    remoting_request,
    remoting_response,
    sent_commands,
    sent_messages,
    turn_of,
    unplug,
)


class ServerTestCase(SynchronousTestCase):
    """One connection that somebody made to us."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.sink = SeenRequests()
        self.open()

    def open(self, **options: int) -> None:
        """A connection with bounds of its own."""
        self.connection = ServerConnection(self.sink, turn_of(self.clock), idle_s=120, **options)
        self.transport = plug(self.connection)

    def end_turn(self) -> bytes:
        """What was written since the last time."""
        self.clock.advance(0)
        data = self.transport.value()
        self.transport.clear()
        return data


class ServerInputTests(ServerTestCase):
    """Bytes in, requests out."""

    def test_notifies_its_owner(self) -> None:
        """That it is there."""
        self.assertEqual(self.sink.connections, [self.connection])

    def test_one_read_one_call(self) -> None:
        """All frames of a read are handed over together, in order, of either format."""
        self.connection.dataReceived(
            remoting_request(ASK, 1) + native_request(APPEND, 2) + remoting_request(BEAT, 3)
        )
        self.assertEqual(len(self.sink.calls), 1)
        self.assertEqual([request for _, request in self.sink.requests], [ASK, APPEND, BEAT])
        self.assertEqual([ticket[:3] for ticket, _ in self.sink.requests], [
            (1, False, RequestCode.METADATA),
            (2, True, RequestCode.APPEND),
            (3, False, RequestCode.HEART_BEAT),
        ])

    def test_any_fragmentation(self) -> None:
        """Requests are understood however the network cuts them."""
        stream = remoting_request(ASK, 1) + native_request(APPEND, 2) + remoting_request(BEAT, 3)
        for size in range(1, len(stream) + 1):
            sink = SeenRequests()
            connection = ServerConnection(sink, turn_of(self.clock))
            plug(connection)
            for at in range(0, len(stream), size):
                connection.dataReceived(stream[at : at + size])
            seen = [request for _, request in sink.requests]
            self.assertEqual(seen, [ASK, APPEND, BEAT], f"cut every {size}")

    def test_oneway_is_a_request_all_the_same(self) -> None:
        """DLedger never looks at that bit."""
        self.connection.dataReceived(remoting_request(ASK, 1, flag=2))
        self.assertEqual(len(self.sink.requests), 1)

    def test_answers_are_dropped(self) -> None:
        """Nobody here waits for one, of either format."""
        self.connection.dataReceived(
            remoting_response(MetadataResponse(), 1) + native_response(MetadataResponse(), 2)
        )
        self.assertEqual(self.sink.calls, [])
        self.assertEqual(self.connection.unanswered, 0)
        self.assertFalse(self.connection.is_lost)

    def test_unknown_code(self) -> None:
        """Answered by remoting itself, as Java does, oneway or not."""
        self.connection.dataReceived(encode_command(RemotingCommand(code=310, opaque=8, flag=2)))
        (command,) = sent_commands(self.end_turn())
        self.assertEqual((command.code, command.opaque, command.flag), (3, 8, 1))
        self.assertEqual(self.sink.calls, [])

    def test_refused_body(self) -> None:
        """A sound frame with a nonsensical body is for the owner to answer; those around it are served."""
        nonsense = encode_command(RemotingCommand(code=50001, opaque=2, body=b"{"))
        self.connection.dataReceived(remoting_request(ASK, 1) + nonsense + remoting_request(ASK, 3))
        self.assertEqual([ticket[0] for ticket, _ in self.sink.requests], [1, 3])
        self.assertEqual([ticket[:3] for ticket, _ in self.sink.refused], [(2, False, RequestCode.APPEND)])
        self.assertEqual(self.connection.unanswered, 3)

    def test_garbage(self) -> None:
        """Costs the connection; the owner hears why, then that it is lost, and nothing after that."""
        self.connection.dataReceived(b"GET / HTTP/1.1\r\n\r\n")
        self.assertEqual(len(self.sink.broken), 1)
        self.assertEqual(len(self.sink.lost), 1)
        self.assertTrue(self.transport.disconnected)
        self.connection.dataReceived(remoting_request(ASK, 1))
        unplug(self.connection, aborted=True)
        self.assertEqual((self.sink.calls, len(self.sink.lost)), ([], 1))

    def test_what_stands_before_garbage(self) -> None:
        """Was said, whether it came in the same read or not."""
        broken = bytearray(native_request(APPEND, 2))
        broken[2] = 99
        for garbage in (b"nonsense", bytes(broken), bytes(broken) + native_request(ASK, 5)):
            for stream in ([native_request(ASK, 1) + garbage], [native_request(ASK, 1), garbage]):
                self.sink = SeenRequests()
                self.open()
                for data in stream:
                    self.connection.dataReceived(data)
                self.assertEqual([request for _, request in self.sink.requests], [ASK])
                self.assertEqual((len(self.sink.broken), len(self.sink.lost)), (1, 1))

    def test_broken_native_frame(self) -> None:
        """A frame of the right length that is none."""
        frame = bytearray(native_request(APPEND, 2))
        frame[2] = 99
        self.connection.dataReceived(bytes(frame))
        self.assertEqual(len(self.sink.broken), 1)


class ServerOutputTests(ServerTestCase):
    """Answers out."""

    def ask(self, *frames: bytes) -> list[tuple[int, bool, RequestCode, int]]:
        """Requests in; their tickets."""
        self.connection.dataReceived(b"".join(frames))
        return [ticket for ticket, _ in self.sink.calls[-1]]

    def test_in_the_format_of_the_request(self) -> None:
        """Whatever else came on the connection."""
        first, second = self.ask(remoting_request(ASK, 1), native_request(ASK, 2))
        self.connection.answer(first, MetadataResponse(group="a"))
        self.connection.answer(second, MetadataResponse(group="b"))
        (_, command), (opaque, message) = sent_messages(self.end_turn())
        self.assertEqual((command.opaque, command.code, command.flag), (1, 200, 1))
        self.assertEqual((opaque, message), (2, MetadataResponse(group="b")))

    def test_one_write_in_a_turn(self) -> None:
        """However many answers there are; and none before its end."""
        tickets = self.ask(*[native_request(APPEND, opaque) for opaque in range(10)])
        for ticket in reversed(tickets):
            self.connection.answer_appended(ticket, 1, ticket[0], 100, 1)
        self.assertEqual(self.transport.writes, [])
        sent = sent_messages(self.end_turn())
        self.assertEqual([opaque for opaque, _ in sent], list(range(9, -1, -1)))
        self.assertEqual(sent[0][1], AppendResponse(term=1, index=9, pos=100, count=1))
        self.assertEqual(len(self.transport.writes), 1)

    def test_lost(self) -> None:
        """Answers to a lost connection go nowhere, also those that were gathered before."""
        first, second, third = self.ask(*[native_request(APPEND, opaque) for opaque in range(3)])
        self.connection.answer(first, AppendResponse())
        unplug(self.connection)
        self.connection.answer(second, AppendResponse())
        self.connection.answer_appended(third, 1, 1, 1, 1)
        self.assertEqual(self.end_turn(), b"")
        self.assertEqual(self.sink.lost, ["Connection was closed cleanly."])

    def test_close_sends_what_was_said(self) -> None:
        """And lets go of the transport, which would wait for its producer; twice is once."""
        (ticket,) = self.ask(native_request(APPEND, 1))
        self.connection.answer(ticket, AppendResponse())
        self.connection.close()
        self.connection.close()
        self.assertEqual(len(self.transport.writes), 1)
        self.assertIsNone(self.transport.producer)
        self.assertTrue(self.transport.disconnecting)
        self.connection.dataReceived(native_request(APPEND, 2))
        self.assertEqual(len(self.sink.calls), 1)

    def test_closed_by_others_while_held_up(self) -> None:
        """A paused producer would keep loseConnection waiting for ever."""
        self.connection.pauseProducing()
        self.transport.loseConnection()
        self.connection.resumeProducing()
        self.assertIsNone(self.transport.producer)


class ServerBoundTests(ServerTestCase):
    """What is unanswered is bounded."""

    def test_requests(self) -> None:
        """Reading pauses at the bound and goes on when an answer is written."""
        self.open(unanswered_max=3)
        self.connection.dataReceived(native_request(ASK, 1) + native_request(ASK, 2))
        self.assertEqual(self.transport.producerState, "producing")
        self.connection.dataReceived(native_request(ASK, 3))
        self.assertEqual(self.transport.producerState, "paused")
        self.connection.answer(self.sink.requests[0][0], MetadataResponse())
        self.clock.advance(0)
        self.assertEqual(self.transport.producerState, "producing")

    def test_bytes(self) -> None:
        """Reading pauses when the frames of unanswered requests have too many bytes."""
        frame = native_request(APPEND, 1)
        self.open(unanswered_bytes_max=2 * len(frame))
        self.connection.dataReceived(frame)
        self.assertEqual(self.transport.producerState, "producing")
        self.connection.dataReceived(frame)
        self.assertEqual(self.transport.producerState, "paused")
        self.connection.answer_appended(self.sink.requests[0][0], 1, 1, 1, 1)
        self.clock.advance(0)
        self.assertEqual(self.transport.producerState, "producing")
        self.assertEqual(self.connection.unanswered_bytes, len(frame))

    def test_refused_bodies_count(self) -> None:
        """They want an answer as well."""
        self.open(unanswered_max=1)
        self.connection.dataReceived(encode_command(RemotingCommand(code=50001, opaque=2, body=b"{")))
        self.assertEqual(self.transport.producerState, "paused")

    def test_who_does_not_read_may_not_ask(self) -> None:
        """
        A transport that is full of answers stops the reading until it is empty. It does not before something
        was read: TLS is congested until its handshake, which must be read, is over.
        """
        self.connection.pauseProducing()
        self.assertEqual(self.transport.producerState, "producing")
        self.connection.resumeProducing()
        self.sink.drains = 0
        self.connection.dataReceived(native_request(ASK, 1))
        self.connection.pauseProducing()
        self.assertTrue(self.connection.is_congested)
        self.assertEqual(self.transport.producerState, "paused")
        self.connection.resumeProducing()
        self.assertFalse(self.connection.is_congested)
        self.assertEqual(self.transport.producerState, "producing")
        self.assertEqual(self.sink.drains, 1)

    def test_a_late_frame_after_a_rest(self) -> None:
        """A connection at rest is swept again as soon as bytes come."""
        for now_s in range(3):
            self.connection.sweep(now_s)
        self.connection.dataReceived(native_request(ASK, 1)[:20])
        for now_s in range(3, 40):
            self.connection.sweep(now_s)
        self.assertTrue(self.connection.is_lost)

    def test_idle(self) -> None:
        """Closed after 120 s without a byte in either direction, and not before."""
        self.connection.sweep(0)
        self.connection.dataReceived(native_request(ASK, 1))
        self.connection.sweep(100)
        self.connection.sweep(219)
        self.assertFalse(self.connection.is_lost)
        self.connection.answer(self.sink.requests[0][0], MetadataResponse())
        self.clock.advance(0)
        self.connection.sweep(221)
        self.connection.sweep(340)
        self.assertFalse(self.connection.is_lost)
        self.connection.sweep(341)
        self.assertTrue(self.connection.is_lost)
        self.assertEqual(self.sink.lost, ["idle for 120 s"])


class BothEndsTests(SynchronousTestCase):
    """One end against the other."""

    def test_every_message_travels(self) -> None:
        """A question asked in either format arrives, and its answer comes back."""
        for wire in ("remoting", "binary"):
            clock, answers, requests = Clock(), SeenAnswers(), SeenRequests()
            client = ClientConnection(answers, turn_of(clock), wire=wire)
            server = ServerConnection(requests, turn_of(clock))
            to_server, to_client = plug(client), plug(server)
            questions = [ASK, APPEND, BEAT, GetRequest(group="g", begin_index=1)]
            for token, question in enumerate(questions):
                client.ask(question, token)
            clock.advance(0)
            server.dataReceived(to_server.value())
            self.assertEqual([request for _, request in requests.requests], questions)
            replies: list[Response] = [
                MetadataResponse(group="g"), AppendResponse(index=5), HeartBeatResponse(term=3),
                GetResponse(code=ResponseCode.INDEX_OUT_OF_RANGE),
            ]
            for (ticket, _), reply in zip(requests.requests, replies, strict=True):
                server.answer(ticket, reply)
            clock.advance(0)
            client.dataReceived(to_client.value())
            self.assertEqual(answers.answers, list(enumerate(replies)))

    def test_native_frames_start_apart(self) -> None:
        """So that the first byte distinguishes the formats."""
        self.assertEqual(native_request(ASK, 1)[0], 0xD1)
        self.assertEqual(remoting_request(ASK, 1)[0], 0)
        self.assertEqual(decode_frame(native_request(ASK, 1))[1], ASK)


class LossTests(SynchronousTestCase):
    """Why a connection ended, in words."""

    def test_tls(self) -> None:
        """Of OpenSSL's errors the reasons, of a wrong name a sentence; everything else as it is."""
        for error, sentence in (
            (SSL.Error([("SSL routines", "", "certificate verify failed"), ("x", "y", "unknown ca")]),
             "TLS: certificate verify failed, unknown ca"),
            (SSL.Error([]), "TLS: handshake failed"),
            (SSL.Error(), "TLS: handshake failed"),
            (VerifyError("n1 is not n2"),
             "TLS: the certificate at the other end is of another name: n1 is not n2"),
            (ValueError([("a", "b", "c")]), "[('a', 'b', 'c')]"),
        ):
            self.assertTrue(loss_sentence(Failure(error)).startswith(sentence), error)
