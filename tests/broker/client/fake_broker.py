# -*- test-case-name: tests.broker.client.test_link -*-
"""A broker in memory: bytes are carried when a test says so, and answers are what a test gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from zope.interface import implementer

from protocols.rocketmq.broker import BrokerConnection, NativeRequests, NativeTicket
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.broker_frames import BrokerAnswer, BrokerRequest
from protocols.wire.rocketmq.broker_layout import WIRE_VERSION_CODE
from tests.protocols.fakes import FakeTransport, turn_of

Answers = Callable[[BrokerRequest], BrokerAnswer | None]


class _Pair:
    """Both ends of a connection, with a transport each."""

    def __init__(self, client: Any, server: BrokerConnection) -> None:
        self.ends = (client, server)
        self.transports = (FakeTransport(), FakeTransport())
        self.is_open = True
        for end, transport in zip(self.ends, self.transports, strict=True):
            transport.peerAddr = IPv4Address("TCP", "127.0.0.1", 40000)
            end.makeConnection(transport)

    def carry(self) -> bool:
        """What each has written to the other; whether there was anything."""
        moved = False
        for at in (0, 1):
            data = self.transports[at].value()
            self.transports[at].clear()
            if data and self.is_open:
                moved = True
                self.ends[1 - at].dataReceived(data)
        if self.is_open and any(one.disconnecting or one.disconnected for one in self.transports):
            self.cut()
            moved = True
        return moved

    def cut(self) -> None:
        """The connection ends; what is under way is lost."""
        self.is_open = False
        for end in self.ends:
            end.connectionLost(Failure(ConnectionDone()))


@implementer(IStreamClientEndpoint)
class FakeBroker:
    """
    @ivar is_up: whether connections are taken; None: they are neither taken nor refused.
    @ivar wire_version: the version that it reports; None: it is Java, and refuses the question.
    @ivar answers: from a native request to its answer; None for one that is given later.
    @ivar asked: native requests that came in; C{unanswered} those without an answer.
    @ivar questions: the questions for the version.
    @ivar commands: from a remoting command to its answer, for what is no question for the version.
    """

    def __init__(self, clock: Clock, answers: Answers) -> None:
        self.clock = clock
        self.is_up: bool | None = True
        self.wire_version: int | None = 1
        self.answers = answers
        self.asked: list[BrokerRequest] = []
        self.unanswered: list[tuple[BrokerConnection, NativeTicket, BrokerRequest]] = []
        self.commands: Callable[[RemotingCommand], dict[str, Any] | None] = lambda _: None
        self.commanded: list[RemotingCommand] = []
        self.questions: list[RemotingCommand] = []
        self.pairs: list[_Pair] = []

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        done: Deferred[IProtocol] = Deferred(lambda _: None)
        if self.is_up is None:
            return done
        if not self.is_up:
            done.errback(ConnectionRefusedError())
            return done
        client = protocolFactory.buildProtocol(IPv4Address("TCP", "127.0.0.1", 10911))
        server = BrokerConnection(self, turn_of(self.clock), native=self)
        assert client is not None
        self.pairs.append(_Pair(client, server))
        done.callback(client)
        return done

    def settle(self, seconds: float = 0.0) -> None:
        """Let time pass, and carry bytes until there are none."""
        self.clock.advance(seconds)
        for _ in range(1000):
            moved = [pair.carry() for pair in list(self.pairs)]
            self.clock.advance(0)
            if not any(moved):
                return
        raise AssertionError("it does not settle")

    def cut(self) -> None:
        """Every connection ends."""
        for pair in self.pairs:
            if pair.is_open:
                pair.cut()
        self.pairs.clear()

    # -- its sinks -------------------------------------------------------------------------------

    def natives_received(self, connection: BrokerConnection, requests: NativeRequests) -> None:
        """Answer, or keep for later."""
        for ticket, request in requests:
            self.asked.append(request)
            answer = self.answers(request)
            if answer is None:
                self.unanswered.append((connection, ticket, request))
            else:
                connection.answer_native(ticket, answer)

    def no_place(self, connection: CommandConnection) -> str:
        """Everybody has one."""
        return ""

    def commands_received(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        """Say what is understood."""
        for command in commands:
            if command.code != WIRE_VERSION_CODE:
                self.commanded.append(command)
                answer = self.commands(command)
                if answer is not None:
                    connection.answer(command, **answer)
                continue
            self.questions.append(command)
            if self.wire_version is None:
                connection.answer_not_supported(command)
            else:
                connection.answer(command, ext_fields={"brokerWireVersion": str(self.wire_version)})

    def connected(self, connection: CommandConnection) -> None:
        """Nothing to do."""

    def drained(self, connection: CommandConnection) -> None:
        """Nothing to do."""

    def wire_broken(self, connection: CommandConnection, error: WireError) -> None:
        """Ours write what we read."""
        raise AssertionError(error)

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        """Nothing to do."""
