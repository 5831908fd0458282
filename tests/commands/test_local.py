# -*- test-case-name: tests.commands.test_local -*-
"""C{dledger local}: its plan, and its refusals."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from dledger.cli.tools import local
from dledger.cli.tools.local import Program, kept_plan, new_plan, programs_of
from tests.commands.fakes import CliCase


class PlanTests(CliCase):
    """Ports and commands."""

    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.mktemp()).resolve()
        self.directory.mkdir()
        self.path = self.directory / "local.json"

    def refused(self, call: Callable[[], Any], *words: str) -> None:
        """It says why."""
        error = self.assertRaises(click.ClickException, call)
        for word in words:
            self.assertIn(word, error.message)

    def test_kept(self) -> None:
        """The second start has the ports of the first; all differ."""
        for kind, names_port in (("members", False), ("brokers", True)):
            plan = kept_plan(self.path, kind, None)
            self.assertEqual(([*plan.ports], bool(plan.names_port)), (["n0", "n1", "n2"], names_port))
            ports = [port for _, port in plan.listening()]
            self.assertEqual(len(set(ports)), len(ports))
            self.assertEqual(kept_plan(self.path, kind, 3), plan)
            self.path.unlink()

    def test_refused(self) -> None:
        """Another number, another kind, a port that is taken, a file that is none."""
        plan = kept_plan(self.path, "members", 1)
        self.refused(lambda: kept_plan(self.path, "members", 3), "has 1 members", "--dir")
        self.refused(lambda: kept_plan(self.path, "brokers", None), "has 1 members")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", plan.ports["n0"][1]))
            taken.listen()
            self.refused(lambda: kept_plan(self.path, "members", 1), f"port {plan.ports['n0'][1]} of n0")
        unpaired = '{"kind": "members", "names_port": 0, "ports": {"n0": 1}}'
        others = [f'{{"kind": "members", "names_port": 0, "ports": {ports}}}' for ports in (
            "{}", '{"n0": [70000, 8080]}', '{"n0": [20911, -1]}', '{"n0": [1e999, 1]}',
            '{"../n0": [20911, 8080]}',
        )]
        for text in ("", "[]", '{"kind": "members"}', unpaired, *others):
            self.path.write_text(text)
            self.refused(lambda: kept_plan(self.path, "members", 1), "is not sound", "move it away")

    def test_taken_ports_are_passed_over(self) -> None:
        """Another program has the first ones."""
        first = new_plan("members", 1).ports["n0"][0]
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # (as the command does)
            taken.bind(("127.0.0.1", first))
            taken.listen()
            self.assertGreater(new_plan("members", 1).ports["n0"][0], first)
        self.patch(local, "_is_free", lambda port: False)
        self.refused(lambda: new_plan("members", 1), "no port from 20911")

    def test_programs(self) -> None:
        """Options reach each member, and each broker has its file."""
        words = [one.words for one in programs_of(new_plan("members", 2), self.directory, ["a=b"])]
        self.assertEqual([one[-2:] for one in words], [("--set", "a=b")] * 2)
        names, broker = programs_of(new_plan("brokers", 1), self.directory, [])
        self.assertEqual((names.name, broker.name), ("namesrv", "n0"))
        self.assertIn("dLegerSelfId=n0\n", (self.directory / "n0" / "broker.conf").read_text())

    def test_one_at_a_time(self) -> None:
        """A directory that is in use."""
        with open(self.directory / "lock", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            result = self.run_cli("local", "--dir", str(self.directory))
        self.assertExit(result, 1, "another dledger local uses")
        self.assertExit(self.run_cli("local", "--rocketmq", "--spark"), 64, "leave --rocketmq out")


    def test_other_things(self) -> None:
        """What is in the place of a file of ours is named, and nothing is started."""
        for name, makes in (("lock", Path.mkdir), ("n0", Path.touch)):
            place = Path(self.mktemp()).resolve()
            place.mkdir()
            makes(place / name)
            self.assertExit(self.run_cli("local", "--dir", str(place)), 1, f"{place / name} cannot be used",
                            "name another directory with --dir")

    def test_not_writable(self) -> None:
        """A directory that cannot be made is named, too."""
        place = self.directory / "file"
        place.touch()
        self.assertExit(self.run_cli("local", "--dir", str(place / "below")), 1,
                        f"{place / 'below'} cannot be used (Not a directory)", "another directory with --dir")

    def test_lock_of_another(self) -> None:
        """A lock that is not a file of this user stops the start with a sentence."""
        self.patch(local.tempfile, "gettempdir", lambda: str(self.directory))
        (self.directory / f"dledger-local-{os.getuid()}").symlink_to("elsewhere")
        self.refused(lambda: local._alone().__enter__(), "is not a file of this user", "TMPDIR")


class ProgramTests(CliCase):
    """A program that ends."""

    def program(self, code: str) -> Program:
        """Its log is in a directory of its own."""
        made = Program("n0", [sys.executable, "-c", code], Path(self.mktemp()))
        made.start()
        self.addCleanup(lambda: made.process is not None and made.process.kill())
        return made

    def ended(self, program: Program) -> None:
        """Wait for its end."""
        assert isinstance(program.process, subprocess.Popen)
        program.process.wait(60)

    def test_started_again(self) -> None:
        """With a sentence; one that ends at each start is left alone in the end."""
        self.patch(local, "_AGAIN_S", 0.0)
        program = self.program("print('why'); raise SystemExit(3)")
        for _ in range(2):
            self.ended(program)
            self.assertIn("n0 was ended with status 3, and is started again", program.look())
        self.ended(program)
        self.assertIn("n0 ends at each start, with status 3", program.look())
        self.assertEqual((program.look(), "why" in program.tail()), ("", True))

    def test_killed(self) -> None:
        """It is started however often that happens."""
        self.patch(local, "_AGAIN_S", 0.0)
        program = self.program("import time; time.sleep(600)")
        self.assertEqual(program.look(), "")
        for _ in range(4):
            assert program.process is not None
            program.process.kill()
            self.ended(program)
            self.assertIn("by signal 9, and is started again", program.look())
