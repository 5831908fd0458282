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

from itertools import chain
from struct import Struct

from protocols.wire.checksums import crc32
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from protocols.wire.ledger.runs import (
    CRC_AT,
    POSITION_AT,
    bodies_of_run,
    checksums,
    column,
    is_row,
    is_run,
    run_view,
    words,
)
from protocols.wire.values import value_class

_CHAIN_AT = 36
#: A C{chainCrc} covers the one before it and the header, with zeroes in its own place.
_CHAINED = 4 + ENTRY_HEADER_SIZE
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
    @ivar units: their index units; empty if they were not asked for.
    """

    term: int
    chain_crc: int
    positions: range
    units: bytes


def check_run(
    data: bytes, offset: int, *, count: int, size: int, index: int, position: int, term_min: int,
    chain_crc: int | None, with_units: bool = True,
) -> CheckedRun | None:
    """
    Check C{count} records of C{size} bytes at C{offset}, all in one file.

    @param index, position: of the first one.
    @param term_min: term of the record before it; -1 for any.
    @param chain_crc: C{chainCrc} of the record before it; None if that is not known.
    @param with_units: no: the caller does not need the index units.
    @return: None: they are not such a run, or not sound.
    """
    view = run_view(data, offset, count, size)
    positions = range(position, position + count * size, size)
    term = ENTRY_HEADER.unpack_from(view)[3]
    if not (
        is_run(view, count=count, size=size, index=index) and term >= term_min
        and is_row(view, POSITION_AT, size, words(count, "q").pack(*positions))
        and _are_checksums_right(view, count, size, chain_crc)
    ):
        return None
    units = bytearray(count * INDEX_UNIT_SIZE if with_units else 0)
    for at, source in enumerate(_UNIT_FROM if with_units else ()):
        units[at::INDEX_UNIT_SIZE] = view[source::size]
    last = _WORD.unpack_from(view, (count - 1) * size + _CHAIN_AT)[0]
    return CheckedRun(term, last, positions, bytes(units))


def _are_checksums_right(view: bytes, count: int, size: int, chain_crc: int | None) -> bool:
    """Whether all records have both checksums and they are right, or none has one."""
    chains, crcs = column(view, _CHAIN_AT, size), column(view, CRC_AT, size)
    if not any(chains):
        return not any(crcs)
    form = words(count, "I")
    if 0 in form.unpack(chains):
        return False
    if size == ENTRY_HEADER_SIZE:
        if any(crcs):
            return False
    elif checksums(bodies_of_run(view, size)) != crcs:
        return False
    chained = bytearray(_CHAINED * count)
    before = _WORD.pack(chain_crc or 0) + chains[:-4]
    for byte in range(4):
        chained[byte::_CHAINED] = before[byte::4]
    for byte in (*range(_CHAIN_AT), *range(CRC_AT, ENTRY_HEADER_SIZE)):
        chained[4 + byte :: _CHAINED] = view[byte::size]
    found = form.pack(*map(crc32, chain.from_iterable(_CHAINED_PIECES.iter_unpack(chained))))
    known_from = 4 if chain_crc is None else 0
    return found[known_from:] == chains[known_from:]
