# -*- test-case-name: tests.client.test_conditions -*-
"""Appends that expect an end of the log."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.errors import (
    AppendError,
    AppendFailed,
    AppendTimeout,
    AppendWithoutLeader,
    Conflict,
    UnknownOutcome,
)
from dledger.client.values import Appended
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendIfRequest
from tests.client.fakes import FakeGroup


class ConditionTests(SynchronousTestCase):
    """Three members, one entry, and a client."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.group = FakeGroup(self.clock)
        self.group.log = [b"0"]
        self.client = self.group.client()

    def tearDown(self) -> None:
        self.client.close()
        self.group.settle()

    def append(self, expected_end: int, body: bytes = b"x") -> Deferred[Appended]:
        """Called, and settled."""
        appended = self.client.append(body, expected_end=expected_end)
        self.group.settle()
        return appended

    def failed(self, appended: Deferred[Appended], kind: type[AppendError]) -> AppendError:
        """How it failed."""
        error = self.failureResultOf(appended, AppendError).value
        assert isinstance(error, AppendError)
        self.assertIs(type(error), kind)
        return error

    def test_a_fitting_end_is_taken(self) -> None:
        """After that end."""
        appended = self.successResultOf(self.append(0))
        self.assertEqual((appended.index, appended.count, appended.pos), (1, 1, 100))
        self.assertEqual(self.group.log, [b"0", b"x"])
        self.group.log.clear()
        self.assertEqual(self.successResultOf(self.append(-1)).index, 0)

    def test_a_conflict_is_reported_at_once(self) -> None:
        """Reported at once, with the end; nothing is appended."""
        error = self.failed(self.append(7), Conflict)
        assert isinstance(error, Conflict)
        self.assertEqual((error.end_index, error.failed, error.unknown), (0, 1, 0))
        self.assertEqual(error.facts["expected_end"], 7)
        self.assertEqual(self.group.log, [b"0"])

    def test_bad_calls_are_refused_here(self) -> None:
        """Refused here."""
        self.assertIn("expected_end=-2", str(self.failed(self.append(-2), AppendFailed)))
        self.failed(self.append(0, b"x" * 5_000_000), AppendFailed)
        text: Any = "text"
        self.assertIn("must be bytes", str(self.failed(self.append(0, text), AppendFailed)))
        received = [one for member in self.group.members.values() for one in member.received]
        self.assertFalse([one for one in received if isinstance(one, AppendIfRequest)])

    def test_a_java_leader_is_not_asked(self) -> None:
        """A Java member is not asked: it would append in any case."""
        self.group = FakeGroup(self.clock)
        for member in self.group.members.values():
            member.wire_version = 0
        self.client = self.group.client()
        error = self.failed(self.append(-1), AppendFailed)
        self.assertIs(error.code, ResponseCode.UNSUPPORTED)
        self.assertEqual(self.group.log, [])

    def test_a_condition_follows_the_leader(self) -> None:
        """It is sent again while it is certainly not in the log."""
        self.successResultOf(self.append(0))
        self.group.lead("n2")
        appended = self.append(1)
        self.group.run(1.0)
        self.assertEqual(self.successResultOf(appended).index, 2)
        self.group["n2"].refusals.extend([ResponseCode.LEADER_PENDING_FULL, ResponseCode.LEADER_NOT_READY])
        appended = self.append(2)
        self.group.run(2.0)
        self.assertEqual(self.successResultOf(appended).index, 3)

    def test_a_condition_fails_without_a_leader(self) -> None:
        """Certainly not in the log."""
        for member in self.group.members.values():
            member.is_up = False
        appended = self.append(0)
        self.group.run(30.0)
        self.failed(appended, AppendWithoutLeader)

    def test_an_unknown_condition_is_not_repeated(self) -> None:
        """Never sent again: a lost connection, no answer, an answer that leaves it open."""
        self.group["n0"].holds = lambda request: isinstance(request, AppendIfRequest)
        lost = self.append(0)
        self.group["n0"].lose_connections()
        self.group.run(1.0)
        self.failed(lost, AppendTimeout)
        late = self.append(0)
        self.group.run(6.0)
        self.assertEqual(self.failed(late, AppendTimeout).unknown, 1)
        self.group["n0"].holds = lambda request: False
        self.group["n0"].refusals.append(ResponseCode.TERM_CHANGED)
        self.failed(self.append(0), UnknownOutcome)
        asked = [one for one in self.group["n0"].received if isinstance(one, AppendIfRequest)]
        self.assertEqual(len(asked), 3)

    def test_a_closed_client_leaves_it_unknown(self) -> None:
        """An append without an answer is unknown; a later one has failed."""
        self.group["n0"].holds = lambda request: isinstance(request, AppendIfRequest)
        waiting = self.append(0)
        self.client.close()
        self.group.settle()
        self.failed(waiting, AppendTimeout)
        self.failed(self.append(0), AppendWithoutLeader)
