# -*- test-case-name: tests.storage.test_recovery -*-
"""
From the files of a directory to a ledger whose end is known.

Rule 1: look before touching. Whatever makes a directory unfit is found by reading alone.
Rule 2: the ledger ends before the first record that is not sound. If that is short of the end that
the commit mark records, something durable was lost: the mark is set to I{repairing} first, and
then the damaged rest is cut. Otherwise it was a torn tail, which nobody was promised.
Rule 3: behind the end everything is zero, on stable storage, before the ledger is used: what a cut
left behind must not come back as entries after the next restart (docs/divergence.md W5).
Rule 4: the index is derived. Where it differs from the data it is written anew.

Records before the part that is scanned are taken on trust here; reading checks them, and a damaged
one found then is noted in the mark, so that the next start finds it too.

Source: DLedgerMmapFileStore.recover (0.3.1.2); differs in rules 1 to 3.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import attrs

from dledger.base.disk.segment import Listing, SegmentList
from dledger.base.errors import DirectoryError
from dledger.storage.commit_mark import CommitMark
from dledger.storage.records import DamagedRecord, Walk, record_fits, walk_records
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

#: So many bytes before the recorded end are checked at every start.
SCAN_BACK_BYTES = 32 * 1024 * 1024
#: So many files, the last ones, are checked where there is no commit mark.
SCAN_FILES = 3
_CHUNK = 1024 * 1024
_UNITS_AT_ONCE = 512
#: Longer blanks (whole files that Java wasted) are judged by their first words alone.
_BLANK_CHECK_MAX = 8 * 1024 * 1024


@attrs.frozen(kw_only=True)
class Found:
    """
    A ledger.

    @ivar begin_index, end_index, end_term: -1 when it is empty.
    @ivar end_position: stream offset behind the last record.
    @ivar chain_crc: C{chainCrc} of the last record, 0 if there is none.
    @ivar scanned_from_index: from here on every record was looked at, and the index agrees.
    @ivar why: why the scan ended where it did; empty at zeroes.
    """

    begin_index: int = -1
    end_index: int = -1
    end_term: int = -1
    end_position: int = 0
    chain_crc: int = 0
    scanned_from_index: int = 0
    why: str = ""


def adjacent(listing: Listing, file_size: int, directory: str, mark: CommitMark | None) -> tuple[int, ...]:
    """
    The offsets of a data directory that belong to the ledger: no gap between them.

    What stands behind a gap, or is shorter than a file should be, is what a crash left of a file that
    was being made or deleted, if it lies behind the recorded end. It is not counted. The gap may be
    at the beginning: of several new files the first one's name may be the one that got lost.

    @raise DirectoryError: a gap, or a short file, that this does not explain.
    """
    offsets = listing.offsets
    if mark is not None and offsets and offsets[0] > mark.end_position:
        return ()
    for previous, offset in zip(offsets, offsets[1:], strict=False):
        if offset != previous + file_size:
            if mark is not None and mark.end_position <= previous + file_size:
                return offsets[: offsets.index(offset)]
            raise DirectoryError(
                f"{directory}: a file is missing between offsets {previous} and {offset}: "
                "put it back, or restore this member from its peers"
            )
    return offsets


class Scanner:
    """Walks the data, brings the index into line with it."""

    def __init__(self, data: SegmentList, index: SegmentList) -> None:
        self.data = data
        self.index = index

    def first_record(self, offset: int) -> tuple[int, int, int] | None:
        """
        Index, term and position of the first record at or behind the start of the file at C{offset};
        None if there is none.
        """
        while self.data.has(offset):
            header = self.data.pread(ENTRY_HEADER_SIZE, offset)
            if len(header) < ENTRY_HEADER_SIZE:
                return None
            if BLANK.unpack_from(header)[0] == BLANK_MAGIC:
                offset += self.data.file_size
                continue
            magic, size, index, term, pos, _, _, _, length = ENTRY_HEADER.unpack(header)
            sound = magic == MAGIC and size == length + ENTRY_HEADER_SIZE and pos == offset
            if sound and 0 <= index < 1 << 58:
                return index, term, pos
            return None
        return None

    def unit(self, index: int) -> tuple[int, int, int, int, int] | None:
        """The index unit of an entry: magic, pos, size, index, term; None where there is none."""
        position = index * INDEX_UNIT_SIZE
        if not self.index.has(self.index.base(position)):
            return None
        data = self.index.pread(INDEX_UNIT_SIZE, position)
        if len(data) < INDEX_UNIT_SIZE:
            return None
        unit: tuple[int, int, int, int, int] = INDEX_UNIT.unpack(data)
        return unit if unit[0] == MAGIC and unit[3] == index else None

    def start_of(self, begin_index: int, mark: CommitMark) -> tuple[int, int] | None:
        """
        Index and position of a sound record about L{SCAN_BACK_BYTES} before the recorded end.

        None if the index does not lead to one: the caller starts further back.
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
        # Its header is not vouched for by a chain: index and data vouch for each other.
        return (low, unit[1]) if walk.count and walk.term == unit[4] else None

    def scan(self, begin_index: int, start_index: int, position: int) -> Found:
        """
        Walk from the record at C{position} to the end of what is sound, correcting the index.

        @param start_index: index of that record, at least C{begin_index}.
        """
        walk = Walk(index=start_index, position=position, chain_crc=0 if start_index == 0 else None)
        while True:
            following = self.data.base(walk.position) + self.data.file_size
            is_unvouched = False
            try:
                ended = self._scan_file(walk)
            except DamagedRecord as damage:
                is_unvouched = damage.is_chain_broken and walk.chain_crc == 0
                ended = f"entry {damage.index} at {damage.position}: {damage.what}"
            if not self._continues(walk, following):
                why = ended
                break
            if ended != "blank" or not self._is_whole_blank(walk.position, following):
                # No record is missing, so what stands here was, or should have become, a blank.
                self._write_blank(walk.position, following)
            walk.position = following
        if walk.index == start_index:
            return Found(why=why or "no record")
        found = attrs.evolve(self._found(begin_index, walk, "" if why == "blank" else why),
                             scanned_from_index=start_index)
        return self._without_unvouched(found, start_index) if why == ended and is_unvouched else found

    def _without_unvouched(self, found: Found, start_index: int) -> Found:
        """
        The ledger without its last record: it has no checksum, and the one behind it says that it had.

        Of two that contradict each other, one is damaged. Where it is the one behind, a sound record is
        given up together with it; it comes back from a leader, which a wrong one would not.
        """
        if found.end_index == start_index:
            return Found(why=found.why)
        last, before = self.unit(found.end_index), self.unit(found.end_index - 1)
        assert last is not None and before is not None, "the index was just brought into line"
        header = ENTRY_HEADER.unpack(self.data.pread(ENTRY_HEADER_SIZE, before[1]))
        return attrs.evolve(
            found, end_index=found.end_index - 1, end_term=before[4], end_position=before[1] + before[2],
            chain_crc=header[6],
        )

    def _continues(self, walk: Walk, position: int) -> bool:
        """Whether the record that is due now stands at the start of the file at C{position}, or beyond."""
        while self.data.has(position):
            header = self.data.pread(ENTRY_HEADER_SIZE, position)
            magic, _, index, term, pos, _, _, _, _ = ENTRY_HEADER.unpack(header)
            if magic != BLANK_MAGIC:
                return bool(magic == MAGIC and index == walk.index and term >= walk.term and pos == position)
            position += self.data.file_size  # a file that Java wasted
        return False

    def _is_whole_blank(self, position: int, file_end: int) -> bool:
        """Whether a blank is as it should be: its write may have been torn behind its first word."""
        size = file_end - position
        if size > _BLANK_CHECK_MAX:
            return BLANK.unpack(self.data.pread(MIN_BLANK_SIZE, position)) == (BLANK_MAGIC, size)
        return self.data.pread(size, position) == BLANK.pack(BLANK_MAGIC, size).ljust(size, b"\0")

    def _write_blank(self, position: int, file_end: int) -> None:
        if file_end - position >= MIN_BLANK_SIZE:
            self.data.zero(position, file_end)
            self.data.pwrite(BLANK.pack(BLANK_MAGIC, file_end - position), position)

    def _found(self, begin_index: int, walk: Walk, why: str) -> Found:
        unit = self.unit(walk.index - 1)
        assert unit is not None, "the index was just brought into line"
        return Found(
            begin_index=begin_index, end_index=walk.index - 1, end_term=walk.term,
            end_position=unit[1] + unit[2], chain_crc=walk.chain_crc or 0, why=why,
        )

    def _scan_file(self, walk: Walk) -> str:
        """Walk to the end of one file; "blank", or "" at zeroes."""
        file_end = self.data.base(walk.position) + self.data.file_size
        wanted = _CHUNK
        while True:
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
                raise DamagedRecord(walk.index, walk.position, f"no record of {size} bytes can stand here")
            if size > len(data):
                if wanted >= size:
                    raise DamagedRecord(walk.index, walk.position, "the file is shorter than it should be")
                wanted = size
                continue
            # A record never reaches into the last 8 bytes: there is room for a blank behind each.
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
                self.index.pwrite(piece, position)
            position += size
            offset += size


