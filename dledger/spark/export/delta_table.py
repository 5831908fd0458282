# -*- test-case-name: tests.spark.test_tables,tests.spark.test_tables_cli,tests.spark.test_table_kills -*-
"""
A Delta table as the target of an export, with the package C{deltalake}::

    OUT/day=2026-11-25/part-<first>-<last>.parquet    or OUT/part-<first>-<last>.parquet
    OUT/_delta_log/<version>.json                     one for each commit: its files and properties
    OUT/_pending/, OUT/_lock                          as in an export of files

The files are written, brought to stable storage and renamed as those of an export of files; then one commit
names them. A crash in between leaves files that no reader of the table sees, with names that the next run
uses again for the same rows. An empty last file of C{_delta_log}, as a power cut may leave it, is no commit.

On an object store their names also have a number of the run, as nothing keeps two runs apart before the
commit: no run overwrites a file that a commit of another one names. The commit is a file whose name must be
free.

Besides the properties, a commit has the transaction C{dledger-export}, whose version is where the next range
begins. Of two commits on top of the same version Delta refuses the later one if both have this transaction;
it is put after the commits of other programs.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from dledger.spark.export.files import (
    NULL_PARTITION,
    ExportError,
    ExportPart,
    sync_directory,
    sync_file,
)
from dledger.spark.export.table_place import LocalTablePlace, StoreTablePlace, TablePlace
from dledger.spark.export.table_target import STATE, ExportTable, TableForm, TableState
from dledger.spark.export.writers import PARQUET, PartWriter
from dledger.values.addresses import is_url

if TYPE_CHECKING:
    from dledger.spark.export.exporter import ExportSettings

#: The id of our transactions.
APPLICATION = "dledger-export"
_LOG_NAME = "_delta_log"
#: Newest commits that are looked at first; compactions and commits of others may be among them.
_NEWEST = 16
#: Nothing is deleted by itself, whoever commits.
_CONFIGURATION = {"delta.enableExpiredLogCleanup": "false"}
_AFTERWARDS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
#: Letters of one of the package's errors, at most.
_SAID_MAX = 600
#: Options of s3fs, and the names that the package has for them.
_OF_S3 = {
    "key": "aws_access_key_id", "secret": "aws_secret_access_key", "token": "aws_session_token",
    "endpoint_url": "aws_endpoint_url", "anon": "aws_skip_signature", "region_name": "aws_region",
}
#: Begins of names that only the package has.
_OWN = ("aws_", "azure_", "google_")


def open_delta(out: str, form: TableForm, settings: ExportSettings) -> DeltaExport:
    """
    @param out: a directory or a URL.
    @raise ExportError: see L{ExportTable}; or an option of the store makes no sense.
    """
    if not is_url(out):
        return DeltaExport(LocalTablePlace(out), form, {})
    theirs, ours = split_options(out, settings.store_options)
    return DeltaExport(StoreTablePlace(out, ours), form, theirs)


def split_options(url: str, options: Mapping[str, object]) -> tuple[dict[str, str], dict[str, object]]:
    """
    @param options: of a store, as fsspec's, or as the package's.
    @return: those of the package, and those of fsspec.
    @raise ExportError: the package has no such option.
    """
    theirs = {name: _text(value) for name, value in options.items() if name.startswith(_OWN)}
    ours = {name: value for name, value in options.items() if name not in theirs}
    if not url.startswith(("s3://", "s3a://")):
        return theirs, ours
    flat = {**ours, **dict(more if isinstance(more := ours.get("client_kwargs"), Mapping) else {})}
    flat.pop("client_kwargs", None)
    for name, value in flat.items():
        if name not in _OF_S3:
            raise ExportError(
                f"--store-option {name}: the package deltalake, which commits, has no such option. Allowed "
                f"are {', '.join(_OF_S3)} (the last one in client_kwargs), and its own, which begin with aws_"
            )
        theirs.setdefault(_OF_S3[name], _text(value))
    if theirs.get("aws_endpoint_url", "").startswith("http://"):
        theirs.setdefault("aws_allow_http", "true")
    return theirs, ours


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class DeltaExport(ExportTable):
    """Writes the rows of an export into a Delta table, one commit for each range of the log."""

    kind = "Delta"
    errors = (DeltaError, OSError)
    _table: DeltaTable

    def __init__(self, place: TablePlace, form: TableForm, options: Mapping[str, str]) -> None:
        """@param options: of the store, as the package's."""
        self._options = dict(options)
        self._local = place.path if isinstance(place, LocalTablePlace) else None
        self._run = "" if self._local else f"-{uuid.uuid4().hex}"
        self._added: tuple[ExportPart, list[AddAction]] | None = None
        super().__init__(place, form)

    def said(self, error: Exception) -> str:
        """All lines, as the reason is in the last ones, without the package's colours and arrows."""
        lines = (line.strip(" \u21b3") for line in re.sub("\x1b\\[[0-9;]*m", "", str(error)).splitlines())
        return f"{type(error).__name__}: {': '.join(filter(None, lines))[:_SAID_MAX]}"

    def is_there(self) -> bool:
        return self.load() if self._local is None else (self._local / _LOG_NAME).is_dir()

    def load(self) -> bool:
        try:
            if self._local is not None and not self.is_there():
                return False
            self._table = DeltaTable(self.path, storage_options=self._options)
        except TableNotFoundError:
            return False
        except (DeltaError, OSError) as error:
            raise ExportError(f"the Delta table {self.path} cannot be read: {self.said(error)}") from error
        return True

    def create(self) -> None:
        DeltaTable.create(
            self.path, schema=self.form.schema, partition_by=list(self.form.partition_by),
            configuration=_CONFIGURATION, storage_options=self._options,
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
        files = [(staged, final.removesuffix(f".{PARQUET}") + f"{self._run}.{PARQUET}")
                 for staged, final in part.files]
        if self._added is None or self._added[0] is not part:
            self._added = part, [_action(final, self.place.staged(staged)) for staged, final in files]
        self.place.publish(files)
        end = part.last + 1
        self._table.create_write_transaction(
            self._added[1], mode="append",
            schema=self._table.schema(), partition_by=list(self.form.partition_by) or None,
            commit_properties=CommitProperties(
                custom_metadata=dict(properties), app_transactions=[Transaction(APPLICATION, end)],
            ),
            post_commithook_properties=_AFTERWARDS,
        )
        self._sync_log(self._table.version() + 1)

    def _sync_log(self, version: int) -> None:
        if self._local is None:
            return
        log = self._local / _LOG_NAME
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
        if self._local is not None:
            for path in sorted(self._local / name for name in after - before):
                sync_file(path)
                sync_directory(path.parent)
        self._sync_log(self._table.version())
        return len(before), len(after)

    def _files(self) -> set[str]:
        # Their addresses escape the directory, but not what is below it; the log escapes all.
        names = pa.table(self._table.get_add_actions()).column("path").to_pylist()
        return {unquote(name) for name in names}

    def expire(self, days: float, now_s: float) -> int:
        """See L{ExportTable.expire}; Delta has its own clock. The versions stay in C{_delta_log}."""
        gone = self._table.vacuum(
            retention_hours=round(days * 24), dry_run=False, enforce_retention_duration=False, full=True
        )
        self.load()
        return len(gone)


def _action(name: str, path: Path) -> AddAction:
    """@param name: in the place. @param path: of the file now."""
    return AddAction(
        path=name, size=path.stat().st_size, partition_values=_values(name),
        modification_time=round(time.time() * 1000), data_change=True, stats=_statistics(path),
    )


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
