# -*- test-case-name: tests.broker.test_router -*-
"""Who answers what, and what becomes of requests that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving.client_places import ClientPlaces
from dledger.rocketmq.answering.refusals import CommandGroup, Handlers, Refused
from dledger.rocketmq.broker.access.router import CommandRouter, SendHandlers
from protocols.budgets import HELD_BYTES_MAX
from protocols.rocketmq.commands import CommandConnection
from protocols.turn import READS_S
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.protocols.fakes import FakeTransport, plug, sent_commands, turn_of


class Group(CommandGroup):
    """Answers 50, refuses 51, fails at 52."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def handlers(self) -> Handlers:
        """By code."""
        return {50: self.answer, 51: self.refuse, 52: self.fail}

    def answer(self, connection: CommandConnection, request: RemotingCommand) -> None:
        """Yes."""
        self.seen.append(request.opaque)
        connection.answer(request, body=b"yes")

    def refuse(self, connection: CommandConnection, request: RemotingCommand) -> None:
        """No."""
        raise Refused(17, "not here")

    def fail(self, connection: CommandConnection, request: RemotingCommand) -> None:
        """A bug."""
        raise ZeroDivisionError("one by nothing")

    def connection_lost(self, connection: CommandConnection) -> None:
        """Remember."""
        self.seen.append("lost")

    def drained(self, connection: CommandConnection) -> None:
        """Remember."""
        self.seen.append("drained")


class Together:
    """Answers 60 and 61, or fails."""

    codes = frozenset({60, 61})

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.fails = False

    def received(self, connection: CommandConnection, requests: Sequence[RemotingCommand]) -> None:
        """Yes."""
        if self.fails:
            raise ZeroDivisionError
        self.calls.append([one.opaque for one in requests])
        for one in requests:
            connection.answer(one)


