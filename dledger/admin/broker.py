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
    GET /actions   for browsers: the forms of what can be done
    GET /effects?do=flush    what an action would do now; needs a token, and does nothing
    POST /flush    put the commit log on stable storage
    POST /resolve?how=try-again    decide how a slave goes on whose replication has stopped
    POST /transfer?to=n1    with a raft log: let another broker become the master

Only the pages of POST change anything; they need a token, see
L{AdminGuard <dledger.admin.sites.guard.AdminGuard>}. The limits are those of
L{AdminSite <dledger.admin.sites.site.AdminSite>}.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Protocol

import attrs
from klein import Klein
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from twisted.application.internet import StreamServerEndpointService
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest

import dledger
from dledger.admin.actions.action_page import action_page
from dledger.admin.actions.broker_effects import BrokerActs, log_effects_of
from dledger.admin.actions.effects import Effects, effects_of
from dledger.admin.actions.table import (
    FLUSH,
    LOG_ACTIONS,
    RAFT_ACTIONS,
    RESOLVE,
    TRANSFER,
    asked,
    asked_effects,
)
from dledger.admin.broker_metrics import BrokerCollector
from dledger.admin.browsing.message_page import message_page, topics_page
from dledger.admin.browsing.messages import (
    NAMES,
    TOPIC_NAMES,
    MessageQueries,
    MessageSource,
    ReportedMessages,
    ReportedQueues,
    reported_messages,
)
from dledger.admin.browsing.query import Query, QueryProblem, problem_page, query_of
from dledger.admin.dashboard.broker_page import broker_page
from dledger.admin.dashboard.frame import send_html, wants_html
from dledger.admin.dashboard.overview import not_leader
from dledger.admin.metrics import MemberStatusSource, NodeCollector
from dledger.admin.openapi import searched_pages, service_document, status_schema
from dledger.admin.sites.member_source import TransferAnswer
from dledger.admin.sites.pages import (
    METRICS_TYPE,
    PagesAccess,
    answer_errors,
    config_json,
    encoded,
    health_page,
    json_page,
    readiness_page,
    send_page,
)
from dledger.base.reactor import Reactor
from dledger.rocketmq.broker.options.operators import NotDone
from dledger.rocketmq.broker.showing.status import BrokerMeasures, BrokerStatus
from dledger.values.option_values import Setting
from protocols.wire.codes import ResponseCode
from protocols.wire.fastjson import JsonObject

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
    "/actions": "the forms of what can be done here, for browsers",
    "/effects": "what an action would do now, with a token: ?do=flush, ?do=resolve&how=, or ?do=transfer&to=",
    "/flush": "POST with a token: put the commit log on stable storage",
    "/resolve": "POST with a token: decide how a slave goes on whose replication has stopped",
    "/transfer": "POST with a token: with a raft log, let the broker with the member ?to= become the master",
}
#: Seconds for which a page is sent again.
KEPT_S = 1.0

class BrokerSource(Protocol):
    """The part of a broker that this module needs."""

    def status(self) -> BrokerStatus:
        """The present state."""

    def measures(self) -> BrokerMeasures | None:
        """Its further figures; None while its store is not open."""

    @property
    def browser(self) -> MessageSource | None:
        """Reads its messages; None before its store is open, and after it was closed."""

    @property
    def acts(self) -> BrokerActs | None:
        """What can be done with its commit log; None likewise, and with a raft log."""


