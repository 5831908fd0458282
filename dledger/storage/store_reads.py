# -*- test-case-name: tests.storage.test_store_reads -*-
"""
The reading half of the file store, and the state that both halves share: where the ledger begins and ends.

Rule: records read from the files are checked before they are returned, except by C{read_unchecked}, whose
caller checks them. A record that is not sound fails the store and is recorded in the mark, so that the next
start cuts there and begins repairing.

Reads of the live tail make no system call; other reads make at most six for a batch, or three if they
continue the last read.

Source: DLedgerMmapFileStore.get (0.3.1.2); differs: docs/divergence.md W11.
"""

from __future__ import annotations

from typing import NoReturn
from zlib import crc32

import attrs

from dledger.base.disk.disk import Disk, File
from dledger.base.disk.expiry import Expiry, ExpiryRules
from dledger.base.disk.segment import SegmentList
from dledger.base.errors import StoreError
from dledger.config import DLedgerConfig
from dledger.storage.commit_mark import CommitMark, MarkFile
from dledger.storage.directory import Recovered
from dledger.storage.recent import RecentBatches, RecentEntries
from dledger.storage.records import DamagedRecord, Walk, walk_records
from dledger.storage.recovery import Scanner
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    CHAIN_CRC_AT,
    CHAIN_CRC_SIZE,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
)
from protocols.wire.ledger.messages import EntryBatch

_PRELOAD = 4096


@attrs.frozen(kw_only=True)
class End:
    """Where a ledger ends: last index, its term, stream offset behind it."""

    index: int
    term: int
    position: int


class _Storing:
    """
    A context manager: an OSError within it breaks the store for good.

    Every write enters it: a generator would cost more than the rest of the write's overhead.
    """

    __slots__ = ("_store", "_what")

    def __init__(self, store: StoreReads, what: str) -> None:
        self._store = store
        self._what = what

    def __enter__(self) -> None:
        self._store._enter_storing()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError):
            self._store._storing_failed(self._what, error)


def expiry_rules(config: DLedgerConfig) -> ExpiryRules:
    """The options of a member that concern room on the disk."""
    forces = config.enable_disk_force_clean
    return ExpiryRules(
        full_ratio=config.disk_full_ratio,
        full_ratio_name="disk_full_ratio",
        min_free_bytes=config.min_free_bytes,
        reserved_hours=config.file_reserved_hours,
        delete_hours=frozenset(int(hour) for hour in config.delete_when.split(";")),
        check_ratio=config.disk_space_ratio_to_check_expired,
        force_ratio=config.disk_space_ratio_to_force_clean if forces else None,
        retention_bytes=config.retention_bytes,
    )


