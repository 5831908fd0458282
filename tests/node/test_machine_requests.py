# -*- test-case-name: tests.node.test_machine_requests -*-
"""The handler of requests to a state machine: without one, and with one that answers as a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from twisted.internet.defer import Deferred, fail
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.requests.machine_requests import Hosting, MachineRequest
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_FLAG_MACHINE
from protocols.wire.ledger.machines import QueryRequest, SkipRequest, SubmitRequest, SubmitResponse
from protocols.wire.ledger.messages import MetadataRequest, Response
from tests.node.rig import Rig


class FakeMachineHandler:
    """Answers when the test does. @ivar asked: the requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[MachineRequest, Callable[[], bool]]] = []
        self.answers: list[Deferred[Response]] = []

    def answer(
        self, request: MachineRequest, may_answer: Callable[[], bool], owner: str
    ) -> Deferred[Response]:
        """Take a request."""
        self.asked.append((request, may_answer))
        self.answers.append(Deferred())
        return self.answers[-1]

    def reported(self) -> str:
        """What METADATA says."""
        return "a machine"

    def sweep(self, now_s: float) -> None:
        """Time passed."""

    def status(self) -> Any:
        """No status: health asks for it."""
        return None


class RequestsCase(SynchronousTestCase):
    """A member that leads, and a client."""

    def setUp(self) -> None:
        self.rig = Rig().lead()
        self.client = self.rig.client("127.0.0.1")

    def requests(self) -> list[MachineRequest]:
        """One of each kind."""
        base = self.rig.base()
        return [
            SubmitRequest(**base, command=b"x"), QueryRequest(**base, query=b"x"),
            SkipRequest(**base, index=1),
        ]


class NoMachineTests(RequestsCase):
    """A member without a machine."""

    def test_requests_are_refused_without_a_machine(self) -> None:
        """Each request, with a reason; METADATA does not name a machine."""
        answers = [self.client.ask(request) for request in self.requests()]
        self.assertEqual([answer.code for answer in answers], [
            ResponseCode.UNSUPPORTED, ResponseCode.UNSUPPORTED, ResponseCode.UNEXPECTED_ARGUMENT,
        ])
        self.assertEqual({answer.reason for answer in answers}, {"this member runs no state machine"})
        self.assertEqual({answer.leader_id for answer in answers}, {"n0"})
        self.assertEqual(self.rig.node.counters.refusals, {"UNSUPPORTED": 2, "UNEXPECTED_ARGUMENT": 1})
        reported = self.client.ask(MetadataRequest(**self.rig.base()))
        self.assertEqual((reported.wire_version & WIRE_FLAG_MACHINE, reported.machine), (0, ""))

    def test_an_operator_here_gets_the_same_answer(self) -> None:
        """An operator in this process gets the same answer."""
        answer: Any = self.successResultOf(self.rig.node.skip(3))
        self.assertEqual((answer.code, answer.reason),
                         (ResponseCode.UNEXPECTED_ARGUMENT, "this member runs no state machine"))

    def test_log_may_go(self) -> None:
        """No machine needs the log."""
        self.assertGreater(self.rig.node.machine_requests.needed_index, 1 << 60)


class HandlerTests(RequestsCase):
    """A member whose machine has a handler."""

    def setUp(self) -> None:
        super().setUp()
        self.handler = FakeMachineHandler()
        self.machine = mock.Mock(needed_index=7, proven_index=-1, gives_snapshots=False)
        self.rig.node.machine_requests.hosting = Hosting(machine=self.machine, handler=self.handler)

    def test_requests_are_passed_to_the_handler(self) -> None:
        """To the handler, as it is; its answer goes to the client, and a refusal is counted."""
        requests = self.requests()
        self.client.send(*requests)
        asked = [type(request) for request, _ in self.handler.asked]
        self.assertEqual(asked, [type(one) for one in requests])
        self.assertTrue(self.handler.asked[0][1]())
        self.assertEqual(self.client.answers(), [])
        self.handler.answers[0].callback(SubmitResponse(code=ResponseCode.COMMAND_REFUSED, reason="no"))
        (answer,) = self.client.answers()
        self.assertEqual((answer.code, answer.reason), (ResponseCode.COMMAND_REFUSED, "no"))
        self.assertEqual(self.rig.node.counters.refusals, {"COMMAND_REFUSED": 1})

    def test_an_unread_connection_is_refused_first(self) -> None:
        """A connection that does not read is refused before the handler hears of its request."""
        self.patch(type(self.client.connection.account), "may_answer", False)
        answers = [self.client.ask(request) for request in self.requests()]
        self.assertEqual({answer.code for answer in answers}, {ResponseCode.LEADER_PENDING_FULL})
        self.assertEqual(self.handler.asked, [])

    def test_a_failing_handler_stops_the_member(self) -> None:
        """A handler that fails instead of answering stops the member: its state is not known."""
        self.handler.answer = lambda *_: fail(KeyError("a bug"))  # type: ignore[method-assign]
        self.client.send(self.requests()[0])
        self.assertEqual((self.rig.node.state, self.rig.node.reason), ("failed", "KeyError: 'a bug'"))
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)

    def test_the_machine_hears_of_commits(self) -> None:
        """The machine learns that entries are committed, and says which of them the log keeps."""
        self.rig.node.append(b"x")
        self.rig.clock.advance(0.02)
        self.machine.committed.assert_called()
        self.assertEqual(self.rig.node.machine_requests.needed_index, 7)
