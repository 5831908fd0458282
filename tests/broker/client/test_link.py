# -*- test-case-name: tests.broker.client.test_link -*-
"""The way to one broker."""

from __future__ import annotations

from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.client.link import BrokerLink, ask_native
from dledger.values.errors import DLedgerError
from protocols.rocketmq.signing import Credentials, is_signed
from protocols.wire.codes import ResponseCode
from protocols.wire.rocketmq.broker_frames import OffsetsAnswer, OffsetsRequest, ReadRequest
from protocols.wire.rocketmq.broker_layout import CHALLENGE_CODE, CHALLENGE_FIELD
from tests.broker.client.fake_broker import FakeBroker


class LinkTests(SynchronousTestCase):
    """Connecting, and its outcomes."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.broker = FakeBroker(self.clock, lambda _: OffsetsAnswer(end_offset=7))
        self.link = BrokerLink("b:1", self.broker, clock=self.clock)
        self.lost: list[str] = []
        self.link.lost = self.lost.append

    def test_native(self) -> None:
        """One connection for all callers, handed out when the broker has named its version."""
        first, second = self.link.ready(), self.link.ready()
        self.assertNoResult(first)
        self.broker.settle()
        connection = self.successResultOf(first)
        self.assertIs(self.successResultOf(second), connection)
        self.assertIs(self.successResultOf(self.link.ready()), connection)
        self.assertEqual((self.link.wire_version, len(self.broker.pairs)), (1, 1))

    def test_java(self) -> None:
        """A broker that does not know the question knows no native frames."""
        self.broker.wire_version = None
        ready = self.link.ready()
        self.broker.settle()
        self.successResultOf(ready)
        self.assertEqual(self.link.wire_version, 0)

    def test_account(self) -> None:
        """The challenge of a broker with access control is signed with the question; others know of none."""
        keys = Credentials("producer", "the-secret-of-it")
        challenges: list[dict[str, object]] = [
            {"ext_fields": {CHALLENGE_FIELD: "0123"}}, {"code": 3}, {"code": 1, "remark": "No acl config"},
        ]
        for answer in challenges:
            self.broker.commands = lambda command, answer=answer: (  # type: ignore[misc]
                answer if command.code == CHALLENGE_CODE else None
            )
            link = BrokerLink("b:1", self.broker, clock=self.clock, credentials=keys)
            ready = link.ready()
            self.broker.settle()
            if answer.get("code") == 1:
                self.assertIn("answers with 1: No acl", str(self.failureResultOf(ready, DLedgerError).value))
                self.assertEqual(len(self.broker.questions), 2)
            else:
                self.successResultOf(ready)
                self.assertEqual(link.wire_version, 1)
                question = self.broker.questions[-1]
                self.assertTrue(is_signed(question, keys.secret_key))
                said = question.ext_fields.get(CHALLENGE_FIELD)
                self.assertEqual(said, None if "code" in answer else "0123")

    def test_refused(self) -> None:
        """Nobody listens: all that wait are informed, the next one tries again."""
        self.broker.is_up = False
        waits = [self.link.ready()]
        for wait in waits:
            failure = self.failureResultOf(wait, DLedgerError)
            self.assertIs(failure.value.code, ResponseCode.NETWORK_ERROR)
            self.assertIn("b:1: Connection was refused", str(failure.value))
        self.broker.is_up = True
        ready = self.link.ready()
        self.broker.settle()
        self.successResultOf(ready)

    def test_silent(self) -> None:
        """Neither a connection nor an answer within its time."""
        self.broker.is_up = None
        ready = self.link.ready()
        self.clock.advance(3.1)
        self.assertIn("no answer within 3 s", str(self.failureResultOf(ready, DLedgerError).value))
        self.broker.is_up = True
        ready = self.link.ready()
        self.clock.advance(3.1)  # the bytes were not carried
        self.assertIn("no answer within 3 s", str(self.failureResultOf(ready, DLedgerError).value))
        self.broker.settle()
        self.assertFalse(any(pair.is_open for pair in self.broker.pairs))

    def test_cancelled(self) -> None:
        """Who gives up does not disturb the others."""
        first, second = self.link.ready(), self.link.ready()
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.broker.settle()
        self.successResultOf(second)

    def test_lost(self) -> None:
        """The owner is informed once; the next caller gets another connection."""
        ready = self.link.ready()
        self.broker.settle()
        self.successResultOf(ready)
        self.broker.cut()
        self.assertEqual((self.link.connection, len(self.lost)), (None, 1))
        again = self.link.ready()
        self.broker.settle()
        self.successResultOf(again)

    def test_close(self) -> None:
        """Callers that wait fail, and so do later ones."""
        ready = self.link.ready()
        self.link.close()
        self.failureResultOf(ready, DLedgerError)
        self.failureResultOf(self.link.ready(), DLedgerError)
        self.broker.settle()
        self.assertFalse(any(pair.is_open for pair in self.broker.pairs))

    def test_ask_native(self) -> None:
        """An answer; none in time; the connection lost; too late to be asked."""
        ready = self.link.ready()
        self.broker.settle()
        connection = self.successResultOf(ready)

        def ask(request: OffsetsRequest | ReadRequest) -> object:
            return ask_native(connection, request, clock=self.clock, timeout_s=2, address="b:1")

        asked = ask(OffsetsRequest())
        self.broker.settle()
        self.assertEqual(self.successResultOf(asked), OffsetsAnswer(end_offset=7))
        self.broker.answers = lambda _: None
        asked = ask(OffsetsRequest())
        self.broker.settle(2.1)
        error = self.failureResultOf(asked, DLedgerError).value
        self.assertEqual(str(error), "TIMEOUT (300): reason='b:1 did not answer OFFSETS within 2 s'")
        self.assertEqual(connection.native_outstanding, 0)
        asked = ask(ReadRequest(begin_offset=0))
        self.broker.settle()
        self.broker.cut()
        self.assertIs(self.failureResultOf(asked, DLedgerError).value.code, ResponseCode.NETWORK_ERROR)
        self.failureResultOf(ask(OffsetsRequest()), DLedgerError)
        self.assertEqual(self.clock.getDelayedCalls(), [])
