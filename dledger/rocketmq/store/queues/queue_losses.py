# -*- test-case-name: tests.broker.store.test_consume_queues,tests.broker.store.test_queue_list -*-
"""
Finds what a consume queue has lost since the list of queues was written: files, or the units in them if a
file is an older copy.

Units cannot be put before others. So what is after a loss is given up, and put again from the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dledger.base.disk.disk import Disk
from dledger.base.disk.unreadable import is_unreadable
from dledger.rocketmq.store.queues.queue_files import FILLER_SIZE, unit_at
from dledger.rocketmq.store.records.store_config import UNIT_SIZE


class QueueLoss(NamedTuple):
    """@ivar is_lost: something is missing. @ivar kept: number of files that stay; later ones must go."""

    is_lost: bool
    kept: int


def loss_of(
    disk: Disk, directory: str, offsets: Sequence[int], file_size: int, *, first: int, last: int,
    log_begin: int,
) -> QueueLoss:
    """
    Compare the files of a queue with the list. One unit of each file is read.

    @param offsets: of its files, at least one.
    @param first: the index at which its first file began. If the first unit that is left is of a record
        before the log, those before it have expired.
    @param last: the index of its last durable unit; -1: there was none.
    @param log_begin: the first offset of the log.
    @raise OSError: reading failed, and not by a bad medium.
    """
    if offsets[0] > first * UNIT_SIZE and _is_in_log(disk, directory, offsets[0], log_begin):
        return QueueLoss(True, 0)
    for count, offset in enumerate(offsets, 1):
        if offset > last * UNIT_SIZE:
            break
        if not _has_unit(disk, directory, min(last, (offset + file_size) // UNIT_SIZE - 1), offset):
            return QueueLoss(True, count)
    return QueueLoss(offsets[-1] + file_size <= last * UNIT_SIZE, len(offsets))


def _is_in_log(disk: Disk, directory: str, offset: int, log_begin: int) -> bool:
    """Whether the log has the record of a file's first unit; yes, if that cannot be read."""
    try:
        unit = unit_at(disk, directory, offset // UNIT_SIZE, offset)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return True
    return unit is not None and unit.size != FILLER_SIZE and unit.offset >= log_begin


def _has_unit(disk: Disk, directory: str, index: int, base: int) -> bool:
    """Whether a file has a unit at an index of the queue; yes, if it cannot be read."""
    try:
        return unit_at(disk, directory, index, base) is not None
    except OSError as error:
        if not is_unreadable(error):
            raise
        return True
