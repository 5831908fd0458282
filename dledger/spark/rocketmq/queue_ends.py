# -*- test-case-name: tests.spark.test_commit_log -*-
"""
How far a broker's commit log reached, as the files beside it report: consume queues and the checkpoint.

A commit log ends where no sound message follows, so files that are gone, cut or zeroed at its end are not
missed by looking at it alone. A consume queue names places of messages, and is written after them: the log
reaches the end of the last one that any queue names. The checkpoint has the store time of a message that was
on stable storage: the log has one of that time, or of a later one.

Knows nothing of messages. Queues that RocketMQ 5 keeps in RocksDB are not looked at.

Source: ConsumeQueue.java, StoreCheckpoint.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np

QUEUES_NAME, CHECKPOINT_NAME = "consumequeue", "checkpoint"
#: Offset in the log and size of a message, and a hash of its tags.
UNIT = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
#: Size in a unit that represents no message, where a queue begins in the middle of a file.
FILLER_SIZE = 0x7FFFFFFF
_NAME = re.compile(r"\d{20}", re.ASCII)


@attrs.frozen(kw_only=True)
class ReportedEnd:
    """
    @ivar end: byte of the log after the last message that a queue names; 0: none is named.
    @ivar place: file of the queue.
    @ivar stored_ms: store time of a message that was on stable storage; 0: not known.
    """

    end: int = 0
    place: str = ""
    stored_ms: int = 0


def store_root(directory: str) -> str | None:
    """The root of the store whose commit log is in C{directory}; None if neither file is beside it."""
    root = os.path.dirname(directory.rstrip("/"))
    has_any = any(os.path.exists(f"{root}/{name}") for name in (QUEUES_NAME, CHECKPOINT_NAME))
    return root if has_any else None


def reported_end(root: str) -> ReportedEnd:
    """
    Look at the queues and the checkpoint of a store. To be compared with a log that is looked at later.

    @raise OSError: they cannot be read.
    """
    end, place = max(map(_queue_end, _queues(root)), default=(0, ""))
    try:
        with open(f"{root}/{CHECKPOINT_NAME}", "rb") as file:
            stored_ms = int.from_bytes(file.read(8), "big", signed=True)
    except FileNotFoundError:
        stored_ms = 0
    return ReportedEnd(end=end, place=place, stored_ms=max(stored_ms, 0))


def _queues(root: str) -> Iterator[Path]:
    """Directories of queues: topic, then queue."""
    for topic in _listed(Path(root, QUEUES_NAME)):
        yield from _listed(topic)


def _listed(directory: Path) -> list[Path]:
    """Empty if there is none: a broker deletes topics."""
    try:
        return sorted(directory.iterdir()) if directory.is_dir() else []
    except FileNotFoundError:
        return []


def _queue_end(queue: Path) -> tuple[int, str]:
    """Where the last message of a queue ends; 0 if it names none."""
    for path in reversed([one for one in _listed(queue) if _NAME.fullmatch(one.name)]):
        try:
            with open(path, "rb") as file:
                unit = _last_unit(file.fileno())
        except FileNotFoundError:
            continue
        if unit is not None:
            size = int(unit["size"])
            return (int(unit["offset"]) + size if size != FILLER_SIZE else 0), str(path)
    return 0, ""


def _last_unit(fd: int) -> np.void | None:
    """The last unit of a file that is used: those after it are zeros."""
    low, high = 0, os.fstat(fd).st_size // UNIT.itemsize
    found: np.void | None = None
    while low < high:
        middle = (low + high) // 2
        unit = np.frombuffer(os.pread(fd, UNIT.itemsize, middle * UNIT.itemsize), dtype=UNIT, count=1)[0]
        if unit["size"] > 0 and unit["offset"] >= 0:
            found, low = unit, middle + 1
        else:
            high = middle
    return found
