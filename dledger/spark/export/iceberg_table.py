# -*- test-case-name: tests.spark.test_tables,tests.spark.test_tables_cli,tests.spark.test_table_kills -*-
"""
An Iceberg table as the target of an export, with the package C{pyiceberg}::

    OUT/catalog.db                       SQLite: the catalog; it says which metadata file is the newest
    OUT/log/metadata/, OUT/log/data/     the table C{log} of the namespace C{dledger}
    OUT/_lock                            as in an export of files

With a catalog that others use, too (L{dledger.spark.export.iceberg_catalog}), OUT is the table alone::

    OUT/metadata/, OUT/data/

A snapshot and the properties of the table change in one commit, which is one change in the catalog. The state
is in both: in the snapshot for people and to notice that the table was rolled back, in the properties because
snapshots expire. A crash before the commit leaves files that no reader of the table sees.

Rule: every file is brought to stable storage before the catalog names it. All names of files are new ones.

The rows of a part are in memory until it ends.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    RESTError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import OutputFile
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.transforms import IdentityTransform
from sqlalchemy.exc import SQLAlchemyError

from dledger.spark.export.files import ExportError, ExportPart, sync_directory
from dledger.spark.export.iceberg_catalog import StoreFileIO, driver_errors, open_catalog
from dledger.spark.export.table_place import LocalTablePlace, TablePlace
from dledger.spark.export.table_target import RANGE, STATE, ExportTable, TableForm, TableState
from dledger.storage.backups.place import RemoteDisk
from dledger.storage.backups.place_worker import CallWorker
from dledger.values.addresses import is_url

if TYPE_CHECKING:
    from dledger.spark.export.exporter import ExportSettings

CATALOG_NAME = "catalog.db"
TABLE = ("dledger", "log")
#: Bytes of files that a compaction reads at a time, and writes as one file.
COMPACT_BYTES = 128 * 1024 * 1024
#: Seconds for which a catalog that another program has locked is waited for.
CATALOG_WAIT_S = 5.0
#: Seconds in which each call of a store has to return when old files are deleted.
STORE_WAIT_S = 120.0
#: Another try by the package would not look whether the other commit was that of an export.
_NO_RETRY = {"commit.retry.num-retries": "0"}
_CODECS = {"none": "uncompressed"}
_SCHEME = "file://"
#: Folders of a table: of its rows, and of the descriptions of its versions.
_FOLDERS = _DATA, _METADATA = "data", "metadata"
#: Ends of the names of a table's files.
_OURS = (".parquet", ".avro", ".metadata.json")


class SyncedFile(OutputFile):  # type: ignore[misc]
    """A local file that is in stable storage, with its name, when it is closed."""

    def __init__(self, location: str, inner: OutputFile) -> None:
        super().__init__(location)
        self._inner = inner

    def __len__(self) -> int:
        """Bytes."""
        return len(self._inner)

    def exists(self) -> bool:
        """Whether it exists."""
        return bool(self._inner.exists())

    def to_input_file(self) -> object:
        """For reading."""
        return self._inner.to_input_file()

    def create(self, overwrite: bool = False) -> io.FileIO:
        """The open file. @raise FileExistsError: it exists."""
        path = Path(self.location.removeprefix(_SCHEME))
        path.parent.mkdir(parents=True, exist_ok=True)
        return _SyncedStream(path, "wb" if overwrite else "xb")


class _SyncedStream(io.FileIO):
    def close(self) -> None:
        if not self.closed:
            os.fsync(self.fileno())
            super().close()
            sync_directory(Path(str(self.name)).parent)


class SyncedFileIO(PyArrowFileIO):  # type: ignore[misc]
    """The files of a table in a directory."""

    def new_output(self, location: str) -> SyncedFile:
        """A file to write."""
        return SyncedFile(location, super().new_output(location))


class HeldPart:
    """Rows in memory. @ivar rows: written so far."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self.rows += batch.num_rows
        self.batches.append(batch)

    def close(self) -> list[tuple[str, str]]:
        """No file is staged."""
        return []

    def abandon(self) -> None:
        """Give the rows up."""
        self.batches = []


def open_iceberg(out: str, form: TableForm, settings: ExportSettings) -> IcebergExport:
    """
    @param out: a directory or a URL.
    @raise ExportError: see L{ExportTable}; or there is no such catalog.
    """
    if not is_url(out) and re.search(r"[?#%]", out):
        raise ExportError(f"{out} cannot hold an Iceberg table: allowed are paths without ?, # and %")
    if is_url(out):
        place = TablePlace(out.rstrip("/"))
    else:
        place = LocalTablePlace(out)
    return IcebergExport(place, form, settings)


