# -*- test-case-name: tests.test_pages,tests.processes.test_operations_page -*-
"""
Commands of the pages in C{docs/}, found there and run as they are printed.

Rule 1: a command is looked up in its section, never copied; only texts of the page that a test names, such
as addresses and paths, are replaced, and each of them must be in the command.
Rule 2: a block of a page has commands, which all begin with a word of L{WORDS}, or it is the content of a
file, and its first line is in L{FILES}.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.children import Child, wait_until
from tests.processes.members import ROOT
from tests.slowness import patient

DOCS = ROOT / "docs"
#: First words of commands.
WORDS = frozenset((
    "dledger", "twistd", "curl", "until", "docker", "cp", "python", "python3", "systemctl", "pip", "export",
    "git", "kill", "ls", "rm", "/opt/dledger/bin/twistd", "/opt/dledger/bin/dledger",
))
#: First lines of blocks that are no commands.
FILES = frozenset((
    "brokerClusterName=DefaultCluster",
    '{"format": 1, "tables": {"topics": {"dataVersion": {...}, "entries": {"Orders": {...}, "Old": null}}}}',
    'with Broker("host:10911") as broker:',
))
_PROGRAMS = {
    "dledger": '-c "from dledger.cli.main import main; main()"',
    "twistd": '-c "from twisted.scripts.twistd import run; run()"', "python": "",
}


def sections(page: str) -> dict[str, str]:
    """Title of each section of a page, to its text."""
    # (A later line that begins with one # is a comment of a program.)
    parts = re.split(r"(?:^##+|\A#) (.*)$", (DOCS / page).read_text("utf-8"), flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert 2 * len(found) == len(parts) - 1, f"{page}: two sections with one title"
    return found


def fenced(text: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each block between fences."""
    yield from re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def joined(block: str) -> list[str]:
    """The commands of a block, each in one line."""
    return re.sub(r" *\\\n *", " ", block).splitlines()


def blocks(text: str) -> Iterator[str]:
    """The blocks of a section: those that are indented, and those of a shell between fences."""
    # (Outside fences; a block follows an empty line.)
    plain = re.sub(r"^```\w+\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for block in re.findall(r"(?:\A|\n)\n((?: {4,}\S.*\n?)+)", plain):
        yield textwrap.dedent(block)
    yield from (block for kind, block in fenced(text) if kind == "sh")


def commands(page: str, title: str) -> list[str]:
    """All commands of a section."""
    found = [block for block in blocks(sections(page)[title]) if block.splitlines()[0] not in FILES]
    return [command for block in found for command in joined(block)]


def file_of(page: str, title: str) -> str:
    """The content of a file, as a section has it in its one block that has no commands."""
    (found,) = [block for block in blocks(sections(page)[title]) if block.splitlines()[0] in FILES]
    return found


def documented(start: str, title: str, page: str = "operations.md") -> str:
    """The command of a section that begins with C{start}."""
    (found,) = {command for command in commands(page, title) if command.startswith(start)}
    return found


def shown(page: str, title: str, kind: str) -> list[str]:
    """The blocks of a section between fences, of one kind."""
    return [body for one, body in fenced(sections(page)[title]) if one == kind]


def programs(directory: Path) -> dict[str, str]:
    """Make the programs of the tree, in a directory C{bin}. @return: an environment that finds them."""
    place = directory / "bin"
    place.mkdir()
    for name, words in _PROGRAMS.items():
        path = place / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        path.chmod(0o755)
    return {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1"}


class PageCase(SynchronousTestCase):
    """
    An empty directory, in which commands of a page run.

    @ivar directory: of the commands.
    @ivar environment: what the operator has exported.
    """

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.environment = programs(self.directory)

    def placed(self, command: str, others: Mapping[str, str] | None = None) -> str:
        """@param others: texts of the page to ours; the texts that replace others are not replaced again."""
        for printed in others or ():
            self.assertIn(printed, command)
        if others:
            pattern = "|".join(map(re.escape, sorted(others, key=len, reverse=True)))
            command = re.sub(pattern, lambda found: others[found[0]], command)
        return command

    def run_printed(
        self, command: str, peers: str = "", *, others: Mapping[str, str] | None = None, status: int = 0
    ) -> str:
        """
        Run a command of the page. @return: its output; with another C{status} than 0 its errors, too.

        @param peers: C{DLEDGER_PEERS}.
        @param others: see L{placed}.
        """
        command = self.placed(command, others)
        done = subprocess.run(
            ["bash", "-euc", command], cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=patient(240),
            env={**self.environment, "DLEDGER_PEERS": peers or self.environment.get("DLEDGER_PEERS", "")},
        )
        self.assertEqual(done.returncode, status, f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout + (done.stderr if status else "")

    def start_printed(
        self, name: str, command: str, *, others: Mapping[str, str] | None = None, until: str = ""
    ) -> Child:
        """
        Start a program of the page.

        @param others: see L{placed}.
        @param until: wait until its log has this.
        """
        command = self.placed(command, others)
        child = Child(name, ["bash", "-euc", f'cd "{self.directory}" && exec {command}'],
                      log_path=self.directory / f"{name}.log", environment=self.environment)
        self.addCleanup(child.kill)
        child.start()

        def is_there() -> bool:
            if not child.is_running:
                self.fail(f"{command}\n{child.log_tail()}")
            return until in child.log_path.read_text("utf-8")

        wait_until(is_there, seconds=60, what=f"{until!r} of {name}", notify=child.log_tail)
        return child
