# -*- test-case-name: tests.broker.store.test_plain_records -*-
"""
Lays out the records of messages; the parts that many messages share are laid out once, as a form.

Rule: the caller has checked each message, by L{CommitLog.check
<dledger.rocketmq.store.log.commit_log.CommitLog.check>} or an equal rule: it fits into a file,
together with the messages that must be in the same file.

Source: CommitLog.DefaultAppendMessageCallback (4.9.8), MessageExtEncoder (5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from dledger.rocketmq.store.records.records import (
    MIN_BLANK_SIZE,
    NewMessage,
    blank,
    fixed_part_of,
    size_of,
    topic_part_of,
)
from protocols.wire.checksums import crc32
from protocols.wire.rocketmq.layout import MAGIC_V1, MAGIC_V2, PROPERTIES_LENGTH, TOPIC_BYTES_MAX
from protocols.wire.rocketmq.message import Host

#: The numbers of a record that have 32 bits.
_INT_MIN, INT_MAX = -(2**31), 2**31 - 1


class PlainForm:
    """
    The fields that some messages share: all except queue, time of birth, properties and body.

    @ivar topic: their topic.
    @ivar is_queued: whether they get queue offsets.
    @ivar overhead: bytes of a record without properties and body.
    """

    __slots__ = (
        "after", "before", "fixed", "flag", "is_queued", "magic", "overhead", "sys_flag", "topic",
        "topic_part",
    )

    def __init__(self, like: NewMessage) -> None:
        """
        @param like: any of these messages.
        @raise ValueError: a record has no room for one of its numbers.
        """
        for name in ("flag", "sys_flag", "reconsume_times"):
            if not _INT_MIN <= getattr(like, name) <= INT_MAX:
                raise ValueError(f"{name}={getattr(like, name)} is outside {_INT_MIN}..{INT_MAX}")
        self.topic = like.topic
        self.flag = like.flag
        self.overhead = size_of(like) - len(like.body) - len(like.properties_data)
        self.magic = MAGIC_V1 if len(like.topic.encode("utf-8")) <= TOPIC_BYTES_MAX[1] else MAGIC_V2
        self.is_queued = like.is_queued
        self.fixed, self.sys_flag, self.before, after = fixed_part_of(like)
        self.after = (*after, like.reconsume_times, like.prepared_transaction_offset)
        self.topic_part = topic_part_of(like.topic)


class PlainMessage(NamedTuple):
    """
    @ivar properties: the stored bytes.
    @ivar born_timestamp: ms since 1970.
    @ivar rest: bytes of the following records that must be in the same file.
    """

    form: PlainForm
    queue_id: int
    born_timestamp: int
    properties: bytes
    body: bytes
    rest: int = 0


class Placed(NamedTuple):
    """
    The offsets of stored messages.

    @ivar offsets: of their records in the log.
    @ivar queue_offsets: in their queues; 0 for messages that are in no queue.
    @ivar end: end of the last record.
    """

    offsets: list[int]
    queue_offsets: list[int]
    end: int
    store_timestamp: int


@lru_cache(maxsize=1024)
def _form_of(
    topic: str, flag: int, sys_flag: int, born_host: Host, store_host: Host, reconsume_times: int,
    prepared_transaction_offset: int,
) -> PlainForm:
    return PlainForm(NewMessage(
        topic=topic, queue_id=0, body=b"", properties_data=b"", flag=flag, sys_flag=sys_flag,
        born_timestamp=0, born_host=born_host, store_host=store_host, reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared_transaction_offset,
    ))


def one_try_more(tries: int) -> int:
    """
    The number of tries of a copy.

    @param tries: of the message, which its producer chose: there may be no larger number.
    """
    return min(tries + 1, INT_MAX)


def plain_batch(batch: Sequence[NewMessage]) -> list[PlainMessage]:
    """
    Convert messages that must be in one file together.

    @raise ValueError: see L{PlainForm}.
    """
    messages = []
    rest = 0
    for new in reversed(batch):
        form = _form_of(
            new.topic, new.flag, new.sys_flag, new.born_host, new.store_host, new.reconsume_times,
            new.prepared_transaction_offset,
        )
        messages.append(
            PlainMessage(form, new.queue_id, new.born_timestamp, new.properties_data, new.body, rest)
        )
        rest += form.overhead + len(new.body) + len(new.properties_data)
    messages.reverse()
    return messages


def lay_out(
    messages: Sequence[PlainMessage], *, end: int, file_size: int, now_ms: int,
    queue_offsets: Mapping[tuple[str, int], int],
) -> tuple[list[tuple[int, bytes]], dict[tuple[str, int], int], Placed]:
    """
    Lay out consecutive records.

    @param end: end of the log: offset of the first record.
    @param queue_offsets: topic and queue to the offset of its next message.
    @return: writes, as (offset, bytes), each within one file; the changed queue offsets; all offsets.
    """
    writes: list[tuple[int, bytes]] = []
    taken: dict[tuple[str, int], int] = {}
    offsets: list[int] = []
    places: list[int] = []
    parts: list[bytes] = []
    start, file_end = end, end - end % file_size + file_size
    pack_length = PROPERTIES_LENGTH.pack
    for form, queue_id, born_timestamp, properties, body, rest in messages:
        body_size, properties_size = len(body), len(properties)
        size = form.overhead + body_size + properties_size
        if size + rest + MIN_BLANK_SIZE > file_end - end:
            parts.append(blank(file_end - end))
            writes.append((start, b"".join(parts)))
            start = end = file_end
            file_end += file_size
            parts = []
        place = 0
        if form.is_queued:
            key = (form.topic, queue_id)
            place = taken[key] if key in taken else queue_offsets.get(key, 0)
            taken[key] = place + 1
        parts += (
            form.fixed.pack(
                size, form.magic, crc32(body) & 0x7FFFFFFF, queue_id, form.flag, place, end, form.sys_flag,
                born_timestamp, *form.before, now_ms, *form.after, body_size,
            ),
            body, form.topic_part, pack_length(properties_size), properties,
        )
        offsets.append(end)
        places.append(place)
        end += size
    writes.append((start, b"".join(parts)))
    return writes, taken, Placed(offsets, places, end, now_ms)
