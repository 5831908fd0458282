# -*- test-case-name: tests.processes.test_operator -*-
"""The work of an operator on a running group: the command line and the HTTP administration, for real."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.children import Child, free_ports, wait_until
from tests.processes.members import ROOT, Group, Member, ended_well

_MAIN = "from dledger.cli.main import main; main()"


class Dashboard(Child):
    """C{dledger dashboard} for these members."""

    def __init__(self, peers: str, log_path: Path) -> None:
        super().__init__(
            "dashboard", [sys.executable, "-c", _MAIN, "--peers", peers, "dashboard"], log_path=log_path,
            environment={"PYTHONPATH": str(ROOT)},
        )

    def url(self) -> str:
        """The address of its page; empty before it has said it."""
        said = self.log_path.read_text()
        return said.split()[0] if "Ctrl-C" in said else ""

    def page(self) -> str:
        """Its page; empty before it has said its address."""
        if not self.url():
            return ""
        asked = urllib.request.Request(f"{self.url()}live", headers={"accept": "text/html"})
        with urllib.request.urlopen(asked, timeout=120) as answer:
            text: str = answer.read().decode()
        return text

    def wait_for(self, *words: str) -> None:
        """@raise ChildError: these words do not come together."""
        def has_all() -> bool:
            shown = self.page()
            return all(one in shown for one in words)

        wait_until(has_all, seconds=60, every=0.2, what=f"the dashboard shows {words}")


class OperatorTests(SynchronousTestCase):
    """Three members, each with its administration."""

    def setUp(self) -> None:
        """Start them."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.group = Group(self.directory, options={
            "mapped_file_size_for_entry_data": 1 << 20, "mapped_file_size_for_entry_index": 1 << 20,
        })
        self.admin = dict(zip(self.group.peers, free_ports(3), strict=True))
        for peer_id, port in self.admin.items():
            self.group.members[peer_id] = Member(
                peer_id, self.group.peers, self.directory / peer_id,
                extra=("--admin", f"tcp:{port}:interface=127.0.0.1"),
            )
        self.addCleanup(self.group.kill)
        self.group.start()
        self.leader_id = self.group.leader()

    def run_command(self, *words: str, given: str = "", status: int = 0) -> str:
        """Output of one command."""
        done = subprocess.run(
            [sys.executable, "-c", _MAIN, "--peers", self.group.peers_text, *words], cwd=ROOT, input=given,
            capture_output=True, text=True, timeout=240,
        )
        self.assertEqual(done.returncode, status, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def fetch(self, peer_id: str, path: str) -> tuple[int, str]:
        """Status and body of one page."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.admin[peer_id]}{path}", timeout=10
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def test_a_day(self) -> None:
        """Append, read, look, transfer leadership, stop, verify."""
        lines = [f"line {number}" for number in range(500)]
        self.run_command("append", given="\n".join(lines) + "\n")
        self.run_command("append", "from the command line")
        tailed = self.run_command("tail", "--from", "0", "-n", "100000", "--format", "raw")
        self.assertEqual([line for line in tailed.splitlines() if line], [*lines, "from the command line"])
        last = json.loads(self.run_command("tail", "-n", "1", "--format", "json").splitlines()[-1])
        self.assertIn("from the command line", self.run_command("get", str(last["index"])))
        status = self.run_command("status", "--json")
        for peer_id in self.group.peers:
            self.assertIn(peer_id, status)
        to = next(peer_id for peer_id in self.group.peers if peer_id != self.leader_id)
        self.run_command("transfer", to)
        self.assertEqual(self.group.leader(), to)
        self.group.wait_settled()
        self.assertTrue(all(ended_well(status) for status in self.group.stop().values()))
        for member in self.group.members.values():
            self.run_command("verify", str(member.ledger_path))

    def test_administration(self) -> None:
        """Every page of every member, and of all; a member that is down is named with the reason."""
        for peer_id in self.group.peers:
            # A member with a new directory is unsure until it has reached its leader's end.
            wait_until(lambda page=(peer_id, "/healthz"): self.fetch(*page)[0] == 200,  # type: ignore[misc]
                       seconds=120, what=f"health of {peer_id}")
            code, body = self.fetch(peer_id, "/status")
            self.assertEqual(code, 200)
            found: dict[str, Any] = json.loads(body)
            self.assertIn(self.leader_id, body, found)
            code, metrics = self.fetch(peer_id, "/metrics")
            self.assertEqual(code, 200)
            self.assertRegex(metrics, r"(?m)^dledger_\w+")
        self.assertEqual(self.fetch("n0", "/no-such-page")[0], 404)
        dashboard = Dashboard(self.group.peers_text, self.directory / "dashboard.log")
        self.addCleanup(dashboard.kill)
        dashboard.start()
        dashboard.wait_for("All members serve.", f"member={self.leader_id} role=leader", *(
            f'<a href="http://127.0.0.1:{port}/">{peer_id}</a>' for peer_id, port in self.admin.items()
        ))
        gone = next(peer_id for peer_id in self.group.peers if peer_id != self.leader_id)
        self.group.members[gone].kill()
        dashboard.wait_for(f"{gone}: it does not answer at ", "connection refused")
        dashboard.send(signal.SIGINT)
        self.assertEqual(dashboard.wait(seconds=30), 0)
        code, body = self.fetch(self.leader_id, "/cluster")
        self.assertEqual(code, 200)
        self.assertIn(gone, body)
        self.assertIn("refused", body)

    def test_unhealthy_without_a_majority(self) -> None:
        """The last of three knows no leader and answers 503; the group's report has no leader."""
        for peer_id, member in self.group.members.items():
            if peer_id != self.leader_id:
                member.kill()
        wait_until(lambda: self.fetch(self.leader_id, "/healthz")[0] == 503, seconds=120, what="status 503")
        self.run_command("status", status=1)
