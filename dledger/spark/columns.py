# -*- test-case-name: tests.spark.test_scan -*-
"""
Records to columns without a Python object for each entry.

All headers of a chunk are taken in one step: a view of the bytes at every offset, indexed with the starts
of the records. Bodies are one binary array over whole records; Arrow cuts off the headers. The fields of each
header are compared, as arrays, with the place of the record; a record that does not fit is damaged.

Column names and types are those of docs/spark.md; a test compares them. A user's schema may name any of the
columns in any order. The Arrow types are exactly those that Spark expects.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain
from struct import Struct
from zlib import crc32 as zlib_crc32

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dledger.spark.envelopes import HEADERS, TIME, open_bodies
from dledger.spark.log import Chunk, DamageError, FixedParts, skipped
from dledger.spark.options import OptionError, ScanOptions
from dledger.spark.sink.markers import markers_in, runs_of_marker_size
from protocols.wire.layout import dtype_of
from protocols.wire.ledger.entry import ENTRY_HEADER_DECLARATION, ENTRY_HEADER_SIZE, MAGIC

HEADER_DTYPE = np.dtype(dtype_of(ENTRY_HEADER_DECLARATION))
assert HEADER_DTYPE.itemsize == ENTRY_HEADER_SIZE
_CHAIN_AT = int(HEADER_DTYPE.fields["chain_crc"][1]) if HEADER_DTYPE.fields is not None else 0
#: A header behind the C{chain_crc} of the record before it.
_PIECE = Struct(f"{4 + ENTRY_HEADER_SIZE}s")
#: C{binary_slice} reads this as "to the end"; without it, it fails (pyarrow 26).
_TO_THE_END = 2**31 - 1


@attrs.frozen(kw_only=True)
class Column:
    """A column: its Arrow type, and the same type as Spark writes it in a schema."""

    name: str
    arrow: pa.DataType
    ddl: str


#: C{format=dledger}.
ENTRY_COLUMNS: tuple[Column, ...] = (
    Column(name="index", arrow=pa.int64(), ddl="BIGINT"),
    Column(name="term", arrow=pa.int64(), ddl="BIGINT"),
    Column(name="pos", arrow=pa.int64(), ddl="BIGINT"),
    Column(name="size", arrow=pa.int32(), ddl="INT"),
    Column(name="channel", arrow=pa.int32(), ddl="INT"),
    Column(name="chain_crc", arrow=pa.int32(), ddl="INT"),
    Column(name="body_crc", arrow=pa.int32(), ddl="INT"),
    Column(name="body", arrow=pa.binary(), ddl="BINARY"),
)
#: Behind these with option C{envelopes}.
ENVELOPE_COLUMNS: tuple[Column, ...] = (
    Column(name="timestamp", arrow=TIME, ddl="TIMESTAMP"),
    Column(name="headers", arrow=HEADERS, ddl="MAP<STRING,BINARY>"),
)
#: The index has these columns, too.
INDEXED = frozenset(("index", "term", "pos", "size"))


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema; every column may be null, which is Spark's default."""
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])


def ddl_of(columns: Sequence[Column]) -> str:
    """The schema as Spark reads it."""
    return ", ".join(f"`{column.name}` {column.ddl}" for column in columns)


def projection(columns: Sequence[Column], wanted: Sequence[tuple[str, str]] | None) -> tuple[Column, ...]:
    """
    The columns that a schema names, in its order.

    @param wanted: name and type, the latter as in C{Column.ddl}, in any case; None: all.
    @raise OptionError: an unknown column, another type, a column twice, or none.
    """
    if wanted is None:
        return tuple(columns)
    known = {column.name.lower(): column for column in columns}
    found: list[Column] = []
    for name, ddl in wanted:
        column = known.get(name.lower())
        if column is None:
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
            hint = f" (did you mean {known[near[0]].name}?)" if near else ""
            if "channel" in known and name.lower() in [one.name for one in ENVELOPE_COLUMNS]:
                hint = " (there is one with option envelopes=true)"
            raise OptionError(f"unknown column {name}{hint}; there are {ddl_of(columns)}")
        if ddl.upper() != column.ddl.upper():
            raise OptionError(f"column {name} is {column.ddl}, not {ddl.upper()}; cast it after reading")
        if column in found:
            raise OptionError(f"column {name} is named twice")
        found.append(attrs.evolve(column, name=name))
    if not found:
        raise OptionError("the schema names no column; for a count take the column that costs least, index")
    return tuple(found)


def gather(data: bytes | memoryview, starts: NDArray[np.int64], dtype: np.dtype[np.generic]) -> FixedParts:
    """The structures at C{starts}, which need not be aligned, in one copy."""
    room = len(data) - dtype.itemsize + 1
    if room <= 0 or not len(starts):
        return np.empty(0, dtype=dtype)
    # As opaque bytes: numpy would copy the fields one by one, which takes fifteen times as long.
    view: FixedParts = np.ndarray((room,), dtype=f"V{dtype.itemsize}", buffer=data, strides=(1,))
    return view[starts].view(dtype)


