# -*- test-case-name: tests.storage.test_store_reads,tests.storage.test_recent -*-
"""
The reading part of a file store, with its memory of the latest entries.

Rule: records read from the files are checked before they are returned, except by C{read_unchecked}, whose
caller checks them. A record that is not sound becomes a hole (L{dledger.storage.store.hole_finder}): its
reader is refused, and everything else goes on.

L{RecentEntries} keeps position and term of each of the latest entries, L{RecentBatches} the bytes that were
written last, bounded in bytes and number. Reads of them make no system call; other reads make at most six for
a batch, or three if they continue the last read.

Source: DLedgerMmapFileStore.get (0.3.1.2); differs: docs/divergence.md W11.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from dledger.storage.files.records import DamagedRecord, Walk, walk_records
from dledger.storage.start.open_ledger import MarkWriter, OpenLedger
from dledger.storage.start.scanner import Scanner
from dledger.storage.store.hole_finder import HoleFinder
from dledger.values.errors import DamagedEntryError
from protocols.wire.checksums import crc32
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    CHAIN_CRC_AT,
    CHAIN_CRC_SIZE,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
)

ENTRIES_KEPT = 65_536
BATCHES_KEPT = 1024
BATCH_BYTES_KEPT = 8 * 1024 * 1024
PIECE_BYTES = 128 * 1024


class RecentEntries:
    """
    Position and term of the latest entries.

    Invariant: C{positions} is dense from C{first_index} on. C{_term_starts} rise; the first is not above
    C{first_index}, unless no entry is known.

    @ivar positions: offsets of the records from C{first_index} on.
    """

    def __init__(self) -> None:
        self.first_index = 0
        self.positions: array[int] = array("q")
        self._term_starts: list[int] = []
        self._terms: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Whether no entry is known."""
        return not self.positions

    def reset(self, first_index: int) -> None:
        """Forget everything; the next entry is C{first_index}."""
        self.first_index = first_index
        self.positions = array("q")
        self._term_starts = []
        self._terms = []

    def extend(self, positions: list[int], terms: list[tuple[int, int]], term_before: int = -1) -> None:
        """
        Add entries after the last one.

        @param terms: index and term at each change of term.
        @param term_before: of the entry before them; -1: there is none, or it is known here.
        """
        if term_before >= 0 and not self.positions:
            terms = [(self.first_index, term_before), *terms]  # nothing is known that they could continue
        for index, term in terms:
            if not self._terms or self._terms[-1] != term:
                self._term_starts.append(index)
                self._terms.append(term)
        self.positions.extend(positions)
        if len(self.positions) > 2 * ENTRIES_KEPT:
            gone = len(self.positions) - ENTRIES_KEPT
            del self.positions[:gone]
            self.first_index += gone
            keep = bisect_right(self._term_starts, self.first_index) - 1
            del self._term_starts[:keep], self._terms[:keep]

    def cut(self, next_index: int) -> None:
        """Forget the entries from C{next_index} on."""
        if next_index <= self.first_index:
            self.reset(next_index)
            return
        del self.positions[next_index - self.first_index :]
        keep = bisect_left(self._term_starts, next_index)
        del self._term_starts[keep:], self._terms[keep:]

    def position(self, index: int) -> int:
        """Stream offset of an entry; -1 if not known."""
        at = index - self.first_index
        return self.positions[at] if 0 <= at < len(self.positions) else -1

    def term(self, index: int) -> int:
        """Term of an entry; -1 if not known."""
        if not self.first_index <= index < self.first_index + len(self.positions):
            return -1
        return self._terms[bisect_right(self._term_starts, index) - 1]


