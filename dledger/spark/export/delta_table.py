# -*- test-case-name: tests.spark.test_tables,tests.spark.test_tables_cli,tests.spark.test_table_kills -*-
"""
A Delta table as the target of an export, with the package C{deltalake}.

    OUT/day=2026-11-25/part-<first>-<last>.parquet    or OUT/part-<first>-<last>.parquet
    OUT/_delta_log/<version>.json                     one for each commit: its files and properties
    OUT/_pending/, OUT/_lock                          as in an export of files

The files are written, brought to stable storage and renamed as those of an export of files; then one commit
names them. A crash in between leaves files that no reader of the table sees, with names that the next run
uses again for the same rows. An empty last file of C{_delta_log}, as a power cut may leave it, is no commit.

Besides the properties, a commit has the transaction C{dledger-export}, whose version is where the next range
begins. Of two commits on top of the same version Delta refuses the later one if both have this transaction;
it is put after the commits of other programs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from dledger.spark.export.files import (
    NULL_PARTITION,
    PENDING_NAME,
    ExportError,
    ExportPart,
    rename_staged,
    sync_directory,
    sync_file,
    sync_staged,
)
from dledger.spark.export.table_target import STATE, ExportTable, TableState
from dledger.spark.export.writers import PARQUET, PartWriter

#: The id of our transactions.
APPLICATION = "dledger-export"
_LOG_NAME = "_delta_log"
#: Newest commits that are looked at first; compactions and commits of others may be among them.
_NEWEST = 16
#: Nothing is deleted by itself, whoever commits.
_CONFIGURATION = {"delta.enableExpiredLogCleanup": "false"}
_AFTERWARDS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


class DeltaExport(ExportTable):
    """Writes the rows of an export into a Delta table, one commit for each range of the log."""

    kind = "Delta"
    errors = (DeltaError, OSError)
    _table: DeltaTable

    def is_there(self) -> bool:
        return (self.path / _LOG_NAME).is_dir()

    def load(self) -> bool:
        try:
            if not self.is_there() or not DeltaTable.is_deltatable(str(self.path)):
                return False
            self._table = DeltaTable(str(self.path))
        except (DeltaError, OSError) as error:
            raise ExportError(f"the Delta table {self.path} cannot be read: {self.said(error)}") from error
        return True

    def create(self) -> None:
        DeltaTable.create(
            str(self.path), schema=self.form.schema, partition_by=list(self.form.partition_by),
            configuration=_CONFIGURATION,
        )
        self._sync_log(0)

    def recorded(self) -> TableState | None:
        ends = self._table.transaction_version(APPLICATION)
        if ends is None:
            return None
        for limit in (_NEWEST, None):
            for commit in self._table.history(limit):
                if commit.get("operation") == "RESTORE":
                    raise ExportError(
                        f"the Delta table {self.path} was restored to an older version since the last commit "
                        f"of the export, which came to offset {ends}: name a new directory"
                    )
                if STATE in commit:
                    return TableState.of_json(commit[STATE], self.path)
        raise ExportError(
            f"the Delta table {self.path} has come to offset {ends}, but {_LOG_NAME} does not have that "
            "commit any more, so the log cannot be recognised: name a new directory"
        )

    def layout(self) -> tuple[pa.Schema, tuple[str, ...], bool]:
        metadata = self._table.metadata()
        columns = metadata.partition_columns
        for name, value in metadata.configuration.items():
            # The files are written here, so nobody would apply these.
            is_mapped = name == "delta.columnMapping.mode" and value != "none"
            if name.startswith("delta.constraints.") or is_mapped:
                raise ExportError(
                    f"the Delta table {self.path} has {name}={value}: allowed are tables without constraints "
                    "and without column mapping. Name a new directory"
                )
        return pa.schema(self._table.schema().to_arrow()), tuple(columns), bool(self._table.file_uris())

    def new_part(self) -> PartWriter:
        """See L{ExportTable.new_part}: files below C{_pending}."""
        form = self.form
        return PartWriter(
            self.stage, form.schema, partition_by=form.partition_by, style=PARQUET,
            compression=form.compression,
        )

    def prepare(self, added: list[pa.Field]) -> bool:
        """See L{ExportTable.prepare}: new columns are a commit of their own."""
        if not added:
            return False
        self._table.alter.add_columns(
            list(Schema.from_arrow(pa.schema(added)).fields), post_commithook_properties=_AFTERWARDS
        )
        return True

    def append(self, part: ExportPart, added: list[pa.Field], properties: Mapping[str, str]) -> None:
        staged = [pair for pair in part.files if (self.path / PENDING_NAME / pair[0]).exists()]
        if staged:
            sync_staged(self.path, staged)
            rename_staged(self.path, staged)
        end = part.last + 1
        self._table.create_write_transaction(
            [self._added(final) for _staged, final in part.files], mode="append",
            schema=self._table.schema(), partition_by=list(self.form.partition_by) or None,
            commit_properties=CommitProperties(
                custom_metadata=dict(properties), app_transactions=[Transaction(APPLICATION, end)],
            ),
            post_commithook_properties=_AFTERWARDS,
        )
        self._sync_log(self._table.version() + 1)

    def _added(self, name: str) -> AddAction:
        path = self.path / name
        return AddAction(
            path=name, size=path.stat().st_size, partition_values=_values(name),
            modification_time=round(time.time() * 1000), data_change=True, stats=_statistics(path),
        )

    def _sync_log(self, version: int) -> None:
        log = self.path / _LOG_NAME
        for name in os.listdir(log):
            if name.startswith((f"{version:020d}", "_last_checkpoint")):
                sync_file(log / name)
        sync_directory(log)

    def version(self) -> str:
        """See L{ExportTable.version}."""
        return str(self._table.version())

    def compact(self) -> tuple[int, int]:
        """See L{ExportTable.compact}; the package syncs nothing, so that is done after its commit."""
        before = self._files()
        self._table.optimize.compact(post_commithook_properties=_AFTERWARDS)
        self.load()
        after = self._files()
        for path in sorted(after - before):
            sync_file(path)
            sync_directory(path.parent)
        self._sync_log(self._table.version())
        return len(before), len(after)

    def _files(self) -> set[Path]:
        # Their addresses escape the directory, but not what is below it; the log escapes all.
        names = pa.table(self._table.get_add_actions()).column("path").to_pylist()
        return {self.path / unquote(name) for name in names}

    def expire(self, days: float, now_s: float) -> int:
        """See L{ExportTable.expire}; Delta has its own clock. The versions stay in C{_delta_log}."""
        gone = self._table.vacuum(
            retention_hours=round(days * 24), dry_run=False, enforce_retention_duration=False, full=True
        )
        self.load()
        return len(gone)


def _values(name: str) -> dict[str, str | None]:
    """The values of the partition columns in a file's path."""
    found: dict[str, str | None] = {}
    for piece in Path(name).parent.parts:
        column, _, value = piece.partition("=")
        found[column] = None if value == NULL_PARTITION else unquote(value)
    return found


def _statistics(path: Path) -> str:
    """Rows, and bounds of columns of integers, by which readers skip files."""
    metadata = pq.read_metadata(path)
    least: dict[str, int] = {}
    most: dict[str, int] = {}
    nulls: dict[str, int] = {}
    integers = {field.name for field in metadata.schema.to_arrow_schema() if pa.types.is_integer(field.type)}
    for column in range(metadata.num_columns):
        name = metadata.schema.column(column).path
        if name not in integers:
            continue
        groups = [metadata.row_group(at).column(column).statistics for at in range(metadata.num_row_groups)]
        if all(group is not None and group.has_min_max for group in groups) and groups:
            least[name] = min(group.min for group in groups)
            most[name] = max(group.max for group in groups)
            nulls[name] = sum(group.null_count for group in groups)
    return json.dumps({
        "numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls,
    })
