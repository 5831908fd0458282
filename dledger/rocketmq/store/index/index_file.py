# -*- test-case-name: tests.broker.store.test_index_file -*-
"""
One file of the index of messages by key, in RocketMQ's form.

A file has a header, slots, and entries. A key belongs to a slot by its hash; the slot has the number of the
newest entry, and each entry the number of the one before it in the same slot. Entry 0 is never used.

The slots of the file that is written are in memory, in the order of this machine's bytes. Entries are written
soon, slots and header by a flush only, after the entries are on stable storage. So a crash leaves slots that
are at most too new, and L{IndexFile.unwind} follows each back to an entry from before.

Rule: the number of an entry falls along a chain, and each entry of a chain belongs to its slot; else the file
is damaged. No search follows such a chain.

Source: IndexFile.java, IndexHeader.java (4.9.8, 5.3.3).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs
from construct import Int32sb, Int64sb, Struct

from dledger.base.disk.disk import Disk, File
from dledger.values.errors import StoreError
from protocols.wire.layout import struct_of

HEADER_DECLARATION = Struct(
    "begin_timestamp" / Int64sb,  # store timestamp of the first record, ms
    "end_timestamp" / Int64sb,  # of the last record
    "begin_offset" / Int64sb,  # of the first record in the log
    "end_offset" / Int64sb,  # of the last record
    "slot_count" / Int32sb,  # slots that have an entry
    "index_count" / Int32sb,  # number of the next entry; the first is 1
)
HEADER = struct_of(HEADER_DECLARATION)
ENTRY_DECLARATION = Struct(
    "key_hash" / Int32sb,  # Java's hash of TOPIC#KEY, without its sign
    "offset" / Int64sb,  # of the record in the log
    "seconds" / Int32sb,  # from the first record of the file to this one
    "previous" / Int32sb,  # number of the entry before it in the slot; 0: none
)
ENTRY = struct_of(ENTRY_DECLARATION)
SLOT_SIZE = 4

#: Slots of a page, which is written as a whole.
_PAGE_BITS = 10
PAGE_SLOTS = 1 << _PAGE_BITS
#: Pages that one write converts, in the thread of a flush.
_PAGES_AT_ONCE = 16
#: Entries that are read together.
_ENTRIES_AT_ONCE = 4096
_INT_MAX = 2**31 - 1


class IndexHeader(NamedTuple):
    """The header; fields as in the declaration."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slot_count: int = 0
    index_count: int = 1


class IndexEntry(NamedTuple):
    """An entry; fields as in the declaration."""

    key_hash: int
    offset: int
    seconds: int
    previous: int


@attrs.frozen
class IndexShape:
    """
    The sizes of all files of an index.

    @ivar slots, entries: their numbers, as C{maxHashSlotNum} and C{maxIndexNum}.
    """

    slots: int
    entries: int

    @property
    def file_size(self) -> int:
        """Bytes of a file."""
        return HEADER.size + self.slots * SLOT_SIZE + self.entries * ENTRY.size

    def slot_at(self, slot: int) -> int:
        """Position of a slot in the file."""
        return HEADER.size + slot * SLOT_SIZE

    def entry_at(self, number: int) -> int:
        """Position of an entry in the file."""
        return HEADER.size + self.slots * SLOT_SIZE + number * ENTRY.size


def header_problem(header: IndexHeader, shape: IndexShape) -> str:
    """What is wrong with a header; empty: nothing."""
    if not 1 <= header.index_count <= shape.entries:
        return f"indexCount={header.index_count} outside 1..{shape.entries}"
    if not 0 <= header.slot_count <= min(shape.slots, header.index_count):
        return f"hashSlotCount={header.slot_count} outside 0..{min(shape.slots, header.index_count)}"
    if min(header[:4]) < 0:
        return f"a negative time or offset in {header[:4]}"
    return ""


