# -*- test-case-name: tests.broker.store.test_queries -*-
"""
Queries of consumers: messages of a queue from an offset on, and the offset at a time.

Answers have RocketMQ's statuses and the offset for the next request. Messages are visible when they are in
their consume queue. Tags are compared by their hash; a consumer compares the text.

Source: DefaultMessageStore.getMessage, getOffsetInQueueByTime, PullMessageProcessor (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from struct import Struct

import attrs

from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.queues.consume_queue import ConsumeQueue
from dledger.rocketmq.store.queues.queue_files import FILLER_SIZE, UNIT, Unit
from dledger.rocketmq.store.records.records import store_timestamp_of
from dledger.rocketmq.store.records.store_config import UNIT_SIZE
from dledger.rocketmq.store.store import MessageStore
from dledger.values.errors import StoreError
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START, START_SIZE

#: The most units examined for one request, matching or not.
UNITS_MAX = 4096

#: Java's limits of one transfer from memory.
COUNT_MAX = 32
BYTES_MAX = 256 * 1024

#: Bounds of the records whose properties are examined for one request, matching or not; bytes read at once.
FILTERED_RECORDS_MAX = 512
FILTERED_BYTES_MAX = 1024 * 1024
_PIECE_BYTES = 256 * 1024

#: Bytes of the log in which L{count_records} counts.
COUNTED_BYTES_MAX = 16 * 1024 * 1024

_HEAD_BYTES = 128


class GetStatus(Enum):
    """The result of a request for messages; names are RocketMQ's."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@attrs.frozen(kw_only=True)
class Got:
    """
    An answer.

    @ivar records: the messages' records, byte for byte as in the log.
    @ivar next_offset: queue offset for the next request.
    @ivar begin_offset, end_offset: of the queue: its first message, and after its last.
    @ivar examined: number of records whose properties were examined.
    """

    status: GetStatus
    records: tuple[bytes, ...] = ()
    next_offset: int
    begin_offset: int = 0
    end_offset: int = 0
    examined: int = 0


def get_messages(
    store: MessageStore, topic: str, queue_id: int, offset: int, *, is_slave: bool,
    count_max: int = COUNT_MAX, bytes_max: int = BYTES_MAX, tags_codes: frozenset[int] | None = None,
    matches: Callable[[bytes], bool] | None = None,
) -> Got:
    """
    Read messages of a queue.

    @param offset: queue offset of the first message.
    @param is_slave: do not correct a consumer's offset: this slave may only be behind its master.
    @param count_max, bytes_max: limits of the answer; it has at least one message.
    @param tags_codes: hashes of the tags wanted; None for any.
    @param matches: whether a record is wanted; None for any.
    @raise StoreError: the log or the queue cannot be read.
    """
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return Got(status=GetStatus.NO_MATCHED_LOGIC_QUEUE, next_offset=offset if is_slave else 0)
    try:
        begin, end = store.deleted.begin_of(topic, queue), queue.next_index
        if begin <= offset < end:
            if matches is not None:
                got = _filter(store, queue, offset, count_max, bytes_max, matches)
            else:
                got = _collect(store, queue, offset, count_max, bytes_max, tags_codes)
            return got if got.begin_offset == begin else attrs.evolve(got, begin_offset=begin)
    except OSError as error:
        raise StoreError(f"reading messages of {topic}, queue {queue_id}: {error}") from error
    if end == 0:
        status, corrected = GetStatus.NO_MESSAGE_IN_QUEUE, 0
    elif offset < begin:
        status, corrected = GetStatus.OFFSET_TOO_SMALL, begin
    elif offset == end:
        status, corrected = GetStatus.OFFSET_OVERFLOW_ONE, offset
    else:
        status, corrected = GetStatus.OFFSET_OVERFLOW_BADLY, end if begin else begin
    following = offset if is_slave else corrected
    return Got(status=status, next_offset=following, begin_offset=begin, end_offset=end)


@lru_cache(maxsize=256)
def _units(count: int) -> Struct:
    """C{count} units at once."""
    return Struct(UNIT.format[:1] + UNIT.format[1:] * count)


