# -*- test-case-name: tests.admin.test_resource,tests.admin.test_name_server -*-
"""Shared by all administrations: answers in JSON, errors, access, and the service that listens."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import cast

import attrs
from klein import Klein
from twisted.application.internet import StreamServerEndpointService
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort, IProtocolFactory, IReactorTime, IStreamServerEndpoint
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from zope.interface import implementer

from dledger.admin.sites.guard import AdminGuard
from dledger.admin.sites.site import AdminSite
from dledger.base.log_lines import LogLevels
from dledger.base.reactor import Reactor
from dledger.base.serving.admin_ports import loopback_unless_reported
from dledger.base.tls.securing import Securing
from dledger.values.option_values import Setting
from protocols.wire.fastjson import JsonObject

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_log = Logger()


def json_page(request: IRequest, status: int, document: Mapping[str, object]) -> bytes:
    """Answer with an object in JSON."""
    return send_page(request, status, encoded(document))


def encoded(document: Mapping[str, object]) -> bytes:
    """An object in JSON, for people, too."""
    return json.dumps(document, indent=1, default=str).encode("utf-8") + b"\n"


def config_json(settings: Iterable[Setting]) -> JsonObject:
    """The page of the options in force."""
    return {"options": {one.name: {"value": one.value, "origin": one.origin} for one in settings}}


def health_page(request: IRequest, problem: str, **facts: object) -> bytes:
    """C{/healthz}. @param problem: why the server does not serve; empty: it serves."""
    if problem:
        return json_page(request, 503, {"status": "unavailable", "reason": problem, **facts})
    return json_page(request, 200, {"status": "ok", **facts})


def readiness_page(request: IRequest, reasons: Iterable[str], **facts: object) -> bytes:
    """C{/readyz}. @param reasons: why the server is not ready; none: it is."""
    found = list(filter(None, reasons))
    status = (503, "not ready") if found else (200, "ready")
    return json_page(request, status[0], {"status": status[1], "reasons": found, **facts})


def answer_errors(app: Klein, pages: Iterable[str]) -> None:
    """
    Register the last error handler of an application: no such page, a method that a page does not take, or an
    error of ours, which is logged, and of which the client gets no details.

    @param pages: those that there are.
    """
    def failed(self: object, request: IRequest, failure: Failure) -> bytes:
        error = failure.value
        if failure.check(CancelledError):
            return b""  # the browser has left
        if isinstance(error, MethodNotAllowed):
            allowed = sorted(error.valid_methods or ["GET"])
            request.setHeader(b"allow", ", ".join(allowed).encode("ascii"))
            return json_page(request, 405, {"error": "method not allowed", "allowed": allowed})
        if isinstance(error, HTTPException):
            return json_page(request, error.code or 500, {"error": error.name.lower(), "pages": list(pages)})
        _log.failure("a page of the administration failed", failure)
        return json_page(request, 500, {"error": "internal error"})

    app.handle_errors(Exception)(failed)


def send_page(request: IRequest, status: int, content: bytes) -> bytes:
    """Answer with JSON that was made before."""
    request.setResponseCode(status)
    request.setHeader(b"content-type", b"application/json; charset=utf-8")
    request.setHeader(b"cache-control", b"no-store")
    return content


class SharedPage:
    """
    A page that is made in pieces, one a reactor turn: once for all that ask meanwhile, and some time after.

    Invariant: while requests wait, C{_pieces} makes the page.
    """

    def __init__(
        self, clock: IReactorTime, make: Callable[[], Generator[None, None, bytes]], *, kept_s: float
    ) -> None:
        """@param make: makes it; it yields after a millisecond or so."""
        self._clock = clock
        self._make = make
        self._kept_s = kept_s
        self._kept: tuple[float, bytes] | None = None
        self._pieces: Generator[None, None, bytes] | None = None
        self._waiting: list[Deferred[bytes]] = []

    def get(self) -> Deferred[bytes]:
        """@return: fires with the page. Cancelling forgets the request."""
        if self._kept is not None and self._clock.seconds() - self._kept[0] < self._kept_s:
            return succeed(self._kept[1])
        waiter: Deferred[bytes] = Deferred(lambda one: self._waiting.remove(one))
        self._waiting.append(waiter)
        if self._pieces is None:
            self._pieces = self._make()
            self._go_on()
        return waiter

    def _go_on(self) -> None:
        assert self._pieces is not None
        content: bytes | Failure
        try:
            next(self._pieces)
            self._clock.callLater(0, self._go_on)
            return
        except StopIteration as ended:
            content = ended.value
            self._kept = self._clock.seconds(), ended.value
        except Exception:
            content = Failure()
        self._pieces = None
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.callback(content)


@attrs.frozen(kw_only=True)
class PagesAccess:
    """
    Who may ask for the pages, and how.

    @ivar hosts: see L{AdminSite}.
    @ivar keys: the pages are by TLS, with these; None: plain. Browsers show no certificate.
    @ivar levels: of the log, which a member's page changes; None: the log is written by somebody else.
    @ivar token_file, reads_need_token, contents_need_token: see L{AdminGuard}.
    """

    hosts: tuple[str, ...] = ()
    keys: Securing | None = None
    token_file: str = ""
    reads_need_token: bool = False
    contents_need_token: bool = False
    levels: LogLevels | None = None

    def site(self, resource: IResource, reactor: Reactor) -> ServerFactory:
        """
        What listens.

        @raise ValueError: the file of tokens is missing, or not sound.
        """
        guard = AdminGuard(
            reactor.seconds, token_file=self.token_file, reads_need_token=self.reads_need_token,
            contents_need_token=self.contents_need_token,
        )
        site = AdminSite(resource, reactor, hosts=self.hosts, guard=guard)
        if self.keys is None:
            return cast("ServerFactory", site)
        return self.keys.listen(site, plain_hosts=(), clock=reactor, demands_certificate=False)

    def service(self, resource: IResource, endpoint: str, reactor: Reactor) -> StreamServerEndpointService:
        """
        The service that serves pages.

        @param endpoint: endpoint string such as C{tcp:8080}; on the loopback interface unless it names one.
        @raise ValueError: the file of tokens is missing, or not sound.
        """
        return StreamServerEndpointService(optional_endpoint(endpoint, reactor), self.site(resource, reactor))


def optional_endpoint(endpoint: str, reactor: Reactor) -> OptionalEndpoint:
    """@param endpoint: as of L{PagesAccess.service}."""
    return OptionalEndpoint(serverFromString(reactor, loopback_unless_reported(endpoint)))


@implementer(IStreamServerEndpoint)
class OptionalEndpoint:
    """An endpoint whose failure is one line in the log: the server goes on without its pages."""

    log = Logger()

    def __init__(self, endpoint: IStreamServerEndpoint) -> None:
        self._endpoint = endpoint

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """See L{IStreamServerEndpoint.listen}. @return: is cancelled if the port cannot be had."""
        return self._endpoint.listen(protocolFactory).addErrback(self._failed)

    def _failed(self, failure: Failure) -> Failure:
        if not failure.check(CannotListenError):
            return failure
        self.log.error(
            "the administration cannot listen: {reason}; the server goes on without its pages: stop the "
            "other program or give --admin another port, and start again", reason=failure.getErrorMessage(),
        )
        return Failure(CancelledError())
