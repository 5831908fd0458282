# -*- test-case-name: tests.broker.store.test_key_index -*-
"""
The mark of the index by keys: the state of its files that is on stable storage, in a small file beside them.
"""

from __future__ import annotations

import attrs
from construct import Int32sb, Int32ub, Int64sb, Struct

from dledger.rocketmq.store.index.index_file import HEADER, IndexHeader, IndexShape
from protocols.wire.checksums import crc32
from protocols.wire.layout import struct_of

INDEX_MARK_DECLARATION = Struct(
    "offset" / Int64sb,  # of the log: the keys of all records before it are in the index
    "slots" / Int32sb,
    "entries" / Int32sb,
    "first" / Int64sb,  # name of the first file; 0: there is none
    "file" / Int64sb,  # name of the last file; 0: there is none
    "count" / Int32sb,  # number of files from the first to the last
    "is_clean" / Int32sb,  # 1: closed in order, nothing was put since
)
_MARK = struct_of(INDEX_MARK_DECLARATION)
_CRC = struct_of(Struct("crc" / Int32ub))


@attrs.frozen(kw_only=True)
class IndexMark:
    """The content of the mark; fields as in the declaration. C{header}: of the file."""

    offset: int
    first: int = 0
    file: int = 0
    count: int = 0
    is_clean: bool = False
    header: IndexHeader = IndexHeader()


def encode_index_mark(mark: IndexMark, shape: IndexShape) -> bytes:
    """The bytes of the mark, with their checksum."""
    data = _MARK.pack(
        mark.offset, shape.slots, shape.entries, mark.first, mark.file, mark.count, mark.is_clean
    )
    data += HEADER.pack(*mark.header)
    return data + _CRC.pack(crc32(data))


def is_whole_mark(data: bytes) -> bool:
    """Whether these are the bytes of a mark, with their checksum, of files of any shape."""
    size = _MARK.size + HEADER.size
    return len(data) == size + _CRC.size and bool(_CRC.unpack_from(data, size)[0] == crc32(data[:size]))


def decode_index_mark(data: bytes | None, shape: IndexShape) -> IndexMark | None:
    """The mark in the file; None if it is missing, damaged, or of files of another shape."""
    if data is None or not is_whole_mark(data):
        return None
    offset, slots, entries, first, file, count, is_clean = _MARK.unpack_from(data)
    if (slots, entries) != (shape.slots, shape.entries):
        return None
    header = IndexHeader(*HEADER.unpack_from(data, _MARK.size))
    return IndexMark(
        offset=offset, first=first, file=file, count=count, is_clean=bool(is_clean), header=header
    )
