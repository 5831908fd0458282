# -*- test-case-name: tests.wire.test_own_entries -*-
"""
The log's own entries: those that no program has appended. Every reader leaves them out by the one rule of
L{own_kind}, unless it is asked to show them.

An entry is the log's own if

 - its C{channel} is not 0: members wrote it for themselves (Java and our stores write 0 for every body of a
   client); or
 - its body is empty, and the entry before has another term: a leader wrote it, so that earlier entries commit
   at once; or
 - its body is a marker of the Spark sink: its length, its magic and a CRC-32 fit.

A program's empty body that begins a later term is taken for the leader's: the two have the same bytes.

Source: none, this is ours; docs/readers.md and docs/spark.md.
"""

from __future__ import annotations

from enum import StrEnum

from protocols.wire.checksums import crc32
from protocols.wire.ledger.own.configuration import CONFIGURATION_CHANNEL
from protocols.wire.ledger.own.machine_entries import MACHINE_ENTRY_MAGIC
from protocols.wire.ledger.own.time_entries import TIME_MAGIC
from protocols.wire.ledger.producers import PRODUCER_CHANNEL
from protocols.wire.ledger.readers import READER_MAGIC

#: Markers of the sink begin so, of any version.
MARKER_PREFIX = b"dledger-sink/"
#: Version 1; then the CRC-32 of the rest in hexadecimal, and a blank.
MARKER_MAGIC = MARKER_PREFIX + b"1 "
MARKER_TEXT_AT = len(MARKER_MAGIC) + 9
#: Length of a marker. An odd number: bodies of a fixed length have it seldom.
MARKER_BYTES = 333


class OwnKind(StrEnum):
    """What one of the log's own entries is."""

    CONFIGURATION = "configuration"
    PRODUCER = "producer"
    READER = "reader"
    MACHINE = "machine"
    TIME = "time"
    TERM_START = "term start"
    SINK_MARKER = "sink marker"
    #: Members of a later version wrote it, or it is damaged.
    UNKNOWN = "unknown"


#: What an entry with a C{channel} is, by its channel and the first four bytes of its body.
KINDS_BY_WORDS = {
    (CONFIGURATION_CHANNEL, CONFIGURATION_CHANNEL): OwnKind.CONFIGURATION,
    (PRODUCER_CHANNEL, PRODUCER_CHANNEL): OwnKind.PRODUCER,
    (PRODUCER_CHANNEL, READER_MAGIC): OwnKind.READER,
    (PRODUCER_CHANNEL, MACHINE_ENTRY_MAGIC): OwnKind.MACHINE,
    (PRODUCER_CHANNEL, TIME_MAGIC): OwnKind.TIME,
}


def is_marker(body: bytes | memoryview) -> bool:
    """Whether a body is a marker of the sink."""
    if len(body) != MARKER_BYTES or body[: len(MARKER_MAGIC)] != MARKER_MAGIC:
        return False
    return bytes(body[len(MARKER_MAGIC) : MARKER_TEXT_AT]) == b"%08x " % crc32(body[MARKER_TEXT_AT:])


def own_kind(channel: int, body: bytes | memoryview, *, begins_term: bool) -> OwnKind | None:
    """
    What an entry of the log's own is; None: a program has appended it.

    @param begins_term: the entry before has another term. False if there is none, or its term is not known:
        what may be a program's is never left out.
    """
    if not channel:
        if not body:
            return OwnKind.TERM_START if begins_term else None
        return OwnKind.SINK_MARKER if is_marker(body) else None
    return KINDS_BY_WORDS.get((channel, int.from_bytes(body[:4], "big")), OwnKind.UNKNOWN)
