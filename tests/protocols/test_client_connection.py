# -*- test-case-name: tests.protocols.test_client_connection -*-
"""The end of a client, with transports and clocks that are not real."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from protocols.ledger.connection import ClientConnection
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import (
    AppendRequest,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataResponse,
    PushEntryRequest,
    PushEntryResponse,
)
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.protocols.fakes import (
    ASK,
    BEAT,
    SeenAnswers,
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
        """The push fails, marked as incompatible; the connection stays."""
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
        """A native answer names its question; another kind costs the connection and fails the question."""
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
        self.connection.next_opaque = 0x7FFFFFFF
        self.connection.ask(BEAT, 1)
        self.connection.ask(BEAT, 2)
        self.assertEqual([command.opaque for command in sent_commands(self.end_turn())], [0x7FFFFFFF, 1])


class ClientWireTests(ClientTestCase):
    """Which format a question goes out in."""

    def learn(self, version: int) -> None:
        """The other end names its version."""
        self.connection.ask(ASK, 0)
        opaque = self.connection.next_opaque - 1
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
