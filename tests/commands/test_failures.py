# -*- test-case-name: tests.commands.test_failures -*-
"""With C{--json} a failure is an object on the last line of standard error; the exit status is the same."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Thread
from typing import Any

from dledger.cli.console.failures import JsonFailures, complain, remark, wants_json
from dledger.client.errors import UnknownOutcome
from dledger.client.values import MemberInfo
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from tests.commands.fakes import CliCase


class FailureTests(CliCase):
    """Of each kind."""

    def failed(self, status: int, *words: str, **more: Any) -> Any:
        """The object, on one line; without C{--json} the same status, and no object."""
        plain = self.run_cli(*[one for one in words if one != "--json"], **more)
        self.assertExit(plain, status)
        self.assertNotIn('"error"', plain.stderr)
        result = self.run_cli(*words, **more)
        self.assertExit(result, status)
        *before, last = result.stderr.splitlines()
        self.assertEqual([one for one in before if not one.startswith("warning")], [])
        document = json.loads(last)
        self.assertEqual(document["exit_status"], status)
        self.assertEqual(
            sorted(document["error"]), ["code", "details", "facts", "message", "number", "remedy"]
        )
        return document["error"]

    def test_outcome(self) -> None:
        """An outcome of a call: its name, its number, its facts, and what to do."""
        self.log.fails = DLedgerError(ResponseCode.NOT_LEADER, reason="n1 does not lead", leader_id="n0")
        error = self.failed(1, "transfer", "n1", "--json")
        self.assertEqual((error["code"], error["number"]), ("NOT_LEADER", int(ResponseCode.NOT_LEADER)))
        self.assertIn("n1 does not lead", error["message"])
        self.assertEqual(error["facts"], {"reason": "n1 does not lead", "leader_id": "n0"})
        self.assertTrue(error["remedy"])

    def test_details(self) -> None:
        """The other lines of the command are in the object."""
        self.log.fails = DLedgerError(ResponseCode.TIMEOUT, reason="no answer")
        error = self.failed(1, "transfer", "n1", "--json")
        self.assertEqual(error["details"], ["it is unknown whether leadership has moved; see dledger status"])
        self.assertIn("leader", error["remedy"])

    def test_unknown(self) -> None:
        """An outcome that is not known keeps its status."""
        self.log.fails = UnknownOutcome(ResponseCode.TIMEOUT, unknown=1)
        error = self.failed(2, "append", "x", "--json")
        self.assertIn("unknown outcome", error["message"])

    def test_usage(self) -> None:
        """A wrong command line: what is wrong, and where help is."""
        error = self.failed(64, "get", "--json")
        self.assertEqual((error["code"], error["number"]), ("USAGE", None))
        self.assertIn("give either INDEX or --at TIME", error["message"])
        self.assertIn("get --help", error["remedy"])
        self.assertEqual(self.failed(64, "--json", "nothing")["code"], "USAGE")

    def test_others(self) -> None:
        """A refusal of the command itself, and an error of the system."""
        error = self.failed(1, "readers", "forget", "billing", "--json")
        self.assertEqual(error["code"], "FAILED")
        self.assertIn("no reader has the name 'billing'", error["message"])
        self.log.fails = FileNotFoundError(2, "No such file", "x")
        self.assertEqual(self.failed(1, "readers", "--json")["code"], "ENOENT")

    def test_complaints(self) -> None:
        """Problems that the group has: their object on standard output, and why the command fails."""
        self.log.infos = tuple(info for info in self.log.infos if info.role != "leader")
        result = self.run_cli("cluster", "--json")
        self.assertExit(result, 1)
        problems = json.loads(result.stdout)["problems"]
        error = json.loads(result.stderr)["error"]
        self.assertEqual((error["code"], error["message"]), ("FAILED", "; ".join(problems)))

    def test_nobody(self) -> None:
        """The state machines of a group of which nobody answers."""
        silent = MemberInfo(member_id="n0", address="a:1", problem="connection refused")
        self.log.infos = (silent, MemberInfo(member_id="n1", address="a:2", role="leader"))
        self.assertExit(self.run_cli("machine", "status"), 0)
        self.log.infos = (silent, silent)
        self.assertEqual(self.failed(1, "machine", "status", "--json")["message"], "no member answers")

    def test_default_members(self) -> None:
        """Whom a command asks where none are named is a detail."""
        self.log.fails = DLedgerError(ResponseCode.NETWORK_ERROR, reason="refused")
        error = self.failed(1, "readers", "--json", env={"DLEDGER_PEERS": ""})
        self.assertIn("no members named: asking", error["details"][0])
        self.log.fails = None
        result = self.run_cli("readers", "--json", env={"DLEDGER_PEERS": ""})
        self.assertExit(result, 0)
        self.assertIn("no members named: asking", result.stderr)

    def test_no_directory(self) -> None:
        """A command that needs no group."""
        path = Path(self.mktemp())
        path.mkdir()
        self.assertTrue(self.failed(1, "verify", str(path), "--json")["message"])


class HearingTests(CliCase):
    """What belongs to a command."""

    def test_wants(self) -> None:
        """C{--json}, or its format; not a body of that name."""
        for words, wants in (
            (["get", "--json", "1"], True), (["tail", "--format", "json"], True),
            (["tail", "--format=json"], True), (["tail", "--format", "raw"], False),
            (["append", "--", "--json"], False), (["append", "json"], False), ([], False),
        ):
            self.assertEqual(wants_json(words), wants, words)

    def test_threads(self) -> None:
        """In whichever thread it is said; not after the end, and not without C{--json}."""
        failures = JsonFailures(["x", "--json"])
        with failures.hearing():
            for call in (lambda: complain("a"), lambda: remark("b")):
                thread = Thread(target=call)
                thread.start()
                thread.join()
        said = failures._said
        self.assertEqual((said.complaints, said.remarks), (["a"], ["b"]))
