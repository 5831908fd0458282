# -*- test-case-name: tests.spark.test_export_writers -*-
"""
Record batches into files: Parquet, or JSON with one object a line.

Rule: a writer keeps in memory at most one row group (L{ROW_GROUP_BYTES}) for each file, and opens the file
when it writes the first one. A part with many partitions needs neither many handles nor more memory.

In JSON a body that is UTF-8 is text, any other is C{body_base64}, as in the command line's own JSON. A key
without a value is left out, as in Spark.

Knows nothing of logs, nor of the final place of the files.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
from collections.abc import Callable, Iterable, Sequence
from json.encoder import encode_basestring
from pathlib import Path
from typing import IO, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dledger.spark.export.files import ExportError, partition_folder

PARQUET, JSONL = "parquet", "jsonl"
FORMATS = (PARQUET, JSONL)
COMPRESSIONS = ("snappy", "zstd", "gzip", "none")
#: Bytes of columns in memory that make one row group.
ROW_GROUP_BYTES = 32 * 1024 * 1024
#: Folders in one part; a column with more values makes no partitions.
PARTITIONS_MAX = 2_000


class Writer(Protocol):
    """One file."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""

    def close(self) -> None:
        """Write the remaining rows and end the file."""

    def abandon(self) -> None:
        """Close the file as it is."""


class OpenPart(Protocol):
    """The rows of a part that is not visible yet; see L{PartWriter}."""

    @property
    def rows(self) -> int:
        """Written so far."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""

    def close(self) -> list[tuple[str, str]]:
        """End the part. @return: for each staged file its name below C{_pending}, and its folder."""

    def abandon(self) -> None:
        """Give the rows up."""


class ParquetWriter:
    """Row groups of about L{ROW_GROUP_BYTES}. Implements L{Writer}."""

    def __init__(self, path: Path, schema: pa.Schema, compression: str) -> None:
        self._path = path
        self._schema = schema
        self._compression = compression
        self._writer: pq.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            # Dictionaries pay for repeated values; indexes never repeat, and bodies seldom.
            repeating = [
                field.name for field in self._schema
                if field.name in _REPEATING or pa.types.is_string(field.type)
            ]
            self._writer = pq.ParquetWriter(
                self._path, self._schema, compression=self._compression, use_dictionary=repeating,
            )
        table = pa.Table.from_batches(self._batches, schema=self._schema)
        self._batches = []
        self._bytes = 0
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def close(self) -> None:
        if self._batches or self._writer is None:
            self._flush()
        assert self._writer is not None
        self._writer.close()

    def abandon(self) -> None:
        self._batches = []
        if self._writer is not None:
            # Closing writes the footer, and writing may be the step that failed before.
            with contextlib.suppress(OSError):
                self._writer.close()


_REPEATING = frozenset(("term", "channel", "size", "queueId", "magic", "sysFlag", "flag"))


def _texts(key: str, column: pa.Array) -> list[str]:
    return [f"{key}: {encode_basestring(value)}" if value is not None else "" for value in column.to_pylist()]


def _numbers(key: str, column: pa.Array) -> list[str]:
    return [f"{key}: {value}" if value is not None else "" for value in column.to_pylist()]


def _bytes(key: str, column: pa.Array) -> list[str]:
    found = []
    for value in column.to_pylist():
        if value is None:
            found.append("")
            continue
        try:
            found.append(f"{key}: {encode_basestring(value.decode())}")
        except UnicodeDecodeError:
            found.append(f'{key[:-1]}_base64": "{base64.b64encode(value).decode("ascii")}"')
    return found


def _maps_of_bytes(key: str, column: pa.Array) -> list[str]:
    found = []
    for items in column.to_pylist():
        if items is None:
            found.append("")
            continue
        texts, others = {}, {}
        for name, value in items:
            try:
                texts[name] = value.decode()
            except UnicodeDecodeError:
                others[name] = base64.b64encode(value).decode("ascii")
        piece = f"{key}: {json.dumps(texts, ensure_ascii=False)}"
        if others:
            piece += f', {key[:-1]}_base64": {json.dumps(others, ensure_ascii=False)}'
        found.append(piece)
    return found


def _anything(key: str, column: pa.Array) -> list[str]:
    return [
        f"{key}: {json.dumps(_plain(value), ensure_ascii=False)}" if value is not None else ""
        for value in column.to_pylist()
    ]


def _plain(value: object) -> object:
    """The value as JSON can hold it; Arrow gives a map as a list of pairs."""
    if isinstance(value, list) and all(isinstance(item, tuple) for item in value):
        return dict(value)
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


def _fragments(kind: pa.DataType) -> Callable[[str, pa.Array], list[str]]:
    if pa.types.is_integer(kind):
        return _numbers
    if pa.types.is_string(kind):
        return _texts
    if pa.types.is_map(kind) and pa.types.is_binary(kind.item_type):
        return _maps_of_bytes
    return _bytes if pa.types.is_binary(kind) else _anything


def json_lines(batch: pa.RecordBatch) -> str:
    """One object a line, keys in the order of the columns."""
    columns: list[list[str]] = [
        _fragments(field.type)(json.dumps(field.name), batch.column(number))
        for number, field in enumerate(batch.schema)
    ]
    if not columns:
        return "{}\n" * int(batch.num_rows)
    rows: Iterable[Iterable[str]] = zip(*columns, strict=True)
    if any(batch.column(number).null_count for number in range(len(columns))):
        rows = [[piece for piece in row if piece] for row in rows]
    return "".join(["{" + ", ".join(row) + "}\n" for row in rows])


class JsonLinesWriter:
    """UTF-8, buffered up to L{ROW_GROUP_BYTES} characters. Implements L{Writer}."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._texts: list[str] = []
        self._characters = 0
        self._is_begun = False

    def write(self, batch: pa.RecordBatch) -> None:
        text = json_lines(batch)
        self._texts.append(text)
        self._characters += len(text)
        if self._characters >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        file: IO[str]
        # Valid UTF-8 has no lone surrogates, so encoding cannot fail here.
        with open(self._path, "a" if self._is_begun else "w", encoding="utf-8", newline="\n") as file:
            file.writelines(self._texts)
        self._is_begun = True
        self._texts = []
        self._characters = 0

    def close(self) -> None:
        self._flush()

    def abandon(self) -> None:
        self._texts = []


