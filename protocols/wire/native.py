# -*- test-case-name: tests.wire.test_push -*-
"""
The header of every native frame, a ledger's (L{protocols.wire.ledger.push_layout}) and a broker's
(L{protocols.wire.rocketmq.broker_layout}), and the bounds that hold for both.
"""

from __future__ import annotations

from functools import lru_cache

from construct import Int8ub, Int32sb, Struct

from protocols.wire.layout import struct_of

NATIVE_FIRST_BYTE = 0xD1
FRAME_VERSION = 1
#: A whole frame, header included.
NATIVE_FRAME_BYTES_MAX = 16777216
FLAG_RESPONSE = 1

FRAME_HEADER_DECLARATION = Struct(
    "first_byte" / Int8ub,  # 0xD1
    "version" / Int8ub,  # 1
    "kind" / Int8ub,  # KINDS of a ledger, BrokerKind of a broker
    "flags" / Int8ub,  # bit 0: an answer
    "opaque" / Int32sb,  # pairs an answer with its request
    "length" / Int32sb,  # bytes that follow this header
)
FRAME_HEADER = struct_of(FRAME_HEADER_DECLARATION)
FRAME_HEADER_SIZE = 12
assert FRAME_HEADER.size == FRAME_HEADER_SIZE

#: Longest text in a frame.
TEXT_BYTES_MAX = 32767


@lru_cache(maxsize=256)  # the same ids and group names repeat
def text_bytes(text: str | None) -> tuple[int, bytes]:
    """Length and bytes of a text in a frame; -1 for none."""
    if text is None:
        return -1, b""
    raw = text.encode("utf-8")
    assert len(raw) <= TEXT_BYTES_MAX, f"text of {len(raw)} bytes"
    return len(raw), raw


@lru_cache(maxsize=256)
def texts_bytes(*texts: str | None) -> tuple[tuple[int, ...], bytes, int]:
    """Length of each text, see L{text_bytes}; their bytes, and the number of these."""
    found = [text_bytes(text) for text in texts]
    joined = b"".join([raw for _, raw in found])
    return tuple([length for length, _ in found]), joined, len(joined)
