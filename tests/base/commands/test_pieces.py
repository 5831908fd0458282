# -*- test-case-name: tests.base.commands.test_pieces -*-
"""Requests that take longer than a turn: in turns, one large at a time, closed with their connection."""

from __future__ import annotations

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.answering import AnsweringSide
from dledger.rocketmq.answering.pieces import LARGE_S, Pieces
from dledger.rocketmq.answering.refusals import BODY_BYTES_MAX, Code, CommandGroup, Handlers, Refused
from protocols.rocketmq.commands import CommandConnection
from protocols.turn import READS_S
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.prices.meter import TurnClock
from tests.protocols.fakes import FakeTransport, plug, sent_commands, turn_of, unplug

SHORT, LONG, FAILS, BROKEN = 1, 2, 3, 4
PIECE_S = READS_S / 4


class Group(CommandGroup):
    """Handlers whose pieces each take a quarter of a turn."""

    body_bytes_max = {LONG: BODY_BYTES_MAX + 1}  # noqa: RUF012

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.steps: list[str] = []

    def handlers(self) -> Handlers:
        return {SHORT: self._short, LONG: self._long, FAILS: self._fails, BROKEN: self._broken}

    def _short(self, connection: CommandConnection, request: RemotingCommand) -> None:
        connection.answer(request)

    def _long(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        name = request.ext_fields["name"]
        try:
            for _ in range(int(request.ext_fields["pieces"])):
                self.steps.append(name)
                self._clock.rightNow += PIECE_S
                yield
            connection.answer(request)
        finally:
            self.steps.append(f"end of {name}")

    def _fails(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        self._clock.rightNow += READS_S
        yield
        raise Refused(Code.SYSTEM_ERROR, "no")

    def _broken(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        self._clock.rightNow += READS_S
        yield
        raise RuntimeError("a bug")


class LongRequestTests(SynchronousTestCase):
    """One server."""

    def setUp(self) -> None:
        self.clock = TurnClock()
        self.group = Group(self.clock)
        self.side = AnsweringSide(turn_of(self.clock), [self.group])
        self.serial = 0

    def connect(self) -> tuple[CommandConnection, FakeTransport]:
        """A client."""
        connection = self.side.buildProtocol(None)
        assert connection is not None
        return connection, plug(connection)

    def send(self, connection: CommandConnection, *codes: int, body: bytes = b"", **fields: object) -> None:
        """Requests in one read; their numbers rise."""
        frames = []
        for code in codes:
            self.serial += 1
            frames.append(encode_command(RemotingCommand(
                code=code, opaque=self.serial, body=body,
                ext_fields={name: str(value) for name, value in fields.items()},
            )))
        connection.dataReceived(b"".join(frames))

    def answered(self, transport: FakeTransport) -> list[tuple[int, int]]:
        """Numbers and codes of all answers so far."""
        return [(one.opaque, one.code) for one in sent_commands(transport.value())]

    def test_small(self) -> None:
        """What ends in its first turn is answered there."""
        connection, transport = self.connect()
        self.send(connection, LONG, SHORT, name="a", pieces=2)
        self.assertEqual(self.answered(transport), [(1, 0), (2, 0)])

    def test_in_turns(self) -> None:
        """A turn ends after its time; others are answered in between, its own client's requests after it."""
        (busy, long), (other, short) = self.connect(), self.connect()
        self.send(busy, LONG, SHORT, name="a", pieces=12)
        self.assertEqual((self.group.steps, self.answered(long)), (["a"] * 4, []))
        self.assertEqual(long.producerState, "paused")
        self.clock.turn()
        self.send(other, SHORT)
        self.clock.turn()
        self.assertEqual((self.answered(short), self.answered(long)), ([(3, 0)], []))
        self.send(busy, SHORT)
        for _ in range(6):
            self.clock.turn()
        self.assertEqual(self.answered(long), [(1, 0), (2, 0), (4, 0)])
        self.assertEqual(long.producerState, "producing")

    def test_one_large(self) -> None:
        """Of two that take long the first goes to its end; one that is small does not wait for either."""
        many = round(3 * LARGE_S / PIECE_S)
        clients = [self.connect() for _ in range(3)]
        self.send(clients[0][0], LONG, name="a", pieces=many)
        self.send(clients[1][0], LONG, name="b", pieces=many)
        for _ in range(12):
            self.clock.turn()
        self.send(clients[2][0], LONG, name="c", pieces=6)
        for _ in range(100):
            self.clock.turn()
        steps = self.group.steps
        self.assertEqual([self.answered(one[1]) for one in clients], [[(1, 0)], [(2, 0)], [(3, 0)]])
        first, second = sorted("ab", key=lambda name: steps.index(f"end of {name}"))
        self.assertLess(steps.index("end of c"), steps.index(f"end of {first}"))
        self.assertLess(steps[: steps.index(f"end of {first}")].count(second), many / 2)

    def test_a_host_with_many(self) -> None:
        """A host that sends one large request after the other delays another host by one of them."""
        many = round(3 * LARGE_S / PIECE_S)
        clients = [self.connect() for _ in range(5)]
        for _connection, transport in clients[:4]:
            self.patch(transport, "getPeer", lambda: IPv4Address("TCP", "10.0.0.9", 1))
        for (connection, _), name in zip(clients, "abcdz", strict=True):
            self.send(connection, LONG, name=name, pieces=many)
        for _ in range(400):
            self.clock.turn()
        steps = self.group.steps
        ends = sorted("abcdz", key=lambda name: steps.index(f"end of {name}"))
        self.assertLessEqual(ends.index("z"), 1, ends)

    def test_lost(self) -> None:
        """The generator of a lost connection is closed, whether it runs or waits; the next one runs."""
        many = round(9 * LARGE_S / PIECE_S)
        clients = [self.connect() for _ in range(3)]
        for (connection, _), name in zip(clients, "abc", strict=True):
            self.send(connection, LONG, name=name, pieces=many)
        for _ in range(30):
            self.clock.turn()
        runs = self.group.steps[-1]
        waits, last = sorted({*"abc"} - {runs})
        for name in (waits, runs):
            unplug(clients["abc".index(name)][0])
            self.assertEqual(self.group.steps[-1], f"end of {name}")
        for _ in range(300):
            self.clock.turn()
        number = "abc".index(last)
        self.assertEqual(self.answered(clients[number][1]), [(number + 1, 0)])

    def test_failures(self) -> None:
        """A refusal and a bug in a later piece are answered, and the next requests, too."""
        connection, transport = self.connect()
        self.send(connection, FAILS, BROKEN, SHORT)
        for _ in range(5):
            self.clock.turn()
        self.assertEqual(self.answered(transport), [(1, 1), (2, 1), (3, 0)])
        self.assertEqual((self.side.failures, len(self.flushLoggedErrors(RuntimeError))), (1, 1))

    def test_long_bodies(self) -> None:
        """A body beyond its bound is refused before its handler sees it; a group may allow more."""
        connection, transport = self.connect()
        body = b"x" * (BODY_BYTES_MAX + 1)
        for one in (body, body[1:]):
            self.send(connection, SHORT, body=one)
        self.send(connection, LONG, body=body, name="a", pieces=1)
        self.send(connection, LONG, body=body + b"x", name="a", pieces=1)
        self.assertEqual(self.answered(transport), [(1, 1), (2, 0), (3, 0), (4, 1)])
        remark = sent_commands(transport.value())[0].remark
        self.assertEqual(remark, f"the body of request 1 has {len(body)} bytes, {len(body) - 1} are allowed")
