# -*- test-case-name: tests.wire.test_configuration -*-
"""
The body of a configuration entry: the members of a group, as an entry of its log reports them.

A configuration entry is a record like any other, so Java and its tools read it as an entry. The C{channel} of
its header distinguishes it (L{protocols.wire.ledger.own.own_entries}).

The text is JSON: C{{"learners":{"n3":"host:port"},"voters":{"n0":"host:port"}}}.

Source: none, this is ours; docs/membership.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from construct import Int32sb, Int32ub, Struct

from protocols.wire.checksums import crc32
from protocols.wire.errors import BodyError, WireError
from protocols.wire.fastjson import read_object, write_object
from protocols.wire.layout import struct_of
from protocols.wire.ledger.memberships import MemberLists, member_lists

CONFIGURATION_MAGIC = 0x444C4346  # "DLCF"
CONFIGURATION_VERSION = 1

CONFIGURATION_DECLARATION = Struct(
    "magic" / Int32sb,  # "DLCF"
    "version" / Int32sb,
    "crc" / Int32ub,  # CRC-32 of the text
    "length" / Int32sb,  # bytes of the text, which follows
)
_HEADER = struct_of(CONFIGURATION_DECLARATION)


def encode_configuration(voters: Mapping[str, str], learners: Mapping[str, str]) -> bytes:
    """The body of a configuration entry. No member is in both lists."""
    text = write_object({"learners": dict(sorted(learners.items())), "voters": dict(sorted(voters.items()))})
    return _HEADER.pack(CONFIGURATION_MAGIC, CONFIGURATION_VERSION, crc32(text), len(text)) + text


def decode_configuration(body: bytes) -> MemberLists:
    """
    The members in the body of a configuration entry.

    @raise WireError: it is malformed, or of a later version.
    """
    if len(body) < _HEADER.size:
        raise WireError(f"configuration: {len(body)} bytes, at least {_HEADER.size} are needed")
    magic, version, crc, length = _HEADER.unpack_from(body)
    text = body[_HEADER.size :]
    if magic != CONFIGURATION_MAGIC or length != len(text) or crc32(text) != crc:
        raise WireError("configuration: magic, length or checksum does not fit")
    if version != CONFIGURATION_VERSION:
        raise WireError(f"configuration: version={version}, this program reads {CONFIGURATION_VERSION}: "
                        "upgrade this member")
    try:
        return member_lists(read_object(text))
    except BodyError as error:
        raise WireError(f"configuration: {error}") from None
