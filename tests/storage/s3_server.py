# -*- test-case-name: tests.storage.test_s3,tests.spark.test_lake -*-
"""
S3, played by moto's server on loopback: C{pip install '.[s3-test]'}. No S3 of Amazon or of another vendor was
tested.

A request can fail, and all that come after it: then the program that sent them has died, as far as the store
can see.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any

from tests.storage.archive_store import AFTER

#: Why tests that need the server are skipped; empty if they are not.
MISSING = ("moto or s3fs is not installed: pip install '.[s3-test]'"
           if find_spec("moto") is None or find_spec("s3fs") is None else "")
BUCKET = "bucket"
_DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>the test says no</Message></Error>"


class S3Server:
    """
    Invariant: each request is counted before it does anything.

    @ivar url: of the server.
    @ivar s3: a client of it.
    @ivar calls: method and path of each request.
    @ivar faults: the number of a request, to what happens to it: see L{tests.storage.archive_store}.
    @ivar kills: whether all requests after a fault fail, too.
    """

    def __init__(self) -> None:
        """Start it, with an empty bucket."""
        import boto3
        from moto.moto_server.werkzeug_app import (
            DomainDispatcherApplication,
            MotoRequestHandler,
            create_backend_app,
        )
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, True, request_handler=MotoRequestHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self.url = "http://{}:{}".format(*self._server.server_address[:2])
        self.s3: Any = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1",
                                    aws_access_key_id="x", aws_secret_access_key="y")
        self.reset()

    def reset(self) -> None:
        """Forget everything; all servers of a process share their objects."""
        from moto.s3.models import s3_backends

        for account in s3_backends.values():
            for backend in account.values():
                backend.reset()
        self.calls: list[str] = []
        self.faults: dict[int, str] = {}
        self.kills = self._is_dead = False
        self.s3.create_bucket(Bucket=BUCKET)
        self.calls.clear()

    def revive(self) -> None:
        """Requests work again."""
        self.faults, self.kills, self._is_dead = {}, False, False

    @property
    def options(self) -> dict[str, object]:
        """Of fsspec's file system."""
        return {"endpoint_url": self.url, "key": "x", "secret": "y", "client_kwargs":
                {"region_name": "us-east-1"}}

    def keys(self, prefix: str = "") -> list[str]:
        """Of all objects."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def read(self, key: str) -> bytes:
        """An object."""
        found: bytes = self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return found

    def stop(self) -> None:
        """End it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            fault = self.faults.get(len(self.calls))
            self.calls.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}")
            if self._is_dead:
                return self._denied(environ, start)
            self._is_dead = self.kills and fault is not None
        if fault is None:
            return self._app(environ, start)
        if fault == AFTER:
            b"".join(self._app(environ, lambda *_words, **_more: None))
        return self._denied(environ, start)

    def _denied(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(_DENIED)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [_DENIED]
