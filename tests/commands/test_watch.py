# -*- test-case-name: tests.commands.test_watch -*-
"""The commands that look at a group."""

from __future__ import annotations

import json
from typing import Any, cast

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError

from dledger.cli.console import administration
from dledger.cli.ledger import member_pages, watch
from tests.commands.fakes import CliCase, info

PEERS = {"n0": "n0.test:20911", "n1": "n1.test:20911"}


class WatchCase(CliCase):
    """A group of two."""

    def setUp(self) -> None:
        super().setUp()
        self.log.infos = (self.leader(), info("n1", role="follower", term=3, leader_id="n0", begin_index=0,
                                              end_index=40, committed_index=40, peers=PEERS))

    def leader(self, **facts: Any) -> Any:
        """What n0 says."""
        values = {"role": "leader", "term": 3, "leader_id": "n0", "begin_index": 0, "end_index": 41,
                  "committed_index": 41, "peers": PEERS}
        return info("n0", **{**values, **facts})

    def pages(self, pages: dict[str, Any]) -> None:
        """The answers of the administrations, by URL and path."""

        async def fetch(agent: object, url: str, path: str, timeout_s: float, clock: object) -> Any:
            found = pages.get(url + path)
            if isinstance(found, Deferred):
                return await found
            return await (fail(ConnectionRefusedError()) if found is None else succeed(found))

        async def status(agent: object, url: str, timeout_s: float, clock: object) -> Any:
            return await fetch(agent, url, "/status", timeout_s, clock)

        self.patch(watch, "fetch_page", fetch)
        self.patch(member_pages, "fetch_page", fetch)
        self.patch(administration, "fetch_status", status)


class HealthTests(WatchCase):
    """C{dledger health}."""

    def test_healthy(self) -> None:
        """A line for each, exit status 0."""
        result = self.run_cli("health")
        self.assertExit(result, 0)
        self.assertEqual(result.stdout, "n0\tok\tleader\nn1\tok\tfollower\n")

    def test_not_healthy(self) -> None:
        """The reason, exit status 1."""
        self.log.infos = (self.leader(peers={**PEERS, "n2": "n2.test:20911"}),
                          info("n1", role="follower", health="disk full"),
                          info("n2", problem="connection refused"))
        result = self.run_cli("health")
        self.assertExit(result, 1, "n1\tnot healthy\tdisk full\n", "n2\tnot healthy\tconnection refused\n")
        document = json.loads(self.run_cli("health", "--json").stdout)
        self.assertEqual((document["is_healthy"], document["problems"]), (False, []))
        self.assertEqual(document["members"][2],
                         {"member_id": "n2", "is_healthy": False, "reason": "connection refused"})

    def test_replaced_member(self) -> None:
        """A member that is gone from the group, and silent, is no problem of the group."""
        self.log.infos = (*self.log.infos, info("n2", problem="connection refused"))
        result = self.run_cli("health")
        self.assertExit(result, 0, "n2 is not a member of the group any more: leave it out of --peers")
        self.assertEqual(result.stdout, "n0\tok\tleader\nn1\tok\tfollower\n")
        self.assertEqual(len(json.loads(self.run_cli("status", "--json").stdout)), 2)
        # (Without a leader nobody knows; who answers is shown.)
        self.log.infos = (self.log.infos[1], self.log.infos[2])
        self.assertExit(self.run_cli("health"), 1, "n2\tnot healthy\tconnection refused")
        self.log.infos = (self.leader(), info("n2", role="follower", health="removed: stop it"))
        self.assertExit(self.run_cli("health"), 1, "n2\tnot healthy\tremoved: stop it")

    def test_group(self) -> None:
        """Two leaders, or two lists of members, are no health."""
        self.log.infos = (self.leader(), info("n1", role="leader", term=4))
        self.assertExit(self.run_cli("health"), 1, "2 members lead: n0 in term 3, n1 in term 4")
        self.log.infos = (self.leader(), info("n1", role="follower", peers={"n1": "x:1"}))
        for command in ("health", "status", "cluster"):
            self.assertExit(self.run_cli(command), 1,
                            "the members do not agree on who they are: n0 know n0 n1; n1 know n1")


class ClusterTests(WatchCase):
    """C{dledger cluster}."""

    def test_one_table(self) -> None:
        """With the versions that members report."""
        self.log.infos = (self.leader(version="1.2.3"), self.log.infos[1])
        result = self.run_cli("cluster")
        self.assertExit(result, 0)
        header, n0, n1 = [line.split() for line in result.stdout.splitlines()]
        self.assertEqual(header[7:10], ["leader", "version", "address"])
        self.assertEqual((n0[:2], n0[8], n1[8]), (["n0", "leader"], "1.2.3", "-"))
        document = json.loads(self.run_cli("cluster", "--json").stdout)
        self.assertEqual([one["version"] for one in document["members"]], ["1.2.3", ""])
        self.assertEqual(document["problems"], [])


