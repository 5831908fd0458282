# -*- test-case-name: tests.processes.test_local -*-
"""C{dledger local}, as somebody meets it who has just installed the package."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.cli.tools.local import Plan
from dledger.rocketmq.client.blocking import Broker
from tests.processes.children import Child, free_ports, wait_until
from tests.processes.members import ROOT

_CLI = "from dledger.cli.entry import main; main()"


class LocalTests(SynchronousTestCase):
    """The command, its programs, and a program of the user."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(prefix="dledger-local-", ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)

    def begun(self, *words: str, directory: str = "here") -> Child:
        """The command, which was started."""
        command = Child(
            "dledger local",
            [sys.executable, "-c", _CLI, "local", "--dir", str(self.directory / directory), "--json", *words],
            log_path=self.directory / "command.log", talks=True,
            environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )
        command.start()
        self.addCleanup(command.kill)
        return command

    def said(self, command: Child) -> dict[str, Any]:
        """Its line of JSON, written when the group serves."""
        line = command.pipes[1].readline()
        self.assertTrue(line, command.log_tail())
        found: dict[str, Any] = json.loads(line)
        return found

    def start(self, *words: str) -> tuple[Child, dict[str, Any]]:
        """The command, and its line."""
        command = self.begun(*words)
        return command, self.said(command)

    def assert_ended(self, command: Child, document: dict[str, Any]) -> None:
        """Ctrl-C ends it, and all programs with it."""
        os.kill(command.pid, signal.SIGINT)
        self.assertEqual(command.wait(seconds=60), 0, command.log_tail())
        for member in document["members"]:
            self.assertRaises(ProcessLookupError, os.kill, member["pid"], 0)

    def test_members(self) -> None:
        """Killed members come back; the second start has the data and the addresses of the first."""
        # Ports that no other program takes between the two starts.
        ports = [free_ports(2) for _member in range(3)]
        plan = Plan(kind="members", ports={f"n{number}": (log, pages)
                                           for number, (log, pages) in enumerate(ports)})
        (self.directory / "here").mkdir()
        (self.directory / "here" / "local.json").write_text(json.dumps(attrs.asdict(plan)))
        command, document = self.start()
        with dledger.connect(document["peers"], timeout=60.0, exactly_once=True) as log:
            log.append(b"one")
            os.kill(document["members"][0]["pid"], signal.SIGKILL)
            log.append(b"two")
            wait_until(lambda: not any(one.problem or one.health for one in log.status()), seconds=60,
                       what="the killed member")
        document["members"].pop(0)
        self.assert_ended(command, document)
        command, again = self.start()
        self.assertEqual(again["peers"], document["peers"])
        with dledger.connect(again["peers"], timeout=60.0) as log:
            bodies = [entry.body for entry in log.tail(0, follow=False)]
            self.assertEqual(bodies, [b"one", b"two"])
        self.assert_ended(command, again)

    def test_two_at_once(self) -> None:
        """In different directories: they have different ports, and both serve."""
        commands = [self.begun("--members", "1", directory=name) for name in ("one", "other")]
        said = [self.said(command) for command in commands]
        self.assertEqual(len({one["peers"] for one in said}), 2)
        for command, document in zip(commands, said, strict=True):
            self.assert_ended(command, document)

    def test_brokers(self) -> None:
        """A message to the master."""
        command, document = self.start("--rocketmq", "--members", "1")
        with Broker(document["members"][0]["broker"]) as broker:
            self.assertEqual(broker.put("orders", b"a", queue_id=0).status, "PUT_OK")
        self.assert_ended(command, document)
