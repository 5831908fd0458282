# -*- test-case-name: tests.core.test_campaign,tests.core.test_stickiness -*-
"""
The rules of elections that are there for Java's members, which know no pre-votes and no announced transfers.

Rule 1: before the term is raised, a Java peer gets METADATA, which says whether it knows a leader, and then a
VOTE of L{PROBE_TERM}, which says whether its log is longer. None of these binds it.
Rule 2: a member that is ahead in term of a Java leader, which keeps its quorum and ignores refusals, calls
that leader up to its own term.
Rule 3: a Java candidate that has entries which this member lacks is given the time to win.

Source: DLedgerLeaderElector.java (0.3.1.2); differs: docs/divergence.md W4, W7.
"""

from __future__ import annotations

import attrs

from dledger.core.state.member_state import MemberState, RequestOwner
from dledger.values.ledger.config import JAVA_HEART_BEAT_TIME_INTERVAL_MS
from protocols.wire.ledger.messages import HeartBeatRequest, MessageFields, VoteRequest

#: Term of a VOTE that binds no Java peer: Java compares the logs, then refuses it; its terms begin at 0.
PROBE_TERM = -1

#: A Java leader of a lower term has a quorum if it sends this many heartbeats over this many milliseconds:
#: without a quorum it steps down at the first refusal.
STRAY_BEATS = 3
STRAY_MS = 2 * JAVA_HEART_BEAT_TIME_INTERVAL_MS - JAVA_HEART_BEAT_TIME_INTERVAL_MS // 4

#: A Java leader that lives is heard within this time, milliseconds: an interval and a half. Later a Java
#: candidate's vote counts although our own patience is longer, because Java's next attempt takes seconds.
JAVA_HEARD_MS = JAVA_HEART_BEAT_TIME_INTERVAL_MS * 3 // 2

#: While a Java leader is heard, one vote in this time, milliseconds, counts all the same: Java announces no
#: transfer, and its leader with a quorum ignores the refusals of a member that is ahead in term.
JAVA_SPARED_MS = 30_000

#: The longest voting round of a Java candidate with a dead peer: wait for the votes, then pause.
JAVA_ROUND_MS = 2 * JAVA_HEART_BEAT_TIME_INTERVAL_MS


@attrs.define
class JavaElections:
    """
    Invariant: C{_stray_beats} heartbeats of C{_stray_leader_id}, a leader of a lower term, came since
    C{_stray_since_ms}.
    """

    member: MemberState
    _stray_leader_id: str | None = None
    _stray_beats: int = 0
    _stray_since_ms: int = 0
    _deposed_ms: int = -JAVA_SPARED_MS

    def is_better(self, request: VoteRequest) -> bool:
        """Whether a Java candidate has entries that we lack, so that it can win and we cannot."""
        member = self.member
        if request.wire_version >= 1 or member.leader_id is not None:
            return False
        mine = (member.ledger_end_term, member.ledger_end_index)
        return (request.ledger_end_term, request.ledger_end_index) > mine

    def spares_leader(self, silent_ms: int) -> bool:
        """
        Whether votes against a Java leader are refused.

        @param silent_ms: for which it was not heard.
        """
        if silent_ms >= JAVA_HEARD_MS:
            return False
        now_ms = self.member.out.now_ms
        if now_ms - self._deposed_ms >= JAVA_SPARED_MS:
            self._deposed_ms = now_ms
            return False
        return True

    def stray_ended(self) -> None:
        """A leader of this term is known: no other is called."""
        self._stray_leader_id = None

    def heard_stray(self, request: HeartBeatRequest, owner: RequestOwner) -> None:
        """
        A Java leader of a lower term beats. While it has a quorum it ignores our refusals, and its followers
        know a leader, so that no election of ours can begin: without help this member stays outside.

        One heartbeat of our term makes it a candidate of that term, which its own followers elect again. No
        log is touched, and nobody follows us: Java adopts the term of a first heartbeat, and no more.
        """
        member, now_ms = self.member, self.member.out.now_ms
        if member.leader_id is not None:
            return  # a leader of our term is known, and the group is with that one
        if request.leader_id != self._stray_leader_id:
            self._stray_leader_id = request.leader_id
            self._stray_beats = 0
            self._stray_since_ms = now_ms
        self._stray_beats += 1
        if self._stray_beats < STRAY_BEATS or now_ms - self._stray_since_ms < STRAY_MS:
            return
        assert request.leader_id is not None
        self._stray_leader_id = None
        member.out.report("stray-leader-called", leader_id=request.leader_id, its_term=request.term,
                          term=member.term)
        base: MessageFields = {**member.base_fields(request.leader_id), "leader_id": member.self_id}
        member.out.send(request.leader_id, HeartBeatRequest(**base), owner)
