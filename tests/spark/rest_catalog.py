# -*- test-case-name: tests.spark.test_lake -*-
"""
A REST catalog of Iceberg in this process: as much of the specification as creates, loads and changes tables.

The pointer to the newest metadata changes only if it is still the one that the change was made for.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import CommitTableRequest
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import update_table_metadata

from tests.storage.s3_server import FaultyServer


class RestCatalogServer(FaultyServer):
    """
    Invariant: C{_tables} has the newest metadata of each table, and where they are.

    @ivar before_commit: called between the check of a change and its commit.
    """

    denied = (b'{"error": {"message": "the test says no", "type": "Forbidden", "code": 403}}',
              "application/json")

    def __init__(self, files: FileIO) -> None:
        """@param files: to write metadata with."""
        self._files = files
        self._namespaces: set[str] = set()
        self._tables: dict[str, tuple[str, TableMetadata]] = {}
        self._changing = threading.Lock()
        self.before_commit: Callable[[], object] = lambda: None
        super().__init__(self._serve)

    def forget(self) -> None:
        """All tables."""
        self._namespaces.clear()
        self._tables.clear()
        self.calls.clear()
        self.revive()

    def _serve(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        parts = environ["PATH_INFO"].strip("/").split("/")[1:]
        status, said = self._answer_to(environ["REQUEST_METHOD"], parts, body)
        data = json.dumps(said).encode() if isinstance(said, dict) else str(said).encode()
        start(f"{status.value} {status.phrase}",
              [("Content-Type", "application/json"), ("Content-Length", str(len(data)))])
        return [data]

    def _answer_to(self, method: str, parts: list[str], body: bytes) -> tuple[HTTPStatus, object]:
        ok = HTTPStatus.OK
        if parts == ["config"]:
            return ok, {"defaults": {}, "overrides": {}}
        if parts == ["namespaces"]:
            name = ".".join(json.loads(body)["namespace"])
            if name in self._namespaces:
                return _error(HTTPStatus.CONFLICT, "AlreadyExistsException", name)
            self._namespaces.add(name)
            return ok, {"namespace": [name], "properties": {}}
        namespace = parts[1]
        if len(parts) == 2:
            found = namespace in self._namespaces
            return (ok, {"namespace": [namespace], "properties": {}}) if found else _error(
                HTTPStatus.NOT_FOUND, "NoSuchNamespaceException", namespace)
        if len(parts) == 3:
            return self._create(namespace, CreateTableRequest.model_validate_json(body))
        name = f"{namespace}.{parts[3]}"
        if method == "POST":
            return self._commit(name, CommitTableRequest.model_validate_json(body))
        if name not in self._tables:
            return _error(HTTPStatus.NOT_FOUND, "NoSuchTableException", name)
        return ok, _table(*self._tables[name])

    def _create(self, namespace: str, asked: CreateTableRequest) -> tuple[HTTPStatus, object]:
        assert asked.stage_create and asked.location
        if f"{namespace}.{asked.name}" in self._tables:
            return _error(HTTPStatus.CONFLICT, "AlreadyExistsException", asked.name)
        metadata = new_table_metadata(
            location=asked.location, schema=asked.table_schema,
            partition_spec=asked.partition_spec or PartitionSpec(),
            sort_order=asked.write_order or SortOrder(), properties=asked.properties,
        )
        return HTTPStatus.OK, _table(f"{asked.location}/metadata/staged.metadata.json", metadata)

    def _commit(self, name: str, asked: CommitTableRequest) -> tuple[HTTPStatus, object]:
        before = self._tables.get(name)
        base = before[1] if before is not None else None
        try:
            for one in asked.requirements:
                one.validate(base)
        except CommitFailedException as error:
            return _error(HTTPStatus.CONFLICT, "CommitFailedException", str(error))
        if base is None:
            base = _empty()
        after = update_table_metadata(base, asked.updates, enforce_validation=before is None,
                                      metadata_location=before[0] if before else None)
        place = f"{after.location}/metadata/{uuid.uuid4()}.metadata.json"
        ToOutputFile.table_metadata(after, self._files.new_output(place))
        self.before_commit()
        with self._changing:
            if self._tables.get(name) is not before:
                return _error(HTTPStatus.CONFLICT, "CommitFailedException", f"{name} has changed")
            self._tables[name] = place, after
        return HTTPStatus.OK, _table(place, after)


def _empty() -> TableMetadata:
    from pyiceberg.catalog import MetastoreCatalog

    return MetastoreCatalog._empty_table_metadata()


def _error(status: HTTPStatus, kind: str, text: str) -> tuple[HTTPStatus, object]:
    return status, {"error": {"message": text, "type": kind, "code": status.value}}


def _table(place: str, metadata: TableMetadata) -> dict[str, object]:
    return {"metadata-location": place, "metadata": json.loads(metadata.model_dump_json()), "config": {}}