class RouterCase(SynchronousTestCase):
    """A router with one group, and sends."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.group = Group()
        self.together = Together()
        self.router = CommandRouter(
            turn_of(self.clock), [self.group], SendHandlers(together=self.together), connections_max=2
        )

    def connect(self) -> tuple[CommandConnection, FakeTransport]:
        """Somebody does."""
        connection = self.router.buildProtocol(None)
        assert connection is not None
        return connection, plug(connection)

    def ask(self, *codes: int, flag: int = 0) -> list[tuple[int, int, str | None]]:
        """In one read. @return: number, code and remark of what was answered."""
        connection, transport = self.connect()
        connection.dataReceived(b"".join(
            encode_command(RemotingCommand(code=code, opaque=number, flag=flag))
            for number, code in enumerate(codes)
        ))
        self.clock.advance(0)
        connection.abort("enough")
        return [(one.opaque, one.code, one.remark) for one in sent_commands(transport.value())]


class PlaceTests(RouterCase):
    """
    A client for which there is no place is informed of that with its first request, and nobody else ends for
    it.
    """

    def setUp(self) -> None:
        super().setUp()
        self.router.clients = ClientPlaces(2, share_percent=100)

    def test_refused(self) -> None:
        """Each request of its first read is answered, sends too; no handler hears of them."""
        kept, _ = self.connect()
        kept.dataReceived(encode_command(RemotingCommand(code=50, opaque=1)))
        late, transport = self.connect()
        late.dataReceived(b"".join(
            encode_command(RemotingCommand(code=code, opaque=code, flag=flag))
            for code, flag in ((50, 0), (310, 0), (51, 2))
        ))
        self.clock.advance(0)
        answers = sent_commands(transport.value())
        self.assertEqual([(one.opaque, one.code) for one in answers], [(50, 2), (310, 2)])
        self.assertIn("1 clients are connected, which is the limit here", answers[0].remark or "")
        self.assertTrue(transport.disconnecting)
        self.assertEqual((self.together.calls, self.router.connections_refused), ([], 1))
        self.assertFalse(kept.is_lost)

    def test_free_again(self) -> None:
        """When a client has ended, there is a place."""
        self.assertEqual(self.ask(50), [(0, 0, None)])
        self.assertEqual(self.ask(50), [(0, 0, None)])


class RoutingTests(RouterCase):
    """Requests find their group."""

    def test_answered(self) -> None:
        """Answered, refused, failed and unknown ones beside each other, each once."""
        with capturedLogs() as events:
            answers = self.ask(50, 51, 52, 53, 50)
        self.assertEqual(answers, [
            (0, 0, None), (1, 17, "not here"), (2, 1, "ZeroDivisionError: one by nothing"),
            (3, 3, " request type 53 not supported"), (4, 0, None),
        ])
        self.assertEqual((self.router.unknown, self.router.failures), (1, 1))
        self.assertEqual([event["code"] for event in events if "code" in event], [51, 52, 53])
        self.assertEqual(self.router.refusals.counts, {(51, 17): 1, (53, 3): 1})
        self.flushLoggedErrors(ZeroDivisionError)

    def test_logged_once(self) -> None:
        """A client that goes on does not fill the log."""
        self.ask(52, 52)
        self.ask(52)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.router.failures, 3)

    def test_refusals_are_counted(self) -> None:
        """Each code with each answer is logged once, and counted; random codes are bounded."""
        with capturedLogs() as events:
            self.ask(51, 51, 53)
            self.ask(53, *range(1000, 1300))
        self.assertEqual((self.router.refusals.counts[51, 17], self.router.refusals.counts[53, 3]), (2, 2))
        self.assertEqual((len(self.router.refusals.counts), len(events)), (256, 256))
        self.assertEqual(self.router.unknown, 302)
        self.assertEqual(self.router.refusals.others, 304 - 2 - 2 - 254)
        self.assertIn("51:17=2 53:3=2 1000:3=1", str(self.router.refusals))

    def test_oneway(self) -> None:
        """Connections that do not want to be informed are not."""
        self.assertEqual(self.ask(50, 51, 53, flag=2), [])
        self.assertEqual(self.group.seen, [0, "lost"])

    def test_together(self) -> None:
        """Those that stand together go together, and order is kept."""
        calls = self.together.calls
        self.patch(self.group, "seen", calls)
        self.ask(60, 61, 50, 60)
        self.assertEqual(calls, [[0, 1], 2, [3], "lost"])
        self.assertEqual(self.router.codes, (50, 51, 52, 60, 61))

    def test_sent_is_shown_first(self) -> None:
        """Before each request that is not a send, messages become visible."""
        calls = self.together.calls
        self.patch(self.group, "seen", calls)
        self.router = CommandRouter(
            turn_of(self.clock), [self.group], SendHandlers(together=self.together),
            show=lambda: calls.append("show"),
        )
        self.ask(60, 61, 50, 60)
        self.assertEqual(calls, [[0, 1], "show", 2, [3], "lost"])

    def test_together_fails(self) -> None:
        """It is not known who was answered: the connection ends."""
        self.together.fails = True
        self.assertEqual(self.ask(60), [])
        self.assertEqual(self.router.connections, 0)
        self.flushLoggedErrors(ZeroDivisionError)

    def test_one_group_for_each_code(self) -> None:
        """Two would be a mistake of ours."""
        turn, sends = turn_of(self.clock), SendHandlers(together=self.together)
        self.assertRaises(AssertionError, CommandRouter, turn, [Group(), Group()], sends)
        self.patch(Together, "codes", frozenset({50}))
        self.assertRaises(AssertionError, CommandRouter, turn, [Group()], sends)


class CostlyTests(RouterCase):
    """Requests that take more than half of what the reads of one turn may take."""

    def setUp(self) -> None:
        super().setUp()

        def cost(connection: CommandConnection, request: RemotingCommand) -> None:
            self.clock.rightNow += 0.6 * READS_S
            self.group.answer(connection, request)

        self.router.handlers_by_code[50] = cost

    def send(self, connection: CommandConnection, codes: Sequence[int], first: int) -> None:
        """In one read, numbered from C{first} on."""
        connection.dataReceived(b"".join(
            encode_command(RemotingCommand(code=code, opaque=first + number))
            for number, code in enumerate(codes)
        ))

    def test_order(self) -> None:
        """The rest waits in order, and so do later requests; sends of the same read do not wait."""
        self.patch(self.group, "seen", self.together.calls)
        connection, transport = self.connect()
        self.send(connection, [50, 50, 50, 60, 50, 61], 0)
        self.assertEqual(self.together.calls, [0, 1, [3, 5]])
        self.assertEqual(transport.producerState, "paused")
        self.send(connection, [60, 50], 6)
        self.clock.pump([0.01] * 9)
        self.assertEqual(self.together.calls, [0, 1, [3, 5], 2, 4, [6], 7])
        self.assertEqual(transport.producerState, "producing")
        self.assertEqual(len(sent_commands(transport.value())), 8)

    def test_unread(self) -> None:
        """Requests wait until answers of before are read; of a lost connection nothing is kept."""
        self.router.clients = ClientPlaces(4, share_percent=100)
        for is_lost in (False, True):
            connection, _transport = self.connect()
            self.group.seen.clear()
            self.send(connection, [50] * 6, 0)
            connection.pauseProducing()
            self.clock.pump([0.01] * 9)
            self.assertEqual((self.group.seen, len(self.router.unread)), ([0, 1], 1))
            if is_lost:
                connection.abort("gone")
            else:
                connection.resumeProducing()
                self.clock.pump([0.01] * 9)
                self.assertEqual(self.group.seen, [0, 1, "drained", 2, 3, 4, 5])
            self.assertEqual(self.router.unread, {})

    def test_large_answers(self) -> None:
        """No further request of a read is handled when an answer that is not sent is too large."""
        def answer(connection: CommandConnection, request: RemotingCommand) -> None:
            self.group.seen.append(request.opaque)
            connection.answer(request, body=bytes(9 << 20))

        self.router.handlers_by_code[50] = answer
        connection, _transport = self.connect()
        self.send(connection, [50] * 3, 0)
        self.assertEqual(self.group.seen, [0])
        self.clock.pump([0.01] * 9)
        self.assertEqual(self.group.seen, [0, 1, 2])

    def test_no_room_in_the_process(self) -> None:
        """Requests wait for room, but not those with small answers; the sweep finds that there is room."""
        self.router.small_codes = frozenset({51})
        self.patch(self.router, "handlers_by_code", {**self.router.handlers_by_code, 51: self.group.answer})
        budget = self.router.budgets.answers
        budget.held += budget.bytes_max
        connection, _transport = self.connect()
        self.send(connection, [51, 99, 50, 51], 0)
        self.clock.pump([0.01] * 9)
        self.router.sweep(1.0)
        self.clock.pump([0.01] * 9)
        self.assertEqual([one for one in self.group.seen if one != "drained"], [0])
        self.assertEqual(len(self.router.unread), 1)
        budget.held -= budget.bytes_max
        self.router.sweep(2.0)
        self.clock.pump([0.01] * 9)
        self.assertEqual([one for one in self.group.seen if one != "drained"], [0, 2, 3])
        self.assertEqual(self.router.unread, {})

    def test_too_much_unread(self) -> None:
        """A connection that holds too much waits with small answers, too."""
        self.router.small_codes = frozenset({50})
        connection, _transport = self.connect()
        connection.account.reserve(HELD_BYTES_MAX)
        self.send(connection, [50], 0)
        self.clock.pump([0.01] * 9)
        self.assertEqual(self.group.seen, [])
        connection.account.unreserve(HELD_BYTES_MAX)
        self.router.sweep(1.0)
        self.clock.pump([0.01] * 9)
        self.assertEqual(self.group.seen[-1], 0)

    def test_lost_while_it_waits(self) -> None:
        """Nothing is kept of a connection that ends before its requests are looked at again."""
        connection, _transport = self.connect()
        self.send(connection, [50] * 6, 0)
        connection.pauseProducing()
        connection.abort("gone")
        self.clock.pump([0.01] * 9)
        self.assertEqual(self.router.unread, {})


class ConnectionTests(RouterCase):
    """Connections are bounded, watched, and closed."""

    def call_of(self, name: str) -> Callable[..., Any]:
        """A method of the router."""
        method: Callable[..., Any] = getattr(self.router, name)
        return method

    def test_bound(self) -> None:
        """The third is refused, until one of the others has gone."""
        first, _ = self.connect()
        second, _ = self.connect()
        first.account.prove()
        second.account.prove()
        self.assertIsNone(self.router.buildProtocol(None))
        self.assertEqual(self.router.connections_refused, 1)
        first.abort("gone")
        self.connect()

    def test_groups_are_reported(self) -> None:
        """Of connections that end, and that take output again."""
        connection, _ = self.connect()
        connection.pauseProducing()
        connection.resumeProducing()
        connection.abort("gone")
        self.assertEqual(self.group.seen, ["drained", "lost"])

    def test_broken(self) -> None:
        """Who breaks the format is counted, and gone."""
        connection, transport = self.connect()
        connection.dataReceived(b"\0\0\0\x04\x05\0\0\0")
        self.assertEqual((self.router.wire_errors, self.router.connections), (1, 0))
        self.assertTrue(connection.is_lost)

    def test_idle(self) -> None:
        """After a little more than the two minutes of RocketMQ's clients, which so end it themselves."""
        connection, _ = self.connect()
        self.router.sweep(1.0)
        self.router.sweep(130.0)
        self.assertFalse(connection.is_lost)
        self.router.sweep(131.0)
        self.assertTrue(connection.is_lost)

    def test_closing(self) -> None:
        """Nobody comes in any more; who is there is ended, after what was said or at once."""
        connection, transport = self.connect()
        self.router.close_all()
        self.assertTrue(transport.disconnecting)
        self.assertIsNone(self.router.buildProtocol(None))
        self.router.abort_all("the end")
        self.assertTrue(connection.is_lost)
