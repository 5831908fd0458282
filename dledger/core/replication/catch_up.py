# -*- test-case-name: tests.core.test_catch_up,tests.core.test_catch_up_pace -*-
"""
How much a leader pushes to followers that are behind: in one turn of the reactor, and in a second.

Rule 1: what one turn may read has a bound, for all of them together: heartbeats, votes and appends come in
between. Followers that keep up are not limited.
Rule 2: while the group serves appends, catching up gives way: it has a rate, which is halved when appends are
slow beside those that met no catching up: one takes L{SLOW_FACTOR} times as long as their slow ones, or the
mean of all is L{MEAN_FACTOR} times theirs. Otherwise it grows step by step. So load of another cause, which
lengthens both, does not lower it.
Rule 3: the rate has a floor, and is above that of the appends, or the lag would not shrink. A group
that serves nothing has no limit; neither has one whose appends wait for a follower that is behind.

The time of an append is from its write to its commit, for one append at a time, and only while a follower is
behind. A pause ends with a tick, an answer of its follower, or an append: nothing here asks for a timer.
"""

from __future__ import annotations

import attrs

from dledger.core.state import effects as fx
from dledger.core.state.member_state import MemberState, Outbox
from protocols.wire.ledger.batches import EntryBatch, EntryChunk

#: What all followers that are behind may be sent together in one turn of the reactor: reading millions of
#: small entries at a time would keep heartbeats and votes waiting.
TURN_ENTRIES_MAX = 4096
TURN_BYTES_MAX = 1024 * 1024
#: The same while the group serves appends, for entries that are pushed one by one.
SERVING_ENTRIES_MAX = 1024
SERVING_BYTES_MAX = 256 * 1024
#: The group serves appends if one of them was committed in this time, milliseconds.
SERVES_MS = 250
#: Bytes per second for all followers that are far behind, while the group serves: at first, at least, at
#: most, and what is added after L{STEP_MS} without a slow append.
RATE_FIRST = 32 * 1024 * 1024
RATE_MIN = 4 * 1024 * 1024
RATE_MAX = 512 * 1024 * 1024
RATE_STEP = 8 * 1024 * 1024
STEP_MS = 100
#: The rate is at least this many times that at which the appends fill the log (a chunk has the index, too).
RATE_ABOVE_APPENDS = 4
#: An append is slow if it takes this many times as long as the slow ones that met no catching up.
SLOW_FACTOR = 2
#: The mean of all appends may be this many times that of those that met no catching up.
MEAN_FACTOR = 1.5
#: Milliseconds; appends that took less count as if they had taken this long: the clock has whole ones.
LEAST_MS = 2
#: The same for a mean; weight of one append in a mean.
LEAST_MEAN_MS = 1.0
_WEIGHT = 1 / 16
#: Appends that met no catching up are forgotten at this pace; this many must be known for a comparison.
_KEPT_PART = 0.98
CALM_MIN = 8
#: An entry that is pushed by itself costs as much as these bytes of a chunk.
ENTRY_COST_BYTES = TURN_BYTES_MAX // TURN_ENTRIES_MAX
#: What was not used of the rate in this time may be used later, milliseconds.
CREDIT_MS = 20


@attrs.define
class Probe:
    """
    The append whose time is taken.

    @ivar index: its last entry. @ivar is_calm: nothing was pushed to catch up meanwhile, or is unanswered.
    """

    index: int
    began_ms: int
    is_calm: bool


