# -*- test-case-name: tests.wire.test_push -*-
"""
The header of every native frame, a ledger's (L{protocols.wire.ledger.push_layout}) and a broker's
(L{protocols.wire.rocketmq.broker_layout}), and the bounds that hold for both.
"""

from __future__ import annotations

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
