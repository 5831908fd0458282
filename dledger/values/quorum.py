# -*- test-case-name: tests.core.test_quorum -*-
"""
The one quorum rule: the highest number that a given count of holders have reached.

Raft commitment, the read index and RocketMQ's C{inSyncReplicas} all ask this question.
"""

from __future__ import annotations

from collections.abc import Iterable


def held_by(marks: Iterable[int], needed: int) -> int:
    """
    The highest number that at least C{needed} of the C{marks} have reached.

    @param needed: 1 to the number of marks.
    """
    ordered = sorted(marks, reverse=True)
    assert 1 <= needed <= len(ordered), f"{needed} of {len(ordered)} marks"
    return ordered[needed - 1]
