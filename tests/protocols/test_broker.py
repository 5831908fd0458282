# -*- test-case-name: tests.protocols.test_broker -*-
"""Commands and native frames on one connection with a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from protocols.rocketmq.broker import AnswerLost, AnySend, BrokerConnection, NativeRequests
from protocols.rocketmq.commands import REQUEST_OVERHEAD, NotAsked
from protocols.wire.framing import FrameBuffer
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from protocols.wire.rocketmq.broker_frames import (
    BrokerAnswer,
    BrokerRequest,
    OffsetsAnswer,
    OffsetsRequest,
    PutAnswer,
    PutRequest,
    ReadRequest,
    answer_parts,
    decode_broker_frame,
    request_parts,
)
from tests.broker.send_support import send_of
from tests.protocols.fakes import FakeTransport, turn_of
from tests.protocols.test_commands import Seen

PUT = PutRequest(topic="T", bodies=(b"a", b"b"))
COMMAND = RemotingCommand(code=35, opaque=9)


class SeenNative:
    """A NativeSink that remembers."""

    def __init__(self) -> None:
        self.calls: list[NativeRequests] = []

    def natives_received(self, connection: BrokerConnection, requests: NativeRequests) -> None:
        """Remember."""
        self.calls.append(requests)


def asked(request: BrokerRequest, opaque: int) -> bytes:
    """The frame of a request."""
    return b"".join(request_parts(request, opaque))


def answered(answer: BrokerAnswer, opaque: int) -> bytes:
    """The frame of an answer."""
    return b"".join(answer_parts(answer, opaque))


class BrokerConnectionTests(SynchronousTestCase):
    """Requests, answers, bounds."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.seen, self.native = Seen(), SeenNative()
        self.connection, self.transport = self.made(native=self.native)
        self.outcomes: list[BrokerAnswer | Exception] = []

    def made(self, **options: Any) -> tuple[BrokerConnection, FakeTransport]:
        """A new connection."""
        connection = BrokerConnection(self.seen, turn_of(self.clock), **options)
        transport = FakeTransport()
        connection.makeConnection(transport)
        return connection, transport

    def sent(self) -> list[Any]:
        """What went out since the last call: native ones as (opaque, message), commands as they are."""
        self.clock.advance(0)
        frames = FrameBuffer().feed(self.transport.value())
        self.transport.clear()
        return [decode_broker_frame(frame.data) if frame.kind == "native" else decode_command(frame.data)
                for frame in frames]

    def test_both_formats(self) -> None:
        """Of one read, however it is cut, commands come in one call and native requests in another."""
        stream = asked(PUT, 1) + encode_command(COMMAND) + asked(OffsetsRequest(), 2)
        for cut in range(1, len(stream)):
            self.native.calls.clear()
            self.seen.calls.clear()
            connection, _ = self.made(native=self.native)
            connection.dataReceived(stream[:cut])
            connection.dataReceived(stream[cut:])
            got = [(ticket.opaque, request) for call in self.native.calls for ticket, request in call]
            self.assertEqual(got, [(1, PUT), (2, OffsetsRequest())])
            self.assertEqual([one.opaque for call in self.seen.calls for one in call], [9])
        self.native.calls.clear()
        self.connection.dataReceived(stream)
        self.assertEqual([len(call) for call in self.native.calls], [2])

    def test_sends_and_commands(self) -> None:
        """In the order of their frames: sends that cannot be read quickly are handed over with the others."""
        heard: list[list[int]] = []

        class Sends:
            codes = frozenset({10, 310})

            def sends_received(self, connection: BrokerConnection, requests: Sequence[AnySend]) -> None:
                heard.append([request.opaque for request in requests])

        connection, _ = self.made(sends=Sends())
        self.patch(self.seen, "commands_received", lambda _, commands: heard.append(
            [-command.opaque for command in commands]
        ))
        plain = send_of(body=b"x", properties="WAIT\x01true")
        connection.dataReceived(encode_command(plain))  # the first of its shape is decoded
        heard.clear()
        stream = [
            attrs.evolve(plain, opaque=2), attrs.evolve(COMMAND, opaque=3), attrs.evolve(plain, opaque=4),
            send_of(opaque=5, code=10), attrs.evolve(plain, opaque=6), attrs.evolve(COMMAND, opaque=7),
            attrs.evolve(COMMAND, opaque=8, flag=2), send_of(opaque=9, code=10, oneway=True),
            attrs.evolve(COMMAND, opaque=10),
        ]
        connection.unanswered = connection.unanswered_bytes = 0
        connection.dataReceived(b"".join(map(encode_command, stream)))
        self.assertEqual(heard, [[2], [-3], [4, 5, 6], [-7, -8], [9], [-10]])
        self.assertEqual(connection.unanswered, 7)  # two are one-way
        self.assertEqual(connection.unanswered_bytes, 7 * REQUEST_OVERHEAD + 3 * 1 + len(b"hello"))

    def test_answers(self) -> None:
        """Each in the format of its request, in one write; nothing is owed afterwards."""
        self.connection.dataReceived(asked(PUT, 5) + encode_command(COMMAND))
        (ticket, _), = self.native.calls[0]
        self.assertEqual(self.connection.unanswered, 2)
        self.transport.writes.clear()
        self.connection.answer_native(ticket, PutAnswer(code=14, remark="no"))
        self.connection.answer(self.seen.calls[0][0])
        native, command = self.sent()
        self.assertEqual(native, (5, PutAnswer(code=14, remark="no")))
        self.assertEqual((command.opaque, command.code), (9, 0))
        self.assertEqual(len(self.transport.writes), 1)
        self.assertEqual((self.connection.unanswered, self.connection.unanswered_bytes), (0, 0))

    def test_unanswered_is_bounded(self) -> None:
        """A client that asks too much is not read until something is answered."""
        connection, transport = self.made(native=self.native, unanswered_max=2)
        connection.dataReceived(asked(PUT, 1) + asked(PUT, 2))
        self.assertEqual(transport.producerState, "paused")
        connection.answer_native(self.native.calls[0][0][0], PutAnswer(code=0))
        self.clock.advance(0)
        self.assertEqual(transport.producerState, "producing")

    def test_nobody_may_ask(self) -> None:
        """A producer's end is not a broker."""
        connection, transport = self.made()
        connection.dataReceived(asked(PUT, 1))
        self.assertTrue(connection.is_lost)
        self.assertIn("is not accepted here", str(self.seen.broken[0]))

    def test_request(self) -> None:
        """Answers find their requests in any order; others are passed over; the end of a read is reported."""
        ends: list[int] = []
        self.connection.read_ended = lambda: ends.append(len(self.outcomes))
        self.connection.request(PUT, self.outcomes.append)
        self.connection.request(OffsetsRequest(), self.outcomes.append)
        (one, first), (two, second) = self.sent()
        self.assertEqual((first, second), (PUT, OffsetsRequest()))
        self.connection.dataReceived(
            answered(OffsetsAnswer(end_offset=4), two) + answered(PutAnswer(code=0), 77)
            + answered(PutAnswer(code=0), one) + answered(PutAnswer(code=1), one)
        )
        self.assertEqual(self.outcomes, [OffsetsAnswer(end_offset=4), PutAnswer(code=0)])
        self.assertEqual((ends, self.connection.native_outstanding), ([2], 0))

    def test_wrong_kind(self) -> None:
        """An answer to something else costs the connection, and the request with it."""
        self.connection.request(PUT, self.outcomes.append)
        ((opaque, _),) = self.sent()
        self.connection.dataReceived(answered(OffsetsAnswer(), opaque))
        self.assertIsInstance(self.outcomes[0], AnswerLost)
        self.assertIn("a OFFSETS answer came for PUT", str(self.seen.broken[0]))

    def test_sound_before_damage(self) -> None:
        """Answers that stand before the damage count."""
        self.connection.request(PUT, self.outcomes.append)
        ((opaque, _),) = self.sent()
        self.connection.dataReceived(answered(PutAnswer(code=0), opaque) + b"GET / HTTP/1.1")
        self.assertEqual(self.outcomes, [PutAnswer(code=0)])
        self.assertTrue(self.connection.is_lost)

    def test_lost(self) -> None:
        """What was sent is lost, what was not is not asked."""
        self.connection.request(PUT, self.outcomes.append)
        self.connection.abort("test")
        self.connection.request(PUT, self.outcomes.append)
        self.assertEqual([type(outcome) for outcome in self.outcomes], [AnswerLost, NotAsked])
        self.assertIn("test", str(self.outcomes[0]))

    def test_outstanding_is_bounded(self) -> None:
        """Too much that is owed to us."""
        connection, _ = self.made(outstanding_max=1)
        for _ in range(2):
            connection.request(ReadRequest(begin_offset=0), self.outcomes.append)
        self.assertEqual([type(outcome) for outcome in self.outcomes], [NotAsked])

    def test_forget(self) -> None:
        """Its answer is a stranger then, and its number may be used again."""
        number = self.connection.request(PUT, self.outcomes.append)
        self.connection.forget_native(number)
        self.connection.dataReceived(answered(PutAnswer(code=0), number))
        self.connection.abort("test")
        self.assertEqual(self.outcomes, [])
