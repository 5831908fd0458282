# -*- test-case-name: tests.processes.test_children -*-
"""Children end when they should, and errors say what was expected of them."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.children import (
    _RESERVED,
    Child,
    ChildError,
    TalkingChild,
    ending,
    free_ports,
    free_triple,
    peers_text,
    wait_until,
)

_SLEEPER = [sys.executable, "-c", "import time; print('sleeping', flush=True); time.sleep(60)"]
_ECHO_PROGRAM = """
import sys
print("started")
for line in sys.stdin:
    print(line, end="")
    if line == "stop\\n":
        break
"""
_ECHO = [sys.executable, "-u", "-c", _ECHO_PROGRAM]


def is_gone(pid: int) -> bool:
    """Whether the process does not exist, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class ChildTests(SynchronousTestCase):
    """One child process."""

    def setUp(self) -> None:
        """A directory for its log."""
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)

    def child(self, command: list[str]) -> Child:
        """A started child."""
        child = Child("a child", command, log_path=self.directory / "log")
        self.addCleanup(child.kill)
        child.start()
        return child

    def said(self, child: Child, times: int) -> bool:
        """Whether it has started C{times} times."""
        return child.log_tail().count("sleeping") == times

    def test_kill(self) -> None:
        """After kill the process is gone, and can be started again; its log continues."""
        child = self.child(_SLEEPER)
        for times in (1, 2):
            wait_until(partial(self.said, child, times), seconds=120, what="its output")
            self.assertEqual((child.is_running, child.exit_status), (True, None))
            self.assertGreater(child.rss_bytes(), 0)
            pid = child.pid
            child.kill()
            self.assertEqual((child.is_running, child.exit_status), (False, -signal.SIGKILL))
            self.assertTrue(is_gone(pid))
            child.start()

    def test_killed_while_paused(self) -> None:
        """A paused child does not run, and can be killed."""
        child = self.child(_SLEEPER)
        child.pause()
        wait_until(
            lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T",
            seconds=120, what="its pause",
        )
        child.kill()
        self.assertFalse(child.is_running)

    def test_stop(self) -> None:
        """A stopped child's status is the signal that ended it."""
        self.assertEqual(self.child(_SLEEPER).stop(), -signal.SIGTERM)

    def test_interrupted(self) -> None:
        """SIGINT ends a child, also when the tests themselves ignore it, as after a shell's "&"."""
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))
        child = self.child(["sleep", "60"])
        child.send(signal.SIGINT)
        self.assertEqual(child.wait(seconds=120), -signal.SIGINT)

    def test_does_not_stop(self) -> None:
        """A child that ignores SIGTERM is killed, and the error shows its log."""
        deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf'); time.sleep(60)"
        child = self.child([sys.executable, "-u", "-c", deaf])
        wait_until(lambda: "deaf" in child.log_tail(), seconds=120, what="its output")
        error = self.assertRaises(ChildError, child.stop, seconds=0.2)
        self.assertIn("deaf", str(error))
        self.assertFalse(child.is_running)

    def test_dies_with_its_parent(self) -> None:
        """The kernel kills a child when its parent is killed."""
        program = (
            "import sys, time\n"
            "from pathlib import Path\n"
            "from tests.processes.children import Child\n"
            f"child = Child('x', {_SLEEPER!r}, log_path=Path({str(self.directory / 'inner')!r}))\n"
            "child.start()\n"
            "print(child.pid, flush=True)\n"
            "time.sleep(60)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).resolve().parents[2],
        ) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            parent.kill()
        wait_until(lambda: is_gone(pid), seconds=120, what="the end of the child")

    def test_ending(self) -> None:
        """The block's children are killed when it ends, also by an exception."""
        child = self.child(_SLEEPER)
        with self.assertRaises(ZeroDivisionError), ending(child):
            raise ZeroDivisionError
        self.assertFalse(child.is_running)


class TalkingChildTests(SynchronousTestCase):
    """A line in, a line out."""

    def child(self, command: list[str]) -> TalkingChild:
        """A started child."""
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        child = TalkingChild("a talker", command, log_path=Path(held.name) / "log")
        self.addCleanup(child.kill)
        child.start()
        return child

    def test_ask(self) -> None:
        """Each line gets one line of answer."""
        child = self.child(_ECHO)
        child.wait_started()
        self.assertEqual([child.ask("a"), child.ask("b c")], ["a", "b c"])
        self.assertEqual(child.stop(), 0)

    def test_wrong_start(self) -> None:
        """A first line other than C{started} is an error that shows it."""
        error = self.assertRaises(ChildError, self.child(_SLEEPER).wait_started)
        self.assertIn("'sleeping'", str(error))

    def test_no_answer(self) -> None:
        """The error names the question that was not answered."""
        child = self.child(_SLEEPER)
        self.assertRaises(ChildError, child.wait_started)
        error = self.assertRaises(ChildError, child.ask, "who?", seconds=0.1)
        self.assertIn("'who?'", str(error))


class PortTests(SynchronousTestCase):
    """Ports that stay free until they are used."""

    def test_apart_from_outgoing_connections(self) -> None:
        """No port is given twice, and none that the system could give to an outgoing connection."""
        ports = free_ports(50) + free_ports(50)
        self.assertEqual(len(set(ports)), 100)
        floor = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        self.assertTrue(max(ports) < max(floor, 12_000), ports)

    def other_program(self, *ports: int) -> list[bool]:
        """Which of these another program could reserve."""
        program = f"from tests.processes.children import _reserve; print(*map(_reserve, {ports}))"
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=True
        )
        return [said == "True" for said in done.stdout.split()]

    def test_reserved(self) -> None:
        """Another running program does not get the same port, even before a process listens on it."""
        port, = free_ports(1)
        self.assertEqual(self.other_program(port), [False])
        fcntl.lockf(_RESERVED[0], fcntl.LOCK_UN, 1, port)
        self.assertEqual(self.other_program(port), [True])

    def test_triple(self) -> None:
        """Nor one of the three ports of a broker, of which a broker that is down listens on none."""
        port = free_triple()
        self.assertEqual(self.other_program(port - 2, port, port + 1), [False, False, False])
        self.assertFalse({port - 2, port, port + 1} & set(free_ports(50)))

    def test_can_be_listened_on(self) -> None:
        """A process can listen on them."""
        for port in free_ports(5):
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", port))
                listener.listen()

    def test_peers_text(self) -> None:
        """The form is that of members and clients."""
        self.assertEqual(peers_text({"n0": "h:1", "n1": "h:2"}), "n0-h:1;n1-h:2")

    def test_wait_until(self) -> None:
        """The error names the condition."""
        error = self.assertRaises(ChildError, wait_until, lambda: False, seconds=0.01, what="a miracle")
        self.assertIn("a miracle", str(error))
        error = self.assertRaises(ChildError, wait_until, lambda: False, seconds=0.01, what="a miracle",
                                  notify=lambda: "none were seen")
        self.assertTrue(str(error).endswith("a miracle\nnone were seen"), error)
        wait_until(lambda: os.getpid(), seconds=0.0, what="nothing")
