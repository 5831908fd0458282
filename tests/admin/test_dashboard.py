# -*- test-case-name: tests.admin.test_dashboard -*-
"""The dashboard: its content, that it trusts nobody, and who gets which page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import attrs
import treq
from treq.testing import StubTreq
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.dashboard.frame import POLICY
from dledger.admin.dashboard.overview import (
    ELECTIONS_SHOWN,
    EVENTS_SHOWN,
    Overview,
    group_overview,
    overview_of,
    plotted_numbers,
)
from dledger.admin.dashboard.page import dashboard_page
from dledger.admin.resource import SURVEY_KEPT_S, AdminApp
from dledger.admin.sites.reports import MemberReport
from dledger.base.histogram import Histogram
from dledger.node.reporting.reports import SeenEvent
from protocols.wire.ledger.readers import ReaderInfo
from tests.admin.fakes import MACHINE, FakeNode, picture

NASTY = "<script>alert('x')</script>\"&"
LEADER = MemberReport(
    member_id="n0", address="n0.test:1", source="self", role="leader", term=7, begin_index=5, end_index=100,
    committed_index=99, lag=0,
)
FOLLOWER = MemberReport(
    member_id="n1", address="n1.test:1", source="admin", admin_url="http://n1.test:2", role="follower",
    term=7, begin_index=5, end_index=90, committed_index=90, lag=10, version="1",
)
GONE = MemberReport(member_id="n2", address="n2.test:1", source="log", problem="connection refused")
WELL = MemberReport(
    member_id="n2", address="n2.test:1", source="log", role="follower", term=7, begin_index=5, end_index=100,
    committed_index=99, lag=0,
)


def event(number: int, name: str = "repaired", facts: str = "") -> SeenEvent:
    """An event of a minute after 1970."""
    return SeenEvent(number=number, at_s=60.0, level="info", event=name, facts=facts)


def overview(*reports: MemberReport, events: tuple[SeenEvent, ...] = (), **facts: Any) -> Overview:
    """Of a group whose member n0 serves the page."""
    facts = {"tls_expires_s": -1.0, "fsync": Histogram(), **facts}
    return overview_of(picture(**facts), reports or (LEADER, FOLLOWER, WELL), events, at_s=1_700_000_000.0)


class Tables(HTMLParser):
    """The rows of each table by its id, and that every element ends."""

    VOID = frozenset({"meta", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self.open: list[str] = []
        self._name = ""
        self._is_cell = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See L{HTMLParser}."""
        if tag in self.VOID:
            return
        self.open.append(tag)
        if tag == "section":
            self._name = str(dict(attrs).get("aria-labelledby")).removesuffix("-title")
        elif tag == "tr":
            self.rows.setdefault(self._name, []).append([])
        elif tag in ("td", "th"):
            self._is_cell = True
            self.rows[self._name][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        """See L{HTMLParser}."""
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()
        if tag in ("td", "th"):
            self._is_cell = False

    def handle_data(self, data: str) -> None:
        """See L{HTMLParser}."""
        if self._is_cell:
            self.rows[self._name][-1][-1] += data


class PageTests(SynchronousTestCase):
    """HTML of an overview."""

    def tables(self, of: Overview) -> dict[str, list[list[str]]]:
        """The rows of its tables; the first has the headings."""
        parsed = Tables(dashboard_page(of).decode())
        self.assertEqual(parsed.open, [])
        return parsed.rows

    def test_members(self) -> None:
        """One row a member, with its own report and the leader's view of it."""
        heads, *rows = self.tables(overview(LEADER, FOLLOWER, GONE))["members"]
        self.assertEqual(heads[:8], ["Member", "Role", "Term", "First", "Last", "Committed", "Lag, entries",
                                     "Lag, bytes"])
        self.assertEqual(rows, [
            ["n0", "leader", "7", "5", "100", "99", "0", "0", "serves", "unknown", "n0.test:1"],
            ["n1", "follower", "7", "5", "90", "90", "10", "640", "serves", "1", "n1.test:1"],
            ["n2", "unknown", *["unknown"] * 6, "connection refused", "unknown", "n2.test:1"],
        ])

    def test_links(self) -> None:
        """A member's own dashboard is one click away; other schemes than HTTP are not followed."""
        self.assertIn('<a href="http://n1.test:2/">n1</a>', dashboard_page(overview()).decode())
        odd = MemberReport(member_id="n1", address="", source="admin", admin_url="javascript:alert(1)")
        self.assertNotIn("javascript:", dashboard_page(overview(LEADER, odd)).decode())

    def test_state(self) -> None:
        """In one line: the group, and its members; a table has what to do, the worst first."""
        good = dashboard_page(overview()).decode()
        self.assertIn("All members serve.", good)
        self.assertIn("<title>g - dledger</title>", good)
        self.assertNotIn("found", self.tables(overview()))
        look = overview(set_aside_files=2)
        self.assertIn("All members serve. Some things are to be looked at.", dashboard_page(look).decode())
        self.assertEqual(self.tables(look)["found"][1][:3], ["look", "n0", "files set aside: 2 (0 bytes)"])
        ill = overview(
            FOLLOWER, attrs.evolve(LEADER, role="follower"), GONE, leader_id=None, is_disk_full=True,
            set_aside_files=2,
        )
        bad = dashboard_page(ill).decode()
        for words in ("no member leads; n0: disk full: ", "n2: it does not answer at n2.test:1: connection",
                      "<title>PROBLEM: g"):
            self.assertIn(words, bad)
        _heads, *rows = self.tables(ill)["found"]
        self.assertEqual([row[:2] for row in rows],
                         [["wrong", "group"], ["wrong", "n0"], ["wrong", "n2"], ["look", "n0"]])
        self.assertTrue(all(all(row) for row in rows), rows)

    def test_escaped(self) -> None:
        """Nothing that a member says becomes an element, or ends the block of numbers."""
        said = MemberReport(
            member_id=NASTY, address=NASTY, source="log", role=NASTY, health=NASTY, version=NASTY,
            end_index=3, admin_url="http://x/" + NASTY,
        )
        text = dashboard_page(overview(
            said, events=(event(1, NASTY, NASTY), event(2, "role-changed", NASTY)), group=NASTY,
            store_path=NASTY, refusals={NASTY: 1}, begin_moved=NASTY,
        )).decode()
        self.assertNotIn("<script>alert", text)
        self.assertEqual(len(re.findall("<script", text)), 2)
        numbers = re.search(r'<script id="numbers" type="application/json">(.*?)</script>', text)
        assert numbers is not None
        self.assertEqual(json.loads(numbers[1])["counters"]["Entries"], [3, "entries/s"])

    def test_policy(self) -> None:
        """The browser runs the page's own script and style, and loads nothing else."""
        text = dashboard_page(overview()).decode()
        for tag in ("style", "script"):
            found = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
            assert found is not None
            digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
            self.assertIn(f"{tag}-src 'sha256-{digest}'", POLICY)
        self.assertIn("default-src 'none'", POLICY)
        self.assertEqual(re.findall(r'(?:src|href)="(?!http://n1|[a-z.]+"|data:,)', text), [])

    def test_facts(self) -> None:
        """The numbers of the member itself, sizes for people."""
        text = dashboard_page(overview(
            machine=MACHINE, append_bytes=5 << 20, disk_free_bytes=-1, disk_total_bytes=3 << 40,
        )).decode()
        for words in ("50, 5.0 MiB", "unknown of 3.0 TiB free", "Machine kv</span>",
                      "running, lacks 9 entries", "NOT_LEADER 4", "77 B are not"):
            self.assertIn(words, text)

    def test_readers(self) -> None:
        """With their lag and their processes, the latest first; a sentence where there are none."""
        self.assertNotIn("readers", self.tables(overview()))
        self.assertIn("There are none.", dashboard_page(overview()).decode())
        readers = (ReaderInfo(name="!b", next_index=100, lag=0, holders=()),
                   ReaderInfo(name=NASTY, next_index=3, lag=97, holders=("p1", "p2"), lag_bytes=1000))
        page = overview(readers=readers, reader_count=5000)
        self.assertEqual(self.tables(page)["readers"][1:], [
            [NASTY, "3", "97", "1,000", "p1, p2"], ["!b", "100", "0", "unknown", "nobody"],
        ])
        self.assertIn("Named readers, as n0 knows them (of 5,000)", dashboard_page(page).decode())

    def test_events(self) -> None:
        """The newest first; changes of the role besides in a table of their own; both bounded."""
        many = tuple(event(number, "role-changed" if number % 2 else "repaired", f"a={number}")
                     for number in range(300))
        tables = self.tables(overview(events=many))
        self.assertEqual([row[3] for row in tables["events"][1:3]], ["a=299", "a=298"])
        self.assertEqual(tables["elections"][1], ["1970-01-01 00:01:00", "info", "role-changed", "a=299"])
        self.assertEqual(len(tables["events"]), 1 + EVENTS_SHOWN)
        self.assertEqual(len(tables["elections"]), 1 + ELECTIONS_SHOWN)

    def test_frame(self) -> None:
        """Without an overview there are no numbers, and no reload that would forget the token."""
        text = dashboard_page(None).decode()
        self.assertEqual(Tables(text).rows, {})
        self.assertNotIn("numbers\" type", text)
        self.assertNotIn("http-equiv", text)
        self.assertIn('http-equiv="refresh" content="5"', dashboard_page(overview()).decode())


class NumbersTests(SynchronousTestCase):
    """What is drawn."""

    def test_numbers(self) -> None:
        """The end and the lag of those that reported them, and the counters of the member."""
        readers = (ReaderInfo(name="b", next_index=100, lag=7, holders=()),)
        numbers = plotted_numbers(overview(
            LEADER, FOLLOWER, GONE, fsync=picture().counts.fsync, readers=readers, machine=MACHINE,
        ))
        self.assertEqual(numbers["counters"]["Entries"], (100, "entries/s"))
        self.assertEqual(numbers["gauges"], {
            "Lag of the last member": (10, "entries"), "Lag of the last reader": (7, "entries"),
            "Lag of the last state machine": (9, "entries"), "Appends without an answer": (3, "appends"),
        })
        fsync = numbers["times"]["Time of fsyncs"]
        self.assertEqual(sum(fsync["counts"]), 4)
        self.assertEqual(len(fsync["counts"]), len(fsync["bounds"]) + 1)

    def test_no_member(self) -> None:
        """A page that no member serves has the group alone."""
        numbers = plotted_numbers(group_overview((LEADER,), {}, (), at_s=1.0, group="g"))
        self.assertEqual(numbers, {
            "at_s": 1.0, "uptime_s": 0.0, "counters": {"Entries": (100, "entries/s")},
            "gauges": {"Lag of the last member": (0, "entries")}, "times": {},
        })
        gone = group_overview((GONE,), {}, (), at_s=1.0, group="g")
        self.assertEqual(plotted_numbers(gone)["counters"], {})


class ServedTests(SynchronousTestCase):
    """Who gets which page."""

    def app(self, *, is_public: bool = True) -> StubTreq:
        """The pages of a member."""
        self.clock = Clock()
        self.surveys = 0

        async def survey() -> tuple[MemberReport, ...]:
            self.surveys += 1
            return LEADER, FOLLOWER, WELL

        app = AdminApp(FakeNode(), survey, self.clock, wall_s=lambda: 1_700_000_000.0, is_public=is_public)
        return StubTreq(app.app.resource())

    def ask(self, stub: StubTreq, path: str, accept: str) -> tuple[Any, str]:
        """The response, and its text."""
        self.clock.advance(SURVEY_KEPT_S)
        asked = stub.get(f"http://admin.test{path}", headers={"accept": accept})
        response = self.successResultOf(asked)
        return response, self.successResultOf(treq.text_content(response))

    def test_negotiated(self) -> None:
        """Browsers get the dashboard at C{/}, programs the list of pages as before."""
        stub = self.app()
        response, text = self.ask(stub, "/", "text/html,application/xhtml+xml,*/*;q=0.8")
        self.assertIn("Group g, member n0", text)
        self.assertEqual(response.headers.getRawHeaders("content-type"), ["text/html; charset=utf-8"])
        self.assertEqual(response.headers.getRawHeaders("content-security-policy"), [POLICY])
        self.assertEqual(response.headers.getRawHeaders("vary"), ["Accept"])
        for accept in ("*/*", "application/json", ""):
            response, text = self.ask(stub, "/", accept)
            self.assertIn("/live", json.loads(text)["pages"])
            self.assertEqual(response.headers.getRawHeaders("vary"), ["Accept"])

    def test_token(self) -> None:
        """If reading needs a token, C{/} shows the frame without a number."""
        stub = self.app(is_public=False)
        _, text = self.ask(stub, "/", "text/html")
        self.assertNotIn("Group g", text)
        self.assertEqual(self.surveys, 0)
        _, text = self.ask(stub, "/live", "text/html")  # (the guard has seen the token)
        self.assertIn("Group g, member n0", text)

    def test_kept(self) -> None:
        """Many browsers cost one survey and one page in L{SURVEY_KEPT_S}."""
        stub = self.app()
        first = self.ask(stub, "/live", "text/html")[1]
        for _ in range(9):
            self.clock.advance(SURVEY_KEPT_S / 20)
            asked = self.successResultOf(stub.get("http://admin.test/live"))
            self.assertEqual(self.successResultOf(treq.text_content(asked)), first)
        self.assertEqual(self.surveys, 1)
