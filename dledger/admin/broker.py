# -*- test-case-name: tests.admin.test_broker -*-
"""
The administration of a broker over HTTP::

    GET /          the dashboard for browsers, else the list of pages
    GET /live      the dashboard with its numbers, as its script asks for it
    GET /status    the numbers of this broker, and the lag of its consumer groups
    GET /healthz   200 when it serves, 503 with the reason when it does not
    GET /readyz    200 when it is ready to serve, 503 with the reasons when it is not
    GET /config    the options in force, and where each was given
    GET /openapi.json    these pages, as OpenAPI 3.1
    GET /metrics   metrics for Prometheus

No page changes anything. The limits are those of L{AdminSite <dledger.admin.basics.site.AdminSite>}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import attrs
from klein import Klein
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector
from twisted.application.internet import StreamServerEndpointService
from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest
from werkzeug.exceptions import HTTPException

import dledger
from dledger.admin.basics.pages import (
    METRICS_TYPE,
    OptionalEndpoint,
    PagesAccess,
    config_json,
    encoded,
    http_error_page,
    json_page,
    send_page,
)
from dledger.admin.browsing.message_page import message_page, topics_page
from dledger.admin.browsing.messages import (
    NAMES,
    TOPIC_NAMES,
    MessageQueries,
    MessageSource,
    ToldMessages,
    ToldQueues,
    told_messages,
)
from dledger.admin.browsing.query import Query, QueryProblem, problem_page, query_of
from dledger.admin.dashboard.broker_page import broker_page
from dledger.admin.dashboard.frame import send_html, wants_html
from dledger.admin.openapi import searched_pages, service_document, status_schema
from dledger.base.process.reactor import Reactor
from dledger.base.serving.admin_ports import loopback_unless_told
from dledger.rocketmq.broker.status import BrokerStatus
from dledger.values.option_values import Setting
from protocols.wire.fastjson import JsonObject

_PREFIX = "dledger_broker_"
_PAGES = {
    "/live": "the dashboard, for browsers",
    "/status": "the numbers of this broker, and the lag of its consumer groups",
    "/healthz": "200 when this broker serves, else 503 and the reason",
    "/readyz": "200 when this broker is ready to serve, else 503 and the reasons",
    "/topics": "the queues of all topics, or of ?topic=",
    "/messages": "messages: ?topic= and ?queue=, with ?from= or ?time=; ?topic= and ?key=; or ?position=",
    "/browse": "the form that asks for messages, for browsers",
    "/config": "the options in force, and where each was given",
    "/openapi.json": "these pages, as OpenAPI 3.1",
    "/metrics": "metrics for Prometheus",
}
#: Seconds for which a page is sent again.
KEPT_S = 1.0
#: Consumer groups in topics that have a metric of their own; the largest lags come first.
GROUPS_MEASURED = 500

#: Name and help of the numbers that rise and fall, and of those that only rise.
BROKER_GAUGES: tuple[tuple[str, str], ...] = (
    ("connections", "Open connections of clients."),
    ("begin_offset", "First byte of the log; -1 before the store is open."),
    ("end_offset", "End of the log, bytes; -1 before the store is open."),
    ("flushed_offset", "End of the log on stable storage, bytes."),
    ("undispatched_bytes", "Bytes of messages that are in no consume queue yet."),
    ("topics", "Topics."),
    ("groups", "Subscription groups."),
    ("waiting_puts", "Puts that wait for slaves or for the disk."),
    ("waiting_pulls", "Pulls that wait for messages."),
)
BROKER_COUNTERS: tuple[tuple[str, str], ...] = (
    ("stored", "Messages stored."),
    ("delivered", "Messages given to consumers."),
    ("pulls_empty", "Pulls that found no message."),
    ("bad_records", "Damaged messages seen."),
    ("overtaken", "Times that another broker had the name and id of this one at a name server."),
    ("wire_errors", "Connections ended because of malformed bytes."),
    ("connections_refused", "Connections refused."),
)


class BrokerSource(Protocol):
    """The part of a broker that this module needs."""

    def status(self) -> BrokerStatus:
        """The present state."""

    @property
    def browser(self) -> MessageSource | None:
        """Reads its messages; None before its store is open, and after it was closed."""


class BrokerCollector(Collector):
    """Makes the metrics of one broker from one status."""

    def __init__(self, status: Callable[[], BrokerStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Every metric family."""
        status = self._status()
        for name, text in BROKER_GAUGES:
            yield GaugeMetricFamily(_PREFIX + name, text, value=float(getattr(status, name)))
        yield GaugeMetricFamily(_PREFIX + "is_healthy", "1 while it serves.", value=float(not status.problem))
        yield GaugeMetricFamily(_PREFIX + "is_master", "1 for a master.", value=float(status.role != "SLAVE"))
        yield GaugeMetricFamily(
            _PREFIX + "is_replicating", "0 if a slave is not in order, else 1.",
            value=float(not status.replication_problem),
        )
        yield GaugeMetricFamily(
            _PREFIX + "tls_certificate_end_seconds",
            "End of its TLS certificate, seconds since 1970; -1 without TLS.", value=status.tls_expires_s,
        )
        yield GaugeMetricFamily(_PREFIX + "uptime_seconds", "Seconds since its start.", value=status.uptime_s)
        for name, text in BROKER_COUNTERS:
            yield CounterMetricFamily(f"{_PREFIX}{name}_total", text, value=float(getattr(status, name)))
        yield from _by_others(status)

    def describe(self) -> Iterator[Metric]:
        """Nothing in advance: the broker may not have started."""
        return iter(())


