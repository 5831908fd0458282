# -*- test-case-name: tests.node.test_state_orders -*-
"""An operator's order to begin the state of the group anew: when it is written, and when it is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.status import MemberStatus
from dledger.node.requests.appends import AppendResult
from dledger.node.requests.state_orders import StateOrders
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import GroupFold, GroupState
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import SnapshotRequest, SnapshotResponse
from protocols.wire.ledger.messages import BeginStateRequest, BeginStateResponse
from protocols.wire.ledger.own.own_entries import STATE_CHANNEL
from protocols.wire.ledger.own.state_entries import StateEntry, StateWord, decode_state_entry

LACKS = SnapshotResponse(code=ResponseCode.LEADER_NOT_READY)


class OrderTests(SynchronousTestCase):
    """A leader without the state, and two other members."""

    def setUp(self) -> None:
        self.group: GroupFold | None = None
        self.role = "leader"
        self.answers: dict[str, Deferred[SnapshotResponse]] = {"n1": succeed(LACKS), "n2": succeed(LACKS)}
        self.appended: list[tuple[int, bytes]] = []
        self.orders = StateOrders(
            "g", self, append=self.append, others=self,
            status=lambda: cast(MemberStatus, SimpleNamespace(role=self.role, leader_id="n0")),
        )

    def state_senders(self) -> list[str]:
        """The other members."""
        return list(self.answers)

    def ask(self, peer_id: str, _request: SnapshotRequest) -> Deferred[SnapshotResponse]:
        """Answered as the test says."""
        return self.answers[peer_id]

    def append(self, channel: int, body: bytes) -> Deferred[AppendResult]:
        """Committed at once."""
        self.appended.append((channel, body))
        return succeed(AppendResult(index=7, count=1, term=1, pos=0))

    def order(self, *, insists: bool = False) -> BeginStateResponse:
        """The answer."""
        answer = self.successResultOf(self.orders.begin_anew(BeginStateRequest(insists=insists)))
        assert isinstance(answer, BeginStateResponse)
        return answer

    def assertRefused(self, reason: str, *, insists: bool = False) -> None:
        """With a sentence, and nothing is written."""
        answer = self.order(insists=insists)
        self.assertEqual((answer.code, self.appended), (ResponseCode.UNEXPECTED_ARGUMENT, []))
        self.assertIn(reason, answer.reason)

    def test_nobody_has_it(self) -> None:
        """The order is in the log; so it is if a member does not answer, and in a group of one."""
        self.assertEqual((self.order().code, self.order().index), (ResponseCode.SUCCESS, 7))
        self.answers["n2"] = fail(DLedgerError(ResponseCode.NETWORK_ERROR))
        self.order()
        self.answers.clear()
        self.order()
        self.assertEqual([channel for channel, _ in self.appended], [STATE_CHANNEL] * 4)
        self.assertEqual(decode_state_entry(self.appended[0][1]), StateEntry(StateWord.BEGIN_ANEW))

    def test_another_member_has_it(self) -> None:
        """Or may have: the group would lose it, unless the operator insists."""
        for answer in (SnapshotResponse(data=b"x", size=1), SnapshotResponse(),
                       SnapshotResponse(code=ResponseCode.UNKNOWN_MEMBER)):
            self.answers["n2"] = succeed(answer)
            self.assertRefused("n2 has the state")
        self.assertEqual(self.order(insists=True).index, 7)

    def test_this_leader_has_it(self) -> None:
        """The same; also when it has come while the others were asked."""
        self.group = GroupFold(GroupState())
        self.assertRefused("this leader has the state")
        self.group = None
        self.answers["n1"] = Deferred()
        answered = self.orders.begin_anew(BeginStateRequest())
        self.group = GroupFold(GroupState())
        self.answers["n1"].callback(LACKS)
        self.assertIs(self.successResultOf(answered).code, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertEqual(self.appended, [])
        self.assertEqual(self.order(insists=True).index, 7)

    def test_others_give_no_orders(self) -> None:
        """A follower names the leader, whatever the operator insists on; a broker's log has no state."""
        self.role = "follower"
        self.assertRefused("n0 does", insists=True)
        orders = StateOrders("g", self, append=None, others=self, status=self.orders._status)
        answer = self.successResultOf(orders.begin_anew(BeginStateRequest()))
        self.assertIs(answer.code, ResponseCode.UNSUPPORTED)

    def test_one_at_a_time(self) -> None:
        """A second one is refused; the next one after the first is taken."""
        self.answers["n1"] = Deferred()
        first = self.orders.begin_anew(BeginStateRequest())
        self.assertIs(self.order().code, ResponseCode.LEADER_PENDING_FULL)
        self.answers["n1"].callback(LACKS)
        self.successResultOf(first)
        self.answers["n1"] = succeed(LACKS)
        self.assertIs(self.order().code, ResponseCode.SUCCESS)
