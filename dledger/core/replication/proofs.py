# -*- test-case-name: tests.core.test_proofs -*-
"""
Whether the leader lacks an entry because its ledger begins after it.

A TRUNCATE that makes a follower drop committed entries is right only then. The follower does not take the
word of a push for it: it asks the leader over its own connection to the leader's address.

A member of ours is asked METADATA, which names the begin and the end of its ledger. A Java leader is asked
GET of the entry: 419 says that the entry is below its begin, and nothing is changed by the question.

Source: ours; DLedgerServer.handleGet, DLedgerMmapFileStore.indexCheck for Java's answer.
"""

from __future__ import annotations

import attrs

from dledger.core.state.member_state import MemberState
from dledger.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.bounds import INDEX_MAX
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.memberships import decode_told
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
    What one leader said in one term.

    @ivar lowest, highest: bounds of the begin of its ledger.
    @ivar end_index: the end of its ledger at that time, or a higher index.
    @ivar memberships: those of its configuration entries.
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
    The last answer, and the question under way.

    Invariant: at most one question is under way; an answer counts for the leader and the term that were
    current when it was asked.
    """

    member: MemberState
    _said: LeaderBegins | None = None
    _asked_id: int | None = None
    _asked: tuple[str, int, int] = ("", -1, -1)

    def lacks(self, index: int) -> bool | None:
        """Whether the current leader lacks the entry at C{index}; None if it has not said so."""
        member, said = self.member, self._said
        if said is None or (said.leader_id, said.term) != (member.leader_id, member.term):
            return None
        if index < said.lowest:
            return True
        return False if index >= said.highest else None

    def reaches(self, index: int) -> bool:
        """Whether the current leader may hold an entry at C{index}, by its last answer."""
        return self._said is not None and index <= self._said.end_index

    def told(self, index: int) -> tuple[Membership, ...] | None:
        """
        The memberships of a leader whose ledger begins at C{index}; None if it has some, and may begin
        elsewhere: then one of them may be missing.
        """
        assert self._said is not None
        memberships = self._said.memberships
        return memberships if not memberships or index == self._said.lowest else None

    def ask(self, index: int) -> None:
        """Ask the leader whether it lacks the entry at C{index}."""
        member = self.member
        leader_id = member.leader_id
        if self._asked_id is not None or leader_id is None:
            return
        group, self_id = member.config.group, member.self_id
        request: MetadataRequest | GetRequest
        if member.wire_versions.get(leader_id, 0) >= 1:
            request = MetadataRequest(
                group=group, remote_id=leader_id, local_id=self_id, wire_version=WIRE_VERSION
            )
        else:
            request = GetRequest(group=group, remote_id=leader_id, local_id=self_id, begin_index=index)
        self._asked = (leader_id, member.term, index)
        self._asked_id = member.out.send(leader_id, request, self)

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """The leader answered; the word of another member is no proof."""
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
                    memberships=_memberships(response.configuration),
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


def _memberships(text: str) -> tuple[Membership, ...]:
    try:
        return tuple(
            Membership(index=one.index, term=one.term, **one.members._asdict()) for one in decode_told(text)
        )
    except ValueError:
        return ()  # of a later version; the entry that it sends is refused with a reason
