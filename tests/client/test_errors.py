# -*- test-case-name: tests.client.test_errors -*-
"""What a program hears when a call fails."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.client.errors import (
    AppendFailed,
    AppendTimeout,
    AppendWithoutLeader,
    CommandRefused,
    Expired,
    NotLeader,
    NotYet,
    Timeout,
    UnknownOutcome,
    append_error,
    failure_of,
    reported,
)
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import GetResponse
from tests.client.fakes import FakeGroup


class KindTests(SynchronousTestCase):
    """From a code to a kind."""

    def test_each_code_is_one_kind(self) -> None:
        """Each code has one kind at most; facts and code stay."""
        for code, kind in (
            (ResponseCode.NOT_LEADER, NotLeader), (ResponseCode.METADATA_ERROR, NotLeader),
            (ResponseCode.TIMEOUT, Timeout), (ResponseCode.NETWORK_ERROR, Timeout),
            (ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, Expired), (ResponseCode.INDEX_OUT_OF_RANGE, NotYet),
            (ResponseCode.UNEXPECTED_ARGUMENT, DLedgerError), (ResponseCode.FORBIDDEN, DLedgerError),
        ):
            error = failure_of(code, index=3)
            self.assertIs(type(error), kind)
            self.assertEqual((error.code, error.facts), (code, {"index": 3}))
            self.assertIs(type(reported(DLedgerError(code))), kind)

    def test_appends_fail_or_are_unknown(self) -> None:
        """Failed or unknown in any case; some of them for a reason with a name."""
        for code in ResponseCode:
            self.assertTrue(issubclass(append_error(code, is_unknown=False), AppendFailed))
            self.assertTrue(issubclass(append_error(code, is_unknown=True), UnknownOutcome))
        self.assertIs(append_error(ResponseCode.NOT_LEADER, is_unknown=False), AppendWithoutLeader)
        self.assertIs(append_error(ResponseCode.TIMEOUT, is_unknown=True), AppendTimeout)
        self.assertIs(append_error(ResponseCode.TIMEOUT, is_unknown=False), AppendFailed)
        error = append_error(ResponseCode.NOT_LEADER, is_unknown=False)(ResponseCode.NOT_LEADER, failed=2)
        self.assertIs(reported(error), error)
        self.assertIsInstance(error, NotLeader)

    def test_errors_are_names_of_the_package(self) -> None:
        """As a program catches them."""
        self.assertIs(dledger.AppendFailed, AppendFailed)
        self.assertIs(dledger.CommandRefused, CommandRefused)
        self.assertIs(dledger.UnknownOutcome, UnknownOutcome)
        self.assertIs(dledger.NotLeader, NotLeader)


class CallTests(SynchronousTestCase):
    """From a call to its error."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.group = FakeGroup(self.clock)
        self.group.log = [b"0"]
        self.client = self.group.client()

    def tearDown(self) -> None:
        self.client.close()
        self.group.settle()

    def test_a_get_raises_its_kind(self) -> None:
        """Not there yet, or not there any more."""
        entry = self.client.get(1)
        self.group.settle()
        self.failureResultOf(entry, NotYet)
        self.group["n0"].get = lambda request, base: GetResponse(
            **{**base, "code": ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN}
        )
        entry = self.client.get(0)
        self.group.settle()
        self.assertEqual(self.failureResultOf(entry, Expired).value.facts["index"], 0)

    def test_calls_fail_without_a_leader(self) -> None:
        """Without a leader, reads and appends say so."""
        for member in self.group.members.values():
            member.is_up = False
        entry, appended, leader = self.client.get(0), self.client.append(b"x"), self.client.metadata()
        self.group.run(60.0)
        self.failureResultOf(entry, NotLeader)
        self.failureResultOf(leader, NotLeader)
        self.failureResultOf(appended, AppendWithoutLeader)

    def test_a_tail_raises_its_kind(self) -> None:
        """The same kinds."""
        for member in self.group.members.values():
            member.is_up = False
        batch = self.client.tail(0, follow=False).next_batch()
        self.group.run(60.0)
        self.failureResultOf(batch, Timeout)
