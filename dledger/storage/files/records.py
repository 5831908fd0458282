# -*- test-case-name: tests.storage.test_records,tests.storage.test_body_stamps,tests.storage.test_marks -*-
"""
The hot loops: packing bodies into records, checking a leader's records, checking stored records.

The position of a record is a pure function of the sizes before it and of the file size: it starts where
the last one ends if at least 8 bytes stay free after it in that file, else at the start of the next
file, and a blank fills the rest of the old one. Everything is computed before anything is written.

A program may stamp its bodies when their records have positions (L{BodyStamps}): a RocketMQ message contains
its offset in the log. Entries of producers, and the log's own, are marked
(L{protocols.wire.ledger.own.own_entries}); most batches have none, and columns of bytes show that.

This module makes no object per entry and touches no file.

Source: MmapFileList.preAppend and DLedgerMmapFileStore.java (0.3.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import NamedTuple

import attrs
from construct import Int32sb, Struct

from dledger.base.disk.unreadable import FILLER_WORD
from dledger.storage.files.runs import check_run
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import Marked
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.layout import struct_of
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    CHANNEL_AT,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    MAX_RECORD_BYTES,
    MIN_BLANK_SIZE,
)
from protocols.wire.ledger.own.own_entries import CONFIGURATION_CHANNEL, DIGITS_MASK
from protocols.wire.ledger.runs import RUN_MIN, column, run_at, words


def add_mark(marks: list[Marked], index: int, term: int, channel: int, body_of: Callable[[], bytes]) -> None:
    """Note the next entry, whose C{channel} is not 0 and counts. @param body_of: called for the log's own."""
    if channel < 0:
        marks.append(Marked(index, term, channel, body=body_of()))
        return
    last = marks[-1] if marks else None
    if last is not None and last.channel > 0 and last.first_index + last.entries == index and (
        (last.channel ^ channel) <= DIGITS_MASK
        and (last.channel + last.entries) & DIGITS_MASK == channel & DIGITS_MASK
    ):
        marks[-1] = last._replace(entries=last.entries + 1)
    else:
        marks.append(Marked(index, term, channel))


def marks_of_channels(
    channels: Sequence[int], bodies: Sequence[bytes], first_index: int, term: int
) -> tuple[Marked, ...]:
    """Those of entries that a leader is about to write, by their channels."""
    return _marks_of(tuple(channels), first_index, term, bodies.__getitem__)


def _marks_of(
    channels: tuple[int, ...], first_index: int, term: int, body_of: Callable[[int], bytes]
) -> tuple[Marked, ...]:
    """As L{add_mark} finds them, one after the other. @param body_of: by number."""
    marks: list[Marked] = []
    at, count = 0, len(channels)
    while at < count:
        channel, begin = channels[at], at
        at += 1
        if channel < 0:
            marks.append(Marked(first_index + begin, term, channel, body=body_of(begin)))
        elif channel:
            at = _end_of_run(channels, begin)
            marks.append(Marked(first_index + begin, term, channel, at - begin))
    return tuple(marks)


def _end_of_run(channels: tuple[int, ...], begin: int) -> int:
    """Where those end that follow the producer's entry at C{begin}; few steps, as there may be many."""
    end, count, base = begin + 1, len(channels), channels[begin] & ~DIGITS_MASK
    following = channels[begin] + 1 & DIGITS_MASK
    piece, widest = 1, count
    while end < count:
        size = min(piece, count - end, DIGITS_MASK + 1 - following)
        if channels[end : end + size] == tuple(range(base | following, (base | following) + size)):
            end += size
            following = following + size & DIGITS_MASK
            piece = widest
        elif size == 1:
            break
        else:
            piece = widest = size // 2
    return end


def marks_of_run(view: bytes, count: int, size: int, first_index: int, term: int) -> tuple[Marked, ...]:
    """Those of records of one size, all with a C{chainCrc}. @param view: their bytes, and no others."""
    if not any(any(view[CHANNEL_AT + byte :: size]) for byte in range(4)):
        return ()
    channels = words(count, "i").unpack(column(view, CHANNEL_AT, size))
    return _marks_of(channels, first_index, term,
                     lambda number: view[number * size + ENTRY_HEADER_SIZE : (number + 1) * size])


