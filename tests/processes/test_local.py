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

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.rocketmq.client.blocking import Broker
from tests.processes.children import Child, wait_until
from tests.processes.members import ROOT

_CLI = "from dledger.cli.entry import main; main()"


class LocalTests(SynchronousTestCase):
    """The command, its programs, and a program of the user."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(prefix="dledger-local-", ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)

    def start(self, *words: str) -> tuple[Child, dict[str, Any]]:
        """@return: the command, and its line of JSON, written when the group serves."""
        command = Child(
            "dledger local",
            [sys.executable, "-c", _CLI, "local", "--dir", str(self.directory / "here"), "--json", *words],
            log_path=self.directory / "command.log", talks=True,
            environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        )
        command.start()
        self.addCleanup(command.kill)
        line = command.pipes[1].readline()
        self.assertTrue(line, command.log_tail())
        return command, json.loads(line)

    def assert_ended(self, command: Child, document: dict[str, Any]) -> None:
        """Ctrl-C ends it, and all programs with it."""
        os.kill(command.pid, signal.SIGINT)
        self.assertEqual(command.wait(seconds=60), 0, command.log_tail())
        for member in document["members"]:
            self.assertRaises(ProcessLookupError, os.kill, member["pid"], 0)

    def test_members(self) -> None:
        """Killed members come back; the second start has the data and the addresses of the first."""
        command, document = self.start()
        with dledger.connect(document["peers"], timeout=60.0) as log:
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

    def test_brokers(self) -> None:
        """A message to the master."""
        command, document = self.start("--rocketmq", "--members", "1")
        with Broker(document["members"][0]["broker"]) as broker:
            self.assertEqual(broker.put("orders", b"a", queue_id=0).status, "PUT_OK")
        self.assert_ended(command, document)