def highest_indexed(index: SegmentList, recorded_end_index: int) -> int:
    """
    The last of the consecutive entries behind the recorded end that have an index unit.

    With C{async} flushing they may have been acknowledged, though no mark vouches for them yet: where
    damage before them takes them along, a member has to get them back before it votes again.
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
    The last of the consecutive records that stand behind the recorded end; the recorded one if none does.

    With C{sync} flushing entries are on stable storage, and acknowledged, some flushes before mark and index
    are. Where a power cut took these, and damage before the mark takes the entries along, only the records
    themselves tell how far it was. Behind the end of a ledger of ours everything is zero: none is left over.
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


def without_torn_end(data: SegmentList, index: SegmentList, mark: CommitMark, found: Found) -> Found:
    """
    The ledger without its last record, if that may be the beginning of one that was being written.

    An empty body leaves nothing behind the checksums: where the write of such a record is torn just
    before them, the zeroes that stand there say "not recorded", and the record looks whole. So behind
    a record with a C{chainCrc}, an empty one without is not believed, unless the mark vouches for it.

    With C{async} flushing an acknowledgement may rest on what no mark vouches for yet. But within a term a
    leader that chains one record chains all, and what leaders of ours begin a term with is just such a
    record; an empty one of Java's as the first of its term, last in the ledger at a kill, is the price.
    """
    last = found.end_index
    if found.chain_crc != 0 or last <= found.begin_index or last <= mark.end_index:
        return found
    scanner = Scanner(data, index)
    unit, before = scanner.unit(last), scanner.unit(last - 1)
    assert unit is not None and before is not None, "the index was just brought into line"
    chain_crc = ENTRY_HEADER.unpack(data.pread(ENTRY_HEADER_SIZE, before[1]))[6]
    if unit[2] != ENTRY_HEADER_SIZE or chain_crc == 0:
        return found
    return attrs.evolve(
        found, end_index=last - 1, end_term=before[4], end_position=unit[1], chain_crc=chain_crc,
        why=f"entry {last} at {unit[1]}: empty, and without the chainCrc that the one before it has",
    )


def find_ledger(
    data: SegmentList, index: SegmentList, mark: CommitMark | None, lost: Callable[[], None]
) -> Found:
    """
    The ledger in these files, and the index brought into line with it. Nothing is cut yet.

    @param mark: what is recorded of it; None if nothing is, or what is recorded is not to be trusted.
    @param lost: called when there is damage, before the index (which tells how much there was) is undone.
    """
    if not data.offsets:
        return Found()
    scanner = Scanner(data, index)
    first = scanner.first_record(data.offsets[0])
    if first is None:
        return Found(why=f"no record at the beginning of {data.path(data.offsets[0])}")
    if mark is not None and mark.begin_position == data.offsets[0]:
        is_sound = begin_crc_of(data) == mark.begin_crc
    else:
        is_sound = _is_beginning_sound(scanner)
    if not is_sound:
        return Found(why=f"the first record of {data.path(data.offsets[0])} is not the one on record")
    begin_index, _, begin_position = first
    start = None
    if _index_reaches(index, begin_index) and (mark is None or mark.damaged_index < 0):
        if mark is None:
            start = _start_of_late_file(scanner, data, begin_index)
        elif begin_index <= mark.end_index:
            start = scanner.start_of(begin_index, mark)
    if start is not None:
        found = scanner.scan(begin_index, *start)
        if not found.why or (mark is not None and found.end_index >= mark.recorded_end_index):
            return found
        lost()
        # Damage. The record that the walk began with had none before it to be held against: it may be
        # the damaged one, and the one behind it, which it does not fit, be sound.
    while index.offsets:
        index.drop_last()
    return scanner.scan(begin_index, begin_index, begin_position)


def check_beginning(data: SegmentList, index: SegmentList) -> None:
    """
    Where nothing is on record, a beginning that makes no sense is a reason to touch nothing.

    @raise DirectoryError: the first record is damaged.
    """
    if data.offsets and not _is_beginning_sound(Scanner(data, index)):
        raise DirectoryError(
            f"{data.path(data.offsets[0])}: the first record is damaged, so nothing behind it can be relied "
            "on, and there is no commit mark that says how far the ledger was good. Restore this member "
            "from its peers, or empty the directory"
        )


def _is_beginning_sound(scanner: Scanner) -> bool:
    """Whether the index, or the record behind it, vouches for the first record; or nothing is there."""
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
        # The first entry of all needs no witness, as nothing stood before it; but none against it either.
        is_denied = error.is_chain_broken and walk.chain_crc == 0
        return walk.count == 1 and (size == 0 or magic == BLANK_MAGIC or (first[0] == 0 and not is_denied))
    return True


def begin_crc_of(data: SegmentList) -> int:
    """
    CRC-32 of the first header of a ledger. No chain vouches for that one where what stood before it
    has expired.
    """
    for offset in data.offsets:
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


def cut_behind(data: SegmentList, index: SegmentList, found: Found) -> None:
    """Nothing but zeroes behind the end, in data and index; not synced yet."""
    if found.end_index < 0:
        while data.offsets:
            data.drop_last()
        while index.offsets:
            index.drop_last()
        return
    data.cut(found.end_position)
    index.cut((found.end_index + 1) * INDEX_UNIT_SIZE)
