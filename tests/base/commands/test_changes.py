# -*- test-case-name: tests.base.commands.test_changes -*-
"""The gate of ports without accounts."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.answering import AnsweringSide
from dledger.rocketmq.answering.changes import ChangeGate
from dledger.rocketmq.answering.refusals import CommandGroup, Handlers
from dledger.values.hosts import ChangeHosts
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.protocols.fakes import plug, sent_commands, turn_of


class Group(CommandGroup):
    """Answers 50, which reads, and 51, which changes something."""

    def handlers(self) -> Handlers:
        """By code."""
        return {50: self.answer, 51: self.answer}

    def answer(self, connection: CommandConnection, request: RemotingCommand) -> None:
        """Yes."""
        connection.answer(request, body=b"yes")


class GateTests(SynchronousTestCase):
    """L{ChangeGate}, before the handlers of an L{AnsweringSide}."""

    def setUp(self) -> None:
        gate = ChangeGate(ChangeHosts(("10.0.0.0/24",)), lambda request: "to X" if request.code == 51 else "")
        self.side = AnsweringSide(turn_of(Clock()), [Group()], gate=gate)

    def ask(self, code: int, host: str, certificate: Any = ()) -> tuple[int, str]:
        """Code and remark of the answer. @param certificate: that of the other end, by TLS."""
        connection = self.side.buildProtocol(None)
        assert connection is not None
        transport: Any = plug(connection)
        transport.peerAddr = IPv4Address("TCP", host, 4711)
        if certificate != ():
            transport.getPeerCertificate = lambda: certificate
        connection.dataReceived(encode_command(RemotingCommand(code=code, opaque=1)))
        (answer,) = sent_commands(transport.value())
        return answer.code, answer.remark or ""

    def test_hosts(self) -> None:
        """Of another host only what changes nothing; codes that nobody has stay unknown."""
        self.assertEqual(self.ask(50, "10.1.0.7"), (0, ""))
        code, remark = self.ask(51, "10.1.0.7")
        self.assertEqual(code, 16)
        self.assertIn("to X (request 51) is a change, and 10.1.0.7 may ask for none", remark)
        self.assertEqual(self.ask(51, "10.0.0.7"), (0, ""))
        self.assertEqual(self.ask(51, "::ffff:127.0.0.1"), (0, ""))
        self.assertEqual(self.ask(52, "10.1.0.7")[0], 3)

    def test_certificates(self) -> None:
        """By TLS, one that was shown is enough; a port that demands none is shown none."""
        self.assertEqual(self.ask(51, "10.1.0.7", certificate=object()), (0, ""))
        self.assertEqual(self.ask(51, "10.1.0.7", certificate=None)[0], 16)
