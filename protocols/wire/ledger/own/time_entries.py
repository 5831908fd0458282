# -*- test-case-name: tests.wire.test_time_entries -*-
"""
Time entries: when the leader wrote the entries after them.

A time entry is a record like any other, so Java and its tools read it as an entry. It gives its time to the
entries after it, up to the next time entry, as far as they have its term and a C{chainCrc}: what another
leader writes has no time until that one writes a time entry, and what a Java leader writes has none.

Times never fall with the index, except at a I{reset}, an order of an operator for a log whose times are
ahead: a time entry with an earlier time than the one before. Each time entry lists the resets up to it, so
any later one says how the times before a reset are shown: none is later than that of the reset
(L{shown_time_ms}). Shown times never fall.

Source: none, this is ours; docs/times.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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

#: Most resets that are listed. Then the oldest two count as one: entries between them are shown with the time
#: of the first.
RESETS_MAX = 8

TIME_ENTRY_DECLARATION = Struct(
    "magic" / Int32sb,  # "TIME"
    "version" / Int32sb,
    "crc" / Int32ub,  # CRC-32 of all that follows
    "time_ms" / Int64sb,  # milliseconds since 1970
)
#: Follows for each reset.
TIME_RESET_DECLARATION = Struct(
    "reset_index" / Int64sb,  # of the time entry that is the reset; -1: this one
    "reset_ms" / Int64sb,  # its time
)
_ENTRY, _RESET = struct_of(TIME_ENTRY_DECLARATION), struct_of(TIME_RESET_DECLARATION)
#: Bytes of a body without resets, and of each of these.
TIME_ENTRY_BYTES, TIME_RESET_BYTES = _ENTRY.size, _RESET.size
_TIME_AT = 12


class TimeReset(NamedTuple):
    """The times of entries before the one at C{entry_index} are shown as C{time_ms} at most."""

    entry_index: int
    time_ms: int


class TimeNote(NamedTuple):
    """
    What a time entry says.

    @ivar time_ms: milliseconds since 1970, 0 to L{TIME_MS_MAX}.
    @ivar resets: up to this entry, itself included, in order of indexes; their times never fall. -1 as the
        last index: this entry.
    """

    time_ms: int
    resets: tuple[TimeReset, ...] = ()

    def at(self, index: int) -> TimeNote:
        """With the index of this entry."""
        return self._replace(resets=tuple(
            one if one.entry_index >= 0 else one._replace(entry_index=index) for one in self.resets
        ))


def shown_time_ms(index: int, time_ms: int, resets: Sequence[TimeReset]) -> int:
    """The time of an entry that was noted as C{time_ms}. @param resets: of any later time entry."""
    for reset in resets:
        if index < reset.entry_index:
            return min(time_ms, reset.time_ms)
    return time_ms


def with_reset(resets: Sequence[TimeReset], time_ms: int) -> TimeNote:
    """A time entry that is a reset. @param resets: those before it."""
    kept = [*(one for one in resets if one.time_ms < time_ms), TimeReset(-1, time_ms)]
    if len(kept) > RESETS_MAX:
        kept[:2] = [TimeReset(kept[1].entry_index, kept[0].time_ms)]
    return TimeNote(time_ms, tuple(kept))


def encode_time_entry(time_ms: int, resets: Sequence[TimeReset] = ()) -> bytes:
    """The body of a time entry. @param time_ms, resets: see L{TimeNote}."""
    assert 0 <= time_ms <= TIME_MS_MAX and len(resets) <= RESETS_MAX, (time_ms, resets)
    rest = b"".join((time_ms.to_bytes(8, "big"), *(_RESET.pack(*one) for one in resets)))
    return _ENTRY.pack(TIME_MAGIC, TIME_ENTRY_VERSION, crc32(rest), time_ms) + rest[8:]


def decode_time_entry(body: bytes) -> TimeNote:
    """
    What the body of a time entry says.

    @raise WireError: it is malformed, or of a later version.
    """
    count, odd = divmod(len(body) - _ENTRY.size, _RESET.size)
    if odd or not 0 <= count <= RESETS_MAX:
        raise WireError(f"time entry: {len(body)} bytes, {_ENTRY.size} and {_RESET.size} for each of up to "
                        f"{RESETS_MAX} resets are needed")
    magic, version, crc, time_ms = _ENTRY.unpack_from(body)
    if magic == TIME_MAGIC and version != TIME_ENTRY_VERSION:
        raise WireError(f"time entry: version={version}, this program reads {TIME_ENTRY_VERSION}: upgrade it")
    if magic != TIME_MAGIC or crc32(body[_TIME_AT:]) != crc:
        raise WireError("time entry: its magic or its checksum does not fit")
    resets = tuple(map(TimeReset._make, _RESET.iter_unpack(body[_ENTRY.size :])))
    indexes, times = [one.entry_index for one in resets], [one.time_ms for one in resets]
    if indexes and indexes[-1] == -1:
        indexes.pop()
    if min(indexes, default=0) < 0 or sorted(set(indexes)) != indexes or sorted((*times, time_ms)) != [
        *times, time_ms
    ]:
        raise WireError(f"time entry: its resets {resets} are not in order, or later than its time")
    if not 0 <= time_ms <= TIME_MS_MAX or min(times, default=0) < 0:
        raise WireError(f"time entry: time_ms={time_ms}, 0 to {TIME_MS_MAX} are allowed")
    return TimeNote(time_ms, resets)


def encode_resets(resets: Sequence[TimeReset]) -> str:
    """Resets as a text: index and time of each, C{17:1700000000000;99:1700000001000}."""
    return ";".join(f"{one.entry_index}:{one.time_ms}" for one in resets)


def decode_resets(text: str) -> tuple[TimeReset, ...]:
    """The resets in a text, at most L{RESETS_MAX}; none if it is malformed."""
    try:
        pairs = [one.split(":") for one in text.split(";", RESETS_MAX)] if text else []
        return tuple(TimeReset(int(index), int(time_ms)) for index, time_ms in pairs)
    except ValueError:
        return ()