def native(values: FixedParts, arrow: pa.DataType) -> pa.Array:
    """Big-endian numbers as an Arrow array."""
    return pa.array(values.astype(values.dtype.newbyteorder("=")), type=arrow)


def slices(data: bytes | memoryview, starts: NDArray[np.int64]) -> pa.Array:
    """C{data} cut at C{starts} (one more than the pieces) as a binary array, without a copy."""
    offsets = np.ascontiguousarray(starts, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(starts) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


@cache
def _crc32() -> Callable[[bytes | memoryview], int]:
    """The function of isal, which is three times as fast on long bodies, if it is installed; else zlib's."""
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        return zlib_crc32
    faster: Callable[[bytes | memoryview], int] = crc32
    return faster


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
        # Members send no index: a place is right if it is behind the one before.
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
    crc32 = _crc32()
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
    crc32 = _crc32()
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


class Decoder:
    """
    The common part of the decoders of both formats.

    @ivar damaged: records that were skipped.
    @cvar kind: name of the records, in the plural.
    """

    kind: str

    def __init__(self, options: ScanOptions, columns: Sequence[Column]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._schema = schema_of(columns)
        self._names = {column.name.lower() for column in columns}
        self.damaged = 0

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._schema

    def finish(self) -> None:
        """Warn about the damaged records that were skipped."""
        if self.damaged:
            skipped(f"{self.damaged} damaged {self.kind} were skipped")


class EntryDecoder(Decoder):
    """
    C{format=dledger}: one row for each entry.

    @ivar needs_data: whether the rows need more than the index.
    """

    kind = "entries"

    def __init__(
        self, options: ScanOptions, columns: Sequence[Column], read: Callable[[int, int], Iterator[Chunk]]
    ) -> None:
        """@param read: gives the chunks of a range with data, for what the index does not tell."""
        super().__init__(options, columns)
        self.needs_data = options.verify_crc or not self._names <= INDEXED
        self._needs_body = not self._names.isdisjoint(("body", "timestamp", "headers"))
        self._place = Place()
        self._read = read

    def decode(self, chunk: Chunk) -> pa.RecordBatch:
        """
        The rows of a chunk.

        @raise DamageError: a record is damaged, and C{failOnDamage} is set.
        """
        is_shown = self._are_shown(chunk)
        if chunk.data is None:
            assert chunk.units is not None
            return self._batch(chunk.units if is_shown.all() else chunk.units[is_shown], None)
        headers, is_sound = sound_headers(chunk, self._options, self._place)
        bodies = None
        if self._needs_body:
            bodies = pc.binary_slice(slices(chunk.data, chunk.starts), ENTRY_HEADER_SIZE, _TO_THE_END)
        self.damaged += int(np.count_nonzero(~is_sound))
        is_shown &= is_sound
        if is_shown.all():
            return self._batch(headers, bodies)
        if bodies is not None:
            bodies = bodies.filter(pa.array(is_shown))
        return self._batch(headers[is_shown], bodies)

    def _are_shown(self, chunk: Chunk) -> NDArray[np.bool_]:
        """All entries but the markers of the sink; where there is no data, those of their size are read."""
        is_shown = np.ones(chunk.count, dtype=np.bool_)
        if self._options.include_markers:
            return is_shown
        with_data: Iterable[Chunk] = (chunk,)
        if chunk.data is None:
            runs = runs_of_marker_size(chunk)
            with_data = (piece for begin, end in runs for piece in self._read(begin, end))
        for piece in with_data:
            is_shown[[piece.first - chunk.first + at for at, _ in markers_in(piece)]] = False
        return is_shown

    def _batch(self, headers: FixedParts, bodies: pa.Array | None) -> pa.RecordBatch:
        told = {"body": bodies}
        if bodies is not None and self._options.envelopes:
            opened = open_bodies(bodies, headers["channel"] == 0)
            told = {"body": opened.bodies, "timestamp": opened.times, "headers": opened.headers}
        arrays = []
        for column in self._columns:
            name = column.name.lower()
            arrays.append(told[name] if name in told else native(headers[name], column.arrow))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


@attrs.define(kw_only=True)
class Place:
    """
    How far a decoder is; initially nowhere.

    @ivar next: index of the next record, if it follows the last one; -1: not known.
    @ivar end: stream offset behind the last record.
    @ivar term, chain_crc: of the last record.
    """

    next: int = -1
    end: int = 0
    term: int = -1
    chain_crc: int | None = None

    def move(self, chunk: Chunk, headers: FixedParts, is_sound: NDArray[np.bool_]) -> None:
        """Behind the last record of a chunk, if that is sound."""
        self.next = -1
        self.chain_crc = None
        if chunk.count and is_sound[-1]:
            last = headers[-1]
            self.next, self.end = chunk.first + chunk.count, int(last["pos"]) + int(last["size"])
            self.term, self.chain_crc = int(last["term"]), int(last["chain_crc"])


def sound_headers(
    chunk: Chunk, options: ScanOptions, place: Place
) -> tuple[FixedParts, NDArray[np.bool_]]:
    """
    All headers, and which of them may be used.

    @param place: of the decoder, which moves behind the chunk.

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
