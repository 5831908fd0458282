# -*- test-case-name: tests.core.test_flush_pace -*-
"""
How long the flushes of this member take, and which of its peers flush much faster.

Followers of ours report their flush time in each answer to a heartbeat
(L{protocols.wire.ledger.codes.flush_time_flags}); a Java member says nothing, and is never compared. A
leader gives way if for L{SLOW_FOR_MS} its flushes take at least C{slow_flush_hand_over_ms}, and
L{SLOW_FACTOR} times as long as those of one live follower. A leader that got leadership by a
transfer, for any reason, waits for L{SLOW_AGAIN_MS} first.

This module knows nothing of transfers: L{dledger.core.election.transfer} asks it for a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from protocols.wire.ledger.codes import flush_time_flags, flush_time_of

#: A follower must be this many times faster than its leader.
SLOW_FACTOR = 10
#: A member that was this many times slower than its leader, or more, is not given leadership back.
STILL_SLOW_FACTOR = 3
#: The leader's disk is slow for this long, without a pause, before it hands over; milliseconds.
SLOW_FOR_MS = 60_000
#: Milliseconds between a transfer and the next one for this reason.
SLOW_AGAIN_MS = 300_000
#: A flush time counts for this many milliseconds after the last flush.
FRESH_MS = 10_000
#: Weight of one flush in the mean.
_WEIGHT = 0.125


@attrs.define
class FlushPace:
    """
    Flush times of one member, and what its peers report of theirs. Milliseconds, as seen by the core.

    @ivar _mean_ms: of the last flushes; -1 before the first.
    @ivar began_ms: begin of the flush that is under way; None without one.
    @ivar _slow_since_ms: since when each peer has been much faster than this member.
    """

    _mean_ms: float = -1.0
    began_ms: int | None = None
    _ended_ms: int = 0
    _reported: dict[str, tuple[float, int]] = attrs.Factory(dict)
    _slow_since_ms: dict[str, int] = attrs.Factory(dict)
    _quiet_until_ms: int = 0
    _looked_ms: int = 0

    def ended(self, now_ms: int) -> None:
        """It has ended."""
        if self.began_ms is None:
            return
        took_ms, self.began_ms = now_ms - self.began_ms, None
        is_first = self._mean_ms < 0 or now_ms - self._ended_ms >= FRESH_MS
        self._mean_ms = took_ms if is_first else self._mean_ms + _WEIGHT * (took_ms - self._mean_ms)
        self._ended_ms = now_ms

    def time_ms(self, now_ms: int) -> float | None:
        """The present flush time; None if there was no flush lately. One that does not end counts, too."""
        running_ms = 0 if self.began_ms is None else now_ms - self.began_ms
        known_ms = self._mean_ms if now_ms - self._ended_ms < FRESH_MS else -1.0
        if known_ms < 0 and running_ms < FRESH_MS:
            return None
        return max(known_ms, running_ms)

    def flags(self, now_ms: int) -> int:
        """The flags of a C{wire_version} that report the flush time."""
        return flush_time_flags(self.time_ms(now_ms))

    def heard(self, peer_id: str, wire_version: int, now_ms: int) -> None:
        """A peer answered a heartbeat."""
        reported_ms = flush_time_of(wire_version)
        if reported_ms is None:
            self._reported.pop(peer_id, None)
        else:
            self._reported[peer_id] = (reported_ms, now_ms)

    def peer_ms(self, peer_id: str, now_ms: int) -> float | None:
        """The flush time that a peer reported lately; None if it reported none."""
        reported_ms, heard_ms = self._reported.get(peer_id, (0.0, -FRESH_MS))
        return reported_ms if now_ms - heard_ms < FRESH_MS else None

    def is_much_slower(self, peer_id: str, now_ms: int, least_ms: int) -> bool:
        """Whether a peer flushes so slowly that it would give leadership back; C{least_ms} 0: never."""
        theirs, ours = self.peer_ms(peer_id, now_ms), self.time_ms(now_ms)
        if theirs is None or ours is None or not least_ms:
            return False
        return theirs >= least_ms and theirs >= STILL_SLOW_FACTOR * max(ours, 1.0)

    def transferred(self, now_ms: int) -> None:
        """Leadership was, or is being, handed over: no other transfer for a slow disk for a while."""
        self._quiet_until_ms = now_ms + SLOW_AGAIN_MS
        self._slow_since_ms.clear()

    def better(self, peer_ids: Sequence[str], now_ms: int, least_ms: int) -> str | None:
        """
        The peer that should lead instead of this leader. Called regularly while this member leads.

        @param peer_ids: those that could take over, the best first; a peer that is absent begins anew.
        @param least_ms: a leader with a shorter flush time is not slow; 0: no leader is.
        """
        if now_ms - self._looked_ms >= FRESH_MS:
            self._slow_since_ms.clear()  # this member did not lead meanwhile
        self._looked_ms = now_ms
        ours = self.time_ms(now_ms)
        since: dict[str, int] = {}
        if least_ms and ours is not None and ours >= least_ms:
            for peer_id in peer_ids:
                theirs = self.peer_ms(peer_id, now_ms)
                if theirs is not None and SLOW_FACTOR * max(theirs, 1.0) <= ours:
                    since[peer_id] = self._slow_since_ms.get(peer_id, now_ms)
        self._slow_since_ms = since
        if now_ms < self._quiet_until_ms:
            return None
        return next((one for one, began_ms in since.items() if now_ms - began_ms >= SLOW_FOR_MS), None)
