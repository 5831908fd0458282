# -*- test-case-name: tests.broker.test_topics_made_again -*-
"""
Finds the first record of a queue that lies at or after an offset of the log.

A topic that was deleted and made again begins at such an offset: the records of its queues before the offset
are those of the deleted topic, and readers do not get them.
"""

from __future__ import annotations

from dledger.rocketmq.store.queues.consume_queue import ConsumeQueue


def index_at(queue: ConsumeQueue, log_offset: int) -> int:
    """
    The first record of a queue that lies at or after an offset of the log.

    It searches by halves, so it reads about log2(n) of the n units of the queue.

    @param log_offset: bytes from the beginning of the log.
    @return: the record's index in the queue; C{queue.next_index} if there is none.
    @raise OSError: reading failed.
    """
    return queue.first_from(log_offset)


def begin_from(queue: ConsumeQueue, log_offset: int) -> int:
    """
    The index at which readers of a queue begin, if its topic begins at an offset of the log.

    The queue remembers the last answer of L{index_at}, with its offset, because readers ask for the same
    offset again and again; but not that it has no such record yet: earlier ones may be dispatched next.

    @param log_offset: bytes from the beginning of the log.
    @return: as L{index_at}, and within the records that the queue still has.
    @raise OSError: reading failed.
    """
    if queue.begin_found[0] != log_offset:
        found = index_at(queue, log_offset)
        if found == queue.next_index:
            return found
        queue.begin_found = log_offset, found
    return min(max(queue.begin_found[1], queue.begin_index), queue.next_index)
