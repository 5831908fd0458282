# -*- test-case-name: tests.broker.test_command_client -*-
"""One connection to each address, made when it is needed; every question ends."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from dledger.rocketmq.broker.command_client import CommandClient
from protocols.rocketmq.commands import NotAsked
from protocols.turn import Turn
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command

ASK = RemotingCommand(code=21, opaque=0)


@implementer(IStreamClientEndpoint)
class HeldEndpoint:
    """An endpoint whose attempts succeed or fail when they are asked to."""

    def __init__(self) -> None:
        self.attempts: list[tuple[IProtocolFactory, Deferred[IProtocol]]] = []
        self.cancelled = 0
        self.transport = StringTransport()

    def connect(self, factory: IProtocolFactory) -> Deferred[IProtocol]:
        """Remember the attempt."""
        done: Deferred[IProtocol] = Deferred(lambda _: setattr(self, "cancelled", self.cancelled + 1))
        self.attempts.append((factory, done))
        return done

    def succeed(self) -> None:
        """The oldest attempt."""
        factory, done = self.attempts.pop(0)
        protocol = factory.buildProtocol(None)
        assert protocol is not None
        self.transport = StringTransport(lenient=True)
        protocol.makeConnection(self.transport)
        self.protocol = protocol
        done.callback(protocol)

    def fail(self) -> None:
        """The oldest attempt."""
        self.attempts.pop(0)[1].errback(ConnectError("refused"))

    def requests(self) -> list[RemotingCommand]:
        """What was sent since the last call."""
        data, found = self.transport.value(), []
        self.transport.clear()
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            found.append(decode_command(data[4:end]))
            data = data[end:]
        return found


class CommandClientTests(SynchronousTestCase):
    """Asking."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.endpoint = HeldEndpoint()
        self.addresses: list[str] = []

        def endpoint_of(address: str) -> HeldEndpoint:
            self.addresses.append(address)
            return self.endpoint

        turn = Turn(self.clock, lambda failure: failure.raiseException())
        self.client = CommandClient(clock=self.clock, turn=turn, endpoint_of=endpoint_of)

    def ask(self) -> Deferred[RemotingCommand]:
        """One question."""
        return self.client.ask("m:1", ASK, timeout_s=3)

    def test_one_connection(self) -> None:
        """Questions wait for one attempt and share its connection; later ones use it."""
        waiting = [self.ask(), self.ask()]
        self.assertEqual(len(self.endpoint.attempts), 1)
        self.endpoint.succeed()
        self.clock.advance(0)
        waiting.append(self.ask())
        self.clock.advance(0)
        for request in self.endpoint.requests():
            self.endpoint.protocol.dataReceived(
                encode_command(RemotingCommand(code=0, opaque=request.opaque, flag=1)))
        for one in waiting:
            self.assertEqual(self.successResultOf(one).code, 0)
        self.assertEqual((self.addresses, self.clock.getDelayedCalls()), (["m:1"], []))

    def test_refused(self) -> None:
        """All that wait are informed; the next question tries again."""
        waiting = [self.ask(), self.ask()]
        self.endpoint.fail()
        for one in waiting:
            self.failureResultOf(one, ConnectError)
        self.ask()
        self.assertEqual(len(self.endpoint.attempts), 1)

    def test_deadline(self) -> None:
        """It covers connecting and waiting; an attempt that nobody waits for is given up."""
        first = self.ask()
        self.clock.advance(2)
        second = self.ask()
        self.clock.advance(1)
        self.failureResultOf(first, TimeoutError)
        self.assertEqual(self.endpoint.cancelled, 0)
        self.endpoint.succeed()
        self.clock.advance(2)
        error = self.failureResultOf(second, TimeoutError)
        self.assertIn("m:1 has not answered request 21 within 3 s", str(error.value))
        third = self.client.ask("m:2", ASK, timeout_s=3)
        self.clock.advance(3)
        self.failureResultOf(third, TimeoutError)
        self.assertEqual(self.endpoint.cancelled, 1)

    def test_silent(self) -> None:
        """A connection that has answered nothing since a late request is given up; another one stays."""
        for is_silent in (False, True):
            first = self.ask()
            self.endpoint.succeed()
            late, other = self.ask(), self.ask()
            self.clock.advance(0)
            answered = self.endpoint.requests()[: 1 if is_silent else 3 : 2]
            for request in answered:
                self.endpoint.protocol.dataReceived(
                    encode_command(RemotingCommand(code=0, opaque=request.opaque, flag=1)))
            self.successResultOf(first)
            last = self.ask() if is_silent else late
            self.clock.advance(3)
            for one in {late, last}:
                self.failureResultOf(one, TimeoutError)
            (self.failureResultOf if is_silent else self.successResultOf)(other)
            self.assertEqual(self.client.is_connected("m:1"), not is_silent)
            self.client.forget("m:1")

    def test_lost(self) -> None:
        """What was asked fails; the next question connects anew."""
        self.assertFalse(self.client.is_connected("m:1"))
        asked = self.ask()
        self.assertFalse(self.client.is_connected("m:1"))
        self.endpoint.succeed()
        self.assertTrue(self.client.is_connected("m:1"))
        self.endpoint.protocol.abort("gone")  # type: ignore[attr-defined]
        self.assertFalse(self.client.is_connected("m:1"))
        self.failureResultOf(asked, NotAsked)
        self.ask()
        self.assertEqual(len(self.endpoint.attempts), 1)

    def test_asked(self) -> None:
        """A peer that asks us is informed that we know nothing."""
        self.ask()
        self.endpoint.succeed()
        self.clock.advance(0)
        self.endpoint.requests()
        self.endpoint.protocol.dataReceived(encode_command(RemotingCommand(code=40, opaque=9)))
        (answer,) = self.endpoint.requests()
        self.assertEqual((answer.opaque, answer.code), (9, 3))

    def test_closed(self) -> None:
        """Everything ends; nothing begins."""
        asked = self.ask()
        self.endpoint.succeed()
        waiting = self.client.ask("m:2", ASK, timeout_s=3)
        self.client.close()
        self.failureResultOf(asked, NotAsked)
        self.failureResultOf(waiting)
        self.failureResultOf(self.ask(), NotAsked)
        self.clock.advance(0)
        self.assertEqual(self.clock.getDelayedCalls(), [])
