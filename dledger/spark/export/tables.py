# -*- test-case-name: tests.spark.test_tables -*-
"""
The export into a table: L{open_export} opens whatever target the settings name::

    source = ExportSource.of({"path": "store/dledger-n0"})
    with open_export("out", source, ExportSettings(to="delta")) as exporter:
        exporter.step(now_ms=0, is_last=True)

Reads the log as every export does; L{dledger.spark.export.table_target} has what tables have in common.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pyarrow as pa

from dledger.spark.export.decode import BODY, DecodedPart, begin_fields
from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource, check_apart
from dledger.spark.export.files import ExportError
from dledger.spark.export.table_target import DAY, ExportTable, TableForm, with_day
from dledger.spark.export.writers import OpenPart

_MISSING = "--to {0} needs a package that is not installed ({1}): pip install 'dledger[tables]'"


def open_export(out: str | os.PathLike[str], source: ExportSource, settings: ExportSettings) -> Exporter:
    """
    An export into files, or into a table if the settings name one.

    @raise ExportError: see L{ExportTable}, L{Exporter.open}; or a package is missing.
    @raise ReadError: the log cannot be read; then no directory was made.
    """
    if not settings.to:
        return Exporter.open(out, source, settings)
    check_apart(out, source.scan)
    opener_of(settings.to)
    source.scan.extent()
    return TableExporter(open_table(out, source, settings), source, settings)


def open_table(
    out: str | os.PathLike[str], source: ExportSource, settings: ExportSettings, *, rows: str = ""
) -> ExportTable:
    """
    The table for these rows.

    @param rows: a name for these rows, if they are not all of the source.
    @raise ExportError: see L{ExportTable}.
    """
    form = TableForm.of(
        source.schema, settings.partition_by, source=rows or source.scan.options.format,
        compression=settings.compression,
    )
    table = opener_of(settings.to)(os.fspath(out), form, settings)
    try:
        if settings.decode:
            begin_fields(table, settings.fields, (*source.names, DAY))
        else:
            table.check_undecoded()
    except ExportError:
        table.close()
        raise
    return table


def opener_of(kind: str) -> Callable[[str, TableForm, ExportSettings], ExportTable]:
    """What opens tables of a kind. @raise ExportError: a package is missing."""
    try:
        if kind == "delta":
            from dledger.spark.export.delta_table import open_delta

            return open_delta
        from dledger.spark.export.iceberg_table import open_iceberg

        return open_iceberg
    except ImportError as error:
        raise ExportError(_MISSING.format(kind, error)) from None


class TableExporter(Exporter):
    """
    One run of an export into a table.

    @ivar table: the target.
    """

    def __init__(self, table: ExportTable, source: ExportSource, settings: ExportSettings) -> None:
        super().__init__(table, source, settings)
        self.table = table

    def tables(self) -> list[ExportTable]:
        """See L{Exporter.tables}."""
        return [self.table]

    def _open_part(self) -> OpenPart:
        return part_of_table(self.table, self._source, self._settings)


def part_of_table(table: ExportTable, source: ExportSource, settings: ExportSettings) -> OpenPart:
    """A new part of a table."""
    part: OpenPart = table.new_part()
    if settings.decode:
        # (A day may come with a column of time that is added later.)
        part = DecodedPart(part, table, (*source.names, DAY), keeps_body=BODY in source.names)
    return _DatedPart(part) if DAY in table.form.partition_by else part


class _DatedPart:
    """A part whose rows get their day."""

    def __init__(self, part: OpenPart) -> None:
        self._part = part

    @property
    def rows(self) -> int:
        return self._part.rows

    def write(self, batch: pa.RecordBatch) -> None:
        self._part.write(with_day(batch, batch.schema.append(pa.field(DAY, pa.date32()))))

    def close(self) -> list[tuple[str, str]]:
        return self._part.close()

    def abandon(self) -> None:
        self._part.abandon()
