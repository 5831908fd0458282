# -*- test-case-name: tests.protocols.test_commands -*-
"""RocketMQ's commands in both directions on one connection."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from protocols.rocketmq.commands import COMMANDS_MAX, READ_BYTES, CommandConnection, NotAsked
from protocols.wire.errors import WireError
from protocols.wire.remoting import ROCKETMQ, RemotingCommand, decode_command, encode_command
from tests.protocols.fakes import FakeTransport, turn_of


class Seen:
    """A CommandSink that remembers."""

    def __init__(self) -> None:
        self.calls: list[list[RemotingCommand]] = []
        self.drains = 0
        self.broken: list[WireError] = []
        self.lost: list[str] = []

    def connected(self, connection: CommandConnection) -> None:
        """Nothing to do."""

    def no_place(self, connection: CommandConnection) -> str:
        """Everybody has one."""
        return ""

    def commands_received(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        """Remember."""
        self.calls.append(commands)

    def drained(self, connection: CommandConnection) -> None:
        """Count."""
        self.drains += 1

    def wire_broken(self, connection: CommandConnection, error: WireError) -> None:
        """Remember."""
        self.broken.append(error)

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        """Remember."""
        self.lost.append(reason)


class CommandConnectionTests(SynchronousTestCase):
    """Requests, answers, bounds."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.seen = Seen()
        self.connection, self.transport = self.made()

    def test_reads_are_long(self) -> None:
        """Of an end that asks: many answers come in one read. The others begin with short ones."""
        self.assertNotIn("bufferSize", vars(self.transport))
        self.connection.ask(RemotingCommand(code=1, opaque=0))
        self.assertEqual(vars(self.transport)["bufferSize"], READ_BYTES)

    def made(self, **options: int) -> tuple[CommandConnection, FakeTransport]:
        """A new connection."""
        connection = CommandConnection(self.seen, turn_of(self.clock), **options)
        transport = FakeTransport()
        connection.makeConnection(transport)
        return connection, transport

    def sent(self) -> list[RemotingCommand]:
        """What went out since the last call."""
        self.clock.advance(0)
        data, found = self.transport.value(), []
        self.transport.clear()
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            found.append(decode_command(data[4:end]))
            data = data[end:]
        return found

    def test_ask(self) -> None:
        """Answers find their questions in any order; others are passed over."""
        first = self.connection.ask(RemotingCommand(code=21, opaque=0))
        second = self.connection.ask(RemotingCommand(code=43, opaque=0, ext_fields={"a": "b"}))
        one, two = self.sent()
        self.assertEqual([(one.code, one.version), (two.code, dict(two.ext_fields))],
                         [(21, 479), (43, {"a": "b"})])
        self.assertNotEqual(one.opaque, two.opaque)
        for opaque, body in ((two.opaque, b"2"), (77, b"?"), (one.opaque, b"1"), (one.opaque, b"again")):
            self.connection.dataReceived(
                encode_command(RemotingCommand(code=0, opaque=opaque, flag=1, body=body)))
        self.assertEqual(self.successResultOf(first).body, b"1")
        self.assertEqual(self.successResultOf(second).body, b"2")
        self.assertEqual(self.seen.calls, [])

    def test_given_up_by_another(self) -> None:
        """Two answers in one read: the first one's owner gives up on the second."""
        first, second = [self.connection.ask(RemotingCommand(code=21, opaque=0)) for _ in range(2)]
        one, two = self.sent()
        first.addCallback(lambda _: second.cancel())
        self.connection.dataReceived(b"".join(
            encode_command(RemotingCommand(code=0, opaque=asked.opaque, flag=1)) for asked in (one, two)
        ))
        self.failureResultOf(second, CancelledError)
        self.assertEqual(self.seen.broken, [])

    def test_answer(self) -> None:
        """The requests of one read come in one call, in order, however they are cut; answers in one write."""
        requests = [RemotingCommand(code=310 + at, opaque=at, serialize_type=at % 2, body=b"x" * at)
                    for at in range(3)]
        stream = b"".join(map(encode_command, requests))
        self.connection.dataReceived(stream)
        self.assertEqual([[one.code for one in call] for call in self.seen.calls], [[310, 311, 312]])
        for cut in range(1, len(stream)):
            connection, _ = self.made()
            self.seen.calls.clear()
            connection.dataReceived(stream[:cut])
            connection.dataReceived(stream[cut:])
            self.assertEqual([one.opaque for call in self.seen.calls for one in call], [0, 1, 2])
        self.transport.writes.clear()
        self.connection.answer(requests[2], ext_fields={"queueOffset": "7"})
        self.connection.answer(requests[1], code=14, remark="no")
        self.connection.answer_not_supported(requests[0])
        answers = self.sent()
        self.assertEqual(len(self.transport.writes), 1)
        self.assertEqual([(one.opaque, one.code, one.remark, one.is_response) for one in answers], [
            (2, 0, None, True), (1, 14, "no", True), (0, 3, " request type 310 not supported", True),
        ])
        self.assertEqual((answers[0].ext_fields["queueOffset"], answers[1].serialize_type), ("7", ROCKETMQ))
        self.assertEqual((self.connection.unanswered, self.connection.unanswered_bytes), (0, 0))

    def test_oneway(self) -> None:
        """Neither counted nor answered, in either direction."""
        self.connection.notify(RemotingCommand(code=15, opaque=0))
        (reported,) = self.sent()
        self.assertTrue(reported.is_oneway)
        self.connection.dataReceived(encode_command(reported))
        self.assertEqual(self.connection.unanswered, 0)
        self.connection.answer(self.seen.calls[0][0])
        self.assertEqual(self.sent(), [])

    def test_lost(self) -> None:
        """What was asked fails before the owner is informed; later questions fail at once."""
        order: list[str] = []
        asked = self.connection.ask(RemotingCommand(code=21, opaque=0))
        asked.addErrback(lambda failure: order.append(str(failure.value)) or failure.trap(NotAsked))
        self.connection.abort("reported to")
        self.assertEqual((order, self.seen.lost), (["the connection was lost: reported to"], ["reported to"]))
        self.failureResultOf(self.connection.ask(RemotingCommand(code=21, opaque=0)), NotAsked)
        self.connection.notify(RemotingCommand(code=1, opaque=0))
        self.connection.answer(RemotingCommand(code=1, opaque=0))
        self.assertEqual(self.sent(), [])

    def test_pieces_of_a_read(self) -> None:
        """Many requests of one read are handed over in pieces, in order."""
        pieces: list[list[int]] = []
        self.patch(self.seen, "commands_received", lambda _, commands: pieces.append(
            [one.opaque for one in commands]
        ))
        self.connection.dataReceived(b"".join(
            encode_command(RemotingCommand(code=1, opaque=number)) for number in range(2 * COMMANDS_MAX + 5)
        ))
        self.assertEqual([len(piece) for piece in pieces], [COMMANDS_MAX, COMMANDS_MAX, 5])
        self.assertEqual(sum(pieces, []), list(range(2 * COMMANDS_MAX + 5)))

    def test_deadline(self) -> None:
        """Cancelling forgets the question; a late answer is passed over."""
        asked = self.connection.ask(RemotingCommand(code=21, opaque=0)).addTimeout(3, self.clock)
        (request,) = self.sent()
        self.clock.advance(3)
        self.failureResultOf(asked)
        self.connection.dataReceived(encode_command(RemotingCommand(code=0, opaque=request.opaque, flag=1)))
        self.assertEqual(len(self.connection._asked), 0)

    def test_bounds(self) -> None:
        """Too much unanswered: we stop reading, and go on when it is less. Too much outstanding: refused."""
        connection, transport = self.made(unanswered_max=2, outstanding_max=2)
        requests = [RemotingCommand(code=310, opaque=at) for at in range(3)]
        connection.dataReceived(b"".join(map(encode_command, requests)))
        self.assertEqual(transport.producerState, "paused")
        connection.answer(requests[0])
        connection.answer(requests[1])
        self.clock.advance(0)
        self.assertEqual(transport.producerState, "producing")
        for _ in range(2):
            self.assertNoResult(connection.ask(RemotingCommand(code=21, opaque=0)))
        error = self.failureResultOf(connection.ask(RemotingCommand(code=21, opaque=0)), NotAsked)
        self.assertIn("2 requests are outstanding", str(error.value))

    def test_broken_format(self) -> None:
        """The frames before the damage are dealt with; then the connection ends."""
        good = encode_command(RemotingCommand(code=310, opaque=1))
        for bad in (b"\x00\x00\x00\x05\x00\x00\x00\x01{", b"\xd1\x01" + bytes(40), b"GET / HTTP/1.1\r\n\r\n"):
            connection, _ = self.made()
            self.seen = connection._sink = Seen()
            connection.dataReceived(good + bad)
            counts = (len(self.seen.calls), len(self.seen.broken), len(self.seen.lost))
            self.assertEqual(counts, (1, 1, 1), bad)

    def test_idle(self) -> None:
        """A connection without a byte for a little more than two minutes ends."""
        self.clock.advance(129)
        self.connection.sweep(self.clock.seconds())
        self.assertEqual(self.seen.lost, [])
        self.clock.advance(131)
        self.connection.sweep(self.clock.seconds())
        self.assertEqual(self.seen.lost, ["idle for 130 s"])
