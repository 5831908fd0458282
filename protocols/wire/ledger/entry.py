# -*- test-case-name: tests.wire.test_entry -*-
"""
The record of one entry, its index unit, the blank at the end of a file, and the checksums.

The record on disk is the record on the native wire. All integers are big-endian and signed.

C{bodyCrc} is zlib's CRC-32 of the body. C{chainCrc} is the CRC-32 of the previous record's
C{chainCrc} (4 bytes), then this header with C{chainCrc} zero and C{bodyCrc} filled. In both, 0 means
"not recorded": Java writes 0, and copies ours. A record after one with C{chainCrc} 0 (or after
nothing) chains from 0.

Source: DLedgerEntryCoder.java (0.3.1.2); the checksums are ours (Java leaves both words 0).
"""

from __future__ import annotations

from collections.abc import Iterator

from construct import Int32sb, Int64sb, Struct

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.values import value_class

ENTRY_HEADER_DECLARATION = Struct(
    "magic" / Int32sb,
    "size" / Int32sb,  # whole record, header included
    "index" / Int64sb,
    "term" / Int64sb,
    "pos" / Int64sb,  # stream offset of the record's first byte
    "channel" / Int32sb,  # reserved, 0
    "chain_crc" / Int32sb,
    "body_crc" / Int32sb,
    "body_length" / Int32sb,
)
ENTRY_HEADER = struct_of(ENTRY_HEADER_DECLARATION)
ENTRY_HEADER_SIZE = 48
#: Largest record that Java can encode (its 4-MiB buffer), header included.
MAX_RECORD_BYTES = 4 * 1024 * 1024
assert ENTRY_HEADER.size == ENTRY_HEADER_SIZE
#: Position of C{chain_crc} in a record, and its size, in bytes.
CHAIN_CRC_AT, CHAIN_CRC_SIZE = 36, 4
#: Position of C{channel}, and its bit for entries of a producer that readers leave out.
CHANNEL_AT, HIDDEN = 32, 0x4000_0000

INDEX_UNIT_DECLARATION = Struct(
    "magic" / Int32sb,
    "pos" / Int64sb,
    "size" / Int32sb,
    "index" / Int64sb,
    "term" / Int64sb,
)
INDEX_UNIT = struct_of(INDEX_UNIT_DECLARATION)
INDEX_UNIT_SIZE = 32
assert INDEX_UNIT.size == INDEX_UNIT_SIZE

#: First word of a blank, which fills the rest of a data file; the second word is its length.
BLANK_DECLARATION = Struct("magic" / Int32sb, "size" / Int32sb)
BLANK = struct_of(BLANK_DECLARATION)
BLANK_MAGIC = -1
MIN_BLANK_SIZE = 8
assert BLANK.size == MIN_BLANK_SIZE

MAGIC = 1

_CRC_WORD = struct_of(Struct("crc" / Int32sb))


@value_class(kw_only=True)
class EntryHeader:
    """The 48 bytes before a body; field names as in the declaration."""

    magic: int
    size: int
    index: int
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_length: int


def pack_record(
    body: bytes, *, index: int, term: int, pos: int, previous_chain_crc: int
) -> tuple[bytes, int]:
    """
    A leader's new record (header and body) and its C{chainCrc}.

    C{chainCrc} is the CRC-32 of the previous record's C{chainCrc} as four bytes, then of the header with
    C{bodyCrc} filled and C{chainCrc} 0. It is never 0, because 0 means "not recorded".

    @param previous_chain_crc: C{chainCrc} of the previous record; 0 if there is none.
    """
    length = len(body)
    size = ENTRY_HEADER_SIZE + length
    body_crc = crc32(body)
    if body_crc & 0x8000_0000:
        body_crc -= 0x1_0000_0000
    bare = ENTRY_HEADER.pack(MAGIC, size, index, term, pos, 0, 0, body_crc, length)
    chain = crc32(bare, crc32(_CRC_WORD.pack(previous_chain_crc))) or 1
    if chain & 0x8000_0000:
        chain -= 0x1_0000_0000
    return bare[:36] + _CRC_WORD.pack(chain) + bare[40:] + body, chain


def decode_header(data: bytes | memoryview, offset: int = 0) -> EntryHeader:
    """
    The header at C{offset}, unchecked.

    @raise WireError: fewer than 48 bytes at C{offset}.
    """
    if len(data) - offset < ENTRY_HEADER_SIZE:
        raise WireError(f"entry header: {len(data) - offset} bytes, {ENTRY_HEADER_SIZE} are needed")
    magic, size, index, term, pos, channel, chain_crc, body_crc, body_length = ENTRY_HEADER.unpack_from(
        data, offset
    )
    return EntryHeader(
        magic=magic, size=size, index=index, term=term, pos=pos, channel=channel,
        chain_crc=chain_crc, body_crc=body_crc, body_length=body_length,
    )


def encode_header(header: EntryHeader) -> bytes:
    """The 48 bytes of C{header}, with all fields as given."""
    return ENTRY_HEADER.pack(
        header.magic, header.size, header.index, header.term, header.pos, header.channel,
        header.chain_crc, header.body_crc, header.body_length,
    )


def iterate_records(batch: EntryBatch) -> Iterator[tuple[EntryHeader, bytes]]:
    """
    Header and body of each record of a batch. Not for hot paths: makes an object per entry.

    @raise WireError: sizes that do not add up, or another number of records than C{batch.count}.
    """
    offset = 0
    records = batch.records
    for _ in range(batch.count):
        header = decode_header(records, offset)
        end = offset + header.size
        size = ENTRY_HEADER_SIZE + header.body_length
        if header.size != size or header.body_length < 0 or end > len(records):
            raise WireError(
                f"entry {header.index}: size={header.size}, body_length={header.body_length}, "
                f"{len(records) - offset} bytes left"
            )
        yield header, records[offset + ENTRY_HEADER_SIZE : end]
        offset = end
    if offset != len(records):
        raise WireError(f"batch: {len(records) - offset} bytes after its {batch.count} entries")


def bodies_of(batch: EntryBatch) -> list[bytes]:
    """
    The bodies of a batch, in order.

    @raise WireError: as L{iterate_records}.
    """
    bodies = []
    offset = 0
    records = batch.records
    unpack = ENTRY_HEADER.unpack_from
    for _ in range(batch.count):
        if len(records) - offset < ENTRY_HEADER_SIZE:
            raise WireError(f"batch: {len(records) - offset} bytes left of a {ENTRY_HEADER_SIZE}-byte header")
        fields = unpack(records, offset)
        end = offset + fields[1]
        if fields[8] < 0 or fields[1] != ENTRY_HEADER_SIZE + fields[8] or end > len(records):
            raise WireError(f"entry {fields[2]}: size={fields[1]}, body_length={fields[8]}")
        bodies.append(records[offset + ENTRY_HEADER_SIZE : end])
        offset = end
    if offset != len(records):
        raise WireError(f"batch: {len(records) - offset} bytes after its {batch.count} entries")
    return bodies
