# -*- test-case-name: tests.client.test_tail_batch -*-
"""
Many entries at a time: their bodies, without an object for each.

To make an L{Entry} takes a microsecond. A program that reads millions of small entries often needs their
bodies and indexes only, so a L{TailBatch} has these as lists, and makes the entries when they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, overload

from dledger.client.values import Entry, entries_after
from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE
from protocols.wire.ledger.envelopes import ENVELOPE_MAGIC
from protocols.wire.ledger.own.own_entries import HIDDEN
from protocols.wire.ledger.runs import (
    CRC_AT,
    RUN_MIN,
    bodies_of_run,
    checksums,
    column,
    has_hidden,
    is_run,
    run_at,
    run_view,
)


class TailBatch(Sequence[Entry]):
    """
    Entries that follow each other in the log, in order. As a sequence it has the L{Entry} of each.

    @ivar bodies: of each entry, as its program has appended it.
    @ivar indexes: of each entry. They rise by one, except over the log's own entries, which are left out.
    @ivar next_index: where the log goes on after this batch, and after the log's own entries in it.
    """

    __slots__ = ("_entries", "_make", "bodies", "indexes", "next_index")

    def __init__(
        self, bodies: Sequence[bytes], indexes: Sequence[int], next_index: int,
        make: Callable[[], list[Entry]],
    ) -> None:
        """@param make: the entries; called once, when one is asked for."""
        self.bodies = bodies
        self.indexes = indexes
        self.next_index = next_index
        self._make: Callable[[], list[Entry]] | None = make
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, at: int) -> Entry: ...

    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...

    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        if self._make is not None:
            self._entries = self._make()
            self._make = None
        return self._entries[at]

    def __reduce__(self) -> tuple[object, ...]:
        return _remade, (list(self.bodies), self.indexes, self.next_index, self[:])

    def __repr__(self) -> str:
        first = self.indexes[0] if self.indexes else self.next_index
        return f"<{len(self)} entries from {first} on>"


def _remade(
    bodies: list[bytes], indexes: Sequence[int], next_index: int, entries: list[Entry]
) -> TailBatch:
    """A batch of another process."""
    return TailBatch(bodies, indexes, next_index, lambda: entries)


class ScannedPart(NamedTuple):
    """
    A part of the log, without an object for each entry.

    @ivar bodies, indexes: of the entries that are shown.
    @ivar last: the last entry of the part, shown or not; its body and position are not those of the log.
    """

    bodies: list[bytes]
    indexes: Sequence[int]
    last: Entry


def scan(batch: EntryBatch, before: Entry | None, *, control: bool) -> ScannedPart:
    """
    Check a batch as L{dledger.client.values.entries_of} does, and take out the bodies.

    @param before: the entry before it; None: not known.
    @param control: also show the log's own entries.
    @raise WireError: as of L{dledger.client.values.entries_of}.
    """
    scanner = _Scanner(batch.records, before, control=control)
    end = batch.first_index + batch.count
    index = batch.first_index
    while index < end:
        index += scanner.take_run(index, end - index) or scanner.take_each(index, min(end - index, RUN_MIN))
    left = len(batch.records) - scanner.offset
    if left or scanner.last is None:
        raise WireError(f"batch from {batch.first_index}: {left} bytes after {batch.count} entries")
    indexes: Sequence[int] = range(batch.first_index, end)
    if scanner.hidden:
        indexes = [index for index in indexes if index not in scanner.hidden]
    return ScannedPart(scanner.bodies, indexes, scanner.last)


class _Scanner:
    """
    Goes through the records of a batch.

    @ivar offset: where the next record begins.
    @ivar last: the entry before it; None: not known.
    @ivar bodies: of the entries so far that are shown.
    @ivar hidden: indexes of the others.
    """

    def __init__(self, records: bytes, before: Entry | None, *, control: bool) -> None:
        self._records = records
        self._control = control
        self.offset = 0
        self.last = before
        self.bodies: list[bytes] = []
        self.hidden: set[int] = set()

    def take_run(self, index: int, count_max: int) -> int:
        """Take records of one size, if they are next. @return: how many."""
        count, size = run_at(self._records, self.offset, count_max)
        bodies = _plain_bodies(self._records, self.offset, count, size, index) if count else None
        if bodies is None:
            return 0
        self.bodies += bodies
        self.offset += count * size
        self._reach(index + count - 1, ENTRY_HEADER.unpack_from(self._records, self.offset - size)[3])
        return count

    def take_each(self, first_index: int, count: int) -> int:
        """Take the next records one by one. @return: C{count}. @raise WireError: one is not sound."""
        records, total, offset = self._records, len(self._records), self.offset
        unpack, magic, take = ENTRY_HEADER.unpack_from, ENVELOPE_MAGIC, self.bodies.append
        term = -1 if self.last is None else self.last.term
        for index in range(first_index, first_index + count):
            end = total
            if total - offset >= ENTRY_HEADER_SIZE:
                _, size, found, entry_term, _, channel, _, crc, length = unpack(records, offset)
                end = offset + size
                body = records[offset + ENTRY_HEADER_SIZE : end]
                if (
                    entry_term == term and found == index and size == ENTRY_HEADER_SIZE + length
                    and 0 <= channel < HIDDEN and end <= total
                    and (body < magic or not body.startswith(magic))
                    and (not crc or not (crc32(body) ^ crc) & 0xFFFFFFFF)
                ):
                    take(body)
                    offset = end
                    continue
            # Anything else: one of the log's own entries, an envelope, the first one of a term, or an error.
            term = self._take_other(index, records[offset : end if end > offset else total])
            offset = end
        self.offset = offset
        self._reach(first_index + count - 1, term)
        return count

    def _take_other(self, index: int, record: bytes) -> int:
        """@return: its term."""
        (entry,) = entries_after(
            self.last, EntryBatch(first_index=index, count=1, term=-1, records=record)
        )
        self.last = entry
        if entry.is_control and not self._control:
            self.hidden.add(index)
        else:
            self.bodies.append(entry.body)
        return entry.term

    def _reach(self, index: int, term: int) -> None:
        """The last entry that was taken has this index and term; a time counts in its term only."""
        last = self.last
        if last is None or last.index != index:
            time_ms = last.time_ms if last is not None and last.term == term else None
            self.last = Entry(index=index, term=term, pos=-1, body=b"", time_ms=time_ms)


def _plain_bodies(records: bytes, offset: int, count: int, size: int, index: int) -> list[bytes] | None:
    """
    The bodies of a run of sound entries that programs have appended without envelopes; None: something else
    is among them, or a record is not sound.
    """
    view = run_view(records, offset, count, size)
    if (
        has_hidden(view, size)
        or ENVELOPE_MAGIC[0] in view[ENTRY_HEADER_SIZE::size]
        or not is_run(view, count=count, size=size, index=index)
    ):
        return None
    bodies, crcs = bodies_of_run(view, size), column(view, CRC_AT, size)
    return bodies if not any(crcs) or checksums(bodies) == crcs else None
