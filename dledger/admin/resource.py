# -*- test-case-name: tests.admin.test_resource -*-
"""
The administration of one member over HTTP: its own status, and that of its group::

    GET /          the dashboard for browsers, else the list of pages
    GET /live      the dashboard with its numbers, as its script asks for it
    GET /status    this member
    GET /cluster   every member, or the reason why it did not answer
    GET /healthz   200 when the member serves, 503 with the reason when it does not
    GET /readyz    200 when it is ready to serve, 503 with all reasons when it is not
    GET /events    the last events: changes of the role, truncations, repairs, refusals
    GET /entries   committed entries, from an index or a time on; for browsers as HTML
    GET /browse    for browsers: the form that asks for entries, and for a token if need be
    GET /config    the options in force, and where each was given
    GET /openapi.json    these pages, as OpenAPI 3.1
    GET /metrics   metrics for Prometheus
    POST /transfer?to=n1    hand leadership over; only the leader can
    POST /flush             put on stable storage what is in the ledger now
    POST /log-level?level=debug&room=dledger.node    write the log from this level on
    GET /actions   for browsers: the forms of what can be done
    GET /effects?do=transfer&to=n1    what an action would do now; needs a token, and does nothing
    POST /skip?index=17     let the state machines pass over an entry
    POST /snapshot          let the state machine of this member take a snapshot

All pages except those for browsers and C{/metrics} are JSON, errors included. Only those of POST change
anything; they need a token, see L{AdminGuard <dledger.admin.sites.guard.AdminGuard>}.

Rule: it listens on the loopback interface unless an interface is named; beyond it only with TLS and a token,
see L{dledger.base.serving.admin_ports}.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping

import attrs
from klein import Klein
from twisted.application.internet import StreamServerEndpointService
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamServerEndpoint
from twisted.internet.protocol import ServerFactory
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.iweb import IRequest

import dledger
from dledger.admin.actions import doing
from dledger.admin.actions.action_page import action_page
from dledger.admin.actions.effects import Effects, effects_of
from dledger.admin.actions.table import (
    FLUSH,
    LOG_LEVEL,
    MEMBER_ACTIONS,
    SKIP,
    SNAPSHOT,
    TRANSFER,
    asked,
    asked_effects,
)
from dledger.admin.browsing.entries import NAMES, EntryBrowser
from dledger.admin.browsing.entry_page import entry_page
from dledger.admin.browsing.query import Query, QueryProblem, problem_page, query_of
from dledger.admin.dashboard.frame import send_html, wants_html
from dledger.admin.dashboard.overview import overview_of
from dledger.admin.dashboard.page import dashboard_page
from dledger.admin.metrics import exposition, make_registry
from dledger.admin.openapi import openapi_document
from dledger.admin.sites.cluster import ClusterSurvey
from dledger.admin.sites.member_source import StatusSource
from dledger.admin.sites.pages import (
    METRICS_TYPE,
    PagesAccess,
    answer_errors,
    config_json,
    encoded,
    health_page,
    json_page,
    optional_endpoint,
    readiness_page,
    send_page,
)
from dledger.admin.sites.reports import MemberReport, group_problems
from dledger.admin.sites.status_document import status_document
from dledger.base.log_lines import ANSWERS_OPERATOR, LogLevels
from dledger.base.reactor import Reactor
from dledger.base.serving.admin_ports import loopback_unless_reported
from dledger.node.reporting.health import health_problem, readiness_problems
from dledger.node.reporting.status import NodeStatus
from dledger.values.addresses import Address
from dledger.values.option_values import Setting
from protocols.wire.codes import ResponseCode
from protocols.wire.fastjson import JsonObject

_INDEX = {
    "/live": "the dashboard, for browsers",
    "/status": "this member",
    "/cluster": "every member, or the reason why it did not answer",
    "/healthz": "200 when this member serves, else 503 and the reason",
    "/readyz": "200 when this member is ready to serve, else 503 and all reasons",
    "/events": "the last events of this member",
    "/entries": "committed entries; ?from= an index or ?time=, and ?count=",
    "/browse": "the form that asks for entries, for browsers",
    "/config": "the options in force, and where each was given",
    "/openapi.json": "these pages, as OpenAPI 3.1",
    "/metrics": "metrics for Prometheus",
    "/actions": "the forms of what can be done here, for browsers",
    "/effects": "what an action would do now, with a token: ?do=transfer&to=, ?do=flush, ?do=snapshot, "
                "?do=skip&index=",
    "/skip": "POST with a token: let the state machines pass over ?index=, at which the leader's has failed",
    "/snapshot": "POST with a token: let the state machine of this member take a snapshot",
    "/transfer": "POST with a token: hand leadership over to the member that ?to= names",
    "/log-level": "POST with a token: write the log from ?level= on, in ?room= or everywhere",
    "/flush": "POST with a token: put on stable storage what is in the ledger now",
}
#: Seconds for which a page, and the answers of the other members, are sent again.
KEPT_S = 0.25
SURVEY_KEPT_S = 1.0


@functools.cache
def _openapi_page() -> bytes:
    return encoded(openapi_document(_INDEX))


def status_json(status: NodeStatus) -> JsonObject:
    """A status as plain values, with the member's health."""
    problem = health_problem(status)
    return {
        **status_document(status),
        "is_repairing": status.member.is_repairing,
        "is_healthy": problem is None,
        "problem": problem or "",
        "version": dledger.__version__,
    }


