# -*- test-case-name: tests.broker.store.test_records -*-
"""
Message records on their hot roads: laid out by a master, walked by a slave, read for the consume queues.

L{protocols.wire.rocketmq.message} is the readable way to one message; here nothing is made for each record
but what the road needs. The layouts are the same declarations.

Rule: every length is bounded by the file that the record stands in before it is used, and a record
ends at least 8 bytes before the end of its file, where a blank has room.

Source: CommitLog.checkMessageAndReturnSize, DefaultAppendMessageCallback (4.9.8), MessageExtEncoder (5.3.3).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

import attrs

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

#: Every file ends in a blank of at least so many bytes.
MIN_BLANK_SIZE = 8

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.encode()
_TAGS = b"TAGS\x01"

_NOT_QUEUED = (int(SysFlag.PREPARED), int(SysFlag.ROLLBACK))
_BORN_V6, _STORE_V6 = int(SysFlag.BORN_HOST_V6), int(SysFlag.STORE_HOST_V6)
_V6 = _BORN_V6 | _STORE_V6
_INDEXED_PART_SIZE = INDEXED_PART.size
_TOPIC_LENGTH = {MAGIC_V1: TOPIC_LENGTHS[1], MAGIC_V2: TOPIC_LENGTHS[2]}


@attrs.frozen(kw_only=True)
class NewMessage:
    """
    What a master is asked to store.

    @ivar properties_data: copied byte for byte.
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
        """Whether it gets a place in its consume queue: no prepared or rolled back transaction."""
        return self.sys_flag & TRANSACTION_MASK not in _NOT_QUEUED


class Record(NamedTuple):
    """
    What the consume queues need of one record.

    @ivar tags_code: of its tags; for a message that waits for its delay, when it is to be delivered, ms.
    @ivar is_queued: whether it has a place in its consume queue.
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

    @raise ValueError: a topic or properties that no record can hold.
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
            + len(message.properties_data))  # fmt: skip


def fixed_part_of(message: NewMessage) -> tuple[struct.Struct, int, tuple[int, ...], tuple[int, ...]]:
    """
    For the part of a message's record before its body: its form, its flags, and the numbers of its two hosts.

    @return: the form packs size, magic, checksum, queue, flag, queue offset, offset, flags, time of birth,
        the numbers of the host where it was born, store timestamp, those of the host that stores it, number
        of tries, offset of its other half, length of its body.
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
    """What says that the last C{size} bytes of a file are not used."""
    return START.pack(size, MAGIC_BLANK)


def _measure(
    data: bytes | memoryview, at: int, offset: int, room: int
) -> tuple[tuple[int, ...], int, int, int]:
    """
    The lengths of a record, checked.

    @return: its numbers; and where its body, topic and properties begin, from the data's start.
    """
    left = min(len(data) - at, room)
    if left < MIN_MESSAGE_SIZE:
        raise WireError(f"log at {offset}: {left} bytes are too few for a record")
    size, magic = START.unpack_from(data, at)
    length_form = _TOPIC_LENGTH.get(magic)
    if length_form is None:
        raise WireError(f"log at {offset}: magic={magic & 0xFFFFFFFF:08x} is none of a message")
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
                        f"but size={size} leaves {end - properties_at}")  # fmt: skip
    return head, at + form.size, topic_at, properties_at


def check_record(data: bytes | memoryview, at: int, offset: int, room: int) -> tuple[int, bool]:
    """
    That a sound record stands at C{at}: lengths, its own offset, the body's checksum.

    @param offset: of the record in the log.
    @param room: bytes from there to the end of its file.
    @return: its size, and whether it is beyond doubt: checksums do not cover topic and properties, but what
        a crash leaves of a record that was being written is zeroes, which do not occur there.
    @raise WireError: what stands there is not sound.
    """
    head, body_at, topic_at, properties_at = _measure(data, at, offset, room)
    size = head[0]
    if head[6] != offset:
        raise WireError(f"log at {offset}: the record says that it stands at {head[6]}")
    view = memoryview(data)
    crc = crc32(view[body_at : body_at + head[-1]]) & 0x7FFFFFFF
    if crc != head[2] and head[-1]:
        raise WireError(f"log at {offset}: bodyCRC={head[2] & 0xFFFFFFFF:08x}, but its body has {crc:08x}")
    topic = bytes(view[topic_at : properties_at - PROPERTIES_LENGTH.size])
    text = bytes(view[properties_at : at + size])
    return size, bool(topic) and b"\0" not in topic and b"\0" not in text


