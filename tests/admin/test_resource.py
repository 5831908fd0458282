# -*- test-case-name: tests.admin.test_resource -*-
"""The pages, asked through treq without sockets."""

from __future__ import annotations

from typing import Any

import attrs
import treq
from klein import Klein
from treq.testing import StubTreq
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.iweb import IRequest

from dledger.admin.actions.doing import ACTION_S, LOOK_S
from dledger.admin.resource import (
    KEPT_S,
    SURVEY_KEPT_S,
    AdminApp,
    make_admin_service,
    reported_address,
)
from dledger.admin.sites.pages import answer_errors
from dledger.admin.sites.reports import MemberReport
from dledger.base.log_lines import LogLevels
from dledger.node.reporting.health import health_problem
from dledger.node.reporting.reports import SeenEvent
from dledger.values.ledger.holes import Hole
from dledger.values.option_values import Setting
from protocols.wire.codes import ResponseCode
from tests.admin.fakes import MACHINE, FakeNode, picture


class PageCase(SynchronousTestCase):
    """The pages of a member with a picture."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.node = FakeNode()
        self.reports: tuple[MemberReport, ...] | None = (
            MemberReport(member_id="n0", address="n0.test:1", source="self", role="leader", term=7),
            MemberReport(member_id="n1", address="n1.test:1", source="log", problem="connection refused"),
        )
        settings = (Setting(name="tick_ms", value=50, origin="file"),)
        self.levels = LogLevels()
        app = AdminApp(
            self.node, self.survey, self.clock, settings, wall_s=lambda: 1_700_000_000.0, levels=self.levels
        )
        self.treq = StubTreq(app.app.resource())

    async def survey(self) -> tuple[MemberReport, ...]:
        """As L{dledger.admin.sites.cluster.ClusterSurvey.run}."""
        if self.reports is None:
            raise RuntimeError("a bug of ours")
        return self.reports

    def ask(self, path: str, method: str = "GET") -> Any:
        """The response, some time after the one before."""
        self.clock.advance(SURVEY_KEPT_S)
        asked = self.treq.request(method, f"http://admin.test{path}")
        self.clock.advance(0)  # (A page of entries is made in a turn of its own.)
        self.treq.flush()
        return self.successResultOf(asked)

    def pump(self) -> None:
        """Time passes until there is an answer to everything."""
        for _ in range(round(ACTION_S / LOOK_S) + 2):
            self.clock.advance(LOOK_S)
            self.treq.flush()

    def document(self, path: str, status: int = 200, method: str = "GET") -> Any:
        """The JSON of a page."""
        response = self.ask(path, method)
        self.assertEqual(response.code, status)
        self.assertEqual(
            response.headers.getRawHeaders("content-type"), ["application/json; charset=utf-8"]
        )
        self.assertEqual(response.headers.getRawHeaders("cache-control"), ["no-store"])
        return self.successResultOf(treq.json_content(response))


class PageTests(PageCase):
    """GET, and the answer."""

    def test_index(self) -> None:
        """What there is."""
        self.assertEqual(set(self.document("/")["pages"]), {
            "/status", "/cluster", "/healthz", "/readyz", "/events", "/config", "/openapi.json",
            "/live", "/browse", "/entries", "/metrics", "/transfer", "/log-level", "/flush",
            "/snapshot", "/actions", "/effects", "/skip",
        })

    def test_status(self) -> None:
        """This member, in full."""
        document = self.document("/status")
        self.assertEqual(document["member"]["self_id"], "n0")
        self.assertEqual(document["member"]["peers"][0]["peer_id"], "n1")
        self.assertEqual(document["peer_addresses"]["n2"], "n2.test:1")
        self.assertEqual((document["is_healthy"], document["problem"]), (True, ""))

    def test_cluster(self) -> None:
        """All members, the leader, and those without an answer."""
        document = self.document("/cluster")
        self.assertEqual((document["leaders"], document["unreachable"]), (["n0"], ["n1"]))
        self.assertEqual(document["members"][1]["problem"], "connection refused")
        self.assertEqual(document["group"], "g")

    def test_healthy(self) -> None:
        """200 for a member that serves, leader or not."""
        self.assertEqual(self.document("/healthz")["status"], "ok")
        self.node.picture = picture(role="follower", leader_id="n1")
        self.assertEqual(self.document("/healthz")["leader_id"], "n1")

    def test_unhealthy(self) -> None:
        """503 with the reason."""
        for facts, reason in (
            ({"leader_id": None, "role": "candidate"}, "no leader"),
            ({"repair_end_index": 200}, "up to 200 were lost"),
            ({"holes": (Hole(first_index=7, last_index=8, position=0, end_position=9),),
              "hole_asked": {"n1": "DISK_ERROR"}}, "2 entries are damaged, the first is 7"),
            ({"state": "stopping"}, "stopping"),
            ({"is_disk_full": True}, "disk full"),
            ({"state": "failed", "reason": "fsync failed"}, "failed: fsync failed"),
            ({"state": "stopped"}, "stopped"),
        ):
            self.node.picture = picture(**facts)
            document = self.document("/healthz", 503)
            self.assertIn(reason, document["reason"])
            self.assertEqual(document["status"], "unavailable")
            self.assertIsNotNone(health_problem(self.node.picture))

    def test_ready(self) -> None:
        """200, or 503 with every reason."""
        document = self.document("/readyz")
        self.assertEqual((document["status"], document["reasons"]), ("ready", []))
        self.node.picture = picture(role="follower", leader_id="n1", is_disk_full=True, is_diverged=True)
        document = self.document("/readyz", 503)
        self.assertEqual(document["status"], "not ready")
        self.assertEqual([reason.split(":")[0] for reason in document["reasons"]], ["diverged", "disk full"])

    def test_ready_asks_for_more(self) -> None:
        """A member that catches up, hands over, or whose machine does, serves and is not ready."""
        for facts, reason in (
            ({"role": "follower", "leader_id": "n1", "healthy_lag_entries": 100, "committed_index": 79,
              "leader_committed_index": 99}, "catching up: it lacks 20 committed entries"),
            ({"transferee_id": "n2"}, "handing over: leadership goes to n2"),
            ({"machine": attrs.evolve(MACHINE, state="starting")}, "its state machine is starting"),
            ({"machine": MACHINE, "healthy_lag_entries": 80}, "its state machine lacks 9 committed entries"),
        ):
            self.node.picture = picture(**facts)
            self.assertEqual(self.document("/healthz")["status"], "ok")
            (reported,) = self.document("/readyz", 503)["reasons"]
            self.assertIn(reason, reported)
        self.node.picture = picture(machine=MACHINE, healthy_lag_entries=90)
        self.assertEqual(self.document("/readyz")["reasons"], [])

    def test_events(self) -> None:
        """As the log has them."""
        self.node.seen = (SeenEvent(number=3, at_s=5.0, level="warn", event="truncating", facts="index=7"),)
        document = self.document("/events")
        self.assertEqual(document["self_id"], "n0")
        self.assertEqual(document["events"], [
            {"number": 3, "at_s": 5.0, "level": "warn", "event": "truncating", "facts": "index=7"}
        ])

    def test_config(self) -> None:
        """The options, each with its place."""
        self.assertEqual(self.document("/config"), {"options": {"tick_ms": {"value": 50, "origin": "file"}}})

    def test_metrics(self) -> None:
        """As text."""
        response = self.ask("/metrics")
        self.assertEqual(response.code, 200)
        self.assertIn("text/plain; version=0.0.4", response.headers.getRawHeaders("content-type")[0])
        text = self.successResultOf(response.text())
        self.assertIn('dledger_term{group="g",self_id="n0"} 7.0', text)

    def test_pages_are_kept_for_a_moment(self) -> None:
        """A flood of requests does not make as many pages."""
        terms = []
        for _ in range(3):
            self.node.picture = picture(term=8 + len(terms))
            response = self.successResultOf(self.treq.request("GET", "http://admin.test/status"))
            terms.append(self.successResultOf(treq.json_content(response))["member"]["term"])
            self.clock.advance(KEPT_S / 2)
        self.assertEqual(terms, [8, 8, 10])

    def test_one_survey_for_all(self) -> None:
        """A question during a survey gets its result; a failure too."""
        surveys: list[Deferred[tuple[MemberReport, ...]]] = []

        def survey() -> Deferred[tuple[MemberReport, ...]]:
            surveys.append(Deferred())
            return surveys[-1]

        app = AdminApp(self.node, survey, self.clock, wall_s=self.clock.seconds)
        waiting = [Deferred.fromCoroutine(app.reports()) for _ in range(3)]
        self.assertEqual(len(surveys), 1)
        assert self.reports is not None
        surveys[0].callback(self.reports)
        self.assertEqual([self.successResultOf(one) for one in waiting], [self.reports] * 3)
        self.assertEqual(self.successResultOf(Deferred.fromCoroutine(app.reports())), self.reports)
        self.clock.advance(SURVEY_KEPT_S)
        waiting = [Deferred.fromCoroutine(app.reports()) for _ in range(3)]
        waiting.pop(0).addErrback(lambda _: None).cancel()  # a browser leaves; the others wait on
        surveys[1].errback(RuntimeError("a bug of ours"))
        for one in waiting:
            self.failureResultOf(one, RuntimeError)
        Deferred.fromCoroutine(app.reports())
        self.assertEqual(len(surveys), 3)

    def test_unknown_path(self) -> None:
        """404 as JSON, with what there is."""
        self.assertIn("/status", self.document("/nothing", 404)["pages"])

    def test_wrong_method(self) -> None:
        """405 as JSON, with what is allowed."""
        for path in ("/", "/status", "/cluster", "/healthz", "/metrics"):
            response = self.ask(path, "POST")
            self.assertEqual(response.code, 405, path)
            self.assertIn("GET", response.headers.getRawHeaders("allow")[0])
        self.assertIn("GET", self.document("/status", 405, "DELETE")["allowed"])

    def test_browser_leaves(self) -> None:
        """A page that nobody waits for any more is no error of ours."""
        waiting: list[Deferred[bytes]] = []

        class Pages:
            app = Klein()

            @app.route("/")
            def index(self, request: IRequest) -> Deferred[bytes]:
                waiting.append(Deferred())
                return waiting[0]

            answer_errors(app, ())

        StubTreq(Pages().app.resource()).get("http://admin.test/")
        waiting.pop().cancel()
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_transfer(self) -> None:
        """Only to a member, only at the leader; the answer of the group is the answer."""
        self.assertEqual(self.document("/transfer?to=n1", 200, "POST"), {"leader_id": "n1", "term": 8})
        for query in ("", "?to=", "?to=n9", "?to=" + 300 * "n", "?to=%ff"):
            said = self.document(f"/transfer{query}", 400, "POST")
            self.assertIn("write /transfer?to=TO: ", said["error"], query)
        self.node.transfer_code = ResponseCode.TAKE_LEADERSHIP_FAILED
        said = self.document("/transfer?to=n2", 409, "POST")
        self.assertIn("TAKE_LEADERSHIP_FAILED", said["error"])
        self.node.picture = picture(role="follower", leader_id="n2")
        self.assertEqual(self.document("/transfer?to=n1", 409, "POST")["leader_id"], "n2")
        self.assertEqual(self.node.transferees, ["n1", "n2"])
        self.assertEqual(self.ask("/transfer?to=n1").code, 405)

    def test_log_level(self) -> None:
        """At once, in one room or in all; what is wrong changes nothing."""
        said = self.document("/log-level?level=debug&room=dledger.node", 200, "POST")
        self.assertEqual(said, {"log_level": "info,dledger.node=debug"})
        self.document("/log-level?level=warn", 200, "POST")
        for query in ("", "?level=loud", "?room=dledger", "?level=info&room=a%20b", "?level=%ff",
                      "?level=info&rom=dledger", "?level=info&level=warn", "?level=info&room="):
            said = self.document(f"/log-level{query}", 400, "POST")
            self.assertIn("write /log-level?level=", said["error"])
        self.assertEqual(self.levels.text, "warn,dledger.node=debug")
        self.assertEqual(self.ask("/log-level?level=debug").code, 405)

    def test_flush(self) -> None:
        """Waits until the entries of before are on stable storage, and not for later ones."""
        self.node.picture = picture(flushed_index=98, ledger_end_index=100)
        asked = self.treq.request("POST", "http://admin.test/flush")
        self.assertNoResult(asked)
        self.node.picture = picture(flushed_index=100, ledger_end_index=150)
        self.pump()
        response = self.successResultOf(asked)
        self.assertEqual(self.successResultOf(response.json()), {"flushed_index": 100, "end_index": 100})

    def test_flush_of_a_truncated_ledger(self) -> None:
        """What was cut meanwhile need not be there."""
        self.node.picture = picture(flushed_index=98, ledger_end_index=100)
        asked = self.treq.request("POST", "http://admin.test/flush")
        self.node.picture = picture(flushed_index=90, ledger_end_index=90)
        self.pump()
        self.assertEqual(self.successResultOf(asked).code, 200)

    def test_our_fault(self) -> None:
        """500 without the reason, which is in the log."""
        self.reports = None
        self.assertEqual(self.document("/cluster", 500), {"error": "internal error"})
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)


class ServiceTests(SynchronousTestCase):
    """Where it listens."""

    def test_reported_address(self) -> None:
        """The port that others may ask; none for what is not a TCP port, or is not known yet."""
        for given, reported in (
            ("8080", "127.0.0.1:8080"), ("tcp:8080", "127.0.0.1:8080"),
            ("tcp:8080:interface=0.0.0.0", "0.0.0.0:8080"), ("tcp:port=8080:interface=", "0.0.0.0:8080"),
            ("tcp6:8080", "[::1]:8080"), ("tcp6:8080:interface=\\:\\:", "[::]:8080"),
            ("tcp:0", ""), ("unix:admin.sock", ""), ("ssl:8080", ""), ("tcp:99999", ""),
        ):
            self.assertEqual(reported_address(given), reported, given)
        secure = reported_address("tcp:8080:interface=10.0.0.1", is_secure=True)
        self.assertEqual(secure, "https://10.0.0.1:8080")

    def test_listens_while_it_runs(self) -> None:
        """From start to stop."""
        reactor = MemoryReactorClock()
        service = make_admin_service(FakeNode(), "tcp:8080", reactor, wall_s=lambda: 0.0)
        service.startService()
        ((port, _site, _backlog, interface),) = reactor.tcpServers
        self.assertEqual((port, interface), (8080, "127.0.0.1"))
        self.successResultOf(service.stopService())

    def test_port_is_taken(self) -> None:
        """One line; the member goes on, and its stop too."""
        reactor = MemoryReactorClock()

        def taken(port: int, *_args: object, **_options: object) -> Any:
            raise CannotListenError("127.0.0.1", port, OSError(98, "Address already in use"))

        self.patch(reactor, "listenTCP", taken)
        service = make_admin_service(FakeNode(), "tcp:8080", reactor, wall_s=lambda: 0.0)
        with capturedLogs() as events:
            service.startService()
        (line,) = [formatEvent(event) for event in events]
        self.assertIn("cannot listen: Couldn't listen on 127.0.0.1:8080: [Errno 98] Address", line)
        self.successResultOf(service.stopService())
