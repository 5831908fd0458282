# -*- test-case-name: tests.core.test_naming -*-
"""The id of a group as one member knows it: a value that core, storage and node share."""

from __future__ import annotations

import attrs

_ID_DIGITS = 32


def is_group_id(text: str) -> bool:
    """Whether C{text} can be the id of a group."""
    return len(text) == _ID_DIGITS and not text.strip("0123456789abcdef")


@attrs.frozen
class GroupName:
    """
    @ivar id: 32 hexadecimal digits; empty for none.
    @ivar term: term of the leader that proposed it last; -1 for none, 0 for an operator.
    @ivar is_known: whether a quorum holds it: then it never changes.
    """

    id: str = ""
    term: int = -1
    is_known: bool = False

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """Of several names that a leader hears of, the one with the highest rank is proposed again."""
        return (self.is_known, self.term, bool(self.id))