def marks_in(batch: EntryBatch) -> tuple[Marked, ...]:
    """Those of a batch whose sizes are known to add up."""
    marks: list[Marked] = []
    records, at, unpack = batch.records, 0, ENTRY_HEADER.unpack_from
    for _ in range(batch.count):
        _magic, size, index, term, _pos, channel, chain_crc, _crc, _length = unpack(records, at)
        if channel and chain_crc:
            add_mark(marks, index, term, channel,
                     lambda at=at, end=at + size: records[at + ENTRY_HEADER_SIZE : end])  # type: ignore[misc]
        at += size
    return tuple(marks)


def configurations_in(marks: Sequence[Marked]) -> tuple[tuple[int, int, bytes], ...]:
    """Index, term and body of each configuration entry."""
    return tuple((one.first_index, one.term, one.body)
                 for one in marks if one.channel == CONFIGURATION_CHANNEL)


#: From a body and the stream offset of its record to the body to write, of the same length.
Stamp = Callable[[bytes, int], bytes]


class BodyStamps:
    """
    Stamps nothing; a program derives from it.

    @ivar term_start_body: body of the entry that a leader writes when its term begins.
    """

    term_start_body = b""

    def begin(self) -> Stamp | None:
        """
        A write of bodies begins. Stamps of an earlier write that was refused count for nothing.

        @return: called once for each body, in order; None: the bodies are written as they are.
        """
        return None

    def written(self) -> None:
        """The entries are written: readable at this member, neither flushed nor committed."""


_WORD = struct_of(Struct("word" / Int32sb))
_NO_WORD = bytes(4)
#: Single records between two runs of a batch, at most; with more the rest is checked one by one.
_SINGLES_MAX = 4


class Layout(NamedTuple):
    """
    A batch in the form in which it is written to the files.

    @ivar runs: pairs of stream offset and bytes, at most one per data file, blanks included.
    @ivar records: the records alone, without blanks.
    @ivar units: the index units of the records.
    @ivar positions: stream offset of each record; empty for a chunk.
    @ivar end_position: stream offset after the last record.
    @ivar chain_crc: C{chainCrc} of the last record.
    @ivar terms: index and term of each entry whose term differs from the entry before.
    @ivar marked: the entries that are not plain ones of programs.
    @ivar sums: of a chunk: the checksums over its records and over its units.
    """

    runs: list[tuple[int, bytes]]
    records: bytes
    units: bytes
    positions: list[int]
    end_position: int
    chain_crc: int
    terms: list[tuple[int, int]]
    marked: tuple[Marked, ...] = ()
    sums: tuple[int, int] | None = None

    @property
    def entries(self) -> int:
        """Number of records."""
        return len(self.units) // INDEX_UNIT_SIZE


def record_fits(size: int, file_size: int) -> bool:
    """Whether a record of C{size} bytes fits into one file with a blank after it, here and in Java."""
    return size + MIN_BLANK_SIZE <= file_size and size <= MAX_RECORD_BYTES


def too_long(size: int, size_max: int) -> DLedgerError:
    """A record of C{size} bytes fits into no file."""
    return DLedgerError(ResponseCode.DISK_ERROR, reason="a body is too long for any file",
                        record_bytes=size, record_bytes_max=size_max)


