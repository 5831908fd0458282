# -*- test-case-name: tests.admin.test_cluster -*-
"""Everybody is asked at once; who is silent is named and not waited for."""

from __future__ import annotations

import json
import random
from typing import Any

from treq.testing import RequestTraversalAgent
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.client import Agent, HTTPConnectionPool, ResponseFailed
from twisted.web.iweb import IAgent
from twisted.web.resource import Resource
from zope.interface import implementer

from dledger.admin.resource import status_json
from dledger.admin.sites.cluster import ClusterSurvey, fetch_status
from dledger.admin.sites.reports import MemberReport, followed_url, report_of_status, with_lag
from dledger.client.members import Members
from protocols.wire.ledger.codes import MEMBERS_MAX
from tests.admin.fakes import FakeNode, picture
from tests.client.fakes import FakeGroup


class Page(Resource):
    """One document for every path."""

    isLeaf = True

    def __init__(self, body: bytes, code: int = 200) -> None:
        super().__init__()
        self.body = body
        self.code = code
        self.paths: list[bytes] = []

    def render_GET(self, request: Any) -> bytes:
        """The document."""
        self.paths.append(request.path)
        request.setResponseCode(self.code)
        return self.body


@implementer(IAgent)
class SilentAgent:
    """Never answers."""

    def request(self, *_args: object, **_options: object) -> Deferred[Any]:
        """Not even this one."""
        return Deferred()


