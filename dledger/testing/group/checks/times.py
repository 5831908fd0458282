# -*- test-case-name: tests.sim.test_time_folds -*-
"""
What a member knows of the times of its entries, compared with the records that it has; that times never fall,
whatever the clocks of the leaders do; and that no leader notes a time that a majority does not confirm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dledger.core.state.inputs import Proposal
from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.require import require
from dledger.values.ledger.group_state import GroupFold, NotedTime
from protocols.wire.ledger.entry import ENTRY_HEADER, decode_header
from protocols.wire.ledger.own.own_entries import TIME_CHANNEL
from protocols.wire.ledger.own.time_entries import decode_time_entry, shown_time_ms


def noted_in(mirror: Mirror, records: Mapping[tuple[int, int], tuple[bytes, int]]) -> list[NotedTime]:
    """
    The time entries in the store of a member.

    @param records: by index and term: the record, and the term before it.
    """
    found = []
    for at, term in enumerate(mirror.terms):
        index = mirror.begin_index + at
        record = records[index, term][0]
        header = decode_header(record)
        if header.channel == TIME_CHANNEL and header.chain_crc:
            found.append(NotedTime(index, term, *decode_time_entry(record[ENTRY_HEADER.size :]).at(index)))
    return found


#: What a clock showed this long ago may still count: a leader goes by what was said to it lately.
SAID_US = 15 * 1_000_000


class TimeRules:
    """
    The rules of one group.

    Invariant: C{_errors_s} has the error of each wall clock, C{_earlier} those that it had before, each with
    the time of the jump that ended it.
    """

    def __init__(self) -> None:
        self._errors_s: dict[str, float] = {}
        self._earlier: dict[str, list[tuple[int, float]]] = {}

    def jumped(self, member_id: str, now_us: int, from_s: float, to_s: float) -> None:
        """A wall clock jumps. @param from_s, to_s: its errors before and after, seconds."""
        self._errors_s[member_id] = to_s
        self._earlier.setdefault(member_id, []).append((now_us, from_s))

    def proposed(self, member: CheckedMember, proposals: Sequence[Proposal], now_us: int) -> None:
        """
        A time entry is at most the bound later than what the clocks of a majority showed lately (11), unless
        it only repeats the time of the log.
        """
        group = member.ledger.group
        for proposal in proposals:
            if proposal.channel == TIME_CHANNEL and group is not None:
                state = member.core.member
                last_ms = -1 if group.time is None else group.time.time_ms
                shown_ms = {one: self._highest_ms(one, now_us) for one in state.membership.voters}
                limit_ms = state.membership.held(shown_ms, 0) + state.config.entry_times_ahead_ms
                time_ms = decode_time_entry(proposal.bodies[0]).time_ms
                require(time_ms <= max(limit_ms, last_ms), 11,
                        f"{member.member_id} notes the time {time_ms} after {last_ms}, a majority shows at "
                        f"most {shown_ms}")

    def _highest_ms(self, member_id: str, now_us: int) -> int:
        """The highest that a wall clock may have said lately, as it would show now."""
        errors_s = [error_s for until_us, error_s in self._earlier.get(member_id, ())
                    if until_us >= now_us - SAID_US]
        highest_s = max([self._errors_s.get(member_id, 0.0), *errors_s])
        return max(int(now_us / 1000 + highest_s * 1000) + 1, 0)

    def check(self, invariants: GroupInvariants, member: CheckedMember) -> None:
        """What a member knows is the last time entry that it has, and those that it has do not fall (11)."""
        if isinstance(invariants, ApartInvariants):
            return  # A leader that lies may push two entries of one term and index.
        mirror = invariants.mirror(member.member_id)
        if mirror.lost:
            return
        group = member.ledger.group
        problem = self.problem(group, mirror, invariants.records)
        require(not problem, 11, f"{member.member_id}: {problem}")

    def problem(
        self, group: GroupFold | None, mirror: Mirror, records: Mapping[tuple[int, int], tuple[bytes, int]]
    ) -> str:
        """How a state or its log is wrong; empty: it is not."""
        noted = noted_in(mirror, records)
        shown = [] if group is None or group.time is None else [
            shown_time_ms(one.entry_index, one.time_ms, group.time.resets) for one in noted
        ]
        if shown != sorted(shown):
            return f"its times are shown as {shown}: they fall"
        for one, other in zip(noted, noted[1:], strict=False):
            is_reset = other.resets and other.resets[-1].entry_index == other.entry_index
            if other.time_ms < one.time_ms and not is_reset:
                return (f"the time entry at {other.entry_index} is earlier than that at {one.entry_index}: "
                        f"{noted}")
        if group is None:
            return ""
        if noted and group.time != noted[-1]:
            return f"its last time entry is {noted[-1]}, the state says {group.time}"
        if not noted and group.time is not None and group.time.entry_index >= mirror.begin_index:
            return f"it has no time entry, the state says {group.time}"
        return ""