def _by_others(status: BrokerStatus) -> Iterator[Metric]:
    refusals = CounterMetricFamily(
        _PREFIX + "refusals_total", "Requests refused, by request code and code of the answer.",
        labels=("request", "code"),
    )
    for pair, times in status.refusals.items():
        request, _, code = pair.partition(":")
        refusals.add_metric((request, code), float(times))
    yield refusals
    slaves = GaugeMetricFamily(
        _PREFIX + "slave_lag_bytes", "Bytes that a slave has not reported as held.", labels=("slave",)
    )
    for slave in status.slaves:
        slaves.add_metric((slave.address,), float(slave.gap_bytes))
    yield slaves
    lags = GaugeMetricFamily(
        _PREFIX + "consumer_lag_messages", "Messages stored, and not committed as consumed.",
        labels=("group", "topic"),
    )
    for lag in status.lags[:GROUPS_MEASURED]:
        lags.add_metric((lag.group, lag.topic), float(lag.messages))
    yield lags
    info = InfoMetricFamily(_PREFIX + "build", "Version of the software, role and kind of log.")
    info.add_metric((), {"version": dledger.__version__, "role": status.role, "log": status.log})
    yield info


class BrokerPages:
    """The pages. Rule: each is made at most once in L{KEPT_S}."""

    app = Klein()
    log = Logger()

    def __init__(
        self, broker: BrokerSource, seconds: Callable[[], float], settings: Iterable[Setting] = (), *,
        wall_s: Callable[[], float], is_public: bool = True,
    ) -> None:
        """
        @param seconds: a monotonic clock.
        @param settings: the options of the broker.
        @param wall_s: seconds since 1970.
        @param is_public: whether C{/} may show numbers: reading needs no token.
        """
        self._broker = broker
        self._seconds = seconds
        self._settings = settings
        self._wall_s = wall_s
        self._is_public = is_public
        self._kept: dict[str, tuple[float, bytes]] = {}
        self._looked: tuple[float, BrokerStatus] | None = None
        self._queries = MessageQueries()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BrokerCollector(self._status))

    def _status(self) -> BrokerStatus:
        """The state of within L{KEPT_S}: its lags cost a look at each queue."""
        now_s = self._seconds()
        if self._looked is None or now_s - self._looked[0] >= KEPT_S:
            self._looked = (now_s, self._broker.status())
        return self._looked[1]

    def _page(self, name: str, make: Callable[[], bytes]) -> bytes:
        now_s = self._seconds()
        made_s, content = self._kept.get(name, (-KEPT_S, b""))
        if now_s - made_s >= KEPT_S:
            content = make()
            self._kept[name] = (now_s, content)
        return content

    @app.route("/", methods=["GET"])
    def index(self, request: IRequest) -> bytes:
        """The dashboard, or the list of pages."""
        if not wants_html(request):
            return json_page(request, 200, {"service": "dledger-broker", "pages": _PAGES})
        if self._is_public:
            return self.live(request)
        return send_html(request, broker_page(None, at_s=0.0))

    @app.route("/live", methods=["GET"])
    def live(self, request: IRequest) -> bytes:
        """The dashboard with its numbers."""
        return send_html(request, self._page(
            "live", lambda: broker_page(self._status(), at_s=self._wall_s())
        ))

    @app.route("/status", methods=["GET"])
    def status(self, request: IRequest) -> bytes:
        """The numbers."""
        return send_page(request, 200, self._page("status", lambda: encoded(_status_json(self._status()))))

    @app.route("/healthz", methods=["GET"])
    def healthz(self, request: IRequest) -> bytes:
        """Whether it serves."""
        problem = self._status().problem
        if problem:
            return json_page(request, 503, {"status": "unavailable", "reason": problem})
        return json_page(request, 200, {"status": "ok"})

    @app.route("/readyz", methods=["GET"])
    def readyz(self, request: IRequest) -> bytes:
        """Whether it is ready to serve."""
        status = self._status()
        reasons = [one for one in (status.problem, status.replication_problem) if one]
        if reasons:
            return json_page(request, 503, {"status": "not ready", "reasons": reasons})
        return json_page(request, 200, {"status": "ready", "reasons": []})

    @app.route("/browse", methods=["GET"])
    def browse(self, request: IRequest) -> bytes:
        """The form."""
        return send_html(request, message_page(self._status().name, Query({}), None))

    def _source(self) -> MessageSource:
        source = self._broker.browser
        if source is None:
            raise QueryProblem(503, "the store is not open")
        return source

    @app.route("/topics", methods=["GET"])
    def topics(self, request: IRequest) -> bytes:
        """The queues."""
        name = self._status().name
        try:
            topic = query_of(request, TOPIC_NAMES).text("topic")
            queues, is_whole = self._source().queues(topic)
        except QueryProblem as problem:
            return problem_page(request, problem, lambda why: topics_page(name, (), problem=why))
        if wants_html(request):
            return send_html(request, topics_page(name, queues, is_whole=is_whole))
        return json_page(request, 200, attrs.asdict(ToldQueues(queues=queues, is_whole=is_whole)))

    @app.route("/messages", methods=["GET"])
    async def messages(self, request: IRequest) -> bytes:
        """Messages of a queue, or with a key."""
        name = self._status().name
        try:
            query = query_of(request, NAMES)
            shown = await self._queries.find(self._source(), query)
        except QueryProblem as problem:
            return problem_page(request, problem, lambda why: message_page(name, Query({}), None, why))
        if wants_html(request):
            return send_html(request, message_page(name, query, shown))
        return json_page(request, 200, attrs.asdict(told_messages(shown)))

    @app.route("/config", methods=["GET"])
    def config(self, request: IRequest) -> bytes:
        """The options in force."""
        return json_page(request, 200, config_json(self._settings))

    @app.route("/openapi.json", methods=["GET"])
    def openapi(self, request: IRequest) -> bytes:
        """The pages, for programs."""
        status = status_schema(BrokerStatus, {"is_healthy": bool, "version": str})
        return json_page(request, 200, service_document("broker", status, {
            "/live": {200: {}}, "/browse": {200: {}},
            "/topics": searched_pages(ToldQueues, finds_all=True), "/messages": searched_pages(ToldMessages),
        }, _PAGES))

    @app.route("/metrics", methods=["GET"])
    def metrics(self, request: IRequest) -> bytes:
        """Metrics for Prometheus."""
        request.setHeader(b"content-type", METRICS_TYPE.encode("ascii"))
        return self._page("metrics", lambda: generate_latest(self._registry))

    @app.handle_errors(Exception)
    def failed(self, request: IRequest, failure: Failure) -> bytes:
        """No such page, a method other than GET, or an error of ours."""
        error = failure.value
        if isinstance(error, HTTPException):
            return http_error_page(request, error, _PAGES)
        self.log.failure("a page of the administration failed", failure)
        return json_page(request, 500, {"error": "internal error"})


def _status_json(status: BrokerStatus) -> JsonObject:
    return {**attrs.asdict(status), "is_healthy": not status.problem, "version": dledger.__version__}


def make_broker_pages(
    broker: BrokerSource, endpoint: str, reactor: Reactor, *, wall_s: Callable[[], float],
    access: PagesAccess | None = None, settings: Iterable[Setting] = (),
) -> StreamServerEndpointService:
    """
    The service that serves the pages.

    @param endpoint: endpoint string such as C{tcp:8080}; on the loopback interface unless it names one.
    @param wall_s: seconds since 1970.
    @param settings: the options of the broker.
    @raise ValueError: the file of tokens is missing, or not sound.
    """
    access = access or PagesAccess()
    pages = BrokerPages(
        broker, reactor.seconds, settings, wall_s=wall_s, is_public=not access.reads_need_token
    )
    site = access.site(pages.app.resource(), reactor, wall_s=wall_s)
    return StreamServerEndpointService(
        OptionalEndpoint(serverFromString(reactor, loopback_unless_told(endpoint))), site
    )
