# -*- test-case-name: tests.spark.test_tables -*-
"""
The export into a table: L{open_export} opens whatever target the settings name.

    source = ExportSource.of({"path": "store/dledger-n0"})
    with open_export("out", source, ExportSettings(to="delta")) as exporter:
        exporter.step(now_ms=0, is_last=True)

Reads the log as every export does; L{dledger.spark.export.table_target} has what tables have in common.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pyarrow as pa

from dledger.spark.export.exporter import Exporter, ExportSettings, ExportSource, check_apart
from dledger.spark.export.files import ExportError
from dledger.spark.export.table_target import ExportTable, TableForm, with_day
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
    kind = _kind(settings.to)
    source.scan.extent()
    form = TableForm.of(
        source.scan.schema, settings.partition_by, source=source.scan.options.format,
        compression=settings.compression,
    )
    return TableExporter(kind(os.fspath(out), form, settings), source, settings)


def _kind(name: str) -> Callable[[str, TableForm, ExportSettings], ExportTable]:
    try:
        if name == "delta":
            from dledger.spark.export.delta_table import open_delta

            return open_delta
        from dledger.spark.export.iceberg_table import open_iceberg

        return open_iceberg
    except ImportError as error:
        raise ExportError(_MISSING.format(name, error)) from None


class TableExporter(Exporter):
    """
    One run of an export into a table.

    @ivar table: the target.
    """

    def __init__(self, table: ExportTable, source: ExportSource, settings: ExportSettings) -> None:
        super().__init__(table, source, settings)
        self.table = table

    def _open_part(self) -> OpenPart:
        return _DatedPart(self.table.new_part(), self.table.form.schema)


class _DatedPart:
    """A part whose rows get their day."""

    def __init__(self, part: OpenPart, schema: pa.Schema) -> None:
        self._part = part
        self._schema = schema

    @property
    def rows(self) -> int:
        return self._part.rows

    def write(self, batch: pa.RecordBatch) -> None:
        self._part.write(with_day(batch, self._schema))

    def close(self) -> list[tuple[str, str]]:
        return self._part.close()

    def abandon(self) -> None:
        self._part.abandon()
