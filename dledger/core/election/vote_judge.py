# -*- test-case-name: tests.core.test_elector -*-
"""
Decides whether a member may vote for a candidate.

It looks at the member's list of members, its log, its term, its leader, and its vote in this term. It changes
nothing, because the elector gives the vote; and it knows no time.

Source: DLedgerLeaderElector.handleVote; Raft 5.4.1, 9.6.
"""

from __future__ import annotations

import attrs

from dledger.core.state.member_state import MemberState
from protocols.wire.ledger.codes import VoteResult
from protocols.wire.ledger.messages import VoteRequest


@attrs.define
class VoteJudge:
    """
    Judges the requests for a vote that one member gets.

    @ivar member: its state, which is read and never changed here.
    """

    member: MemberState

    def _by_log(self, request: VoteRequest) -> VoteResult:
        """Reject a candidate whose log ends before this member's: in an earlier term, or at a lower index."""
        member = self.member
        if request.ledger_end_term < member.ledger_end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.ledger_end_term == member.ledger_end_term and (
            request.ledger_end_index < member.ledger_end_index
        ):
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        return VoteResult.ACCEPT

    def vote(self, request: VoteRequest) -> VoteResult:
        """Judge a request for a vote that binds: a member gives one such vote in each term."""
        member = self.member
        candidate = request.leader_id
        if not member.knows(candidate):
            mine = candidate == member.self_id
            return VoteResult.REJECT_UNEXPECTED_LEADER if mine else VoteResult.REJECT_UNKNOWN_LEADER
        by_log = self._by_log(request)
        if by_log is not VoteResult.ACCEPT:
            return by_log
        if request.term < member.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if member.leader_id is not None and member.leader_id != candidate:
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if member.voted_for is not None and member.voted_for != candidate:
            return VoteResult.REJECT_ALREADY_VOTED
        if request.term < member.ledger_end_term:
            return VoteResult.REJECT_TERM_SMALL_THAN_LEDGER
        if member.repair_end_index >= 0:
            # This log may lack entries that this member acknowledged before it was damaged, so its vote could
            # elect a leader that lacks a committed entry. A candidate does not count UNKNOWN as a vote here,
            # because the answer has no WIRE_FLAG_UNSURE_VOTE.
            return VoteResult.UNKNOWN
        return VoteResult.ACCEPT

    def pre_vote(self, request: VoteRequest, *, is_leader_heard: bool) -> VoteResult:
        """
        Judge a pre-vote: the question of a candidate whether it would get the vote.

        @param request: its term is the one in which the candidate wants to be elected.
        @param is_leader_heard: whether the leader was heard within the patience.
        """
        member = self.member
        if not member.knows(request.leader_id):
            return VoteResult.REJECT_UNKNOWN_LEADER
        if request.term <= member.term:
            return VoteResult.REJECT_EXPIRED_VOTE_TERM
        if member.leader_id is not None and (member.is_leader or is_leader_heard):
            return VoteResult.REJECT_ALREADY_HAS_LEADER
        if member.repair_end_index >= 0:
            return VoteResult.UNKNOWN
        return self._by_log(request)
