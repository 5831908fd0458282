# -*- test-case-name: tests.admin.test_exports -*-
"""
The administration of an export that follows a log, over HTTP::

    GET /          the dashboard for browsers, else the list of pages
    GET /live      the dashboard, as its script asks for it
    GET /status    how far the export is
    GET /healthz   200 while it runs, 503 with the reason when it has failed
    GET /readyz    200 when it is in order, 503 with all reasons when it is not
    GET /metrics   metrics for Prometheus

All pages but C{/live} and C{/metrics} are JSON. No page changes anything. The limits are those of
L{AdminSite <dledger.admin.sites.site.AdminSite>}.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import attrs
from klein import Klein
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from twisted.application.internet import StreamServerEndpointService
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.interfaces import IListeningPort, IStreamServerEndpoint
from twisted.web.iweb import IRequest

from dledger.admin.dashboard.export_page import export_page
from dledger.admin.dashboard.frame import send_html, wants_html
from dledger.admin.sites.pages import (
    METRICS_TYPE,
    PagesAccess,
    answer_errors,
    health_page,
    json_page,
    readiness_page,
)
from dledger.base.reactor import Reactor
from dledger.base.reactor_thread import ReactorThread
from dledger.base.serving.admin_ports import loopback_unless_reported
from dledger.values.exports import ExportStatus

_PREFIX = "dledger_export_"
_PAGES = {
    "/live": "the dashboard, for browsers",
    "/status": "how far the export is",
    "/healthz": "200 while this export runs, else 503 and the reason",
    "/readyz": "200 when this export is in order, else 503 and all reasons",
    "/metrics": "metrics for Prometheus",
}
#: Name and help of the numbers that rise and fall, and of those that only rise.
EXPORT_GAUGES: tuple[tuple[str, str], ...] = (
    ("next", "Offset after what is exported."),
    ("end", "Committed end of the log."),
    ("lag_entries", "Committed entries that are not exported; -1: not known."),
    ("lag_bytes", "Their bytes of the log; -1: not known."),
    ("lag_s", "Age of the oldest of them in seconds."),
    ("last_commit_s", "Time of the last commit, seconds since 1970; -1: none in this run."),
    ("last_offset", "Last offset of that commit."),
    ("failing_s", "Seconds for which nothing could be exported."),
    ("silent_s", "Seconds since the export looked at the log; -1: it has not yet."),
)
EXPORT_COUNTERS: tuple[tuple[str, str], ...] = (
    ("commits", "Commits of this run."),
    ("rows", "Rows in them."),
    ("errors", "Errors of this run."),
)


class ExportCollector(Collector):
    """Makes the metrics of one export from one status."""

    def __init__(self, status: Callable[[], ExportStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Every metric family."""
        status = self._status()
        for name, text in EXPORT_GAUGES:
            value = getattr(status, name)
            yield GaugeMetricFamily(_name(name), text, value=-1.0 if value is None else float(value))
        yield GaugeMetricFamily(_PREFIX + "is_ready", "1 while it is in order.",
                                value=float(not status.problems))
        for name, text in EXPORT_COUNTERS:
            yield CounterMetricFamily(f"{_PREFIX}{name}_total", text, value=float(getattr(status, name)))


def _name(field: str) -> str:
    return _PREFIX + (f"{field[:-2]}_seconds" if field.endswith("_s") else field)


class ExportPages:
    """The pages. C{registry}: their metrics."""

    app = Klein()

    def __init__(self, status: Callable[[], ExportStatus], failure: Callable[[], str]) -> None:
        """@param failure: why the export has failed for good; empty: it has not."""
        self._status = status
        self._failure = failure
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(ExportCollector(status))
        ProcessCollector(registry=self.registry)

    @app.route("/", methods=["GET"])
    def index(self, request: IRequest) -> bytes:
        """The dashboard, or the list of pages."""
        if wants_html(request):
            return self.live(request)
        return json_page(request, 200, {"service": "dledger-export", "pages": _PAGES})

    @app.route("/live", methods=["GET"])
    def live(self, request: IRequest) -> bytes:
        """The dashboard."""
        return send_html(request, export_page(self._status(), self._failure(), at_s=time.time()))

    @app.route("/status", methods=["GET"])
    def status(self, request: IRequest) -> bytes:
        """How far it is."""
        return json_page(request, 200, attrs.asdict(self._status()))

    @app.route("/healthz", methods=["GET"])
    def healthz(self, request: IRequest) -> bytes:
        """Whether it runs."""
        return health_page(request, self._failure())

    @app.route("/readyz", methods=["GET"])
    def readyz(self, request: IRequest) -> bytes:
        """Whether it is in order."""
        failure = self._failure()
        return readiness_page(request, [failure] if failure else self._status().problems)

    @app.route("/metrics", methods=["GET"])
    def metrics(self, request: IRequest) -> bytes:
        """Metrics for Prometheus."""
        request.setHeader(b"content-type", METRICS_TYPE.encode("ascii"))
        return generate_latest(self.registry)

    answer_errors(app, _PAGES)


def make_export_pages(
    status: Callable[[], ExportStatus], endpoint: str, reactor: Reactor, *, hosts: tuple[str, ...] = (),
    failure: Callable[[], str] = lambda: "",
) -> StreamServerEndpointService:
    """
    The service that serves the pages.

    @param status, failure: see L{ExportPages}.
    @param endpoint: endpoint string such as C{tcp:8080}; on the loopback interface unless it names one.
    """
    return PagesAccess(hosts=hosts).service(ExportPages(status, failure).app.resource(), endpoint, reactor)


@contextlib.contextmanager
def serving(
    status: Callable[[], ExportStatus], endpoint: str, *, hosts: tuple[str, ...] = (),
    listening: Callable[[IListeningPort], None] = lambda port: None,
) -> Iterator[None]:
    """
    Serve the pages from a thread of their own, for a program without a reactor.

    @param listening: called with the port.
    @raise CannotListenError: the port cannot be had.
    """
    thread = ReactorThread("export pages")
    ports: list[IListeningPort] = []

    def listen() -> Deferred[IListeningPort]:
        site = PagesAccess(hosts=hosts).site(ExportPages(status, lambda: "").app.resource(), thread.reactor)
        listen: IStreamServerEndpoint = serverFromString(thread.reactor, loopback_unless_reported(endpoint))
        return listen.listen(site)

    try:
        ports.append(thread.wait(listen))
        listening(ports[0])
        yield
    finally:
        thread.stop(lambda: [port.stopListening() for port in ports])
