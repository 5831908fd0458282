# -*- test-case-name: tests.storage.test_log_scan,tests.storage.test_recovery -*-
"""
Walks the records of data files from a known one to the last sound one, and corrects the index on the way.

Rule 1: the walk ends before the first record that is not sound, unless entries after it are known to belong
to the ledger: then the damaged ones are a hole, and the walk goes on.
Rule 2: the index is derived. Where it differs from the data it is written again.

Which files are walked, and from where, is decided in L{dledger.storage.start.recovery}.
"""

from __future__ import annotations

import attrs

from dledger.storage.files.commit_mark import CommitMark
from dledger.storage.files.records import DamagedRecord, Walk, chain_of, record_fits, walk_records
from dledger.storage.start.resync import Gap, RecordFinder
from dledger.values.ledger.holes import Hole, joined_holes
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_SIZE,
    MAGIC,
    MIN_BLANK_SIZE,
)

#: Bytes before the recorded end that every start checks.
SCAN_BACK_BYTES = 32 * 1024 * 1024
#: Number of last files that are checked without a commit mark, or more to cover L{SCAN_BACK_BYTES}.
SCAN_FILES = 3
_CHUNK = 1024 * 1024
#: Longer blanks (whole files that Java wasted) are judged by their first two words alone.
_BLANK_CHECK_MAX = 8 * 1024 * 1024


@attrs.frozen(kw_only=True)
class FoundLedger:
    """
    The ledger that a scan found.

    @ivar begin_index, end_index, end_term: -1 when it is empty.
    @ivar end_position: stream offset after the last record.
    @ivar chain_crc: C{chainCrc} of the last record, 0 if it has none.
    @ivar scanned_from_index: from here on every record was checked, is sound, and the index agrees.
    @ivar walked_from_index: the scan began here; C{holes} has the damaged records after it.
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


class _Leaps:
    """
    Leads a walk over damaged records to the sound ones after them.

    Invariant: C{_anchor} is index and position of the record at which the walk began, or went on after a
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
        Go on after the record at which C{walk} stopped.

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
            unit = self._finder.corrected_unit(index - 1)
            index, position, term = index - 1, unit[1], -1
        target = self._finder.behind(Gap(
            index=index, position=position, term=term, last_index=self._settled_index,
        ))
        if target is None:
            return False
        hole = Hole(first_index=index, last_index=target[0] - 1, position=position, end_position=target[1])
        self.holes = list(joined_holes((*self.holes, hole)))
        walk.index, walk.position = self._anchor = target
        self._is_anchored = False
        walk.chain_crc = None
        walk.term = term
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

    def start_of_late_file(self, begin_index: int) -> tuple[int, int] | None:
        """Index and position of a sound record at the begin of one of the last files; None: there is none."""
        data = self.data
        files = max(SCAN_FILES, -(-SCAN_BACK_BYTES // data.file_size))
        for offset in reversed(data.offsets[: max(len(data.offsets) - files + 1, 1)]):
            first = self.first_record(offset)
            if first is None or first[2] != offset:
                continue
            unit = self.unit(first[0])
            if first[0] >= begin_index and unit is not None and unit[1] == offset and unit[4] == first[1]:
                return first[0], offset
        return None

    def scan(
        self, begin_index: int, start_index: int, position: int, *, settled_index: int = -1,
        is_begin_damaged: bool = False,
    ) -> FoundLedger:
        """
        Walk from the record at C{position} to the last sound record, correcting the index.

        @param start_index: index of that record, at least C{begin_index}.
        @param settled_index: up to here every entry was on stable storage: of damage at or below this index
            the sound records after it stay, if they begin at or below it, too. -1: none of them stay.
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
        The ledger without its last record, which has no checksum, while the record after it claims one.

        One of the two contradicting records is damaged. If it is the one after it, a sound record is dropped
        with it: a leader brings a dropped record back, but would not replace a wrong one.
        """
        if found.end_index == start_index:
            # After a hole the two cannot be distinguished: what is left is in front of it, and a start finds
            # that.
            return found if found.holes else FoundLedger(why=found.why)
        before = self.corrected_unit(found.end_index - 1)
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
        """Whether a blank is whole: its write may have been torn after its first word."""
        size = file_end - position
        if size > _BLANK_CHECK_MAX:
            return BLANK.unpack(self.data.pread(MIN_BLANK_SIZE, position)) == (BLANK_MAGIC, size)
        return self.data.pread(size, position) == BLANK.pack(BLANK_MAGIC, size).ljust(size, b"\0")

    def _write_blank(self, position: int, file_end: int) -> None:
        if file_end - position >= MIN_BLANK_SIZE:
            self.data.zero(position, file_end)
            self.data.mend(BLANK.pack(BLANK_MAGIC, file_end - position), position)

    def _found(self, begin_index: int, walk: Walk, why: str) -> FoundLedger:
        unit = self.corrected_unit(walk.index - 1)
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
            # A record never reaches into the last 8 bytes: a blank always fits after it.
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
