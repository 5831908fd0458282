# -*- test-case-name: tests.core.test_elector -*-
"""
Whether a member gives its vote to a candidate: by its members, its log, its term, and the votes that it gave.

A judge changes nothing, and knows no time: the elector gives the vote.

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
        member = self.member
        if request.ledger_end_term < member.ledger_end_term:
            return VoteResult.REJECT_EXPIRED_LEDGER_TERM
        if request.ledger_end_term == member.ledger_end_term and (
            request.ledger_end_index < member.ledger_end_index
        ):
            return VoteResult.REJECT_SMALL_LEDGER_END_INDEX
        return VoteResult.ACCEPT

    def vote(self, request: VoteRequest) -> VoteResult:
        """Judge a vote that binds."""
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
            # Its log looks shorter than the entries it once acknowledged: its vote could elect a leader
            # that lacks a committed entry. No candidate counts UNKNOWN.
            return VoteResult.UNKNOWN
        return VoteResult.ACCEPT

    def pre_vote(self, request: VoteRequest, *, is_leader_heard: bool) -> VoteResult:
        """Judge a question. @param is_leader_heard: the leader was heard within the patience."""
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
