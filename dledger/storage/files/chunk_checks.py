# -*- test-case-name: tests.storage.test_chunk_sums -*-
"""
Checks a chunk that a leader has pushed, without a step of Python for each record.

Rule 1: the bytes must have the checksums that the leader made when it wrote them: rot on its disk, or a
flipped bit on the way, is not spread.
Rule 2: the index units must be those of a follower that has written
the same entries: index, term, place and size of each record, by its own layout of files.
Rule 3: the first and the last record are checked whole; the first continues the C{chainCrc} of this ledger.

A configuration entry must be noticed by its follower, so no chunk may have one.

This module touches no file.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping
from itertools import accumulate

from construct import Int32sb, Struct

from dledger.storage.files.records import (
    DamagedRecord,
    Layout,
    Walk,
    add_mark,
    check_batch,
    configurations_in,
    marks_of_run,
    walk_records,
)
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import Marked
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.layout import struct_of
from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    CHAIN_CRC_AT,
    CHAIN_CRC_SIZE,
    CHANNEL_AT,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    MIN_BLANK_SIZE,
)
from protocols.wire.ledger.runs import column, words

#: Places of bytes in an index unit, and of the size among its fields of 4 bytes.
_COLUMNS_OF_MAGIC, _COLUMNS_OF_TERM = range(4), range(24, 32)
_LOWEST_OF_INDEX, _SIZE_WORD = 23, 3
_EVERY_BYTE = bytes(range(256))
#: C{channel} and C{chain_crc} of a header.
_PAIR = struct_of(Struct("channel" / Int32sb, "chain_crc" / Int32sb))


def _unfit(index: int, what: str) -> DLedgerError:
    return DLedgerError(ResponseCode.INCONSISTENT_STATE, index=index, reason=f"chunk refused: {what}")


def _end_of(chunk: EntryChunk, number: int) -> tuple[int, int]:
    """Position and size of the record of this number, as its index unit reports them."""
    magic, position, size, index, term = INDEX_UNIT.unpack_from(chunk.units, number * INDEX_UNIT_SIZE)
    if (magic, index, term) != (MAGIC, chunk.first_index + number, chunk.term) or size < ENTRY_HEADER_SIZE:
        raise _unfit(chunk.first_index + number, f"index unit of magic={magic} index={index} term={term}")
    return position, size


def _sizes_of(units: bytes) -> array[int]:
    sizes = array("i", units)[_SIZE_WORD :: INDEX_UNIT_SIZE // 4]
    if sys.byteorder == "little":
        sizes.byteswap()
    return sizes


def _check_units(chunk: EntryChunk, position: int) -> None:
    """
    Check the columns of the index units: magic, term, the lowest byte of each index, the sum of the sizes.

    @param position: stream offset of the first record.
    @raise DLedgerError: INCONSISTENT_STATE: they are not those of these records.
    """
    units, count, first = chunk.units, chunk.count, chunk.first_index
    same = (*_COLUMNS_OF_MAGIC, *_COLUMNS_OF_TERM)
    lowest = _EVERY_BYTE[first % 256 :] + _EVERY_BYTE * (count // 256 + 1)
    sizes = _sizes_of(units)
    last_position, last_size = _end_of(chunk, count - 1)
    if (
        _end_of(chunk, 0)[0] != position
        or any(units[at::INDEX_UNIT_SIZE] != units[at : at + 1] * count for at in same)
        or units[_LOWEST_OF_INDEX::INDEX_UNIT_SIZE] != lowest[:count]
        or sum(sizes) != len(chunk.records)
        or last_position + last_size != position + len(chunk.records)
    ):
        raise _unfit(first, "its index units are not those of its records")


def _check_record(chunk: EntryChunk, number: int, chain_crc: int | None) -> int:
    """Check the record of this number whole. @return: its C{chainCrc}."""
    position, size = _end_of(chunk, number)
    at = position - _end_of(chunk, 0)[0]
    end = at + size
    if not 0 <= at < end <= len(chunk.records):
        raise _unfit(chunk.first_index + number, f"a record of {size} bytes at {position}")
    walk = Walk(index=chunk.first_index + number, position=position, chain_crc=chain_crc)
    try:
        walk_records(chunk.records[at:end], walk, max_count=1, one_term=True, size_max=size)
    except DamagedRecord as damage:
        raise _unfit(damage.index, damage.what) from None
    if not walk.count or walk.length != size or walk.term != chunk.term:
        raise _unfit(walk.index, "a record has another size or term than its index unit")
    return walk.chain_crc or 0


def _marks_of(chunk: EntryChunk) -> tuple[Marked, ...]:
    """
    The entries that are not plain ones of programs.

    @raise DLedgerError: INCONSISTENT_STATE: a configuration entry is among them.
    """
    records, count, size = chunk.records, chunk.count, len(chunk.records) // chunk.count
    sizes = _sizes_of(chunk.units)
    if min(sizes) == max(sizes) and 0 not in words(count, "i").unpack(column(records, CHAIN_CRC_AT, size)):
        marks = marks_of_run(records, count, size, chunk.first_index, chunk.term)
    else:
        found: list[Marked] = []
        starts = [*accumulate(sizes, initial=0)]
        pairs = b"".join([records[at + CHANNEL_AT : at + CHAIN_CRC_AT + CHAIN_CRC_SIZE]
                          for at in starts[:-1]])
        for number, (channel, chain_crc) in enumerate(_PAIR.iter_unpack(pairs)):
            if channel and chain_crc:
                begin, end = starts[number] + ENTRY_HEADER_SIZE, starts[number + 1]
                add_mark(found, chunk.first_index + number, chunk.term, channel,
                         lambda begin=begin, end=end: records[begin:end])  # type: ignore[misc]
        marks = tuple(found)
    if configurations_in(marks):
        raise _unfit(chunk.first_index, "it has a configuration entry, which must be pushed as such")
    return marks


def check_chunk(
    chunk: EntryChunk,
    *,
    first_index: int,
    last_term: int,
    end_position: int,
    previous_chain_crc: int | None,
    file_size: int,
) -> Layout:
    """
    Check a leader's chunk and lay it out after C{end_position}; parameters as of
    L{dledger.storage.files.records.check_batch}.

    @raise DLedgerError: INCONSISTENT_STATE, it does not fit.
    """
    records, units, count = chunk.records, chunk.units, chunk.count
    if chunk.first_index != first_index or len(units) != count * INDEX_UNIT_SIZE or count < 1:
        raise _unfit(first_index, f"first_index={chunk.first_index}, {len(units)} bytes of {count} units")
    if crc32(records) != chunk.records_crc or crc32(units) != chunk.units_crc:
        raise _unfit(first_index, "its bytes do not have their checksums")
    if chunk.term < last_term:
        raise _unfit(first_index, f"term={chunk.term}, at least {last_term} is needed here")
    runs: list[tuple[int, bytes]] = []
    position, room = end_position, file_size - end_position % file_size - MIN_BLANK_SIZE
    if INDEX_UNIT.unpack_from(units)[2] > room:
        room += MIN_BLANK_SIZE
        runs.append((position, BLANK.pack(BLANK_MAGIC, room)))
        position, room = position + room, file_size - MIN_BLANK_SIZE
    if len(records) > room:
        raise _unfit(first_index, f"{len(records)} bytes do not fit into a file of {file_size}")
    _check_units(chunk, position)
    chain_crc = _check_record(chunk, 0, previous_chain_crc)
    if count > 1:
        before = chain_crc if count == 2 else _check_record(chunk, count - 2, None)
        chain_crc = _check_record(chunk, count - 1, before)
    runs.append((position, records))
    return Layout(
        runs=runs, records=records, units=units, positions=[],
        end_position=position + len(records), chain_crc=chain_crc,
        terms=[] if chunk.term == last_term else [(first_index, chunk.term)],
        marked=_marks_of(chunk), sums=(chunk.records_crc, chunk.units_crc),
    )


#: As L{check_batch}, by the class of the entries.
CHECKS: Mapping[type[EntryBatch], Callable[..., Layout]] = {EntryBatch: check_batch, EntryChunk: check_chunk}