def _who(status: NodeStatus) -> JsonObject:
    """What the pages for load balancers also say."""
    return {"leader_id": status.member.leader_id, "role": status.member.role, "term": status.member.term}


class AdminApp:
    """
    The pages.

    Rule: a page is made at most once in L{KEPT_S}, that of the group once in L{SURVEY_KEPT_S}; requests in
    between get the same bytes.

    @ivar registry: the metrics.
    """

    app = Klein()
    log = Logger()

    def __init__(
        self, node: StatusSource, survey: Callable[[], Awaitable[tuple[MemberReport, ...]]],
        clock: IReactorTime, settings: Iterable[Setting] = (), *, wall_s: Callable[[], float],
        is_public: bool = True, levels: LogLevels | None = None,
    ) -> None:
        """
        @param survey: asks every member; used by C{/cluster} and the dashboard.
        @param clock: monotonic.
        @param settings: the options of the member.
        @param wall_s: seconds since 1970.
        @param is_public: whether C{/} may show numbers: reading needs no token.
        @param levels: of the log of this process; None: it is written by somebody else.
        """
        self._wall_s = wall_s
        self._is_public = is_public
        self._levels = levels
        self._node = node
        self._settings = settings
        self._survey = survey
        self._clock = clock
        self._seconds = clock.seconds
        self._kept: dict[str, tuple[float, bytes]] = {}
        self._surveying: list[Deferred[tuple[MemberReport, ...]]] = []
        self._is_surveying = False
        self._surveyed: tuple[float, tuple[MemberReport, ...]] | None = None
        self.registry = make_registry(node.status)
        self._entries = EntryBrowser(node, clock)

    def _page(self, name: str, make: Callable[[], bytes], kept_s: float = KEPT_S) -> bytes:
        """A page that was made within C{kept_s}."""
        now_s = self._seconds()
        made_s, content = self._kept.get(name, (-kept_s, b""))
        if now_s - made_s >= kept_s:
            content = make()
            self._kept[name] = (now_s, content)
        return content

    async def reports(self) -> tuple[MemberReport, ...]:
        """The answers of all members; concurrent callers share one survey."""
        if self._surveyed is not None and self._seconds() - self._surveyed[0] < SURVEY_KEPT_S:
            return self._surveyed[1]
        waiter: Deferred[tuple[MemberReport, ...]] = Deferred(lambda one: self._surveying.remove(one))
        self._surveying.append(waiter)
        if len(self._surveying) == 1 and not self._is_surveying:
            # A browser that leaves cancels its own wait, not the survey of the others.
            self._is_surveying = True
            Deferred.fromCoroutine(self._run_survey()).addBoth(self._survey_ended)
        return await waiter

    async def _run_survey(self) -> tuple[MemberReport, ...]:
        return await self._survey()

    def _survey_ended(self, result: tuple[MemberReport, ...] | Failure) -> None:
        self._is_surveying = False
        waiting, self._surveying = self._surveying, []
        if not isinstance(result, Failure):
            self._surveyed = (self._seconds(), result)
        for waiter in waiting:
            waiter.callback(result)

    @app.route("/", methods=["GET"])
    async def index(self, request: IRequest) -> bytes:
        """The dashboard, or the list of pages."""
        if not wants_html(request):
            return json_page(request, 200, {"service": "dledger", "pages": _INDEX})
        if self._is_public:
            return await self._dashboard(request)
        return send_html(request, dashboard_page(None))

    @app.route("/live", methods=["GET"])
    async def live(self, request: IRequest) -> bytes:
        """The dashboard with its numbers."""
        return await self._dashboard(request)

    async def _dashboard(self, request: IRequest) -> bytes:
        reports = await self.reports()
        return send_html(request, self._page("live", lambda: dashboard_page(overview_of(
            self._node.status(), reports, self._node.events(), at_s=self._wall_s(),
        )), SURVEY_KEPT_S))

    @app.route("/status", methods=["GET"])
    def status(self, request: IRequest) -> bytes:
        """Status of this member."""
        content = self._page("status", lambda: encoded(status_json(self._node.status())))
        return send_page(request, 200, content)

    @app.route("/cluster", methods=["GET"])
    async def cluster(self, request: IRequest) -> bytes:
        """Status of every member."""
        reports = await self.reports()
        leaders = sorted({report.member_id for report in reports if report.role == "leader"})
        return json_page(
            request,
            200,
            {
                "group": self._node.status().member.group,
                "leaders": leaders,
                "problems": group_problems(reports),
                "unreachable": [report.member_id for report in reports if report.problem],
                "unhealthy": [report.member_id for report in reports if report.health],
                "members": [attrs.asdict(report) for report in reports],
            },
        )

    @app.route("/healthz", methods=["GET"])
    def healthz(self, request: IRequest) -> bytes:
        """Whether this member serves."""
        status = self._node.status()
        return health_page(request, health_problem(status) or "", **_who(status))

    @app.route("/readyz", methods=["GET"])
    def readyz(self, request: IRequest) -> bytes:
        """Whether this member is ready to serve."""
        status = self._node.status()
        return readiness_page(request, readiness_problems(status), **_who(status))

    @app.route("/events", methods=["GET"])
    def events(self, request: IRequest) -> bytes:
        """The last events."""
        return send_page(request, 200, self._page("events", lambda: encoded({
            "self_id": self._node.status().member.self_id,
            "events": [attrs.asdict(event) for event in self._node.events()],
        })))

    @app.route("/browse", methods=["GET"])
    def browse(self, request: IRequest) -> bytes:
        """The form."""
        return send_html(request, entry_page(self._node.status().member.group, Query({}), None))

    @app.route("/entries", methods=["GET"])
    async def entries(self, request: IRequest) -> bytes:
        """Committed entries."""
        group = self._node.status().member.group
        try:
            query = query_of(request, NAMES)
            shown = await self._entries.page(query)
        except QueryProblem as problem:
            return problem_page(request, problem, lambda why: entry_page(group, Query({}), None, why))
        if wants_html(request):
            return send_html(request, entry_page(group, query, shown))
        return json_page(request, 200, attrs.asdict(shown))

    def _action_page(self, effects: Effects | None, problem: str = "") -> bytes:
        member = self._node.status().member
        return action_page(
            member.self_id, f"member {member.self_id} of group {member.group}", MEMBER_ACTIONS.values(),
            effects, problem,
        )

    @app.route("/actions", methods=["GET"])
    def actions(self, request: IRequest) -> bytes:
        """The forms."""
        return send_html(request, self._action_page(None))

    @app.route("/effects", methods=["GET"])
    def effects(self, request: IRequest) -> bytes:
        """What an action would do."""
        try:
            action, query = asked_effects(request, MEMBER_ACTIONS)
            found = effects_of(self._node.status(), action, query)
        except QueryProblem as problem:
            return problem_page(request, problem, lambda why: self._action_page(None, why))
        if wants_html(request):
            return send_html(request, self._action_page(found))
        return json_page(request, 200, attrs.asdict(found))

    @app.route("/skip", methods=["POST"])
    async def skip(self, request: IRequest) -> bytes:
        """Let the state machines pass over an entry."""
        index = asked(request, SKIP).number("index", 0)
        answer = await self._node.skip(index)
        if answer.code is not ResponseCode.SUCCESS:
            return json_page(request, 409, {
                "error": f"it is not skipped: {answer.reason or ResponseCode(answer.code).name}",
                "leader_id": answer.leader_id,
            })
        return json_page(request, 200, {"index": index, "order_index": answer.index})

    @app.route("/snapshot", methods=["POST"])
    async def snapshot(self, request: IRequest) -> bytes:
        """Let the state machine take a snapshot, and wait for it for a while."""
        asked(request, SNAPSHOT)
        return json_page(request, *await doing.snapshot_and_wait(self._node, self._clock))

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
        return self._page("metrics", lambda: exposition(self.registry))

    @app.route("/transfer", methods=["POST"])
    async def transfer(self, request: IRequest) -> bytes:
        """Hand leadership over."""
        status = self._node.status()
        to = asked(request, TRANSFER).text("to")
        if to not in status.peers.addresses:
            members = ", ".join(sorted(status.peers.addresses))
            raise QueryProblem(400, f"write {TRANSFER.usage}: the members are {members}")
        if status.member.role != "leader":
            return json_page(request, 409, {
                "error": "only the leader can hand over", "leader_id": status.member.leader_id,
            })
        answer = await self._node.transfer(to)
        if answer.code is not ResponseCode.SUCCESS:
            return json_page(request, 409, {
                "error": f"leadership was not handed over: {ResponseCode(answer.code).name}",
                "leader_id": answer.leader_id,
            })
        return json_page(request, 200, {"leader_id": to, "term": answer.term})

    @app.route("/flush", methods=["POST"])
    async def flush(self, request: IRequest) -> bytes:
        """Wait until the ledger of now is on stable storage."""
        asked(request, FLUSH)
        return json_page(request, *await doing.flush_and_wait(self._node, self._clock))

    @app.route("/log-level", methods=["POST"])
    def log_level(self, request: IRequest) -> bytes:
        """From which level on the log is written."""
        if self._levels is None:
            return json_page(request, 409, {"error": "twistd writes this log by --logger or --syslog"})
        query = asked(request, LOG_LEVEL)
        try:
            self._levels.set(query.text("level"), query.text("room"))
        except ValueError as error:
            raise QueryProblem(400, f"write {LOG_LEVEL.usage}: {error}") from None
        self.log.warn(
            "the log is written from {levels} on", levels=self._levels.text, **{ANSWERS_OPERATOR: True}
        )
        return json_page(request, 200, {"log_level": self._levels.text})

    @app.handle_errors(QueryProblem)
    def wrong_query(self, request: IRequest, failure: Failure) -> bytes:
        """The query of an action is wrong: nothing was done."""
        problem = failure.value
        assert isinstance(problem, QueryProblem)
        return json_page(request, problem.status, {"error": str(problem)})

    answer_errors(app, _INDEX)