class BrokerPages:
    """
    The pages. Rule: each is made at most once in L{KEPT_S}.

    @ivar registry: the metrics.
    """

    app = Klein()

    def __init__(
        self, broker: BrokerSource, seconds: Callable[[], float], settings: Iterable[Setting] = (), *,
        wall_s: Callable[[], float], is_public: bool = True, member: MemberStatusSource | None = None,
        transfer: Callable[[str], Deferred[TransferAnswer]] | None = None,
    ) -> None:
        """
        @param seconds: a monotonic clock.
        @param settings: the options of the broker.
        @param wall_s: seconds since 1970.
        @param is_public: whether C{/} may show numbers: reading needs no token.
        @param member: the status of the member that keeps its log; None: it has none.
        @param transfer: lets another member of its group lead.
        """
        self._broker = broker
        self._seconds = seconds
        self._settings = settings
        self._wall_s = wall_s
        self._is_public = is_public
        self._kept: dict[str, tuple[float, bytes]] = {}
        self._looked: tuple[float, BrokerStatus] | None = None
        self._queries = MessageQueries()
        self._member = member
        self._transfer = transfer
        self._actions = LOG_ACTIONS if member is None else RAFT_ACTIONS
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(BrokerCollector(self._status, broker.measures))
        ProcessCollector(registry=self.registry)
        if member is not None:
            self.registry.register(NodeCollector(member))

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
        return health_page(request, self._status().problem)

    @app.route("/readyz", methods=["GET"])
    def readyz(self, request: IRequest) -> bytes:
        """Whether it is ready to serve."""
        status = self._status()
        return readiness_page(request, (status.problem, status.replication_problem))

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
        return json_page(request, 200, attrs.asdict(ReportedQueues(queues=queues, is_whole=is_whole)))

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
        return json_page(request, 200, attrs.asdict(reported_messages(shown, query.style())))

    def _action_page(self, effects: Effects | None, problem: str = "") -> bytes:
        name = self._status().name
        return action_page(name, f"broker {name}", self._actions.values(), effects, problem)

    @app.route("/actions", methods=["GET"])
    def actions(self, request: IRequest) -> bytes:
        """The forms."""
        return send_html(request, self._action_page(None))

    @app.route("/effects", methods=["GET"])
    async def effects(self, request: IRequest) -> bytes:
        """What an action would do."""
        try:
            action, query = asked_effects(request, self._actions)
            if self._member is not None:
                found = effects_of(self._member(), action, query)
            else:
                found = await log_effects_of(self._broker.status(), self._acts(), action, query)
        except QueryProblem as problem:
            return problem_page(request, problem, lambda why: self._action_page(None, why))
        if wants_html(request):
            return send_html(request, self._action_page(found))
        return json_page(request, 200, attrs.asdict(found))

    def _acts(self) -> BrokerActs:
        if self._member is not None:
            raise QueryProblem(409, "the log of this broker is a raft group's: its member decides")
        acts = self._broker.acts
        if acts is None:
            raise QueryProblem(503, "the store is not open")
        return acts

    @app.route("/flush", methods=["POST"])
    async def flush(self, request: IRequest) -> bytes:
        """Put the commit log on stable storage."""
        asked(request, FLUSH)
        return json_page(request, 200, {"flushed_offset": await self._acts().flush()})

    @app.route("/resolve", methods=["POST"])
    async def resolve(self, request: IRequest) -> bytes:
        """Let a slave go on."""
        query = asked(request, RESOLVE)
        done = await self._acts().resolve(
            query.text("how"), common_end=query.number("common_end", -1), our_end=query.number("our_end", -1)
        )
        return json_page(request, 200, {"directory": done.get("directory", "")})

    @app.route("/transfer", methods=["POST"])
    async def transfer(self, request: IRequest) -> bytes:
        """Let another broker of the group become the master."""
        to = asked(request, TRANSFER).text("to")
        if self._member is None or self._transfer is None:
            raise QueryProblem(409, "this broker has a commit log: its master is what the options say")
        status = self._member()
        if to not in status.peers.addresses:
            members = ", ".join(sorted(status.peers.addresses))
            raise QueryProblem(400, f"write {TRANSFER.usage}: the members are {members}")
        problem = not_leader(status)
        if problem:
            raise QueryProblem(409, problem)
        answer = await self._transfer(to)
        if answer.code is not ResponseCode.SUCCESS:
            raise QueryProblem(409, f"leadership was not handed over: {ResponseCode(answer.code).name}")
        return json_page(request, 200, {"leader_id": to, "term": answer.term})

    @app.handle_errors(QueryProblem, NotDone)
    def not_done(self, request: IRequest, failure: Failure) -> bytes:
        """An action is refused, or has failed."""
        error = failure.value
        status = error.status if isinstance(error, QueryProblem) else 409
        return json_page(request, status, {"error": str(error)})

    @app.route("/config", methods=["GET"])
    def config(self, request: IRequest) -> bytes:
        """The options in force."""
        return json_page(request, 200, config_json(self._settings))

    @app.route("/openapi.json", methods=["GET"])
    def openapi(self, request: IRequest) -> bytes:
        """The pages, for programs."""
        return send_page(request, 200, _openapi_page())

    @app.route("/metrics", methods=["GET"])
    def metrics(self, request: IRequest) -> bytes:
        """Metrics for Prometheus."""
        request.setHeader(b"content-type", METRICS_TYPE.encode("ascii"))
        return self._page("metrics", lambda: generate_latest(self.registry))

    answer_errors(app, _PAGES)


@functools.cache
def _openapi_page() -> bytes:
    status = status_schema(BrokerStatus, {"is_healthy": bool, "version": str})
    return encoded(service_document("broker", status, {
        "/live": {200: {}}, "/browse": {200: {}},
        "/topics": searched_pages(ReportedQueues, finds_all=True),
        "/messages": searched_pages(ReportedMessages),
        "/actions": {200: {}}, "/effects": searched_pages(Effects, finds_all=True),
    }, _PAGES, {**LOG_ACTIONS, **RAFT_ACTIONS}))


def _status_json(status: BrokerStatus) -> JsonObject:
    return {**attrs.asdict(status), "is_healthy": not status.problem, "version": dledger.__version__}


def make_broker_pages(
    broker: BrokerSource, endpoint: str, reactor: Reactor, *, wall_s: Callable[[], float],
    access: PagesAccess | None = None, settings: Iterable[Setting] = (),
    member: MemberStatusSource | None = None,
    transfer: Callable[[str], Deferred[TransferAnswer]] | None = None,
) -> StreamServerEndpointService:
    """
    The service that serves the pages.

    @param endpoint: endpoint string such as C{tcp:8080}; on the loopback interface unless it names one.
    @param wall_s: seconds since 1970.
    @param settings: the options of the broker.
    @param member, transfer: see L{BrokerPages}.
    @raise ValueError: the file of tokens is missing, or not sound.
    """
    access = access or PagesAccess()
    pages = BrokerPages(
        broker, reactor.seconds, settings, wall_s=wall_s, is_public=not access.reads_need_token,
        member=member, transfer=transfer,
    )
    return access.service(pages.app.resource(), endpoint, reactor)
