# -*- test-case-name: tests.node.test_entry_times -*-
"""
When the leader writes a time entry before the bodies of a turn, see docs/times.md.

Rule 1: the first bodies of a term come after a time entry of that term, and all others after one that is at
most C{entry_times_ms} old by the clock of the leader.
Rule 2: a time entry is never earlier than the one before it, of any leader: if the clock goes back, times
wait until it has come so far again.
Rule 3: the first one of a log is written when all members take it, by their own word; so members of earlier
versions do not get an entry that they refuse.
Rule 4: an append that expects an end comes after a time entry at that end, however old that is: else each
attempt of a slow program would move the end that it expects.
Rule 5: while damaged entries may be time entries, none is written, and entries of a new term have no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from dledger.core.state.inputs import AppendProposed, Proposal
from dledger.core.state.peer_knowledge import PeerKnowledge
from dledger.ledger.config import DLedgerConfig
from dledger.storage.files.time_table import TimeTable
from protocols.wire.ledger.own.time_entries import (
    TIME_MS_MAX,
    TIME_SPAN_BYTES,
    TIME_SPAN_ENTRIES,
    encode_time_entry,
)

#: The clock of a leader is reported when the log has a time that is later by this, milliseconds.
CLOCK_BEHIND_MS = 60_000


class TimedLedger(Protocol):
    """The part of the ledger that is needed here."""

    @property
    def times(self) -> TimeTable | None:
        """The last of its time entries; None: not known, as entries are damaged."""

    @property
    def ledger_end_index(self) -> int:
        """Its last index."""

    @property
    def end_position(self) -> int:
        """Stream offset in bytes of the end of its last record."""


class Leading(Protocol):
    """The part of the core's state that is needed here."""

    @property
    def is_leader(self) -> bool:
        """Whether this member leads."""

    @property
    def term(self) -> int:
        """Its term."""

    @property
    def peer_ids(self) -> tuple[str, ...]:
        """The other members."""

    @property
    def knowledge(self) -> PeerKnowledge:
        """Which kinds of entries they know."""


def notes_times(config: DLedgerConfig, ledger: TimedLedger) -> bool:
    """Whether a ledger has time entries, as far as is known, or will have."""
    return config.entry_times_ms > 0 or (ledger.times is not None and ledger.times.last is not None)


class EntryTimes:
    """Decides from what the ledger has; keeps only where the last time entry of this leader was proposed."""

    def __init__(
        self, every_ms: int, *, ledger: TimedLedger, leading: Leading, wall_s: Callable[[], float],
        note: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        """
        @param every_ms: a time entry is written when the one before is this old, and bodies come.
        @param wall_s: seconds since 1970.
        @param note: writes an event down.
        """
        self._every_ms = every_ms
        self._ledger = ledger
        self._leading = leading
        self._wall_s = wall_s
        self._note = note
        self._position = 0

    def due(self, *, is_conditional: bool = False) -> bytes | None:
        """
        The body of the time entry that must come before the next bodies; None: none must.

        @param is_conditional: one of these expects the end of the ledger.
        """
        table, leading = self._ledger.times, self._leading
        if table is None or not leading.is_leader:
            return None
        last = table.last
        if last is None and not leading.knowledge.all_take_times(leading.peer_ids):
            return None
        now_ms = min(max(int(self._wall_s() * 1000), 0), TIME_MS_MAX)
        if last is not None:
            if last.time_ms - now_ms >= CLOCK_BEHIND_MS:
                self._note("clock-behind", {"seconds": (last.time_ms - now_ms) // 1000})
            now_ms = max(now_ms, last.time_ms)
            is_at_end = last.term == leading.term and last.index == self._ledger.ledger_end_index
            if (is_conditional and is_at_end) or (
                last.term == leading.term and now_ms < last.time_ms + self._every_ms
                and self._ledger.ledger_end_index < last.index + TIME_SPAN_ENTRIES
                and self._ledger.end_position < self._position + TIME_SPAN_BYTES
            ):
                return None
        self._position = self._ledger.end_position
        return encode_time_entry(now_ms)


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
        proposals = proposed.proposals
        is_conditional = any(one.expected_end is not None for one in proposals)
        body = None if proposals[0].is_control else self._times.due(is_conditional=is_conditional)
        if body is not None:
            # Nobody waits for it: if it is refused, so are the proposals, or it is due again.
            self._feed(AppendProposed((Proposal(token=self._next_token(), bodies=(body,), is_control=True),)))
        self._feed(proposed)
