# -*- test-case-name: tests.broker.store.test_unit_check -*-
"""
Whether the last unit of a consume queue lost its beginning in a power cut.

Then zeroes are there: its offset is too low, and looks like one that was dispatched long ago. It is not taken
for a torn unit, so that a unit keeps its place when its record is damaged, if one of these is true:

  - other bytes instead of the zeroes cannot make it the offset of a record that was not dispatched;
  - or it is after that of the unit before it, and points to a record of the queue, of the right size, and
    not from before the unit's place in the queue;
  - or it is after that of the unit before it, and the disk cannot read the record;
  - or it is after that of the unit before it, and the record would end before the begin of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import attrs

from dledger.base.disk.unreadable import FILLER
from dledger.rocketmq.store.queues.queue_files import Unit
from dledger.rocketmq.store.records.records import fixed_size_of
from protocols.wire.rocketmq.layout import FIXED_PARTS, HEAD, MAGIC_V2, TOPIC_LENGTHS

#: Reads up to a number of bytes of the log from an offset on.
ReadLog: TypeAlias = Callable[[int, int], bytes]

_FIXED_SIZE_MAX = FIXED_PARTS[True, True].size
_LENGTH_SIZE = 4
#: In what is read of a record, besides its body, only where the disk cannot read it.
_UNREAD = FILLER[:8]
#: Bytes of an offset that a power cut can leave: none, the last one, the last two, ...
_STEPS = tuple(1 << bits for bits in range(0, 64, 8))


@attrs.frozen
class TornUnits:
    """
    Judges units after a crash.

    @ivar read: reads the log.
    @ivar log: bounds of the records that were dispatched before the crash.
    @ivar limit: every record began below this offset.
    """

    read: ReadLog
    log: range
    limit: int

    def is_torn(self, topic: str, queue_id: int, unit: Unit, before: int) -> bool:
        """
        @param before: offset in the unit before it; -1: there is none.
        @raise OSError: reading failed.
        """
        offset = unit.offset
        if not self._may_be_torn(offset):
            return False
        if offset <= before:
            return True
        if offset < self.log.start:
            return offset + unit.size > self.log.start  # a torn filler: a record of before has expired whole
        return not points_to_record(
            self.read, topic, queue_id, index=unit.queue_offset, offset=offset, size=unit.size
        )

    def _may_be_torn(self, offset: int) -> bool:
        """Whether other bytes instead of its zeroes make an offset from the end of C{log} to the limit."""
        for step in _STEPS:
            if offset < step:
                lacking = max(self.log.stop - offset, 0)
                if offset + -(-lacking // step) * step < self.limit:
                    return True
        return False


def points_to_record(
    read: ReadLog, topic: str, queue_id: int, *, index: int, offset: int, size: int
) -> bool:
    """
    Whether the record at C{offset} can be the one for which the unit was put. If the disk cannot read it, it
    can: else a bad sector of the log would hide what is after it.

    @param index: of the unit; a record's own index may be higher, see rule 1 of
        L{dledger.rocketmq.store.queues.consume_queue}.
    @param offset: within the log.
    @raise OSError: reading failed.
    """
    data = read(offset, _FIXED_SIZE_MAX)
    if _UNREAD in data:
        return True
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
    # (With some bytes on both sides: those of a bad sector are at least as many as are looked for.)
    around, needed = len(_UNREAD) - 1, length.size + len(raw)
    found = read(offset + fixed + body_size - around, around + needed + around)
    if _UNREAD in found:
        return True
    found = found[around : around + needed]
    return found[length.size :] == raw and length.unpack_from(found)[0] == len(raw)
