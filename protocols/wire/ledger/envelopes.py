# -*- test-case-name: tests.wire.test_envelopes -*-
"""
Envelopes: the time and the headers of an entry, before the program's body, inside the body of the record.

Java and members know nothing of them: for these an envelope is the beginning of the body. A client that is
asked to puts its bodies into envelopes, and a client that reads takes them out again.

Rule 1: a body is an envelope only if all of it fits: the magic of 8 bytes, the version, the flags, the
lengths, the headers, and a CRC-32 over them. Magic and CRC are 96 bits, which do not come together by
accident. Every other body is the program's, as it is: reading one never fails.
Rule 2: a client of ours puts every body that begins with the magic into an envelope, also without being
asked. So a program reads the bytes that it has appended, with any content.
Rule 3: a time, headers and a body have one envelope: L{decode_envelope} takes only bytes that
L{envelope_head} makes.

Source: none, this is ours; docs/envelopes.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from construct import Int8ub, Int16ub, Int32ub, Int64sb, Int64ub, Struct

from protocols.wire.checksums import crc32
from protocols.wire.layout import struct_of

#: 0xFF, C{DLENV}, carriage return, line feed: never the beginning of a text in UTF-8.
ENVELOPE_MAGIC = b"\xffDLENV\r\n"
ENVELOPE_VERSION = 1
#: Flag: the entry has a time.
HAS_TIME = 1
#: Latest time, milliseconds since 1970: the end of the year 9999.
TIME_MS_MAX = 253_402_300_799_999
#: Headers of one entry, at most; bytes of a name, in UTF-8; bytes of all of them as they are encoded.
HEADERS_MAX, HEADER_NAME_BYTES_MAX, HEADERS_BYTES_MAX = 32, 64, 8_192
#: Name of the header that says what an entry is about.
KEY_HEADER = "key"

ENVELOPE_DECLARATION = Struct(
    "magic" / Int64ub,
    "crc" / Int32ub,  # CRC-32 of all that follows up to the program's body
    "version" / Int8ub,
    "flags" / Int8ub,  # HAS_TIME
    "headers_length" / Int16ub,  # bytes of the headers, which follow; then the program's body
    "time_ms" / Int64sb,  # since 1970; 0 without HAS_TIME
)
ENVELOPE_HEADER_DECLARATION = Struct(
    "name_length" / Int8ub,  # bytes of the name, which follows; then the value
    "value_length" / Int16ub,
)
_FIXED = struct_of(ENVELOPE_DECLARATION)
_HEADER = struct_of(ENVELOPE_HEADER_DECLARATION)
ENVELOPE_BYTES_MIN = _FIXED.size
#: Most that an envelope adds to a body.
ENVELOPE_BYTES_MAX = ENVELOPE_BYTES_MIN + HEADERS_BYTES_MAX
_MAGIC_NUMBER = int.from_bytes(ENVELOPE_MAGIC, "big")
_CRC_FROM = 12


class Envelope(NamedTuple):
    """
    What the body of a record says.

    @ivar body: the program's.
    @ivar time_ms: milliseconds since 1970; None: not reported.
    @ivar headers: by name, in the order of their writer.
    """

    body: bytes
    time_ms: int | None
    headers: dict[str, bytes]


def _is_name(text: str) -> bool:
    return text.isprintable() and text == text.strip()


def _shown(name: object) -> str:
    return repr(name)[:80]


def headers_problem(headers: object) -> str:
    """What is wrong with headers; empty: nothing."""
    if not isinstance(headers, Mapping):
        return f"headers must be a mapping of str to bytes, not {type(headers).__name__}"
    if len(headers) > HEADERS_MAX:
        return f"{len(headers)} headers; at most {HEADERS_MAX} are allowed"
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str):
            return f"the name of a header must be str, not {type(name).__name__}: {_shown(name)}"
        name_size = len(name.encode("utf-8", "replace"))
        if not 1 <= name_size <= HEADER_NAME_BYTES_MAX:
            return (f"the name of header {_shown(name)} has {name_size} bytes, 1 to {HEADER_NAME_BYTES_MAX} "
                    "are allowed")
        if not _is_name(name):
            return f"header {_shown(name)}: write printable characters, without blanks at its ends"
        if not isinstance(value, bytes):
            return f"the value of header {_shown(name)} must be bytes, not {type(value).__name__}"
        size += _HEADER.size + name_size + len(value)
    if size > HEADERS_BYTES_MAX:
        return (f"{len(headers)} headers of {size} bytes, names and {_HEADER.size} bytes for each included; "
                f"at most {HEADERS_BYTES_MAX} are allowed")
    return ""


def time_problem(time_ms: int) -> str:
    """What is wrong with a time; empty: nothing."""
    if 0 <= time_ms <= TIME_MS_MAX:
        return ""
    return (f"the time of an entry would be {time_ms} ms since 1970, 0 to {TIME_MS_MAX} (the year 9999) are "
            "allowed: is the clock of this machine right?")


def envelope_head(time_ms: int | None, headers: Mapping[str, bytes]) -> bytes:
    """
    An envelope up to the program's body, which follows. It is the same for all bodies of one time.

    @param time_ms: milliseconds since 1970; None: not reported. Sound, as C{headers}.
    """
    pieces = []
    for name, value in headers.items():
        raw = name.encode()
        pieces += [_HEADER.pack(len(raw), len(value)), raw, value]
    text = b"".join(pieces)
    head = _FIXED.pack(
        _MAGIC_NUMBER, 0, ENVELOPE_VERSION, 0 if time_ms is None else HAS_TIME, len(text), time_ms or 0
    )
    rest = head[_CRC_FROM:] + text
    return head[: _CRC_FROM - 4] + crc32(rest).to_bytes(4, "big") + rest


def guarded(body: bytes) -> bytes:
    """The body to append without time and headers, so that readers see C{body}: nearly always itself."""
    return _BARE + body if body.startswith(ENVELOPE_MAGIC) else body


def decode_envelope(body: bytes) -> Envelope | None:
    """
    What the body of a record says, if it is an envelope.

    @return: None: it is none, or one of a later version, or damaged: the body is the program's, as it is.
    """
    if not body.startswith(ENVELOPE_MAGIC) or len(body) < _FIXED.size:
        return None
    _magic, crc, version, flags, length, time_ms = _FIXED.unpack_from(body)
    begin = _FIXED.size + length
    if version != ENVELOPE_VERSION or flags & ~HAS_TIME or begin > len(body) or length > HEADERS_BYTES_MAX:
        return None
    if not 0 <= time_ms <= (TIME_MS_MAX if flags else 0) or crc32(body[_CRC_FROM:begin]) != crc:
        return None
    headers = _headers_in(body[_FIXED.size : begin]) if length else {}
    if headers is None:
        return None
    return Envelope(body[begin:], time_ms if flags else None, headers)


def without_time(body: bytes) -> bytes | Envelope:
    """What two attempts to append one body have in common: of an envelope all but its time."""
    if not body.startswith(ENVELOPE_MAGIC):
        return body
    envelope = decode_envelope(body)
    return body if envelope is None else envelope._replace(time_ms=None)


_BARE = envelope_head(None, {})


def _headers_in(text: bytes) -> dict[str, bytes] | None:
    """The headers that an envelope shows; None: they are malformed."""
    headers: dict[str, bytes] = {}
    at, end = 0, len(text)
    while at < end:
        if at + _HEADER.size > end or len(headers) == HEADERS_MAX:
            return None
        name_length, value_length = _HEADER.unpack_from(text, at)
        value_at = at + _HEADER.size + name_length
        at = value_at + value_length
        if at > end:
            return None
        try:
            name = text[value_at - name_length : value_at].decode()
        except UnicodeDecodeError:
            return None
        if not 1 <= name_length <= HEADER_NAME_BYTES_MAX or not _is_name(name) or name in headers:
            return None
        headers[name] = text[value_at:at]
    return headers
