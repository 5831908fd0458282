# -*- test-case-name: tests.processes.test_examples -*-
"""The directories of C{examples}: the commands of their pages, run as they are written."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import urllib.error
import urllib.request
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from tests.processes.children import Child, free_ports, wait_until
from tests.processes.members import ROOT, TWISTD, Group

#: Seconds within which all commands of a page have ended on a busy machine.
LONG_S = 240.0
EXAMPLES = ROOT / "examples" / "first-programs"


class FirstProgramsTests(SynchronousTestCase):
    """C{examples/first-programs}: each with a group of its own."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.home = Path(held.name)
        self.group = Group(self.home)
        self.addCleanup(self.group.kill)
        self.group.start()
        self.group.leader()
        (self.port,) = free_ports(1)
        self.environment = {
            "DLEDGER_PEERS": self.group.peers_text, "PYTHONPATH": f"{ROOT}:{EXAMPLES}",
            "PYTHONUNBUFFERED": "1",
        }

    def begin(self, *words: str, **environment: str) -> Child:
        """Start a server."""
        child = Child(
            "example", [sys.executable, *words], log_path=self.home / "example.log",
            environment={**self.environment, **environment},
        )
        self.addCleanup(child.kill)
        child.start()
        return child

    def post(self, path: str, body: bytes) -> str:
        """The answer of a server, once it listens."""
        answers: list[str] = []

        def answered() -> bool:
            try:
                asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body)
                with urllib.request.urlopen(asked, timeout=120) as answer:
                    answers.append(answer.read().decode())
            except urllib.error.HTTPError:
                raise
            except OSError:
                return False
            return True

        wait_until(answered, seconds=LONG_S, what="an answer")
        return answers[0]

    def bodies(self) -> list[bytes]:
        """Everything in the log."""
        with dledger.connect(self.group.peers_text) as log:
            return [entry.body for entry in log.tail(0)]

    def test_script(self) -> None:
        """It appends the lines, says where they are, and prints the log."""
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "script.py")], input="one\ntwo\n", text=True, capture_output=True,
            env={**os.environ, **self.environment}, timeout=LONG_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        index = int(lines[0].split()[-1])
        self.assertEqual(lines, [
            f"line 0 is entry {index}", f"line 1 is entry {index + 1}", f"{index} one", f"{index + 1} two"
        ])

    def program_of(self, page: str) -> str:
        """The first program of a page, with the members of the group."""
        found = re.search(r"^    import .*\n(?:\n|    .*\n)+", (ROOT / page).read_text("utf-8"), re.M)
        assert found is not None, page
        program, count = re.subn(
            '^members = ".*"', f"members = {self.group.peers_text!r}", textwrap.dedent(found[0]), flags=re.M)
        self.assertEqual(count, 1, program)
        return program

    def test_readme(self) -> None:
        """The first program that a newcomer runs prints its entry, and the log."""
        done = subprocess.run(
            [sys.executable, "-c", self.program_of("README.md")], text=True, capture_output=True,
            env={**os.environ, **self.environment}, timeout=LONG_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        first, last = done.stdout.splitlines()
        self.assertIn("body=b'hello'", first)
        self.assertRegex(last, r"^\d+ b'hello'$")

    def test_tutorial(self) -> None:
        """The program of the tutorial goes on when the leader is killed; each event is in the log once."""
        leader = self.group.leader()
        child = self.begin("-c", self.program_of("docs/tutorial.md"))

        def lines() -> list[str]:
            return child.log_path.read_text("utf-8").splitlines()

        wait_until(lambda: len(lines()) > 100, seconds=LONG_S, what="some appends")
        self.group.members[leader].kill()
        self.assertLess(len(lines()), 1000, "too late: all was appended")
        wait_until(lambda: any("b'event 999'" in line for line in lines()), seconds=LONG_S, what="the tail")
        self.assertEqual(self.bodies(), [b"event %d" % number for number in range(1000)])

    def check_events(self) -> None:
        """An event goes in by POST, and comes back by GET; one that is not there is a 404."""
        index = json.loads(self.post("/events", b"an event"))["index"]
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/events/{index}", timeout=120) as answer:
            self.assertEqual(answer.read(), b"an event")
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/events/{index + 1}", timeout=120)
        self.assertEqual(caught.exception.code, 404)
        caught.exception.close()

    def test_fastapi(self) -> None:
        """An event comes back, a 404 if there is none; the tests of pytest pass."""
        self.begin("-m", "uvicorn", "events:app", "--port", str(self.port))
        self.check_events()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
             f"{EXAMPLES}/test_events.py"],
            env={**os.environ, **self.environment}, timeout=LONG_S, text=True, capture_output=True,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("2 passed", done.stdout)

    def test_prefork(self) -> None:
        """Each process of a server has a log of its own; so do those of Django and of Celery."""
        server = self.begin("-m", "gunicorn", "--workers", "2", "--preload", "--bind",
                            f"127.0.0.1:{self.port}", "prefork:application")
        answers: list[str] = []

        def both() -> bool:
            answers.append(self.post("/", b"%d" % len(answers)))
            return len({answer.split()[-1] for answer in answers}) == 2

        wait_until(both, seconds=LONG_S, what="two processes that have answered")
        self.assertEqual(self.bodies(), [b"%d" % number for number in range(len(answers))])
        server.stop(seconds=LONG_S)
        self.check_django()
        self.check_celery(len(self.bodies()))

    def check_django(self) -> None:
        """The program for Django does the same as that for FastAPI."""
        self.begin("-m", "gunicorn", "--workers", "2", "--preload", "--bind", f"127.0.0.1:{self.port}",
                   "views:application")
        self.check_events()

    def check_celery(self, before: int) -> None:
        """@param before: entries in the log."""
        self.environment |= {"CELERY_BROKER": "filesystem://", "CELERY_FOLDER": str(self.home)}
        events = [b"event %d" % number for number in range(5)]
        send = f"import tasks; [tasks.append.delay(one.decode()) for one in {events}]"
        environment = {**os.environ, **self.environment}
        subprocess.run([sys.executable, "-c", send], check=True, env=environment, timeout=LONG_S)
        self.begin("-m", "celery", "--app", "tasks", "worker", "--concurrency", "2", "--without-gossip",
                   "--without-mingle", "--without-heartbeat")
        wanted = before + len(events)
        wait_until(lambda: len(self.bodies()) >= wanted, seconds=LONG_S, what="five events", every=0.2)
        self.assertEqual(sorted(self.bodies()[before:]), events)

    def test_twisted(self) -> None:
        """Lines are appended, and answered, in order; the server ends in order."""
        child = self.begin(
            "-c", TWISTD, "--nodaemon", "--pidfile=", "--python", str(EXAMPLES / "application.py"),
            LINES_ENDPOINT=f"tcp:{self.port}:interface=127.0.0.1",
        )
        lines = [b"%d" % number for number in range(100)]
        said = bytearray()

        def answered() -> bool:
            try:
                connection = socket.create_connection(("127.0.0.1", self.port), timeout=LONG_S)
            except OSError:
                return False
            with connection:
                connection.sendall(b"".join(line + b"\n" for line in lines))
                while said.count(b"\n") < len(lines):
                    said.extend(connection.recv(65536))
            return True

        wait_until(answered, seconds=LONG_S, what="a server of lines")
        indexes = [int(word) for word in said.split()]
        self.assertEqual(indexes, list(range(indexes[0], indexes[0] + len(lines))))
        self.assertEqual(self.bodies(), lines)
        child.stop(seconds=LONG_S)


