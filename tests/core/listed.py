# -*- test-case-name: tests.core.test_changes -*-
"""The memberships of a ledger in memory."""

from __future__ import annotations

import attrs

from dledger.base.membership import Membership
from protocols.wire.ledger.configuration import decode_configuration


@attrs.define
class ListedMemberships:
    """Those of the bodies that look like configuration entries; a membership is made once."""

    entries: list[tuple[int, bytes]] = attrs.Factory(list)
    begin_index: int = 0
    made: dict[tuple[int, int], Membership] = attrs.field(factory=dict, init=False)

    @property
    def memberships(self) -> tuple[Membership, ...]:
        """In order of indexes."""
        return tuple(
            self.made.setdefault((index, term), Membership(
                index=index, term=term, **decode_configuration(body)._asdict()
            ))
            for index, (term, body) in enumerate(self.entries, self.begin_index) if body.startswith(b"DLCF")
        )

    @property
    def membership(self) -> Membership | None:
        """The last of them."""
        known = self.memberships
        return known[-1] if known else None