@attrs.define
class TurnBudget:
    """
    What may still be read in this turn of the reactor for followers that are behind, and at what rate.

    Invariant: while C{is_spent}, one C{ContinueLater} is under way.

    @ivar rate: bytes per second, for all these followers together, while the group serves appends.
    @ivar calm_ms, calm_mean_ms: how long slow appends took that met no catching up, and the mean of these.
    @ivar mean_ms: of all appends, since the rate was halved.
    @ivar probe: None: no time is taken.
    @ivar _unanswered: for each follower that is far behind, pushes without an answer.
    @ivar _free_ms: when the next push to each of them may leave, while the group serves.
    """

    out: Outbox
    entries: int = TURN_ENTRIES_MAX
    size: int = TURN_BYTES_MAX
    is_spent: bool = False
    probe: Probe | None = None
    rate: float = RATE_FIRST
    calm_ms: float = 0.0
    calm_mean_ms: float = 0.0
    mean_ms: float = 0.0
    _is_fresh: bool = True
    _calms: int = 0
    _end_index: int = -1
    _served_ms: int = -SERVES_MS
    _stepped_ms: int = 0
    _filled: tuple[int, int] = (0, -1)
    _rate_min: float = RATE_MIN
    _unanswered: dict[str, int] = attrs.Factory(dict)
    _free_ms: dict[str, float] = attrs.Factory(dict)

    @property
    def serves(self) -> bool:
        """Whether appends are committed now."""
        return self.out.now_ms - self._served_ms < SERVES_MS

    # -- turns ---------------------------------------------------------------------------------------

    def may_push(self, peer_id: str) -> bool:
        """Whether entries may be read for this follower now; if not, a turn, a tick or an answer follows."""
        if self.is_spent:
            return False
        return not self._free_ms or not self.serves or self._free_ms.get(peer_id, 0.0) <= self.out.now_ms

    def portion(self, peer_id: str) -> tuple[int, int]:
        """Entries and bytes that may be read for this follower at once, if they are pushed one by one."""
        if peer_id in self._unanswered and self.serves:
            return min(self.entries, SERVING_ENTRIES_MAX), min(self.size, SERVING_BYTES_MAX)
        return self.entries, self.size

    def has_room(self, size: int) -> bool:
        """Whether a chunk may be read in this turn: as the first or within the bound; or else in another."""
        if self._is_fresh or size <= self.size:
            return True
        self._exhaust()
        return False

    def spend(self, peer_id: str, batch: EntryBatch) -> None:
        """
        A batch was read; ask for another turn if it was the last one of this turn. A chunk costs no time
        per entry.
        """
        count = 0 if isinstance(batch, EntryChunk) else batch.count
        self.entries -= count
        self.size -= batch.size
        self._is_fresh = False
        if peer_id in self._unanswered:
            self._unanswered[peer_id] += 1
            if self.probe is not None:
                self.probe.is_calm = False
        if peer_id in self._unanswered and self.serves:
            cost, share = max(batch.size, count * ENTRY_COST_BYTES), self.rate / len(self._unanswered)
            begin_ms = max(self._free_ms.get(peer_id, 0.0), self.out.now_ms - CREDIT_MS)
            self._free_ms[peer_id] = begin_ms + cost * 1000 / share
            self._exhaust()  # one portion in a turn
        elif self.entries <= 0 or self.size <= 0:
            self._exhaust()

    def _exhaust(self) -> None:
        if not self.is_spent:
            self.is_spent = True
            self.out.emit(fx.ContinueLater())

    def renew(self) -> None:
        """Another turn has come."""
        self.entries = TURN_ENTRIES_MAX
        self.size = TURN_BYTES_MAX
        self.is_spent = False
        self._is_fresh = True

    # -- the rate ------------------------------------------------------------------------------------

    def see(self, peer_id: str, unanswered: int, member: MemberState) -> None:
        """
        A follower that is far behind is looked at: begin to take the time of an append that was just written.

        @param unanswered: pushes to it without an answer.
        """
        self._unanswered[peer_id] = unanswered
        end_index = member.ledger_end_index
        if end_index == self._end_index:
            return
        if self._end_index >= 0 and self.probe is None:
            self.probe = Probe(end_index, self.out.now_ms, is_calm=not any(self._unanswered.values()))
            self._measure(member.view.position_of(end_index + 1))
        self._end_index = end_index

    def _measure(self, position: int) -> None:
        """C{position}: stream offset after the last entry; its growth is what the lag grows by."""
        now_ms, (then_ms, before) = self.out.now_ms, self._filled
        if now_ms - then_ms >= STEP_MS:
            self._filled = now_ms, position
            grown = position - before if before >= 0 else 0
            self._rate_min = max(RATE_MIN, RATE_ABOVE_APPENDS * grown * 1000 / (now_ms - then_ms))
            self.rate = max(self.rate, self._rate_min)

    def committed(self, index: int) -> None:
        """Entries up to C{index} are committed now. Called while there is a C{probe}."""
        probe, now_ms = self.probe, self.out.now_ms
        if probe is None or index < probe.index:
            return
        self.probe = None
        self._served_ms = now_ms
        took_ms = now_ms - probe.began_ms
        if took_ms >= SERVES_MS:
            return  # it waited for something else, perhaps for a follower that is behind
        if probe.is_calm:
            self.calm_ms = max(took_ms, self.calm_ms * _KEPT_PART)
            self._calms += 1
            self.calm_mean_ms += (took_ms - self.calm_mean_ms) * max(_WEIGHT, 1 / self._calms)
        self.mean_ms += (took_ms - self.mean_ms) * _WEIGHT
        if self._calms < CALM_MIN or now_ms - self._stepped_ms < STEP_MS:
            return
        is_slow = not probe.is_calm and took_ms > SLOW_FACTOR * max(self.calm_ms, LEAST_MS)
        if is_slow or self.mean_ms > MEAN_FACTOR * max(self.calm_mean_ms, LEAST_MEAN_MS):
            self.rate = max(self._rate_min, self.rate / 2)
            self._stepped_ms = now_ms
            self.mean_ms = self.calm_mean_ms
        else:
            self.rate = min(RATE_MAX, self.rate + RATE_STEP)
            self._stepped_ms = now_ms

    def leave(self, peer_id: str) -> None:
        """The follower lacks little now, or is compared again. With the last one, all is forgotten."""
        if self._unanswered.pop(peer_id, None) is None:
            return
        self._free_ms.pop(peer_id, None)
        if not self._unanswered:
            self.probe = None
            self.rate = RATE_FIRST
            self._calms = 0
            self.calm_ms = self.calm_mean_ms = self.mean_ms = 0.0
            self._end_index = -1
            self._filled = (0, -1)
            self._rate_min = RATE_MIN
