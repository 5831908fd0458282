# -*- test-case-name: tests.storage.test_holes,tests.storage.test_hole_mending -*-
"""
What to do about a record of an open ledger that a read found unsound.

The index is derived: if only it is wrong, it is written again. Otherwise the records up to the next sound one
become a hole, which is remembered in C{holes}, or in the mark if there is no room for that file.

A read must not take long: it looks at L{UNITS_MAX} index units and L{BYTES_MAX} bytes; then a hole reaches to
the next file, or to the end of the ledger. L{dledger.storage.store.hole_mending} finds the sound records in
such a hole again, step by step.
"""

from __future__ import annotations

from dledger.base.disk.disk import is_no_room
from dledger.storage.files.records import DamagedRecord, Walk, chain_of
from dledger.storage.start.open_ledger import MarkWriter, OpenLedger
from dledger.storage.start.resync import Gap
from dledger.storage.start.scanner import Scanner
from dledger.values.errors import DamagedEntryError
from dledger.values.ledger.holes import Hole
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE

#: Index units before an unsound record that may be asked for a sound one to walk from.
BACK_MAX = 256
#: Index units, and bytes, after an unsound record that are searched for a sound one.
UNITS_MAX = 1024
BYTES_MAX = 512 * 1024


class HoleFinder:
    """Examines the records of one open ledger."""

    def __init__(self, ledger: OpenLedger, marks: MarkWriter) -> None:
        self._ledger = ledger
        self._marks = marks
        self._scanner = Scanner(ledger.data, ledger.index)

    def damaged(self, index: int, position: int, what: str) -> DamagedEntryError:
        """
        The record of C{index}, at C{position}, or its index unit, is not sound for a reader: find out, and
        remember the hole.

        @param position: -1 if it is not known.
        @return: the error that says so. If a second look finds nothing wrong, there is no hole afterwards.
            Nor is there one if the index cannot be corrected, as the disk is full: another look will find it.
        """
        with self._ledger.guard.storing("examining a damaged entry failed"):
            hole = self._examined_or_later(index)
            if hole is None and position >= 0:
                hole = self._behind(index, position, -1)
        if hole is not None:
            self._ledger.holes.add(hole)
            if self._ledger.holes.is_late:
                self._marks.note_damage(hole.first_index)
        return self.error(index, what)

    def is_vouched(self, index: int) -> bool:
        """
        Whether the header of the record after a hole is the one that was written: the index has its place,
        size and term, the record after it continues from its C{chainCrc}, and it continues from the record
        before. That is in the hole, but its header may have kept its C{chainCrc}, or all else. Where it is
        lost, the C{channel} must be 0. Java's records have no C{chainCrc}, and their C{channel} does
        not count.

        @raise StoreError: the files cannot be read.
        """
        ledger = self._ledger
        with ledger.guard.storing("reading failed"):
            header, following = self._header(index), self._header(index + 1)
            kept = self._kept_before(index)
        if header is None or (following is None and index < ledger.end_index):
            return False
        chain_crc = _chain_crc(header)
        if following is None:
            continues = ledger.is_end_proven and chain_crc == ledger.chain_crc
        else:
            continues = _chain_crc(following) in (0, chain_of(following, chain_crc))
        if not continues or not chain_crc:
            return continues
        if chain_crc in (chain_of(header, one) for one in kept):
            return True
        return _channel(header) == 0 and self._header(index - 1) is None

    def _kept_before(self, index: int) -> list[int]:
        """What the C{chainCrc} of the record before an entry may have been."""
        before, above = self._header(index - 1, is_agreed=False), self._header(index - 2)
        if before is None:
            return []
        kept = [_chain_crc(before)]
        if above is not None or index == 1:
            kept.append(chain_of(before, 0 if above is None else _chain_crc(above)))
        return kept

    def _header(self, index: int, *, is_agreed: bool = True) -> bytes | None:
        """
        The header of an entry, where the index has it.

        @param is_agreed: only if the index says the same of it.
        """
        ledger, scanner = self._ledger, self._scanner
        if not max(ledger.begin_index, 0) <= index <= ledger.end_index:
            return None
        unit = scanner.agreed_unit(index) if is_agreed else scanner.unit(index)
        if unit is None or unit[1] < 0 or not ledger.data.has(ledger.data.base(unit[1])):
            return None
        header = ledger.data.pread(ENTRY_HEADER_SIZE, unit[1])
        return header if len(header) == ENTRY_HEADER_SIZE else None

    def wider(self, hole: Hole, *, is_bare: bool) -> None:
        """
        The record before C{hole} contradicts records that may belong into it: look whether it is damaged,
        too.

        @param is_bare: it has no checksum that could say, so it counts as damaged.
        """
        before = hole.first_index - 1
        if before < self._ledger.begin_index:
            return
        with self._ledger.guard.storing("examining a damaged entry failed"):
            found = self._examined_or_later(before)
            unit = self._scanner.agreed_unit(before) if is_bare and found is None else None
        if unit is not None:
            found = Hole(first_index=before, last_index=before, position=unit[1], end_position=hole.position)
        if found is not None:
            self._ledger.holes.add(found)

    def error(self, index: int, what: str) -> DamagedEntryError:
        """What a reader of a damaged entry gets."""
        return DamagedEntryError(index, f"entry {index} is damaged: {what}; it is fetched from a peer")

    def _examined_or_later(self, index: int) -> Hole | None:
        """As L{examined}; None, too, if there is no room to correct the index."""
        try:
            return self.examined(index)
        except OSError as error:
            if not is_no_room(error):
                raise
            return None

    def examined(self, index: int) -> Hole | None:
        """
        Walk from a sound record over C{index}, correcting the index; None if the walk gets there.

        @raise OSError: the files cannot be read or written.
        """
        first_index, position = self._anchor(index)
        while True:
            walk = Walk(index=first_index, position=position, chain_crc=0 if first_index == 0 else None)
            hole = self._walked(walk, index)
            known = None if hole is None else self._ledger.holes.at(hole.first_index)
            if known is None or known.holds(index):
                return hole
            first_index, position = known.last_index + 1, known.end_position
            if self._scanner.agreed_unit(first_index) is None:
                # No chain covers it, and the index must not learn from it.
                return self._behind(first_index, position, -1)

    def _walked(self, walk: Walk, index: int) -> Hole | None:
        """The hole that ends a walk to C{index}; None if it gets there."""
        first_index = walk.index
        try:
            self._scanner.pass_over(walk, index)
        except DamagedRecord as damage:
            known = self._ledger.holes.at(damage.index)
            if known is not None:
                return known
            is_anchored = first_index == 0 or damage.index > first_index + 1
            if damage.is_chain_broken and damage.index > first_index and (
                walk.chain_crc == 0 or not is_anchored
            ):
                # Nothing vouches for the record before it, either: one of the two is the damaged one.
                before = self._scanner.unit(damage.index - 1)
                assert before is not None, "the index was just corrected"
                return self._behind(before[3], before[1], -1)
            return self._behind(damage.index, damage.position, walk.term)
        return None

    def _anchor(self, index: int) -> tuple[int, int]:
        """
        A record before C{index}, confirmed by the index, with another one between them if there is one; or
        the first one.
        """
        ledger, scanner = self._ledger, self._scanner
        lowest = max(ledger.begin_index, index - BACK_MAX)
        found = None
        for before in range(index - 1, lowest - 1, -1):
            if ledger.holes.at(before) is not None:
                break
            unit = scanner.agreed_unit(before)
            if unit is not None:
                if found is not None:
                    return before, unit[1]
                found = before, unit[1]
        if found is not None:
            return found
        for offset in reversed(ledger.data.offsets):
            first = scanner.first_record(offset)
            if first is None or first[2] != offset or not ledger.begin_index <= first[0] < index:
                continue
            # Its header may be damaged, and name another entry, which is sound at its own place.
            unit = scanner.agreed_unit(first[0]) if ledger.holes.at(first[0]) is None else None
            if unit is not None and unit[1] == offset:
                return first[0], offset
        return ledger.begin_index, ledger.data.offsets[0]

    def _behind(self, index: int, position: int, term: int) -> Hole:
        """The hole that begins with C{index}."""
        ledger = self._ledger
        target = None
        if index < ledger.end_index:
            target = self._scanner.behind(Gap(
                index=index, position=position, term=term, last_index=ledger.end_index, units_max=UNITS_MAX,
                bytes_max=BYTES_MAX,
            ))
        last_index, end_position = (ledger.end_index + 1, ledger.end_position) if target is None else target
        return Hole(first_index=index, last_index=last_index - 1, position=position,
                    end_position=end_position)


def _channel(header: bytes) -> int:
    return int(ENTRY_HEADER.unpack(header)[5])


def _chain_crc(header: bytes) -> int:
    return int(ENTRY_HEADER.unpack(header)[6])
