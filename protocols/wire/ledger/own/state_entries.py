# -*- test-case-name: tests.wire.test_state_entries -*-
"""
State entries: about the state of the group (L{dledger.values.ledger.group_state}). It begins anew from this
entry on; or all members take the digest of it as of this entry; or this is the digest that a majority
had at an earlier entry.

Source: none, this is ours; docs/exactly-once.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from construct import Int32ub, Int64sb, Int64ub, Struct

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of

STATE_ENTRY_MAGIC = 0x47535441  # "GSTA"
STATE_ENTRY_VERSION = 1
#: Bytes of a digest of a state: the first ones of its SHA-256. They are there to find accidents.
STATE_DIGEST_BYTES = 8


class StateWord(IntEnum):
    """What a state entry says."""

    BEGIN_ANEW = 1
    TAKE_DIGEST = 2
    DIGEST = 3


STATE_ENTRY_DECLARATION = Struct(
    "magic" / Int32ub,  # "GSTA"
    "version" / Int32ub,
    "crc" / Int32ub,  # CRC-32 of all that follows
    "word" / Int32ub,  # 1: the state begins anew; 2: a digest is taken here; 3: this is that digest
    "index" / Int64sb,  # 3: of the entry at which it was taken; -1 else
    "term" / Int64sb,  # 3: of that entry; -1 else
    "digest" / Int64ub,  # 3: that of a majority; 0 else
)
_ENTRY = struct_of(STATE_ENTRY_DECLARATION)
_CRC_FROM = 12


class StateEntry(NamedTuple):
    """Fields as in the declaration; C{entry_index} is its C{index}."""

    word: StateWord
    entry_index: int = -1
    term: int = -1
    digest: int = 0


def encode_state_entry(entry: StateEntry) -> bytes:
    """The body of a state entry."""
    rest = _ENTRY.pack(0, 0, 0, *entry)[_CRC_FROM:]
    return _ENTRY.pack(STATE_ENTRY_MAGIC, STATE_ENTRY_VERSION, crc32(rest), *entry)


def decode_state_entry(body: bytes) -> StateEntry:
    """
    What the body of a state entry says.

    @raise WireError: it is malformed, or of a later version, or says something else.
    """
    if len(body) != _ENTRY.size:
        raise WireError(f"state entry: {len(body)} bytes, {_ENTRY.size} are needed")
    magic, version, crc, word, index, term, digest = _ENTRY.unpack(body)
    if magic != STATE_ENTRY_MAGIC or crc32(memoryview(body)[_CRC_FROM:]) != crc:
        raise WireError("state entry: its magic or its checksum does not fit")
    if version != STATE_ENTRY_VERSION or word not in list(StateWord):
        raise WireError(f"state entry: version={version} word={word}: upgrade this member")
    if (index < 0 or term < 0) != (word != StateWord.DIGEST):
        raise WireError(f"state entry: word={word} index={index} term={term}")
    return StateEntry(StateWord(word), index, term, digest)
