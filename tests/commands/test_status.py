# -*- test-case-name: tests.commands.test_status -*-
"""The table of members."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError

from dledger.cli.console import administration
from dledger.cli.ledger import members_table
from tests.commands.fakes import CliCase, info

PEERS = {"n0": "n0.test:20911", "n1": "n1.test:20911"}


def page(member_id: str, **facts: Any) -> dict[str, Any]:
    """What C{/status} of a member says."""
    member = {
        "self_id": member_id, "group": "default", "role": "follower", "term": 7, "leader_id": "n0",
        "ledger_begin_index": 3, "ledger_end_index": 41, "committed_index": 40, **facts,
    }
    return {"member": member, "peer_addresses": PEERS, "problem": "repairing" if member_id == "n1" else ""}


class StatusTests(CliCase):
    """C{dledger status}."""

    def admins(self, pages: dict[str, dict[str, Any]]) -> None:
        """The answers of the administrations."""

        async def fetch(agent: object, url: str, timeout_s: float, clock: object) -> Any:
            answer: Deferred[Any] = (
                succeed(pages[url]) if url in pages else fail(ConnectionRefusedError())
            )
            return await answer

        self.patch(administration, "fetch_status", fetch)

    def rows(self, *args: str, status: int = 0) -> list[list[str]]:
        """Cells of the table."""
        result = self.run_cli("status", *args)
        self.assertExit(result, status)
        return [line.split() for line in result.stdout.splitlines()]

    def test_log_ports(self) -> None:
        """Everybody on one line; those without an answer with the reason."""
        header, n0, n1, n2 = self.rows()
        self.assertEqual(header[:7], ["member", "role", "term", "begin", "end", "committed", "lag"])
        self.assertEqual(n0, ["n0", "leader", "3", "0", "41", "41", "0", "n0", "n0.test:20911"])
        self.assertEqual(n1, ["n1", "follower", "-", "0", "40", "39", "1", "n0", "n1.test:20911"])
        self.assertEqual(n2[:2] + n2[-3:], ["n2", "unreachable", "n2.test:20911", "connection", "refused"])

    def test_health_on_log_ports(self) -> None:
        """A member that answers and does not serve says why; its words are no markup."""
        self.log.infos = (
            info("n0", role="leader", term=3, leader_id="n0"),
            info("n1", role="follower", term=3, leader_id="n0", health="disk [bold]full[/x]\x1b[2J"),
        )
        _header, _n0, n1 = self.rows()
        self.assertEqual(n1[-3:], ["disk", "[bold]full[/x]", "[2J"])

    def test_two_leaders(self) -> None:
        """Named, and no success."""
        self.log.infos = (
            info("n0", role="leader", term=3, leader_id="n0"),
            info("n1", role="leader", term=4, leader_id="n1"),
        )
        result = self.run_cli("status")
        self.assertExit(result, 1)
        self.assertIn("2 members lead: n0 in term 3, n1 in term 4", result.stderr)

    def test_narrow_terminal(self) -> None:
        """Numbers are never cut."""
        self.log.infos = (info("n0", role="leader", term=3, leader_id="n0", begin_index=10**12,
                               end_index=10**12 + 5, committed_index=10**12 + 4),)
        self.patch(members_table, "_WIDTH_ELSEWHERE", 60)
        result = self.run_cli("status")
        for number in (10**12, 10**12 + 5, 10**12 + 4):
            self.assertIn(str(number), result.stdout)

    def test_empty_and_unsaid(self) -> None:
        """An empty log is not an unknown one."""
        self.log.infos = (
            info("n0", role="leader", begin_index=-1, end_index=-1, committed_index=-1, leader_id="n0"),
            info("n1"),
        )
        _header, n0, n1 = self.rows()
        self.assertEqual(n0[2:7], ["-", "empty", "empty", "empty", "0"])
        self.assertEqual(n1[1:8], ["-", "-", "-", "-", "-", "-", "none"])

    def test_no_leader(self) -> None:
        """Exit status 1."""
        self.log.infos = (info("n0", role="follower"),)
        self.assertExit(self.run_cli("status"), 1, "no member leads")

    def test_json(self) -> None:
        """For programs."""
        document = json.loads(self.run_cli("status", "--json").stdout)
        self.assertEqual([member["member_id"] for member in document], ["n0", "n1", "n2"])
        self.assertEqual((document[1]["lag"], document[2]["problem"]), (1, "connection refused"))

    def test_json_has_versions(self) -> None:
        """Those that members report on their log ports; nothing of members that are down."""
        self.log.infos = (
            info("n0", role="leader", leader_id="n0", version="0.2.0"), info("n1", problem="refused"),
        )
        document = json.loads(self.run_cli("status", "--json").stdout)
        self.assertEqual([member["version"] for member in document], ["0.2.0", ""])

    def test_admin(self) -> None:
        """Members with an administration are asked there; the group's members are known from it."""
        self.admins({"http://a": page("n0", role="leader"), "http://b": page("n1")})
        _header, n0, n1 = self.rows("--admin", "http://a", "--admin", "http://b")
        self.assertEqual(n0[:7], ["n0", "leader", "7", "3", "41", "40", "0"])
        self.assertEqual(n1[-1], "repairing")
        self.assertEqual(self.log.calls, [])

    def test_admin_and_log_ports(self) -> None:
        """The others are asked on their log ports, without C{--peers}."""
        self.admins({"http://a": page("n0", role="leader")})
        result = self.run_cli("status", "--json", "--admin", "http://a", env={"DLEDGER_PEERS": ""})
        sources = {member["member_id"]: member["source"] for member in json.loads(result.stdout)}
        self.assertEqual(sources, {"n0": "admin", "n1": "log"})
        self.assertEqual(self.opened[0][0], "n0-n0.test:20911;n1-n1.test:20911")

    def test_silent_admin(self) -> None:
        """Named, and the log ports are asked."""
        self.admins({})
        result = self.run_cli("status", "--admin", "http://a")
        self.assertExit(result, 0, "http://a: ", "leader")

    def test_foreign_pages(self) -> None:
        """A page of another program is named with its URL, and the others are asked."""
        sound = page("n1")
        for foreign, words in (
            ({}, "not a status page"), ({"member": None}, "not a status page"),
            ({"member": {}}, "not a status page"), ({"member": {"self_id": []}}, "not a status page"),
            ({"member": sound["member"]}, "not a status page"),
            ({"member": {"self_id": "n1", "group": "g"}, "peer_addresses": PEERS}, "KeyError('role')"),
            ({**sound, "peer_addresses": {"n0": "n0.test:1"}}, "not a status page"),
            ({**sound, "peer_addresses": {"n1": 7}}, "'7' is not an address"),
            ({**sound, "member": {**sound["member"], "term": "x"}}, "ValueError"),
        ):
            with self.subTest(foreign=foreign):
                self.admins({"http://a": foreign, "http://b": page("n0", role="leader")})
                result = self.run_cli("status", "--json", "--admin", "http://a", "--admin", "http://b")
                self.assertExit(result, 0, "http://a: no dledger member answered: ", words)
                sources = {one["member_id"]: one["source"] for one in json.loads(result.stdout)}
                self.assertEqual(sources["n0"], "admin")

    def test_nobody(self) -> None:
        """Neither the one nor the other."""
        self.admins({})
        result = self.run_cli("status", "--admin", "http://a", env={"DLEDGER_PEERS": ""})
        self.assertExit(result, 1, "no member answers")

    def test_nobody_named(self) -> None:
        """The member that starts without options is asked, and the command says so."""
        self.assertExit(self.run_cli("status", env={"DLEDGER_PEERS": ""}), 0, "asking n0-127.0.0.1:20911")
