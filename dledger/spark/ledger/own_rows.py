# -*- test-case-name: tests.spark.test_own_rows -*-
"""
Which records of a chunk are the log's own entries, by the rule of L{protocols.wire.ledger.own.own_entries}.

Where there is no data, the index shows all but two things: the C{channel}, and whether a record of a
marker's size is one. Records that may have either are looked up, those that are near each other by one read;
a record far from the others costs one read of what is needed of it. So the cost is that of the entries,
whatever their sizes are.

Nothing is left out because of damage: a C{channel} that does not fit the body, or that is not known here, is
damage; and so is a marker of the sink whose body does not match its checksum any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dledger.spark.basics.log import Chunk, FixedParts, Offsets, ReadError, ScannedLog
from dledger.spark.basics.options import ScanOptions
from dledger.spark.basics.record_headers import HEADER_DTYPE, damage, gather
from protocols.wire.checksums import crc32
from protocols.wire.ledger.entry import CHANNEL_AT, ENTRY_HEADER_SIZE, MAGIC
from protocols.wire.ledger.own.own_entries import (
    KINDS_BY_WORDS,
    MARKER_BYTES,
    MARKER_MAGIC,
    is_marker,
    own_kind,
)

Mask: TypeAlias = NDArray[np.bool_]
_MARKER_SIZE = ENTRY_HEADER_SIZE + MARKER_BYTES
#: Bytes of a record with a C{channel} that say of which kind it is.
_HEAD_SIZE = ENTRY_HEADER_SIZE + 4
_WORD = np.dtype(">i4")
_MAGIC = np.frombuffer(MARKER_MAGIC, dtype=np.uint8)
#: A body with as many bytes of a marker's magic may be a damaged marker.
_LIKE_MAGIC = len(MARKER_MAGIC) // 2
#: Records with less than this between them are read together: as long as a read of the file takes.
GAP_BYTES = 16 * 1024


class TermBefore:
    """The term of the entry before each chunk of a scan, whose chunks come in order."""

    def __init__(self, log: ScannedLog) -> None:
        self._log = log
        self._next = -1
        self._term = -1

    def begins(self, chunk: Chunk, headers: FixedParts, is_sound: Mask) -> Mask:
        """
        Which records with an empty body begin their terms; false where that is not known.

        @param headers: of the records, or their index units.
        """
        terms = headers["term"].astype(np.int64)
        begins: Mask = np.zeros(chunk.count, dtype=np.bool_)
        if not chunk.count:
            return begins
        begins[1:] = (terms[1:] != terms[:-1]) & is_sound[:-1]
        is_empty = np.diff(chunk.starts) == ENTRY_HEADER_SIZE
        if is_empty[0]:
            before = self._term if self._next == chunk.first else self._looked_up(chunk.first)
            begins[0] = before is not None and before != int(terms[0])
        self._next = chunk.first + chunk.count
        self._term = int(terms[-1])
        begins &= is_empty
        return begins

    def _looked_up(self, index: int) -> int | None:
        """The term of the entry before C{index}; None: there is none, or it is not known any more."""
        try:
            if index <= self._log.extent().begin:
                return None
            for chunk in self._log.chunks(index - 1, index, with_data=True):
                if chunk.first == index - 1 and chunk.data is not None:
                    return int(gather(chunk.data, chunk.starts[:-1], HEADER_DTYPE)["term"][-1])
        except ReadError:
            pass
        return None


@attrs.frozen(kw_only=True)
class OwnRows:
    """
    Records of one chunk.

    @ivar is_own: the log's own entries, markers included.
    @ivar is_marker: markers of the sink.
    @ivar is_damaged: they may be either, because they are damaged.
    """

    is_own: Mask
    is_marker: Mask
    is_damaged: Mask

    @classmethod
    def none(cls, is_own: Mask) -> OwnRows:
        """Neither markers nor damage."""
        return cls(is_own=is_own, is_marker=np.zeros_like(is_own), is_damaged=np.zeros_like(is_own))


class OwnRowFinder:
    """Finds the log's own entries in the chunks of one part, which come in order."""

    def __init__(self, options: ScanOptions, log: ScannedLog) -> None:
        self._options = options
        self._terms = TermBefore(log)

    def with_data(self, chunk: Chunk, headers: FixedParts, is_sound: Mask) -> OwnRows:
        """
        In a chunk with data.

        @raise DamageError: it is not known what a record is, and C{failOnDamage} is set.
        """
        assert chunk.data is not None
        own = OwnRows.none(self._terms.begins(chunk, headers, is_sound))
        sizes = np.diff(chunk.starts)
        places = np.flatnonzero(is_sound & ((headers["channel"] != 0) | (sizes == _MARKER_SIZE)))
        self._note(chunk, own, places, chunk.data, chunk.starts[:-1][places], headers[places])
        return own

    def by_index(self, chunk: Chunk) -> OwnRows:
        """
        In a chunk of index units alone.

        @raise DamageError: as L{with_data}; or a record that was looked up does not fit its unit.
        """
        assert chunk.units is not None and chunk.records is not None
        sizes = np.diff(chunk.starts)
        own = OwnRows.none(self._terms.begins(chunk, chunk.units, np.ones(chunk.count, dtype=np.bool_)))
        is_wanted = sizes == _MARKER_SIZE
        is_wanted |= chunk.records.doubtful(chunk.first, chunk.count) & ~own.is_own
        places = np.flatnonzero(is_wanted)
        needed = np.where(sizes[places] == _MARKER_SIZE, _MARKER_SIZE, np.minimum(sizes[places], _HEAD_SIZE))
        begins = chunk.units["pos"][places].astype(np.int64)
        for first, last, data in _spans(begins, begins + needed, chunk.records.pread):
            some, starts = places[first:last], begins[first:last] - begins[first]
            is_there = starts + needed[first:last] <= len(data)
            self._damaged(chunk, own, some[~is_there], "its file is too short")
            some, starts = some[is_there], starts[is_there]
            is_one = (gather(data, starts + CHANNEL_AT, _WORD) != 0) | (sizes[some] == _MARKER_SIZE)
            some, starts = some[is_one], starts[is_one]
            headers = gather(data, starts, HEADER_DTYPE)
            is_sound = _fit(headers, chunk.units[some])
            self._damaged(chunk, own, some[~is_sound], "its header does not fit its place")
            self._note(chunk, own, some[is_sound], data, starts[is_sound], headers[is_sound])
        return own

    def _note(
        self, chunk: Chunk, own: OwnRows, places: Offsets, data: bytes | memoryview, starts: Offsets,
        headers: FixedParts,
    ) -> None:
        """@param places: of sound records; C{starts}: where they begin in C{data}."""
        has_channel = headers["channel"] != 0
        if has_channel.any():
            known = _known_words(data, starts[has_channel], headers[has_channel])
            own.is_own[places[has_channel]] = True
            self._damaged(chunk, own, places[has_channel][~known], (
                "its channel does not fit its body, or is that of a later version: then upgrade this reader"
            ))
        sized = np.flatnonzero(~has_channel & (headers["size"] == _MARKER_SIZE))
        for number, body in _like_markers(data, starts[sized]):
            at = places[sized[number]]
            if is_marker(body):
                own.is_own[at] = own.is_marker[at] = True
            elif not _matches(headers[sized[number]], body):
                self._damaged(chunk, own, places[sized[number : number + 1]], (
                    "its body, which begins as a marker of the sink, does not match its body_crc"
                ))

    def _damaged(self, chunk: Chunk, own: OwnRows, places: Offsets, what: str) -> None:
        if len(places) and self._options.fail_on_damage:
            raise damage(chunk, int(places[0]), what)
        own.is_damaged[places] = True


