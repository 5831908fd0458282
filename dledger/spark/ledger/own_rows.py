# -*- test-case-name: tests.spark.test_own_rows -*-
"""
Which records of a chunk are the log's own entries, by the rule of L{protocols.wire.ledger.own.own_entries}.

Where there is no data, the index shows all but the C{channel}. Records that may have one are looked up, those
that are near each other by one read; a record far from the others costs one read of what is needed of it. So
the cost is that of the entries, whatever their sizes are.

Nothing is left out because of damage: a C{channel} that does not fit the body, or that is not known here, is
damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import attrs
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dledger.spark.formats.log import Chunk, FixedParts, Offsets
from dledger.spark.formats.options import ScanOptions
from dledger.spark.formats.record_headers import HEADER_DTYPE, damage, gather
from protocols.wire.ledger.entry import CHANNEL_AT, ENTRY_HEADER_SIZE, MAGIC
from protocols.wire.ledger.own.age_entries import AGE_MAGIC
from protocols.wire.ledger.own.configuration import CONFIGURATION_MAGIC
from protocols.wire.ledger.own.machine_entries import MACHINE_ENTRY_MAGIC
from protocols.wire.ledger.own.own_entries import (
    AGE_CHANNEL,
    CONFIGURATION_CHANNEL,
    HIDDEN,
    HIDDEN_MAGIC,
    MACHINE_CHANNEL,
    READER_CHANNEL,
    SESSION_CHANNEL,
    STATE_CHANNEL,
    TERM_START_CHANNEL,
    TIME_CHANNEL,
    own_kind,
)
from protocols.wire.ledger.own.session_entries import SESSION_MAGIC
from protocols.wire.ledger.own.state_entries import STATE_ENTRY_MAGIC
from protocols.wire.ledger.own.time_entries import TIME_MAGIC
from protocols.wire.ledger.readers import READER_MAGIC

Mask: TypeAlias = NDArray[np.bool_]
#: The first four bytes of the bodies of the log's own entries, by their channels; a term start may have no
#: body.
_WORDS = {
    CONFIGURATION_CHANNEL: CONFIGURATION_MAGIC, SESSION_CHANNEL: SESSION_MAGIC, READER_CHANNEL: READER_MAGIC,
    TIME_CHANNEL: TIME_MAGIC, MACHINE_CHANNEL: MACHINE_ENTRY_MAGIC, AGE_CHANNEL: AGE_MAGIC,
    STATE_CHANNEL: STATE_ENTRY_MAGIC,
}
_HIDDEN_WORD = int.from_bytes(HIDDEN_MAGIC[:4], "big")
#: Bytes of a record with a C{channel} that say of which kind it is.
_HEAD_SIZE = ENTRY_HEADER_SIZE + 4
_WORD = np.dtype(">i4")
#: The part of a header that L{hidden_in} needs.
_MARK = np.dtype([("channel", ">i4"), ("chain_crc", ">i4")])
#: Records with less than this between them are read together: as long as a read of the file takes.
GAP_BYTES = 16 * 1024


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
    def none(cls, count: int) -> OwnRows:
        """None of C{count} records."""
        none: Mask = np.zeros(count, dtype=np.bool_)
        return cls(is_own=none, is_marker=none.copy(), is_damaged=none.copy())


class OwnRowFinder:
    """Finds the log's own entries in the chunks of one part, which come in order."""

    def __init__(self, options: ScanOptions) -> None:
        self._options = options

    def with_data(self, chunk: Chunk, headers: FixedParts, is_sound: Mask) -> OwnRows:
        """
        In a chunk with data.

        @raise DamageError: it is not known what a record is, and C{failOnDamage} is set.
        """
        assert chunk.data is not None
        own = OwnRows.none(chunk.count)
        places = np.flatnonzero(is_sound & hidden_in(headers))
        self._note(chunk, own, places, chunk.data, chunk.starts[:-1][places], headers[places])
        return own

    def by_index(self, chunk: Chunk) -> OwnRows:
        """
        In a chunk of index units alone.

        @raise DamageError: as L{with_data}; or a record that was looked up does not fit its unit.
        """
        assert chunk.units is not None and chunk.records is not None
        own = OwnRows.none(chunk.count)
        places = np.flatnonzero(chunk.records.doubtful(chunk.first, chunk.count))
        if not len(places):
            return own
        sizes = np.diff(chunk.starts)
        begins = chunk.starts[:-1] + int(chunk.units["pos"][0] - chunk.starts[0])
        if len(places) < chunk.count:
            sizes, begins = sizes[places], begins[places]
        ends = begins + np.minimum(sizes, _HEAD_SIZE)
        for first, last, data in _spans(begins, ends, chunk.records.pread):
            some, starts = places[first:last], begins[first:last] - begins[first]
            if len(data) < ends[last - 1] - begins[first]:
                is_there = ends[first:last] - begins[first] <= len(data)
                self._damaged(chunk, own, some[~is_there], "its file is too short")
                some, starts = some[is_there], starts[is_there]
            # Few are the log's own, so of the others no more is taken than what shows that.
            marks = gather(data, starts + CHANNEL_AT, _MARK)
            at = np.flatnonzero(hidden_in(marks))
            some, starts = some[at], starts[at]
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
        if not len(places):
            return
        own.is_own[places] = True
        own.is_marker[places] = headers["channel"] >= HIDDEN
        self._damaged(chunk, own, places[~_fits_body(data, starts, headers)], (
            "its channel does not fit its body, or is that of a later version: then upgrade this reader"
        ))

    def _damaged(self, chunk: Chunk, own: OwnRows, places: Offsets, what: str) -> None:
        if len(places) and self._options.fail_on_damage:
            raise damage(chunk, int(places[0]), what)
        own.is_damaged[places] = True


