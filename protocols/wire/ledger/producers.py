# -*- test-case-name: tests.wire.test_producers -*-
"""
Producers: programs whose appends are numbered, so that the log takes each once.

Source: none, this is ours; docs/exactly-once.md.
"""

from __future__ import annotations

#: Longest id of a producer, bytes of UTF-8.
PRODUCER_ID_BYTES_MAX = 64
#: Highest sequence.
SEQUENCE_MAX = 2**62


def producer_problem(producer: str, sequence: int) -> str:
    """What is wrong with the id of a producer and a sequence; empty: nothing."""
    size = len(producer.encode("utf-8", "replace"))
    if not 1 <= size <= PRODUCER_ID_BYTES_MAX:
        return f"the id of a producer has {size} bytes, 1 to {PRODUCER_ID_BYTES_MAX} are allowed"
    if not 0 <= sequence <= SEQUENCE_MAX:
        return f"sequence={sequence}, 0 to {SEQUENCE_MAX} are allowed"
    return ""