def pack_bodies(
    bodies: tuple[bytes, ...] | list[bytes],
    *,
    first_index: int,
    term: int,
    end_position: int,
    previous_chain_crc: int,
    file_size: int,
    channels: Sequence[int] = (),
    stamp: Stamp | None = None,
) -> Layout:
    """
    Lay out a leader's new records after C{end_position}.

    @param channels: one for each body; none: 0 for all.
    @param stamp: writes the position of its record into each body, before the checksums are computed.
    @raise DLedgerError: DISK_ERROR, a body is too long for any file.
    """
    pack, word_of, unit_of = ENTRY_HEADER.pack, _WORD.pack, INDEX_UNIT.pack
    size_max = min(MAX_RECORD_BYTES, file_size - MIN_BLANK_SIZE)
    pieces: list[bytes] = []
    whole: list[bytes] = []
    units: list[bytes] = []
    positions: list[int] = []
    runs: list[tuple[int, bytes]] = []
    index, pos, run_start, chain = first_index, end_position, end_position, previous_chain_crc
    room = file_size - pos % file_size - MIN_BLANK_SIZE
    word = word_of(chain)
    for body, channel in zip(bodies, channels or repeat(0), strict=False):
        length = len(body)
        size = length + 48
        if size > size_max:
            raise too_long(size, size_max)
        if size > room:
            room += MIN_BLANK_SIZE
            pieces.append(BLANK.pack(BLANK_MAGIC, room))
            runs.append((run_start, b"".join(pieces)))
            whole.extend(pieces[:-1])
            pieces = []
            pos += room
            run_start = pos
            room = file_size - MIN_BLANK_SIZE
        room -= size
        if stamp is not None:
            body = stamp(body, pos)
        crc = (crc32(body) ^ 0x8000_0000) - 0x8000_0000
        bare = pack(1, size, index, term, pos, channel, 0, crc, length)
        chain = ((crc32(word + bare) or 1) ^ 0x8000_0000) - 0x8000_0000
        word = word_of(chain)
        pieces.append(bare[:36] + word + bare[40:] + body)
        units.append(unit_of(1, pos, size, index, term))
        positions.append(pos)
        pos += size
        index += 1
    blob = b"".join(pieces)
    return Layout(
        [*runs, (run_start, blob)], b"".join([*whole, blob]) if whole else blob, b"".join(units),
        positions=positions, end_position=pos, chain_crc=chain, terms=[(first_index, term)],
        marked=marks_of_channels(channels, bodies, first_index, term),
    )


def chain_of(header: bytes, previous_chain_crc: int) -> int:
    """The C{chainCrc} that belongs into a header after a record with that C{chainCrc}."""
    bare = header[:36] + _NO_WORD + header[40:48]
    return ((crc32(_WORD.pack(previous_chain_crc) + bare) or 1) ^ 0x8000_0000) - 0x8000_0000


def _unfit(index: int, what: str) -> DLedgerError:
    return DLedgerError(ResponseCode.INCONSISTENT_STATE, index=index, reason=what)


def check_batch(
    batch: EntryBatch,
    *,
    first_index: int,
    last_term: int,
    end_position: int,
    previous_chain_crc: int | None,
    file_size: int,
) -> Layout:
    """
    Check a leader's records and lay them out after C{end_position}.

    @param previous_chain_crc: C{chainCrc} of the record before; None if that record is not known.
    @raise DLedgerError: INCONSISTENT_STATE: index, term, size, magic, pos or a checksum does not fit.
    """
    place = first_index, last_term, end_position, previous_chain_crc, file_size
    if batch.count == 1:
        return _one_record(batch, *place) or _any_batch(batch, *place)
    if batch.count < RUN_MIN:
        return _any_batch(batch, *place)
    return _uniform_batch(batch, *place) or _batch_of_runs(batch, *place) or _any_batch(batch, *place)


