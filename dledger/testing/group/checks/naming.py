# -*- test-case-name: tests.sim.test_time_folds -*-
"""One id of the group for ever, whoever proposes it, and whichever minority loses its directories."""

from __future__ import annotations

import attrs

from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.require import require


@attrs.define
class NameRules:
    """
    @ivar known: the id that a member was the first to know; empty before.
    @ivar taken: the ids, with their terms, that each member has ever taken up.
    """

    known: str = ""
    taken: dict[str, set[tuple[str, int]]] = attrs.Factory(dict)

    def check(self, invariants: GroupInvariants, member: CheckedMember) -> None:
        """No member knows another one (13)."""
        name = member.core.member.group_name
        if not name.is_known or isinstance(invariants, ApartInvariants):
            return
        self.known = self.known or name.id
        require(name.id == self.known, 13, (
            f"{member.member_id} knows the group as {name.id}, and another member as {self.known}"
        ))
