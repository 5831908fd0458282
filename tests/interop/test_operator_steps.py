# -*- test-case-name: tests.interop.test_operator_steps -*-
"""
The operator's steps of docs/interop.md, run as written there, on three real Java members.

Rule: a command is looked up in its section of the page and given to a shell; only commands of the page are
run. Java members are stopped and started as their operator would, which the page leaves to the reader.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from protocols.wire.ledger.messages import AppendRequest
from tests.interop.java import JavaMissing, class_path
from tests.interop.mixed import DATA_FILE_BYTES, INDEX_FILE_BYTES, JAVA, MixedGroup
from tests.interop.test_mixed_groups import bodies
from tests.processes.asking import ask, metadata_of
from tests.processes.children import Child, ChildError, peers_text, wait_until
from tests.processes.pages import commands

ROOT = Path(__file__).resolve().parents[2]
REPLACING, EMPTY, OUT = (
    "Replacing a Java member by ours", "With an empty directory", "Taking it out again"
)
SELF = "n2"


class OperatorTests(SynchronousTestCase):
    """A Java member is replaced by ours, filled from nothing, and put back."""

    def setUp(self) -> None:
        """Start three Java members with entries in several files."""
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.group = MixedGroup(self.directory, (JAVA, JAVA, JAVA))
        self.addCleanup(self.group.kill)
        self.group.start()
        self.group.append_pipelined(bodies("before", 400))
        self.store = self.directory / SELF
        command = f'cd "{self.directory}" && exec {self.documented(REPLACING, "twistd")}'
        self.ours = Child(
            SELF, ["sh", "-c", command], log_path=self.directory / "ours.log",
            environment=self.environment,
        )
        self.addCleanup(self.ours.kill)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the operator has exported."""
        return {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(ROOT), "DLEDGER_GROUP": self.group.name,
            "DLEDGER_PEERS": peers_text(self.group.peers), "STORE": str(self.store),
        }

    def documented(self, section: str, start: str) -> str:
        """The one command of a section that begins with C{start}."""
        found = [command for command in commands("interop.md", section) if command.startswith(start)]
        self.assertEqual(len(set(found)), 1, f"{section}: {start}: {found}")
        return found[0]

    def run_documented(self, section: str, start: str, **variables: str) -> tuple[int, str]:
        """Run a command of a section. @return: exit status, and its output."""
        done = subprocess.run(
            ["bash", "-euc", self.documented(section, start)], stdin=subprocess.DEVNULL, timeout=240,
            env={**os.environ, **self.environment, **variables}, capture_output=True, text=True,
        )
        return done.returncode, done.stdout + done.stderr

    def shell(self, section: str, start: str, **variables: str) -> str:
        """Run a command of a section, which must succeed. @return: its output."""
        status, said = self.run_documented(section, start, **variables)
        self.assertEqual(status, 0, f"{start}: {said}")
        return said

    def write_configuration(self) -> None:
        """Step 1, with this group's values in place of the example's."""
        values = {
            "group": f'"{self.group.name}"', "peers": f'"{peers_text(self.group.peers)}"',
            "store": f'"{self.store}"', "mappedFileSizeForEntryData": str(DATA_FILE_BYTES),
            "mappedFileSizeForEntryIndex": str(INDEX_FILE_BYTES),
        }
        lines = [command for command in commands("interop.md", REPLACING) if " = " in command]
        self.assertEqual(len(lines), 6)
        text = "".join(
            f"{name} = {values.get(name, value)}\n" for name, _equals, value in (
                line.partition(" = ") for line in lines
            )
        )
        (self.directory / "n2.toml").write_text(text)

    def hand_over(self) -> None:
        """Step 2: a Java leader needs its term in the request."""
        self.group.lead(SELF)
        self.assertRegex(self.shell(REPLACING, "dledger status"), rf"{SELF} +leader")
        term = re.search(r"currTerm=(\d+)", self.shell(REPLACING, "cat"))
        assert term is not None
        self.shell(REPLACING, "dledger transfer", TERM_NOW=term.group(1))
        self.assertEqual(self.group.leader(), "n0")

    def wait_caught_up(self) -> int:
        """Step 6. @return: the last index."""
        ends: list[int] = []
        said: list[str] = []

        def caught_up() -> bool:
            said[:] = [self.shell(REPLACING, "dledger status")]
            line = re.search(rf"^{SELF} +follower +\d+ +\d+ +(\d+) ", said[0], re.MULTILINE)
            if line is None:
                return False
            ends.append(int(line.group(1)))
            status, answer = self.run_documented(REPLACING, "dledger get", END_PLUS_1=str(ends[-1] + 1))
            said.append(answer)
            return status == 1 and "INDEX_OUT_OF_RANGE (410)" in answer

        try:
            wait_until(caught_up, seconds=60, what=f"{SELF} to catch up", every=0.3)
        except ChildError as error:
            raise ChildError("\n".join([str(error), *said, self.ours.log_tail()])) from None
        return ends[-1]

    def append_without_java_n1(self) -> None:
        """With a Java follower paused, an append needs ours."""
        self.group.members["n1"].pause()
        request = AppendRequest(group=self.group.name, remote_id="n0", bodies=(b"with ours",))
        answer = ask(self.group.peers["n0"], request)
        self.group.members["n1"].resume()
        self.assertEqual(answer.code, 200)

    def test_steps(self) -> None:
        """A replacement on the same files, one from an empty directory, and back to Java."""
        self.write_configuration()
        self.hand_over()
        member = self.group.members[SELF]
        member.stop()
        self.assertIn("clean", self.shell(REPLACING, "dledger verify"))
        self.ours.start()
        self.wait_caught_up()
        self.append_without_java_n1()

        self.ours.stop()
        self.shell(EMPTY, "mv")
        self.ours.start()
        self.group.append(b"what an idle Java leader waits for")
        end_index = self.wait_caught_up()
        self.assertGreaterEqual(end_index, 400)
        self.append_without_java_n1()

        self.ours.stop()
        self.assertIn("clean", self.shell(OUT, "dledger verify"))
        self.group.start()
        self.group.append(*bodies("put back", 3))
        self.group.check()
        said = metadata_of(SELF, self.group.peers[SELF], group=self.group.name)
        assert said is not None
        self.assertEqual(said.wire_version, 0, "this is not the Java member")