def _one_record(
    batch: EntryBatch, first_index: int, last_term: int, end_position: int, previous_chain_crc: int | None,
    file_size: int,
) -> Layout | None:
    """As L{check_batch}, for a record with both checksums after a known one; None for any other."""
    records = batch.records
    size = len(records)
    if size < ENTRY_HEADER_SIZE or size > MAX_RECORD_BYTES or previous_chain_crc is None:
        return None
    *header, term, pos, channel, chain_crc, body_crc, length = ENTRY_HEADER.unpack_from(records)
    if (
        header != [MAGIC, size, first_index] or pos != end_position or term < last_term
        or length != size - ENTRY_HEADER_SIZE or size > file_size - pos % file_size - MIN_BLANK_SIZE
        or crc32(memoryview(records)[ENTRY_HEADER_SIZE:]) != body_crc & 0xFFFF_FFFF
        or chain_of(records, previous_chain_crc) != chain_crc
    ):
        return None
    return Layout(
        runs=[(pos, records)], records=records, units=INDEX_UNIT.pack(MAGIC, pos, size, first_index, term),
        positions=[pos], end_position=pos + size, chain_crc=chain_crc,
        terms=[] if term == last_term else [(first_index, term)],
        marked=(Marked(first_index, term, channel, body=records[ENTRY_HEADER_SIZE:] if channel < 0 else b""),)
        if channel else (),
    )


def _any_batch(
    batch: EntryBatch, first_index: int, last_term: int, end_position: int, previous_chain_crc: int | None,
    file_size: int,
) -> Layout:
    """L{check_batch}, record by record."""
    unpack, unit_of, word_of = ENTRY_HEADER.unpack_from, INDEX_UNIT.pack, _WORD.pack
    records, view, total = batch.records, memoryview(batch.records), len(batch.records)
    size_max = min(MAX_RECORD_BYTES, file_size - MIN_BLANK_SIZE)
    units: list[bytes] = []
    positions: list[int] = []
    terms: list[tuple[int, int]] = []
    runs: list[tuple[int, bytes]] = []
    marked: list[Marked] = []
    expected, position, run_start, cut, offset = first_index, end_position, end_position, 0, 0
    room = file_size - position % file_size - MIN_BLANK_SIZE
    chain = previous_chain_crc
    for _ in range(batch.count):
        body_at = offset + 48
        if body_at > total:
            raise _unfit(expected, f"only {total - offset} bytes left for a 48-byte header")
        magic, size, index, term, pos, channel, chain_crc, body_crc, length = unpack(records, offset)
        end = offset + size
        if magic != 1 or size != length + 48 or length < 0 or end > total or size > size_max:
            raise _unfit(expected, f"malformed record: magic={magic} size={size} body_length={length}")
        if size > room:
            room += MIN_BLANK_SIZE
            runs.append((run_start, records[cut:offset] + BLANK.pack(BLANK_MAGIC, room)))
            position += room
            cut, run_start, room = offset, position, file_size - MIN_BLANK_SIZE
        if index != expected or pos != position or term < last_term:
            raise _unfit(expected, f"record index={index} pos={pos} term={term}, "
                                   f"expected pos={position}, term at least {last_term}")
        if body_crc and (not chain_crc or (crc32(view[body_at:end]) ^ 0x8000_0000) - 0x8000_0000 != body_crc):
            raise _unfit(expected, "body does not match its bodyCrc, or the record has no chainCrc")
        if chain_crc and chain is not None:
            seed = crc32(_NO_WORD, crc32(view[offset : offset + 36], crc32(word_of(chain))))
            if ((crc32(view[offset + 40 : body_at], seed) or 1) ^ 0x8000_0000) - 0x8000_0000 != chain_crc:
                raise _unfit(expected, "record does not match its chainCrc")
        if term != last_term:
            terms.append((index, term))
            last_term = term
        if channel and chain_crc:
            add_mark(marked, index, term, channel,
                     lambda at=body_at, end=end: records[at:end])  # type: ignore[misc]
        chain = chain_crc
        units.append(unit_of(1, pos, size, index, term))
        positions.append(pos)
        room -= size
        position, expected, offset = position + size, expected + 1, end
    if offset != total:
        raise _unfit(expected, f"{total - offset} bytes after the {batch.count} records of a batch")
    runs.append((run_start, records[cut:] if cut else records))
    return Layout(runs=runs, records=records, units=b"".join(units), positions=positions,
                  end_position=position, chain_crc=chain or 0, terms=terms, marked=tuple(marked))


