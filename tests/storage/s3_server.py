# -*- test-case-name: tests.storage.test_s3,tests.spark.test_lake -*-
"""
S3, played by moto's server on loopback: C{pip install '.[s3-test]'}. No S3 of Amazon or of another vendor was
tested.

A request can fail, and all that come after it: then the program that sent them has died, as far as the store
can see.
"""

from __future__ import annotations

import functools
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, cast
from urllib.request import Request, urlopen

from tests.import_graph import ROOT
from tests.storage.archive_store import AFTER, BEFORE

#: Why tests that need the server are skipped; empty if they are not.
MISSING = ("moto or s3fs is not installed: pip install '.[s3-test]'"
           if find_spec("moto") is None or find_spec("s3fs") is None else "")
BUCKET = "bucket"


class FaultyServer:
    """
    A server of HTTP on loopback, in a thread.

    Invariant: each request is counted before it does anything.

    @ivar url: of the server.
    @ivar calls: method and path of each request.
    @ivar faults: the number of a request, to what happens to it: see L{tests.storage.archive_store}.
    @ivar kills: whether all requests after a fault fail, too.
    """

    denied = b"denied", "text/plain"

    def __init__(self, app: Callable[..., Iterable[bytes]]) -> None:
        """Start it. @param app: of WSGI; it may be called in several threads."""
        from werkzeug.serving import WSGIRequestHandler, make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.calls: list[str] = []
        self.revive()
        self._app = app
        self._lock = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._answer, True, request_handler=WSGIRequestHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.url = "http://{}:{}".format(*self._server.server_address[:2])

    def revive(self) -> None:
        """Requests work again."""
        self.faults: dict[int, str] = {}
        self.kills = self._is_dead = False

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
                fault = BEFORE
            self._is_dead |= self.kills and fault is not None
        if fault is None:
            return self._app(environ, start)
        if fault == AFTER:
            b"".join(self._app(environ, lambda *_words, **_more: None))
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        text, kind = self.denied
        start("403 Forbidden", [("Content-Type", kind), ("Content-Length", str(len(text)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [text]


class _S3(FaultyServer):
    denied = (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>no</Message></Error>",
              "application/xml")


class S3Server:
    """
    A process of its own, as the package for Delta tables keeps this one from answering while it calls.

    @ivar url: of the server whose requests are counted and fail.
    @ivar plain_url: of the same server, for requests that are not.
    @ivar s3: a client of the latter.
    """

    def __init__(self) -> None:
        """Start it, with an empty bucket."""
        import boto3

        self._child = subprocess.Popen([sys.executable, "-m", "tests.storage.s3_server"], cwd=ROOT,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._child.stdout is not None
        self.url, self.plain_url = json.loads(self._child.stdout.readline())
        self.s3: Any = boto3.client("s3", endpoint_url=self.plain_url, region_name="us-east-1",
                                    aws_access_key_id="x", aws_secret_access_key="y")
        self.reset()

    def stop(self) -> None:
        """End it."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(20)
        self._child.stdout.close()

    def _control(self, **order: object) -> Any:
        request = Request(f"{self.plain_url}/_test", method="POST", data=json.dumps(order).encode())
        with urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())

    def reset(self) -> None:
        """Forget all objects, and all that was ordered."""
        self._control(resets=True, faults={}, kills=False)
        self.s3.create_bucket(Bucket=BUCKET)

    def fail(self, faults: dict[int, str], *, kills: bool) -> None:
        """As L{FaultyServer}; requests are counted from now on."""
        self._control(faults=faults, kills=kills)

    def revive(self) -> list[str]:
        """Requests work again. @return: those since L{fail}."""
        calls: list[str] = self._control(faults={}, kills=False)
        return calls

    @property
    def options(self) -> dict[str, object]:
        """Of fsspec's file system."""
        return {"endpoint_url": self.url, "key": "x", "secret": "y",
                "client_kwargs": {"region_name": "us-east-1"}}

    def keys(self, prefix: str = "") -> list[str]:
        """Of all objects."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def read(self, key: str) -> bytes:
        """An object."""
        found: bytes = self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return found


@functools.cache
def shared_server() -> S3Server:
    """Its start takes a second. It ends with this process."""
    return S3Server()


def main() -> None:
    """The process: two servers, until its input ends."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends

    moto = DomainDispatcherApplication(create_backend_app)
    faulty = _S3(moto)

    def control(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/_test":
            return cast("Iterable[bytes]", moto(environ, start))
        order = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        if order.get("resets"):
            for account in s3_backends.values():
                for backend in account.values():
                    backend.reset()
        calls = json.dumps(faulty.calls).encode()
        faulty.revive()
        faulty.calls.clear()
        faulty.faults = {int(number): fault for number, fault in order["faults"].items()}
        faulty.kills = order["kills"]
        start("200 OK", [("Content-Length", str(len(calls)))])
        return [calls]

    plain = FaultyServer(control)
    sys.stdout.write(json.dumps([faulty.url, plain.url]) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
