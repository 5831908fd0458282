# -*- test-case-name: tests.broker.store.test_plain_records -*-
"""
The short road of messages into the log, for those that have much in common: what they share is laid out
once.

L{dledger.broker.store.commit_log.CommitLog.append} is the long one, and makes the same bytes of the same
messages; the tests compare them.

Rule: a plain message has been checked by who made it: it fits into a file, and nothing in it is special. It
is no half of a transaction, so it has a place in its queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from dledger.broker.store.records import (
    MIN_BLANK_SIZE,
    NewMessage,
    blank,
    fixed_part_of,
    size_of,
    topic_part_of,
)
from protocols.wire.rocketmq.layout import MAGIC_V1, MAGIC_V2, PROPERTIES_LENGTH, TOPIC_BYTES_MAX


class PlainForm:
    """
    What plain messages share: everything but queue, time of birth, properties and body.

    @ivar topic: theirs.
    @ivar overhead: bytes of a record but for properties and body.
    """

    __slots__ = ("after", "before", "fixed", "magic", "overhead", "sys_flag", "flag", "topic", "topic_part")

    def __init__(self, like: NewMessage) -> None:
        """
        @param like: any of them.
        """
        self.topic = like.topic
        self.flag = like.flag
        self.overhead = size_of(like) - len(like.body) - len(like.properties_data)
        self.magic = MAGIC_V1 if len(like.topic.encode("utf-8")) <= TOPIC_BYTES_MAX[1] else MAGIC_V2
        self.fixed, self.sys_flag, self.before, self.after = fixed_part_of(like)
        self.topic_part = topic_part_of(like.topic)


class PlainMessage(NamedTuple):
    """
    @ivar properties: as they are stored.
    @ivar born_timestamp: ms since 1970.
    """

    form: PlainForm
    queue_id: int
    born_timestamp: int
    properties: bytes
    body: bytes


class Placed(NamedTuple):
    """
    Where plain messages stand.

    @ivar offsets: of their records in the log.
    @ivar queue_offsets: in their queues.
    @ivar end: behind the last record.
    """

    offsets: list[int]
    queue_offsets: list[int]
    end: int
    store_timestamp: int


def lay_out(
    messages: Sequence[PlainMessage], *, end: int, file_size: int, now_ms: int,
    queue_offsets: Mapping[tuple[str, int], int],
) -> tuple[list[tuple[int, bytes]], dict[tuple[str, int], int], Placed]:
    """
    Records, one behind the other.

    @param end: of the log: where the first one stands.
    @param queue_offsets: topic and queue to the offset of its next message.
    @return: writes, by their offsets, each within one file; the queue offsets that have changed; places.
    """
    writes: list[tuple[int, bytes]] = []
    taken: dict[tuple[str, int], int] = {}
    offsets: list[int] = []
    places: list[int] = []
    parts: list[bytes] = []
    start, file_end = end, end - end % file_size + file_size
    pack_length = PROPERTIES_LENGTH.pack
    for form, queue_id, born_timestamp, properties, body in messages:
        body_size, properties_size = len(body), len(properties)
        size = form.overhead + body_size + properties_size
        if size + MIN_BLANK_SIZE > file_end - end:
            parts.append(blank(file_end - end))
            writes.append((start, b"".join(parts)))
            start = end = file_end
            file_end += file_size
            parts = []
        key = (form.topic, queue_id)
        place = taken.get(key)
        if place is None:
            place = queue_offsets.get(key, 0)
        taken[key] = place + 1
        parts += (
            form.fixed.pack(
                size, form.magic, crc32(body) & 0x7FFFFFFF, queue_id, form.flag, place, end, form.sys_flag,
                born_timestamp, *form.before, now_ms, *form.after, 0, 0, body_size,
            ),
            body, form.topic_part, pack_length(properties_size), properties,
        )  # fmt: skip
        offsets.append(end)
        places.append(place)
        end += size
    writes.append((start, b"".join(parts)))
    return writes, taken, Placed(offsets, places, end, now_ms)