class PartWriter:
    """
    The files of one part: one for each combination of values of the partition columns.

    @ivar rows: written so far.
    """

    def __init__(
        self, stage: Callable[[str], Path], schema: pa.Schema, *, partition_by: Sequence[str], style: str,
        compression: str,
    ) -> None:
        """
        @param stage: gives the path for a name below the directory for unfinished files.
        @param schema: of the batches; the files leave out the partition columns.
        """
        self._stage = stage
        self._partition_by = tuple(partition_by)
        self._schema = self._of_files(schema)
        self._style = style
        self._compression = compression
        self._writers: dict[str, tuple[str, Writer]] = {}
        self._ended: list[tuple[str, str]] = []
        self.rows = 0

    def _of_files(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([field for field in schema if field.name not in self._partition_by])

    def write(self, batch: pa.RecordBatch) -> None:
        """
        Add rows; those with more columns than the rows before begin further files.

        @raise ExportError: too many partitions.
        """
        self.rows += batch.num_rows
        if len(batch.schema) > len(self._schema) + len(self._partition_by):
            self._ended = self.close()
            self._writers = {}
            self._schema = self._of_files(batch.schema)
        if not self._partition_by:
            self._writer("").write(batch)
            return
        for values, rows in split(batch, self._partition_by):
            self._writer(partition_folder(self._partition_by, values)).write(rows.select(self._schema.names))

    def _writer(self, folder: str) -> Writer:
        found = self._writers.get(folder)
        if found is None:
            if len(self._writers) >= PARTITIONS_MAX:
                raise ExportError(
                    f"--partition-by {','.join(self._partition_by)} has more than {PARTITIONS_MAX} values in "
                    "one part: choose a column with fewer"
                )
            name = f"open/{len(self._ended) + len(self._writers)}.{self._style}"
            found = self._writers[folder] = name, self._new(self._stage(name))
        return found[1]

    def _new(self, path: Path) -> Writer:
        if self._style == PARQUET:
            return ParquetWriter(path, self._schema, self._compression)
        return JsonLinesWriter(path)

    def close(self) -> list[tuple[str, str]]:
        """
        End all files.

        @return: for each file its name below the directory for unfinished files, and its folder.
        """
        for _name, writer in self._writers.values():
            writer.close()
        return [*self._ended, *((name, folder) for folder, (name, _writer) in self._writers.items())]

    def abandon(self) -> None:
        """Close all files as they are."""
        for _name, writer in self._writers.values():
            writer.abandon()


def split(batch: pa.RecordBatch, names: Sequence[str]) -> list[tuple[tuple[object, ...], pa.RecordBatch]]:
    """For each combination of values: the values, and its rows in their order."""
    table = pa.Table.from_batches([batch.select(list(names))])
    distinct = table.group_by(list(names)).aggregate([])
    keys = list(zip(*(distinct.column(name).to_pylist() for name in names), strict=True))
    if len(keys) == 1:
        return [(keys[0], batch)]
    found = []
    for key in keys:
        mask = None
        for name, value in zip(names, key, strict=True):
            column = batch.column(batch.schema.get_field_index(name))
            same = pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)
            mask = same if mask is None else pc.and_(mask, same)
        found.append((key, batch.filter(mask)))
    return found
