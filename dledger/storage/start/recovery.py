# -*- test-case-name: tests.storage.test_recovery,tests.storage.test_log_scan -*-
"""
Recovery: find the end of the ledger in the files of a directory.

Rule 1: look before touching. Reading alone finds every reason to refuse a directory.
Rule 2: the ledger ends before the first record that is not sound. If that end lies before the end that
the commit mark records, durable entries were lost: the mark is set to I{repairing} first, and
then the damaged rest is cut. Otherwise it was a torn tail, which was never acknowledged.
Rule 3: after the end everything is zero, on stable storage, before the ledger is used: bytes that a cut
left behind must not become entries again after the next restart (docs/divergence.md W5).
Rule 4: the index is derived. Where it differs from the data it is written again.

Recovery trusts the records before the scanned part. Reads check them, and record a damaged one in the
mark, so that the next start finds it too.

Source: DLedgerMmapFileStore.recover (0.3.1.2); differs in rules 1 to 3.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.base.disk.segment import Listing, SegmentList
from dledger.base.disk.set_aside import SetAside
from dledger.storage.files.commit_mark import CommitMark
from dledger.storage.files.records import DamagedRecord, Walk, record_fits, walk_records
from dledger.storage.start.scanner import FoundLedger, Scanner
from dledger.values.errors import DirectoryError
from protocols.wire.checksums import crc32
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    MIN_BLANK_SIZE,
)

_CHUNK = 1024 * 1024
_UNITS_AT_ONCE = 512


def adjacent(listing: Listing, file_size: int, directory: str, mark: CommitMark | None) -> tuple[int, ...]:
    """
    The offsets of the data files that belong to the ledger, without a gap between them.

    Files after a gap are leftovers of a crash while files were made or deleted, if the gap lies after
    the recorded end. They do not count. The gap may be at the beginning: of several new files the first
    one's name may be lost.

    @raise DirectoryError: a gap before the recorded end, or a gap without a mark.
    """
    offsets = listing.offsets
    if mark is not None and offsets and offsets[0] > mark.end_position:
        return ()
    for previous, offset in zip(offsets, offsets[1:], strict=False):
        if offset != previous + file_size:
            if mark is not None and mark.settled_position <= previous + file_size:
                return offsets[: offsets.index(offset)]
            raise DirectoryError(
                f"{directory}: a file is missing between offsets {previous} and {offset}: "
                "put it back, or restore this member from its peers"
            )
    return offsets


def highest_indexed(index: SegmentList, recorded_end_index: int) -> int:
    """
    Index of the last consecutive entry after the recorded end that has an index unit.

    With C{async} flushing these entries may have been acknowledged, though no mark records them yet: if
    damage before them removes them too, the member has to get them back before it votes again.
    """
    expected = recorded_end_index + 1
    while index.has(index.base(expected * INDEX_UNIT_SIZE)):
        units = index.pread(_UNITS_AT_ONCE * INDEX_UNIT_SIZE, expected * INDEX_UNIT_SIZE)
        for unit in INDEX_UNIT.iter_unpack(units[: len(units) - len(units) % INDEX_UNIT_SIZE]):
            if unit[0] != MAGIC or unit[3] != expected:
                return expected - 1
            expected += 1
        if len(units) < INDEX_UNIT_SIZE:
            break
    return expected - 1


def highest_held(data: SegmentList, mark: CommitMark) -> int:
    """
    Index of the last consecutive record after the recorded end; the recorded end without such records.

    With C{sync} flushing, entries are on stable storage, and acknowledged, some flushes before mark and index
    are. If a power cut takes back mark and index, and damage before the mark removes the entries, only the
    records themselves show how far the ledger reached. They are no leftovers: our ledgers are zero after
    their end.
    """
    expected, position = mark.end_index + 1, mark.end_position
    while data.has(data.base(position)):
        file_end = data.base(position) + data.file_size
        header = data.pread(min(ENTRY_HEADER_SIZE, file_end - position), position)
        if len(header) == ENTRY_HEADER_SIZE:
            magic, size, index, _, stands_at, *_ = ENTRY_HEADER.unpack(header)
            if (
                magic == MAGIC and (index, stands_at) == (expected, position)
                and size >= ENTRY_HEADER_SIZE and record_fits(size, file_end - position)
            ):
                expected += 1
                position += size
                continue
            if magic != BLANK_MAGIC:
                break
        position = file_end  # after a blank, whole or cut short by the end of the file
    return expected - 1


def without_torn_end(
    data: SegmentList, index: SegmentList, mark: CommitMark, found: FoundLedger
) -> FoundLedger:
    """
    The ledger without its last record, if that may be a torn write.

    A record with an empty body ends with its checksums. If its write is torn just before them, the
    zeroes there mean "not recorded", and the record looks whole. So an empty record without a C{chainCrc}
    after a record with one is not trusted, unless the mark records it.

    With C{async} flushing an acknowledged entry may not be in a mark yet. But within a term a leader that
    chains one record chains all, and our leaders begin a term with such a chained record. The price: an
    empty record of a Java leader, first of its term and last in the ledger at a kill, is dropped.
    """
    last = found.end_index
    if found.chain_crc != 0 or last <= found.scanned_from_index or last <= mark.end_index:
        return found
    scanner = Scanner(data, index)
    unit, before = scanner.unit(last), scanner.unit(last - 1)
    assert unit is not None and before is not None, "the index was just corrected"
    chain_crc = ENTRY_HEADER.unpack(data.pread(ENTRY_HEADER_SIZE, before[1]))[6]
    if unit[2] != ENTRY_HEADER_SIZE or chain_crc == 0:
        return found
    return attrs.evolve(
        found, end_index=last - 1, end_term=before[4], end_position=unit[1], chain_crc=chain_crc,
        why=f"entry {last} at {unit[1]}: empty and without a chainCrc, which the entry before it has",
    )


def find_ledger(
    data: SegmentList, index: SegmentList, mark: CommitMark | None, lost: Callable[[], None]
) -> FoundLedger:
    """
    Find the ledger in these files and correct the index. The data is not cut yet.

    @param mark: the commit mark; None if it is absent or not trusted.
    @param lost: called on damage, before the index, which shows how many entries there were, is deleted.
    """
    if not data.offsets:
        return FoundLedger()
    scanner = Scanner(data, index)
    beginning = _beginning_of(scanner, mark)
    if isinstance(beginning, str):
        return FoundLedger(why=beginning)
    begin_index, begin_position, is_begin_damaged = beginning
    recorded = mark.recorded_end_index if mark is not None else -1
    settled = mark.end_index if mark is not None else -1
    start = None
    looks_at_all = is_begin_damaged or (mark is not None and mark.damaged_index >= 0)
    if _index_reaches(index, begin_index) and not looks_at_all:
        if mark is None:
            start = scanner.start_of_late_file(begin_index)
        elif begin_index <= mark.end_index:
            start = scanner.start_of(begin_index, mark)
    if start is not None:
        found = scanner.scan(begin_index, *start, settled_index=settled)
        if not found.why or (mark is not None and found.end_index >= recorded):
            return found
        lost()
        # Damage at the end. The walk could not compare its first record with one before it. So the first
        # record may be the damaged one, and the next one, which contradicts it, may be sound.
    if not _index_reaches(index, begin_index):
        while index.offsets:
            index.drop_last()
        # The first record may be damaged, and its unit is written when it has come back.
        index.create(index.base(begin_index * INDEX_UNIT_SIZE))
    return scanner.scan(begin_index, begin_index, begin_position, settled_index=settled,
                        is_begin_damaged=is_begin_damaged)


def _beginning_of(scanner: Scanner, mark: CommitMark | None) -> tuple[int, int, bool] | str:
    """
    Index and position of the first record, and whether it is damaged although its index is known; or why the
    beginning cannot be found.
    """
    data = scanner.data
    path = data.path(data.offsets[0])
    first = scanner.first_record(data.offsets[0])
    is_recorded = mark is not None and mark.begin_position == data.offsets[0]
    if first is not None:
        if is_recorded and mark is not None:
            is_sound = begin_crc_of(data) == mark.begin_crc
        else:
            is_sound = _is_beginning_sound(scanner)
        if is_sound:
            return first[0], first[2], False
    if is_recorded:
        begin_index = 0 if data.offsets[0] == 0 else scanner.index_at(data.offsets[0])
        if begin_index >= 0:
            return begin_index, data.offsets[0], True
    if first is None:
        return f"no record at the beginning of {path}"
    return f"the first record of {path} is not the recorded one"


def check_beginning(data: SegmentList, index: SegmentList) -> None:
    """
    Without a mark, refuse a ledger whose beginning is damaged, and touch nothing.

    @raise DirectoryError: the first record is damaged.
    """
    if data.offsets and not _is_beginning_sound(Scanner(data, index)):
        raise DirectoryError(
            f"{data.path(data.offsets[0])}: the first record is damaged, so no record after it can be "
            "trusted, and no commit mark records how far the ledger was good. Restore this member "
            "from its peers, or empty the directory"
        )


def _is_beginning_sound(scanner: Scanner) -> bool:
    """Whether the index or the second record confirms the first record, or the ledger is empty."""
    data = scanner.data
    first = scanner.first_record(data.offsets[0])
    if first is None:
        return len(data.offsets) == 1 and not any(data.pread(ENTRY_HEADER_SIZE, data.offsets[0]))
    unit = scanner.unit(first[0])
    if unit is not None and (unit[1], unit[4]) == (first[2], first[1]):
        return True
    walk = Walk(index=first[0], position=first[2], chain_crc=0 if first[0] == 0 else None)
    try:
        walk_records(data.pread(_CHUNK, first[2]), walk, max_count=2, one_term=False, size_max=data.file_size)
    except DamagedRecord as error:
        magic, size = BLANK.unpack(data.pread(MIN_BLANK_SIZE, error.position))
        # Entry 0 has no entry before it and needs no second witness, but the next record must not deny it.
        is_denied = error.is_chain_broken and walk.chain_crc == 0
        return walk.count == 1 and (size == 0 or magic == BLANK_MAGIC or (first[0] == 0 and not is_denied))
    return True


def begin_crc_of(data: SegmentList, position: int = 0) -> int:
    """
    CRC-32 of the first header of a ledger that begins at C{position}, or later. No chain covers that header
    once the record before it has expired.
    """
    for offset in data.offsets:
        if offset < position:
            continue
        header = data.pread(ENTRY_HEADER_SIZE, offset)
        if BLANK.unpack_from(header)[0] != BLANK_MAGIC:
            return crc32(header)
    return 0


def _index_reaches(index: SegmentList, begin_index: int) -> bool:
    return index.has(index.base(begin_index * INDEX_UNIT_SIZE))


def cut_behind(
    data: SegmentList, index: SegmentList, found: FoundLedger, aside: SetAside, *, is_damaged: bool
) -> None:
    """
    Zero everything after the end, in data and index, without syncing.

    Data files after the end are set aside. In the file of the end a torn tail, which was never acknowledged,
    is zeroed; after damage it is copied first. The index is derived from the data, and is not kept.

    @param is_damaged: entries that were recorded are after the end.
    """
    if found.end_index < 0:
        aside.files_behind(data, -1, found.end_term)
        while index.offsets:
            index.drop_last()
        return
    aside.files_behind(data, found.end_position, found.end_term)
    if is_damaged:
        aside.bytes_of(data, found.end_position, found.end_term)
    data.cut(found.end_position)
    index.cut((found.end_index + 1) * INDEX_UNIT_SIZE)
