# -*- test-case-name: tests.processes.test_log_lines -*-
"""The log of a real member: JSON from its first line on, SIGHUP, and a level that its page changes."""

from __future__ import annotations

import json
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from twisted.trial.unittest import TestCase

from dledger.base.serving.tokens import new_token
from tests.processes.children import Child, free_ports, wait_until

LONG_S = 30.0


class MemberLogTests(TestCase):
    """A group of one."""

    def setUp(self) -> None:
        self.directory = Path(self.mktemp())
        self.directory.mkdir()
        self.file = self.directory / "member.toml"
        port, self.admin = free_ports(2)
        self.token, line = new_token("ops")
        (self.directory / "tokens").write_text(line)
        self.options = (
            f'peers = "n0-127.0.0.1:{port}"\nstore_base_dir = "{self.directory.resolve()}"\n'
            f'admin_token_file = "{(self.directory / "tokens").resolve()}"\n'
        )
        self.file.write_text(self.options)
        twistd = Path(sys.executable).parent / "twistd"
        self.child = Child(
            "n0", [str(twistd), "-n", "--pidfile=", "dledger", "--config", str(self.file.resolve()),
             "--admin", f"tcp:{self.admin}:interface=127.0.0.1", "--log-format", "json"],
            log_path=self.directory / "log",
        )
        self.addCleanup(self.child.kill)
        self.child.start()

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines so far; each is an object."""
        text = (self.directory / "log").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, **facts: object) -> dict[str, Any]:
        """The first line with these members."""
        def found() -> list[dict[str, Any]]:
            reported = ((line, {**line, **line.get("facts", {})}) for line in self.lines())
            return [line for line, values in reported
                    if all(values.get(name) == facts[name] for name in facts)]

        wait_until(lambda: bool(found()), seconds=LONG_S, what=f"a line with {facts}")
        return found()[0]

    def test_lines(self) -> None:
        """Levels that the file and the page change, without a restart."""
        self.wait_for(event="role-changed", role="leader")
        levels = 'log_level = "warn,dledger.daemons=info"\n'
        self.file.write_text(f"{self.options}{levels}max_heart_beat_leak = 7\n")
        self.child.send(signal.SIGHUP)
        reported = self.wait_for(now="warn,dledger.daemons=info")
        self.assertEqual(reported["facts"]["waiting"], "max_heart_beat_leak")
        url = f"http://127.0.0.1:{self.admin}/log-level?level=debug&room=dledger.node"
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=20)
        self.assertEqual(refused.exception.code, 401)
        asked = urllib.request.Request(url, method="POST", headers={"Authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(asked, timeout=20) as answer:
            self.assertEqual(
                json.load(answer), {"log_level": "warn,dledger.daemons=info,dledger.node=debug"}
            )
        self.assertEqual(self.child.stop(), -signal.SIGTERM)
        rooms = {line["room"] for line in self.lines() if line["level"] == "info"}
        self.assertIn("dledger.node.node.Node", rooms)
