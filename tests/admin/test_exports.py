# -*- test-case-name: tests.admin.test_exports -*-
"""The pages of an export that follows a log."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import attrs
import treq
from treq.testing import StubTreq
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IListeningPort
from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.exports import EXPORT_COUNTERS, EXPORT_GAUGES, ExportPages, make_export_pages, serving
from dledger.base.reactor import whole_reactor
from dledger.values.exports import ExportStatus
from tests.test_docs import DOCS

STATUS = ExportStatus(
    next=5, end=9, lag_entries=4, lag_bytes=40, lag_s=2.5, commits=3, rows=50, last_commit_s=77.0,
    last_offset=4, version="8", errors=6, error="gone", failing_s=1.5, silent_s=0.5,
)


class PageTests(SynchronousTestCase):
    """GET and the answers."""

    def setUp(self) -> None:
        """An export in order."""
        self.picture, self.failure = STATUS, ""
        self.pages = ExportPages(lambda: self.picture, lambda: self.failure)
        self.treq = StubTreq(self.pages.app.resource())

    def document(self, path: str, status: int = 200, method: str = "GET") -> Any:
        """The JSON of a page."""
        response = self.successResultOf(self.treq.request(method, f"http://admin.test{path}"))
        self.assertEqual(response.code, status)
        return self.successResultOf(treq.json_content(response))

    def test_pages(self) -> None:
        """Each page has the state."""
        self.assertEqual(sorted(self.document("/")["pages"]),
                         ["/healthz", "/live", "/metrics", "/readyz", "/status"])
        self.assertEqual(self.document("/status"), {**attrs.asdict(STATUS), "problems": []})
        self.assertEqual(self.document("/healthz"), {"status": "ok"})
        self.assertEqual(self.document("/readyz"), {"status": "ready", "reasons": []})
        self.assertEqual(self.document("/nothing", 404)["error"], "not found")
        self.assertEqual(self.document("/status", 405, "POST")["error"], "method not allowed")

    def page(self, path: str = "/") -> str:
        """The page for browsers."""
        asked = self.treq.get(f"http://admin.test{path}", headers={"accept": "text/html"})
        text: str = self.successResultOf(treq.text_content(self.successResultOf(asked)))
        return text

    def test_dashboard(self) -> None:
        """For people: how far it is, and what is wrong; a text of others is no element."""
        for path in ("/", "/live"):
            for words in ("all before offset 5", "4 entries, 40 B", "50 rows, 3 commits", "0:00:02 old",
                          "1970-01-01 00:01:17 UTC, up to 4, version 8", "6; the last: gone",
                          "The export is in order."):
                self.assertIn(words, self.page(path))
        self.picture = ExportStatus()
        for words in ("nothing yet", "not known", "none in this run", "not yet"):
            self.assertIn(words, self.page())
        self.picture = attrs.evolve(STATUS, problems=("late", "<script>alert(1)"), error="<script>alert(2)")
        self.assertIn("PROBLEM: ", self.page())
        self.assertIn("late; &lt;script&gt;alert(1)", self.page())
        self.assertNotIn("<script>alert", self.page())
        self.failure = "no room"
        self.assertIn("it has failed: no room", self.page())

    def test_problems(self) -> None:
        """What is not in order is all in C{/readyz}; C{/healthz} is about an export that has failed."""
        self.picture = attrs.evolve(STATUS, problems=("late", "silent"))
        self.assertEqual(self.document("/readyz", 503)["reasons"], ["late", "silent"])
        self.assertEqual(self.document("/healthz"), {"status": "ok"})
        self.failure = "the disk is full"
        self.assertEqual(self.document("/readyz", 503)["reasons"], ["the disk is full"])
        self.assertEqual(self.document("/healthz", 503)["reason"], "the disk is full")

    def metrics(self) -> dict[str, float]:
        """Name to value."""
        response = self.successResultOf(self.treq.get("http://admin.test/metrics"))
        text = self.successResultOf(treq.text_content(response))
        return {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line[0] != "#"}

    def test_metrics(self) -> None:
        """Every number, by the name that the document has."""
        found = self.metrics()
        self.assertEqual(found["dledger_export_lag_seconds"], 2.5)
        self.assertEqual(found["dledger_export_last_commit_seconds"], 77.0)
        self.assertEqual(found["dledger_export_rows_total"], 50.0)
        self.assertEqual(found["dledger_export_is_ready"], 1.0)
        ours = [name for name in found if name.startswith("dledger_export_")]
        self.assertEqual(len(ours), len(EXPORT_GAUGES) + len(EXPORT_COUNTERS) + 1)
        self.picture = ExportStatus(problems=("late",))
        found = self.metrics()
        self.assertEqual((found["dledger_export_lag_bytes"], found["dledger_export_is_ready"]), (-1.0, 0.0))
        text = (DOCS / "spark-reference.md").read_text(encoding="utf-8")
        for name in ("dledger_export_lag_seconds", "dledger_export_is_ready"):
            self.assertIn(name, text)

    def test_our_fault(self) -> None:
        """An error of ours is in the log, and not in the answer."""
        self.pages = ExportPages(lambda: ExportStatus(**{"no": 1}), lambda: "")
        self.treq = StubTreq(self.pages.app.resource())
        self.assertEqual(self.document("/status", 500), {"error": "internal error"})
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)

    def test_loopback(self) -> None:
        """Unless an interface is named."""
        reactor = MemoryReactorClock()
        make_export_pages(lambda: STATUS, "tcp:8080", whole_reactor(reactor)).startService()
        self.assertEqual(reactor.tcpServers[0][3], "127.0.0.1")


class ThreadTests(SynchronousTestCase):
    """For a program without a reactor."""

    def test_served(self) -> None:
        """A page is there as long as it is served, and another program's port is an error."""
        ports: list[IListeningPort] = []
        with serving(lambda: STATUS, "tcp:0", listening=ports.append):
            port = ports[0].getHost().port
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30) as answer:
                self.assertEqual(json.load(answer)["lag_entries"], 4)
            with self.assertRaises(CannotListenError), serving(lambda: STATUS, f"tcp:{port}"):
                self.fail("two programs have one port")
        with self.assertRaises(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=30)
