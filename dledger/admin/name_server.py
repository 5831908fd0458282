# -*- test-case-name: tests.admin.test_name_server -*-
"""
The administration of a name server over HTTP::

    GET /          the dashboard for a browser, else the list of pages
    GET /live      the dashboard
    GET /status    the numbers of this name server
    GET /brokers   the brokers that live
    GET /healthz   200 when it serves, 503 with the reason when it does not
    GET /readyz    the same: a name server is ready as soon as it serves
    GET /config    the options in force, and where each was given
    GET /openapi.json    these pages, as OpenAPI 3.1
    GET /metrics   metrics for Prometheus

All pages except C{/live} and C{/metrics} are JSON. No page changes anything. The limits are those of
L{AdminSite <dledger.admin.sites.site.AdminSite>}.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Protocol

import attrs
from klein import Klein
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from twisted.application.internet import StreamServerEndpointService
from twisted.internet.interfaces import IReactorTime
from twisted.web.iweb import IRequest

from dledger.admin.dashboard.frame import send_html, wants_html
from dledger.admin.dashboard.name_server_page import BROKERS_SHOWN, name_server_page
from dledger.admin.metrics import histogram_family
from dledger.admin.openapi import (
    json_schema,
    listed_schema,
    object_schema,
    service_document,
    status_schema,
)
from dledger.admin.sites.pages import (
    METRICS_TYPE,
    PagesAccess,
    SharedPage,
    answer_errors,
    config_json,
    encoded,
    health_page,
    json_page,
    readiness_page,
    send_page,
)
from dledger.base.histogram import Histogram
from dledger.base.reactor import Reactor
from dledger.rocketmq.namesrv.status import LiveBrokerStatus, NameServerStatus
from dledger.values.option_values import Setting
from protocols.wire.fastjson import JsonObject

_PREFIX = "dledger_namesrv_"

#: Seconds for which a page with many numbers is sent again, and brokers in one piece of their list.
KEPT_S = 1.0
BROKERS = 50
_PAGES = {
    "/live": "the dashboard, for browsers",
    "/status": "the numbers of this name server",
    "/brokers": "the brokers that live",
    "/healthz": "200 when this name server serves, else 503 and the reason",
    "/readyz": "200 when this name server is ready to serve, else 503 and the reasons",
    "/config": "the options in force, and where each was given",
    "/openapi.json": "these pages, as OpenAPI 3.1",
    "/metrics": "metrics for Prometheus",
}

#: Name and help of the numbers that rise and fall, and of those that only rise.
NAME_SERVER_GAUGES: tuple[tuple[str, str], ...] = (
    ("connections", "Open connections."),
    ("brokers", "Addresses that live."),
    ("broker_names", "Names of brokers."),
    ("clusters", "Clusters."),
    ("topics", "Topics."),
    ("routes", "Pairs of a topic and a broker name."),
    ("topic_bytes", "Bytes of the names of topics."),
    ("kv_entries", "Namespaces and keys of the KV configuration."),
    ("kv_bytes", "Bytes of its texts."),
    ("answers_held_bytes", "Bytes of answers that are not read yet."),
    ("unfinished_frame_bytes", "Bytes of unfinished frames."),
)
NAME_SERVER_COUNTERS: tuple[tuple[str, str], ...] = (
    ("requests", "Requests received."),
    ("registrations", "Registrations taken."),
    ("brokers_expired", "Brokers forgotten as they did not register in time."),
    ("brokers_lost", "Brokers forgotten as their connection ended."),
    ("overtaken", "Registrations in the place of another broker that is connected."),
    ("overtaking_refused", "Those in the place of a broker of another host that were refused."),
    ("unknown_requests", "Requests with an unknown code."),
    ("failed_requests", "Requests at which this server failed."),
    ("wire_errors", "Connections ended because of malformed bytes."),
    ("connections_refused", "Connections refused."),
    ("connections_replaced", "Connections ended for newer ones."),
)


class NameServerSource(Protocol):
    """The part of a name server that this module needs."""

    def status(self) -> NameServerStatus:
        """The present state."""

    def brokers(self) -> Iterator[LiveBrokerStatus]:
        """The brokers that live."""

    def requests(self) -> Mapping[int, int]:
        """The number of requests with each code that it answers."""

    def request_times(self) -> Histogram:
        """Seconds from the handling of each of them to its answer."""


class NameServerCollector(Collector):
    """Makes the metrics of one name server from one status."""

    def __init__(self, server: NameServerSource) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Every metric family."""
        status = self._server.status()
        for name, text in NAME_SERVER_GAUGES:
            yield GaugeMetricFamily(_PREFIX + name, text, value=float(getattr(status, name)))
        yield GaugeMetricFamily(_PREFIX + "is_healthy", "1 while it serves.", value=float(not status.problem))
        yield GaugeMetricFamily(
            _PREFIX + "tls_certificate_end_seconds",
            "End of its TLS certificate, seconds since 1970; -1 without TLS.", value=status.tls_expires_s,
        )
        yield GaugeMetricFamily(_PREFIX + "uptime_seconds", "Seconds since its start.", value=status.uptime_s)
        for name, text in NAME_SERVER_COUNTERS:
            yield CounterMetricFamily(f"{_PREFIX}{name}_total", text, value=float(getattr(status, name)))
        refusals = CounterMetricFamily(
            _PREFIX + "refusals_total", "Requests refused, by request code and code of the answer.",
            labels=("request", "code"),
        )
        for pair, number in status.refusals.items():
            refusals.add_metric(pair.split(":"), float(number))
        yield refusals
        requests = CounterMetricFamily(
            _PREFIX + "requests_by_code_total", "Requests with each code that it knows.", labels=("request",)
        )
        for code, number in self._server.requests().items():
            requests.add_metric((str(code),), float(number))
        yield requests
        yield histogram_family(
            _PREFIX + "request_seconds", "From the handling of a request to its answer.", (), (),
            self._server.request_times(),
        )