class StoreReads:
    """
    Reads, and the state of the ledger.

    Invariants: C{ledger_begin_index <= ledger_end_index} unless empty (both -1); all bytes behind the end
    in data and index are zero; C{_durable.index <= ledger_end_index}.
    """

    def __init__(
        self, config: DLedgerConfig, disk: Disk, lock: File, mark_file: MarkFile, recovered: Recovered
    ) -> None:
        self._config = config
        self._disk = disk
        self._lock = lock
        self._mark_file = mark_file
        self._data = recovered.data
        self._index = recovered.index
        found = recovered.found
        self._begin = found.begin_index
        self._end = found.end_index
        self._end_term = found.end_term
        self._end_position = found.end_position
        self._chain = found.chain_crc
        self._committed = recovered.committed_index
        self._repair_end = recovered.repair_end_index
        self._durable = End(index=self._end, term=self._end_term, position=self._end_position)
        self._index_end_position = self._end_position
        self._epoch = 0
        #: Epoch, index behind the last read, and the C{chainCrc} before that index: the next read uses them.
        self._read_on = (-1, -1, 0)
        self._broken = ""
        self._expiry = Expiry(expiry_rules(config))
        self._scanner = Scanner(self._data, self._index)
        self._batches = RecentBatches()
        self._recent = RecentEntries()
        self._mark = recovered.mark
        self._begin_on_record = recovered.mark.begin_position, recovered.mark.begin_crc
        self._preload(found.scanned_from_index)

    def _preload(self, scanned_from_index: int) -> None:
        """Keep the latest entries that recovery has scanned in memory: data and index agree there."""
        first = max(scanned_from_index, self._end - _PRELOAD + 1)
        self._recent.reset(self._end + 1)
        if self._end < 0:
            return
        units = b""
        while len(units) < (self._end - first + 1) * INDEX_UNIT_SIZE:
            at = first * INDEX_UNIT_SIZE + len(units)
            units += self._index.pread((self._end + 1) * INDEX_UNIT_SIZE - at, at)
        positions: list[int] = []
        terms: list[tuple[int, int]] = []
        for expected, (_, pos, _, index, term) in enumerate(INDEX_UNIT.iter_unpack(units), first):
            assert index == expected, (index, expected)
            positions.append(pos)
            if not terms or terms[-1][1] != term:
                terms.append((index, term))
        self._recent.reset(first)
        self._recent.extend(positions, terms)

    # -- state and reads -------------------------------------------------------------------------

    @property
    def ledger_begin_index(self) -> int:
        """First index present; -1 when empty."""
        return self._begin

    @property
    def ledger_end_index(self) -> int:
        """Last index present; -1 when empty."""
        return self._end

    @property
    def ledger_end_term(self) -> int:
        """Term of the last entry; -1 when empty."""
        return self._end_term

    @property
    def committed_index(self) -> int:
        """Last index known to be committed; -1 for none. At a start: the recorded one."""
        return self._committed

    @property
    def repair_end_index(self) -> int:
        """-1: healthy. Else entries up to this index were lost, and a leader must bring them back."""
        return self._repair_end

    @property
    def end_position(self) -> int:
        """Stream offset in bytes behind the last record."""
        return self._end_position

    @property
    def disk_full(self) -> bool:
        """Whether appends are refused because the disk is full; refreshed by C{house_keeping}."""
        return self._expiry.disk_full

    def term_of(self, index: int) -> int:
        """See L{dledger.core.ports.LedgerView.term_of}."""
        if index == self._end:
            return self._end_term
        term = self._recent.term(index)
        return term if term >= 0 else self._unit(index)[4]

    def position_of(self, index: int) -> int:
        """See L{dledger.core.ports.LedgerView.position_of}."""
        if index == self._end + 1:
            return self._end_position
        position = self._recent.position(index)
        return position if position >= 0 else self._unit(index)[1]

    def read_batch(self, first_index: int, *, max_count: int, max_bytes: int) -> EntryBatch:
        """See L{dledger.core.ports.LedgerView.read_batch}. May end at a file boundary."""
        cached = self._batches.read(first_index, max_count=max_count, max_bytes=max_bytes)
        if cached is not None:
            return cached
        return self._read(first_index, min(self._end, first_index + max_count - 1), max_bytes, one_term=True)

    def read_range(self, first_index: int, *, end_index: int, max_bytes: int) -> EntryBatch:
        """
        As L{read_batch}, over any number of terms; C{EntryBatch.term} is that of the last entry.

        @param end_index: last index wanted, inclusive, at least C{first_index}.
        """
        return self._read(first_index, min(self._end, end_index), max_bytes, one_term=False)

    def read_unchecked(self, first_index: int, *, end_index: int, max_bytes: int) -> EntryBatch:
        """
        As L{read_range}, from one file, comparing only the first and the last record with the index. For
        bulk readers, which check the records themselves. Costs no time per record.
        """
        position, size = self._unit(first_index)[1:3]
        limit = min(position + max(max_bytes, size), self._data.base(position) + self._data.file_size)
        low, high = first_index, min(self._end, end_index, first_index + max_bytes // ENTRY_HEADER_SIZE)
        while low < high:
            middle = (low + high + 1) // 2
            with self._storing("reading the index"):
                unit = self._scanner.unit(middle)
            if unit is None:
                unit = self._unit(middle)
            if unit[1] + unit[2] <= limit:
                low = middle
            else:
                high = middle - 1
        _, last, size, _, term = self._unit(low)
        with self._storing("reading"):
            data = self._data.pread(last + size - position, position)
        if len(data) < last + size - position:
            raise self._damaged(first_index, self._data, position, "the file is truncated")
        return EntryBatch(first_index=first_index, count=low - first_index + 1, term=term, records=data)

    def holds(self, entry: EntryBatch) -> bool:
        """See L{dledger.core.ports.LedgerView.holds}."""
        assert entry.count == 1
        if not self._begin <= entry.first_index <= self._end:
            return False
        ours = self._read(entry.first_index, entry.first_index, 0, one_term=True).records
        theirs = entry.records
        if ours == theirs:
            return True
        if len(ours) != len(theirs) or ours[:36] != theirs[:36] or ours[44:] != theirs[44:]:
            return False
        # A checksum that they lack cannot be compared. An entry whose checksum only they have must be
        # replaced by theirs: the next records chain on from it.
        return all(theirs[at : at + 4] in (ours[at : at + 4], bytes(4)) for at in (36, 40))

    def _unit(self, index: int) -> tuple[int, int, int, int, int]:
        assert self._begin <= index <= self._end and index >= 0, (self._begin, index, self._end)
        with self._storing("reading the index"):
            unit = self._scanner.unit(index)
            if unit is not None and self._data.has(self._data.base(unit[1])):
                header = self._data.pread(ENTRY_HEADER_SIZE, unit[1])
                if len(header) == ENTRY_HEADER_SIZE:
                    magic, size, found, term, pos, _, _, _, _ = ENTRY_HEADER.unpack(header)
                    if unit == (magic, pos, size, found, term):
                        return unit
        position = index * INDEX_UNIT_SIZE
        raise self._damaged(index, self._index, position, "its index unit and its record do not agree")

    def _read(self, first_index: int, last_index: int, max_bytes: int, *, one_term: bool) -> EntryBatch:
        assert self._begin <= first_index <= last_index <= self._end and first_index >= 0
        position, size = self._recent.position(first_index), ENTRY_HEADER_SIZE
        term = self._recent.term(first_index)
        if position < 0:
            _, position, size, _, term = self._unit(first_index)
        limit = self._data.base(position) + self._data.file_size
        following = self._end_position if last_index == self._end else self._recent.position(last_index + 1)
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
            raise self._damaged(first_index, self._data, position, "it is truncated or of another term")
        if chain_crc is None and crc32(data[:ENTRY_HEADER_SIZE]) != self._begin_on_record[1]:
            raise self._damaged(first_index, self._data, position, "it is not the recorded first record")
        self._read_on = self._epoch, walk.index, walk.chain_crc or 0
        return EntryBatch(first_index=first_index, count=walk.count, term=walk.term,
                          records=data if len(data) == walk.length else data[: walk.length])

    def _chain_before(self, index: int) -> int | None:
        """
        C{chainCrc} of the entry before C{index}, to check its header. None for the first entry of a
        ledger whose beginning has expired; the mark holds a CRC of that header.
        """
        if index == 0:
            return 0
        if index == self._begin:
            return None
        if self._read_on[:2] == (self._epoch, index):
            return self._read_on[2]
        position = self._recent.position(index - 1)
        if position < 0:
            position = self._unit(index - 1)[1]
        with self._storing("reading"):
            word = self._data.pread(CHAIN_CRC_SIZE, position + CHAIN_CRC_AT)
        return int.from_bytes(word, "big", signed=True)

    def _walk(self, walk: Walk, wanted: int, max_count: int, one_term: bool) -> bytes:
        with self._storing("reading"):
            data = self._data.pread(wanted, walk.position)
        if len(data) < ENTRY_HEADER_SIZE:
            raise self._damaged(walk.index, self._data, walk.position, "the file is truncated")
        try:
            walk_records(data, walk, max_count=max_count, one_term=one_term, size_max=self._data.file_size)
        except DamagedRecord as damage:
            # Behind the last record of a file a blank stops the walk. Anything else is damage, and is
            # reported now, while the record can be compared with the one before it.
            if not walk.count or BLANK.unpack_from(data, walk.length)[0] != BLANK_MAGIC:
                raise self._damaged(damage.index, self._data, damage.position, damage.what) from None
        return data

    # -- failures --------------------------------------------------------------------------------

    def _storing(self, what: str) -> _Storing:
        return _Storing(self, what)

    def _enter_storing(self) -> None:
        if self._broken:
            raise StoreError(f"the store has failed before: {self._broken}")

    def _storing_failed(self, what: str, error: OSError) -> NoReturn:
        self._broken = f"{what} failed: {error}"
        raise StoreError(self._broken, path=self._config.self_path) from error

    def _damaged(self, index: int, segments: SegmentList, position: int, what: str) -> StoreError:
        """Record the damage durably, so that the next start cuts there and begins repairing."""
        path = segments.path(segments.base(position))
        offset = position % segments.file_size
        self._broken = f"entry {index} is damaged: {path} at {offset}: {what}"
        try:
            self._mark_file.write_durably(attrs.evolve(self._mark_now(), damaged_index=index))
        except OSError as error:
            self._broken += f" (and noting it failed: {error})"
        return StoreError(self._broken, file=path, offset=offset, index=index)

    def _mark_now(self, *, clean: bool = False) -> CommitMark:
        self._mark = CommitMark(
            committed_index=min(self._committed, self._durable.index),
            end_index=self._durable.index,
            end_term=self._durable.term,
            end_position=self._durable.position,
            begin_position=self._begin_on_record[0],
            begin_crc=self._begin_on_record[1],
            index_end_position=self._index_end_position,
            repair_end_index=self._repair_end,
            data_file_size=self._data.file_size,
            index_file_size=self._index.file_size,
            clean=clean,
        )
        return self._mark
