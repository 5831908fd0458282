# -*- test-case-name: tests.wire.test_rocketmq_message -*-
"""
The layout of the records in a RocketMQ commit log; L{protocols.wire.rocketmq.message} reads and writes them.

All integers are big-endian and signed, except the bytes of addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag

from construct import Bytes, IfThenElse, Int8sb, Int16sb, Int32sb, Int32ub, Int64sb, Int64ub, Struct, this

from protocols.wire.layout import struct_of, struct_of_some

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
#: Since 5.1.0, for topics of more than 127 bytes: the length word of the topic has two bytes.
MAGIC_V2 = 0xDAA320AB - (1 << 32)
#: Second word of the blank after the last message of a commit log file; the first word is its length.
MAGIC_BLANK = 0xCBD43194 - (1 << 32)

START_DECLARATION = Struct("size" / Int32sb, "magic" / Int32sb)
START = struct_of(START_DECLARATION)
START_SIZE = 8

#: The first fields of every record.
HEAD_DECLARATION = Struct(
    "size" / Int32sb,  # whole record
    "magic" / Int32sb,
    "body_crc" / Int32sb,
    "queue_id" / Int32sb,
    "flag" / Int32sb,  # the application's
    "queue_offset" / Int64sb,  # in its consume queue, counted in messages
    "physical_offset" / Int64sb,  # log offset of this record
    "sys_flag" / Int32sb,
    "born_timestamp" / Int64sb,  # ms since 1970, of the producer
)
HEAD = struct_of(HEAD_DECLARATION)
HEAD_SIZE = 48
assert HEAD.size == HEAD_SIZE
#: Of the head, the fields that lead from one record to the next: size, magic, physical offset.
WALKED = struct_of_some(HEAD_DECLARATION, "size", "magic", "physical_offset")

_V4 = {name: (f"{name}_address" / Int32ub, f"{name}_port" / Int32sb) for name in ("born", "store")}
_V6 = {
    name: (f"{name}_address_high" / Int64ub, f"{name}_address_low" / Int64ub, f"{name}_port" / Int32sb)
    for name in ("born", "store")
}


def _middle(born: Mapping[str, tuple[object, ...]], store: Mapping[str, tuple[object, ...]]) -> Struct:
    return Struct(
        *born["born"],
        "store_timestamp" / Int64sb,  # ms since 1970, of the broker
        *store["store"],
        "reconsume_times" / Int32sb,
        "prepared_transaction_offset" / Int64sb,
        "body_length" / Int32sb,
    )


#: The fields after the head, by C{(born host is IPv6, store host is IPv6)}.
MIDDLE_DECLARATIONS: Mapping[tuple[bool, bool], Struct] = {
    (is_born_v6, is_store_v6): _middle(_V6 if is_born_v6 else _V4, _V6 if is_store_v6 else _V4)
    for is_born_v6 in (False, True)
    for is_store_v6 in (False, True)
}
MIDDLES = {key: struct_of(declaration) for key, declaration in MIDDLE_DECLARATIONS.items()}
_FIXED = {
    key: Struct(*HEAD_DECLARATION.subcons, *middle.subcons) for key, middle in MIDDLE_DECLARATIONS.items()
}
#: Head and middle at once.
FIXED_PARTS = {key: struct_of(declaration) for key, declaration in _FIXED.items()}
#: Of a record with IPv4 addresses, the fields that consume queues need: size, magic, queue, place in it,
#: flags, store timestamp, length of the body.
INDEXED_PART = struct_of_some(
    _FIXED[False, False], "size", "magic", "queue_id", "queue_offset", "sys_flag", "store_timestamp",
    "body_length",
)
#: Of a record with IPv4 addresses, the fields that lead to its body: size, magic, checksum, flags, length of
#: the body.
BODY_PART = struct_of_some(
    _FIXED[False, False], "size", "magic", "body_crc", "sys_flag", "body_length"
)
#: The same fields and the record's own offset, which is before the flags.
SOUND_PART = struct_of_some(
    _FIXED[False, False], "size", "magic", "body_crc", "physical_offset", "sys_flag", "body_length"
)

TOPIC_LENGTH_DECLARATIONS = {1: Struct("length" / Int8sb), 2: Struct("length" / Int16sb)}
TOPIC_LENGTHS = {key: struct_of(declaration) for key, declaration in TOPIC_LENGTH_DECLARATIONS.items()}
PROPERTIES_LENGTH_DECLARATION = Struct("length" / Int16sb)
PROPERTIES_LENGTH = struct_of(PROPERTIES_LENGTH_DECLARATION)

#: The whole record. The specification of L{decode_message}, which reads it piece by piece with bounds.
MESSAGE_DECLARATION = Struct(
    "head" / HEAD_DECLARATION,
    "middle"
    / IfThenElse(
        this.head.sys_flag & 0x10,
        IfThenElse(
            this.head.sys_flag & 0x20, MIDDLE_DECLARATIONS[True, True], MIDDLE_DECLARATIONS[True, False]
        ),
        IfThenElse(
            this.head.sys_flag & 0x20, MIDDLE_DECLARATIONS[False, True], MIDDLE_DECLARATIONS[False, False]
        ),
    ),
    "body" / Bytes(this.middle.body_length),
    "topic_length" / IfThenElse(this.head.magic == MAGIC_V2, Int16sb, Int8sb),
    "topic" / Bytes(this.topic_length),
    "properties_length" / Int16sb,
    "properties" / Bytes(this.properties_length),
)

#: One message in the body of a batch request; body and properties each follow their length.
BATCH_ITEM_DECLARATION = Struct(
    "size" / Int32sb,
    "magic" / Int32sb,  # 0
    "body_crc" / Int32sb,  # 0
    "flag" / Int32sb,
    "body_length" / Int32sb,
)
BATCH_ITEM = struct_of(BATCH_ITEM_DECLARATION)

#: In DLedger mode, bytes from the start of an entry's record to the start of its message.
DLEDGER_BODY_OFFSET = 48

#: In DLedger mode, topic of the record with which a leader of ours begins a term. No client uses it.
TERM_START_TOPIC = "RMQ_SYS_TERM_START"
#: In DLedger mode, topic of the records in which a master of ours carries its metadata.
METADATA_TOPIC = "RMQ_SYS_METADATA"
#: Topics of our own: of messages that wait for a time of their own, and of notes which of them are delivered.
TIMED_TOPIC, TIMED_DONE_TOPIC = "RMQ_SYS_TIMED", "RMQ_SYS_TIMED_DONE"
#: Topic of our own: of the notes which topics were deleted. The body of each is the name of a topic.
DELETED_TOPIC = "RMQ_SYS_DELETED"

#: Bytes of the smallest record: IPv4, version 1, empty body, topic and properties.
MIN_MESSAGE_SIZE = 91
TOPIC_BYTES_MAX = {1: 127, 2: 32767}
PROPERTIES_BYTES_MAX = 32767

#: Separators after the name and after the value of a property.
NAME_END, VALUE_END = "\x01", "\x02"


class SysFlag(IntFlag):
    """Bits of C{sys_flag}. Transactions and compressions are numbers in it, not bits: see L{Message}."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20
    NEED_UNWRAP = 0x40
    INNER_BATCH = 0x80
    LZ4 = 0x100
    ZSTD = 0x200
    ZLIB = 0x300


TRANSACTION_MASK, COMPRESSION_MASK = 0xC, 0x700
