# -*- test-case-name: tests.broker.store.test_sound_records -*-
"""
The records that consumers are sent: read from the log in pieces, checked once, and kept for the readers that
come next: those of the other queues whose messages lie between, and the other groups.

Rule 1: no record is handed out that was not checked in memory, after the read that brought it: size, magic,
own offset, checksum of the body, lengths that end where it ends. What the disk loses later does not change
what was checked; the next read from the disk checks again.
Rule 2: a damaged record is left out, and noted when somebody asks for it.
Rule 3: reading ahead is bounded by what was asked for (L{AHEAD} times as much), and so is what is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Sequence

import attrs

from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.rocketmq.store.records.body_check import is_usual_and_sound, sound_run
from dledger.rocketmq.store.records.message_log import MessageLog
from dledger.rocketmq.store.records.records import check_record
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import (
    MAGIC_V1,
    MAGIC_V2,
    MIN_MESSAGE_SIZE,
    START,
    START_SIZE,
    WALKED,
)

#: Records with at most this gap between them are read together: the gap costs less than another read.
GAP_BYTES_MAX = 4096
#: Bytes that are read and checked, by those of the records that were asked for; more only if these are
#: further apart, and then what lies between is not checked.
AHEAD = 8
PIECE_BYTES = 128 * 1024
#: Memory of the kept pieces, with L{_AROUND} for each record.
KEPT_BYTES_MAX = 8 * 1024 * 1024
_AROUND = 100
#: Of a piece itself: its tables, and its place in ours.
_PIECE_AROUND = 500


@attrs.define(eq=False)
class _Piece:
    """
    Bytes of the log, from a record's beginning on.

    @ivar end: offset after the bytes that may be used.
    @ivar sizes: of the records in it that were checked, by their offsets.
    """

    begin: int
    data: bytes
    end: int
    sizes: dict[int, int] = attrs.Factory(dict)


class SoundRecords:
    """
    Invariant: C{_pieces} are the kept pieces by their begins, the oldest first, and hold only records that
    were checked; C{_begins} are these begins, rising. C{_kept_bytes} is their memory.
    """

    def __init__(
        self, log: MessageLog, bad: BadRecords, *, record_size_max: int,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        """@param bad: notes damaged records. @param record_size_max: bytes of one that is stored now."""
        self._record_size_max = record_size_max
        self._log = log
        self._bad = bad
        self._kept_bytes_max = kept_bytes_max
        self._pieces: OrderedDict[int, _Piece] = OrderedDict()
        self._begins: list[int] = []
        self._kept_bytes = 0

    def read(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """
        Records in order, without those that are damaged or that the log lacks.

        @param offsets, sizes: of the records, as their consume queue has them.
        @raise OSError: reading failed.
        """
        piece = self._kept_over(offsets[0], sizes[0]) if offsets else None
        if piece is not None and list(map(piece.sizes.get, offsets)) == list(sizes):
            data, begin = piece.data, piece.begin
            return [data[at - begin : at - begin + size] for at, size in zip(offsets, sizes, strict=True)]
        records: list[bytes] = []
        for number, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            if piece is None or not piece.begin <= offset <= piece.end - size:
                piece = self._kept_over(offset, size) or self._read_piece(offsets, sizes, number)
            at = offset - piece.begin
            record = piece.data[at : at + size]
            if piece.sizes.get(offset) == size or (len(record) == size and self._is_sound(offset, record)):
                records.append(record)
        return records

    def at(self, offset: int, *, size: int = 0) -> bytes | None:
        """
        The record that begins at an offset of the log; None if no sound record begins there.

        @param size: in its unit. It may be longer than a message may be now: C{max_message_size} was larger
            when it was stored, or is at the master.
        @raise OSError: the log cannot be read.
        """
        log = self._log
        if not log.begin_offset <= offset <= log.record_end - START_SIZE:
            return None
        room = log.file_size - offset % log.file_size
        most = min(room, max(self._record_size_max, size))
        start = log.read(offset, START_SIZE)
        size = START.unpack(start)[0] if len(start) == START_SIZE else 0
        if not 0 < size <= most:
            return None
        data = log.read(offset, size)
        try:
            check_record(data, 0, offset, room)
        except WireError:
            return None
        return data

    def forget(self) -> None:
        """The log was cut: other records come there."""
        self._pieces.clear()
        self._begins.clear()
        self._kept_bytes = 0

    def _kept_over(self, offset: int, size: int) -> _Piece | None:
        at = bisect_right(self._begins, offset)
        if not at:
            return None
        piece = self._pieces[self._begins[at - 1]]
        return piece if offset + size <= piece.end else None

    def _read_piece(self, offsets: Sequence[int], sizes: Sequence[int], number: int) -> _Piece:
        """
        Read the record C{number} with its neighbours. If they are close together, read on after them, up to
        the next kept piece, and keep what is sound.
        """
        begin, wanted = offsets[number], sizes[number]
        end = begin + wanted
        at = bisect_right(self._begins, begin)
        stop = self._begins[at] if at < len(self._begins) else 1 << 62
        for following in range(number + 1, len(offsets)):
            if not end <= offsets[following] <= min(end + GAP_BYTES_MAX, stop - 1):
                break
            end = offsets[following] + sizes[following]
            wanted += sizes[following]
        is_dense = end - begin <= AHEAD * wanted
        if is_dense:
            end = max(end, min(begin + min(AHEAD * wanted, PIECE_BYTES), stop))
        data = self._log.read(begin, end - begin)
        piece = _Piece(begin, data, begin + len(data))
        if is_dense:
            self._keep(piece)
        return piece

    def _keep(self, piece: _Piece) -> None:
        """Check the records of a piece from its beginning on, and keep them up to one that is not sound."""
        data, begin, lead = piece.data, piece.begin, self._log.record_lead
        at = 0
        if not lead:
            count, size = sound_run(data, begin)
            at = count * size
            piece.sizes = dict.fromkeys(range(begin, begin + at, size or 1), size)
        while len(data) - at >= START_SIZE:
            size = START.unpack_from(data, at)[0]
            if not 0 < size <= len(data) - at:
                break
            record = data[at : at + size]
            if not is_usual_and_sound(record, begin + at) and _problem_of(begin + at, record):
                break
            piece.sizes[begin + at] = size
            at += size + lead
        if not piece.sizes:
            return
        if begin in self._pieces:
            self._drop(begin)
        self._pieces[begin] = attrs.evolve(piece, end=begin + at - lead)
        insort(self._begins, begin)
        self._kept_bytes += _memory_of(piece)
        while self._kept_bytes > self._kept_bytes_max:
            self._drop(next(iter(self._pieces)))

    def _drop(self, begin: int) -> None:
        self._kept_bytes -= _memory_of(self._pieces.pop(begin))
        del self._begins[bisect_left(self._begins, begin)]

    def _is_sound(self, offset: int, record: bytes) -> bool:
        """Whether a record, as its consume queue describes it, can be served; else it is noted."""
        if is_usual_and_sound(record, offset):
            return True
        problem = _problem_of(offset, record)
        if problem:
            self._bad.note(offset, problem)
        return not problem


def _memory_of(piece: _Piece) -> int:
    return _PIECE_AROUND + len(piece.data) + _AROUND * len(piece.sizes)


def _problem_of(offset: int, record: bytes) -> str:
    """Why a record of any form cannot be served; empty if it can."""
    size = len(record)
    if size < MIN_MESSAGE_SIZE:
        return f"log at {offset}: size={size} is too small for a record"
    length, magic, own = WALKED.unpack_from(record)
    if length != size or own != offset:
        return f"log at {offset}: size={length} and own offset {own}, not {size} and {offset}"
    if magic not in (MAGIC_V1, MAGIC_V2):  # readers of ours would fail for all that came with it
        return f"log at {offset}: magic={magic & 0xFFFFFFFF:08x} is not that of a message"
    try:
        check_record(record, 0, offset, size)
    except WireError as error:
        return str(error)
    return ""
