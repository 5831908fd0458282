# -*- test-case-name: tests.storage.test_chunk_sums -*-
"""
The rows of a file of checksums of chunks; see L{dledger.storage.store.chunk_sums}.

A row counts if the row before it in its file does; the file ends with the first that does not.
"""

from __future__ import annotations

from construct import Int32sb, Int32ub, Int64sb, Struct

from dledger.values.ledger.chunks import ChunkSum
from protocols.wire.checksums import crc32
from protocols.wire.layout import struct_of

CHUNK_ROW_DECLARATION = Struct(
    "first_index" / Int64sb,
    "last_index" / Int64sb,
    "position" / Int64sb,
    "end_position" / Int64sb,
    "term" / Int64sb,
    "chain_crc" / Int32sb,
    "records_crc" / Int32ub,
    "units_crc" / Int32ub,
    "row_crc" / Int32ub,  # CRC-32 of the bytes before it
)
_ROW = struct_of(CHUNK_ROW_DECLARATION)
_ROW_CRC_AT = _ROW.size - 4
#: Ends the rows of a file.
NO_ROW = bytes(_ROW.size)

def pack_row(chunk: ChunkSum) -> bytes:
    """The row of a chunk."""
    bare = _ROW.pack(*chunk, 0)[:_ROW_CRC_AT]
    return bare + crc32(bare).to_bytes(4, "big")


def unpack_rows(data: bytes) -> list[ChunkSum]:
    """The rows of a file, up to the first that does not count."""
    found: list[ChunkSum] = []
    for at in range(0, len(data) - len(data) % _ROW.size, _ROW.size):
        *fields, crc = _ROW.unpack_from(data, at)
        row = ChunkSum(*fields)
        if crc != crc32(data[at : at + _ROW_CRC_AT]) or not 0 <= row.first_index <= row.last_index:
            break
        if found and (row.first_index <= found[-1].last_index or row.position < found[-1].end_position):
            break
        found.append(row)
    return found


def torn_row(data: bytes) -> int:
    """
    Number of the row that ends the rows of a file, though it is none of zeroes; -1: there is none.
    """
    number = len(unpack_rows(data))
    end = number * _ROW.size
    return number if any(data[end : end + _ROW.size]) else -1


def row_damage(data: bytes) -> str:
    """What is wrong with the bytes of a file; empty if nothing is. A row of zeroes ends the rows."""
    number = torn_row(data)
    if number >= 0:
        return f"the row at {number * _ROW.size} does not fit its checksum, or the row before it"
    return ""