def _collect(
    store: MessageStore, queue: ConsumeQueue, offset: int, count_max: int, bytes_max: int,
    tags_codes: frozenset[int] | None,
) -> Got:
    log_begin, removed = store.log.begin_offset, False
    packed = queue.packed(offset, UNITS_MAX if tags_codes is not None else max(count_max, 1))
    fields = _units(len(packed) // UNIT_SIZE).unpack(packed)
    offsets, sizes = fields[::3], fields[1::3]
    following = offset + len(offsets)
    if tags_codes is not None or sum(sizes) > bytes_max or min(offsets, default=0) < log_begin:
        wanted: list[tuple[int, int]] = []
        total, following = 0, offset
        for at, size, code in zip(offsets, sizes, fields[2::3], strict=True):
            if tags_codes is None or code in tags_codes:
                if wanted and (len(wanted) >= count_max or total + size > bytes_max):
                    break
                if size == FILLER_SIZE or at < log_begin:
                    removed = True
                else:
                    wanted.append((at, size))
                    total += size
            following += 1
        offsets, sizes = tuple(at for at, _ in wanted), tuple(size for _, size in wanted)
    records = store.sound.read(offsets, sizes)
    removed = removed or len(records) < len(offsets)
    if records:
        status = GetStatus.FOUND
    elif removed:
        status = GetStatus.MESSAGE_WAS_REMOVING
    else:
        status = GetStatus.NO_MATCHED_MESSAGE
    return Got(status=status, records=tuple(records), next_offset=following, begin_offset=queue.begin_index,
               end_offset=queue.next_index)


def _filter(
    store: MessageStore, queue: ConsumeQueue, offset: int, count_max: int, bytes_max: int,
    matches: Callable[[bytes], bool],
) -> Got:
    units, count_max = queue.read(offset, FILTERED_RECORDS_MAX), max(count_max, 1)
    found: list[bytes] = []
    removed, following, at = False, offset, 0
    total = examined = examined_bytes = 0
    while at < len(units) and len(found) < count_max and examined_bytes < FILTERED_BYTES_MAX:
        piece: list[Unit] = []
        size = 0
        while at < len(units) and (not piece or size + units[at].size <= _PIECE_BYTES):
            unit = units[at]
            at += 1
            if unit.size == FILLER_SIZE or unit.offset < store.log.begin_offset:
                removed = True
                continue
            piece.append(unit)
            size += unit.size
        following = units[at - 1].queue_offset + 1
        records = store.sound.read([one.offset for one in piece], [one.size for one in piece])
        removed = removed or len(records) < len(piece)
        for record in records:
            examined += 1
            examined_bytes += len(record)
            if not matches(record):
                continue
            if found and (len(found) >= count_max or total + len(record) > bytes_max):
                following, at = _queue_offset_of(record), len(units)  # it is the first of the next request
                break
            found.append(record)
            total += len(record)
    if found:
        status = GetStatus.FOUND
    else:
        status = GetStatus.MESSAGE_WAS_REMOVING if removed else GetStatus.NO_MATCHED_MESSAGE
    return Got(status=status, records=tuple(found), next_offset=following, begin_offset=queue.begin_index,
               end_offset=queue.next_index, examined=examined)


def _queue_offset_of(record: bytes) -> int:
    return int.from_bytes(record[20:28], "big")


def count_records(log: CommitLog, offset: int, *, bytes_max: int = COUNTED_BYTES_MAX) -> tuple[int, int]:
    """
    Count the whole records from C{offset} on, where a record begins, in at most about C{bytes_max} bytes.

    @return: their number, and the offset up to which they were counted.
    @raise OSError: the log cannot be read.
    """
    count, at = 0, offset
    end = min(log.record_end, offset + bytes_max)
    while at < end:
        room = log.file_size - at % log.file_size
        data = log.read(at, min(room, COUNTED_BYTES_MAX // 16))
        index = 0
        while len(data) - index >= START_SIZE:
            size, magic = START.unpack_from(data, index)
            if magic == MAGIC_BLANK:
                index = room
                break
            if size <= 0 or index + size > room or at + index + size > log.record_end:
                return count, at + index
            count += 1
            index += size
        if not index:
            return count, at
        at += index
    return count, at


def stored_ms(store: MessageStore, unit: Unit) -> int:
    """
    Store timestamp of the record of a unit, ms since 1970; 0 if the log has it no more: files of the log are
    deleted before those of the queues, which may fail.

    @raise OSError: the log cannot be read.
    """
    if unit.offset < store.log.begin_offset:
        return 0
    return store_timestamp_of(store.log.read(unit.offset, min(unit.size, _HEAD_BYTES)))


def offset_at(store: MessageStore, topic: str, queue_id: int, timestamp_ms: int) -> int:
    """
    Queue offset of the first message that was stored at or after a time; after the last message if all were
    stored before, 0 if the queue does not exist.

    @param timestamp_ms: since 1970.
    @raise StoreError: the log or the queue cannot be read.
    """
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return 0
    try:
        low, high = store.deleted.begin_of(topic, queue), queue.next_index
        while low < high:
            middle = (low + high) // 2
            (unit,) = queue.read(middle, 1)
            if unit.size == FILLER_SIZE:
                high = middle  # its message is lost: rather one that was stored before the time
            elif unit.offset < store.log.begin_offset or stored_ms(store, unit) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
    except OSError as error:
        raise StoreError(f"searching for a time in {topic}, queue {queue_id}: {error}") from error
    return low
