# -*- test-case-name: tests.processes.test_demo_rocketmq -*-
"""The demo of the brokers ends well, names lost messages, and can be interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from demo.rocketmq import Lost, Place, body_of, judge
from tests.processes.children import wait_until
from tests.processes.members import ROOT
from tests.processes.raft_brokers import Kept
from tests.processes.test_children import is_gone


class DemoTests(SynchronousTestCase):
    """The program."""

    def setUp(self) -> None:
        """A directory for its output."""
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.output_path = Path(held.name) / "output"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run the demo; its output goes to a file, so that tests can read it meanwhile."""
        with open(self.output_path, "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "demo.rocketmq", *arguments], cwd=ROOT, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)  # its brokers die with it
        return process

    def test_nothing_lost(self) -> None:
        """Status 0, a killed master, a fail-over time, and queues that are equal at three brokers."""
        status = self.start("--no-java", "--messages", "3000").wait(240)
        output = self.output_path.read_text()
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"message 1,500: master n\d killed with SIGKILL")
        self.assertRegex(output, r"SIGKILL to the next acknowledgement +│ +[\d,]+ ms")
        self.assertIn("Nothing lost: 3,000 acknowledged messages", output)
        for peer_id in ("n0", "n1", "n2"):
            self.assertRegex(output, rf"{peer_id} +│ +(slave|master) +│ +7\d\d ")

    def test_interrupted(self) -> None:
        """Ctrl-C under load ends it, its brokers and its name server."""
        process = self.start("--no-java", "--messages", "2000000")

        def produces() -> bool:
            self.assertIsNone(process.poll(), self.output_path.read_text())
            return "is the master" in self.output_path.read_text()

        wait_until(produces, seconds=60, what="a master")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 130, self.output_path.read_text())
        self.assertIn("interrupted", self.output_path.read_text())
        self.assertEqual(len(children), 4)
        self.assertTrue(all(is_gone(int(child)) for child in children))


class JudgeTests(SynchronousTestCase):
    """The judge notices a message that is lost, at another place, or nobody's."""

    def setUp(self) -> None:
        """Ten messages, in two queues."""
        self.queues = [
            [Kept(place, 0, body_of(number)) for place, number in enumerate(range(first, 10, 2))]
            for first in (0, 1)
        ]
        self.places = {number: Place(number % 2, number // 2) for number in range(10)}

    def test_good(self) -> None:
        """All are there; what was sent again is counted."""
        self.assertEqual(judge(self.queues, self.places), 0)
        self.queues[1].append(Kept(5, 0, body_of(2)))
        self.assertEqual(judge(self.queues, self.places), 1)

    def test_end_lost(self) -> None:
        """The last message of a queue is missing."""
        self.queues[1].pop()
        error = self.assertRaises(Lost, judge, self.queues, self.places)
        self.assertIn("message 9 is not at", str(error))

    def test_another_place(self) -> None:
        """Two messages have changed places."""
        queue = self.queues[0]
        queue[0], queue[1] = queue[1], queue[0]
        error = self.assertRaises(Lost, judge, self.queues, self.places)
        self.assertEqual(len(error.args), 2)

    def test_nobodys(self) -> None:
        """A message that nobody sent."""
        self.queues[0].append(Kept(5, 0, b"message of mine"))
        error = self.assertRaises(Lost, judge, self.queues, self.places)
        self.assertIn("nobody sent", str(error))