class SecureGroupTests(SynchronousTestCase):
    """C{examples/secure-group}."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name) / "secure-group"
        shutil.copytree(ROOT / "examples" / "secure-group", self.directory)
        self.addCleanup(self.end_members)
        # Other ports: those of the page may be taken.
        ports = dict(zip(("20911", "20912", "20913"), map(str, free_ports(3)), strict=True))
        for path in self.directory.iterdir():
            text = path.read_text("utf-8")
            path.write_text(re.sub("2091[123]", lambda found: ports[found[0]], text), "utf-8")

    def end_members(self) -> None:
        """End members that a failed test has left."""
        for path in self.directory.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)

    def script(self) -> str:
        """The blocks of commands of the page, each reported before it begins."""
        blocks = re.findall(r"```sh\n(.*?)```", (self.directory / "README.md").read_text("utf-8"), re.DOTALL)
        self.assertEqual(len(blocks), 7)
        # (A refusal is written "! command"; only with "|| exit" does the shell end where none came.)
        return "set -e\n" + "".join(
            f"echo '#{number}'\n" + re.sub(r"^(!.*)$", r"\1 || exit 99", block, flags=re.MULTILINE)
            for number, block in enumerate(blocks)
        )

    def test_page(self) -> None:
        """Everything happens as the page says."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-c", self.script()], cwd=self.directory, env=environment, timeout=LONG_S,
            capture_output=True, text=True, stdin=subprocess.DEVNULL,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        said = done.stdout.split("#")
        self.assertIn("second entry", said[4])
        self.assertRegex(said[4], r"n[012]\s+leader")
        self.assertEqual(done.stderr.count("FORBIDDEN"), 2, done.stderr)
        wait_until(lambda: not list(self.directory.glob("*.pid")), seconds=LONG_S, what="ended members")
        with open(self.directory / "n0.log", encoding="utf-8") as log:
            self.assertIn("member n0 stopped", log.read())
