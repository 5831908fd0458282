# -*- test-case-name: tests.storage.test_recovery -*-
"""
Recovery: find the end of the ledger in the files of a directory.

Rule 1: look before touching. Reading alone finds every reason to refuse a directory.
Rule 2: the ledger ends before the first record that is not sound. If that end lies before the end that
the commit mark records, durable entries were lost: the mark is set to I{repairing} first, and
then the damaged rest is cut. Otherwise it was a torn tail, which was never acknowledged.
Rule 3: behind the end everything is zero, on stable storage, before the ledger is used: bytes that a cut
left behind must not become entries again after the next restart (docs/divergence.md W5).
Rule 4: the index is derived. Where it differs from the data it is written again.

Recovery trusts the records before the scanned part. Reads check them, and record a damaged one in the
mark, so that the next start finds it too.

Source: DLedgerMmapFileStore.recover (0.3.1.2); differs in rules 1 to 3.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import attrs

from dledger.base.disk.segment import Listing, SegmentList
from dledger.base.disk.set_aside import SetAside
from dledger.ledger.holes import Hole, joined_holes
from dledger.storage.files.commit_mark import CommitMark
from dledger.storage.files.records import DamagedRecord, Walk, chain_of, record_fits, walk_records
from dledger.storage.start.resync import Gap, RecordFinder
from dledger.values.errors import DirectoryError
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX
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

#: Bytes before the recorded end that every start checks.
SCAN_BACK_BYTES = 32 * 1024 * 1024
#: Number of last files that are checked without a commit mark, or more to cover L{SCAN_BACK_BYTES}.
SCAN_FILES = 3
_CHUNK = 1024 * 1024
_UNITS_AT_ONCE = 512
#: Longer blanks (whole files that Java wasted) are judged by their first two words alone.
_BLANK_CHECK_MAX = 8 * 1024 * 1024


@attrs.frozen(kw_only=True)
class FoundLedger:
    """
    The ledger that a scan found.

    @ivar begin_index, end_index, end_term: -1 when it is empty.
    @ivar end_position: stream offset behind the last record.
    @ivar chain_crc: C{chainCrc} of the last record, 0 if it has none.
    @ivar scanned_from_index: from here on every record was checked, is sound, and the index agrees.
    @ivar walked_from_index: the scan began here; C{holes} has the damaged records behind.
    @ivar why: reason for the end of the scan; empty at zeroes.
    @ivar holes: damaged records between sound ones, in order.
    """

    begin_index: int = -1
    end_index: int = -1
    end_term: int = -1
    end_position: int = 0
    chain_crc: int = 0
    scanned_from_index: int = 0
    why: str = ""
    holes: tuple[Hole, ...] = ()
    walked_from_index: int = 0


def adjacent(listing: Listing, file_size: int, directory: str, mark: CommitMark | None) -> tuple[int, ...]:
    """
    The offsets of the data files that belong to the ledger, without a gap between them.

    Files behind a gap are leftovers of a crash while files were made or deleted, if the gap lies behind
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


class _Leaps:
    """
    Leads a walk over damaged records to the sound ones behind them.

    Invariant: C{_anchor} is index and position of the record at which the walk began, or went on behind a
    hole: no chain covers its header, unless it is entry 0.
    """

    def __init__(self, finder: RecordFinder, settled_index: int, walk: Walk) -> None:
        self._finder = finder
        self._settled_index = settled_index
        self._anchor = (walk.index, walk.position)
        self._is_anchored = walk.chain_crc is not None
        self.holes: list[Hole] = []

    def over(self, walk: Walk, *, is_denied: bool) -> bool:
        """
        Go on behind the record at which C{walk} stopped.

        @param is_denied: that record contradicts the one before it.
        @return: whether there is a sound record that is known to belong to the ledger.
        """
        index, position, term = walk.index, walk.position, walk.term
        if index > self._settled_index:
            return False
        if is_denied and index > self._anchor[0] and (
            walk.chain_crc == 0 or (not self._is_anchored and index == self._anchor[0] + 1)
        ):
            # Nothing vouches for the record before this one, either: one of the two is the damaged one.
            unit = self._finder.unit(index - 1)
            assert unit is not None, "the index was just corrected"
            index, position, term = index - 1, unit[1], -1
        target = self._finder.behind(Gap(
            index=index, position=position, term=term, last_index=self._settled_index,
        ))  # fmt: skip
        if target is None:
            return False
        hole = Hole(first_index=index, last_index=target[0] - 1, position=position, end_position=target[1])
        self.holes = list(joined_holes((*self.holes, hole)))
        walk.index, walk.position = self._anchor = target
        self._is_anchored = False
        walk.chain_crc, walk.term = None, term
        return True


