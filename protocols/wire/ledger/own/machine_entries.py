# -*- test-case-name: tests.wire.test_machine_entries -*-
"""
Machine entries: orders to the state machines of all members, written into the log.

A machine entry is a record like any other, so Java and its tools read it as an entry. There is one order so
far: an entry that the machines cannot apply is skipped.

Source: none, this is ours; docs/machines.md.
"""

from __future__ import annotations

from construct import Int32sb, Int32ub, Int64sb, Struct

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of

MACHINE_ENTRY_MAGIC = 0x4D43484E  # "MCHN"
MACHINE_ENTRY_VERSION = 1
#: The order of L{decode_skip}.
SKIP = 1

MACHINE_ENTRY_DECLARATION = Struct(
    "magic" / Int32sb,  # "MCHN"
    "version" / Int32sb,
    "crc" / Int32ub,  # CRC-32 of all that follows
    "order" / Int32sb,  # 1: skip an entry
    "index" / Int64sb,  # of the entry
)
_ENTRY = struct_of(MACHINE_ENTRY_DECLARATION)
_CRC_FROM = 12


def encode_skip(index: int) -> bytes:
    """The body of the entry that says: no machine applies the entry at C{index}."""
    rest = _ENTRY.pack(0, 0, 0, SKIP, index)[_CRC_FROM:]
    return _ENTRY.pack(MACHINE_ENTRY_MAGIC, MACHINE_ENTRY_VERSION, crc32(rest), SKIP, index)


def decode_skip(body: bytes) -> int:
    """
    Index of the entry that is skipped.

    @raise WireError: the body is malformed, or of a later version, or another order.
    """
    if len(body) != _ENTRY.size:
        raise WireError(f"machine entry: {len(body)} bytes, {_ENTRY.size} are needed")
    magic, version, crc, order, index = _ENTRY.unpack(body)
    if magic != MACHINE_ENTRY_MAGIC or crc32(memoryview(body)[_CRC_FROM:]) != crc:
        raise WireError("machine entry: its magic or its checksum does not fit")
    if version != MACHINE_ENTRY_VERSION or order != SKIP or index < 0:
        raise WireError(
            f"machine entry: version={version} order={order} index={index}: upgrade this member"
        )
    numbers: int = index
    return numbers
