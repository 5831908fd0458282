# -*- test-case-name: tests.wire.test_broker_frames -*-
"""
The layouts of a broker's native frames, declared with construct.

The header is that of every native frame (L{protocols.wire.native.FRAME_HEADER_DECLARATION}); the kinds
differ from a ledger's. As there, each fixed part has only big-endian numbers, and C{..._length} is the
length in bytes of a part after it. L{protocols.wire.rocketmq.broker_frames} explains the fields;
docs/wire-format.md shows the layouts as tables, and a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from construct import Int16sb, Int32sb, Int64sb, Struct

#: Code of the remoting request that asks a broker for its version of these frames. A Java broker answers that
#: it does not support the request; a native frame would break the connection to it.
WIRE_VERSION_CODE = 51101
#: Field of the answer with that version, and the version described here.
WIRE_VERSION_FIELD = "brokerWireVersion"
BROKER_WIRE_VERSION = 1
#: Code of the remoting request that asks a broker with access control for a challenge, and the field that has
#: it in the answer, and in the signed question for the version that follows on the same connection.
CHALLENGE_CODE = 51102
CHALLENGE_FIELD = "accessChallenge"

#: Most bodies in one PUT.
PUT_BODIES_MAX = 2048


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
    "born_timestamp" / Int64sb,  # ms since 1970; 0: the arrival
    "count" / Int32sb,  # then topic, properties, "count" lengths (Int32sb), the bodies
)
PUT_ANSWER_DECLARATION = Struct(
    "code" / Int32sb,
    "queue_id" / Int32sb,
    "queue_offset" / Int64sb,  # of the first message
    "store_timestamp" / Int64sb,
    "remark_length" / Int16sb,
    "count" / Int32sb,  # then the remark, "count" log offsets (Int64sb)
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