class Scanner(RecordFinder):
    """Walks the data files and corrects the index accordingly."""

    def start_of(self, begin_index: int, mark: CommitMark) -> tuple[int, int] | None:
        """
        Index and position of a sound record about L{SCAN_BACK_BYTES} before the recorded end.

        None if the index leads to no such record: the caller starts further back.
        """
        wanted = min(mark.end_position, mark.index_end_position) - SCAN_BACK_BYTES
        low, high = begin_index, mark.end_index
        while low < high:
            middle = (low + high + 1) // 2
            unit = self.unit(middle)
            if unit is not None and unit[1] <= wanted:
                low = middle
            else:
                high = middle - 1
        unit = self.unit(low)
        if unit is None or not self.data.has(self.data.base(unit[1])):
            return None
        walk = Walk(index=low, position=unit[1])
        try:
            walk_records(self.data.pread(unit[2], unit[1]), walk, max_count=1, one_term=True,
                         size_max=self.data.file_size)
        except DamagedRecord:
            return None
        # No chain covers the header of this record: index and data confirm each other instead.
        return (low, unit[1]) if walk.count and walk.term == unit[4] else None

    def scan(
        self, begin_index: int, start_index: int, position: int, *, settled_index: int = -1,
        is_begin_damaged: bool = False,
    ) -> FoundLedger:
        """
        Walk from the record at C{position} to the last sound record, correcting the index.

        @param start_index: index of that record, at least C{begin_index}.
        @param settled_index: up to here every entry was on stable storage: of damage at or below this index
            the sound records behind it stay, if they begin at or below it, too. -1: none of them stay.
        @param is_begin_damaged: the record at C{position} is not the recorded one.
        """
        walk = Walk(index=start_index, position=position, chain_crc=0 if start_index == 0 else None)
        leaps = _Leaps(self, settled_index, walk)
        if is_begin_damaged and not leaps.over(walk, is_denied=False):
            return FoundLedger(why="the first record is not the recorded one")
        while True:
            following = self.data.base(walk.position) + self.data.file_size
            is_denied = is_unvouched = False
            try:
                ended = self._scan_file(walk)
            except DamagedRecord as damage:
                is_denied = damage.is_chain_broken
                is_unvouched = is_denied and walk.chain_crc == 0
                ended = f"entry {damage.index} at {damage.position}: {damage.what}"
            if not self._continues(walk, following, is_blank=ended == "blank"):
                if leaps.over(walk, is_denied=is_denied):
                    continue
                why = ended
                break
            if ended != "blank" or not self._is_whole_blank(walk.position, following):
                # No record is missing, so these bytes were, or should have become, a blank.
                self._write_blank(walk.position, following)
            walk.position = following
        if walk.index == start_index:
            return FoundLedger(why=why or "no record")
        checked_from = max(start_index, leaps.holes[-1].last_index + 1 if leaps.holes else 0)
        found = attrs.evolve(self._found(begin_index, walk, "" if why == "blank" else why),
                             scanned_from_index=checked_from, walked_from_index=start_index,
                             holes=tuple(leaps.holes))
        return self._without_unvouched(found, checked_from) if why == ended and is_unvouched else found

    def _without_unvouched(self, found: FoundLedger, start_index: int) -> FoundLedger:
        """
        The ledger without its last record, which has no checksum, while the record behind it claims one.

        One of the two contradicting records is damaged. If it is the one behind, a sound record is dropped
        with it: a leader brings a dropped record back, but would not replace a wrong one.
        """
        if found.end_index == start_index:
            # Behind a hole the two cannot be told apart: what is left is in front of it, and a start finds
            # that.
            return found if found.holes else FoundLedger(why=found.why)
        last, before = self.unit(found.end_index), self.unit(found.end_index - 1)
        assert last is not None and before is not None, "the index was just corrected"
        header = ENTRY_HEADER.unpack(self.data.pread(ENTRY_HEADER_SIZE, before[1]))
        return attrs.evolve(
            found, end_index=found.end_index - 1, end_term=before[4], end_position=before[1] + before[2],
            chain_crc=header[6],
        )

    def _continues(self, walk: Walk, position: int, *, is_blank: bool) -> bool:
        """
        Whether the next expected record starts the file at C{position}, or a file after blank ones.

        @param is_blank: the file before ends in a blank. If not, that record must continue the chain: it may
            be a later one with a damaged index, and the expected one be the damaged one in the file before.
        """
        while self.data.has(position):
            header = self.data.pread(ENTRY_HEADER_SIZE, position)
            magic, _, index, term, pos, _, chain_crc, _, _ = ENTRY_HEADER.unpack(header)
            if magic != BLANK_MAGIC:
                is_next = magic == MAGIC and index == walk.index and term >= walk.term and pos == position
                is_unknown = is_blank or not chain_crc or not walk.chain_crc
                return bool(is_next and (is_unknown or chain_crc == chain_of(header, walk.chain_crc or 0)))
            position += self.data.file_size  # a file that Java wasted
        return False

    def _is_whole_blank(self, position: int, file_end: int) -> bool:
        """Whether a blank is whole: its write may have been torn behind its first word."""
        size = file_end - position
        if size > _BLANK_CHECK_MAX:
            return BLANK.unpack(self.data.pread(MIN_BLANK_SIZE, position)) == (BLANK_MAGIC, size)
        return self.data.pread(size, position) == BLANK.pack(BLANK_MAGIC, size).ljust(size, b"\0")

    def _write_blank(self, position: int, file_end: int) -> None:
        if file_end - position >= MIN_BLANK_SIZE:
            self.data.zero(position, file_end)
            self.data.mend(BLANK.pack(BLANK_MAGIC, file_end - position), position)

    def _found(self, begin_index: int, walk: Walk, why: str) -> FoundLedger:
        unit = self.unit(walk.index - 1)
        assert unit is not None, "the index was just corrected"
        return FoundLedger(
            begin_index=begin_index, end_index=walk.index - 1, end_term=walk.term,
            end_position=unit[1] + unit[2], chain_crc=walk.chain_crc or 0, why=why,
        )

    def pass_over(self, walk: Walk, index: int, *, bytes_max: int = POSITION_MAX) -> None:
        """
        Walk until C{index} is passed, or about C{bytes_max} bytes, correcting the index.

        @raise DamagedRecord: at a record up to that one.
        """
        until_position = walk.position + bytes_max
        while walk.index <= index:
            following = self.data.base(walk.position) + self.data.file_size
            try:
                ended = self._scan_file(walk, index, until_position)
            except DamagedRecord:
                if walk.index > index:
                    return  # that record is another one's matter
                raise
            if ended == "passed":
                return
            if ended != "blank" or not self.data.has(following):
                raise DamagedRecord(walk.index, walk.position, "no record")
            walk.position = following

    def _scan_file(
        self, walk: Walk, until_index: int = INDEX_MAX, until_position: int = POSITION_MAX
    ) -> str:
        """
        Walk to the end of the records of one file; returns "blank", or "" at zeroes, or "passed" once the
        record at C{until_index}, or C{until_position}, was passed.
        """
        file_end = self.data.base(walk.position) + self.data.file_size
        wanted = _CHUNK
        while True:
            if walk.index > until_index or walk.position >= until_position:
                return "passed"
            data = self.data.pread(wanted, walk.position)
            if len(data) < MIN_BLANK_SIZE:
                raise DamagedRecord(walk.index, walk.position, "the file ends without a blank")
            magic, size = BLANK.unpack_from(data)
            if magic == BLANK_MAGIC:
                return "blank"
            if size == 0:
                return ""
            room = min(file_end - walk.position, self.data.file_size)
            if size < ENTRY_HEADER_SIZE or not record_fits(size, room):
                raise DamagedRecord(walk.index, walk.position, f"no record of {size} bytes fits here")
            if size > len(data):
                if wanted >= size:
                    raise DamagedRecord(walk.index, walk.position, "the file is shorter than it should be")
                wanted = size
                continue
            # A record never reaches into the last 8 bytes: a blank always fits behind it.
            self._walk_chunk(data[: room - MIN_BLANK_SIZE], walk)
            wanted = _CHUNK

    def _walk_chunk(self, data: bytes, walk: Walk) -> None:
        units: list[bytes] = []
        first = walk.index
        walk.count = walk.length = 0
        try:
            walk_records(data, walk, max_count=len(data), one_term=False, size_max=self.data.file_size,
                         units=units)
        except DamagedRecord:
            magic, size = BLANK.unpack_from(data, walk.length)
            if magic != BLANK_MAGIC and size != 0:
                raise
        finally:
            self._align_index(first, b"".join(units))

    def _align_index(self, first_index: int, units: bytes) -> None:
        position, offset = first_index * INDEX_UNIT_SIZE, 0
        while offset < len(units):
            base = self.index.base(position)
            while not self.index.has(base):
                self.index.create(self.index.offsets[-1] + self.index.file_size
                                   if self.index.offsets else base)
            size = min(len(units) - offset, base + self.index.file_size - position)
            piece = units[offset : offset + size]
            if self.index.pread(size, position) != piece:
                self.index.mend(piece, position)
            position += size
            offset += size


