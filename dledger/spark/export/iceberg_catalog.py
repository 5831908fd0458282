# -*- test-case-name: tests.spark.test_lake -*-
"""
The catalog of an Iceberg table: SQLite in the directory of the table, or one that others use, too::

    sqlite:////data/catalog.db, postgresql+psycopg2://host/lake    a data base that SQLAlchemy knows
    http://host:8181, https://host/api/catalog                     a REST catalog
    NAME                                                           one of PyIceberg's configuration

Properties come from the command line and, for secrets, from PyIceberg's configuration: the file
C{.pyiceberg.yaml}, and variables such as C{PYICEBERG_CATALOG__DLEDGER__CREDENTIAL}.

Rule: a catalog is of a kind that replaces the pointer to the newest metadata only if nobody else has; of two
exports one wins.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from urllib.parse import urlsplit

import fsspec
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.utils.config import Config
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

from dledger.spark.export.files import ExportError
from dledger.values.addresses import is_url

#: Name of a catalog that has only a URI.
CATALOG = "dledger"
#: Seconds in which a REST catalog has to answer.
ANSWER_S = 60.0
#: The property with the options of the store.
_STORE_OPTIONS = "dledger.store-options"
_ALLOWED = ("allowed are the URI of a data base (sqlite:///..., postgresql+psycopg2://...), of a REST "
            "catalog (http://..., https://...), and the name of a catalog of type sql or rest in PyIceberg's "
            "configuration")


#: Packages of fsspec's stores, and the errors that come through as they are, as without credentials.
_DRIVER_ERRORS = (
    ("botocore.exceptions", "BotoCoreError"), ("botocore.exceptions", "ClientError"),
    ("aiohttp", "ClientError"), ("google.auth.exceptions", "GoogleAuthError"),
    ("azure.core.exceptions", "AzureError"),
)


def driver_errors() -> tuple[type[Exception], ...]:
    """Of the stores that this process uses."""
    return tuple(getattr(sys.modules[module], name) for module, name in _DRIVER_ERRORS
                 if module in sys.modules)


class _Deadline(HTTPAdapter):
    def send(
        self, request: PreparedRequest, stream: bool = False,
        timeout: float | tuple[float | None, float | None] | None = None, verify: bool | str = True,
        cert: str | tuple[str, str] | None = None, proxies: dict[str, str] | None = None,
    ) -> Response:
        return super().send(request, stream=stream, timeout=timeout or ANSWER_S, verify=verify, cert=cert,
                            proxies=proxies)


class DeadlineRestCatalog(RestCatalog):  # type: ignore[misc]
    """A REST catalog that answers within L{ANSWER_S}, or has failed."""

    def _config_headers(self, session: Session) -> None:
        super()._config_headers(session)
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Deadline())


class StoreFileIO(FsspecFileIO):  # type: ignore[misc]
    """
    The files of a table in a store, by fsspec: with our options, or without any with those that the catalog
    has for this table, or those of PyIceberg's configuration.
    """

    def _get_fs(self, scheme: str, hostname: str | None = None) -> fsspec.AbstractFileSystem:
        options = json.loads(self.properties.get(_STORE_OPTIONS, "{}"))
        return fsspec.filesystem(scheme, **options) if options else super()._get_fs(scheme, hostname)


def open_catalog(
    catalog: str, options: Mapping[str, str], store_options: Mapping[str, object], file_io: str
) -> SqlCatalog | DeadlineRestCatalog:
    """
    @param catalog: see the module.
    @param options: properties of PyIceberg.
    @param store_options: of L{StoreFileIO}.
    @param file_io: name of the class for the files of tables.
    @raise ExportError: there is no such catalog.
    @raise Exception: it fails, in one of many ways.
    """
    name = CATALOG if is_url(catalog) else catalog
    properties = {**(Config().get_catalog_config(name) or {}), **options, "py-io-impl": file_io}
    if is_url(catalog):
        properties["uri"] = catalog
    if store_options:
        properties[_STORE_OPTIONS] = json.dumps(store_options)
    uri = str(properties.get("uri", ""))
    kind = properties.get("type") or ("rest" if urlsplit(uri).scheme in ("http", "https") else "sql")
    if not uri or kind not in ("sql", "rest"):
        what = f"is of type {kind}" if uri else "has no uri"
        raise ExportError(f"--catalog: {name} {what}; {_ALLOWED}")
    try:
        return (DeadlineRestCatalog if kind == "rest" else SqlCatalog)(name, **properties)
    except ImportError as error:
        raise ExportError(f"--catalog: {error}: install the driver of this data base") from None
