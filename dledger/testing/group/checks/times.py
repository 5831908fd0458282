# -*- test-case-name: tests.sim.test_time_folds -*-
"""
What a member knows of the times of its entries, compared with the records that it has; and that times never
fall, whatever the clocks of the leaders do.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from dledger.storage.files.time_table import NotedTime, TimeTable
from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.require import require
from protocols.wire.ledger.entry import ENTRY_HEADER, decode_header
from protocols.wire.ledger.own.time_entries import decode_time_entry, is_time_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL


def noted_in(mirror: Mirror, records: Mapping[tuple[int, int], tuple[bytes, int]]) -> list[NotedTime]:
    """
    The time entries in the store of a member.

    @param records: by index and term: the record, and the term before it.
    """
    found = []
    for at, term in enumerate(mirror.terms):
        index = mirror.begin_index + at
        record = records[index, term][0]
        body = record[ENTRY_HEADER.size :]
        if is_time_entry(body) and decode_header(record).channel == PRODUCER_CHANNEL:
            found.append(NotedTime(index, term, decode_time_entry(body)))
    return found


@attrs.define
class TimeRules:
    """
    @ivar free_terms: terms of leaders whose logs had begun without a time entry: they go by their clocks.
    """

    free_terms: set[int] = attrs.Factory(set)

    def check(self, invariants: GroupInvariants, member: CheckedMember, *, is_elected: bool = False) -> None:
        """What a member knows is the last time entry that it has, and those that it has do not fall (11)."""
        if isinstance(invariants, ApartInvariants):
            return  # A leader that lies may push two entries of one term and index.
        mirror = invariants.mirror(member.member_id)
        if mirror.lost:
            return
        table = member.ledger.times
        if is_elected and mirror.begin_index > 0 and (table is None or table.last is None):
            self.free_terms.add(member.core.member.term)
        problem = self.problem(table, mirror, invariants.records)
        require(not problem, 11, f"{member.member_id}: {problem}")

    def problem(
        self, table: TimeTable | None, mirror: Mirror, records: Mapping[tuple[int, int], tuple[bytes, int]]
    ) -> str:
        """How a table or its log is wrong; empty: it is not."""
        noted = noted_in(mirror, records)
        for one, other in zip(noted, noted[1:], strict=False):
            if other.time_ms < one.time_ms and other.term not in self.free_terms:
                return f"the time entry at {other.index} is earlier than that at {one.index}: {noted}"
        if table is None:
            return ""
        if noted and table.last != noted[-1]:
            return f"its last time entry is {noted[-1]}, the table says {table.last}"
        if not noted and table.last is not None and table.last.index >= mirror.begin_index:
            return f"it has no time entry, the table says {table.last}"
        return ""
