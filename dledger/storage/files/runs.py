# -*- test-case-name: tests.storage.test_runs -*-
"""
Checks many records of one size and one term at once.

The checks record by record of L{dledger.storage.files.records} cost a microsecond or more each, nearly all of
it Python. Entries of one writer often have one size. The headers of a run of them are compared byte column by
byte column, with slices that have a step, and the checksums are computed by C{map}: no step of Python is made
per record.

Rule: the fast road accepts only what the slow road accepts. To everything unusual, damage included, it says
C{None}, and the caller goes record by record.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from struct import Struct
from zlib import crc32

from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE, MAGIC
from protocols.wire.values import value_class

#: A shorter run is not worth the preparations; a longer one is taken in pieces.
RUN_MIN = 64
RUN_MAX = 4096

_HEADER = ENTRY_HEADER_SIZE
_INDEX_AT, _TERM_AT, _POSITION_AT, _CHAIN_AT, _CRC_AT, _LENGTH_AT = 8, 16, 24, 36, 40, 44
#: A C{chainCrc} covers the one before it and the header, with zeroes in its own place.
_CHAINED = 4 + _HEADER
_CHAINED_PIECES = Struct(f"{_CHAINED}s")
_WORD = Struct(">i")
#: Of an index unit: magic, position, size, index, term; and the place of each byte in a header.
_UNIT_FROM = (0, 1, 2, 3, *range(24, 32), 4, 5, 6, 7, *range(8, 16), *range(16, 24))


@value_class
class CheckedRun:
    """
    Records that were found sound.

    @ivar term: of all of them.
    @ivar chain_crc: C{chainCrc} of the last one.
    @ivar positions: the stream offset of each.
    @ivar units: their index units.
    """

    term: int
    chain_crc: int
    positions: range
    units: bytes


def run_at(data: bytes, offset: int, count_max: int) -> tuple[int, int]:
    """
    The number of records at C{offset} that seem to have one size, and that size; (0, 0) if there is no run.

    Only some headers are looked at: L{check_run} looks at all.
    """
    if offset + RUN_MIN * _HEADER > len(data) or count_max < RUN_MIN:
        return 0, 0
    size = ENTRY_HEADER.unpack_from(data, offset)[1]
    count = min(count_max, (len(data) - offset) // size, RUN_MAX) if size >= _HEADER else 0
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


@lru_cache(maxsize=64)
def _words(count: int, form: str) -> Struct:
    return Struct(f">{count}{form}")


@lru_cache(maxsize=64)
def _bodies(body_size: int) -> Struct:
    return Struct(f"{_HEADER}x{body_size}s")


def _is_row(view: bytes, at: int, size: int, expected: bytes) -> bool:
    """Whether the 8-byte fields at C{at} of all records are these numbers."""
    return all(view[at + byte :: size] == expected[byte::8] for byte in range(8))


def check_run(
    data: bytes, offset: int, *, count: int, size: int, index: int, position: int, term_min: int,
    chain_crc: int | None,
) -> CheckedRun | None:
    """
    Check C{count} records of C{size} bytes at C{offset}, all in one file.

    @param index, position: of the first one.
    @param term_min: term of the record before it; -1 for any.
    @param chain_crc: C{chainCrc} of the record before it; None if that is not known.
    @return: None: they are not such a run, or not sound.
    """
    view = data if not offset and len(data) == count * size else data[offset : offset + count * size]
    first = ENTRY_HEADER.unpack_from(view)
    term = first[3]
    if first[0] != MAGIC or first[1] != size or first[8] != size - _HEADER or term < term_min:
        return None
    numbers = _words(count, "q")
    positions = range(position, position + count * size, size)
    same = (*range(_INDEX_AT), *range(_TERM_AT, _POSITION_AT), *range(_LENGTH_AT, _HEADER))
    if not (
        all(view[at::size] == view[at : at + 1] * count for at in same)
        and _is_row(view, _INDEX_AT, size, numbers.pack(*range(index, index + count)))
        and _is_row(view, _POSITION_AT, size, numbers.pack(*positions))
        and _are_checksums_right(view, count, size, chain_crc)
    ):
        return None
    units = bytearray(count * INDEX_UNIT_SIZE)
    for at, source in enumerate(_UNIT_FROM):
        units[at::INDEX_UNIT_SIZE] = view[source::size]
    last = _WORD.unpack_from(view, (count - 1) * size + _CHAIN_AT)[0]
    return CheckedRun(term, last, positions, bytes(units))


def _are_checksums_right(view: bytes, count: int, size: int, chain_crc: int | None) -> bool:
    """Whether all records have both checksums and they are right, or none has one."""
    words, crcs = bytearray(4 * count), bytearray(4 * count)
    for byte in range(4):
        words[byte::4] = view[_CHAIN_AT + byte :: size]
        crcs[byte::4] = view[_CRC_AT + byte :: size]
    if not any(words):
        return not any(crcs)
    form, body_size = _words(count, "I"), size - _HEADER
    if 0 in form.unpack(words):
        return False
    if not body_size:
        if any(crcs):
            return False
    elif form.pack(*map(crc32, chain.from_iterable(_bodies(body_size).iter_unpack(view)))) != crcs:
        return False
    chained = bytearray(_CHAINED * count)
    before = _WORD.pack(chain_crc or 0) + words[:-4]
    for byte in range(4):
        chained[byte::_CHAINED] = before[byte::4]
    for byte in (*range(_CHAIN_AT), *range(_CRC_AT, _HEADER)):
        chained[4 + byte :: _CHAINED] = view[byte::size]
    found = form.pack(*map(crc32, chain.from_iterable(_CHAINED_PIECES.iter_unpack(chained))))
    known_from = 4 if chain_crc is None else 0
    return found[known_from:] == words[known_from:]
