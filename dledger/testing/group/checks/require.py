# -*- test-case-name: tests.sim.test_invariants -*-
"""
How a check of a group fails: with the number of the invariant that does not hold, and a sentence.
"""

from __future__ import annotations


class InvariantError(AssertionError):
    """
    An invariant does not hold.

    @ivar number: its number in docs/invariants.md.
    """

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(f"invariant {number}: {sentence}")
        self.number = number


def require(holds: object, number: int, sentence: str) -> None:
    """@raise InvariantError: C{holds} is false."""
    if not holds:
        raise InvariantError(number, sentence)
