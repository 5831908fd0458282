# -*- test-case-name: tests.wire.test_state_entries -*-
"""
State entries: orders about the state of the group (L{dledger.ledger.group_state}). There is one so far: from
this entry on the state begins anew.

Source: none, this is ours; docs/exactly-once.md.
"""

from __future__ import annotations

from construct import Int32ub, Struct

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of

STATE_ENTRY_MAGIC = 0x47535441  # "GSTA"
STATE_ENTRY_VERSION = 1
#: The order of L{encode_begin_anew}.
BEGIN_ANEW = 1

STATE_ENTRY_DECLARATION = Struct(
    "magic" / Int32ub,  # "GSTA"
    "version" / Int32ub,
    "crc" / Int32ub,  # CRC-32 of all that follows
    "order" / Int32ub,  # 1: the state begins anew
)
_ENTRY = struct_of(STATE_ENTRY_DECLARATION)
_CRC_FROM = 12


def encode_begin_anew() -> bytes:
    """The body of the entry from which on the state is empty."""
    rest = _ENTRY.pack(0, 0, 0, BEGIN_ANEW)[_CRC_FROM:]
    return _ENTRY.pack(STATE_ENTRY_MAGIC, STATE_ENTRY_VERSION, crc32(rest), BEGIN_ANEW)


def check_begin_anew(body: bytes) -> None:
    """@raise WireError: the body is malformed, or of a later version, or another order."""
    if len(body) != _ENTRY.size:
        raise WireError(f"state entry: {len(body)} bytes, {_ENTRY.size} are needed")
    magic, version, crc, order = _ENTRY.unpack(body)
    if magic != STATE_ENTRY_MAGIC or crc32(memoryview(body)[_CRC_FROM:]) != crc:
        raise WireError("state entry: its magic or its checksum does not fit")
    if version != STATE_ENTRY_VERSION or order != BEGIN_ANEW:
        raise WireError(f"state entry: version={version} order={order}: upgrade this member")