def _known_words(data: bytes | memoryview, starts: Offsets, headers: FixedParts) -> Mask:
    """Which records with a channel have one that fits the first word of their bodies."""
    known: Mask = np.zeros(len(starts), dtype=np.bool_)
    has_word = headers["body_length"] >= _WORD.itemsize
    words = gather(data, starts[has_word] + ENTRY_HEADER_SIZE, _WORD)
    channels = headers["channel"][has_word]
    fits = np.zeros(len(words), dtype=np.bool_)
    for channel, word in KINDS_BY_WORDS:
        fits |= (channels == channel) & (words == word)
    known[has_word] = fits
    return known


def _spans(
    begins: Offsets, ends: Offsets, pread: Callable[[int, int], bytes]
) -> Iterator[tuple[int, int, bytes]]:
    """
    Pieces of a file, in order: those near each other by one read.

    @return: for each read the numbers of its first piece, and after its last one; its bytes, fewer if the
        file is too short.
    """
    if not len(begins):
        return
    breaks = np.flatnonzero(begins[1:] - ends[:-1] > GAP_BYTES) + 1
    edges = [0, *breaks.tolist(), len(begins)]
    for first, last in zip(edges, edges[1:], strict=False):
        yield first, last, pread(int(ends[last - 1] - begins[first]), int(begins[first]))


def _fit(headers: FixedParts, units: FixedParts) -> Mask:
    """Which headers are those of their index units."""
    fits: Mask = (headers["magic"] == MAGIC) & (headers["body_length"] == headers["size"] - ENTRY_HEADER_SIZE)
    for name in ("pos", "size", "index", "term"):
        fits &= headers[name] == units[name]
    return fits


def _like_markers(data: bytes | memoryview, starts: Offsets) -> Iterator[tuple[int, memoryview]]:
    """Bodies that begin about as a marker does: number of their record, and the body."""
    if not len(starts):
        return
    view = memoryview(data)
    begins = gather(view, starts + ENTRY_HEADER_SIZE, np.dtype(f"V{len(MARKER_MAGIC)}"))
    like = np.frombuffer(begins.tobytes(), dtype=np.uint8).reshape(len(begins), len(MARKER_MAGIC)) == _MAGIC
    for number in np.flatnonzero(like.sum(axis=1) >= _LIKE_MAGIC).tolist():
        at = int(starts[number])
        yield number, view[at + ENTRY_HEADER_SIZE : at + _MARKER_SIZE]


def _matches(header: FixedParts, body: memoryview) -> bool:
    """Whether a body matches its recorded checksum, if there is one."""
    recorded = int(header["body_crc"])
    is_bare = recorded == 0 and int(header["chain_crc"]) == 0
    return is_bare or recorded & 0xFFFFFFFF == crc32(body)


def kinds_of(chunk: Chunk, headers: FixedParts, own: OwnRows) -> pa.Array:
    """The column C{control}: what each of the log's own entries is; null for bodies of programs."""
    assert chunk.data is not None
    kinds: list[str | None] = [None] * chunk.count
    view, edges = memoryview(chunk.data), chunk.starts
    for at in np.flatnonzero(own.is_own).tolist():
        body = view[int(edges[at]) + ENTRY_HEADER_SIZE : int(edges[at + 1])]
        kinds[at] = own_kind(int(headers["channel"][at]), body, begins_term=True)
    return pa.array(kinds, pa.string())
