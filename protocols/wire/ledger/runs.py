# -*- test-case-name: tests.wire.test_runs -*-
"""
Looks at many records of one size at once.

A step of Python for each record costs half a microsecond or more. Entries of one writer often have one size;
then their headers can be compared byte column by byte column, by slices that have a step, and all checksums
are computed by one C{map}.

Rule: a fast check that uses this accepts only what the check of each record accepts. To everything unusual,
damage included, it says no, and its caller goes record by record.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from struct import Struct

from protocols.wire.checksums import crc32
from protocols.wire.ledger.entry import CHANNEL_AT, ENTRY_HEADER, ENTRY_HEADER_SIZE, HIDDEN, MAGIC

#: A shorter run is not worth the preparations; a longer one is taken in pieces.
RUN_MIN = 64
RUN_MAX = 4096

INDEX_AT, TERM_AT, POSITION_AT, CRC_AT, LENGTH_AT = 8, 16, 24, 40, 44
#: Numbers of eight bytes that are not negative.
_NUMBERS = 1 << 63
#: Bytes of a header that are the same in all records of a run of one term: magic and size, term, body length.
_SAME = (*range(INDEX_AT), *range(TERM_AT, POSITION_AT), *range(LENGTH_AT, ENTRY_HEADER_SIZE))


def run_at(data: bytes, offset: int, count_max: int) -> tuple[int, int]:
    """
    The number of records at C{offset} that seem to have one size, and that size; (0, 0) if there is no run.

    Only some headers are looked at: L{is_run} looks at all.
    """
    if offset + RUN_MIN * ENTRY_HEADER_SIZE > len(data) or count_max < RUN_MIN:
        return 0, 0
    size = _size_at(data, offset)
    count = min(count_max, (len(data) - offset) // size, RUN_MAX) if size >= ENTRY_HEADER_SIZE else 0
    if count < RUN_MIN or any(_size_at(data, offset + number * size) != size for number in (1, RUN_MIN - 1)):
        return 0, 0
    low = RUN_MIN
    while low < count:
        middle = (low + count + 1) // 2
        if _size_at(data, offset + (count - 1) * size) == size:
            low = count
        elif _size_at(data, offset + (middle - 1) * size) == size:
            low, count = middle, count - 1
        else:
            count = middle - 1
    return count, size


def _size_at(data: bytes, offset: int) -> int:
    size: int = ENTRY_HEADER.unpack_from(data, offset)[1]
    return size


def run_view(data: bytes, offset: int, count: int, size: int) -> bytes:
    """The bytes of C{count} records of C{size} bytes at C{offset}, without a copy if that is all of it."""
    return data if not offset and len(data) == count * size else data[offset : offset + count * size]


def is_run(view: bytes, *, count: int, size: int, index: int) -> bool:
    """
    Whether these are C{count} records of C{size} bytes and one term, with the indexes from C{index} on.

    Positions, channels and checksums are not looked at.
    """
    first = ENTRY_HEADER.unpack_from(view)
    return (
        0 <= index <= _NUMBERS - count
        and first[0] == MAGIC and first[1] == size and first[8] == size - ENTRY_HEADER_SIZE
        and all(view[at::size] == view[at : at + 1] * count for at in _SAME)
        and is_row(view, INDEX_AT, size, words(count, "q").pack(*range(index, index + count)))
    )


def is_row(view: bytes, at: int, size: int, expected: bytes) -> bool:
    """Whether the 8-byte fields at C{at} of all records are these numbers."""
    return all(view[at + byte :: size] == expected[byte::8] for byte in range(8))


def column(view: bytes, at: int, size: int) -> bytes:
    """The 4-byte fields at C{at} of all records, one after the other."""
    found = bytearray(4 * (len(view) // size))
    for byte in range(4):
        found[byte::4] = view[at + byte :: size]
    return bytes(found)


def has_hidden(view: bytes, size: int) -> bool:
    """Whether the C{channel} of a record may say that readers leave it out."""
    return max(view[CHANNEL_AT::size]) >= HIDDEN >> 24


def bodies_of_run(view: bytes, size: int) -> list[bytes]:
    """The bodies, in order; C{size} is that of each record."""
    return list(chain.from_iterable(_bodies(size - ENTRY_HEADER_SIZE).iter_unpack(view)))


def checksums(bodies: list[bytes]) -> bytes:
    """The C{bodyCrc} of each, one after the other, as in L{column}."""
    return words(len(bodies), "I").pack(*map(crc32, bodies))


@lru_cache(maxsize=64)
def words(count: int, form: str) -> Struct:
    """C{count} big-endian numbers of one form of C{struct}."""
    return Struct(f">{count}{form}")


@lru_cache(maxsize=64)
def _bodies(body_size: int) -> Struct:
    return Struct(f"{ENTRY_HEADER_SIZE}x{body_size}s")
