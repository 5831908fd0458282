# -*- test-case-name: tests.node.test_entry_times -*-
"""
When the leader writes a time entry before the bodies of a turn, see docs/times.md.

Rule 1: the first bodies of a term come after a time entry of that term, and all others after one that is at
most C{entry_times_ms} old by the clock of the leader.
Rule 2: a time entry is never earlier than the one before it, of any leader: if the clock goes back, times
wait until it has come so far again.
Rule 3: while it is not known what the log says of times, or what time it is
(L{dledger.node.requests.group_clock}), none is written, and entries of a new term have no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dledger.core.state.inputs import AppendProposed, Proposal
from dledger.core.state.member_state import MemberState
from dledger.node.requests.group_clock import GroupClock
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.ledger.own.own_entries import TIME_CHANNEL
from protocols.wire.ledger.own.time_entries import TIME_SPAN_BYTES, TIME_SPAN_ENTRIES, encode_time_entry

#: The clock of a leader is reported when the log has a time that is later by this, milliseconds.
CLOCK_BEHIND_MS = 60_000


def notes_times(config: DLedgerConfig, ledger: FileStore) -> bool:
    """Whether a ledger has time entries, as far as is known, or will have."""
    return config.entry_times_ms > 0 or (ledger.group is not None and ledger.group.time is not None)


class EntryTimes:
    """Decides from what the ledger has; keeps only where the last time entry of this leader was proposed."""

    def __init__(
        self, every_ms: int, *, ledger: FileStore, leading: MemberState, clock: GroupClock,
        note: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        """
        @param every_ms: a time entry is written when the one before is this old, and bodies come.
        @param note: writes an event down.
        """
        self._every_ms = every_ms
        self._ledger = ledger
        self._leading = leading
        self._clock = clock
        self._note = note
        self._position = 0

    def due(self) -> bytes | None:
        """The body of the time entry that must come before the next bodies; None: none must."""
        group, leading = self._ledger.group, self._leading
        if group is None or not leading.is_leader:
            return None
        last, last_ms, next_ms, now_ms = group.time, 0, 0, self._clock.own_ms()
        if last is not None:
            last_ms = last.time_ms
            if last_ms - now_ms >= CLOCK_BEHIND_MS:
                self._note("clock-behind", {"seconds": (last_ms - now_ms) // 1000})
            if (
                last.term == leading.term and self._ledger.end_position < self._position + TIME_SPAN_BYTES
                and self._ledger.ledger_end_index < last.entry_index + TIME_SPAN_ENTRIES
            ):
                next_ms = last_ms + self._every_ms
        # (What the group believes is at most what the own clock shows, which is asked first.)
        if now_ms < next_ms or (now_ms := self._clock.now_ms()) < next_ms:
            return None
        now_ms = max(now_ms, last_ms)
        self._position = self._ledger.end_position
        return encode_time_entry(now_ms, last.resets if last is not None else ())


class TimedProposals:
    """Puts the time entries that are due before the proposals of clients."""

    def __init__(
        self, times: EntryTimes, feed: Callable[[AppendProposed], None], next_token: Callable[[], int]
    ) -> None:
        """@param feed: gives an input to the core."""
        self._times = times
        self._feed = feed
        self._next_token = next_token

    def propose(self, proposed: AppendProposed) -> None:
        """Proposals of one turn, or one of the member itself, which needs no time."""
        body = None if proposed.proposals[0].channel else self._times.due()
        if body is not None:
            # Nobody waits for it: if it is refused, so are the proposals, or it is due again.
            self._feed(AppendProposed((
                Proposal(token=self._next_token(), bodies=(body,), channel=TIME_CHANNEL),
            )))
        self._feed(proposed)