class SurveyTests(SynchronousTestCase):
    """L{ClusterSurvey} of a node n0 with two others."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.group = FakeGroup(self.clock)
        self.group.log = [b"x"] * 101
        self.node = FakeNode(peer_addresses=self.group.peers, group="default")
        self.surveys: list[ClusterSurvey] = []

    def tearDown(self) -> None:
        """Nothing is left."""
        for survey in self.surveys:
            survey.close()
        self.group.settle()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def survey(self, agent: Any = None, **urls: str) -> Deferred[tuple[MemberReport, ...]]:
        """Asked, with log ports that answer."""
        members = Members(
            self.group.peers, group="default", clock=self.clock, endpoint_for=self.group.endpoint_for,
            rng=random.Random(1), answer_timeout_s=2.0,
        )
        survey = ClusterSurvey(self.node, self.clock, admin_urls=urls, agent=agent, members=members)
        self.surveys.append(survey)
        return Deferred.fromCoroutine(survey.run())

    def test_log_ports(self) -> None:
        """Those without an administration are asked where clients ask."""
        answer = self.survey()
        self.group.settle()
        n0, n1, n2 = self.successResultOf(answer)
        self.assertEqual((n0.source, n0.end_index, n0.term), ("self", 100, 7))
        self.assertEqual((n1.source, n1.role, n1.end_index, n1.lag), ("log", "follower", 100, 0))
        self.assertEqual((n2.problem, n2.leader_id), ("", "n0"))

    def test_silent_and_refused(self) -> None:
        """Named with the reason after two seconds at most."""
        self.group["n1"].is_up = False
        self.group["n2"].is_silent = True
        answer = self.survey()
        self.group.run(1.9)
        self.assertNoResult(answer)
        self.group.run(0.2)
        _n0, n1, n2 = self.successResultOf(answer)
        self.assertEqual(n1.problem, "connection refused")
        self.assertRegex(n2.problem, "did not answer|no answer")

    def test_administration(self) -> None:
        """Asked over HTTP where it is known; its health comes with it."""
        document = status_json(picture(self_id="n1", role="follower", repair_end_index=300))
        page = Page(json.dumps(document).encode())
        answer = self.survey(RequestTraversalAgent(page), n1="http://n1.test:8080/")
        self.group.settle()
        _n0, n1, _n2 = self.successResultOf(answer)
        self.assertEqual((n1.source, n1.admin_url, n1.term), ("admin", "http://n1.test:8080/", 7))
        self.assertIn("repairing", n1.health)
        self.assertEqual(page.paths, [b"/status"])

    def test_silent_administration(self) -> None:
        """Not waited for, either."""
        answer = self.survey(SilentAgent(), n1="http://n1.test:8080")
        self.group.run(2.1)
        _n0, n1, n2 = self.successResultOf(answer)
        self.assertTrue(n1.problem)
        self.assertEqual((n1.source, n2.problem), ("admin", ""))

    def test_reported_by_log_ports(self) -> None:
        """What a member says on its log port: the link to its page, its version, its health on one line."""
        member = self.group["n1"]
        member.admin, member.version = "0.0.0.0:8080", "1.2\n3"
        member.health = "disk full:\x1b[2J\nno room" + "x" * 1000
        answer = self.survey()
        self.group.settle()
        n0, n1, n2 = self.successResultOf(answer)
        self.assertEqual((n1.source, n1.problem, n1.health[:23]), ("log", "", "disk full: [2J no roomx"))
        self.assertEqual((n1.admin_url, n1.version), ("http://n1.test:8080", "1.2 3"))
        self.assertLess(len(n1.health), 400)
        self.assertEqual((n0.health, n2.health), ("", ""))

    def test_own_health(self) -> None:
        """The member that is asked reports its own, too."""
        self.node.picture = picture(
            peer_addresses=self.group.peers, group="default", role="follower", is_disk_full=True
        )
        answer = self.survey()
        self.group.settle()
        self.assertIn("disk full", self.successResultOf(answer)[0].health)

    def test_another_members_page(self) -> None:
        """A URL that leads to somebody else is a problem, not an answer."""
        page = Page(json.dumps(status_json(picture(self_id="n2"))).encode())
        answer = self.survey(RequestTraversalAgent(page), n1="http://n1.test:8080")
        self.group.settle()
        self.assertEqual(self.successResultOf(answer)[1].problem, "it is member 'n2'")

    def test_pages_that_are_none(self) -> None:
        """Whatever comes over HTTP is an answer or a reason."""
        for body, code, reason in (
            (b"oops", 200, ""),
            (b"[" * 100_000, 200, "too many brackets"),
            (b"[]", 200, "not a status page"),
            (b"{}", 200, "not a status page"),
            (b"{}", 404, "HTTP status 404"),
            (b'{"member": {"self_id": "n1"}}', 200, "not a status page of a dledger member: KeyError"),
            (b" " * (1 << 21), 200, "more than 1048576 bytes"),
        ):
            agent = RequestTraversalAgent(Page(body, code))
            answer = self.survey(agent, n1="http://n1.test:8080")
            self.group.settle()
            problem = self.successResultOf(answer)[1].problem
            self.assertTrue(problem)
            self.assertIn(reason, problem)


class FetchTests(SynchronousTestCase):
    """L{fetch_status} over a connection."""

    def setUp(self) -> None:
        self.is_cut = False
        self.clock = MemoryReactorClock()
        pool = HTTPConnectionPool(self.clock, persistent=False)
        agent = Agent(self.clock, pool=pool)
        self.answer = Deferred.fromCoroutine(fetch_status(agent, "http://127.0.0.1:80", 2.0, self.clock))
        self.protocol = self.clock.tcpClients[0][2].buildProtocol(None)
        self.transport = StringTransport()
        self.protocol.makeConnection(self.transport)
        self.assertIn(b"GET /status HTTP/1.1", self.transport.value())

    def tearDown(self) -> None:
        """The connection is closed, and no timer is left."""
        self.assertTrue(self.transport.disconnecting or self.is_cut)
        if not self.is_cut:
            self.protocol.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def head(self, code: int = 200) -> None:
        """The head of an answer of unknown length."""
        self.protocol.dataReceived(b"HTTP/1.1 %d Said\r\nTransfer-Encoding: chunked\r\n\r\n" % code)

    def chunk(self, data: bytes) -> None:
        """A part of its body."""
        self.protocol.dataReceived(b"%x\r\n%s\r\n" % (len(data), data))

    def test_not_http(self) -> None:
        """The port of a log ends the connection: a sentence, and no list of failures."""
        self.is_cut = True
        self.protocol.connectionLost(Failure(ConnectionLost()))
        reported = str(self.failureResultOf(self.answer, ValueError).value)
        self.assertIn("is that the port of the admin pages", reported)
        self.assertNotIn("<", reported)

    def test_chunks(self) -> None:
        """An answer in several chunks."""
        self.head()
        for part in (b'{"member"', b": ", b"{}}"):
            self.chunk(part)
        self.assertNoResult(self.answer)
        self.chunk(b"")
        self.assertEqual(self.successResultOf(self.answer), {"member": {}})

    def test_endless(self) -> None:
        """An answer that does not end is left when it is too long; no more of it is kept."""
        self.head()
        part = b" " * (1 << 16)
        for _ in range(16):
            self.chunk(part)
            self.assertFalse(self.transport.disconnecting)
        self.assertNoResult(self.answer)
        self.chunk(b"x")
        error = self.failureResultOf(self.answer, ValueError).value
        self.assertIn("not a status page of a dledger member", str(error))
        self.assertIn("an answer of more than 1048576 bytes", str(error))
        self.assertTrue(self.transport.disconnecting)
        self.chunk(part)

    def test_trickle(self) -> None:
        """An answer that comes too slowly is left when the time is up."""
        self.head()
        for _ in range(20):
            self.clock.advance(0.09)
            self.chunk(b" ")
        self.assertNoResult(self.answer)
        self.clock.advance(0.3)
        error = self.failureResultOf(self.answer, ValueError).value
        self.assertIn("not complete after 2 s", str(error))

    def test_redirected(self) -> None:
        """A page elsewhere is not asked for: a member names no hosts for us."""
        self.protocol.dataReceived(
            b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
        )
        self.assertIn("HTTP status 302", str(self.failureResultOf(self.answer, ValueError).value))
        self.assertEqual(len(self.clock.tcpClients), 1)
        self.is_cut = True

    def test_refused(self) -> None:
        """The body of a refusal is not read."""
        self.head(500)
        self.assertIn("HTTP status 500", str(self.failureResultOf(self.answer, ValueError).value))
        self.assertTrue(self.transport.disconnecting)

    def test_under_way(self) -> None:
        """An action that goes on after the answer is none of the failures."""
        self.head(202)
        self.chunk(b'{"is_writing": true}')
        self.protocol.dataReceived(b"0\r\n\r\n")
        self.assertEqual(self.successResultOf(self.answer), {"is_writing": True})

    def test_cut(self) -> None:
        """A connection that ends in the middle of the answer."""
        self.head()
        self.chunk(b"{")
        self.protocol.connectionLost(Failure(ConnectionLost()))
        self.failureResultOf(self.answer, ResponseFailed)
        self.is_cut = True


class ReportTests(SynchronousTestCase):
    """Reports and their lag."""

    def test_lag(self) -> None:
        """Behind the leader's end; of two that say they lead, the one with the higher term."""

        def report(member_id: str, role: str, term: int, end_index: int) -> MemberReport:
            return MemberReport(
                member_id=member_id, address="", source="log", role=role, term=term, end_index=end_index
            )

        reports = with_lag((
            report("n0", "leader", 3, 500), report("n1", "leader", 4, 90), report("n2", "follower", 4, 80),
            report("n3", "follower", 4, -1), report("n4", "", -1, -2),
        ))
        self.assertEqual([r.lag for r in reports], [0, 0, 10, 91, -1])

    def test_followed_url(self) -> None:
        """Only the port is the member's word; a loopback interface is only reached on the same machine."""
        for address, admin, url in (
            ("n1.test:1", "0.0.0.0:80", "http://n1.test:80"),
            ("n1.test:1", "169.254.169.254:80", "http://n1.test:80"),
            ("[fd00::1]:1", "[::]:80", "http://[fd00::1]:80"),
            ("127.0.0.1:1", "127.0.0.1:80", "http://127.0.0.1:80"),
            ("localhost:1", "127.0.0.1:80", "http://localhost:80"),
            ("n1.test:1", "127.0.0.1:80", ""), ("n1.test:1", "[::1]:80", ""), ("n1.test:1", "", ""),
            ("n1.test:1", "https://0.0.0.0:80", "https://n1.test:80"),
            ("n1.test:1", "https://127.0.0.1:80", ""), ("n1.test:1", "https://https://a:80", ""),
            ("n1.test:1", "ftp://0.0.0.0:80", ""),
            ("n1.test:1", "x/y@evil:80", ""), ("n1.test:1", "n1.test:0", ""), ("n1.test:1", "80", ""),
        ):
            self.assertEqual(followed_url(address, admin), url, admin)

    def test_no_leader(self) -> None:
        """Nobody to be behind of."""
        report = MemberReport(member_id="n0", address="", source="log", role="follower", end_index=5)
        self.assertEqual(with_lag((report,))[0].lag, -1)

    def test_report_of_status(self) -> None:
        """The page of the right member."""
        document = json.loads(json.dumps(status_json(picture())))
        report = report_of_status("n0", "n0.test:1", "http://x", document)
        self.assertEqual((report.role, report.begin_index, report.committed_index), ("leader", 5, 99))
        self.assertRaises(ValueError, report_of_status, "n1", "", "", document)
        for name, value in (("term", float("inf")), ("committed_index", float("nan")), ("term", [])):
            wrong = {**document, "member": {**document["member"], name: value}}
            self.assertRaises(ValueError, report_of_status, "n0", "", "", wrong)
        crowd = {
            **document, "member": {**document["member"], "role": "x" * 9999, "leader_id": "y" * 9999},
            "peer_addresses": {f"n{number}": "h:1" for number in range(9999)},
        }
        report = report_of_status("n0", "n0.test:1", "http://x", crowd)
        self.assertEqual(len(report.members), MEMBERS_MAX)
        self.assertLess(len(report.role) + len(report.leader_id or ""), 1000)

    def test_fetch(self) -> None:
        """Adds the page to the URL, with or without a slash at its end."""
        page = Page(b"{}")
        clock = Clock()
        for url in ("http://a.test", "http://a.test/"):
            story = fetch_status(RequestTraversalAgent(page), url, 1.0, clock)
            self.assertEqual(self.successResultOf(Deferred.fromCoroutine(story)), {})
        self.assertEqual(page.paths, [b"/status", b"/status"])
