# -*- test-case-name: tests.sim.test_disk -*-
"""
Files and directories of a disk in memory: what processes read, and what a power cut leaves of it.

See L{dledger.testing.world.disk}, whose parts these are.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from typing import TypeAlias

SECTOR_BYTES = 512
#: What a bad sector costs: the page cache reads whole pages.
PAGE_BYTES = 4096
NO_BARRIER = 1 << 62

#: Where a write is that was not synced, its data, and its number on the disk.
PendingWrite: TypeAlias = tuple[int, bytes, int]


class Inode:
    """
    One file: the cached content, the durable content, and the writes between the two.

    @ivar bad: numbers of the pages that cannot be read until they are written as a whole.
    """

    __slots__ = ("bad", "data", "durable", "modified_s", "pending", "reserved", "sync_failed")

    def __init__(self, size: int, now_s: float) -> None:
        self.data = bytearray(size)
        self.durable = bytearray()
        self.pending: list[PendingWrite] = []
        self.modified_s = now_s
        self.sync_failed = False
        self.reserved = size
        self.bad: set[int] = set()

    def write(self, data: bytes, position: int, number: int) -> None:
        """Write into the page cache; C{number} is the number of the write on this disk."""
        end = position + len(data)
        if self.bad:
            last = end + PAGE_BYTES - 1 if end >= len(self.data) else end
            self.bad.difference_update(range(-(-position // PAGE_BYTES), last // PAGE_BYTES))
        if end > len(self.data):
            self.reserved = end
            self.data.extend(bytes(end - len(self.data)))
        self.data[position:end] = data
        self.pending.append((position, data, number))

    def check_write(self, start: int, end: int, path: str) -> None:
        """
        Write from C{start} to C{end}.

        @raise OSError: the system would have to read a bad page, of which this is a part.
        """
        size = max(len(self.data), end)
        for page in (start // PAGE_BYTES, (end - 1) // PAGE_BYTES):
            low, high = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, size)
            if page in self.bad and not (start <= low and end >= high):
                raise OSError(errno.EIO, "simulated bad sector", path)

    def sync(self, barrier: int = NO_BARRIER, since: int = NO_BARRIER) -> None:
        """Bring the writes up to number C{barrier}, and those after number C{since}, to the platter."""
        durable = self.durable
        if len(durable) < len(self.data):
            durable.extend(bytes(len(self.data) - len(durable)))
        later = []
        for write in self.pending:
            position, data, number = write
            if number <= barrier or number > since:
                durable[position : position + len(data)] = data
            else:
                later.append(write)
        self.pending = later

    def lose_power(self, rng: random.Random) -> None:
        """Reduce the file to a content that a power cut may leave."""
        left = self.durable
        if len(left) < len(self.data):
            if rng.random() < 0.3:
                # The new length was not on the platter yet, so no byte after the old one was.
                self.pending = [(position, data[: len(left) - position], number)
                                for position, data, number in self.pending if position < len(left)]
            else:
                left.extend(bytes(len(self.data) - len(left)))
        for position, data, _ in self.pending:
            for start, piece in _survivors(data, rng):
                end = position + start + len(piece)
                if end > len(left):
                    left.extend(bytes(end - len(left)))
                left[position + start : end] = piece
        self.pending.clear()
        self.data = bytearray(left)
        self.sync_failed = False


def _survivors(data: bytes, rng: random.Random) -> Iterator[tuple[int, bytes]]:
    """The pieces of one unsynced write that reached the platter, with their offsets in it."""
    chance = rng.random()
    if chance < 0.4:
        yield 0, data
    elif chance < 0.7:
        return
    elif chance < 0.9 or len(data) <= SECTOR_BYTES:
        cut = int(rng.random() * (len(data) + 1))
        if rng.random() < 0.8:
            yield 0, data[:cut]
        else:
            yield cut, data[cut:]
    else:
        for start in range(0, len(data), SECTOR_BYTES):
            if rng.random() < 0.5:
                yield start, data[start : start + SECTOR_BYTES]


class SimDirectory:
    """Names, their files at the last sync, and the changes since."""

    __slots__ = ("changes", "durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Inode] = {}
        self.durable: dict[str, Inode] = {}
        self.changes: list[tuple[str, Inode | None]] = []

    def put(self, name: str, inode: Inode | None) -> None:
        """Bind or remove (None) a name."""
        if inode is None:
            del self.entries[name]
        else:
            self.entries[name] = inode
        self.changes.append((name, inode))

    def sync(self) -> None:
        """Make every name durable."""
        self.durable = dict(self.entries)
        self.changes.clear()

    def lose_power(self, rng: random.Random) -> None:
        """Keep or lose changes, per name; a later change of a name is never kept without the earlier ones."""
        stopped: set[str] = set()
        left = self.durable
        for name, inode in self.changes:
            if name in stopped:
                continue
            if rng.random() < 0.5:
                stopped.add(name)
            elif inode is None:
                left.pop(name, None)
            else:
                left[name] = inode
        self.changes.clear()
        self.entries = dict(left)
