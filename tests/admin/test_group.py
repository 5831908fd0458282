# -*- test-case-name: tests.admin.test_group -*-
"""The dashboard of a whole group: when its members are asked, and the content of the pages."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import treq
from treq.testing import StubTreq
from twisted.internet.address import IPv4Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.trial.unittest import SynchronousTestCase

from dledger.admin.dashboard.overview import Overview, group_overview, no_overview
from dledger.admin.dashboard.page import FINDINGS_SHOWN, dashboard_page
from dledger.admin.group import KEPT_S, OLD_S, WAIT_S, GroupPages, Looks, group_site
from tests.admin.test_dashboard import FOLLOWER, GONE, LEADER, NASTY, WELL, Tables
from tests.admin.test_diagnoses import details


def reported(member_id: str, number: int, at_s: float, name: str) -> dict[str, Any]:
    """An event as an administration reports it."""
    return {"member_id": member_id, "number": number, "at_s": at_s, "level": "info", "event": name,
            "facts": f"a={number}"}


def look(at_s: float = 1.0, **facts: Any) -> Overview:
    """Of a group that is well, of which the page of the leader was read."""
    page = {"peer_lag_bytes": {"n1": 640}, "uptime_s": 59, "disk_free_bytes": 1 << 30,
            "disk_total_bytes": 5 << 30, "store_path": "/data", **facts}
    return group_overview((LEADER, FOLLOWER, WELL), {"n0": details(**page)}, (), at_s=at_s, group="g")


class OverviewTests(SynchronousTestCase):
    """Made from the reports of members."""

    def test_events(self) -> None:
        """Those of all members, by time, the newest first; each with its member."""
        overview = group_overview((LEADER,), {"n0": details()}, (
            reported("n0", 1, 5.0, "role-changed"), reported("n0", 2, 9.0, "repaired"),
            reported("n1", 7, 7.0, "role-changed"),
        ), at_s=10.0, group="g")
        self.assertEqual([one.facts for one in overview.events],
                         ["member=n0 a=2", "member=n1 a=7", "member=n0 a=1"])
        self.assertEqual([one.at_s for one in overview.elections], [5.0, 7.0])
        text = dashboard_page(overview).decode()
        self.assertIn("Last events of the members", text)
        self.assertIn("member=n1 a=7", text)

    def test_page(self) -> None:
        """It is of no member: what the pages of all say, and no links to those of one."""
        text = dashboard_page(look()).decode()
        self.assertIn("<h1>Group g</h1>", text)
        self.assertIn("All members serve.", text)
        for words in ("This member", 'href="metrics"', "They are not known"):
            self.assertNotIn(words, text)
        self.assertIn('href="cluster"', text)
        tables = Tables(text).rows
        self.assertEqual([row[7] for row in tables["members"][1:]], ["0", "640", "unknown"])
        self.assertEqual(tables["disks"][1:],
                         [["n0", "0:00:59", "1.0 GiB", "5.0 GiB", "unknown", "unknown", "/data"]])
        gone = group_overview((LEADER, GONE), {}, (), at_s=1.0, group="g", unread={"n0": "refused"})
        text = dashboard_page(gone).decode()
        for words in ("n2: it does not answer", "its page was not read: refused"):
            self.assertIn(words, text)
        self.assertEqual(text.count("They are not known: no page of a member was read."), 5)

    def test_parts(self) -> None:
        """Readers as the leader knows them, machines and disks of each member; nothing becomes an element."""
        reader = {"name": NASTY, "next_index": 3, "lag": 97, "holders": [NASTY], "lag_bytes": 9}
        machine = {"name": NASTY, "version": 2, "state": "failed", "reason": NASTY, "lag": 3,
                   "applied_index": 96, "snapshot_index": -1}
        text = dashboard_page(look(
            readers=[reader], machine=machine, store_path=NASTY, set_aside_files=1, set_aside_bytes=9,
        )).decode()
        self.assertEqual(len(re.findall("<script", text)), 2)
        tables = Tables(text).rows
        self.assertIn("Named readers, as n0 knows them", text)
        self.assertEqual(tables["readers"][1], [NASTY, "3", "97", "9", NASTY])
        self.assertEqual(tables["machines"][1],
                         ["n0", f"{NASTY}, version 2", f"failed: {NASTY}", "96", "3", "none"])
        self.assertEqual(tables["disks"][1][5:], ["1 files, 9 B", NASTY])
        self.assertIn(NASTY, tables["found"][1][4])

    def test_crowd(self) -> None:
        """A crowd of findings is cut, and counted."""
        reports = [attrs.evolve(GONE, member_id=f"n{number}") for number in range(FINDINGS_SHOWN + 9)]
        text = dashboard_page(group_overview(reports, {}, (), at_s=1.0, group="g")).decode()
        self.assertEqual(len(Tables(text).rows["found"]), 1 + FINDINGS_SHOWN)
        self.assertIn(f"(of {FINDINGS_SHOWN + 10})", text)

    def test_nobody(self) -> None:
        """The reason, alone."""
        overview = no_overview("no member answers", at_s=1.0, group="g")
        self.assertEqual(overview.problem, "no member answers")
        self.assertIn("No member is known.", dashboard_page(overview).decode())


class LooksTests(SynchronousTestCase):
    """When the members are asked."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.begun = 0
        self.looks = Looks(look(), self.clock, self.begin)

    def begin(self) -> None:
        """A look is asked for."""
        self.begun += 1

    def ask(self) -> Deferred[Overview]:
        """A page is asked for."""
        return Deferred.fromCoroutine(self.looks.latest())

    def test_kept(self) -> None:
        """Nobody is asked for what was reported a moment ago."""
        self.clock.advance(KEPT_S / 2)
        self.assertEqual(self.successResultOf(self.ask()).at_s, 1.0)
        self.assertEqual(self.begun, 0)

    def test_one_at_a_time(self) -> None:
        """All who wait get the same look; without anybody none is made."""
        self.clock.advance(KEPT_S)
        first, second = self.ask(), self.ask()
        self.assertNoResult(first)
        self.assertEqual(self.begun, 1)
        self.looks.publish(look(2.0))
        self.assertEqual([self.successResultOf(one).at_s for one in (first, second)], [2.0, 2.0])
        self.clock.advance(10 * KEPT_S)
        self.assertEqual(self.begun, 1)
        third = self.ask()
        self.assertEqual(self.begun, 2)
        self.looks.publish(look(3.0))
        self.assertEqual(self.successResultOf(third).at_s, 3.0)

    def test_slow(self) -> None:
        """A page does not wait for long, and says how old it is; the look goes on."""
        self.clock.advance(KEPT_S)
        asked = self.ask()
        self.clock.advance(WAIT_S)
        self.assertEqual(self.successResultOf(asked), look())
        asked = self.ask()
        self.clock.advance(OLD_S - KEPT_S - WAIT_S)
        self.assertNoResult(asked)
        self.clock.advance(WAIT_S)
        age_s = WAIT_S + OLD_S
        old = self.successResultOf(asked)
        self.assertEqual(old.problem, f"these are the answers of {age_s:.0f} s ago; none since")
        self.assertEqual(self.begun, 1)
        self.looks.publish(look(2.0))
        self.assertEqual(self.successResultOf(self.ask()), look(2.0))

    def test_left(self) -> None:
        """A browser that leaves ends its own wait alone."""
        self.clock.advance(KEPT_S)
        first, second = self.ask(), self.ask()
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.assertEqual(len(self.looks._waiting), 1)
        self.looks.publish(look(2.0))
        self.assertEqual(self.successResultOf(second).at_s, 2.0)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class PagesTests(SynchronousTestCase):
    """What is served."""

    def setUp(self) -> None:
        async def latest() -> Overview:
            return attrs.evolve(look(set_aside_files=1), problems=("bad luck",))

        self.latest = latest
        self.treq = StubTreq(GroupPages(latest).app.resource())

    def ask(self, path: str, accept: str = "*/*", method: str = "GET") -> tuple[int, str]:
        """Status and text."""
        asked = self.treq.request(method, f"http://x{path}", headers={"accept": accept})
        response = self.successResultOf(asked)
        return response.code, self.successResultOf(treq.text_content(response))

    def test_pages(self) -> None:
        """The dashboard for browsers, JSON for programs, nothing that changes anything."""
        for path in ("/", "/live"):
            status, text = self.ask(path, "text/html")
            self.assertEqual(status, 200)
            self.assertIn("bad luck", text)
        self.assertEqual(set(json.loads(self.ask("/")[1])["pages"]), {"/live", "/cluster"})
        document = json.loads(self.ask("/cluster")[1])
        self.assertEqual((document["group"], document["problems"]), ("g", ["bad luck"]))
        self.assertEqual([one["member_id"] for one in document["members"]], ["n0", "n1", "n2"])
        self.assertEqual([one["level"] for one in document["findings"]], ["look"])
        self.assertEqual(self.ask("/flush")[0], 404)
        self.assertEqual(self.ask("/live", method="POST")[0], 405)

    def test_path(self) -> None:
        """Nothing is served beside a path that was not reported; foreign hosts are refused."""
        reactor = MemoryReactorClock()
        for path, asked, host, status in (
            ("", "/cluster", "localhost", b"200"), ("secret", "/secret/cluster", "localhost", b"200"),
            ("secret", "/secret/", "127.0.0.1:5", b"200"), ("secret", "/cluster", "localhost", b"404"),
            ("secret", "/", "localhost", b"404"), ("", "/cluster", "evil.example", b"421"),
        ):
            site: Any = group_site(self.latest, reactor, path=path)
            site.doStart()
            channel = site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 5))
            transport = StringTransport()
            channel.makeConnection(transport)
            channel.dataReceived(f"GET {asked} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            self.assertEqual(transport.value().split()[1], status, (path, asked, host))
            site.doStop()
