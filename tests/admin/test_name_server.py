# -*- test-case-name: tests.admin.test_name_server -*-
"""The pages of a name server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import treq
from prometheus_client.parser import text_string_to_metric_families
from treq.testing import StubTreq
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.dashboard.name_server_page import BROKERS_SHOWN
from dledger.admin.name_server import (
    BROKERS,
    KEPT_S,
    NAME_SERVER_COUNTERS,
    NAME_SERVER_GAUGES,
    NameServerPages,
    make_name_server_pages,
)
from dledger.base.histogram import Histogram
from dledger.rocketmq.namesrv.status import LiveBrokerStatus, NameServerStatus
from tests.test_docs import DOCS


def picture(**changes: Any) -> NameServerStatus:
    """Every number differs."""
    numbers = {
        field.name: number + 1
        for number, field in enumerate(attrs.fields(NameServerStatus))
        if field.name not in ("address", "answers_as", "problem", "refusals")
    }
    facts: dict[str, Any] = {
        "address": "0.0.0.0:9876", "answers_as": "5.3", "problem": "", "refusals": {"101:22": 3}, **numbers,
    }
    return NameServerStatus(**{**facts, **changes})


class FakeNameServer:
    """A state."""

    def __init__(self) -> None:
        self.picture = picture()
        self.fails = False
        self.number = 1

    def status(self) -> NameServerStatus:
        """As it is."""
        if self.fails:
            raise ZeroDivisionError
        return self.picture

    def requests(self) -> dict[int, int]:
        """Two kinds."""
        return {103: 5, 105: 0}

    def request_times(self) -> Histogram:
        """Two quick ones, and a slow one."""
        return Histogram(bounds=(0.001, 0.1), counts=[2, 0, 1], total=0.75)

    def brokers(self) -> Iterator[LiveBrokerStatus]:
        """Some."""
        for number in range(1, self.number + 1):
            yield LiveBrokerStatus(
                cluster="C", names=("bk",), broker_ids=(0,), address=f"a:{number}", ha_address="a:2",
                heard_s=1.5,
            )


class PageTests(SynchronousTestCase):
    """GET and the answers."""

    def setUp(self) -> None:
        self.server = FakeNameServer()
        self.clock = Clock()
        self.treq = StubTreq(NameServerPages(self.server, self.clock).app.resource())

    def document(self, path: str, status: int = 200, method: str = "GET") -> Any:
        """The JSON of a page."""
        response = self.successResultOf(self.treq.request(method, f"http://admin.test{path}"))
        self.assertEqual(response.code, status)
        return self.successResultOf(treq.json_content(response))

    def test_pages(self) -> None:
        """Each page has the state."""
        self.assertIn("/metrics", self.document("/")["pages"])
        status = self.document("/status")
        self.assertEqual((status["topics"], status["is_healthy"]), (self.server.picture.topics, True))
        self.assertEqual(self.document("/brokers")["brokers"][0]["address"], "a:1")
        self.assertEqual(self.document("/healthz"), {"status": "ok"})
        self.server.picture = picture(problem="it stops")
        self.assertEqual(self.document("/healthz", 503)["reason"], "it stops")

    def test_dashboard(self) -> None:
        """For browsers: numbers and the first brokers, escaped; without a token no number."""
        self.server.number = BROKERS_SHOWN + 1
        self.server.picture = picture(brokers=BROKERS_SHOWN + 1, problem="<b>it stops</b>")

        def html(path: str) -> str:
            asked = self.treq.get(f"http://admin.test{path}", headers={"Accept": "text/html"})
            self.clock.advance(0)
            self.treq.flush()
            return self.successResultOf(treq.text_content(self.successResultOf(asked)))

        for path in ("/", "/live"):
            text = html(path)
            self.assertIn(f"Brokers (of {BROKERS_SHOWN + 1})", text)
            self.assertIn("&lt;b&gt;it stops", text)
            self.assertEqual(text.count("<td>bk</td>"), BROKERS_SHOWN)
        hidden = NameServerPages(self.server, self.clock, is_public=False)
        self.treq = StubTreq(hidden.app.resource())
        self.assertNotIn("it stops", html("/"))

    def test_many_brokers(self) -> None:
        """They are listed in pieces, once for all that ask meanwhile and within a second."""
        self.server.number = 2 * BROKERS + 1
        asking = [self.treq.get("http://admin.test/brokers") for _ in range(3)]
        self.assertNoResult(asking[0])
        asking.pop(1).addErrback(lambda _: None).cancel()
        self.clock.pump([0] * 3)
        self.treq.flush()
        for one in asking:
            found = self.successResultOf(treq.json_content(self.successResultOf(one)))
            self.assertEqual([broker["address"] for broker in found["brokers"]],
                             [f"a:{number}" for number in range(1, self.server.number + 1)])
        self.server.number = 0
        self.assertTrue(self.document("/brokers")["brokers"])
        self.clock.advance(KEPT_S)
        self.assertEqual(self.document("/brokers"), {"brokers": []})

    def test_errors(self) -> None:
        """No page, no other method, and no details of a failure."""
        self.assertEqual(self.document("/x", 404)["error"], "not found")
        self.document("/status", 405, "POST")
        response = self.successResultOf(self.treq.request("POST", "http://admin.test/status"))
        self.assertEqual(response.headers.getRawHeaders("allow"), ["GET, HEAD"])
        self.server.fails = True
        self.assertEqual(self.document("/status", 500), {"error": "internal error"})
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_metrics(self) -> None:
        """Every number of the status, with the names that the documentation has."""
        response = self.successResultOf(self.treq.get("http://admin.test/metrics"))
        text = self.successResultOf(treq.text_content(response))
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text) for sample in family.samples
        }
        for name, _ in NAME_SERVER_GAUGES:
            self.assertEqual(found[f"dledger_namesrv_{name}",], getattr(self.server.picture, name))
        for name, _ in NAME_SERVER_COUNTERS:
            self.assertEqual(found[f"dledger_namesrv_{name}_total",], getattr(self.server.picture, name))
        self.assertEqual(found["dledger_namesrv_tls_certificate_end_seconds",],
                         self.server.picture.tls_expires_s)
        self.assertEqual(found["dledger_namesrv_refusals_total", "22", "101"], 3)
        self.assertEqual(found["dledger_namesrv_requests_by_code_total", "103"], 5)
        self.assertEqual(found["dledger_namesrv_request_seconds_bucket", "0.1"], 2)
        self.assertEqual(found["dledger_namesrv_request_seconds_count",], 3)
        self.assertEqual(found["dledger_namesrv_request_seconds_sum",], 0.75)
        page = (Path(DOCS) / "namesrv.md").read_text("utf-8")
        names = {
            name.removeprefix("dledger_namesrv_") for name, *_ in found if not name.startswith("process_")
        }
        self.assertIn("process_open_fds", text)
        self.assertEqual([name for name in sorted(names) if f"`{name}`" not in page], [])

    def test_service(self) -> None:
        """It listens on the loopback interface."""
        reactor: Any = MemoryReactorClock()
        service = make_name_server_pages(self.server, "8080", reactor)
        service.startService()
        self.assertEqual(reactor.tcpServers[0][0], 8080)
        self.assertEqual(reactor.tcpServers[0][3], "127.0.0.1")
        service.stopService()
