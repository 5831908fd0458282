# -*- test-case-name: tests.commands.test_ha_resolve -*-
"""C{dledger ha-resolve}: shows both sides, and decides only when asked to."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
from twisted.internet.defer import Deferred

from dledger.cli.rocketmq import ha_resolve as cli_resolve
from dledger.rocketmq.client.ha_resolve import read_stopped
from protocols.wire.remoting import RemotingCommand
from tests.broker.client.test_ha_resolve import ADDRESS, SHOWN
from tests.broker.client.test_ha_status import Brokers
from tests.commands.fakes import CliCase


class ResolveTests(CliCase):
    """The command."""

    def setUp(self) -> None:
        super().setUp()
        self.shown = SHOWN
        self.actions: list[str] = []

        def ask(address: str, command: RemotingCommand) -> Deferred[RemotingCommand]:
            action = command.ext_fields["action"]
            self.actions.append(action)
            body = self.shown if action == "show" else b'{"directory":"aside"}'
            return Brokers({(ADDRESS, 90907): body}).ask(address, command)

        def run(timeout_s: float, keys: object, call: Callable[[Any], Awaitable[Any]]) -> Any:
            async def result() -> Any:
                return await call(ask)

            return self.successResultOf(Deferred.fromCoroutine(result()))

        self.patch(cli_resolve, "_run", run)

    def test_dry_run(self) -> None:
        """Both sides, what would go, exit 1; nothing is decided."""
        result = self.run_cli("ha-resolve", "--broker", ADDRESS)
        self.assertExit(result, 1)
        self.assertEqual(self.actions, ["show"])
        for words in ("0 to 1000", "0 to 700", "500; the common part ends at 450", "sound by its checksum",
                      "550 bytes, 6 messages", "set aside      d"):
            self.assertIn(words, result.stdout)

    def test_take_master(self) -> None:
        """Asked to, it decides, and says where the old files are."""
        result = self.run_cli("ha-resolve", "--broker", ADDRESS, "--take-master")
        self.assertExit(result, 0)
        self.assertEqual(self.actions, ["show", "take-master"])
        self.assertIn("old files are in aside", result.stdout)

    def test_try_again(self) -> None:
        """Compares again."""
        result = self.run_cli("ha-resolve", "--broker", ADDRESS, "--try-again", "--json")
        self.assertExit(result, 0)
        self.assertEqual(self.actions, ["show", "try-again"])
        self.assertEqual(json.loads(result.stdout)["our_end"], 1000)

    def test_nothing_to_decide(self) -> None:
        """A slave that goes on learns nothing."""
        self.shown = SHOWN.replace(b'"stopped":true,"decidable":true', b'"stopped":false')
        for more in ((), ("--take-master",), ("--try-again",)):
            self.assertExit(self.run_cli("ha-resolve", "--broker", ADDRESS, *more), 0)
        self.assertEqual(set(self.actions), {"show"})

    def test_usage(self) -> None:
        """One decision at a time."""
        result = self.run_cli("ha-resolve", "--broker", ADDRESS, "--take-master", "--try-again")
        self.assertExit(result, 64)

    def test_masters_rot(self) -> None:
        """Which side is sound is said."""
        found = attrs.evolve(read_stopped(ADDRESS, SHOWN), master_problem="bodyCRC", counted_to=800)
        text = "\n".join(cli_resolve.lines_of(found))
        self.assertIn("not sound: bodyCRC", text)
        self.assertIn("--take-master is refused", text)
        text = "\n".join(cli_resolve.lines_of(attrs.evolve(found, master_problem="", differs_at=-1)))
        self.assertIn("at least 6 messages", text)
        self.assertIn("not compared", text)


class CopyTests(CliCase):
    """C{--copy-log}."""

    def setUp(self) -> None:
        super().setUp()
        self.slave, self.master = Path(self.mktemp()), Path(self.mktemp())
        (self.slave / "commitlog").mkdir(parents=True)
        (self.slave / "commitlog" / f"{0:020d}").write_bytes(b"x" * 64)
        (self.master / "commitlog").mkdir(parents=True)

    def test_copied(self) -> None:
        """It says what was done, where the old files are, and what is next."""
        result = self.run_cli("ha-resolve", "--copy-log", str(self.slave), str(self.master))
        self.assertExit(result, 0)
        for words in ("1 files, 64 bytes", f"are in {self.master}/set-aside-1", "Start the broker there"):
            self.assertIn(words, result.stdout)
        self.assertEqual((self.master / "commitlog" / f"{0:020d}").read_bytes(), b"x" * 64)

    def test_json(self) -> None:
        """For programs."""
        result = self.run_cli("ha-resolve", "--json", "--copy-log", str(self.slave), str(self.master))
        self.assertExit(result, 0)
        self.assertEqual(json.loads(result.stdout)["files"], 1)

    def test_refused(self) -> None:
        """With the reason; one thing at a time, and something."""
        result = self.run_cli("ha-resolve", "--copy-log", str(self.master), str(self.slave))
        self.assertExit(result, 1)
        self.assertIn("has no commit log", result.stderr)
        for arguments in (("--copy-log", "a", "b", "--try-again"), ()):
            self.assertExit(self.run_cli("ha-resolve", *arguments), 64)
