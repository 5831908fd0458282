# -*- test-case-name: tests.wire.test_session_entries -*-
"""
Session entries: which slot is which producer's. One comes before the first entry of a producer, in the same
write, and there is no other one for it as long as the group remembers the producer.

Source: none, this is ours; docs/exactly-once.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from construct import Int8ub, Int16ub, Int32ub, Struct

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of
from protocols.wire.ledger.own.own_entries import SLOT_MAX
from protocols.wire.ledger.owners import OWNER_BYTES_MAX
from protocols.wire.ledger.producers import PRODUCER_ID_BYTES_MAX, producer_problem

SESSION_MAGIC = 0x53455353  # "SESS"
SESSION_ENTRY_VERSION = 1
#: Most sessions in one entry.
SESSIONS_MAX = 1024

SESSION_ENTRY_DECLARATION = Struct(
    "magic" / Int32ub,  # "SESS"
    "version" / Int16ub,
    "count" / Int16ub,  # sessions that follow
    "crc" / Int32ub,  # CRC-32 of the sessions
)
SESSION_DECLARATION = Struct(
    "slot" / Int32ub,  # 1 to SLOT_MAX
    "id_length" / Int8ub,  # bytes of the id of the producer, which follows
    "owner_length" / Int8ub,  # bytes of the owner, which follows the id
)
_HEADER = struct_of(SESSION_ENTRY_DECLARATION)
_SESSION = struct_of(SESSION_DECLARATION)
#: Bytes of the part before the first session, and of one session at most.
SESSION_HEADER_BYTES = _HEADER.size
SESSION_BYTES_MAX = _SESSION.size + PRODUCER_ID_BYTES_MAX + OWNER_BYTES_MAX


class Session(NamedTuple):
    """
    The entries of C{slot} are those of C{producer} from here on.

    @ivar owner: who began it, see L{protocols.wire.ledger.owners}; empty: not known.
    """

    slot: int
    producer: str
    owner: str = ""


def encode_session_entry(sessions: Iterable[Session]) -> bytes:
    """The body of a session entry."""
    pieces, count = [], 0
    for slot, producer, owner in sessions:
        raw, account = producer.encode(), owner.encode()
        assert 0 < len(raw) <= PRODUCER_ID_BYTES_MAX and 0 < slot <= SLOT_MAX, (slot, producer)
        pieces += [_SESSION.pack(slot, len(raw), len(account)), raw, account]
        count += 1
    text = b"".join(pieces)
    return _HEADER.pack(SESSION_MAGIC, SESSION_ENTRY_VERSION, count, crc32(text)) + text


def decode_session_entry(body: bytes) -> tuple[Session, ...]:
    """
    The sessions in the body of a session entry.

    @raise WireError: it is malformed, or of a later version.
    """
    if len(body) < _HEADER.size:
        raise WireError(f"session entry: {len(body)} bytes, at least {_HEADER.size} are needed")
    magic, version, count, crc = _HEADER.unpack_from(body)
    if magic == SESSION_MAGIC and version != SESSION_ENTRY_VERSION:
        raise WireError(f"session entry: version={version}, this program reads {SESSION_ENTRY_VERSION}: "
                        "upgrade this member")
    if magic != SESSION_MAGIC or crc32(memoryview(body)[_HEADER.size :]) != crc or count > SESSIONS_MAX:
        raise WireError("session entry: its magic, its checksum or its count does not fit")
    sessions: list[Session] = []
    at = _HEADER.size
    for _ in range(count):
        if at + _SESSION.size > len(body):
            raise WireError(f"session entry: {len(sessions)} sessions of {count}")
        slot, length, owner_length = _SESSION.unpack_from(body, at)
        begin = at + _SESSION.size
        at = begin + length + owner_length
        try:
            producer, owner = body[begin : begin + length].decode(), body[begin + length : at].decode()
        except UnicodeDecodeError as error:
            raise WireError(f"session entry: an id is not UTF-8: {error}") from None
        problem = producer_problem(producer, 0)
        if problem or at > len(body) or not 0 < slot <= SLOT_MAX or owner_length > OWNER_BYTES_MAX:
            raise WireError(f"session entry: slot={slot}: {problem or 'malformed'}")
        sessions.append(Session(slot, producer, owner))
    if at != len(body):
        raise WireError(f"session entry: {len(body) - at} bytes after its sessions")
    return tuple(sessions)
