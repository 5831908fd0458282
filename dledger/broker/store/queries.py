# -*- test-case-name: tests.broker.store.test_queries -*-
"""
What a consumer is given: messages of a queue from an offset on, and the offset at a time.

Answers are RocketMQ's, status by status, with the offset to ask for next. Messages are visible when they are
in their consume queue. Tags are compared by their hash; a consumer compares the text.

Source: DefaultMessageStore.getMessage, getOffsetInQueueByTime, PullMessageProcessor (4.9.8).
"""

from __future__ import annotations

from enum import Enum

import attrs

from dledger.base.errors import StoreError
from dledger.broker.store.consume_queue import FILLER_SIZE, ConsumeQueue, Unit
from dledger.broker.store.records import check_record, store_timestamp_of
from dledger.broker.store.store import MessageStore
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import START, START_SIZE

#: Units that are looked at for one request, wanted or not.
UNITS_MAX = 4096

#: What Java transfers at once from memory.
COUNT_MAX = 32
BYTES_MAX = 256 * 1024

#: Records with no more than this between them are read together: it costs less than a read.
GAP_BYTES_MAX = 4096

_HEAD_BYTES = 128


class GetStatus(Enum):
    """How a request for messages ended; names are RocketMQ's."""

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

    @ivar records: of the messages, as they stand in the log.
    @ivar next_offset: what to ask for next.
    @ivar begin_offset, end_offset: of the queue: its first message, and behind its last.
    """

    status: GetStatus
    records: tuple[bytes, ...] = ()
    next_offset: int
    begin_offset: int = 0
    end_offset: int = 0


def get_messages(
    store: MessageStore, topic: str, queue_id: int, offset: int, *, is_slave: bool,
    count_max: int = COUNT_MAX, bytes_max: int = BYTES_MAX, tags_codes: frozenset[int] | None = None,
) -> Got:
    """
    Messages of a queue.

    @param offset: in the queue, of the first message wanted.
    @param is_slave: a slave does not correct a consumer's offset: it may only be behind its master.
    @param count_max, bytes_max: at most so much, but one message at least.
    @param tags_codes: hashes of the tags wanted; None for any.
    @raise StoreError: the log or the queue cannot be read.
    """
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return Got(status=GetStatus.NO_MATCHED_LOGIC_QUEUE, next_offset=offset if is_slave else 0)
    begin, end = queue.begin_index, queue.next_index
    if begin <= offset < end:
        try:
            return _collect(store, queue, offset, count_max, bytes_max, tags_codes)
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


def _collect(
    store: MessageStore, queue: ConsumeQueue, offset: int, count_max: int, bytes_max: int,
    tags_codes: frozenset[int] | None,
) -> Got:
    wanted: list[Unit] = []
    total = 0
    removed = False
    units = queue.read(offset, UNITS_MAX if tags_codes is not None else max(count_max, 1))
    following = offset
    for unit in units:
        if tags_codes is not None and unit.tags_code not in tags_codes:
            following = unit.queue_offset + 1
            continue
        if wanted and (len(wanted) >= count_max or total + unit.size > bytes_max):
            break
        following = unit.queue_offset + 1
        if unit.size == FILLER_SIZE or unit.offset < store.log.begin_offset:
            removed = True
            continue
        wanted.append(unit)
        total += unit.size
    records = _records(store, wanted)
    removed = removed or len(records) < len(wanted)
    if records:
        status = GetStatus.FOUND
    elif removed:
        status = GetStatus.MESSAGE_WAS_REMOVING
    else:
        status = GetStatus.NO_MATCHED_MESSAGE
    return Got(status=status, records=tuple(records), next_offset=following, begin_offset=queue.begin_index,
               end_offset=queue.next_index)  # fmt: skip


def _records(store: MessageStore, units: list[Unit]) -> list[bytes]:
    """The records of units in order, those that the log does not have left out. Neighbours are one read."""
    records: list[bytes] = []
    start, data = 0, b""
    for index, unit in enumerate(units):
        at = unit.offset - start
        if not 0 <= at <= len(data) - unit.size:
            start, at = unit.offset, 0
            data = store.log.read(start, _reach(units, index))
        record = data[at : at + unit.size]
        if len(record) == unit.size:
            records.append(record)
    return records


def _reach(units: list[Unit], index: int) -> int:
    """Bytes from the start of a unit's record to the end of the last that is worth reading with it."""
    first = units[index]
    end = first.offset + first.size
    for unit in units[index + 1 :]:
        if not end <= unit.offset <= end + GAP_BYTES_MAX:
            break
        end = unit.offset + unit.size
    return end - first.offset


def record_at(store: MessageStore, offset: int) -> bytes | None:
    """
    The record that begins at an offset of the log; None if no sound one does.

    @raise OSError: the log cannot be read.
    """
    log = store.log
    if not log.begin_offset <= offset <= log.record_end - START_SIZE:
        return None
    room = log.file_size - offset % log.file_size
    start = log.read(offset, START_SIZE)
    size = START.unpack(start)[0] if len(start) == START_SIZE else 0
    if not 0 < size <= min(room, store.config.record_size_max):
        return None
    data = log.read(offset, size)
    try:
        check_record(data, 0, offset, room)
    except WireError:
        return None
    return data


def offset_at(store: MessageStore, topic: str, queue_id: int, timestamp_ms: int) -> int:
    """
    Offset in the queue of the first message that was stored at or after a time; behind the last message if
    all were stored before, 0 if there is no such queue.

    @param timestamp_ms: since 1970.
    @raise StoreError: the log or the queue cannot be read.
    """
    queue = store.queues.get(topic, queue_id)
    if queue is None:
        return 0
    low, high = queue.begin_index, queue.next_index
    try:
        while low < high:
            middle = (low + high) // 2
            (unit,) = queue.read(middle, 1)
            if store_timestamp_of(store.log.read(unit.offset, min(unit.size, _HEAD_BYTES))) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
    except OSError as error:
        raise StoreError(f"looking for a time in {topic}, queue {queue_id}: {error}") from error
    return low
