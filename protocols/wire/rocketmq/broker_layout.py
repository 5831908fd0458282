# -*- test-case-name: tests.wire.test_broker_frames -*-
"""
The layouts of a broker's native frames: what stands where, declared with construct.

The header is that of every native frame (L{protocols.wire.native.FRAME_HEADER_DECLARATION}); the kinds
are others than a ledger's. As there, each fixed part has big-endian numbers only, and C{..._length} is the
length in bytes of what follows. What a field means is in L{protocols.wire.rocketmq.broker_frames};
docs/wire-format.md shows the same as tables, under a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from construct import Int16sb, Int32sb, Int64sb, Struct

#: Code of the remoting request that asks a broker which version of these frames it understands. Java answers
#: that it does not support the request; a native frame itself would cost the connection.
WIRE_VERSION_CODE = 51101
#: Field of the answer to it, and the version that is described here.
WIRE_VERSION_FIELD = "brokerWireVersion"
BROKER_WIRE_VERSION = 1

#: Most bodies in one PUT.
PUT_BODIES_MAX = 65536


class BrokerKind(IntEnum):
    """Number of a message in the frame header."""

    PUT = 33
    READ = 34
    OFFSETS = 35


PUT_REQUEST_DECLARATION = Struct(
    "topic_length" / Int16sb,
    "properties_length" / Int16sb,
    "queue_id" / Int32sb,  # -1: the broker chooses
    "flag" / Int32sb,  # the application's
    "sys_flag" / Int32sb,
    "born_timestamp" / Int64sb,  # ms since 1970; 0: when it arrives
    "count" / Int32sb,  # then topic, properties, as many lengths (Int32sb), the bodies
)
PUT_ANSWER_DECLARATION = Struct(
    "code" / Int32sb,
    "queue_id" / Int32sb,
    "queue_offset" / Int64sb,  # of the first message
    "store_timestamp" / Int64sb,
    "remark_length" / Int16sb,
    "count" / Int32sb,  # then the remark, as many log offsets (Int64sb)
)
READ_REQUEST_DECLARATION = Struct(
    "begin_offset" / Int64sb,
    "max_bytes" / Int32sb,
    "wait_ms" / Int32sb,
)
READ_ANSWER_DECLARATION = Struct(
    "code" / Int32sb,
    "log_begin_offset" / Int64sb,
    "log_end_offset" / Int64sb,
    "begin_offset" / Int64sb,
    "next_offset" / Int64sb,
    "remark_length" / Int16sb,  # then the remark, the records
)
OFFSETS_REQUEST_DECLARATION = Struct()
OFFSETS_ANSWER_DECLARATION = Struct(
    "code" / Int32sb,
    "begin_offset" / Int64sb,
    "end_offset" / Int64sb,
    "flushed_offset" / Int64sb,
    "file_size" / Int64sb,
    "broker_id" / Int64sb,
    "broker_name_length" / Int16sb,
    "broker_role_length" / Int16sb,
    "remark_length" / Int16sb,  # then name, role, remark
)

#: Fixed parts of requests and answers.
BROKER_REQUEST_DECLARATIONS: Mapping[BrokerKind, Struct] = {
    BrokerKind.PUT: PUT_REQUEST_DECLARATION,
    BrokerKind.READ: READ_REQUEST_DECLARATION,
    BrokerKind.OFFSETS: OFFSETS_REQUEST_DECLARATION,
}
BROKER_ANSWER_DECLARATIONS: Mapping[BrokerKind, Struct] = {
    BrokerKind.PUT: PUT_ANSWER_DECLARATION,
    BrokerKind.READ: READ_ANSWER_DECLARATION,
    BrokerKind.OFFSETS: OFFSETS_ANSWER_DECLARATION,
}
