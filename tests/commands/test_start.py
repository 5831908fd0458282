# -*- test-case-name: tests.commands.test_start -*-
"""How much a command loads before it works: every call of an operator or a script pays for it."""

from __future__ import annotations

import subprocess
import sys

import click
from twisted.trial.unittest import SynchronousTestCase

from dledger.cli.console.command import loaded
from dledger.cli.main import cli

#: Command to the most modules that it loads: of all, and of ours.
MODULES_MAX = {
    "--version": (240, 31),
    "--help": (188, 27),
    "get 0": (580, 110),
    "status --json": (582, 112),
}
#: What a command without TLS, pages and files never needs.
_NEVER = {
    "treq", "twisted.web.client", "numpy", "pyarrow", "dledger.storage", "dledger.rocketmq", "rich.console",
}

_PROGRAM = """
import sys
from dledger.cli.entry import main
try:
    main()
except SystemExit:
    pass
print("loaded", *sys.modules)
"""


def modules_of(words: str) -> set[str]:
    """The modules that a fresh interpreter has loaded at the end of a command. No member answers it."""
    answer = subprocess.run(
        [sys.executable, "-c", _PROGRAM, "--peers", "n0-127.0.0.1:1", "--timeout", "0.05", *words.split()],
        capture_output=True, text=True, check=True, timeout=60,
        env={"DLEDGER_CONTEXTS": "", "PYTHONPATH": ":".join(sys.path)},
    )
    return set(answer.stdout.rpartition("loaded ")[2].split())


class StartTests(SynchronousTestCase):
    """A fresh interpreter."""

    def test_modules(self) -> None:
        """A command loads few modules, and none of those that others need."""
        for words, (all_max, ours_max) in MODULES_MAX.items():
            found = modules_of(words)
            ours = {one for one in found if one.partition(".")[0] in ("dledger", "protocols")}
            self.assertIn("dledger.cli.main", ours, words)
            self.assertEqual(found & _NEVER, set(), words)
            self.assertLessEqual(len(found), all_max, words)
            self.assertLessEqual(len(ours), ours_max, words)

    def test_help(self) -> None:
        """The list of commands says of each what the command itself says, without loading it."""
        for name, command in cli.commands.items():
            own = loaded(command)
            self.assertIsNot(own, command)
            self.assertEqual(own.name, name)
            self.assertEqual(own.get_short_help_str(1000), command.get_short_help_str(1000))
            self.assertIsInstance(own, click.Command)
