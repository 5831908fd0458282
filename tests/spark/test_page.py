# -*- test-case-name: tests.spark.test_page -*-
"""The pieces of docs/spark.md from top to bottom, beside C{dledger local}."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.children import Child, wait_until
from tests.processes.members import ROOT, ended_well
from tests.slowness import patient
from tests.spark.clusters import environment
from tests.spark.test_arrow import recipe

#: The commands of the page are those of this environment.
_COMMANDS = Path(sys.executable).parent
_ADDRESSES = "n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"


class PageTests(SynchronousTestCase):
    """One directory for all of it."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.home = Path(held.name)
        self.environment = environment(
            PATH=f"{_COMMANDS}:{os.environ['PATH']}", TMPDIR=held.name, PYTHONUNBUFFERED="1")

    def start(self, *words: str) -> Child:
        """C{dledger local}, in the directory."""
        child = Child("local", ["env", "-C", str(self.home), str(_COMMANDS / "dledger"), "local", *words],
                      log_path=self.home / "local.log", environment=self.environment)
        self.addCleanup(child.kill)
        child.start()
        return child

    def run_piece(self, piece: str, *command: str) -> str:
        """The output of a piece of the page, which must end well."""
        done = subprocess.run([*command, piece], cwd=self.home, env=self.environment, capture_output=True,
                              text=True, timeout=patient(300))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_page(self) -> None:
        """A prompt with Spark; then programs and commands beside a group."""
        text = (ROOT / "docs" / "spark.md").read_text("utf-8")
        page = {heading: recipe(heading, page="spark") for heading in re.findall(r"^## .*$", text, re.M)
                if heading not in ("## Versions of Spark", "## On a cluster")}
        first = page.pop("## In ten minutes")
        self.assertIn("dledger local --spark ", first)
        prompt = subprocess.Popen(
            [str(_COMMANDS / "dledger"), "local", "--spark"], cwd=self.home, env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(prompt.kill)
        assert prompt.stdin and prompt.stdout
        said = ""
        while "Try:" not in said:
            said = prompt.stdout.readline()
            self.assertTrue(said, "dledger local --spark has ended")
        ports = json.loads((self.home / "dledger-local" / "local.json").read_text())["ports"]
        peers = ";".join(f"{name}-127.0.0.1:{port}" for name, (port, _) in ports.items())
        self.environment["DLEDGER_PEERS"] = peers
        append = re.search(r"`(dledger append .*?)` appends", text)
        assert append is not None
        self.run_piece(append[1], "bash", "-ec")
        said, _ = prompt.communicate(recipe("## In ten minutes", 1, page="spark") + "\n", patient(300))
        self.assertEqual(prompt.returncode, 0, said)
        self.assertIn("{ann, 3}", said)

        local = self.start("--json")
        wait_until(lambda: "peers" in local.log_path.read_text(), seconds=120, what="the group serves",
                   notify=local.log_tail)
        by_name, export = page.pop("## Tables by name, SQL and JDBC"), page.pop("## Export")
        program = "\n".join(page.values())
        self.assertIn(_ADDRESSES, program)
        reported = self.run_piece(program.replace(_ADDRESSES, peers), sys.executable, "-c")
        self.assertIn("{\"id\":999}", reported)
        found = self.run_piece(by_name, "bash", "-ec")
        self.assertRegex(found, r"(?m)^20\d\d\t\d+$")
        self.run_piece(export.replace(" --follow", ""), "bash", "-ec")
        self.assertTrue(list((self.home / "out").glob("part-*.parquet")))
        self.assertTrue(all((self.home / name).is_dir() for name in ("lake/_delta_log", "ice")))
        self.assertTrue(ended_well(local.stop(seconds=60)))
