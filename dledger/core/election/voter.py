# -*- test-case-name: tests.core.test_elector,tests.core.test_stickiness,tests.core.test_successor -*-
"""
What a member answers to the candidates that ask for its vote.

Rule 1: a member that leads, or hears its leader, refuses votes without adopting their term, unless the
leader announced that candidate or is it. A candidate that is left behind in a higher term refuses the
leader's heartbeats; the leader adopts the term of that answer, and the next election ends in step.
Rule 2: a member that must never lead still becomes a candidate if no leader is known and a member that lacks
its entries keeps asking for votes: it takes no appends, sends that one its entries, and hands over to it.

Source: DLedgerLeaderElector.java (handleVote); Raft 5.2, 5.4.1; differs: docs/divergence.md W4, W7,
W19.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.core.election.java_elections import JAVA_ROUND_MS, JavaElections
from dledger.core.election.vote_judge import VoteJudge
from dledger.core.state.member_state import MemberState
from dledger.values.ledger.config import JAVA_HEART_BEAT_TIME_INTERVAL_MS, JAVA_MAX_HEART_BEAT_LEAK
from protocols.wire.ledger.codes import WIRE_FLAG_UNSURE_VOTE, WIRE_VERSION, VoteResult
from protocols.wire.ledger.messages import VoteRequest, VoteResponse

#: A follower believes an advertised interval within these bounds, milliseconds, or up to and down to its own
#: interval: a false one must not make it patient for minutes, nor impatient with its leader.
HEART_BEAT_INTERVAL_MIN_MS = 100
HEART_BEAT_INTERVAL_MAX_MS = JAVA_HEART_BEAT_TIME_INTERVAL_MS


@attrs.define
class LeaderPatience:
    """
    How long a leader may be silent.

    Rule 1: the patience with a leader is several of its own intervals, which its heartbeats advertise.
    Rule 2: a leader whose heartbeats advertise none is a Java one and gets Java's patience, which is long.
    Rule 3: a leader that has sent no heartbeat yet, only pushes, gets this member's own intervals if it
    speaks our wire: it may die before its first heartbeat, and Java's patience would cost the group seconds.

    Source: DLedgerLeaderElector.java (maintainAsFollower); differs: docs/divergence.md W4.

    @ivar heard_ms: when the leader was last heard.
    @ivar jitter: what this member adds to its patience, 0 to 1 for nothing to half of it; another number for
        each leader, so that no two members ask for votes at once.
    """

    member: MemberState
    heard_ms: int = 0
    jitter: float = 0.0
    _advertised_ms: int | None = None

    def interval_ms(self) -> int:
        """Between heartbeats of the leader, or of this member if it knows no leader; 0 for a Java leader."""
        member, advertised_ms = self.member, self._advertised_ms
        if member.leader_id is None:
            return advertised_ms or member.config.heart_beat_time_interval_ms
        if advertised_ms is None:
            is_java = member.peers.is_java(member.leader_id)
            return 0 if is_java else member.config.heart_beat_time_interval_ms
        return advertised_ms

    def allowed_ms(self) -> int:
        """Allowed silence, without jitter, milliseconds."""
        interval_ms = self._advertised_ms or self.interval_ms()
        if interval_ms == 0:
            return JAVA_HEART_BEAT_TIME_INTERVAL_MS * JAVA_MAX_HEART_BEAT_LEAK
        return interval_ms * self.member.config.max_heart_beat_leak

    def silent_ms(self) -> int:
        """For how long the leader has not been heard, milliseconds."""
        return self.member.out.now_ms - self.heard_ms

    def is_over(self) -> bool:
        """Whether the leader was silent for longer than is allowed, jitter apart."""
        return self.silent_ms() >= self.allowed_ms()

    def heard(self, advertised_ms: int | None) -> int:
        """
        The leader was heard.

        @param advertised_ms: the interval that a heartbeat advertises, 0 or less for none; None for a push.
        @return: until when it may be silent now.
        """
        if advertised_ms is not None:
            self._advertised_ms = self._believed_ms(advertised_ms) if advertised_ms > 0 else 0
        self.heard_ms = self.member.out.now_ms
        if self._advertised_ms:
            allowed_ms = self._advertised_ms * self.member.config.max_heart_beat_leak
        else:
            allowed_ms = self.allowed_ms()
        return self.heard_ms + allowed_ms + int(self.jitter * allowed_ms / 2)

    def _believed_ms(self, interval_ms: int) -> int:
        own_ms = self.member.config.heart_beat_time_interval_ms
        lowest, highest = min(own_ms, HEART_BEAT_INTERVAL_MIN_MS), max(own_ms, HEART_BEAT_INTERVAL_MAX_MS)
        return max(lowest, min(interval_ms, highest))

    def end(self) -> None:
        """The leader's connection broke: its silence counts as too long from now on, until it is heard."""
        self.heard_ms = self.member.out.now_ms - self.allowed_ms()

    def leader_lost(self, jitter: float) -> None:
        """No leader is known: nothing is known of the next one's heartbeats."""
        self._advertised_ms = None
        self.jitter = jitter

    def led(self) -> None:
        """This member leads: the patience is counted in its own heartbeats."""
        self._advertised_ms = self.member.config.heart_beat_time_interval_ms


#: A member that must never lead does so for a candidate that it refuses for its shorter log, and refused so
#: before, longer ago than its own patience: another member that has the entries would have won by then.
#: (Refusals further apart than this, milliseconds, do not belong together.)
WARD_MEMORY_MS = 30_000

