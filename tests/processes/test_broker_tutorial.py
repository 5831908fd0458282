# -*- test-case-name: tests.processes.test_broker_tutorial -*-
"""
docs/broker-tutorial.md, run as a reader runs it: every command and program, in order, in an empty directory.

Rule 1: commands are given to a shell with free ports in place of the page's; one with C{&} goes on by itself.
Rule 2: an output is that of the block of commands before it. C{...} is anything within a line, or, at its
beginning, also some lines. Blocks that only look are repeated until the output is right.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import subprocess
from collections.abc import Iterator, Mapping

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.children import Child, ChildError, free_ports, free_triple, wait_until
from tests.processes.pages import DOCS, PageCase, fenced, joined
from tests.slowness import patient

#: Commands that change nothing.
_LOOKS = ("dledger tail ", "dledger ha-status ", "curl ", "ls ")


def steps(text: str) -> Iterator[tuple[str, str, str | None]]:
    """Kind, text and, of commands that have one, the expected output."""
    found = list(fenced(text))
    for number, (kind, body) in enumerate(found):
        if kind != "output":
            is_shown = found[number + 1 :][:1] and found[number + 1][0] == "output"
            yield kind, body, found[number + 1][1] if is_shown else None


def fits(output: str, expected: str) -> bool:
    """Whether an output is as the page has it; blanks and tabs are alike."""
    lines = []
    for line in re.sub(r"[ \t]+", " ", expected).rstrip().splitlines():
        start = r"[\s\S]*" if line.startswith("...") else ""
        lines.append(start + ".*".join(map(re.escape, line.removeprefix("... ").split("..."))))
    pattern = "\n".join(line.rstrip() if line.endswith(".*") else line + " *" for line in lines)
    return re.fullmatch(pattern, re.sub(r"[ \t]+", " ", output).rstrip()) is not None


class FitsTests(SynchronousTestCase):
    """How outputs are compared."""

    def test_fits(self) -> None:
        """Anything for three points, some lines at the beginning of a line, and nothing else."""
        for output, expected, is_right in (
            ("a 1 b\n", "a ... b\n", True), ("a  b", "a b", True), ("a 1 c", "a ... b", False),
            ("x\ny\nError: z", "... Error: ...", True), ("a\nb", "a", False), ("a", "a\nb", False),
            ("a.b", "a.b", True), ("axb", "a.b", False), ("a 1\nb", "a ...", False),
        ):
            self.assertEqual(fits(output, expected), is_right, (output, expected))

    def test_steps(self) -> None:
        """Each output belongs to the commands before it, which are joined."""
        text = "```sh\na \\\n    b\nc\n```\n\n```output\n1\n```\n```python\n# x.py\n```\n"
        self.assertEqual(list(steps(text)), [("sh", "a \\\n    b\nc\n", "1\n"), ("python", "# x.py\n", None)])
        self.assertEqual(joined("a \\\n    b\nc\n"), ["a b", "c"])


class TutorialTests(PageCase):
    """The page."""

    def setUp(self) -> None:
        """An empty directory, our programs on the path, and ports for those of the page."""
        super().setUp()
        master, slave = free_triple(), free_triple()
        names, *pages = free_ports(4)
        self.ports: Mapping[str, int] = {
            "9876": names, "8070": pages[0], "8090": pages[1], "8091": pages[2], "10911": master,
            "20911": slave,
        }
        self.children: list[Child] = []
        self.ours = self.given((DOCS / "broker-tutorial.md").read_text("utf-8"))

    def given(self, text: str) -> str:
        """The text with our ports."""
        return re.sub(
            r"\b(?:" + "|".join(self.ports) + r")\b", lambda found: str(self.ports[found[0]]), text
        )

    def run_block(self, block: str) -> str:
        """Run the commands. @return: what those that end have written, both to output and errors."""
        written = ""
        for command in joined(block):
            if command.endswith("&"):
                # Takes notice of those that were killed, as a shell does; else their ids are still in use.
                self.children = [one for one in self.children if one.is_running]
                name = re.findall(r"> (\S+)\.log", command)[0]
                alone = f"cd {self.directory} && exec {command.removesuffix('&')}"
                child = Child(name, ["bash", "-c", alone], log_path=self.directory / f"{name}.out",
                              environment=self.environment)
                self.addCleanup(child.kill)
                self.children.append(child)
                child.start()
                continue
            ended = subprocess.run(
                ["bash", "-c", command], cwd=self.directory, env=self.environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=patient(240),
            )
            written += ended.stdout
        return written

    def check(self, block: str, expected: str | None) -> None:
        """Run a block of commands; its output becomes the expected one."""
        seen = [self.run_block(block)]
        if expected is None:
            return

        def is_right() -> bool:
            if not fits(seen[-1], expected) and all(one.startswith(_LOOKS) for one in joined(block)):
                seen.append(self.run_block(block))
            return fits(seen[-1], expected)

        if joined(block)[0].startswith(_LOOKS):
            with contextlib.suppress(ChildError):
                wait_until(is_right, seconds=90, what="the output of the page", every=0.2)
        self.assertTrue(is_right(), f"{block}\n--- expected\n{expected}\n--- seen\n{seen[-1]}")

    def test_page(self) -> None:
        """Every step, as it is written."""
        count = 0
        for kind, body, expected in steps(self.ours):
            count += 1
            if kind == "python":
                name = re.findall(r"^# (\S+\.py)\n", body)[0]
                (self.directory / name).write_text(body)
            elif "rows.py" in body and importlib.util.find_spec("pyspark") is None:
                continue  # (tests.run_all runs this stage with PySpark.)
            else:
                self.check(body, expected)
        self.assertGreater(count, 20)
