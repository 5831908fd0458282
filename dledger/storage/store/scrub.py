# -*- test-case-name: tests.storage.test_scrub -*-
"""
The scrub: reads the closed segments of an open ledger from the first to the last, a little at a time, so that
damage is found while other members still have the entries.

A segment is closed when a later one has a record. Only committed entries are read. Damage goes the way of
every damaged read: L{dledger.storage.store.hole_finder} makes a hole of it, and the core gets the entries
from the peers. Two things need no peer, because they are derived: index units, and the blank at the end of a
segment.

A sector that cannot be read is damage, too (L{dledger.base.disk.unreadable}); a file that cannot be read for
another reason is reported and passed over: a member does not stop for an entry that nobody has asked for. The
system may answer from its memory; that says nothing about the disk.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import is_no_room
from dledger.storage.files.records import DamagedRecord, Walk, chain_of, record_fits, walk_records
from dledger.storage.start.open_ledger import MarkWriter, OpenLedger
from dledger.storage.start.scanner import Scanner
from dledger.storage.store.hole_finder import HoleFinder
from protocols.wire.checksums import crc32
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_SIZE,
    MIN_BLANK_SIZE,
)

#: Longer blanks (whole files that Java wasted) are judged by their first two words alone.
_BLANK_CHECK_MAX = 8 * 1024 * 1024


@attrs.frozen(kw_only=True)
class ScrubStep:
    """
    What one step did.

    @ivar checked_bytes: read and found sound, or found damaged.
    @ivar damaged: places that were found damaged, and are holes now.
    @ivar mended: index units and blanks that were written again.
    @ivar trouble: why the file could not be read; empty if it could.
    @ivar is_end: all closed segments have been read; the next step begins anew.
    """

    checked_bytes: int = 0
    damaged: int = 0
    mended: int = 0
    trouble: str = ""
    is_end: bool = False


class SegmentScrub:
    """
    One pass after another over one open ledger.

    Invariant: C{_walk} is after the last record that was read, or None between two passes.
    """

    def __init__(self, ledger: OpenLedger, marks: MarkWriter, finder: HoleFinder) -> None:
        self._ledger = ledger
        self._marks = marks
        self._finder = finder
        self._scanner = Scanner(ledger.data, ledger.index)
        self._walk: Walk | None = None
        self._epoch = -1
        self._doubted_index = -1
        self._share = 0.0

    def begin_at(self, share: float) -> None:
        """The next pass begins where this share of the closed segments, below 1, is after it."""
        self._share = share

    def step(self, bytes_max: int) -> ScrubStep:
        """
        Check about C{bytes_max} bytes.

        @raise StoreError: the store is broken, or what was found could not be recorded.
        """
        ledger = self._ledger
        ledger.guard.check()
        walk = self._walk
        if ledger.begin_index < 0:
            self._walk = None
            return ScrubStep(is_end=True)
        if walk is None or self._epoch != ledger.epoch or walk.position < ledger.data.offsets[0]:
            self._epoch = ledger.epoch
            walk = self._first()
        if walk.position >= ledger.data.base(ledger.end_position) or walk.index > ledger.committed_index:
            self._walk = None
            return ScrubStep(is_end=True)
        self._walk = walk
        hole = ledger.holes.at(walk.index)
        if hole is not None:
            self._walk = Walk(index=hole.last_index + 1, position=hole.end_position)
            return ScrubStep()
        try:
            return self._checked(walk, bytes_max)
        except OSError as error:
            return self._passed_over(walk, str(error))

    def _first(self) -> Walk:
        """Where a pass begins."""
        ledger, share = self._ledger, self._share
        self._share = 0.0
        begin = Walk(index=ledger.begin_index, position=ledger.data.offsets[0],
                     chain_crc=0 if ledger.begin_index == 0 else None)
        offsets = ledger.data.offsets[:-1]
        if not share or not offsets:
            return begin
        offset = offsets[int(share * len(offsets))]
        try:
            first = self._scanner.first_record(offset)
        except OSError:
            return begin  # the pass reports that file when it gets there
        if first is None or first[2] != offset or not begin.index < first[0] <= ledger.end_index:
            return begin
        return Walk(index=first[0], position=offset)

    def _passed_over(self, walk: Walk, trouble: str) -> ScrubStep:
        """Go on with the next segment that begins with a record."""
        ledger = self._ledger
        offset = ledger.data.base(walk.position) + ledger.data.file_size
        self._walk = None
        while offset < ledger.data.base(ledger.end_position):
            try:
                first = self._scanner.first_record(offset)
                if first is not None and first[2] == offset and first[0] > walk.index:
                    self._walk = Walk(index=first[0], position=offset)
                    break
            except OSError as error:
                trouble = f"{trouble}; {error}"
            offset += ledger.data.file_size
        return ScrubStep(trouble=trouble, is_end=self._walk is None)

    def _checked(self, walk: Walk, bytes_max: int) -> ScrubStep:
        """@raise OSError: a file cannot be read."""
        data = self._ledger.data
        file_end = data.base(walk.position) + data.file_size
        room = file_end - walk.position
        if self._is_blank_place(walk, file_end):
            mended = self._check_blank(walk.position, file_end)
            walk.position = file_end
            return ScrubStep(checked_bytes=room, mended=mended)
        records = data.pread(min(max(bytes_max, ENTRY_HEADER_SIZE), room), walk.position)
        size = BLANK.unpack_from(records)[1] if len(records) >= MIN_BLANK_SIZE else 0
        if size > len(records) and record_fits(size, room):
            records = data.pread(size, walk.position)
        first_index, position = walk.index, walk.position
        units: list[bytes] = []
        walk.count = walk.length = 0
        damage: DamagedRecord | None = None
        try:
            walk_records(
                records, walk, max_count=self._ledger.committed_index - first_index + 1, one_term=False,
                size_max=data.file_size, units=units,
            )
        except DamagedRecord as found:
            if not walk.count or not self._is_blank_place(walk, file_end):
                damage = found
        if damage is None and not walk.count:
            damage = DamagedRecord(walk.index, walk.position, "no whole record")
        if (
            damage is None and first_index == self._ledger.begin_index > 0
            and crc32(records[:ENTRY_HEADER_SIZE]) != self._marks.begin_crc
        ):
            damage = DamagedRecord(first_index, position, "not the first record that is on record")
        mended, damaged = self._check_units(first_index, b"".join(units))
        if damage is not None:
            damaged += 1
            self._examine(damage)
        return ScrubStep(checked_bytes=max(walk.length, 1), damaged=damaged, mended=mended)

    def _examine(self, damage: DamagedRecord) -> None:
        """Make a hole of it, and go on after that."""
        self._finder.damaged(damage.index, damage.position, damage.what)
        if self._ledger.holes.at(damage.index) is None:
            # The record before it is the damaged one, or both; look again, but not for ever.
            if self._doubted_index == damage.index:
                self._passed_over(Walk(index=damage.index, position=damage.position), "")
                return
            self._doubted_index = damage.index
        self._walk = Walk(index=damage.index, position=damage.position)

    def _check_units(self, first_index: int, wanted: bytes) -> tuple[int, int]:
        """Compare the index with the units of sound records. @return: units mended, and holes found."""
        mended = damaged = 0
        stored = self._units(first_index, len(wanted))
        if stored == wanted:
            return 0, 0
        for at in range(0, len(wanted), INDEX_UNIT_SIZE):
            unit, index = wanted[at : at + INDEX_UNIT_SIZE], first_index + at // INDEX_UNIT_SIZE
            if stored[at : at + INDEX_UNIT_SIZE] == unit:
                continue
            if self._units(index, INDEX_UNIT_SIZE) != unit:  # it was not mended together with one before
                self._finder.damaged(index, -1, "its index unit and its record do not agree")
            if self._ledger.holes.at(index) is not None:
                damaged += 1
            elif self._units(index, INDEX_UNIT_SIZE) == unit:  # else there is no room: the next pass finds it
                mended += 1
        return mended, damaged

    def _units(self, first_index: int, size: int) -> bytes:
        """The bytes of the index from C{first_index} on; fewer if a file of it is missing."""
        index, found = self._ledger.index, b""
        while len(found) < size:
            at = first_index * INDEX_UNIT_SIZE + len(found)
            piece = index.pread(size - len(found), at) if index.has(index.base(at)) else b""
            if not piece:
                break
            found += piece
        return found

    # -- blanks ----------------------------------------------------------------------------------

    def _is_blank_place(self, walk: Walk, file_end: int) -> bool:
        """Whether the next record begins the next segment, so that what is left of this one is a blank."""
        data, next_file = self._ledger.data, file_end
        header = b""
        while data.has(next_file):
            header = data.pread(ENTRY_HEADER_SIZE, next_file)
            if BLANK.unpack_from(header)[0] != BLANK_MAGIC:
                break
            next_file += data.file_size  # a file that Java wasted
        if len(header) < ENTRY_HEADER_SIZE:
            return False
        _, _, index, _, position, _, chain_crc, _, _ = ENTRY_HEADER.unpack(header)
        if (index, position) != (walk.index, next_file):
            return False
        if chain_crc and walk.chain_crc:
            return bool(chain_crc == chain_of(header, walk.chain_crc))
        return BLANK.unpack(data.pread(MIN_BLANK_SIZE, walk.position)) == (
            BLANK_MAGIC, file_end - walk.position
        )

    def _check_blank(self, position: int, file_end: int) -> int:
        """Write it again if it is not as it was. @return: 1 if it was not."""
        data, size = self._ledger.data, file_end - position
        head = BLANK.pack(BLANK_MAGIC, size)
        length = size if size <= _BLANK_CHECK_MAX else MIN_BLANK_SIZE
        if data.pread(length, position) == head.ljust(length, b"\0"):
            return 0
        with self._ledger.guard.storing("mending a blank failed"):
            try:
                data.zero(position, file_end)
                data.mend(head, position)
            except OSError as error:
                if not is_no_room(error):
                    raise
                return 0  # the next pass finds it again
        return 1
