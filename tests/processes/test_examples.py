# -*- test-case-name: tests.processes.test_examples -*-
"""The directories of C{examples}: the commands of their pages, run as they are written."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.children import free_ports, wait_until
from tests.processes.members import ROOT

#: Seconds within which all commands of a page have ended on a busy machine.
LONG_S = 240.0


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
        """The blocks of commands of the page, each told before it begins."""
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
