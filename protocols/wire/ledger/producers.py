# -*- test-case-name: tests.wire.test_producers -*-
"""
Producers: programs whose appends are numbered, so that the log takes each once.

Source: none, this is ours; docs/exactly-once.md.
"""

from __future__ import annotations

from construct import Int64sb, Struct

from protocols.wire.layout import struct_of

#: Longest id of a producer, bytes of UTF-8.
PRODUCER_ID_BYTES_MAX = 64
#: Highest sequence.
SEQUENCE_MAX = 2**62
#: Runs of entries that are remembered of one producer.
RUNS_MAX = 16

#: Entries of a producer that follow each other, in the state of a group: number and index of the first one.
NUMBERED_RUN_DECLARATION = Struct("number" / Int64sb, "index" / Int64sb, "count" / Int64sb)
NUMBERED_RUN = struct_of(NUMBERED_RUN_DECLARATION)


def producer_problem(producer: str, sequence: int) -> str:
    """What is wrong with the id of a producer and a sequence; empty: nothing."""
    try:
        size = len(producer.encode())
    except UnicodeEncodeError:
        return f"the id of a producer is {producer!r}: half of a surrogate pair is not a text"
    if not 1 <= size <= PRODUCER_ID_BYTES_MAX:
        return f"the id of a producer has {size} bytes, 1 to {PRODUCER_ID_BYTES_MAX} are allowed"
    if not 0 <= sequence <= SEQUENCE_MAX:
        return f"sequence={sequence}, 0 to {SEQUENCE_MAX} are allowed"
    return ""