def highest_indexed(index: SegmentList, recorded_end_index: int) -> int:
    """
    Index of the last consecutive entry behind the recorded end that has an index unit.

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
    Index of the last consecutive record behind the recorded end; the recorded end without such records.

    With C{sync} flushing, entries are on stable storage, and acknowledged, some flushes before mark and index
    are. If a power cut takes back mark and index, and damage before the mark removes the entries, only the
    records themselves show how far the ledger reached. They are no leftovers: our ledgers are zero behind
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
            ):  # fmt: skip
                expected += 1
                position += size
                continue
            if magic != BLANK_MAGIC:
                break
        position = file_end  # behind a blank, whole or cut short by the end of the file
    return expected - 1


def without_torn_end(
    data: SegmentList, index: SegmentList, mark: CommitMark, found: FoundLedger
) -> FoundLedger:
    """
    The ledger without its last record, if that may be a torn write.

    A record with an empty body ends with its checksums. If its write is torn just before them, the
    zeroes there mean "not recorded", and the record looks whole. So an empty record without a C{chainCrc}
    behind a record with one is not trusted, unless the mark records it.

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
            start = _start_of_late_file(scanner, data, begin_index)
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
            f"{data.path(data.offsets[0])}: the first record is damaged, so no record behind it can be "
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


def _start_of_late_file(scanner: Scanner, data: SegmentList, begin_index: int) -> tuple[int, int] | None:
    files = max(SCAN_FILES, -(-SCAN_BACK_BYTES // data.file_size))
    for offset in reversed(data.offsets[: max(len(data.offsets) - files + 1, 1)]):
        first = scanner.first_record(offset)
        if first is None or first[2] != offset:
            continue
        unit = scanner.unit(first[0])
        if first[0] >= begin_index and unit is not None and unit[1] == offset and unit[4] == first[1]:
            return first[0], offset
    return None


def cut_behind(
    data: SegmentList, index: SegmentList, found: FoundLedger, aside: SetAside, *, is_damaged: bool
) -> None:
    """
    Zero everything behind the end, in data and index, without syncing.

    Data files behind the end are set aside. In the file of the end a torn tail, which was never acknowledged,
    is zeroed; behind damage it is copied first. The index is derived from the data, and is not kept.

    @param is_damaged: entries that were recorded are behind the end.
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