class IndexFile:
    """
    Invariant: entries 1 to C{header.index_count - 1} exist; C{_pending} holds the last of them, which are not
    written yet. C{_slots} is None while the slots are only in the file.

    @ivar path: its path; the name is the time of its creation.
    """

    def __init__(self, disk: Disk, path: str, shape: IndexShape, header: IndexHeader) -> None:
        self.path = path
        self.header = header
        self._disk = disk
        self._shape = shape
        self._file: File | None = None
        self._slots: array[int] | None = None
        self._dirty = bytearray()
        self._pending = bytearray()
        self._is_changed = False

    @classmethod
    def create(cls, disk: Disk, path: str, shape: IndexShape, last: IndexHeader | None) -> IndexFile:
        """
        Make a file. Disk space is used as it fills. Until it is flushed, after the file before it, its header
        says nothing: Java's start continues after the last record that the last header names, and would leave
        out those that the file before it has in memory.

        @param last: header of the file before it; Java's first header has times and offsets from there.
        @raise OSError: it cannot be made; none is left behind.
        """
        header = IndexHeader()
        if last is not None:
            header = IndexHeader(last.end_timestamp, last.end_timestamp, last.end_offset, last.end_offset)
        made = cls(disk, path, shape, header)
        file = disk.open(path, create=True)
        try:
            file.pwrite(HEADER.pack(*IndexHeader()), 0)
            file.pwrite(b"\0", shape.file_size - 1)
        except OSError:
            file.close()
            disk.unlink(path)
            raise
        made._file = file
        made._slots = array("i", bytes(shape.slots * SLOT_SIZE))
        made._dirty = bytearray(made._pages)
        made._is_changed = True
        return made

    @classmethod
    def open(cls, disk: Disk, path: str, shape: IndexShape) -> IndexFile:
        """
        Open a file of the right size.

        @raise StoreError: its header is damaged.
        @raise OSError: reading failed.
        """
        found = cls(disk, path, shape, IndexHeader())
        try:
            found.header = IndexHeader(*HEADER.unpack(found._handle().pread(HEADER.size, 0)))
        finally:
            found.close()
        problem = header_problem(found.header, shape)
        if problem:
            raise StoreError(f"{path}: {problem}")
        return found

    @property
    def _pages(self) -> int:
        return -(-self._shape.slots // PAGE_SLOTS)

    def _handle(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path)
        return self._file

    def close(self) -> None:
        """Release the handle; it is opened again when needed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def name(self) -> str:
        """Name of the file."""
        return self.path.rpartition("/")[2]

    @property
    def is_full(self) -> bool:
        """Whether no entry fits any more."""
        return self.header.index_count >= self._shape.entries

    @property
    def is_clean(self) -> bool:
        """Whether a flush has no work."""
        return not self._is_changed

    # -- put -------------------------------------------------------------------------------------

    def load(self) -> None:
        """Bring the slots into memory, so that entries can be put. @raise OSError: reading failed."""
        if self._slots is None:
            self._slots = self._read_slots()
            self._dirty = bytearray(self._pages)

    def _read_slots(self) -> array[int]:
        slots = array("i", self._handle().pread(self._shape.slots * SLOT_SIZE, HEADER.size))
        if sys.byteorder == "little":
            slots.byteswap()
        return slots

    def put(self, keys: Sequence[tuple[int, int, int]]) -> int:
        """
        Put the keys of records, as many as fit. They can be found at once; L{write} writes them.

        @param keys: hash of each, offset of its record, store timestamp of the record.
        @return: their number.
        """
        slots, dirty, header = self._slots, self._dirty, self.header
        assert slots is not None, "not loaded"
        slot_max, number = self._shape.slots, header.index_count
        keys = keys[: self._shape.entries - number]
        if not keys:
            return 0
        begin, fresh = header.begin_timestamp, 0
        pending, pack = self._pending, ENTRY.pack
        first, is_first = keys[0], number <= 1
        known, seconds = None, 0
        for key_hash, offset, timestamp in keys:
            if timestamp != known:
                known, seconds = timestamp, (timestamp - begin) // 1000 if begin > 0 else 0
                if not 0 <= seconds <= _INT_MAX:
                    seconds = 0 if seconds < 0 else _INT_MAX
            slot = key_hash % slot_max
            previous = slots[slot]
            if not 0 < previous < number:
                previous = 0
                fresh += 1
            pending += pack(key_hash, offset, seconds, previous)
            slots[slot] = number
            dirty[slot >> _PAGE_BITS] = 1
            if is_first:
                begin, is_first = timestamp, False
            number += 1
        self.header = IndexHeader(
            begin, timestamp, first[1] if header.index_count <= 1 else header.begin_offset, offset,
            header.slot_count + fresh, number,
        )
        self._is_changed = True
        return len(keys)

    def write(self) -> None:
        """Write the pending entries. @raise OSError: writing failed; they stay pending."""
        if self._pending:
            first = self.header.index_count - len(self._pending) // ENTRY.size
            self._handle().pwrite(bytes(self._pending), self._shape.entry_at(first))
            self._pending.clear()

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that are not written yet."""
        return len(self._pending)

    # -- flush -----------------------------------------------------------------------------------

    def prepare_flush(self) -> list[Callable[[], None]]:
        """
        Write the pending entries; return the steps that bring everything to stable storage, for any thread.

        @raise OSError: writing failed.
        """
        self.write()
        assert self._slots is not None
        file, pages, slots = self._handle(), self._dirty_runs(), memoryview(self._slots)
        size = PAGE_SLOTS
        taken = [(first, slots[first * size : behind * size].tobytes()) for first, behind in pages]
        header = HEADER.pack(*self.header)
        self._dirty = bytearray(self._pages)
        self._is_changed = False

        def write_slots() -> None:
            for first, data in taken:
                values = array("i", data)
                if sys.byteorder == "little":
                    values.byteswap()
                file.pwrite(values.tobytes(), HEADER.size + first * PAGE_SLOTS * SLOT_SIZE)
            file.pwrite(header, 0)

        return [file.datasync, write_slots, file.datasync]

    def _dirty_runs(self) -> list[tuple[int, int]]:
        """First page and page after the last, of at most L{_PAGES_AT_ONCE} dirty pages in a row."""
        runs: list[tuple[int, int]] = []
        at = self._dirty.find(1)
        while at >= 0:
            behind = self._dirty.find(0, at, at + _PAGES_AT_ONCE)
            behind = min(at + _PAGES_AT_ONCE, len(self._dirty)) if behind < 0 else behind
            runs.append((at, behind))
            at = self._dirty.find(1, behind)
        return runs

    def flush_failed(self) -> None:
        """The flush has failed: the next one repeats all of it."""
        self._dirty = bytearray(b"\1" * self._pages)
        self._is_changed = True

    def unload(self) -> None:
        """A full file is on stable storage: free the memory of its slots."""
        self._slots = None
        self.close()

    # -- read ------------------------------------------------------------------------------------

    def newest(self, key_hash: int) -> int:
        """
        Number of the newest entry in the slot of a hash; 0: there is none.

        @raise OSError: reading failed.
        """
        slot = key_hash % self._shape.slots
        if self._slots is not None:
            found = self._slots[slot]
        else:
            data = self._handle().pread(SLOT_SIZE, self._shape.slot_at(slot))
            found = int.from_bytes(data, "big", signed=True)
        return found if 0 < found < self.header.index_count else 0

    def entry(self, number: int) -> IndexEntry:
        """The entry of a number that exists. @raise OSError: reading failed."""
        return self._entries(number, 1)[0]

    def entry_of(self, number: int, key_hash: int) -> IndexEntry:
        """
        The entry of a number in the chain of a hash.

        @raise StoreError: it is none of this chain, or the chain does not fall.
        @raise OSError: reading failed.
        """
        found = self.entry(number)
        slots = self._shape.slots
        if found.key_hash < 0 or found.key_hash % slots != key_hash % slots:
            raise StoreError(f"{self.path}: entry {number} belongs to another slot")
        if found.previous >= number:
            raise StoreError(f"{self.path}: entry {number} comes before entry {found.previous}")
        return found

    def _entries(self, first: int, count: int) -> list[IndexEntry]:
        written = self.header.index_count - len(self._pending) // ENTRY.size
        if first >= written:
            at = (first - written) * ENTRY.size
            data = bytes(self._pending[at : at + count * ENTRY.size])
        else:
            data = self._handle().pread(count * ENTRY.size, self._shape.entry_at(first))
        return [IndexEntry(*one) for one in ENTRY.iter_unpack(data)]

    # -- after a crash ------------------------------------------------------------------------------

    def unwind(self, header: IndexHeader) -> None:
        """
        Take back everything that came after a state that was on stable storage.

        @param header: the header in that state.
        @raise StoreError: the file is damaged: build it again.
        @raise OSError: reading failed.
        """
        shape, slots = self._shape, self._read_slots()
        problem = header_problem(header, shape)
        if problem or min(slots) < 0:
            raise StoreError(f"{self.path}: {problem or 'a slot is negative'}")
        behind = max(slots) + 1
        self.header = header._replace(index_count=max(behind, header.index_count))
        # A slot of another program's would make this walk through entries that nobody wrote, for a minute.
        if behind > header.index_count and not self._has_written(slots, behind - 1, header.end_offset):
            raise StoreError(f"{self.path}: no entry {behind - 1} for the slot that has it")
        while behind > header.index_count:
            first = max(behind - _ENTRIES_AT_ONCE, header.index_count)
            for number, found in reversed(list(enumerate(self._entries(first, behind - first), first))):
                slot = found.key_hash % shape.slots
                if slots[slot] == number:
                    slots[slot] = found.previous if 0 <= found.previous < number else 0
            behind = first
        if max(slots) >= header.index_count:
            raise StoreError(f"{self.path}: slots have entries after {header.index_count}")
        self.header = header
        self._slots = slots
        self.flush_failed()

    def _has_written(self, slots: array[int], number: int, offset: int) -> bool:
        """Whether this number is an entry of the slot that has it, for a record at or after an offset."""
        if number >= self._shape.entries:
            return False
        found = self.entry(number)
        return found.offset >= offset and slots[found.key_hash % self._shape.slots] == number
