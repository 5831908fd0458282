# -*- test-case-name: tests.broker.store.test_unit_check -*-
"""
Compares a unit of a consume queue with the record to which it points.

A power cut may leave the end of a unit without its beginning, where a sector ends inside the unit: then its
offset is too low and looks like one that was dispatched long ago. Its record tells: it is of another queue,
of another size, or has another place in the queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from dledger.broker.store.records import fixed_size_of
from protocols.wire.rocketmq.layout import FIXED_PARTS, HEAD, MAGIC_V2, TOPIC_LENGTHS

#: Reads up to a number of bytes of the log from an offset on.
ReadLog: TypeAlias = Callable[[int, int], bytes]

_FIXED_SIZE_MAX = FIXED_PARTS[True, True].size
_LENGTH_SIZE = 4


def points_to_record(
    read: ReadLog, topic: str, queue_id: int, *, index: int, offset: int, size: int
) -> bool:
    """
    Whether the record at C{offset} can be the one for which the unit was put.

    @param index: of the unit; a record's own index may be higher, see rule 1 of
        L{dledger.broker.store.consume_queue}.
    @param offset: within the log.
    @raise OSError: reading failed.
    """
    data = read(offset, _FIXED_SIZE_MAX)
    fixed = fixed_size_of(data)
    if not fixed or len(data) < fixed:
        return False
    whole, magic, _, own_queue, _, own_index, own_offset, _, _ = HEAD.unpack_from(data)
    if (whole, own_queue, own_offset) != (size, queue_id, offset) or own_index < index:
        return False
    body_size = int.from_bytes(data[fixed - _LENGTH_SIZE : fixed], "big", signed=True)
    if not 0 <= body_size <= size - fixed:
        return False
    raw = topic.encode("utf-8")
    length = TOPIC_LENGTHS[2 if magic == MAGIC_V2 else 1]
    found = read(offset + fixed + body_size, length.size + len(raw))
    return found[length.size :] == raw and length.unpack_from(found)[0] == len(raw)
