# -*- test-case-name: tests.core.test_elector,tests.core.test_stickiness -*-
"""
How long a leader may be silent.

Rule 1: the patience with a leader is several of its own intervals, which its heartbeats advertise.
Rule 2: a leader whose heartbeats advertise none is a Java one and gets Java's patience, which is long.
Rule 3: a leader that has sent no heartbeat yet, only pushes, gets this member's own intervals if it speaks
our wire: it may die before its first heartbeat, and Java's patience would cost the group seconds.

Source: DLedgerLeaderElector.java (maintainAsFollower); differs: docs/divergence.md W4.
"""

from __future__ import annotations

import attrs

from dledger.core.state.member_state import MemberState
from dledger.values.ledger.config import JAVA_HEART_BEAT_TIME_INTERVAL_MS, JAVA_MAX_HEART_BEAT_LEAK

#: A follower believes an advertised interval within these bounds, milliseconds, or up to and down to its own
#: interval: a false one must not make it patient for minutes, nor impatient with its leader.
HEART_BEAT_INTERVAL_MIN_MS = 100
HEART_BEAT_INTERVAL_MAX_MS = JAVA_HEART_BEAT_TIME_INTERVAL_MS


@attrs.define
class LeaderPatience:
    """
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
            is_java = member.wire_versions.get(member.leader_id) == 0
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
