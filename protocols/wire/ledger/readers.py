# -*- test-case-name: tests.wire.test_readers -*-
"""
Reader entries: how far the programs of one name have read the log, and who of them reads now.

A reader entry is a record like any other, so Java and its tools read it as an entry. Each one holds all that
is known of one reader, and the index of the reader entry before it: it counts only if that is still the last
one (L{dledger.values.ledger.group_state}).

Source: none, this is ours; docs/readers.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

import attrs
from construct import Int8ub, Int16ub, Int32sb, Int32ub, Int64sb, Struct

from protocols.wire.checksums import crc32
from protocols.wire.errors import BodyError, WireError
from protocols.wire.layout import struct_of
from protocols.wire.ledger.owners import OWNER_BYTES_MAX

READER_MAGIC = 0x52444E4D  # "RDNM"
READER_ENTRY_VERSION = 1
#: Longest name of a reader, and of a process of it, bytes of UTF-8.
READER_NAME_BYTES_MAX = 64
#: Parts of one reader that are not done, at most: that many of its processes may read at once.
READER_PARTS_MAX = 64
#: The end of a part without an end, and the begin of a reader that begins after the log.
NO_END = 1 << 62
#: Bounds of a lease, milliseconds.
LEASE_MS_MIN, LEASE_MS_MAX = 500, 3_600_000
#: Most entries of one part.
SHARE_MAX = 1_000_000

READER_ENTRY_DECLARATION = Struct(
    "magic" / Int32sb,  # "RDNM"
    "version" / Int32sb,
    "crc" / Int32ub,  # CRC-32 of all that follows
    "previous" / Int64sb,  # index of the reader entry before of this name; -1: none
    "given_index" / Int64sb,  # the entries from here on are given to no process yet
    "is_forgotten" / Int8ub,  # 0 or 1
    "parts" / Int16ub,  # their number
    "name_length" / Int16ub,  # bytes of the name, which follows
    "owner_length" / Int16ub,  # bytes of the owner, which follows the name; then the parts
)
READER_PART_DECLARATION = Struct(
    "begin" / Int64sb,  # first entry that is not done
    "end" / Int64sb,  # after its last one
    "token" / Int64sb,  # index of the reader entry that gave it to its process; -1: this one
    "lease_ms" / Int32sb,
    "proof" / Int64sb,  # of the secret of its process; 0: it has none
    "silent_ms" / Int32sb,  # that part of the lease is over, as nothing came from its process
    "holder_length" / Int16ub,  # bytes of the id of the process, which follows; 0: given back
)
_HEADER = struct_of(READER_ENTRY_DECLARATION)
_PART = struct_of(READER_PART_DECLARATION)
_CRC_FROM = 12


class ReaderPart(NamedTuple):
    """
    Entries of the log that one process of a reader works on.

    @ivar begin: first one that is not done.
    @ivar end: after the last one; L{NO_END}: it goes on with the log. C{begin == end}: all are done.
    @ivar token: fencing token, index of the entry that gave it; -1 in an entry that is not written yet.
    @ivar holder: id of the process; empty: given back.
    @ivar proof: of its secret, see L{protocols.wire.ledger.owners.proof_of}.
    @ivar silent_ms: what of the lease was over at this entry, as leaders had waited that long for a word of
        the process. Its next word is answered only when an entry with 0 is committed.
    """

    begin: int
    end: int
    token: int
    lease_ms: int
    holder: str
    proof: int = 0
    silent_ms: int = 0

    @property
    def process(self) -> tuple[str, int]:
        """By which its process is known."""
        return self.holder, self.proof


class ReaderState(NamedTuple):
    """
    All that is known of one reader.

    @ivar previous: index of its entry before; -1: none.
    @ivar given_index: the entries from here on are given to no process; L{NO_END} if a part has no end.
    @ivar parts: in order, without overlap, below C{given_index}.
    @ivar owner: who began it, see L{protocols.wire.ledger.owners}; empty: not known.
    """

    name: str
    previous: int
    given_index: int
    parts: tuple[ReaderPart, ...] = ()
    is_forgotten: bool = False
    owner: str = ""

    @property
    def next_index(self) -> int:
        """Every entry before this one is done."""
        return min((part.begin for part in self.parts if part.begin < part.end), default=self.given_index)


@attrs.frozen
class ReaderInfo:
    """
    A reader for people.

    @ivar next_index: every entry before this one is done.
    @ivar lag: committed entries from there on, without those of readers themselves.
    @ivar holders: ids of the processes that have a lease, as far as the member knows.
    @ivar lag_bytes: bytes of the entries from C{next_index} on; -1: not known.
    """

    name: str
    next_index: int
    lag: int
    holders: tuple[str, ...]
    lag_bytes: int = -1


def reader_name_problem(name: str, what: str = "the name of a reader") -> str:
    """What is wrong with a name; empty: nothing."""
    size = len(name.encode("utf-8", "replace"))
    if not 1 <= size <= READER_NAME_BYTES_MAX:
        return f"{what} has {size} bytes, 1 to {READER_NAME_BYTES_MAX} are allowed"
    if not name.isprintable() or name != name.strip():
        return f"{what} is {name!r}: write printable characters, without blanks at its ends"
    return ""


def encode_reader_entry(state: ReaderState) -> bytes:
    """The body of a reader entry."""
    raw, account = state.name.encode(), state.owner.encode()
    assert 0 < len(raw) <= READER_NAME_BYTES_MAX and len(state.parts) <= READER_PARTS_MAX, state
    pieces = [raw, account]
    for begin, end, token, lease_ms, holder, proof, silent_ms in state.parts:
        who = holder.encode()
        pieces += [_PART.pack(begin, end, token, lease_ms, proof, silent_ms, len(who)), who]
    head = _HEADER.pack(
        READER_MAGIC, READER_ENTRY_VERSION, 0, state.previous, state.given_index, state.is_forgotten,
        len(state.parts), len(raw), len(account),
    )
    rest = head[_CRC_FROM:] + b"".join(pieces)
    return head[: _CRC_FROM - 4] + crc32(rest).to_bytes(4, "big") + rest


def decode_reader_entry(body: bytes) -> ReaderState:
    """
    What the body of a reader entry says.

    @raise WireError: it is malformed, or of a later version.
    """
    if len(body) < _HEADER.size:
        raise WireError(f"reader entry: {len(body)} bytes, at least {_HEADER.size} are needed")
    magic, version, crc, previous, given_index, is_forgotten, *lengths = _HEADER.unpack_from(body)
    count, length, owner_length = lengths
    if magic == READER_MAGIC and version != READER_ENTRY_VERSION:
        raise WireError(f"reader entry: version={version}, this program reads {READER_ENTRY_VERSION}: "
                        "upgrade this member")
    if magic != READER_MAGIC or crc32(memoryview(body)[_CRC_FROM:]) != crc:
        raise WireError("reader entry: its magic or its checksum does not fit")
    name, at = _text(body, _HEADER.size, length)
    owner, at = _text(body, at, owner_length)
    parts: list[ReaderPart] = []
    behind = 0
    for _ in range(count):
        if at + _PART.size > len(body):
            raise WireError(f"reader entry: {len(parts)} parts of {count}")
        begin, end, token, lease_ms, proof, silent_ms, length = _PART.unpack_from(body, at)
        holder, at = _text(body, at + _PART.size, length)
        if not behind <= begin <= end <= given_index or token < -1 or not 0 <= silent_ms <= lease_ms or (
            holder and reader_name_problem(holder)
        ):
            raise WireError(f"reader entry: a part of {begin} to {end} after {behind} is malformed")
        behind = end
        parts.append(ReaderPart(begin, end, token, lease_ms, holder, proof, silent_ms))
    problem = reader_name_problem(name)
    if problem or at != len(body) or count > READER_PARTS_MAX or is_forgotten > 1 or (
        previous < -1 or not 0 <= given_index <= NO_END or owner_length > OWNER_BYTES_MAX
    ):
        raise WireError(f"reader entry: {problem or 'malformed'}")
    return ReaderState(name, previous, given_index, tuple(parts), bool(is_forgotten), owner)


def _text(body: bytes, at: int, length: int) -> tuple[str, int]:
    """@return: the text, and where it ends. @raise WireError: it is cut, or not UTF-8."""
    raw = body[at : at + length]
    try:
        if len(raw) == length:
            return raw.decode(), at + length
    except UnicodeDecodeError as error:
        raise WireError(f"reader entry: a text is not UTF-8: {error}") from None
    raise WireError(f"reader entry: {len(raw)} bytes of a text of {length}")


def encode_readers(readers: Iterable[ReaderInfo]) -> bytes:
    """Readers as the text in an answer to READER: JSON in UTF-8."""
    rows = [[one.name, one.next_index, one.lag, list(one.holders), one.lag_bytes] for one in readers]
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()


def decode_readers(text: bytes | None) -> tuple[ReaderInfo, ...]:
    """
    The readers in the text of an answer; columns of later versions are left out.

    @raise BodyError: it is malformed.
    """
    try:
        rows = json.loads(text) if text else []
        return tuple(
            ReaderInfo(
                str(name), int(next_index), int(lag), tuple(map(str, holders)), int(more[0]) if more else -1
            )
            for name, next_index, lag, holders, *more in rows
        )
    except (ValueError, TypeError) as error:
        raise BodyError(f"readers: {error}") from None
