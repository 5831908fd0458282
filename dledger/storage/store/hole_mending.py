# -*- test-case-name: tests.storage.test_holes,tests.storage.test_hole_mending -*-
"""
Closing the holes of an open ledger.

L{HoleMending.look_again} goes over the bytes of a hole: sound records at its beginning, which the
record before them confirms, need no peer. L{HoleMending.fill} takes records of a peer.

Rule: a fetched record is believed if the C{chainCrc} of the record after it continues from it, because only
the bytes that were there once do that (that record may lie in the hole, if nothing confirmed it before); or
if it is committed here and there, because an index has one committed entry. In both cases index, term,
position, size and checksums must fit, and the end of the hole must be met exactly.

A hole is closed after its bytes are on stable storage; until then C{holes} remembers all of it.

Source: protocol-aware recovery (Alagappan and others, FAST 2018), which repairs records in place, too.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import is_no_room
from dledger.base.disk.unreadable import BLOCK
from dledger.storage.files.records import DamagedRecord, Layout, Walk, check_batch, walk_records
from dledger.storage.start.open_ledger import OpenLedger
from dledger.storage.start.scanner import Scanner
from dledger.storage.store.hole_finder import HoleFinder
from dledger.values.errors import DLedgerError
from dledger.values.ledger.holes import Hole
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT_SIZE,
    MIN_BLANK_SIZE,
)

#: Bytes of a hole that are looked at in one step, about.
LOOK_BYTES = 1024 * 1024


@attrs.frozen(kw_only=True)
class _Edge:
    """The record before a hole: its term (-1: any) and C{chainCrc} (None: not known)."""

    term: int
    chain_crc: int | None


def _unfit(first_index: int, what: str) -> DLedgerError:
    return DLedgerError(ResponseCode.INCONSISTENT_STATE, index=first_index, reason=what)


class HoleMending:
    """Mends the holes of one open ledger."""

    def __init__(self, ledger: OpenLedger, finder: HoleFinder) -> None:
        self._ledger = ledger
        self._finder = finder
        self._scanner = Scanner(ledger.data, ledger.index)

    def look_again(self, index: int) -> bool:
        """
        Look for sound records at the beginning of a hole.

        @param index: a missing entry; -1: the first one.
        @return: whether the hole has shrunk, or has gone, by a truncation for example.
        @raise StoreError: the files cannot be read or written.
        """
        ledger = self._ledger
        hole = ledger.holes.at(index) if index >= 0 else next(iter(ledger.holes.holes), None)
        if hole is None:
            return True
        edge = self._edge(hole)
        if edge is None:
            return False
        if edge.chain_crc is None and hole.first_index > 0:
            return False  # nothing confirms the first record of a ledger whose beginning has expired
        walk = Walk(index=hole.first_index, position=hole.position, term=edge.term, chain_crc=edge.chain_crc)
        with ledger.guard.storing("looking at a damaged entry failed"):
            if not self._is_chained(hole):
                return False  # Java's, or a wiped one: nothing confirms it
            try:
                self._scanner.pass_over(walk, hole.last_index, bytes_max=LOOK_BYTES)
            except DamagedRecord:
                pass
            passed = min(walk.index, hole.last_index + 1)
            if passed == hole.first_index:
                return False
            # A process that was killed may have written them, and not brought to stable storage.
            ledger.data.touch(hole.position, walk.position)
            ledger.index.touch(hole.first_index * INDEX_UNIT_SIZE, passed * INDEX_UNIT_SIZE)
            ledger.data.sync()
            ledger.index.sync()
            if passed > hole.last_index == ledger.end_index:
                ledger.chain_crc = walk.chain_crc or 0
                ledger.is_end_proven = True
            self._shrink(hole, passed, None)
        return True

    def _is_chained(self, hole: Hole) -> bool:
        """Whether the bytes at the beginning of C{hole} have a C{chainCrc}."""
        data, position = self._ledger.data, hole.position
        for _ in range(2):
            header = data.pread(ENTRY_HEADER_SIZE, position) if data.has(data.base(position)) else b""
            if len(header) < MIN_BLANK_SIZE:
                return False
            if BLANK.unpack_from(header)[0] != BLANK_MAGIC:
                return len(header) == ENTRY_HEADER_SIZE and ENTRY_HEADER.unpack(header)[6] != 0
            position = data.base(position) + data.file_size
        return False

    def fill(self, entries: EntryBatch, *, is_committed: bool) -> None:
        """
        Write records of a peer into a hole, durably.

        @param entries: from the first entry of the hole on; entries after the hole are left out.
        @param is_committed: the peer knows them to be committed, and so does this member.
        @raise DLedgerError: INCONSISTENT_STATE, they do not fit or nothing proves them, or DISK_FULL; the
            hole is as it was.
        @raise StoreError: the files cannot be read or written.
        """
        ledger = self._ledger
        hole = ledger.holes.at(entries.first_index)
        if hole is None or hole.first_index != entries.first_index:
            raise _unfit(entries.first_index, "no hole begins with this entry, or no longer")
        entries = _within(entries, hole)
        layout = self._checked(hole, entries, is_committed=is_committed)
        with ledger.guard.storing("filling a hole failed"):
            end = hole.end_position if entries.last_index >= hole.last_index else layout.end_position
            try:
                self._write(hole, entries, layout, end)
            except OSError as error:
                if is_no_room(error):
                    raise DLedgerError(ResponseCode.DISK_FULL, reason=str(error)) from error
                raise
            # What is no longer in a hole may be acknowledged, in an answer to a COMPARE for example.
            ledger.data.sync()
            ledger.index.sync()
            if entries.last_index == ledger.end_index:
                ledger.chain_crc = layout.chain_crc
                ledger.is_end_proven = True
            self._shrink(hole, entries.last_index + 1, layout.end_position)

    def _write(self, hole: Hole, entries: EntryBatch, layout: Layout, end: int) -> None:
        """@param end: stream offset up to which bytes of the hole are written."""
        data = self._ledger.data
        for position, blob in layout.runs:
            if position < end:
                data.mend(blob[: end - position], position)
                if position != layout.runs[-1][0] or entries.last_index == hole.last_index:
                    self._zero_blank(position + len(blob), end)
        if layout.end_position < end:
            data.zero(layout.end_position, end)
            data.mend(BLANK.pack(BLANK_MAGIC, end - layout.end_position), layout.end_position)
        self._write_units(entries.first_index, layout.units[: entries.count * INDEX_UNIT_SIZE])

    def _zero_blank(self, written: int, end: int) -> None:
        """
        Zero the rest of the last block that was written, if it is that of a blank: if the disk could not read
        it, it is no zeros since then.

        @param written: stream offset after the beginning of the blank. @param end: of the hole.
        """
        data = self._ledger.data
        at = written % data.file_size
        stop = min(-(-at // BLOCK) * BLOCK, data.file_size) if at else 0
        if at < stop:
            data.zero(written, min(written - at + stop, end))

    def _checked(self, hole: Hole, entries: EntryBatch, *, is_committed: bool) -> Layout:
        """The layout of these entries, and of the record after the hole if they reach it."""
        edge = self._edge(hole)
        if edge is None:
            raise _unfit(hole.first_index, "the record before the hole is damaged, too")
        records, count = entries.records, entries.count
        reaches = entries.last_index == hole.last_index
        following = self._following(hole) if reaches and hole.last_index < self._ledger.end_index else b""
        both = EntryBatch(first_index=entries.first_index, count=count + bool(following), term=entries.term,
                          records=records + following)
        try:
            layout = self._layout(hole, both, edge)
        except DLedgerError:
            if is_committed and following and self._is_doubtful(hole.last_index + 1):
                # The record after it is damaged then: a read finds that when it is compared with these.
                return self._up_to_end(hole, self._layout(hole, entries, edge))
            # They may belong here, and the record before the hole not.
            self._finder.wider(hole, is_bare=edge.chain_crc == 0)
            raise
        if following:
            is_proven = ENTRY_HEADER.unpack_from(following)[6] != 0
        else:
            is_proven = self._meets_end(layout, entries) if reaches else self._continues(layout, entries)
        if not is_proven and not is_committed:
            raise _unfit(hole.first_index, "nothing proves these entries: they are not known to be committed")
        return layout

    def _is_doubtful(self, index: int) -> bool:
        """Whether the record after a hole may be damaged in its header."""
        return index == self._ledger.end_index or not self._finder.is_vouched(index)

    def _up_to_end(self, hole: Hole, layout: Layout) -> Layout:
        """@raise DLedgerError: these records and a blank do not fill C{hole} exactly."""
        size = self._ledger.data.file_size
        rest = hole.end_position - layout.end_position
        if rest and (hole.end_position % size or not 0 < rest < size or rest < MIN_BLANK_SIZE):
            raise _unfit(hole.first_index, "they do not end where the record after the hole begins")
        return layout

    def _layout(self, hole: Hole, entries: EntryBatch, edge: _Edge) -> Layout:
        return check_batch(
            entries, first_index=hole.first_index, last_term=edge.term, end_position=hole.position,
            previous_chain_crc=edge.chain_crc, file_size=self._ledger.data.file_size,
        )

    def _meets_end(self, layout: Layout, entries: EntryBatch) -> bool:
        """Whether the last entries of the ledger are these; it remembers term, chain and place of its end."""
        ledger = self._ledger
        last_term = layout.terms[-1][1] if layout.terms else entries.term
        if (layout.end_position, last_term) != (ledger.end_position, ledger.end_term):
            raise _unfit(entries.first_index, "they are not the last entries of this ledger")
        # An index and a term name one entry, and all before it. If the chain is known, it must agree.
        return layout.chain_crc == ledger.chain_crc != 0 or not ledger.is_end_proven

    def _continues(self, layout: Layout, entries: EntryBatch) -> bool:
        """Whether the record after these entries, in the hole with them, continues from them."""
        data, at = self._ledger.data, layout.end_position
        with self._ledger.guard.storing("reading failed"):
            header = data.pread(MIN_BLANK_SIZE, at) if data.has(data.base(at)) else b""
            if len(header) == MIN_BLANK_SIZE and BLANK.unpack(header)[0] == BLANK_MAGIC:
                at = data.base(at) + data.file_size
            if not data.has(data.base(at)):
                return False
            header = data.pread(ENTRY_HEADER_SIZE, at)
            size = ENTRY_HEADER.unpack(header)[1] if len(header) == ENTRY_HEADER_SIZE else 0
            record = data.pread(min(max(size, 0), data.file_size), at)
        walk = Walk(index=entries.last_index + 1, position=at, chain_crc=layout.chain_crc)
        try:
            walk_records(record, walk, max_count=1, one_term=True, size_max=data.file_size)
        except DamagedRecord:
            return False
        return walk.count == 1 and ENTRY_HEADER.unpack_from(record)[6] != 0

    def _edge(self, hole: Hole) -> _Edge | None:
        """The record before a hole; None, and a wider hole, if that is damaged, too."""
        ledger = self._ledger
        if hole.first_index == ledger.begin_index:
            return _Edge(term=-1, chain_crc=0 if hole.first_index == 0 else None)
        before = hole.first_index - 1
        with ledger.guard.storing("reading failed"):
            unit = self._scanner.agreed_unit(before)
            header = b"" if unit is None else ledger.data.pread(ENTRY_HEADER_SIZE, unit[1])
        if unit is None:
            self._finder.damaged(before, -1, "its index unit and its record do not agree")
            return None
        fields = ENTRY_HEADER.unpack(header)
        return _Edge(term=fields[3], chain_crc=fields[6])

    def _following(self, hole: Hole) -> bytes:
        """The record after a hole. @raise DLedgerError: it is damaged, too, and in the hole now."""
        ledger = self._ledger
        walk = Walk(index=hole.last_index + 1, position=hole.end_position)
        with ledger.guard.storing("reading failed"):
            header = ledger.data.pread(ENTRY_HEADER_SIZE, hole.end_position)
            size = ENTRY_HEADER.unpack(header)[1] if len(header) == ENTRY_HEADER_SIZE else 0
            record = ledger.data.pread(min(max(size, 0), ledger.data.file_size), hole.end_position)
        try:
            walk_records(record, walk, max_count=1, one_term=True, size_max=ledger.data.file_size)
        except DamagedRecord:
            pass
        if walk.count:
            return record
        self._finder.damaged(hole.last_index + 1, hole.end_position, "no record")
        raise _unfit(hole.first_index, "the record after the hole is damaged, too")

    def _write_units(self, first_index: int, units: bytes) -> None:
        index = self._ledger.index
        at = first_index * INDEX_UNIT_SIZE
        while units:
            room = index.file_size - at % index.file_size
            index.mend(units[:room], at)
            units, at = units[room:], at + room

    def _shrink(self, hole: Hole, next_index: int, position: int | None) -> None:
        """
        C{hole} begins with C{next_index} now.

        @param position: stream offset after the record before; None: look it up.
        """
        ledger = self._ledger
        if next_index > hole.last_index:
            ledger.holes.replace(hole, None)
            return
        if position is None:
            unit = self._scanner.unit(next_index - 1)
            assert unit is not None, "the walk has corrected it"
            position = unit[1] + unit[2]
        ledger.holes.replace(hole, attrs.evolve(hole, first_index=next_index, position=position))


def _within(entries: EntryBatch, hole: Hole) -> EntryBatch:
    """
    Those of C{entries} that belong into C{hole}.

    @raise DLedgerError: they are malformed.
    """
    if entries.count < 1:
        raise _unfit(hole.first_index, "a peer sent nothing")
    count = min(entries.count, hole.last_index - hole.first_index + 1)
    if count == entries.count:
        return entries
    at = 0
    for _ in range(count):
        if at + ENTRY_HEADER_SIZE > len(entries.records):
            raise _unfit(hole.first_index, "malformed records")
        size = ENTRY_HEADER.unpack_from(entries.records, at)[1]
        if size < ENTRY_HEADER_SIZE:
            raise _unfit(hole.first_index, "malformed records")
        at += size
    return EntryBatch(first_index=entries.first_index, count=count, term=entries.term,
                      records=entries.records[:at])
