# -*- test-case-name: tests.broker.store.test_records -*-
"""
Message records on their hot paths: laid out by a master, walked by a slave, read for the consume queues.

L{protocols.wire.rocketmq.message} is the readable codec of one message; the functions here make only the
objects that their path needs. The layouts are the same declarations.

Rule: every length is checked against the end of the record's file before it is used, and a record ends at
least 8 bytes before the end of its file, where a blank has room.

Source: CommitLog.checkMessageAndReturnSize, DefaultAppendMessageCallback (4.9.8), MessageExtEncoder (5.3.3).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import (
    FIXED_PARTS,
    HEAD,
    HEAD_SIZE,
    INDEXED_PART,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_MESSAGE_SIZE,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_LENGTH,
    START,
    START_SIZE,
    TOPIC_BYTES_MAX,
    TOPIC_LENGTHS,
    TRANSACTION_MASK,
    WALKED,
    SysFlag,
)
from protocols.wire.rocketmq.message import Host, host_numbers, java_hash
from protocols.wire.values import value_class

#: The least size of the blank at the end of every file.
MIN_BLANK_SIZE = 8

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_TAGS = b"TAGS\x01"

_NOT_QUEUED = (int(SysFlag.PREPARED), int(SysFlag.ROLLBACK))
_BORN_V6, _STORE_V6 = int(SysFlag.BORN_HOST_V6), int(SysFlag.STORE_HOST_V6)
_V6 = _BORN_V6 | _STORE_V6
_INDEXED_PART_SIZE = INDEXED_PART.size
_TOPIC_LENGTH = {MAGIC_V1: TOPIC_LENGTHS[1], MAGIC_V2: TOPIC_LENGTHS[2]}


@value_class(kw_only=True)
class NewMessage:
    """
    A message for a master to store.

    @ivar properties_data: stored byte for byte.
    """

    topic: str
    queue_id: int
    body: bytes
    properties_data: bytes
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: Host
    store_host: Host
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @property
    def is_queued(self) -> bool:
        """Whether it gets a queue offset; prepared and rolled back transactions do not."""
        return self.sys_flag & TRANSACTION_MASK not in _NOT_QUEUED


class Record(NamedTuple):
    """
    The fields of one record that the consume queues need.

    @ivar tags_code: hash of its tags; for a delayed message, the time of its delivery, ms.
    @ivar is_queued: whether it belongs in its consume queue.
    """

    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    tags_code: int
    store_timestamp: int
    is_queued: bool


@lru_cache(maxsize=1024)
def _topic_bytes(topic: str) -> bytes:
    return topic.encode("utf-8")


def size_of(message: NewMessage) -> int:
    """
    Bytes of the record.

    @raise ValueError: the length of the topic or the properties is out of bounds.
    """
    topic_length = len(_topic_bytes(message.topic))
    if topic_length > TOPIC_BYTES_MAX[2] or not topic_length:
        raise ValueError(f"topic of {topic_length} bytes; 1 to {TOPIC_BYTES_MAX[2]} are allowed")
    if len(message.properties_data) > PROPERTIES_BYTES_MAX:
        raise ValueError(
            f"properties of {len(message.properties_data)} bytes; {PROPERTIES_BYTES_MAX} are allowed"
        )
    is_v2 = topic_length > TOPIC_BYTES_MAX[1]
    hosts = 12 * (len(message.born_host.address) == 16) + 12 * (len(message.store_host.address) == 16)
    return (MIN_MESSAGE_SIZE + is_v2 + hosts + topic_length + len(message.body)
            + len(message.properties_data))


def fixed_part_of(message: NewMessage) -> tuple[struct.Struct, int, tuple[int, ...], tuple[int, ...]]:
    """
    The part of a message's record before its body: its form, its flags, and the numbers of its two hosts.

    @return: the form packs size, magic, checksum, queue, flag, queue offset, offset, flags, time of birth,
        the numbers of the born host, store timestamp, the numbers of the store host, number of tries,
        offset of the prepared transaction, length of the body.
    """
    born, store = message.born_host, message.store_host
    is_born_v6, is_store_v6 = len(born.address) == 16, len(store.address) == 16
    sys_flag = message.sys_flag & ~(_BORN_V6 | _STORE_V6)
    sys_flag |= _BORN_V6 * is_born_v6 | _STORE_V6 * is_store_v6
    return FIXED_PARTS[is_born_v6, is_store_v6], sys_flag, host_numbers(born), host_numbers(store)


@lru_cache(maxsize=1024)
def topic_part_of(topic: str) -> bytes:
    """Length and bytes of a topic, as a record holds them."""
    raw = _topic_bytes(topic)
    magic = MAGIC_V1 if len(raw) <= TOPIC_BYTES_MAX[1] else MAGIC_V2
    return _TOPIC_LENGTH[magic].pack(len(raw)) + raw


def blank(size: int) -> bytes:
    """The blank that fills the last C{size} bytes of a file."""
    return START.pack(size, MAGIC_BLANK)


def _measure(
    data: bytes | memoryview, at: int, offset: int, room: int
) -> tuple[tuple[int, ...], int, int, int]:
    """
    Check the lengths of a record.

    @return: the numbers of its head; and the indexes in C{data} of its body, topic and properties.
    """
    left = min(len(data) - at, room)
    if left < MIN_MESSAGE_SIZE:
        raise WireError(f"log at {offset}: {left} bytes are too few for a record")
    size, magic = START.unpack_from(data, at)
    length_form = _TOPIC_LENGTH.get(magic)
    if length_form is None:
        raise WireError(f"log at {offset}: magic={magic & 0xFFFFFFFF:08x} is not that of a message")
    if not MIN_MESSAGE_SIZE <= size <= left:
        raise WireError(f"log at {offset}: size={size} outside {MIN_MESSAGE_SIZE}..{left}")
    sys_flag = int.from_bytes(data[at + 36 : at + 40], "big")
    form = FIXED_PARTS[bool(sys_flag & _BORN_V6), bool(sys_flag & _STORE_V6)]
    end = at + size
    topic_at = at + form.size + length_form.size  # of an empty body
    if topic_at + PROPERTIES_LENGTH.size > end:
        raise WireError(f"log at {offset}: size={size} is too small for its addresses")
    head = form.unpack_from(data, at)
    body_length = head[-1]
    if not 0 <= body_length <= end - topic_at - PROPERTIES_LENGTH.size:
        raise WireError(f"log at {offset}: bodyLength={body_length} in a record of {size}")
    topic_at += body_length
    (topic_length,) = length_form.unpack_from(data, topic_at - length_form.size)
    properties_at = topic_at + topic_length + PROPERTIES_LENGTH.size
    if topic_length < 0 or properties_at > end:
        raise WireError(f"log at {offset}: topicLength={topic_length} in a record of {size}")
    (properties_length,) = PROPERTIES_LENGTH.unpack_from(data, properties_at - PROPERTIES_LENGTH.size)
    if properties_at + properties_length != end:
        raise WireError(f"log at {offset}: propertiesLength={properties_length}, "
                        f"but size={size} leaves {end - properties_at}")
    return head, at + form.size, topic_at, properties_at


def check_record(data: bytes | memoryview, at: int, offset: int, room: int) -> tuple[int, bool]:
    """
    Check that the record at C{at} is sound: lengths, its own offset, the body's checksum.

    @param offset: of the record in the log.
    @param room: bytes from there to the end of its file.
    @return: its size, and whether it is beyond doubt: its topic and properties, which no checksum covers,
        have no zero byte, as a crash in the middle of the write would leave.
    @raise WireError: it is not sound.
    """
    head, body_at, topic_at, properties_at = _measure(data, at, offset, room)
    size = head[0]
    if head[6] != offset:
        raise WireError(f"log at {offset}: the record's own offset is {head[6]}")
    view = memoryview(data)
    crc = crc32(view[body_at : body_at + head[-1]]) & 0x7FFFFFFF
    if crc != head[2] and head[-1]:
        raise WireError(f"log at {offset}: bodyCRC={head[2] & 0xFFFFFFFF:08x}, but its body has {crc:08x}")
    topic = bytes(view[topic_at : properties_at - PROPERTIES_LENGTH.size])
    text = bytes(view[properties_at : at + size])
    return size, bool(topic) and b"\0" not in topic and b"\0" not in text


def problem_of(data: bytes | bytearray, offset: int, room: int, size_max: int) -> str | None:
    """
    Check the record or blank at the start of C{data}.

    @param offset: of the record in the log.
    @param room: bytes from there to the end of its file.
    @param size_max: a record is not longer.
    @return: why it is not sound; empty for a sound one; None if C{data} is too short to say.
    """
    if len(data) < START_SIZE:
        return None
    size, magic = START.unpack_from(data)
    if magic == MAGIC_BLANK:
        return ""
    if magic not in _TOPIC_LENGTH:
        return f"log at {offset}: magic={magic & 0xFFFFFFFF:08x} is not that of a message"
    most = min(room - MIN_BLANK_SIZE, size_max)
    if not MIN_MESSAGE_SIZE <= size <= most:
        return f"log at {offset}: size={size} outside {MIN_MESSAGE_SIZE}..{most}"
    if len(data) < size:
        return None
    try:
        check_record(bytes(data[:size]), 0, offset, room - MIN_BLANK_SIZE)
    except WireError as error:
        return str(error)
    return ""


def fixed_size_of(record: bytes) -> int:
    """Bytes of a sound record before its body, which hold its place and its checksum; 0: it is none."""
    if len(record) < HEAD_SIZE or START.unpack_from(record)[1] not in _TOPIC_LENGTH:
        return 0
    flags = HEAD.unpack_from(record)[7]
    return FIXED_PARTS[bool(flags & _BORN_V6), bool(flags & _STORE_V6)].size


def store_timestamp_of(data: bytes | memoryview) -> int:
    """
    Store timestamp of the record at the start of C{data}, ms; 0 without a record.
    """
    if len(data) < HEAD_SIZE + 40:
        return 0
    magic = START.unpack_from(data)[1]
    if magic not in _TOPIC_LENGTH:
        return 0
    is_born_v6 = HEAD.unpack_from(data)[7] & _BORN_V6
    at = HEAD_SIZE + (20 if is_born_v6 else 8)
    return int.from_bytes(data[at : at + 8], "big", signed=True)


@lru_cache(maxsize=4096)
def _tags_code(raw: bytes) -> int:
    return java_hash(raw.decode("utf-8", "replace"))


def property_of(properties: bytes, start: bytes) -> bytes | None:
    """
    Value of one property, as in Java's map: the last one of that name; None if absent.

    Items without a name or value, or with a second 0x01, are skipped.

    @param start: name and 0x01.
    """
    found = None
    at = properties.find(start)
    while at >= 0:
        value_at = at + len(start)
        end = properties.find(b"\x02", value_at)
        if at == 0 or properties[at - 1] == 2:
            value = properties[value_at:] if end < 0 else properties[value_at:end]
            if value and b"\x01" not in value:
                found = value
        at = properties.find(start, value_at)
    return found


def read_record(
    data: bytes | memoryview, at: int, offset: int, room: int, delay_levels_ms: Sequence[int]
) -> Record:
    """
    Read the record at C{at}; skip its body.

    @param offset: of the record in the log.
    @param room: bytes from there to the end of its file.
    @param delay_levels_ms: delays from level 1 on; a level above the last counts as the last.
    @raise WireError: the lengths do not add up.
    """
    head, _, topic_at, properties_at = _measure(data, at, offset, room)
    sys_flag = head[7]
    store_timestamp = head[12 if sys_flag & _BORN_V6 else 11]
    topic = bytes(data[topic_at : properties_at - PROPERTIES_LENGTH.size])
    properties = bytes(data[properties_at : at + head[0]])
    code = _code_of(topic, properties, store_timestamp, delay_levels_ms)
    is_queued = sys_flag & TRANSACTION_MASK not in _NOT_QUEUED
    return Record(head[0], topic, head[3], head[5], code, store_timestamp, is_queued)


def keyed_part_of(record: bytes, offset: int) -> tuple[bytes, bytes, int, int]:
    """
    The parts of a record of any kind that concern its keys.

    @param record: exactly its bytes. @param offset: of the record in the log.
    @return: its topic, its properties, the number of its kind of transaction, its store timestamp.
    @raise WireError: the lengths do not add up.
    """
    head, _, topic_at, properties_at = _measure(record, 0, offset, len(record))
    timestamp = head[12 if head[7] & _BORN_V6 else 11]
    topic = record[topic_at : properties_at - PROPERTIES_LENGTH.size]
    return topic, record[properties_at : head[0]], head[7] & TRANSACTION_MASK, timestamp


def _code_of(topic: bytes, properties: bytes, store_timestamp: int, delay_levels_ms: Sequence[int]) -> int:
    tags = property_of(properties, _TAGS)
    code = _tags_code(tags) if tags else 0
    if topic == _SCHEDULE_TOPIC and delay_levels_ms:
        level = property_of(properties, b"DELAY\x01")
        if level is not None and level.isdigit() and len(level) < 10 and int(level) > 0:
            code = store_timestamp + delay_levels_ms[min(int(level), len(delay_levels_ms)) - 1]
    return code


def read_plain_record(
    data: bytes, at: int, room: int, delay_levels_ms: Sequence[int]
) -> tuple[int, bytes, int, int, int, int, bool] | None:
    """
    The fast path to a L{Record}, for the usual records: whole, V1, IPv4 addresses, sound lengths.

    @return: the fields of a L{Record}; None: use L{read_record}.
    """
    left = min(len(data) - at, room)
    if left < MIN_MESSAGE_SIZE:
        return None
    size, magic, queue_id, queue_offset, sys_flag, timestamp, body_length = INDEXED_PART.unpack_from(data, at)
    topic_at = at + _INDEXED_PART_SIZE + 1 + body_length
    end = at + size
    if magic != MAGIC_V1 or sys_flag & _V6 or size > left or body_length < 0 or topic_at + 2 > end:
        return None
    topic_length = data[topic_at - 1]
    topic_end = topic_at + topic_length
    if topic_length > 127 or topic_end + 2 > end:
        return None
    if PROPERTIES_LENGTH.unpack_from(data, topic_end)[0] != end - topic_end - 2:
        return None
    topic = data[topic_at:topic_end]
    if topic == _SCHEDULE_TOPIC or data.find(_TAGS, topic_end, end) >= 0:
        code = _code_of(topic, data[topic_end + 2 : end], timestamp, delay_levels_ms)
    else:
        code = 0
    is_queued = not sys_flag or sys_flag & TRANSACTION_MASK not in _NOT_QUEUED
    return size, topic, queue_id, queue_offset, code, timestamp, is_queued


class RecordWalk:
    """
    Tracks where the records of a stream begin and end, for pieces of any size.

    Invariant: C{_head} holds all bytes from C{end} on while they are too few to say where the record ends;
    C{_next} is the end of the current record, or C{end} if that is unknown.

    @ivar end: end of the last whole record or blank.
    """

    def __init__(self, file_size: int, end: int) -> None:
        self._file_size = file_size
        self.restart(end)

    def restart(self, end: int) -> None:
        """The next byte is at offset C{end}, where a record begins."""
        self.end = self._fed = self._next = end
        self._head = b""

    def copy(self) -> RecordWalk:
        """An independent walk from the same state."""
        twin = RecordWalk.__new__(RecordWalk)
        twin._file_size = self._file_size
        twin.end = self.end
        twin._fed = self._fed
        twin._next = self._next
        twin._head = self._head
        return twin

    def feed(self, data: bytes | memoryview) -> None:
        """
        Take the next bytes, which must not cross the end of a file.

        @raise WireError: no record begins where one must; the walk is then unusable.
        """
        start = self._fed
        fed = self._fed = start + len(data)
        if self._head:
            start -= len(self._head)
            data = self._head + bytes(data)
            self._head = b""
        file_end = start - start % self._file_size + self._file_size
        unpack, last, least = WALKED.unpack_from, fed - HEAD_SIZE, MIN_MESSAGE_SIZE
        at, following = self.end, self._short_road(data, start)
        while following <= fed:
            at = following
            if at <= last:
                size, magic, offset = unpack(data, at - start)
                if offset == at and least <= size <= file_end - at and magic in _TOPIC_LENGTH:
                    following = at + size
                    continue
            left = fed - at
            if not left:
                break
            whole = self._size(data, at - start, at, left, file_end - at)
            if not whole:
                self._head = bytes(data[at - start :])
                break
            following = at + whole
        self.end = at
        self._next = following

    def _short_road(self, data: bytes | memoryview, start: int) -> int:
        """
        Fast path after the current record: skip records with the usual head that are followed by another
        such head, so that their ends are certain.

        @param start: offset of the data.
        @return: offset of the first record that the slow path must examine.
        """
        unpack, last = WALKED.unpack_from, len(data) - HEAD_SIZE
        index = sure = self._next - start
        while index <= last:
            size, magic, offset = unpack(data, index)
            if offset - index != start or magic != MAGIC_V1 or size < MIN_MESSAGE_SIZE:
                break
            sure = index
            index += size
        return sure + start

    def _size(self, data: bytes | memoryview, index: int, at: int, left: int, room: int) -> int:
        """Size of the blank at C{at}, where no whole sound head begins; 0 if more bytes are needed."""
        if left >= START_SIZE and START.unpack_from(data, index)[1] == MAGIC_BLANK:
            size = START.unpack_from(data, index)[0]
            if size not in (0, room):  # 0: RocketMQ goes on after a torn one
                raise WireError(f"log at {at}: a blank of {size} bytes, where {room} are left{self._sizes()}")
            return room
        if left < min(HEAD_SIZE, room):
            return 0
        if room < MIN_MESSAGE_SIZE:
            raise WireError(f"log at {at}: no blank in the last {room} bytes of the file")
        size, magic, offset = WALKED.unpack_from(data, index)
        if magic not in _TOPIC_LENGTH:
            raise WireError(f"log at {at}: magic={magic & 0xFFFFFFFF:08x} is not that of a message or blank")
        if not MIN_MESSAGE_SIZE <= size <= room:
            reason = self._sizes() if size > room and offset == at else ""
            raise WireError(f"log at {at}: size={size} outside {MIN_MESSAGE_SIZE}..{room}{reason}")
        raise WireError(f"log at {at}: the record's own offset is {offset}")

    def _sizes(self) -> str:
        return f" in a file of {self._file_size}: is mapped_file_size_commit_log the same at both brokers?"
