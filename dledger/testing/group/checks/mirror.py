# -*- test-case-name: tests.sim.test_invariants -*-
"""
What the checks of a group know of the content of one member's store.
"""

from __future__ import annotations

import attrs


@attrs.define
class Mirror:
    """
    The content of one member's store: the terms of its entries, from C{begin_index} on, and the stream
    offset after each record. C{lost} are the indexes that it cannot read because of damage, and has not got
    back.
    """

    begin_index: int = 0
    terms: list[int] = attrs.Factory(list)
    ends: list[int] = attrs.Factory(list)
    lost: set[int] = attrs.Factory(set)

    @property
    def end_index(self) -> int:
        """Last index, -1 when empty."""
        return self.begin_index + len(self.terms) - 1 if self.terms else -1

    def term_of(self, index: int) -> int:
        """Term of an entry, -1 if the member does not hold it."""
        at = index - self.begin_index
        return self.terms[at] if 0 <= at < len(self.terms) else -1

    def cut_to(self, end_index: int) -> None:
        """Forget all entries after C{end_index}."""
        self.lost = {index for index in self.lost if index <= end_index}
        keep = max(end_index + 1 - self.begin_index, 0)
        del self.terms[keep:]
        del self.ends[keep:]