@functools.cache
def _openapi_page() -> bytes:
    status = status_schema(NameServerStatus, {"is_healthy": bool})
    brokers = object_schema({"brokers": listed_schema(json_schema(LiveBrokerStatus))})
    pages: Mapping[str, Mapping[int, JsonObject]] = {"/brokers": {200: brokers}, "/live": {200: {}}}
    return encoded(service_document("name server", status, pages, _PAGES))


class NameServerPages:
    """The pages. C{registry}: their metrics."""

    app = Klein()

    def __init__(
        self, server: NameServerSource, clock: IReactorTime, settings: Iterable[Setting] = (), *,
        wall_s: Callable[[], float] = time.time, is_public: bool = True,
    ) -> None:
        """
        @param clock: the reactor.
        @param settings: the options of the name server.
        @param wall_s: seconds since 1970.
        @param is_public: whether C{/} may show numbers: reading needs no token.
        """
        self._server = server
        self._wall_s = wall_s
        self._is_public = is_public
        self._live = SharedPage(clock, self._make_live, kept_s=KEPT_S)
        self._brokers = SharedPage(clock, self._make_brokers, kept_s=KEPT_S)
        self._metrics = SharedPage(clock, self._make_metrics, kept_s=KEPT_S)
        self._settings = settings
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(NameServerCollector(server))
        ProcessCollector(registry=self.registry)

    @app.route("/", methods=["GET"])
    async def index(self, request: IRequest) -> bytes:
        """The dashboard, or the list of pages."""
        if not wants_html(request):
            return json_page(request, 200, {"service": "dledger-namesrv", "pages": _PAGES})
        return send_html(request, await self._live.get() if self._is_public else name_server_page(None))

    @app.route("/live", methods=["GET"])
    async def live(self, request: IRequest) -> bytes:
        """The dashboard with its numbers."""
        return send_html(request, await self._live.get())

    def _make_live(self) -> Generator[None, None, bytes]:
        yield from ()
        brokers = tuple(islice(self._server.brokers(), BROKERS_SHOWN))
        return name_server_page(self._server.status(), brokers, at_s=self._wall_s())

    @app.route("/status", methods=["GET"])
    def status(self, request: IRequest) -> bytes:
        """The numbers."""
        status = self._server.status()
        return json_page(request, 200, {**attrs.asdict(status), "is_healthy": not status.problem})

    @app.route("/brokers", methods=["GET"])
    async def brokers(self, request: IRequest) -> bytes:
        """The brokers that live."""
        return send_page(request, 200, await self._brokers.get())

    def _make_brokers(self) -> Generator[None, None, bytes]:
        parts = []
        for number, one in enumerate(self._server.brokers(), 1):
            parts.append(encoded(attrs.asdict(one)).rstrip())
            if not number % BROKERS:
                yield
        return b'{"brokers": [%s]}\n' % b",\n".join(parts)

    @app.route("/healthz", methods=["GET"])
    def healthz(self, request: IRequest) -> bytes:
        """Whether it serves."""
        return health_page(request, self._server.status().problem)

    @app.route("/readyz", methods=["GET"])
    def readyz(self, request: IRequest) -> bytes:
        """Whether it is ready to serve."""
        return readiness_page(request, [self._server.status().problem])

    @app.route("/config", methods=["GET"])
    def config(self, request: IRequest) -> bytes:
        """The options in force."""
        return json_page(request, 200, config_json(self._settings))

    @app.route("/openapi.json", methods=["GET"])
    def openapi(self, request: IRequest) -> bytes:
        """The pages, for programs."""
        return send_page(request, 200, _openapi_page())

    @app.route("/metrics", methods=["GET"])
    async def metrics(self, request: IRequest) -> bytes:
        """Metrics for Prometheus."""
        content = await self._metrics.get()
        request.setHeader(b"content-type", METRICS_TYPE.encode("ascii"))
        return content

    def _make_metrics(self) -> Generator[None, None, bytes]:
        yield from ()
        return generate_latest(self.registry)

    answer_errors(app, _PAGES)


def make_name_server_pages(
    server: NameServerSource, endpoint: str, reactor: Reactor, *,
    access: PagesAccess | None = None, settings: Iterable[Setting] = (),
) -> StreamServerEndpointService:
    """
    The service that serves the pages.

    @param endpoint: endpoint string such as C{tcp:8080}; on the loopback interface unless it names one.
    @param settings: the options of the name server.
    @raise ValueError: the file of tokens is missing, or not sound.
    """
    access = access or PagesAccess()
    pages = NameServerPages(server, reactor, settings, is_public=not access.reads_need_token)
    return access.service(pages.app.resource(), endpoint, reactor)
