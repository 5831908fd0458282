# -*- test-case-name: tests.wire.test_time_entries -*-
"""
Time entries: when the leader wrote the entries after them.

A time entry is a record like any other, so Java and its tools read it as an entry. It gives its time to the
entries after it, up to the next time entry, as far as they have its term and a C{chainCrc}: what another
leader writes has no time until that one writes a time entry, and what a Java leader writes has none.

Source: none, this is ours; docs/times.md.
"""

from __future__ import annotations

from construct import Int32sb, Int32ub, Int64sb, Struct

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of

TIME_MAGIC = 0x54494D45  # "TIME"
TIME_ENTRY_VERSION = 1
#: The last millisecond of the year 9999: later ones are no dates in Python, Java and Spark alike.
TIME_MS_MAX = 253_402_300_799_999
#: A leader writes a time entry when this many entries, or bytes, have passed since the last one...
TIME_SPAN_ENTRIES = 4096
TIME_SPAN_BYTES = 1024 * 1024
#: ...and then all that one turn has gathered. A search for the time of an entry goes back by this at most.
LOOK_BACK_ENTRIES = 32 * TIME_SPAN_ENTRIES
LOOK_BACK_BYTES = 16 * TIME_SPAN_BYTES

TIME_ENTRY_DECLARATION = Struct(
    "magic" / Int32sb,  # "TIME"
    "version" / Int32sb,
    "crc" / Int32ub,  # CRC-32 of the time
    "time_ms" / Int64sb,  # milliseconds since 1970
)
_ENTRY = struct_of(TIME_ENTRY_DECLARATION)
TIME_ENTRY_BYTES = _ENTRY.size
_TIME_AT = 12


def encode_time_entry(time_ms: int) -> bytes:
    """The body of a time entry. @param time_ms: milliseconds since 1970, 0 to L{TIME_MS_MAX}."""
    assert 0 <= time_ms <= TIME_MS_MAX, time_ms
    return _ENTRY.pack(TIME_MAGIC, TIME_ENTRY_VERSION, crc32(time_ms.to_bytes(8, "big")), time_ms)


def decode_time_entry(body: bytes) -> int:
    """
    The time in the body of a time entry, milliseconds since 1970.

    @raise WireError: it is malformed, or of a later version.
    """
    if len(body) != _ENTRY.size:
        raise WireError(f"time entry: {len(body)} bytes, {_ENTRY.size} are needed")
    magic, version, crc, time_ms = _ENTRY.unpack(body)
    if magic == TIME_MAGIC and version != TIME_ENTRY_VERSION:
        raise WireError(f"time entry: version={version}, this program reads {TIME_ENTRY_VERSION}: upgrade it")
    if magic != TIME_MAGIC or crc32(body[_TIME_AT:]) != crc:
        raise WireError("time entry: its magic or its checksum does not fit")
    if not 0 <= time_ms <= TIME_MS_MAX:
        raise WireError(f"time entry: time_ms={time_ms}, 0 to {TIME_MS_MAX} are allowed")
    number: int = time_ms
    return number