class IcebergExport(ExportTable):
    """Writes the rows of an export into an Iceberg table, one snapshot for each range of the log."""

    kind = "Iceberg"
    _table: Table
    _part: HeldPart
    _opened: SqlCatalog | RestCatalog | None = None

    def __init__(self, place: TablePlace, form: TableForm, settings: ExportSettings) -> None:
        """@param settings: name the catalog and the table, if they are not the ones in a directory."""
        self._settings = settings
        self._name = tuple(settings.table.split(".")) if settings.table else TABLE
        self._is_shared = bool(settings.catalog)
        where = place.where if self._is_shared else f"{place.where}/{TABLE[1]}"
        #: The address of the table.
        self._location = where if is_url(where) else f"{_SCHEME}{where}"
        super().__init__(place, form)

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """See L{ExportTable}."""
        return (
            CommitFailedException, CommitStateUnknownException, ValidationException, TableAlreadyExistsError,
            NamespaceAlreadyExistsError, RESTError, SQLAlchemyError, OSError, ValueError, *driver_errors(),
        )

    def is_there(self) -> bool:
        return self.load() if self._is_shared else CATALOG_NAME in self.place.names()

    def _catalog(self) -> SqlCatalog | RestCatalog:
        if self._opened is None:
            settings = self._settings
            uri = settings.catalog or f"sqlite:///{self.path}/{CATALOG_NAME}?timeout={CATALOG_WAIT_S:g}"
            file_io = StoreFileIO if is_url(self.path) else SyncedFileIO
            self._opened = open_catalog(uri, settings.catalog_options, settings.store_options,
                                        f"{file_io.__module__}.{file_io.__name__}")
        return self._opened

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        super().close()

    def load(self) -> bool:
        if not self._is_shared and not self.is_there():
            return False
        try:
            self._table = self._catalog().load_table(self._name)
        except NoSuchTableError:
            return False
        except self.errors as error:
            raise ExportError(
                f"the Iceberg table {self.path} cannot be read: {self.said(error)}"
            ) from error
        place = _plain(self._table.location())
        if place != _plain(self._location):
            raise ExportError(
                f"the catalog has the table {'.'.join(self._name)} at {place}: name that as OUT, or another "
                "--table" if self._is_shared else
                f"{self.path} holds the catalog of a table at {place}: an Iceberg table cannot be moved or "
                "copied. Name the directory in which it was made, or a new one"
            )
        return True

    def said(self, error: Exception) -> str:
        if isinstance(error, SQLAlchemyError) and "locked" in str(error):
            return (f"another program holds the lock of its catalog {CATALOG_NAME}, "
                    f"for more than {CATALOG_WAIT_S:g} s: end that program, then give the same command again")
        return super().said(error)

    def create(self) -> None:
        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(self._name[:-1])
        codec = _CODECS.get(self.form.compression, self.form.compression)
        with catalog.create_table_transaction(
            self._name, schema=self.form.schema, location=self._location,
            properties={"write.parquet.compression-codec": codec, **_NO_RETRY},
        ) as change, change.update_spec() as spec:
            if is_url(self.path):
                self._check_empty(change._table)
            for name in self.form.partition_by:
                spec.add_field(name, IdentityTransform(), name)

    def _check_empty(self, table: Table) -> None:
        """A killed run may have left metadata. @raise ExportError: the place has files of others."""
        worker = CallWorker(STORE_WAIT_S)
        try:
            found = RemoteDisk(table.io.get_fs(_kind_of(self._location)), worker).listdir(self._location)
        finally:
            worker.close()
        foreign = [name for name in found if name != _METADATA and not name.startswith(("_", "."))]
        if foreign:
            raise ExportError(f"{self.path} is not empty ({foreign[0]!r} is in it), and the catalog has no "
                              f"table {'.'.join(self._name)} there: name a new place")

    def _ancestors(self) -> Iterable[Snapshot]:
        current = self._table.current_snapshot()
        return ancestors_of(current, self._table.metadata) if current is not None else ()

    def recorded(self) -> TableState | None:
        text = self._table.properties.get(STATE)
        if text is None:
            return None
        state = TableState.of_json(text, self.path)
        for snapshot in self._ancestors():
            seen = snapshot.summary.additional_properties.get(STATE) if snapshot.summary else None
            if seen is None:
                continue
            if seen != text:
                raise ExportError(
                    f"the Iceberg table {self.path} was rolled back before offset {state.next}, to which the "
                    "export has come: go to its newest snapshot again, or name a new directory"
                )
            break
        return state

    def layout(self) -> tuple[pa.Schema, tuple[str, ...], bool]:
        schema = self._table.schema()
        fields = tuple(
            schema.find_column_name(field.source_id) if isinstance(field.transform, IdentityTransform)
            else f"{field.transform}({schema.find_column_name(field.source_id)})"
            for field in self._table.spec().fields
        )
        found = schema_to_pyarrow(schema, include_field_ids=False)
        return found, fields, self._table.current_snapshot() is not None

    def new_part(self) -> HeldPart:
        """See L{ExportTable.new_part}: rows in memory."""
        self._part = HeldPart()
        return self._part

    def prepare(self, added: list[pa.Field]) -> bool:
        """See L{ExportTable.prepare}: the package reads the property before a commit."""
        if _NO_RETRY.items() <= self._table.properties.items():
            return False
        with self._table.transaction() as change:
            change.set_properties(_NO_RETRY)
        return True

    def append(self, part: ExportPart, added: list[pa.Field], properties: Mapping[str, str]) -> None:
        # Earlier rows of the part may lack columns of later ones.
        batches = [self.form.schema.empty_table(), *map(pa.table, self._part.batches)]
        rows = pa.concat_tables(batches, promote_options="default")
        change = self._table.transaction()
        if added:
            with change.update_schema() as schema:
                schema.union_by_name(self.form.schema)
        change.append(rows, snapshot_properties=dict(properties))
        change.set_properties({STATE: properties[STATE]})
        change.commit_transaction()

    def version(self) -> str:
        """See L{ExportTable.version}: the id of the snapshot."""
        current = self._table.current_snapshot()
        return str(current.snapshot_id) if current is not None else ""

    def compact(self) -> tuple[int, int]:
        """See L{ExportTable.compact}: each partition in groups of L{COMPACT_BYTES}, one commit for each."""
        groups: dict[object, list[list[FileScanTask]]] = {}
        tasks = sorted(self._table.scan().plan_files(), key=lambda task: str(task.file.file_path))
        for task in tasks:
            size = task.file.file_size_in_bytes
            if size >= COMPACT_BYTES // 2:
                continue
            of_partition = groups.setdefault(repr(task.file.partition), [[]])
            if sum(one.file.file_size_in_bytes for one in of_partition[-1]) + size > COMPACT_BYTES:
                of_partition.append([])
            of_partition[-1].append(task)
        count = len(tasks)
        for of_partition in groups.values():
            for group in of_partition:
                if len(group) > 1:
                    count += self._rewrite(group) - len(group)
        return len(tasks), count

    def _rewrite(self, tasks: list[FileScanTask]) -> int:
        """@return: the number of new files."""
        table, state = self._table, self.recorded()
        assert state is not None
        rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks)
        change = table.transaction()
        count = 0
        with change.update_snapshot(
            snapshot_properties={STATE: table.properties[STATE], RANGE: "compacted"}
        ).overwrite() as files:
            for task in tasks:
                files.delete_data_file(task.file)
            for made in _dataframe_to_data_files(table.metadata, rows, table.io):
                files.append_data_file(made)
                count += 1
        change.commit_transaction()
        self.load()
        return count

    def expire(self, days: float, now_s: float) -> int:
        limit_s = now_s - days * 86_400
        self._table.maintenance.expire_snapshots().older_than(
            datetime.fromtimestamp(limit_s, UTC)
        ).commit()
        self.load()
        needed = self._needed()
        if is_url(self.path):
            return self._unlink_remote(needed, limit_s)
        gone = 0
        top = Path(_plain(self._location))
        for path in sorted(path for folder in _FOLDERS for path in (top / folder).rglob("*")):
            is_old = path.name.endswith(_OURS) and path.stat().st_mtime < limit_s
            if is_old and os.path.realpath(path) not in needed:
                path.unlink()
                gone += 1
        return gone

    def _unlink_remote(self, needed: set[str], limit_s: float) -> int:
        """In a store. @return: the number of files."""
        files = self._table.io.get_fs(_kind_of(self._location))
        worker = CallWorker(STORE_WAIT_S)
        disk = RemoteDisk(files, worker)
        gone, folders = 0, [f"{self._location}/{folder}" for folder in _FOLDERS]
        try:
            while folders:
                folder = folders.pop()
                for name, size in sorted(disk.listed(folder).items()):
                    path = f"{folder}/{name}"
                    if size < 0:
                        folders.append(path)
                    elif name.endswith(_OURS) and _plain(path) not in needed \
                            and disk.modified_s(path) < limit_s:
                        worker.run(path, partial(files.rm_file, path))
                        gone += 1
        finally:
            worker.close()
        return gone

    def _needed(self) -> set[str]:
        """The paths of all files that a version of the table needs."""
        table = self._table
        found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        for snapshot in table.snapshots():
            found.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                found.add(manifest.manifest_path)
                found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
        return {_plain(location) for location in found}


def _kind_of(location: str) -> str:
    return location.partition("://")[0]


def _plain(location: str) -> str:
    """
    The path of a file, or its URL in a store; other programs may spell its address in another way, and links
    may lead to it.
    """
    if is_url(location) and not location.startswith("file:"):
        return re.sub("(?<!:)/+", "/", re.sub("^s3[an]:", "s3:", location)).rstrip("/")
    return os.path.realpath(re.sub("^file:/*", "/", location))

