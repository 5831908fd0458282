# -*- test-case-name: tests.spark.test_entry_times -*-
"""
The column C{time}: when a leader wrote each entry, by the time entries of the log
(L{protocols.wire.ledger.own.time_entries}; docs/times.md).

A part may begin between two time entries: then what is before it is read, a little first, and more while none
is found. The last time entry of the log lists the resets of times: no time before one is shown as later. A
damaged record may have been a time entry, so entries after it have no time up to the next one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dledger.spark.formats.envelopes import TIME
from dledger.spark.formats.log import Chunk, FixedParts, ReadError, ScannedLog
from dledger.spark.formats.record_headers import HEADER_DTYPE, check_headers, gather
from protocols.wire.errors import WireError
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.ledger.own.own_entries import TIME_CHANNEL
from protocols.wire.ledger.own.time_entries import (
    LOOK_BACK_BYTES,
    LOOK_BACK_ENTRIES,
    RESETS_MAX,
    TIME_ENTRY_BYTES,
    TIME_MAGIC,
    TIME_RESET_BYTES,
    TimeNote,
    TimeReset,
    decode_time_entry,
)

_SIZE = ENTRY_HEADER_SIZE + TIME_ENTRY_BYTES
_WORD = np.dtype(">i4")
_FIRST_SPAN, _GROWTH = 16, 16
#: No term is this one.
_NONE = -1
_UNKNOWN = TimeNote(0)


class TimesOfEntries:
    """The times of the entries of one part, whose chunks come in order."""

    def __init__(self, log: ScannedLog) -> None:
        self._log = log
        self._resets: Sequence[TimeReset] | None = None
        self._next = -1
        self._term = _NONE  # of the last time entry before C{_next}
        self._time_ms = 0
        self._listed: Sequence[TimeReset] = ()  # by that one

    def of(self, chunk: Chunk, headers: FixedParts, is_sound: NDArray[np.bool_]) -> pa.Array:
        """
        The times of a chunk with data, one for each record; null where one is not known.

        @param is_sound: which records are as they were written.
        """
        if self._resets is None:
            self._resets = self._look_at_end()
        if self._next != chunk.first:
            self._look_back(chunk.first)
        places, terms, notes = _time_entries(chunk, headers, is_sound)
        return self._filled(chunk, headers, places, terms, [note.time_ms for note in notes])

    def _filled(
        self, chunk: Chunk, headers: FixedParts, places: list[int], terms: list[int], times: list[int]
    ) -> pa.Array:
        last = np.searchsorted(np.array(places, dtype=np.int64), np.arange(chunk.count), side="right")
        known_terms = np.array([self._term, *terms], dtype=np.int64)[last]
        known_times = np.array([self._time_ms, *times], dtype=np.int64)[last]
        self._next = chunk.first + chunk.count
        if terms:
            self._term = terms[-1]
            self._time_ms = times[-1]
        indexes = np.arange(chunk.first, chunk.first + chunk.count)
        for index, reset_ms in self._resets or ():
            known_times = np.where(indexes < index, np.minimum(known_times, reset_ms), known_times)
        is_null = (known_terms != headers["term"].astype(np.int64)) | (headers["chain_crc"] == 0)
        return pa.array(known_times * 1000, pa.int64(), mask=is_null).cast(TIME)

    def _look_at_end(self) -> Sequence[TimeReset]:
        """The resets that the last time entry lists; none if it is not found."""
        try:
            self._look_back(self._log.extent().end)
        except ReadError:
            pass
        return self._listed

    def _look_back(self, index: int) -> None:
        """Learn the time entry before C{index}, if the log has one within its bounds."""
        self._term, first, span = _NONE, index, _FIRST_SPAN
        try:
            begin, left_bytes = self._log.extent().begin, LOOK_BACK_BYTES
            while first > begin and left_bytes > 0 and index - first < LOOK_BACK_ENTRIES:
                end, first = first, max(begin, index - span)
                for chunk in self._log.chunks(first, end, with_data=True):
                    left_bytes -= self._passed(chunk)
                if self._term != _NONE:
                    return
                span *= _GROWTH
        except ReadError:
            self._term = _NONE

    def _passed(self, chunk: Chunk) -> int:
        """The time entries of an earlier chunk count. @return: bytes of the chunk."""
        assert chunk.data is not None
        headers = gather(chunk.data, chunk.starts[:-1], HEADER_DTYPE)
        _places, terms, notes = _time_entries(chunk, headers, check_headers(chunk, headers))
        if terms:
            self._term = terms[-1]
            self._time_ms = notes[-1].time_ms
            self._listed = next((note.resets for note in reversed(notes) if note is not _UNKNOWN), ())
        return len(chunk.data)


def _time_entries(
    chunk: Chunk, headers: FixedParts, is_sound: NDArray[np.bool_]
) -> tuple[list[int], list[int], list[TimeNote]]:
    """
    Of a chunk.

    @return: number of the record, term and content of each time entry; of a record that may be one, no term.
    """
    assert chunk.data is not None
    is_like = (headers["channel"] == TIME_CHANNEL) & (headers["chain_crc"] != 0) & is_sound
    sizes = np.diff(chunk.starts)
    is_like &= (sizes >= _SIZE) & (sizes <= _SIZE + RESETS_MAX * TIME_RESET_BYTES)
    likely = np.flatnonzero(is_like)
    words = gather(chunk.data, chunk.starts[:-1][likely] + ENTRY_HEADER_SIZE, _WORD)
    is_one = np.zeros(chunk.count, dtype=np.bool_)
    is_one[likely[words == TIME_MAGIC]] = True
    places = np.flatnonzero(is_one | ~is_sound).tolist()
    terms, notes = [_NONE] * len(places), [_UNKNOWN] * len(places)
    for number, place in enumerate(places):
        if is_one[place]:
            at = int(chunk.starts[place])
            try:
                body = bytes(chunk.data[at + ENTRY_HEADER_SIZE : int(chunk.starts[place + 1])])
                notes[number] = decode_time_entry(body).at(chunk.first + place)
                terms[number] = int(headers["term"][place])
            except WireError:
                pass  # (Damaged, or of a later version.)
    return places, terms, notes