class RecentBatches:
    """
    The batches written last, by first index. Invariant: they are consecutive.

    @ivar held_bytes: size of their records.
    @ivar by_index: the batches by their first index.
    """

    def __init__(self) -> None:
        self.by_index: dict[int, EntryBatch] = {}
        self.held_bytes = 0

    def add(self, batch: EntryBatch) -> None:
        """Add a batch of one term after the last one, in one piece."""
        size = len(batch.records)
        if size > BATCH_BYTES_KEPT // 4:
            self.clear()
            return
        self.by_index[batch.first_index] = batch
        self.held_bytes += size
        while self.held_bytes > BATCH_BYTES_KEPT or len(self.by_index) > BATCHES_KEPT:
            oldest = next(iter(self.by_index))
            self.held_bytes -= len(self.by_index.pop(oldest).records)

    def add_written(self, batch: EntryBatch, sizes: list[int]) -> None:
        """
        Add a batch of one term after the last one; C{sizes}: bytes of each of its records.

        A long batch is stored in pieces: only whole batches are given out, and the proposals of one
        turn may exceed the size of a push.
        """
        start = end = done = 0
        for number, size in enumerate(sizes, 1):
            end += size
            if end - start >= PIECE_BYTES or number == len(sizes):
                self.add(EntryBatch(first_index=batch.first_index + done, count=number - done,
                                    term=batch.term, records=batch.records[start:end]))
                start, done = end, number

    def clear(self) -> None:
        """Forget all batches: entries were cut, or one was not added."""
        self.by_index.clear()
        self.held_bytes = 0

    def read(self, first_index: int, *, max_count: int, max_bytes: int) -> EntryBatch | None:
        """
        The whole batches of one term from C{first_index} on that fit both limits; None if none fits.
        """
        batches = self.by_index
        if first_index not in batches:
            return None
        batch = batches[first_index]
        if batch.count > max_count or len(batch.records) > max_bytes:
            return None
        if first_index + batch.count not in batches:
            return batch
        following: EntryBatch | None = batches[first_index + batch.count]
        count, size, term = batch.count, len(batch.records), batch.term
        pieces = [batch.records]
        while following is not None and following.term == term:
            if count + following.count > max_count or size + len(following.records) > max_bytes:
                break
            pieces.append(following.records)
            count += following.count
            size += len(following.records)
            following = self.by_index.get(first_index + count)
        if len(pieces) == 1:
            return batch
        return EntryBatch(first_index=first_index, count=count, term=term, records=b"".join(pieces))


_PRELOAD = 4096


