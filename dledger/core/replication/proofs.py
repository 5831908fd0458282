# -*- test-case-name: tests.core.test_proofs -*-
"""
Asks the leader whether it lacks an entry because its ledger begins after this entry.

Only then may a TRUNCATE make a follower drop committed entries. The push itself is no proof of it, because
another program may have sent it. So the follower asks the leader, over its own connection to the address of
the leader.

A leader of ours is asked METADATA, whose answer has the begin and the end of its ledger. A Java leader is
asked GET of the entry: the answer 419 means that the entry is before the begin. Neither question changes
anything at the leader.

Source: ours; DLedgerServer.handleGet, DLedgerMmapFileStore.indexCheck for Java's answer.
"""

from __future__ import annotations

import attrs

from dledger.core.state.member_state import MemberState
from dledger.values.ledger.membership import Membership, decoded_memberships
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.bounds import INDEX_MAX
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.messages import (
    GetRequest,
    GetResponse,
    MetadataRequest,
    MetadataResponse,
    Response,
)


@attrs.frozen(kw_only=True)
class LeaderBegins:
    """
    The begin of one leader's ledger, as it answered in one term.

    @ivar lowest, highest: the begin is an index from C{lowest} to C{highest}. An answer to METADATA gives the
        begin itself, an answer to GET one bound of it.
    @ivar end_index: the end of its ledger at that time, or a higher index.
    @ivar memberships: the one in force at the begin of its ledger, and the last one; empty if it reported
        none.
    """

    leader_id: str
    term: int
    lowest: int
    highest: int
    end_index: int
    memberships: tuple[Membership, ...] = ()


@attrs.define
class BeginProof:
    """
    The question that is under way, and the last answer.

    Invariant: at most one question is under way; an answer counts for the leader and the term that were
    current when it was asked.
    """

    member: MemberState
    _said: LeaderBegins | None = None
    _asked_id: int | None = None
    _asked: tuple[str, int, int] = ("", -1, -1)

    def lacks(self, index: int) -> bool | None:
        """
        Whether the ledger of the current leader begins after C{index}; None if no answer of this leader in
        this term decides it.
        """
        member, said = self.member, self._said
        if said is None or (said.leader_id, said.term) != (member.leader_id, member.term):
            return None
        if index < said.lowest:
            return True
        return False if index >= said.highest else None

    def reaches(self, index: int) -> bool:
        """Whether the leader that answered last may hold an entry at C{index}."""
        return self._said is not None and index <= self._said.end_index

    def reported(self, index: int) -> tuple[Membership, ...] | None:
        """
        The memberships that the leader reported, for a ledger that shall begin at C{index}. There is an
        answer (L{lacks} is not None).

        @return: None if the leader has reported memberships, and its ledger does not begin at C{index}. A
            membership from before its begin may be missing then.
        """
        assert self._said is not None
        memberships = self._said.memberships
        return memberships if not memberships or index == self._said.lowest else None

    def ask(self, index: int) -> None:
        """Ask the leader whether it lacks the entry at C{index}, unless a question is under way."""
        member = self.member
        leader_id = member.leader_id
        if self._asked_id is not None or leader_id is None:
            return
        group, self_id = member.config.group, member.self_id
        request: MetadataRequest | GetRequest
        if member.peers.is_ours(leader_id):
            request = MetadataRequest(
                group=group, remote_id=leader_id, local_id=self_id, wire_version=WIRE_VERSION
            )
        else:
            request = GetRequest(group=group, remote_id=leader_id, local_id=self_id, begin_index=index)
        self._asked = (leader_id, member.term, index)
        self._asked_id = member.out.send(leader_id, request, self)

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """
        Take the answer to the last question. One to METADATA counts only if the member that was asked still
        leads in the same term.
        """
        if request_id != self._asked_id:
            return
        self._asked_id = None
        leader_id, term, index = self._asked
        if isinstance(response, MetadataResponse):
            if response.code is ResponseCode.SUCCESS and response.leader_id == leader_id and (
                response.term == term and 0 <= response.begin_index <= response.end_index
            ):
                self._said = LeaderBegins(
                    leader_id=leader_id, term=term, lowest=response.begin_index,
                    highest=response.begin_index, end_index=response.end_index,
                    memberships=decoded_memberships(response.configuration),
                )
        elif isinstance(response, GetResponse):
            if response.code is ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
                self._said = LeaderBegins(
                    leader_id=leader_id, term=term, lowest=index + 1, highest=INDEX_MAX, end_index=INDEX_MAX
                )
            elif response.code is ResponseCode.SUCCESS:
                self._said = LeaderBegins(
                    leader_id=leader_id, term=term, lowest=0, highest=index, end_index=INDEX_MAX
                )

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """No answer; the next TRUNCATE asks again."""
        if request_id == self._asked_id:
            self._asked_id = None