#: A voter's log is longer than the candidate's.
LONGER_LOG = (VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX)

#: A candidate whose log is as good as ours is refused for its term alone.
_BEHIND_IN_TERM = (VoteResult.REJECT_EXPIRED_VOTE_TERM, VoteResult.REJECT_ALREADY_VOTED)


@attrs.define
class Voter:
    """
    Answers the requests for a vote.

    Invariant: C{_behind} has the times of the first and the last refusal of a shorter log, since no leader is
    known; C{_asked_ms} when each candidate last made this member adopt its term.
    """

    member: MemberState
    patience: LeaderPatience
    _java: JavaElections
    _wait: Callable[[int], None]
    _judge: VoteJudge = attrs.Factory(lambda self: VoteJudge(self.member), takes_self=True)
    _behind: tuple[int, int] | None = None
    _expected: tuple[str, int, int] | None = None
    _asked_ms: dict[str, int] = attrs.Factory(dict)

    def leader_found(self) -> None:
        """A leader is known: the candidates before it, which lacked entries, do not count."""
        self._behind = None

    def expect(self, candidate_id: str | None, *, until_ms: int = 0) -> None:
        """
        The leader hands over to C{candidate_id} (None: to no member): its votes for a later term than the
        present one count until C{until_ms}, although this leader is heard.
        """
        self._expected = None if candidate_id is None else (candidate_id, self.member.term, until_ms)

    def turns_away(self, token: int, request: VoteRequest) -> bool:
        """Refuse a vote whose term must not be adopted. @return: whether it was refused."""
        if request.pre_vote or request.term <= self.member.term or request.leader_id is None:
            return False
        candidate_id, now_ms = request.leader_id, self.member.out.now_ms
        result = VoteResult.REJECT_ALREADY_HAS_LEADER
        if not self._is_kept_from(candidate_id):
            spacing_ms = self.member.config.min_vote_interval_ms
            if now_ms - self._asked_ms.get(candidate_id, -spacing_ms) >= spacing_ms:
                self._asked_ms[candidate_id] = now_ms
                return False
            # No candidate needs another term so soon. It repeats this one a tick later.
            result = VoteResult.REJECT_TERM_NOT_READY
        self._answer_vote(token, request, result)
        return True

    def _is_kept_from(self, candidate_id: str) -> bool:
        """Whether the leader that is heard keeps C{candidate_id} from raising the term."""
        member, now_ms = self.member, self.member.out.now_ms
        if member.leader_id in (None, candidate_id):
            return False
        if self._expected is not None:
            expected_id, term, until_ms = self._expected
            if expected_id == candidate_id and term == member.term and now_ms < until_ms:
                return False
        if member.is_leader:
            return True
        if self.patience.interval_ms():
            return not self.patience.is_over()
        return self._java.spares_leader(self.patience.silent_ms())

    def on_vote(self, token: int, request: VoteRequest) -> None:
        """A candidate asks for a vote. The term gate has adopted a higher term, except that of a pre-vote."""
        member = self.member
        if request.pre_vote:
            result = self._judge.pre_vote(request, is_leader_heard=not self.patience.is_over())
        else:
            result = self._judge.vote(request)
        if result is VoteResult.ACCEPT and not request.pre_vote:
            assert request.leader_id is not None
            member.vote(request.leader_id)
            if not member.is_unsure or request.wire_version >= 1:  # else it cannot win with such a vote
                self._wait(self.patience.allowed_ms())
        elif result in LONGER_LOG:
            self._refused_its_log(request.leader_id)
        elif result in _BEHIND_IN_TERM and self._java.is_better(request):
            # It comes back with our term, then with the next one, and can win that. Raising the term at
            # our quicker pace would keep it behind for ever.
            self._wait(JAVA_ROUND_MS)
        self._answer_vote(token, request, result)

    def _refused_its_log(self, candidate_id: str | None) -> None:
        """A candidate lacks entries of this member: without this member's help it may never win (rule 2)."""
        member, now_ms = self.member, self.member.out.now_ms
        if not member.config.never_lead or member.leader_id is not None or candidate_id is None:
            return
        # Any candidate counts: two of them that both lack entries ask in turns.
        since_ms, last_ms = self._behind or (now_ms, now_ms)
        if now_ms - last_ms >= WARD_MEMORY_MS:
            since_ms = now_ms
        self._behind = (since_ms, now_ms)
        if now_ms - since_ms >= self.patience.allowed_ms() and member.successor_id is None:
            member.successor_id = candidate_id
            member.out.report("standing-in", candidate_id=candidate_id, term=member.term,
                              ledger_end_index=member.ledger_end_index)
            self._wait(0)

    def _answer_vote(self, token: int, request: VoteRequest, result: VoteResult) -> None:
        member = self.member
        flags = 0
        if result is VoteResult.ACCEPT and member.is_unsure:
            result, flags = VoteResult.UNKNOWN, WIRE_FLAG_UNSURE_VOTE
        term = member.ledger_end_term if result is VoteResult.REJECT_TERM_SMALL_THAN_LEDGER else member.term
        member.out.reply(token, VoteResponse(
            group=request.group, remote_id=request.remote_id, local_id=request.local_id,
            leader_id=request.leader_id, term=term, wire_version=WIRE_VERSION | flags,
            vote_result=result, pre_vote=request.pre_vote, clock_ms=member.clock_ms,
        ))
        if not request.pre_vote:
            member.out.report("vote-answered", candidate_id=request.leader_id, term=request.term,
                              result=result.name)