class StoreReads:
    """
    Invariant: the remembered entries are entries of the ledger; its owner reports every change of the ledger
    to L{recent} and L{batches}, or to L{cut} or L{begin_anew}.

    Implements L{dledger.core.state.ports.LedgerView}.

    @ivar batches, recent: the batches, and the terms and places of entries, that are remembered.
    @ivar scanner: reads units of the index, and records.
    """

    def __init__(
        self, ledger: OpenLedger, marks: MarkWriter, scanned_from_index: int, finder: HoleFinder
    ) -> None:
        """@param scanned_from_index: recovery has checked every entry from here on."""
        self._ledger = ledger
        self._marks = marks
        self._data = ledger.data
        self._index = ledger.index
        self._storing = ledger.guard.storing
        self.scanner = Scanner(ledger.data, ledger.index)
        self._finder = finder
        self.batches = RecentBatches()
        self.recent = RecentEntries()
        #: Epoch, index after the last read, and the C{chainCrc} before it: for callers that read on.
        self._read_on = (-1, -1, 0)
        self._preload(scanned_from_index)

    def _preload(self, scanned_from_index: int) -> None:
        """Remember the latest of the entries that recovery has checked: data and index agree there."""
        end = self._ledger.end_index
        first = max(scanned_from_index, end - _PRELOAD + 1)
        self.recent.reset(end + 1)
        if end < 0:
            return
        units = b""
        while len(units) < (end - first + 1) * INDEX_UNIT_SIZE:
            at = first * INDEX_UNIT_SIZE + len(units)
            units += self._index.pread((end + 1) * INDEX_UNIT_SIZE - at, at)
        positions: list[int] = []
        terms: list[tuple[int, int]] = []
        for expected, (_, pos, _, index, term) in enumerate(INDEX_UNIT.iter_unpack(units), first):
            if index != expected:
                return  # recovery could read it, and the disk cannot now: nothing is remembered
            positions.append(pos)
            if not terms or terms[-1][1] != term:
                terms.append((index, term))
        self.recent.reset(first)
        self.recent.extend(positions, terms)

    # -- what changes ----------------------------------------------------------------------------

    def cut(self, next_index: int) -> None:
        """C{next_index} and the entries after it are gone."""
        self.batches.clear()
        self.recent.cut(next_index)

    def begin_anew(self, first_index: int) -> None:
        """All entries are gone; the next one is C{first_index}."""
        self.batches.clear()
        self.recent.reset(first_index)

    # -- reads -----------------------------------------------------------------------------------

    def term_of(self, index: int) -> int:
        if index == self._ledger.end_index:
            return self._ledger.end_term
        term = self.recent.term(index)
        return term if term >= 0 else self._unit(index)[4]

    def position_of(self, index: int) -> int:
        if index == self._ledger.end_index + 1:
            return self._ledger.end_position
        position = self.recent.position(index)
        return position if position >= 0 else self._unit(index)[1]

    def read_batch(self, first_index: int, *, max_count: int, max_bytes: int) -> EntryBatch:
        """See L{dledger.core.state.ports.LedgerView.read_batch}. May end at a file boundary."""
        cached = self.batches.read(first_index, max_count=max_count, max_bytes=max_bytes)
        if cached is not None:
            return cached
        last_index = min(self._ledger.end_index, first_index + max_count - 1)
        return self._read(first_index, last_index, max_bytes, one_term=True)

    def read_range(self, first_index: int, *, end_index: int, max_bytes: int) -> EntryBatch:
        """
        As L{read_batch}, over any number of terms; C{EntryBatch.term} is that of the last entry.

        @param end_index: last index wanted, inclusive, at least C{first_index}.
        """
        return self._read(first_index, min(self._ledger.end_index, end_index), max_bytes, one_term=False)

    def read_unchecked(self, first_index: int, *, end_index: int, max_bytes: int) -> EntryBatch:
        """
        As L{read_range}, from one file; only the first and the last record are compared with the index. For
        bulk readers, which check the records. Costs no time per record.
        """
        if first_index <= self._ledger.holes.end_index + 1:
            end_index = self._readable_to(first_index, end_index)
        position, size = self._unit(first_index)[1:3]
        limit = min(position + max(max_bytes, size), self._data.base(position) + self._data.file_size)
        high = min(self._ledger.end_index, end_index, first_index + max_bytes // ENTRY_HEADER_SIZE)
        low, last, size, term = self._last_before(limit, first_index, high)
        with self._storing("reading failed"):
            data = self._data.pread(last + size - position, position)
        if len(data) < last + size - position:
            raise self._damaged(first_index, position, "the file is truncated")
        return EntryBatch(first_index=first_index, count=low - first_index + 1, term=term, records=data)

    def _last_before(self, limit: int, first_index: int, last_index: int) -> tuple[int, int, int, int]:
        """
        The last of these entries whose record ends at C{limit} or before it; the first one, if none does.

        @return: its index, and the position, the size and the term of its record.
        """
        while True:
            low, high = first_index, last_index
            while low < high:
                middle = (low + high + 1) // 2
                with self._storing("reading the index failed"):
                    unit = self.scanner.unit(middle)
                if unit is None:
                    unit = self._unit(middle)
                if unit[1] + unit[2] <= limit:
                    low = middle
                else:
                    high = middle - 1
            _, position, size, _, term = self._unit(low)
            if position + size <= limit or low == first_index:
                return low, position, size, term
            last_index = low - 1  # (Its unit was wrong, and is right now.)

    def holds(self, entry: EntryBatch) -> bool:
        assert entry.count == 1
        if not self._ledger.begin_index <= entry.first_index <= self._ledger.end_index:
            return False
        if entry.term > self._ledger.end_term:
            return False  # terms never fall, so ours is of another one; it may lie in a hole
        ours = self._read(entry.first_index, entry.first_index, 0, one_term=True).records
        theirs = entry.records
        if ours == theirs:
            return True
        if len(ours) != len(theirs) or ours[:36] != theirs[:36] or ours[44:] != theirs[44:]:
            return False
        # A checksum that they did not record cannot be compared. An entry that lacks one which they have
        # must be replaced: the next of theirs chains on from it.
        return all(theirs[at : at + 4] in (ours[at : at + 4], bytes(4)) for at in (36, 40))

    def _unit(self, index: int) -> tuple[int, int, int, int, int]:
        ledger = self._ledger
        assert ledger.begin_index <= index <= ledger.end_index and index >= 0, (index, ledger.end)
        if ledger.holes.at(index) is not None:
            raise self._finder.error(index, "it lies in a hole of this ledger")
        unit = self._agreed(index)
        if unit is None:
            error = self._finder.damaged(index, -1, "its index unit and its record do not agree")
            # If only the index was wrong, it is right now.
            unit = self._agreed(index) if ledger.holes.at(index) is None else None
            if unit is None:
                raise error
        return unit

    def _agreed(self, index: int) -> tuple[int, int, int, int, int] | None:
        with self._storing("reading the index failed"):
            return self.scanner.agreed_unit(index)

    def _readable_to(self, first_index: int, last_index: int) -> int:
        """
        Last index of the sound entries from C{first_index} on, at most C{last_index}.

        @raise DamagedEntryError: the first one lies in a hole.
        """
        holes = self._ledger.holes
        if holes.at(first_index) is not None:
            raise self._finder.error(first_index, "it lies in a hole of this ledger")
        if holes.at(first_index - 1) is not None and not self._finder.is_vouched(first_index):
            position = self._unit(first_index)[1]
            raise self._damaged(first_index, position, "it is after a hole, and nothing else vouches for it")
        return holes.readable_to(first_index, last_index)

    def _read(self, first_index: int, last_index: int, max_bytes: int, *, one_term: bool) -> EntryBatch:
        ledger = self._ledger
        assert ledger.begin_index <= first_index <= last_index <= ledger.end_index and first_index >= 0
        if first_index <= ledger.holes.end_index + 1:
            last_index = self._readable_to(first_index, last_index)
        position, size = self.recent.position(first_index), ENTRY_HEADER_SIZE
        term = self.recent.term(first_index)
        if position < 0:
            _, position, size, _, term = self._unit(first_index)
        limit = self._data.base(position) + self._data.file_size
        if last_index == ledger.end_index:
            following = ledger.end_position
        else:
            following = self.recent.position(last_index + 1)
        if position < following < limit:
            limit = following
        elif last_index == first_index and size > ENTRY_HEADER_SIZE:  # do not read the next record, too
            limit = position + size
        wanted = max(min(max_bytes, limit - position), size)
        chain_crc = self._chain_before(first_index)
        walk = Walk(index=first_index, position=position, chain_crc=chain_crc)
        data = self._walk(walk, wanted, last_index - first_index + 1, one_term)
        if not walk.count:  # the first record alone is longer than wanted
            size = BLANK.unpack_from(data)[1]
            data = self._walk(walk, min(size, limit - position), 1, one_term)
        if not walk.count or (term != walk.term and (one_term or walk.count == 1)):
            raise self._damaged(first_index, position, "the record is cut, or not of its term")
        if first_index == ledger.begin_index > 0 and crc32(data[:ENTRY_HEADER_SIZE]) != self._marks.begin_crc:
            raise self._damaged(first_index, position, "not the first record that is on record")
        self._read_on = ledger.epoch, walk.index, walk.chain_crc or 0
        return EntryBatch(first_index=first_index, count=walk.count, term=walk.term,
                          records=data if len(data) == walk.length else data[: walk.length])

    def _chain_before(self, index: int) -> int | None:
        """
        C{chainCrc} of the entry before C{index}, for the check of its header. None after a hole, and for the
        first entry of a ledger whose beginning has expired; the mark has a CRC of that header.
        """
        if index == 0:
            return 0
        if index == self._ledger.begin_index or (
            index <= self._ledger.holes.end_index + 1 and self._ledger.holes.at(index - 1) is not None
        ):
            return None
        if self._read_on[:2] == (self._ledger.epoch, index):
            return self._read_on[2]
        position = self.recent.position(index - 1)
        if position < 0:
            position = self._unit(index - 1)[1]
        with self._storing("reading failed"):
            word = self._data.pread(CHAIN_CRC_SIZE, position + CHAIN_CRC_AT)
        return int.from_bytes(word, "big", signed=True)

    def _walk(self, walk: Walk, wanted: int, max_count: int, one_term: bool) -> bytes:
        with self._storing("reading failed"):
            data = self._data.pread(wanted, walk.position)
        if len(data) < ENTRY_HEADER_SIZE:
            raise self._damaged(walk.index, walk.position, "the file is truncated")
        try:
            walk_records(data, walk, max_count=max_count, one_term=one_term, size_max=self._data.file_size)
        except DamagedRecord as damage:
            # After the last record of a file a blank stops the walk. Anything else is damage, and becomes a
            # hole now: a later read would begin with this record and not check its chain.
            if not walk.count or BLANK.unpack_from(data, walk.length)[0] != BLANK_MAGIC:
                error = self._damaged(damage.index, damage.position, damage.what)
                if not walk.count:
                    raise error from None
        return data

    def _damaged(self, index: int, position: int, what: str) -> DamagedEntryError:
        """Remember the hole."""
        path = self._data.path(self._data.base(position))
        offset = position % self._data.file_size
        return self._finder.damaged(index, position, f"{path} at {offset}: {what}")
