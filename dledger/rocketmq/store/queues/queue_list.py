# -*- test-case-name: tests.broker.store.test_queue_list -*-
"""
The list of a store's consume queues. A start finds by it that a queue has lost files.

Lost files leave nothing behind: without the list, a start would take the queue for a new one, or its first
files for expired ones, hide its messages, and give their indexes to the next ones. RocketMQ has no such list,
and ignores the file.

The file C{consumequeue.list} is ASCII: the CRC-32 of the rest as 8 hexadecimal digits, and one line
C{TOPIC/QUEUEID FIRST NEXT} for each queue: the index at which its first file begins, C{-} if it has no file,
and the index after its last unit when the list was written.

Rule 1: files are in the list only if they are on stable storage. Rule 2: a queue is taken out before all its
files are deleted; if only some go, as they have expired or the log was cut, the list says so later, and a
start in between puts all records again. Rule 3: an absent or damaged list says nothing: RocketMQ writes
none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from threading import Lock
from typing import NamedTuple

from dledger.base.disk.file_table import QUEUE_LIST
from dledger.base.disk.hints import HintFile, Hints
from protocols.wire.checksums import crc32

QueueKey = tuple[str, int]

#: Index of the first file of a queue that is not listed: above all.
_NO_FILE = 1 << 63


class ListedQueue(NamedTuple):
    """
    What the list has of a queue.

    @ivar first: index at which its first file begins; None: it had no file.
    @ivar next_index: index after its last unit at that time. The next message has this index or a higher one.
    """

    first: int | None
    next_index: int


def encode_queue_list(queues: Mapping[QueueKey, ListedQueue]) -> bytes:
    """The bytes of the file."""
    lines = "".join(
        f"{topic}/{queue_id} {'-' if listed.first is None else listed.first} {listed.next_index}\n"
        for (topic, queue_id), listed in sorted(queues.items())
    ).encode("ascii")
    return b"%08x\n%b" % (crc32(lines), lines)


def _decode_line(line: str) -> tuple[QueueKey, ListedQueue]:
    name, first, next_index = line.split(" ")
    topic, _, queue_id = name.rpartition("/")
    return (topic, int(queue_id)), ListedQueue(None if first == "-" else int(first), int(next_index))


def decode_queue_list(data: bytes) -> dict[QueueKey, ListedQueue] | None:
    """The queues in the file; None if it is damaged."""
    crc, _, lines = data.partition(b"\n")
    if crc != b"%08x" % crc32(lines):
        return None
    try:
        return dict(map(_decode_line, lines.decode("ascii").splitlines()))
    except ValueError:
        return None


class QueueList:
    """
    The file beside the directory of the queues.

    A flush writes it in another thread, where L{take_out} may meet it.

    @ivar is_late: the last flush could not write it.
    """

    def __init__(self, hints: Hints, root: str) -> None:
        """@param root: of the store."""
        self._file = HintFile(hints, QUEUE_LIST, root)
        self._lock = Lock()
        self.is_late = False
        self._gone: set[QueueKey] = set()
        self._listed: Mapping[QueueKey, ListedQueue] = self._file.read(decode_queue_list) or {}

    @property
    def listed(self) -> Mapping[QueueKey, ListedQueue]:
        """The queues in the file."""
        return self._listed

    def bounds_of(self, key: QueueKey) -> tuple[int, int]:
        """
        The index at which the first file of a queue begins, and that of its last unit when the list was
        written; of a queue that is not listed with units, a high one and -1.
        """
        listed = self._listed.get(key)
        if listed is None or listed.first is None:
            return _NO_FILE, -1
        return listed.first, listed.next_index - 1

    def lacks(self, found: Set[QueueKey]) -> frozenset[QueueKey]:
        """The queues that are listed with files and are not among C{found}."""
        with_files = {key for key, listed in self._listed.items() if listed.first is not None}
        return frozenset(with_files - found)

    def writing(self, queues: Mapping[QueueKey, ListedQueue]) -> Callable[[], None]:
        """@return: the last step of a flush: it lists these queues, except those taken out until then."""
        self._gone.clear()
        return partial(self._write, queues)

    def _left(self, queues: Mapping[QueueKey, ListedQueue]) -> dict[QueueKey, ListedQueue]:
        return {key: listed for key, listed in queues.items() if key not in self._gone}

    def _write(self, queues: Mapping[QueueKey, ListedQueue]) -> None:
        with self._lock:
            left = self._left(queues)
            self.is_late = left != self._listed and not self._file.write(encode_queue_list(left))
            if not self.is_late:
                self._listed = left

    def take_out(self, keys: frozenset[QueueKey]) -> None:
        """
        The files of these queues will be deleted: write the list without them, or remove it, as a full disk
        has no room for another.

        @raise OSError: the list cannot be removed.
        """
        self._gone |= keys
        with self._lock:
            left = self._left(self._listed)
            if left != self._listed:
                self._listed = left if self._file.lower(encode_queue_list(left)) else {}
