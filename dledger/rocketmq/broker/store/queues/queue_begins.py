# -*- test-case-name: tests.broker.test_topics_made_again -*-
"""Where the records of a queue begin that are at or after an offset of the log."""

from __future__ import annotations

from dledger.rocketmq.broker.store.queues.consume_queue import FILLER_SIZE, ConsumeQueue


def index_at(queue: ConsumeQueue, log_offset: int) -> int:
    """
    The index of the first record at or after an offset of the log; C{queue.next_index} if there is none.

    @raise OSError: reading failed.
    """
    low, high = queue.begin_index, queue.next_index
    if queue.log_end <= log_offset:
        return high
    while low < high:
        middle = (low + high) // 2
        (unit,) = queue.read(middle, 1)
        if unit.size != FILLER_SIZE and unit.offset >= log_offset:
            high = middle
        else:
            low = middle + 1
    return low


def begin_from(queue: ConsumeQueue, log_offset: int) -> int:
    """As C{begin_index}, of records at or after an offset of the log. @raise OSError: reading failed."""
    if queue.shown[0] != log_offset:
        queue.shown = log_offset, index_at(queue, log_offset)
    return min(max(queue.shown[1], queue.begin_index), queue.next_index)
