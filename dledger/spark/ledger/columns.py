# -*- test-case-name: tests.spark.test_scan -*-
"""
Records to columns without a Python object for each entry.

All headers of a chunk are taken in one step: a view of the bytes at every offset, indexed with the starts
of the records. Bodies are one binary array over whole records; Arrow cuts off the headers. The fields of each
header are compared, as arrays, with the place of the record (L{dledger.spark.formats.record_headers}); a
record that does not fit is damaged. The log's own entries are left out (L{dledger.spark.ledger.own_rows}).

Column names and types are those of docs/spark-reference.md; a test compares them. A user's schema may name
any of the columns in any order. The Arrow types are exactly those that Spark expects.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dledger.spark.formats.envelopes import HEADERS, TIME, open_bodies
from dledger.spark.formats.log import Chunk, FixedParts, ScannedLog, skipped
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.formats.options import ScanOptions
from dledger.spark.formats.record_headers import Place, sound_headers
from dledger.spark.ledger.entry_times import TimesOfEntries
from dledger.spark.ledger.own_rows import OwnRowFinder, OwnRows, hidden_in, kinds_of
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.ledger.envelopes import KEY_HEADER

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
#: After these with option C{envelopes}.
ENVELOPE_COLUMNS: tuple[Column, ...] = (
    Column(name="timestamp", arrow=TIME, ddl="TIMESTAMP"),
    Column(name="headers", arrow=HEADERS, ddl="MAP<STRING,BINARY>"),
    Column(name="key", arrow=pa.binary(), ddl="BINARY"),
)
#: After these with option C{times}.
TIME_COLUMN = Column(name="time", arrow=TIME, ddl="TIMESTAMP")
#: After these with option C{bodyText}.
TEXT_COLUMN = Column(name="body_text", arrow=pa.string(), ddl="STRING")
#: After these with option C{includeControl}.
CONTROL_COLUMN = Column(name="control", arrow=pa.string(), ddl="STRING")
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
            if "channel" in known and name.lower() == TIME_COLUMN.name:
                hint = " (there is one with option times=true)"
            if "channel" in known and name.lower() == CONTROL_COLUMN.name:
                hint = " (there is one with option includeControl=true)"
            if "channel" in known and name.lower() == TEXT_COLUMN.name:
                hint = " (there is one with option bodyText=true)"
            raise OptionError(f"unknown column {name}{hint}; there are {ddl_of(columns)}")
        if ddl.upper() != column.ddl.upper():
            raise OptionError(f"column {name} is {column.ddl}, not {ddl.upper()}; cast it after reading")
        if column in found:
            raise OptionError(f"column {name} is named twice")
        found.append(attrs.evolve(column, name=name))
    if not found:
        raise OptionError("the schema names no column; for a count take the column that costs least, index")
    return tuple(found)


def native(values: FixedParts, arrow: pa.DataType) -> pa.Array:
    """Big-endian numbers as an Arrow array."""
    return pa.array(values.astype(values.dtype.newbyteorder("=")), type=arrow)


def slices(data: bytes | memoryview, starts: NDArray[np.int32] | NDArray[np.int64]) -> pa.Array:
    """C{data} cut at C{starts} (one more than the pieces) as a binary array, without a copy."""
    offsets = np.ascontiguousarray(starts, dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(starts) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def texts_of(bodies: pa.Array) -> pa.Array:
    """Bodies as strings; null where one is not UTF-8. The bytes are not copied if all are."""
    try:
        return bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_text_of, bodies.to_pylist()), pa.string())


def _text_of(body: bytes | None) -> str | None:
    try:
        return None if body is None else body.decode()
    except UnicodeDecodeError:
        return None


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
    C{format=dledger}: one row for each entry that a program has appended.

    @ivar needs_data: whether the rows need more than the index.
    """

    kind = "entries"

    def __init__(self, options: ScanOptions, columns: Sequence[Column], log: ScannedLog) -> None:
        """@param log: gives the chunks, in order."""
        super().__init__(options, columns)
        self.needs_data = options.verify_crc or not self._names <= INDEXED
        self._needs_body = not self._names.isdisjoint(("body", "timestamp", "headers", "key", "body_text"))
        self._shows_all = options.include_control and "control" not in self._names
        self._place = Place()
        self._own = OwnRowFinder(options)
        self._times = TimesOfEntries(log) if TIME_COLUMN.name in self._names else None

    def decode(self, chunk: Chunk) -> pa.RecordBatch:
        """
        The rows of a chunk.

        @raise DamageError: a record is damaged, and C{failOnDamage} is set.
        """
        if chunk.data is None:
            return self._indexed(chunk)
        headers, is_shown = sound_headers(chunk, self._options, self._place)
        self.damaged += int(np.count_nonzero(~is_shown))
        bodies = kinds = None
        times = None if self._times is None else self._times.of(chunk, headers, is_shown)
        if self._needs_body:
            bodies = pc.binary_slice(slices(chunk.data, chunk.starts), ENTRY_HEADER_SIZE, _TO_THE_END)
        if not self._shows_all:
            own = self._own.with_data(chunk, headers, is_shown)
            if "control" in self._names:
                kinds = kinds_of(chunk, headers, own)
            is_shown = is_shown & self._are_shown(own)
        if is_shown.all():
            return self._batch(headers, bodies, kinds, times)
        if times is not None:
            times = times.filter(pa.array(is_shown))
        if bodies is not None:
            bodies = bodies.filter(pa.array(is_shown))
        if kinds is not None:
            kinds = kinds.filter(pa.array(is_shown))
        return self._batch(headers[is_shown], bodies, kinds, times)

    def _indexed(self, chunk: Chunk) -> pa.RecordBatch:
        assert chunk.units is not None
        if self._shows_all:
            return self._batch(chunk.units)
        is_shown = self._are_shown(self._own.by_index(chunk))
        return self._batch(chunk.units if is_shown.all() else chunk.units[is_shown])

    def _are_shown(self, own: OwnRows) -> NDArray[np.bool_]:
        self.damaged += int(np.count_nonzero(own.is_damaged))
        if self._options.include_control:
            return ~own.is_damaged
        if self._options.include_markers:
            return ~((own.is_own & ~own.is_marker) | own.is_damaged)
        return ~(own.is_own | own.is_damaged)

    def _batch(
        self, headers: FixedParts, bodies: pa.Array | None = None, kinds: pa.Array | None = None,
        times: pa.Array | None = None,
    ) -> pa.RecordBatch:
        reported: dict[str, pa.Array | None] = {"body": bodies, "control": kinds, "time": times}
        if bodies is not None and self._options.envelopes:
            opened = open_bodies(bodies, ~hidden_in(headers))
            reported |= {"body": opened.bodies, "timestamp": opened.times, "headers": opened.headers}
            if "key" in self._names:
                reported["key"] = pc.map_lookup(opened.headers, pa.scalar(KEY_HEADER), "first")
        if "body_text" in self._names:
            reported["body_text"] = texts_of(reported["body"])
        arrays = []
        for column in self._columns:
            name = column.name.lower()
            arrays.append(reported[name] if name in reported else native(headers[name], column.arrow))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