def hidden_in(headers: FixedParts) -> Mask:
    """As L{protocols.wire.ledger.own.own_entries.is_hidden}."""
    hidden: Mask = (headers["chain_crc"] != 0) & ((headers["channel"] < 0) | (headers["channel"] >= HIDDEN))
    return hidden


def _fits_body(data: bytes | memoryview, starts: Offsets, headers: FixedParts) -> Mask:
    """Which hidden records have a channel that fits the first word of their bodies."""
    channels = headers["channel"]
    fits: Mask = channels == TERM_START_CHANNEL
    has_word = np.flatnonzero(headers["body_length"] >= _WORD.itemsize)
    words, known = gather(data, starts[has_word] + ENTRY_HEADER_SIZE, _WORD), channels[has_word]
    fits[has_word] |= (known >= HIDDEN) & (words == _HIDDEN_WORD)
    for channel, word in _WORDS.items():
        fits[has_word] |= (known == channel) & (words == word)
    return fits


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
    breaks = np.flatnonzero(np.diff(begins) > GAP_BYTES + _HEAD_SIZE) + 1
    edges = [0, *breaks.tolist(), len(begins)]
    for first, last in zip(edges, edges[1:], strict=False):
        yield first, last, pread(int(ends[last - 1] - begins[first]), int(begins[first]))


def _fit(headers: FixedParts, units: FixedParts) -> Mask:
    """Which headers are those of their index units."""
    fits: Mask = (headers["magic"] == MAGIC) & (headers["body_length"] == headers["size"] - ENTRY_HEADER_SIZE)
    for name in ("pos", "size", "index", "term"):
        fits &= headers[name] == units[name]
    return fits


def kinds_of(chunk: Chunk, headers: FixedParts, own: OwnRows) -> pa.Array:
    """The column C{control}: what each of the log's own entries is; null for bodies of programs."""
    kinds: list[str | None] = [None] * chunk.count
    for at in np.flatnonzero(own.is_own).tolist():
        kinds[at] = own_kind(int(headers["channel"][at]), int(headers["chain_crc"][at]))
    return pa.array(kinds, pa.string())
