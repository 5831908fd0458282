# -*- test-case-name: tests.storage.test_holes -*-
"""The value that says which entries of a ledger are missing between sound ones."""

from __future__ import annotations

import attrs

#: Holes that a ledger keeps apart. Of more, the two that lie closest become one.
HOLES_MAX = 64


@attrs.frozen(kw_only=True)
class Hole:
    """
    A range of entries whose records are damaged, with a sound record, or the known end, after it.

    The records that belong there fill the bytes from C{position} to C{end_position} exactly, blanks included.

    @ivar first_index, last_index: inclusive.
    @ivar position: stream offset after the record before it.
    @ivar end_position: stream offset of the record after it, or of the end of the ledger.
    """

    first_index: int
    last_index: int
    position: int
    end_position: int

    @property
    def count(self) -> int:
        """Number of missing entries."""
        return self.last_index - self.first_index + 1

    def holds(self, index: int) -> bool:
        """Whether C{index} is one of the missing entries."""
        return self.first_index <= index <= self.last_index

    def touches(self, other: Hole) -> bool:
        """Whether the two overlap, or one follows the other without a sound record between them."""
        return self.first_index <= other.last_index + 1 and other.first_index <= self.last_index + 1

    def joined(self, other: Hole) -> Hole:
        """The range from the first entry of both to the last."""
        return Hole(
            first_index=min(self.first_index, other.first_index),
            last_index=max(self.last_index, other.last_index),
            position=min(self.position, other.position),
            end_position=max(self.end_position, other.end_position),
        )


def joined_holes(holes: tuple[Hole, ...], holes_max: int = HOLES_MAX) -> tuple[Hole, ...]:
    """
    The same holes in order, those that touch as one, and at most C{holes_max}: beyond that the two that lie
    closest become one. The sound records between them are found again when the hole is mended.
    """
    apart: list[Hole] = []
    for hole in sorted(holes, key=lambda one: one.first_index):
        if apart and apart[-1].touches(hole):
            apart[-1] = apart[-1].joined(hole)
        else:
            apart.append(hole)
    while len(apart) > holes_max:
        between = [
            after.position - before.end_position for before, after in zip(apart, apart[1:], strict=False)
        ]
        at = between.index(min(between)) + 1
        apart[at - 1 : at + 1] = [apart[at - 1].joined(apart[at])]
    return tuple(apart)
