# -*- test-case-name: tests.admin.test_resource,tests.admin.test_name_server -*-
"""Shared by the pages of members and of name servers: answers in JSON, and the endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IStreamServerEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from zope.interface import implementer

from dledger.base.option_values import Setting
from protocols.wire.fastjson import JsonObject

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def json_page(request: IRequest, status: int, document: Mapping[str, object]) -> bytes:
    """Answer with an object in JSON."""
    return send_page(request, status, encoded(document))


def encoded(document: Mapping[str, object]) -> bytes:
    """An object in JSON, for people, too."""
    return json.dumps(document, indent=1, default=str).encode("utf-8") + b"\n"


def config_json(settings: Iterable[Setting]) -> JsonObject:
    """The page of the options in force."""
    return {"options": {one.name: {"value": one.value, "origin": one.origin} for one in settings}}


def send_page(request: IRequest, status: int, content: bytes) -> bytes:
    """Answer with JSON that was made before."""
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json; charset=utf-8")
    request.setHeader(b"cache-control", b"no-store")
    return content


def loopback_unless_told(endpoint: str) -> str:
    """
    An endpoint string, with the loopback interface added if it names none; a bare number is a port.
    """
    if endpoint.isdecimal():
        endpoint = f"tcp:{endpoint}"
    kind = endpoint.partition(":")[0]
    if "interface=" in endpoint:
        return endpoint
    if kind in ("tcp", "ssl"):
        return f"{endpoint}:interface=127.0.0.1"
    if kind == "tcp6":
        return f"{endpoint}:interface=\\:\\:1"
    return endpoint


@implementer(IStreamServerEndpoint)
class OptionalEndpoint:
    """An endpoint whose failure is one line in the log: the server goes on without its pages."""

    log = Logger()

    def __init__(self, endpoint: IStreamServerEndpoint) -> None:
        self._endpoint = endpoint

    def listen(self, factory: Any) -> Deferred[Any]:
        """See L{IStreamServerEndpoint.listen}. @return: is cancelled if the port cannot be had."""
        listening: Deferred[Any] = self._endpoint.listen(factory)
        return listening.addErrback(self._failed)

    def _failed(self, failure: Failure) -> Failure:
        if not failure.check(CannotListenError):
            return failure
        self.log.error(
            "the administration cannot listen: {reason}; the server goes on without its pages: stop the "
            "other program or give --admin another port, and start again", reason=failure.getErrorMessage(),
        )  # fmt: skip
        return Failure(CancelledError())
