# -*- test-case-name: tests.wire.test_age_entries -*-
"""
Age entries: how much time has passed for the producers that a group remembers, by the clock of its leader.
Which ones are forgotten follows from these entries alone, so it is the same at every member.

Source: none, this is ours; docs/exactly-once.md.
"""

from __future__ import annotations

from typing import NamedTuple

from construct import Int32ub, Int64sb, Struct

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of

AGE_MAGIC = 0x41474553  # "AGES"
AGE_ENTRY_VERSION = 1
#: A leader writes an age entry when this much time has passed since the last one, and one counts for as much
#: at most: a clock that jumps ahead, or a long pause of the group, makes nobody older than that.
AGE_STEP_MS = 3_600_000

AGE_ENTRY_DECLARATION = Struct(
    "magic" / Int32ub,  # "AGES"
    "version" / Int32ub,
    "crc" / Int32ub,  # CRC-32 of all that follows
    "clock_ms" / Int64sb,  # of the leader, since 1970
    "limit_ms" / Int64sb,  # producers that were quiet for longer are forgotten
)
_ENTRY = struct_of(AGE_ENTRY_DECLARATION)
_CRC_FROM = 12


class AgeEntry(NamedTuple):
    """Fields as in the declaration."""

    clock_ms: int
    limit_ms: int


def encode_age_entry(clock_ms: int, limit_ms: int) -> bytes:
    """The body of an age entry."""
    rest = _ENTRY.pack(0, 0, 0, clock_ms, limit_ms)[_CRC_FROM:]
    return _ENTRY.pack(AGE_MAGIC, AGE_ENTRY_VERSION, crc32(rest), clock_ms, limit_ms)


def decode_age_entry(body: bytes) -> AgeEntry:
    """
    What the body of an age entry says.

    @raise WireError: it is malformed, or of a later version.
    """
    if len(body) != _ENTRY.size:
        raise WireError(f"age entry: {len(body)} bytes, {_ENTRY.size} are needed")
    magic, version, crc, clock_ms, limit_ms = _ENTRY.unpack(body)
    if magic == AGE_MAGIC and version != AGE_ENTRY_VERSION:
        raise WireError(f"age entry: version={version}, this program reads {AGE_ENTRY_VERSION}: upgrade it")
    if magic != AGE_MAGIC or crc32(memoryview(body)[_CRC_FROM:]) != crc:
        raise WireError("age entry: its magic or its checksum does not fit")
    if clock_ms < 0 or limit_ms < 1:
        raise WireError(f"age entry: clock_ms={clock_ms} limit_ms={limit_ms}")
    return AgeEntry(clock_ms, limit_ms)
