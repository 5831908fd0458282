# -*- test-case-name: tests.core.test_elector,tests.core.test_campaign -*-
"""
Elections: patience, pre-votes, votes, and their answers::

    FOLLOWER --patience over--> asking (pre-vote) --quorum--> CANDIDATE --quorum--> LEADER
        ^                            |                            |
        +------ a leader is heard, a higher term, a transfer -----+

Rule 1: the term is raised and made durable, with the own vote, before votes are requested; a member
votes once in a term.
Rule 2: a follower of a term's leader has voted in that term.
Rule 3: before the term is raised, the peers are asked whether they would vote. A pre-vote binds no peer.
Rule 4: a follower's patience (L{dledger.core.election.voter}) is its leader's.
Rule 5: what is there for Java's members alone is in L{dledger.core.election.java_elections}.
Rule 6: what a member answers to candidates is in L{dledger.core.election.voter}.
Rule 7: the vote of a member that may have lost acknowledged entries (C{is_unsure}), its own as a candidate
included, counts only if every member gives its vote.
Rule 8: whom a member follows that has lost its directory is in L{dledger.core.election.term_witnesses}.

Knows time as C{now_ms} and chance as the random source it was given.

Source: DLedgerLeaderElector.java; Raft 5.2, 9.6, dissertation 4.2.3; differs: docs/divergence.md W4, W7, W19.
"""

from __future__ import annotations

import random
from enum import Enum
from typing import Protocol

import attrs

from dledger.core.election.java_elections import JAVA_ROUND_MS, PROBE_TERM, JavaElections
from dledger.core.election.term_witnesses import TermWitnesses
from dledger.core.election.voter import LONGER_LOG, LeaderPatience, Voter
from dledger.core.state.member_state import MemberState
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.bounds import TERM_MAX
from protocols.wire.ledger.codes import (
    WIRE_FLAG_DISK_FULL,
    WIRE_FLAG_UNSURE_VOTE,
    WIRE_VERSION,
    VoteResult,
)
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    MessageFields,
    MetadataRequest,
    MetadataResponse,
    Response,
    VoteRequest,
    VoteResponse,
)


class Campaign(Enum):
    """The phase of an election."""

    NONE = "none"
    ASKING = "asking"
    VOTING = "voting"


class RoleChanges(Protocol):
    """Carries role changes out: the replica."""

    def become_leader(self) -> None:
        """A quorum voted for this member."""

    def become_follower(self, leader_id: str | None) -> None:
        """Follow C{leader_id} in the current term, or nobody yet."""

    def become_candidate(self) -> None:
        """The term was raised and the own vote given."""

    def take_leadership_ended(self, code: ResponseCode) -> None:
        """An election requested by the old leader ended."""


