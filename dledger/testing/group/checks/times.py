# -*- test-case-name: tests.sim.test_time_folds -*-
"""
What a member knows of the times of its entries, compared with the records that it has; and that times never
fall, whatever the clocks of the leaders do.
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.require import require
from dledger.values.ledger.group_state import GroupFold, NotedTime
from protocols.wire.ledger.entry import ENTRY_HEADER, decode_header
from protocols.wire.ledger.own.own_entries import TIME_CHANNEL
from protocols.wire.ledger.own.time_entries import decode_time_entry


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
            found.append(NotedTime(index, term, decode_time_entry(record[ENTRY_HEADER.size :])))
    return found


class TimeRules:
    """The rules of one group."""

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
        for one, other in zip(noted, noted[1:], strict=False):
            if other.time_ms < one.time_ms:
                return (f"the time entry at {other.entry_index} is earlier than that at {one.entry_index}: "
                        f"{noted}")
        if group is None:
            return ""
        if noted and group.time != noted[-1]:
            return f"its last time entry is {noted[-1]}, the state says {group.time}"
        if not noted and group.time is not None and group.time.entry_index >= mirror.begin_index:
            return f"it has no time entry, the state says {group.time}"
        return ""
