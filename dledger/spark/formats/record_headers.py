# -*- test-case-name: tests.spark.test_scan -*-
"""
The headers of the records of a chunk as arrays, and which of them are sound: they are compared with the
places of the records, and with their checksums where that is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from struct import Struct

import attrs
import numpy as np
from numpy.typing import NDArray

from dledger.spark.formats.log import Chunk, DamageError, FixedParts
from dledger.spark.formats.options import ScanOptions
from protocols.wire.checksums import crc32
from protocols.wire.layout import dtype_of
from protocols.wire.ledger.entry import ENTRY_HEADER_DECLARATION, ENTRY_HEADER_SIZE, MAGIC

HEADER_DTYPE = np.dtype(dtype_of(ENTRY_HEADER_DECLARATION))
assert HEADER_DTYPE.itemsize == ENTRY_HEADER_SIZE
_CHAIN_AT = int(HEADER_DTYPE.fields["chain_crc"][1]) if HEADER_DTYPE.fields is not None else 0
#: A header after the C{chain_crc} of the record before it.
_PIECE = Struct(f"{4 + ENTRY_HEADER_SIZE}s")


def gather(
    data: bytes | memoryview | NDArray[np.uint8], starts: NDArray[np.int64], dtype: np.dtype[np.generic]
) -> FixedParts:
    """The structures at C{starts}, which need not be aligned, in one copy."""
    room = len(data) - dtype.itemsize + 1
    if room <= 0 or not len(starts):
        return np.empty(0, dtype=dtype)
    # As opaque bytes: numpy would copy the fields one by one, which takes fifteen times as long.
    view: FixedParts = np.ndarray((room,), dtype=f"V{dtype.itemsize}", buffer=data, strides=(1,))
    return view[starts].view(dtype)


def check_headers(chunk: Chunk, headers: FixedParts) -> NDArray[np.bool_]:
    """Which records have the place and the size that their headers say."""
    sizes = np.diff(chunk.starts)
    units = chunk.units
    is_sound: NDArray[np.bool_] = (headers["magic"] == MAGIC) & (headers["size"] == sizes)
    is_sound &= headers["body_length"] == sizes - ENTRY_HEADER_SIZE
    is_sound &= headers["index"] == np.arange(chunk.first, chunk.first + chunk.count, dtype=np.int64)
    if units is not None:
        is_sound &= (headers["pos"] == units["pos"]) & (headers["term"] == units["term"])
    elif chunk.count > 1:
        # Members send no index: a place is right if it is after the one before.
        position = headers["pos"].astype(np.int64)
        is_sound[1:] &= position[1:] >= position[:-1] + sizes[:-1]
        is_sound[1:] &= headers["term"][1:] >= headers["term"][:-1]
    return is_sound


def _bodies(chunk: Chunk) -> Iterator[bytes | memoryview]:
    """The bodies of a chunk, without a step of Python for each if all records have one size."""
    view = memoryview(chunk.data if chunk.data is not None else b"")
    sizes = np.diff(chunk.starts)
    if chunk.count and (sizes == sizes[0]).all() and int(chunk.starts[0]) == 0:
        one = Struct(f"{ENTRY_HEADER_SIZE}x{int(sizes[0]) - ENTRY_HEADER_SIZE}s")
        return chain.from_iterable(one.iter_unpack(view[: int(chunk.starts[-1])]))
    edges = chunk.starts.tolist()
    return (view[first + ENTRY_HEADER_SIZE : last] for first, last in zip(edges, edges[1:], strict=False))


def check_bodies(chunk: Chunk, headers: FixedParts, is_sound: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """
    Which of the sound records have a body with the recorded CRC. A record with neither C{chain_crc} nor
    C{body_crc} is of a writer that records no checksums, such as Java's.
    """
    # Unsound records do not count, so the edges, which come from the index, bound the bodies.
    found = np.fromiter(map(crc32, _bodies(chunk)), dtype=np.uint32, count=chunk.count)
    recorded = headers["body_crc"].astype(np.int32).view(np.uint32)
    is_bare: NDArray[np.bool_] = (recorded == 0) & (headers["chain_crc"] == 0)
    matches: NDArray[np.bool_] = is_bare | ((recorded == found) & (headers["chain_crc"] != 0))
    return is_sound & matches


def check_chain(headers: FixedParts, before: int | None) -> NDArray[np.bool_]:
    """
    Which headers match their C{chain_crc}, which covers the header and the C{chain_crc} of the record before.

    Where a header does not match, the next one is not held against it: one of the two would be called damaged
    wrongly.

    @param before: C{chain_crc} of the record before the first; None: not known.
    """
    recorded = headers["chain_crc"]
    pieces = np.zeros((len(headers), 4 + ENTRY_HEADER_SIZE), dtype=np.uint8)
    raw = np.frombuffer(headers.tobytes(), dtype=np.uint8).reshape(len(headers), ENTRY_HEADER_SIZE)
    pieces[:, 4:] = raw
    pieces[:, 4 + _CHAIN_AT : 8 + _CHAIN_AT] = 0
    pieces[1:, :4] = raw[:-1, _CHAIN_AT : _CHAIN_AT + 4]
    pieces[:1, :4] = np.frombuffer(int(before or 0).to_bytes(4, "big", signed=True), dtype=np.uint8)
    each = chain.from_iterable(_PIECE.iter_unpack(pieces.tobytes()))
    found = np.fromiter(map(crc32, each), dtype=np.uint32, count=len(headers))
    found[found == 0] = 1
    matches: NDArray[np.bool_] = (recorded == 0) | (recorded.astype(np.int32).view(np.uint32) == found)
    if before is None:
        matches[:1] = True
    for at in np.flatnonzero(~matches).tolist():
        if at and not matches[at - 1]:
            matches[at] = True
    return matches


@attrs.define(kw_only=True)
class Place:
    """
    How far a decoder is; initially nowhere.

    @ivar next: index of the next record, if it follows the last one; -1: not known.
    @ivar end: stream offset after the last record.
    @ivar term, chain_crc: of the last record.
    """

    next: int = -1
    end: int = 0
    term: int = -1
    chain_crc: int | None = None

    def move(self, chunk: Chunk, headers: FixedParts, is_sound: NDArray[np.bool_]) -> None:
        """After the last record of a chunk, if that is sound."""
        self.next = -1
        self.chain_crc = None
        if chunk.count and is_sound[-1]:
            last = headers[-1]
            self.next = chunk.first + chunk.count
            self.end = int(last["pos"]) + int(last["size"])
            self.term = int(last["term"])
            self.chain_crc = int(last["chain_crc"])


def sound_headers(
    chunk: Chunk, options: ScanOptions, place: Place
) -> tuple[FixedParts, NDArray[np.bool_]]:
    """
    All headers, and which of them may be used.

    @param place: of the decoder, which moves past the chunk.

    @raise DamageError: a record is damaged, and C{failOnDamage} is set.
    """
    assert chunk.data is not None
    headers = gather(chunk.data, chunk.starts[:-1], HEADER_DTYPE)
    is_sound = check_headers(chunk, headers)
    follows = place.next == chunk.first
    if follows and chunk.units is None and chunk.count:
        is_sound[0] &= headers["pos"][0] >= place.end and headers["term"][0] >= place.term
    what = "its header does not fit its place"
    if options.verify_crc:
        before = place.chain_crc if follows else chunk.chain_before
        for check, problem in (
            (check_bodies(chunk, headers, is_sound), "its body does not match its body_crc"),
            (check_chain(headers, before), "its header does not match its chain_crc"),
        ):
            what = problem if is_sound.all() and not check.all() else what
            is_sound &= check
    if options.fail_on_damage and not is_sound.all():
        at = int(np.argmin(is_sound))
        raise damage(chunk, at, what)
    place.move(chunk, headers, is_sound)
    return headers, is_sound


def damage(chunk: Chunk, at: int, what: str) -> DamageError:
    """The error for record C{at} of a chunk, counted from 0."""
    return DamageError(
        f"entry {chunk.first + at} is damaged: {chunk.place} at {chunk.place_at + int(chunk.starts[at])}: "
        f"{what}. With option failOnDamage=false it is skipped"
    )