def _batch_of_runs(
    batch: EntryBatch, first_index: int, last_term: int, end_position: int, previous_chain_crc: int | None,
    file_size: int,
) -> Layout | None:
    """
    As L{check_batch}, for runs of records of one size with single ones between them, as the log's own are;
    None for any other batch.
    """
    records, count, parts = batch.records, batch.count, list[Layout]()
    done, offset, singles, chain = 0, 0, 0, previous_chain_crc
    while done < count and len(records) - offset >= ENTRY_HEADER_SIZE:
        found, size = run_at(records, offset, count - done)
        singles = 0 if found else singles + 1
        if singles > _SINGLES_MAX or (singles and count - done < RUN_MIN):
            found, end = count - done, len(records)  # the rest, record by record
        else:
            found = found or 1
            end = offset + found * (size or ENTRY_HEADER.unpack_from(records, offset)[1])
        if found == count or end <= offset:
            return None
        part = EntryBatch(first_index=done, count=found, term=batch.term, records=records[offset:end])
        place = first_index + done, last_term, end_position, chain, file_size
        try:
            layout = _uniform_batch(part, *place) or _any_batch(part, *place)
        except DLedgerError:
            return None  # (The whole batch is refused, in its own words.)
        parts.append(layout)
        last_term = layout.terms[-1][1] if layout.terms else last_term
        done, offset, end_position, chain = done + found, end, layout.end_position, layout.chain_crc
    return _joined(records, parts, file_size) if done == count and offset == len(records) else None


def _joined(records: bytes, parts: list[Layout], file_size: int) -> Layout:
    """Layouts that follow each other, as one."""
    pieces: list[tuple[int, list[bytes]]] = []
    end = -1
    for position, piece in (run for part in parts for run in part.runs):
        if position == end and position % file_size:
            pieces[-1][1].append(piece)
        else:
            pieces.append((position, [piece]))
        end = position + len(piece)
    return Layout(
        runs=[(position, b"".join(blobs)) for position, blobs in pieces], records=records,
        units=b"".join(part.units for part in parts),
        positions=[position for part in parts for position in part.positions],
        end_position=parts[-1].end_position, chain_crc=parts[-1].chain_crc,
        terms=[term for part in parts for term in part.terms],
        marked=tuple(one for part in parts for one in part.marked),
    )


def _uniform_batch(
    batch: EntryBatch, first_index: int, last_term: int, end_position: int, previous_chain_crc: int | None,
    file_size: int,
) -> Layout | None:
    """As L{check_batch}, for records of one size and one term in one file; None for any other batch."""
    records, count = batch.records, batch.count
    found_count, size = run_at(records, 0, count)
    room = file_size - end_position % file_size - MIN_BLANK_SIZE
    if not found_count == count > 0 or len(records) != count * size:
        return None
    if len(records) > room or size > MAX_RECORD_BYTES:
        return None
    found = check_run(
        records, 0, count=count, size=size, index=first_index, position=end_position, term_min=last_term,
        chain_crc=previous_chain_crc,
    )
    if found is None:
        return None
    return Layout(
        runs=[(end_position, records)], records=records, units=found.units, positions=list(found.positions),
        end_position=end_position + len(records), chain_crc=found.chain_crc,
        terms=[] if found.term == last_term else [(first_index, found.term)],
        marked=marks_of_run(records, count, size, first_index, found.term) if found.chain_crc else (),
    )


class DamagedRecord(Exception):
    """
    A stored record differs from the record that was written.

    @ivar index: index of the expected entry.
    @ivar position: stream offset where the entry should start.
    @ivar is_chain_broken: the record contradicts the one before it; either may be the damaged one.
    """

    def __init__(self, index: int, position: int, what: str, *, is_chain_broken: bool = False) -> None:
        super().__init__(index, position, what)
        self.is_chain_broken = is_chain_broken
        self.index = index
        self.position = position
        self.what = what