class TopTests(WatchCase):
    """C{dledger top}."""

    def test_rates(self) -> None:
        """From two looks; the end after the last without a pause."""
        times = iter((10.0, 12.0))
        self.patch(watch, "_seconds", lambda: next(times))
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            self.log.infos = (self.leader(end_index=2041), self.log.infos[1])

        self.patch(watch, "_sleep", sleep)
        result = self.run_cli("top", "--count", "2", "--interval", "2")
        self.assertExit(result, 0)
        rows = [line.split() for line in result.stdout.splitlines()]
        self.assertEqual((rows[0][8], rows[1][8], rows[4][8], rows[5][8]), ("entries/s", "-", "1,000", "0"))
        self.assertEqual(pauses, [2.0])

    def test_nobody(self) -> None:
        """With a count the status is 1 when no member has answered the last look."""
        self.log.infos = tuple(info(f"n{at}", problem="connection refused") for at in range(3))
        self.assertExit(self.run_cli("top", "--count", "1"), 1, "connection refused")

    def test_ends_by_hand(self) -> None:
        """Ctrl-C is the usual end; as objects."""
        def interrupt(_seconds: float) -> None:
            raise KeyboardInterrupt

        self.patch(watch, "_sleep", interrupt)
        result = self.run_cli("top", "--json")
        self.assertExit(result, 0)
        self.assertEqual(json.loads(result.stdout)["members"][0]["entries_per_s"], None)
        self.assertEqual(result.stdout.count("\n"), 1)


class EventTests(WatchCase):
    """C{dledger events}."""

    def event(self, number: int, at_s: float, words: str) -> dict[str, object]:
        """One of a page."""
        name, _, facts = words.partition(" ")
        return {"number": number, "at_s": at_s, "level": "info", "event": name, "facts": facts}

    def test_in_order(self) -> None:
        """Of all members, by time; words are shown as they are, without control characters."""
        self.pages({
            "http://a/events": {"self_id": "n0", "events": [self.event(1, 1.0, "role-changed role=leader"),
                                                            self.event(2, 3.0, "x y=\x1b[2J")]},
            "http://b/events": {"self_id": "n1", "events": [self.event(7, 2.0, "truncating index=5")]},
        })
        arguments = ("events", "--admin", "http://a", "--admin", "http://b")
        result = self.run_cli(*arguments)
        self.assertExit(result, 0)
        self.assertEqual(result.stdout.splitlines(), [
            "1970-01-01T00:00:01.000+00:00\tn0\tinfo\trole-changed role=leader",
            "1970-01-01T00:00:02.000+00:00\tn1\tinfo\ttruncating index=5",
            "1970-01-01T00:00:03.000+00:00\tn0\tinfo\tx y=\\x1b[2J",
        ])
        (last,) = json.loads(self.run_cli(*arguments, "-n", "1", "--json").stdout)
        self.assertEqual((last["member_id"], last["number"]), ("n0", 2))

    def test_from_peers(self) -> None:
        """The log ports say where the administration is."""
        self.pages({"http://n0.test:8080/events": {"self_id": "n0", "events": []}})
        self.assertExit(self.run_cli("events"), 1, "give --admin")
        self.log.infos = (self.leader(admin="n0.test:8080"), self.log.infos[1])
        self.assertExit(self.run_cli("events"), 0)

    def test_another_page(self) -> None:
        """One line; what is no event is not shown."""
        times = ("x", float("nan"), float("inf"), -1.0, 1e300)
        for document in ({"self_id": "n0"}, {"self_id": "n0", "events": [5]}, {"events": []}, *(
            {"self_id": "n0", "events": [self.event(1, cast("float", at_s), "x")]} for at_s in times
        )):
            self.pages({"http://a/events": document})
            self.assertExit(self.run_cli("events", "--admin", "http://a"), 1, "not a page of events")

    def test_bounds(self) -> None:
        """A page of any length gives its last events, with facts of some length."""
        events = [self.event(number, 1.0, "x " + "y" * 9999) for number in range(5000)]
        page: dict[str, object] = {"self_id": "n0", "events": events}
        found = watch.events_of("n0", page)
        self.assertEqual((len(found), found[-1]["number"]), (watch.EVENTS_MAX, 4999))
        self.assertEqual(len(found[0]["facts"]), watch.FACTS_CHARACTERS_MAX)

    def test_silent(self) -> None:
        """Said, exit status 1."""
        self.pages({})
        self.assertExit(self.run_cli("events", "--admin", "http://a"), 1, "http://a: Connection was refused")