@attrs.define
class LeaderElector:
    """
    Invariant: C{_outstanding} and C{_granted} belong to the round under way; a round is known by the ids of
    its requests.

    @ivar voter: answers the candidates that ask this member.
    @ivar deadline_ms: when the member asks for votes, or for votes again, if nothing happens before.
    """

    member: MemberState
    rng: random.Random
    roles: RoleChanges
    campaign: Campaign = Campaign.NONE
    is_transfer: bool = False
    deadline_ms: int = 0
    patience: LeaderPatience = attrs.Factory(lambda self: LeaderPatience(self.member), takes_self=True)
    _last_tick_ms: int = -1
    _outstanding: dict[int, str] = attrs.Factory(dict)
    _granted: set[str] = attrs.Factory(set)
    _unsure: set[str] = attrs.Factory(set)
    _not_ready: set[str] = attrs.Factory(set)
    _is_split: bool = False
    _has_yielded: bool = False
    _witnesses: TermWitnesses = attrs.Factory(lambda self: TermWitnesses(self.member), takes_self=True)
    _java: JavaElections = attrs.Factory(lambda self: JavaElections(self.member), takes_self=True)
    voter: Voter = attrs.Factory(
        lambda self: Voter(self.member, self.patience, self._java, self._wait_for_round), takes_self=True
    )

    # -- patience ---------------------------------------------------------------------------

    def heard_leader(self, interval_ms: int | None = None) -> None:
        """
        The leader was heard: restart the patience.

        @param interval_ms: the interval that a heartbeat advertises, 0 for none; None for a push, which has
            none.
        """
        self._has_yielded = False
        self.deadline_ms = self.patience.heard(interval_ms)
        if self.campaign is Campaign.ASKING:
            self._end_round()

    def peer_disconnected(self, peer_id: str) -> None:
        """
        A voter's connection is gone: its process may have ended, and the next one may have lost its
        directory. That one may follow a leader of an earlier term (rule 8) before this round ends, so its
        vote is void, also one that is still on its way.

        The leader's connection is gone: it has a beat and a half to come back on another one. Only with
        pre-votes (a broken connection alone must not depose a leader), and not for a Java leader, which opens
        its next connection with its next heartbeat.
        """
        self._granted.discard(peer_id)
        self._unsure.discard(peer_id)
        for request_id in [one for one, asked_id in self._outstanding.items() if asked_id == peer_id]:
            self.on_request_failed(peer_id, request_id, "disconnected")
        member, config = self.member, self.member.config
        interval_ms = self.patience.interval_ms()
        if peer_id != member.leader_id or not config.pre_vote or interval_ms == 0:
            return
        self.patience.end()
        apart_ms = self.rng.randint(0, config.max_vote_interval_ms - config.min_vote_interval_ms)
        self.deadline_ms = min(self.deadline_ms, member.out.now_ms + interval_ms * 3 // 2 + apart_ms)

    def start(self) -> None:
        """The member starts: listen for a leader before asking for votes."""
        self.patience.jitter = self.rng.random()
        if not self.member.voter_ids:
            self.deadline_ms = self.member.out.now_ms
        else:
            self._wait_for_round(self.member.config.heart_beat_time_interval_ms * 2)

    def lost_leader(self, *, had_leader: bool = True) -> None:
        """
        The role or the leader is gone (stepped down, higher term): wait for one random time. A member that
        waits already (not C{had_leader}) waits no longer: one that cannot win must not hold it up.
        """
        self.patience.leader_lost(self.rng.random())
        known_ms = self.deadline_ms
        self._end_round()
        self._wait_for_round(self.patience.allowed_ms() // 2)
        if not had_leader:
            self.deadline_ms = min(self.deadline_ms, known_ms)

    def _wait_for_round(self, at_least_ms: int) -> None:
        config = self.member.config
        wait = self.rng.randint(config.min_vote_interval_ms, config.max_vote_interval_ms)
        self.deadline_ms = self.member.out.now_ms + at_least_ms + wait

    def tick(self) -> None:
        """Time has passed."""
        now_ms = self.member.out.now_ms
        stalled_ms = now_ms - self._last_tick_ms if self._last_tick_ms >= 0 else 0
        self._last_tick_ms = now_ms
        if self.member.is_leader:
            return
        config = self.member.config
        if stalled_ms > config.heart_beat_time_interval_ms + 4 * config.tick_ms:
            # This member stood still (stopped process, long pause): the leader's messages are unread.
            self.deadline_ms = max(self.deadline_ms, now_ms + config.heart_beat_time_interval_ms)
        if self._not_ready and self.campaign is Campaign.VOTING:
            again, self._not_ready = self._not_ready, set()
            for peer_id in sorted(again):
                self._ask(peer_id)
        if now_ms >= self.deadline_ms:
            self._patience_over()

    def _patience_over(self) -> None:
        member = self.member
        if not member.may_lead:  # it only stops naming a leader
            if member.leader_id is not None:
                self.roles.become_follower(None)
            if member.next_term > TERM_MAX:
                member.out.report("terms-exhausted", term=member.term)
            self._wait_for_round(self.patience.allowed_ms())
            return
        if member.stands_last and member.voter_ids and not self._has_yielded:
            # Another member shall lead. If none comes forward in another patience, all may be as this one.
            self._has_yielded = True
            if member.leader_id is not None:
                self.roles.become_follower(None)
            self._wait_for_round(self.patience.allowed_ms())
            return
        if (member.config.pre_vote or member.is_unsure) and member.voter_ids:
            self._ask_first()
        else:
            self._campaign(transfer=False)

    # -- asking, voting ---------------------------------------------------------------------

    def _ask_first(self) -> None:
        if self.member.leader_id is not None:
            self.roles.become_follower(None)
        self._begin_round(Campaign.ASKING)
        for peer_id in self.member.voter_ids:
            self._ask(peer_id)

    def _campaign(self, *, transfer: bool) -> None:
        member = self.member
        member.enter_term(member.next_term, voted_for=member.self_id)
        self.roles.become_candidate()
        self._begin_round(Campaign.VOTING)
        self.is_transfer = transfer
        if not self._won():
            for peer_id in member.voter_ids:
                self._ask(peer_id)

    def campaign_for_transfer(self) -> None:
        """The leader asked this member to take over: no pre-vote, no wait."""
        assert self.member.may_lead
        self._campaign(transfer=True)

    def _begin_round(self, campaign: Campaign) -> None:
        self._end_round()
        self.campaign = campaign
        (self._unsure if self.member.is_unsure else self._granted).add(self.member.self_id)
        config = self.member.config
        # Time for a slow fsync of a voter, then a random wait that no two candidates share.
        self._wait_for_round(config.heart_beat_time_interval_ms * config.max_heart_beat_leak // 2)

    def _end_round(self) -> None:
        self.campaign = Campaign.NONE
        self.is_transfer = False
        self._outstanding.clear()
        self._granted = set()
        self._unsure = set()
        self._not_ready = set()
        self._is_split = False

    def _ask(self, peer_id: str) -> None:
        if self.campaign is Campaign.VOTING:
            self._send_vote(peer_id, self.member.term)
        elif not self.member.peers.is_ours(peer_id):
            member = self.member
            self._send(peer_id, MetadataRequest(
                group=member.config.group, remote_id=peer_id, local_id=member.self_id,
                wire_version=WIRE_VERSION,
            ))
        else:
            self._send_vote(peer_id, self.member.term + 1, pre_vote=True)

    def _send_vote(self, peer_id: str, term: int, *, pre_vote: bool = False) -> None:
        member = self.member
        base: MessageFields = {**member.base_fields(peer_id), "leader_id": member.self_id, "term": term}
        self._send(peer_id, VoteRequest(
            **base,
            ledger_end_index=member.ledger_end_index, ledger_end_term=member.ledger_end_term,
            pre_vote=pre_vote,
            transfer=self.is_transfer,
        ))

    def _send(self, peer_id: str, request: VoteRequest | MetadataRequest) -> None:
        self._outstanding[self.member.out.send(peer_id, request, self)] = peer_id

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """A peer's answer to a vote, pre-vote or METADATA."""
        if self._outstanding.pop(request_id, None) is None:
            return
        member = self.member
        if isinstance(response, MetadataResponse):
            if response.wire_version >= 1:
                self._ask(peer_id)
            elif response.code == ResponseCode.SUCCESS and response.leader_id in (None, member.self_id):
                # It knows no leader. Would it vote for our log?
                self._send_vote(peer_id, PROBE_TERM)
        elif isinstance(response, VoteResponse):
            result = response.vote_result
            member.peers.heard_vote(peer_id, result)
            is_probe = self.campaign is Campaign.ASKING and not self.member.peers.is_ours(peer_id)
            if result is VoteResult.ACCEPT or (is_probe and result is VoteResult.REJECT_EXPIRED_VOTE_TERM):
                self._granted.add(peer_id)
            elif result is VoteResult.UNKNOWN and response.wire_version & WIRE_FLAG_UNSURE_VOTE:
                self._unsure.add(peer_id)
            elif result is VoteResult.REJECT_TERM_NOT_READY or (
                # The leader's announcement of this candidate is still under way to that peer.
                result is VoteResult.REJECT_ALREADY_HAS_LEADER and self.is_transfer
            ) or (
                # That peer's own connection to this member is still being made: it cannot vouch for it.
                response.code == ResponseCode.ILLEGAL_MEMBER_STATE and member.peers.is_ours(peer_id)
            ):
                self._not_ready.add(peer_id)
            elif result is VoteResult.REJECT_ALREADY_VOTED and member.peers.is_ours(peer_id):
                self._is_split = True
            elif result in LONGER_LOG and not self.member.peers.is_ours(peer_id):
                # Java compares logs before terms and keeps its term: each term that we raise is one more
                # for its own candidacy to catch up with. Its log can win and ours cannot: give it the time.
                self._wait_for_round(JAVA_ROUND_MS)
        if not self._won():
            self._look_for_split()

    def _look_for_split(self) -> None:
        """
        All voters have answered, and one of them has voted for another candidate. If that one has won, its
        heartbeat comes first. If nobody has, no vote is still being made durable: a random wait is enough.
        """
        if self._is_split and not self._outstanding:
            self._is_split = False
            self._wait_for_round(0)

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """No answer: the deadline or the other answers end the round."""
        if self._outstanding.pop(request_id, None) is not None:
            self._look_for_split()

    def _won(self) -> bool:
        # A quorum of sure members holds every committed entry. So do all members together, as far as any disk
        # still has it: then the candidate's log is the longest.
        is_unanimous = self.member.membership.is_all(self._granted | self._unsure)
        if not (is_unanimous or self.member.membership.is_quorum(self._granted)):
            return False
        if self.campaign is Campaign.ASKING:
            if self.member.may_lead:  # it may have changed during the round
                self._campaign(transfer=False)
        elif self.campaign is Campaign.VOTING:
            transfer = self.is_transfer
            self._end_round()
            self.roles.become_leader()
            if transfer:
                self.roles.take_leadership_ended(ResponseCode.SUCCESS)
        return True

    # -- following --------------------------------------------------------------------------

    def on_heart_beat(self, token: int, request: HeartBeatRequest) -> None:
        """A heartbeat of a leader. The term gate has adopted a higher term."""
        member = self.member
        code = self.accept_leader(request.leader_id, request.term, request.heart_beat_interval_ms)
        if code is ResponseCode.EXPIRED_TERM and request.wire_version < 1:
            self._java.heard_stray(request, self)
        flags = WIRE_FLAG_DISK_FULL if member.is_full else 0
        flags |= member.peers.pace.flags(member.out.now_ms) | member.peers.machine.flags
        member.out.reply(token, HeartBeatResponse(
            code=code, group=request.group, term=member.term, wire_version=WIRE_VERSION | flags,
            clock_ms=member.clock_ms,
        ))

    def accept_leader(
        self, leader_id: str | None, term: int, interval_ms: int | None = None
    ) -> ResponseCode:
        """
        Whether C{leader_id} is accepted as leader of C{term}; if so, this member follows it from now on, and
        was heard from it now.

        @param interval_ms: see L{heard_leader}.
        @return: SUCCESS, or UNKNOWN_MEMBER, UNEXPECTED_MEMBER, EXPIRED_TERM, INCONSISTENT_LEADER,
            TERM_NOT_READY.
        """
        member = self.member
        if not member.knows(leader_id):
            mine = leader_id == member.self_id
            return ResponseCode.UNEXPECTED_MEMBER if mine else ResponseCode.UNKNOWN_MEMBER
        if term < member.term:
            return ResponseCode.EXPIRED_TERM
        assert term == member.term, "the term gate stands first"
        if member.leader_id is None:
            assert leader_id is not None
            if not self._witnesses.confirm(leader_id):
                return ResponseCode.TERM_NOT_READY
            if member.voted_for is None:
                member.vote(leader_id)  # rule 2: no other candidate of this term gets this vote
            self.roles.become_follower(leader_id)
        elif member.leader_id != leader_id:
            member.out.report("two-leaders", term=term, known=member.leader_id, other=leader_id)
            return ResponseCode.INCONSISTENT_LEADER
        self.heard_leader(interval_ms)
        return ResponseCode.SUCCESS

    def followed(self) -> None:
        """A leader was found: the round under way is void."""
        self._java.stray_ended()
        self.voter.leader_found()
        self.patience.jitter = self.rng.random()
        self._end_round()
        self.heard_leader()

    def led(self) -> None:
        """This member leads: no round is under way, and patience is counted in its own heartbeats."""
        self.patience.led()
        self._end_round()
