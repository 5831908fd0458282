# -*- test-case-name: tests.wire.test_producers -*-
"""
Producer entries: which entries after it are of which producer, and with which sequences.

A producer entry is a record like any other, so Java and its tools read it as an entry. The C{channel} of its
header distinguishes it: L{PRODUCER_CHANNEL} (Java and our stores write 0 for every body of a client, so no
append can make such an entry). It says something about the entries after it only as far as they have its
term: those of a later leader came in their place.

Its last run may be I{open}: it goes on with all entries of programs that follow in this term, up to the next
entry that a member has made for itself (its C{channel} is not 0). So a session of appends needs one producer
entry, and one without runs ends it.

Source: none, this is ours; docs/exactly-once.md.
"""

from __future__ import annotations

from typing import NamedTuple

#: C{channel} of a producer entry: "PRDC".
PRODUCER_CHANNEL = 0x50524443
#: The first byte of the channel: one column of the headers of a batch says whether it has such an entry.
PRODUCER_FIRST_BYTE = PRODUCER_CHANNEL >> 24
#: Longest id of a producer, bytes of UTF-8.
PRODUCER_ID_BYTES_MAX = 64
#: Bytes of one run at most, and of the part before the first one.
RUN_BYTES_MAX = 18 + PRODUCER_ID_BYTES_MAX
PRODUCER_HEADER_BYTES = 16
#: Highest sequence.
SEQUENCE_MAX = 2**62

class ProducerRun(NamedTuple):
    """
    Entries of one producer that follow each other, with sequences that do.

    @ivar distance: of the first one from the producer entry, 1 or more.
    @ivar entries: number of them; 0: the run is open.
    @ivar sequence: of the first one.
    """

    producer: str
    sequence: int
    distance: int
    entries: int


def producer_problem(producer: str, sequence: int) -> str:
    """What is wrong with the id of a producer and a sequence; empty: nothing."""
    size = len(producer.encode("utf-8", "replace"))
    if not 1 <= size <= PRODUCER_ID_BYTES_MAX:
        return f"the id of a producer has {size} bytes, 1 to {PRODUCER_ID_BYTES_MAX} are allowed"
    if not 0 <= sequence <= SEQUENCE_MAX:
        return f"sequence={sequence}, 0 to {SEQUENCE_MAX} are allowed"
    return ""
