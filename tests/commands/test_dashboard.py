# -*- test-case-name: tests.commands.test_dashboard,tests.processes.test_operator -*-
"""C{dledger dashboard}: its questions, its output, and how it ends."""

from __future__ import annotations

import re
import socket
from typing import Any

from twisted.internet.defer import Deferred

from dledger.cli.ledger import dashboard, member_pages
from dledger.cli.main import Target
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from tests.commands.test_status import page
from tests.commands.test_watch import WatchCase


class DashboardTests(WatchCase):
    """A group of two."""

    def setUp(self) -> None:
        super().setUp()
        self.waits = 0
        self.patch(dashboard, "_wait", self.wait)

    def wait(self, _wanted: object) -> None:
        """Somebody looks twice; then Ctrl-C."""
        self.waits += 1
        if self.waits > 2:
            raise KeyboardInterrupt

    def test_ends_by_hand(self) -> None:
        """The address, a look for each that is wanted, and no error."""
        result = self.run_cli("dashboard")
        self.assertExit(result, 0, "Ctrl-C ends it")
        self.assertRegex(result.stdout, r"^http://127\.0\.0\.1:\d+/\n$")
        self.assertEqual(self.log.calls, [("status",)] * 3)

    def test_secret(self) -> None:
        """What members show to holders of a token only, other users of this machine do not find."""
        path = self.mktemp()
        with open(path, "w") as file:
            file.write("abc\n")
        said = {self.run_cli("--admin-token-file", path, "dashboard").stdout for _ in range(2)}
        self.assertEqual(len(said), 2)
        for line in said:
            self.assertRegex(line, r"^http://127\.0\.0\.1:\d+/[\w-]{22}/\n$")

    def test_port(self) -> None:
        """One line if it is taken."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.assertExit(self.run_cli("dashboard", "--port", str(port)), 1, f"--port {port}: ", "in use")

    def test_nobody(self) -> None:
        """A group must answer; one that is lost later is a line on the page."""
        self.log.fails = DLedgerError(ResponseCode.NETWORK_ERROR, reason="no network")
        shown = self.run_cli("dashboard", env={"DLEDGER_PEERS": ""})
        self.assertExit(shown, 1, "no members named: asking n0", "no network")
        self.log.fails = DLedgerError(ResponseCode.NETWORK_ERROR, reason="no network")
        self.assertExit(self.run_cli("dashboard"), 1, "no network")
        target = Target(peers="n0-h:1", group="g", timeout=1.0, wire="auto")
        self.assertEqual(dashboard._tried(target, ()).problem, "NETWORK_ERROR (302): no network")
        self.pages({})
        self.assertEqual(dashboard._tried(Target(peers="", group="g", timeout=1.0, wire="auto"),
                                          ("http://a",)).problem, "no member answers")

    def test_look(self) -> None:
        """The group has the name that its members report; their events come from their administrations."""
        event = {"number": 1, "at_s": 2.0, "level": "info", "event": "repaired", "facts": "x=1"}
        self.pages({
            "http://n0.test:8080/status": {**page("n0", role="leader"), "disk_free_bytes": 7},
            "http://n0.test:8080/events": {"self_id": "n0", "events": [event]},
        })
        target: Any = Target(peers="n0-h:1", group="mine", timeout=1.0, wire="auto")
        overview = dashboard.look_at(target, ())
        self.assertEqual((overview.group, overview.events, overview.details), ("mine", (), {}))
        (found, _n1) = [one.found for one in overview.findings if one.level == "look"][-2:]
        self.assertEqual(found, "its page was not read: it names none that this machine reaches")
        self.log.infos = (self.leader(admin="n0.test:8080"), self.log.infos[1])
        overview = dashboard.look_at(target, ())
        self.assertEqual([one.facts for one in overview.events], ["member=n0 x=1"])
        self.assertEqual(overview.details["n0"].disk_free_bytes, 7)
        overview = dashboard.look_at(target, ("http://n0.test:8080",))
        self.assertEqual(overview.group, page("n0", role="leader")["member"]["group"])
        self.assertEqual(re.findall("n0 x=1", overview.events[0].facts), ["n0 x=1"])

    def test_pages_that_are_none(self) -> None:
        """The page of another member, and one that does not come, are findings; the rest is shown."""
        url = "http://n0.test:8080"
        event = {"number": 1, "at_s": 2.0, "level": "info", "event": "x", "facts": ""}
        self.log.infos = (self.leader(admin="n0.test:8080"), self.log.infos[1])
        target: Any = Target(peers="n0-h:1", group="mine", timeout=1.0, wire="auto")
        mine, events = page("n0", role="leader"), {"self_id": "n0", "events": [event]}
        for status, seen, words in (
            (page("n1"), events, "it is member 'n1'"),
            (mine, {**events, "self_id": "n1"}, "it is member 'n1'"),
            (mine, Deferred(), "no answer in 0 s"), ({"member": 5}, events, "not a status page"),
        ):
            self.pages({f"{url}/status": status, f"{url}/events": seen})
            self.patch(member_pages, "DEADLINE_S", 0.0 if isinstance(seen, Deferred) else 9.0)
            overview = dashboard.look_at(target, ())
            self.assertEqual((len(overview.reports), overview.details, overview.events), (2, {}, ()))
            (found,) = [one.found for one in overview.findings if one.about == "n0"]
            self.assertIn(f"its page was not read: {url}: ", found)
            self.assertIn(words, found)
