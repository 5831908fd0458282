# -*- test-case-name: tests.client.test_changes -*-
"""Changes of the members: asked for again, and the answer to the program in the end."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.client.errors import NotLeader, UnknownChange
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import MembershipRequest, MembershipResponse, Response
from tests.client.test_producers import ClientCase


class ChangeTests(ClientCase):
    """C{change_members}."""

    def change(self, *, is_dry: bool = False) -> Deferred[MembershipResponse]:
        """Called, and settled."""
        asked = self.client.change_members("remove", "n2", is_dry=is_dry)
        self.group.run(0.5)
        return asked

    def refuse(self, code: ResponseCode) -> None:
        """The leader answers so from now on."""
        self.group["n0"].answer_change = MembershipResponse(code=code, reason="scripted")

    def test_a_change_is_made_once(self) -> None:
        """At once, or when it is asked again."""
        self.assertEqual(self.successResultOf(self.change()).reason, "done")
        self.refuse(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        asked = self.change()
        self.assertNoResult(asked)
        self.group["n0"].answer_change = None
        self.group.run(3)
        self.assertEqual(self.successResultOf(asked).reason, "done")

    def test_may_be_in_force(self) -> None:
        """It was written once: nothing that comes later makes it certain that it was not made."""
        for code in (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, ResponseCode.TERM_CHANGED):
            self.refuse(code)
            asked = self.change()
            for member in self.group.members.values():
                member.leader_id = None
            self.group.run(15)
            error = self.failureResultOf(asked, DLedgerError).value
            self.assertIsInstance(error, UnknownChange)
            self.group.lead("n0")

    def test_a_lost_answer_is_unknown(self) -> None:
        """The connection ends after the request was sent, and nobody leads then."""
        member = self.group["n0"]

        def lost(request: MembershipRequest) -> Response:
            for one in self.group.members.values():
                one.leader_id = None
            member.lose_connections()
            return MembershipResponse(reason="done")

        answer = member.answer
        member.answer = lambda one: (  # type: ignore[method-assign]
            lost(one) if isinstance(one, MembershipRequest) else answer(one)
        )
        asked = self.change()
        self.group.run(15)
        self.failureResultOf(asked, UnknownChange)

    def test_a_refused_change_is_certain(self) -> None:
        """Refused, only asked for, or never sent: that is certain."""
        self.refuse(ResponseCode.UNEXPECTED_ARGUMENT)
        failure: Failure = self.failureResultOf(self.change(), DLedgerError)
        self.assertIs(type(failure.value), DLedgerError)
        self.refuse(ResponseCode.TERM_CHANGED)
        asked = self.change(is_dry=True)
        for member in self.group.members.values():
            member.leader_id = None
        self.group.run(15)
        self.assertIs(type(self.failureResultOf(asked, DLedgerError).value), NotLeader)
        asked = self.change()
        self.group.run(15)
        self.assertIs(type(self.failureResultOf(asked, DLedgerError).value), NotLeader)