def reported_address(endpoint: str, *, is_secure: bool = False) -> str:
    """
    The C{host:port} that other members are informed of an endpoint; the host is C{0.0.0.0} for all
    interfaces.

    Empty if they cannot be known: it is not a TCP port, or the listener chooses its port.

    @param is_secure: it is by TLS; the address then begins with C{https://}.
    """
    text = loopback_unless_reported(endpoint)
    port = re.match(r"tcp6?:(?:port=)?(\d{1,5})(?::|$)", text)
    interface = re.search(r":interface=((?:\\.|[^:\\])*)", text)
    if port is None or not 0 < int(port[1]) < 65536:
        return ""
    host = re.sub(r"\\(.)", r"\1", interface[1]) if interface is not None else ""
    return ("https://" if is_secure else "") + str(Address(host or "0.0.0.0", int(port[1])))


class AdminService(StreamServerEndpointService):
    """
    The HTTP server of a running member.

    @ivar reported_address: see the function of that name.
    """

    def __init__(
        self, endpoint: IStreamServerEndpoint, site: ServerFactory, survey: ClusterSurvey, *,
        reported_address: str,
    ) -> None:
        super().__init__(endpoint, site)
        self.reported_address = reported_address
        self._surveyor = survey

    def stopService(self) -> Deferred[None]:
        """Close the port and the connections to the other members."""
        self._surveyor.close()
        stopped: Deferred[None] = super().stopService()
        return stopped


def make_admin_service(
    node: StatusSource, endpoint: str, reactor: Reactor, *, wall_s: Callable[[], float],
    admin_urls: Mapping[str, str] | None = None, access: PagesAccess | None = None,
    settings: Iterable[Setting] = (),
) -> AdminService:
    """
    The service that serves the pages.

    @param endpoint: endpoint string such as C{tcp:8080}; on the loopback interface unless it names one.
    @param wall_s: seconds since 1970.
    @param admin_urls: member id to the base URL of its administration; other members are asked on their
        log port, see L{ClusterSurvey}.
    @param settings: the options of the member.
    @raise ValueError: the file of tokens is missing, or not sound.
    """
    access = access or PagesAccess()
    survey = ClusterSurvey(node, reactor, admin_urls=admin_urls or {})
    app = AdminApp(
        node, survey.run, reactor, settings, wall_s=wall_s, is_public=not access.reads_need_token,
        levels=access.levels,
    )
    site = access.site(app.app.resource(), reactor)
    reported = reported_address(endpoint, is_secure=access.keys is not None)
    return AdminService(optional_endpoint(endpoint, reactor), site, survey, reported_address=reported)
