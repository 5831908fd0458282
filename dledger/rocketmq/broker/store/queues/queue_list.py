# -*- test-case-name: tests.broker.store.test_queue_list -*-
"""
The list of a store's consume queues that have files. A start finds by it that a queue has lost them.

Lost files leave nothing behind: without the list, a start would take the queue for a new one, hide its
messages, and give their indexes to the next ones. RocketMQ has no such list, and ignores the file.

The file C{consumequeue.list} is ASCII: the CRC-32 of the rest as 8 hexadecimal digits, and one line
C{TOPIC/QUEUEID} for each queue.

Rule 1: a queue is in the list only if its files are on stable storage. Rule 2: it is taken out before its
files are deleted. Rule 3: an absent or damaged list says nothing, as earlier programs wrote none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from functools import partial
from threading import Lock
from zlib import crc32

from dledger.base.disk.disk import Disk

SUFFIX = ".list"

QueueKey = tuple[str, int]


def encode_queue_list(keys: Iterable[QueueKey]) -> bytes:
    """The bytes of the file."""
    lines = "".join(f"{topic}/{queue_id}\n" for topic, queue_id in sorted(keys)).encode("ascii")
    return b"%08x\n%b" % (crc32(lines), lines)


def decode_queue_list(data: bytes) -> frozenset[QueueKey] | None:
    """The queues in the file; None if it is damaged."""
    crc, _, lines = data.partition(b"\n")
    if crc != b"%08x" % crc32(lines):
        return None
    try:
        pairs = [line.rpartition("/") for line in lines.decode("ascii").splitlines()]
        return frozenset((topic, int(queue_id)) for topic, _, queue_id in pairs)
    except ValueError:
        return None


class QueueList:
    """
    The file beside the directory of the queues.

    A flush writes it in another thread, where L{take_out} may meet it.
    """

    def __init__(self, disk: Disk, queues_path: str) -> None:
        """@raise OSError: reading failed."""
        self._disk = disk
        self._path = queues_path + SUFFIX
        self._lock = Lock()
        self._gone: set[QueueKey] = set()
        found = decode_queue_list(disk.read_file(self._path)) if disk.exists(self._path) else None
        self._listed = frozenset[QueueKey]() if found is None else found

    def lacks(self, found: Set[QueueKey]) -> frozenset[QueueKey]:
        """The listed queues that are not among C{found}."""
        return self._listed - found

    def writing(self, keys: frozenset[QueueKey]) -> Callable[[], None]:
        """@return: the last step of a flush: it lists these queues, except those taken out until then."""
        self._gone.clear()
        return partial(self._write, keys)

    def _write(self, keys: frozenset[QueueKey]) -> None:
        with self._lock:
            left = keys - self._gone
            if left != self._listed:
                self._disk.write_file(self._path, encode_queue_list(left))
                self._listed = left

    def take_out(self, keys: frozenset[QueueKey]) -> None:
        """
        The files of these queues will be deleted: write the list without them, or remove it, as a full disk
        has no room for another.

        @raise OSError: the list cannot be removed.
        """
        self._gone |= keys
        try:
            self._write(self._listed)
        except OSError:
            with self._lock:
                self._disk.unlink(self._path)
                self._listed = frozenset()