def store_timestamp_of(data: bytes | memoryview) -> int:
    """
    When the record at the start of C{data} was stored, ms; 0 if there is none.
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
    Value of one property, as Java's map of them would hold it: the last one of that name; None if absent.

    Items without a name or value, or with a second 0x01, are passed over.

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
    The record at C{at}, without looking at its body.

    @param offset: of the record in the log.
    @param room: bytes from there to the end of its file.
    @param delay_levels_ms: of level 1 and on; a higher level is taken for the last.
    @raise WireError: lengths that do not add up.
    """
    head, _, topic_at, properties_at = _measure(data, at, offset, room)
    sys_flag = head[7]
    store_timestamp = head[12 if sys_flag & _BORN_V6 else 11]
    topic = bytes(data[topic_at : properties_at - PROPERTIES_LENGTH.size])
    properties = bytes(data[properties_at : at + head[0]])
    code = _code_of(topic, properties, store_timestamp, delay_levels_ms)
    is_queued = sys_flag & TRANSACTION_MASK not in _NOT_QUEUED
    return Record(head[0], topic, head[3], head[5], code, store_timestamp, is_queued)


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
    The short road to a L{Record}, for what most are: whole, V1, addresses of IPv4, nothing wrong.

    @return: the fields of a L{Record}. None: look closely, by L{read_record}.
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
    Where the records of a stream begin and end, however it is cut.

    Invariant: C{_head} holds the bytes from C{end} to what was fed last, if these are too few to tell where
    the record ends; C{_next} is where the one that is under way ends, or C{end} if that is not known.

    @ivar end: behind the last whole record (or blank) that was fed.
    """

    def __init__(self, file_size: int, end: int) -> None:
        self._file_size = file_size
        self.restart(end)

    def restart(self, end: int) -> None:
        """The next byte that is fed stands at C{end}, where a record begins."""
        self.end = self._fed = self._next = end
        self._head = b""

    def copy(self) -> RecordWalk:
        """A walk that goes on from here by itself."""
        twin = RecordWalk(self._file_size, self.end)
        twin._fed, twin._next, twin._head = self._fed, self._next, self._head
        return twin

    def feed(self, data: bytes | memoryview) -> None:
        """
        Take the next bytes, which do not reach across the end of a file.

        @raise WireError: no record begins where one should; the walk is of no further use then.
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
        self.end, self._next = at, following

    def _short_road(self, data: bytes | memoryview, start: int) -> int:
        """
        Behind the record that is under way, pass over those that begin as most do and have another such one
        behind them: there is no doubt where they end.

        @param start: offset of the data.
        @return: where something begins that is to be looked at closely.
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
        """Size of what begins at C{at} and is no sound record's whole head; 0 if that is still to come."""
        if left >= START_SIZE and START.unpack_from(data, index)[1] == MAGIC_BLANK:
            return room
        if left < min(HEAD_SIZE, room):
            return 0
        if room < MIN_MESSAGE_SIZE:
            raise WireError(f"log at {at}: no blank in the last {room} bytes of the file")
        size, magic, offset = WALKED.unpack_from(data, index)
        if magic not in _TOPIC_LENGTH:
            raise WireError(f"log at {at}: magic={magic & 0xFFFFFFFF:08x} is none of a message or blank")
        if not MIN_MESSAGE_SIZE <= size <= room:
            raise WireError(f"log at {at}: size={size} outside {MIN_MESSAGE_SIZE}..{room}")
        raise WireError(f"log at {at}: the record says that it stands at {offset}")
