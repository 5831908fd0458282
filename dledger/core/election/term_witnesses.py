# -*- test-case-name: tests.core.test_term_witnesses -*-
"""
Whether a member that has lost its directory may follow a leader.

It does not know in which terms it voted and acknowledged. Another leader may have been elected with its vote,
in a later term than the one that speaks to it now, and have committed entries with it. A leader that has not
heard of that yet would count this member once more, for other entries at the same indexes.

So before such a voter follows anybody, it asks the other voters for their term, each over its own
connection. With the leader, a quorum without this member must be in the leader's term. Each election of a
later term needs one of these, so none with a vote of the lost directory was won. A voter that is unsure
itself counts only if all others are in that term (rule 7 of L{dledger.core.election.elector}). A leader for
which this process has voted needs no witness: it asked for votes after the directory was lost. So a new group
begins at once.

A voter that is known to be Java's reports no term: it is not missed. If the leader reports a later list of
members than this ledger has, its voters count.

Source: ours; Michael and others, Recovering Shared Objects Without Stable Storage (DISC 2017).
"""

from __future__ import annotations

import attrs

from dledger.core.state.member_state import MemberState
from dledger.values.ledger.membership import Membership, decoded_memberships
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.bounds import TERM_MAX
from protocols.wire.ledger.codes import WIRE_FLAG_UNSURE_VOTE, WIRE_VERSION
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, Response


@attrs.define
class TermWitnesses:
    """
    What the voters have answered in C{_term}; after one confirmation no other is needed in this process.

    Invariant: at most one question is under way to each member. C{_start_term} is the term that this process
    began with.
    """

    member: MemberState
    _is_confirmed: bool = False
    _start_term: int = attrs.field(init=False, default=attrs.Factory(
        lambda self: self.member.term, takes_self=True
    ))
    _term: int = -1
    _sure: set[str] = attrs.Factory(set)
    _unsure: set[str] = attrs.Factory(set)
    _reported: Membership | None = None
    _asked: dict[int, str] = attrs.Factory(dict)

    def confirm(self, leader_id: str) -> bool:
        """Whether this member may follow C{leader_id} in its term; if not, the voters are asked."""
        member = self.member
        if self._is_confirmed or not (member.is_unsure and member.start_term == TERM_MAX):
            return True
        if member.voted_for == leader_id and member.term > self._start_term:
            return True
        if self._term != member.term:
            self._term = member.term
            self._sure.clear()
            self._unsure.clear()
        membership = member.membership
        if self._reported is not None and self._reported.index > membership.index:
            membership = self._reported
        if member.self_id not in membership.voters:
            return True
        silent = {voter_id for voter_id in membership.voters if member.peers.is_java(voter_id)}
        counted = (self._sure | silent | {leader_id}) - {member.self_id}
        self._is_confirmed = membership.is_quorum(counted) or membership.is_all(
            counted | self._unsure | {member.self_id}
        )
        if not self._is_confirmed:
            wanted = membership.voters.keys() - self._sure - silent
            for peer_id in sorted((wanted | {leader_id}) - {member.self_id}):  # (Its list may be later.)
                self._ask(peer_id)
        return self._is_confirmed

    def _ask(self, peer_id: str) -> None:
        member = self.member
        if peer_id not in self._asked.values():
            self._asked[member.out.send(peer_id, MetadataRequest(
                group=member.config.group, remote_id=peer_id, local_id=member.self_id,
                wire_version=WIRE_VERSION,
            ), self)] = peer_id

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """A member answered: it counts if it is in this member's term."""
        if self._asked.pop(request_id, None) != peer_id:
            return
        if not isinstance(response, MetadataResponse) or response.code is not ResponseCode.SUCCESS:
            return
        if response.term == self.member.term == self._term:
            is_unsure = response.wire_version & WIRE_FLAG_UNSURE_VOTE
            (self._unsure if is_unsure else self._sure).add(peer_id)
            if response.leader_id == peer_id and (lists := decoded_memberships(response.configuration)):
                self._reported = lists[-1]

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """No answer; when the leader speaks again, this member asks again."""
        self._asked.pop(request_id, None)