@attrs.define(kw_only=True)
class Walk:
    """
    State of a walk over stored records.

    @ivar index, position: expected index and stream offset of the B{next} record.
    @ivar term, chain_crc: term and C{chainCrc} of the last record passed (C{chain_crc} None: not known).
    @ivar count, length: records passed, and their bytes.
    """

    index: int
    position: int
    term: int = -1
    chain_crc: int | None = None
    count: int = 0
    length: int = 0

    def reach(
        self, index: int, position: int, *, term: int, chain_crc: int | None, count: int, length: int
    ) -> None:
        """The walk has come to the record C{index}."""
        self.index = index
        self.position = position
        self.term = term
        self.chain_crc = chain_crc
        self.count = count
        self.length = length


def _walk_run(
    data: bytes, at: Walk, *, max_count: int, one_term: bool, size_max: int, units: list[bytes] | None
) -> bool:
    """Pass over sound records of one size and one term. @return: whether there were some."""
    count, size = run_at(data, at.length, max_count - at.count)
    if not count or size > size_max:
        return False
    found = check_run(
        data, at.length, count=count, size=size, index=at.index, position=at.position, term_min=at.term,
        chain_crc=at.chain_crc, with_units=units is not None,
    )
    if found is None or (one_term and at.count and found.term != at.term):
        return False
    if units is not None:
        units.append(found.units)
    at.reach(
        at.index + count, at.position + count * size, term=found.term, chain_crc=found.chain_crc,
        count=at.count + count, length=at.length + count * size,
    )
    return True


def walk_records(
    data: bytes, at: Walk, *, max_count: int, one_term: bool, size_max: int, units: list[bytes] | None = None
) -> None:
    """
    Pass over whole, sound records at the start of C{data}, moving C{at}. The walk stops without error at
    a record that C{data} holds in part, at C{max_count}, and with C{one_term} at another term.

    @param at: state to start from; C{term} -1: any term.
    @param units: list that receives the index units.
    @raise DamagedRecord: a record is not sound; C{at} then points at it.
    """
    while _walk_run(data, at, max_count=max_count, one_term=one_term, size_max=size_max, units=units):
        pass
    unpack, word_of, unit_of = ENTRY_HEADER.unpack_from, _WORD.pack, INDEX_UNIT.pack
    view = memoryview(data)
    total = len(data)
    offset, expected, position = at.length, at.index, at.position
    last_term, chain, count = at.term, at.chain_crc, at.count
    what, is_chain_broken = "", False
    while count < max_count:
        body_at = offset + 48
        if body_at > total:
            break
        magic, size, index, term, pos, _channel, chain_crc, body_crc, length = unpack(data, offset)
        end = offset + size
        if magic != 1 or size != length + 48 or length < 0 or size > size_max:
            what = f"no record: magic={magic} size={size} body_length={length}"
            if magic == FILLER_WORD:
                what = "the disk cannot read it"
            break
        if index != expected or pos != position or term < last_term:
            what = f"wrong record: index={index} pos={pos} term={term} after term {last_term}"
            break
        if end > total or (one_term and count and term != last_term):
            break
        if body_crc and (crc32(view[body_at:end]) ^ 0x8000_0000) - 0x8000_0000 != body_crc:
            what = "body does not match its bodyCrc"
            break
        if not chain_crc:
            if body_crc:  # a writer records both checksums or neither, so this one was wiped out
                what = "a bodyCrc without a chainCrc"
                break
        elif chain is not None:
            seed = crc32(_NO_WORD, crc32(view[offset : offset + 36], crc32(word_of(chain))))
            if ((crc32(view[offset + 40 : body_at], seed) or 1) ^ 0x8000_0000) - 0x8000_0000 != chain_crc:
                what, is_chain_broken = "record does not match its chainCrc", True
                break
        if units is not None:
            units.append(unit_of(1, pos, size, index, term))
        last_term, chain = term, chain_crc
        position += size
        expected += 1
        count += 1
        offset = end
    at.reach(expected, position, term=last_term, chain_crc=chain, count=count, length=offset)
    if what:
        raise DamagedRecord(expected, position, what, is_chain_broken=is_chain_broken)


assert MAGIC == 1 and ENTRY_HEADER_SIZE == 48
