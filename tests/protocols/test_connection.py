# -*- test-case-name: tests.protocols.test_connection -*-
"""Both ends of a connection, with transports and clocks that are not real."""

from __future__ import annotations

from OpenSSL import SSL
from twisted.internet.error import VerifyError
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from protocols.connection import loss_sentence
from protocols.ledger.connection import ClientConnection, ServerConnection
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType, RequestCode
from protocols.wire.ledger.messages import (
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    PushEntryResponse,
    Response,
)
from protocols.wire.ledger.push import decode_frame
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.protocols.fakes import (
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
from tests.wire.golden import PUSH_ANSWERS_0_4

ASK = MetadataRequest(group="g", remote_id="n0")
APPEND = AppendRequest(group="g", remote_id="n0", bodies=(b"hello",))
BEAT = HeartBeatRequest(group="g", remote_id="n0", local_id="n1", leader_id="n1", term=3)


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

    def test_tells_its_owner(self) -> None:
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
        """Likewise for the bytes of their frames."""
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


class ClientTestCase(SynchronousTestCase):
    """One connection that we made."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.sink = SeenAnswers()
        self.open()

    def open(self, **options: object) -> None:
        """A connection with options of its own."""
        turn = turn_of(self.clock)
        self.connection = ClientConnection(self.sink, turn, **options)  # type: ignore[arg-type]
        self.transport = plug(self.connection)

    def end_turn(self) -> bytes:
        """What was written since the last time."""
        self.clock.advance(0)
        data = self.transport.value()
        self.transport.clear()
        return data


class ClientTests(ClientTestCase):
    """Questions out, answers in."""

    def test_pipelined_in_one_write(self) -> None:
        """In the order in which they were asked."""
        for token in (11, 12, 13):
            self.assertTrue(self.connection.ask(BEAT, token))
        commands = sent_commands(self.end_turn())
        self.assertEqual([command.opaque for command in commands], [1, 2, 3])
        self.assertEqual(len(self.transport.writes), 1)
        self.assertEqual(self.connection.outstanding, 3)

    def test_answers_in_any_order(self) -> None:
        """Each finds its question, and all of a read are handed over together."""
        for token in (11, 12, 13):
            self.connection.ask(BEAT, token)
        self.connection.dataReceived(
            remoting_response(HeartBeatResponse(term=3), 3) + remoting_response(HeartBeatResponse(term=1), 1)
        )
        self.assertEqual(len(self.sink.calls), 1)
        self.assertEqual([(token, answer.term) for token, answer in self.sink.answers], [(13, 3), (11, 1)])
        self.assertEqual(self.connection.outstanding, 1)

    def test_an_answer_counts_once(self) -> None:
        """Repeated ones, and those to nothing that was asked, are dropped."""
        self.connection.ask(BEAT, 11)
        answer = remoting_response(HeartBeatResponse(), 1)
        self.connection.dataReceived(answer + answer + remoting_response(HeartBeatResponse(), 99))
        self.connection.dataReceived(native_response(HeartBeatResponse(), 1))
        self.assertEqual([token for token, _ in self.sink.answers], [11])
        self.assertFalse(self.connection.is_lost)

    def test_requests_of_a_server_are_dropped(self) -> None:
        """Nobody asks us on a connection that we made."""
        self.connection.ask(BEAT, 11)
        self.connection.dataReceived(remoting_request(BEAT, 1))
        self.assertEqual((self.sink.answers, self.sink.failed), ([], []))

    def test_body_less_answer(self) -> None:
        """Java's remoting errors come without a body: the question fails, with the remark."""
        self.connection.ask(BEAT, 11)
        self.connection.dataReceived(encode_command(RemotingCommand(
            code=1, opaque=1, flag=1, remark="java.lang.NullPointerException"
        )))
        ((token, reason),) = self.sink.failed
        self.assertEqual(token, 11)
        self.assertIn("NullPointerException", reason)
        self.assertFalse(self.connection.is_lost)

    def test_answers_of_another_version(self) -> None:
        """The push fails, marked as what it is; the connection stays."""
        for token, body in enumerate(PUSH_ANSWERS_0_4, 1):
            self.connection.ask(PushEntryRequest(type=PushType.COMMIT), token)
            self.connection.dataReceived(encode_command(RemotingCommand(
                code=200, opaque=token, flag=1, body=body
            )))
        self.assertEqual([token for token, _ in self.sink.failed], [1, 2])
        self.assertEqual(self.sink.incompatible, [1, 2])
        self.assertFalse(self.connection.is_lost)

    def test_other_failures_are_not_marked(self) -> None:
        """Bodies without sense or keys of another version elsewhere, no body, time-outs, garbage, the end."""
        push = PushEntryRequest(type=PushType.COMMIT)
        bodies = (b"", b"{", b"[]", b"null", b'{"code":"no"}', PUSH_ANSWERS_0_4[0][:-1], b'{"term":[]}')
        for token, body in enumerate(bodies, 1):
            self.connection.ask(push, token)
            self.connection.dataReceived(encode_command(RemotingCommand(
                code=200, opaque=token, flag=1, body=body
            )))
        for token in (21, 22):
            self.connection.ask(push, token)
        self.connection.sweep(4, 3)
        self.connection.ask(push, 23)
        self.connection.dataReceived(b"nonsense")
        self.assertEqual(
            sorted(token for token, _ in self.sink.failed), [*range(1, len(bodies) + 1), 21, 22, 23]
        )
        self.assertTrue(self.connection.is_lost)
        self.assertEqual(self.sink.incompatible, [])

    def test_wrong_kind_of_answer(self) -> None:
        """A native answer says what it answers; another kind costs the connection and fails the question."""
        self.connection.ask(BEAT, 11)
        self.connection.dataReceived(native_response(MetadataResponse(), 1))
        self.assertEqual(len(self.sink.broken), 1)
        self.assertEqual([token for token, _ in self.sink.failed], [11])
        self.assertEqual(len(self.sink.lost), 1)

    def test_answer_before_garbage(self) -> None:
        """Counts; the rest fails."""
        self.connection.ask(BEAT, 11)
        self.connection.ask(BEAT, 12)
        self.connection.dataReceived(remoting_response(HeartBeatResponse(), 1) + b"nonsense")
        self.assertEqual([token for token, _ in self.sink.answers], [11])
        self.assertEqual([token for token, _ in self.sink.failed], [12])
        self.assertEqual((len(self.sink.broken), len(self.sink.lost)), (1, 1))

    def test_connection_lost(self) -> None:
        """Everything outstanding fails, then the owner hears of the loss; later questions are refused."""
        self.connection.ask(BEAT, 11)
        self.connection.ask(BEAT, 12)
        unplug(self.connection)
        self.assertEqual([token for token, _ in self.sink.failed], [11, 12])
        self.assertEqual(len(self.sink.lost), 1)
        self.assertFalse(self.connection.ask(BEAT, 13))
        self.assertEqual(self.end_turn(), b"")

    def test_closing(self) -> None:
        """Nothing is asked on a connection that is being closed."""
        self.connection.close()
        self.assertFalse(self.connection.ask(BEAT, 13))

    def test_opaque_wraps(self) -> None:
        """It is a signed 32-bit number on the wire."""
        self.connection._next_opaque = 0x7FFFFFFF
        self.connection.ask(BEAT, 1)
        self.connection.ask(BEAT, 2)
        self.assertEqual([command.opaque for command in sent_commands(self.end_turn())], [0x7FFFFFFF, 1])


class ClientWireTests(ClientTestCase):
    """Which format a question goes out in."""

    def learn(self, version: int) -> None:
        """The other end says what it understands."""
        self.connection.ask(ASK, 0)
        opaque = self.connection._next_opaque - 1
        self.connection.dataReceived(remoting_response(MetadataResponse(wire_version=version), opaque))
        self.end_turn()

    def kinds(self) -> list[str]:
        """Formats of three more questions."""
        for token in (1, 2, 3):
            self.connection.ask(BEAT, token)
        return ["native" if isinstance(message, HeartBeatRequest) else "remoting"
                for _, message in sent_messages(self.end_turn())]

    def test_auto_begins_with_remoting(self) -> None:
        """Until the other end says that it understands more."""
        self.assertEqual(self.kinds(), ["remoting"] * 3)
        self.learn(0)
        self.assertEqual(self.kinds(), ["remoting"] * 3)

    def test_auto_switches(self) -> None:
        """Once it has said so, for good; questions keep their order across the switch."""
        self.connection.ask(PushEntryRequest(group="g", type=PushType.COMMIT, term=1), 5)
        self.connection.ask(ASK, 6)
        self.connection.dataReceived(remoting_response(MetadataResponse(wire_version=1), 2))
        self.connection.ask(PushEntryRequest(group="g", type=PushType.COMMIT, term=1), 7)
        (first, _), (second, _), (third, message) = sent_messages(self.end_turn())
        self.assertEqual((first, second, third), (1, 2, 3))
        self.assertIsInstance(message, PushEntryRequest)
        self.connection.dataReceived(remoting_response(PushEntryResponse(), 1))
        self.assertEqual(self.kinds(), ["native"] * 3)

    def test_remoting_never_switches(self) -> None:
        """As configured."""
        self.open(wire="remoting")
        self.learn(1)
        self.assertEqual(self.kinds(), ["remoting"] * 3)

    def test_binary_asks_nobody(self) -> None:
        """As configured."""
        self.open(wire="binary")
        self.assertEqual(self.kinds(), ["native"] * 3)


class ClientBoundTests(ClientTestCase):
    """What is outstanding or unsent is bounded, and does not wait for ever."""

    def test_outstanding(self) -> None:
        """Beyond the bound nothing is asked."""
        self.open(outstanding_max=2)
        self.assertEqual([self.connection.ask(BEAT, token) for token in (1, 2, 3)], [True, True, False])
        self.connection.dataReceived(remoting_response(HeartBeatResponse(), 1))
        self.assertTrue(self.connection.ask(BEAT, 4))

    def test_unsent(self) -> None:
        """
        A transport that is held up takes a number of bytes more, and everything again when it is drained.
        """
        self.open(wire="binary", unsent_bytes_max=2000)
        self.connection.pauseProducing()
        push = AppendRequest(group="g", bodies=(bytes(900),))
        sent = []
        for token in range(5):
            sent.append(self.connection.ask(push, token))
            self.end_turn()
        self.assertEqual(sent, [True, True, True, False, False])
        self.connection.resumeProducing()
        self.assertTrue(self.connection.ask(push, 9))

    def test_a_transport_that_flows_has_no_bound(self) -> None:
        """Bytes that are gone do not count."""
        self.open(wire="binary", unsent_bytes_max=2000)
        push = AppendRequest(group="g", bodies=(bytes(900),))
        for token in range(5):
            self.assertTrue(self.connection.ask(push, token))
            self.end_turn()

    def test_time_out(self) -> None:
        """What is too old fails; an answer that comes later is dropped; what is younger goes on."""
        self.connection.ask(BEAT, 1)
        self.clock.advance(2)
        self.connection.ask(BEAT, 2)
        self.connection.dataReceived(b"\x00")
        self.connection.sweep(2.9, 3)
        self.assertEqual(self.sink.failed, [])
        self.connection.sweep(3.0, 3)
        self.assertEqual(self.sink.failed, [(1, "no answer in 3 s")])
        self.assertFalse(self.connection.is_lost)
        self.assertEqual(self.connection.outstanding, 1)

    def test_a_frame_that_swallows_all(self) -> None:
        """An answer whose length was damaged takes the later ones for its own bytes: the connection ends."""
        self.connection.ask(BEAT, 1)
        self.connection.dataReceived(b"\x00\x10\x00\x00")
        for at_s in range(3):
            self.connection.dataReceived(bytes(100))
            self.connection.sweep(at_s, 3)
        self.assertFalse(self.connection.is_lost)
        self.connection.dataReceived(bytes(100))
        self.connection.sweep(3, 3)
        self.assertTrue(self.connection.is_lost)

    def test_silence(self) -> None:
        """A connection on which nothing came for all that time is a black hole: it is ended."""
        self.connection.ask(BEAT, 1)
        self.connection.sweep(0, 3)
        self.connection.ask(BEAT, 2)
        self.connection.sweep(3.0, 3)
        self.assertTrue(self.connection.is_lost)
        self.assertTrue(self.transport.disconnected)
        self.assertEqual([token for token, _ in self.sink.failed], [1, 2])

    def test_quiet_is_not_silence(self) -> None:
        """Without a question there is no answer to miss."""
        self.connection.sweep(1000, 3)
        self.assertFalse(self.connection.is_lost)


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
