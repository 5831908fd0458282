# -*- test-case-name: tests.commands.test_assisting -*-
"""C{dledger help} and C{dledger completion}."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from dledger.cli.main import cli
from tests.commands.fakes import CliCase


class HelpTests(CliCase):
    """C{dledger help}."""

    def test_commands(self) -> None:
        """All of them, one, and one of a group; the same text as with C{--help}."""
        for names in ((), ("tail",), ("member", "add")):
            asked = self.run_cli("help", *names).stdout
            self.assertEqual(asked, self.run_cli(*names, "--help").stdout, names)
            self.assertNotIn("...\n", asked.partition("Commands:")[2], "a sentence is cut")

    def test_every_command(self) -> None:
        """Each has a first line."""
        for name in cli.commands:
            self.assertRegex(self.run_cli("help", name).stdout, r"^Usage: .*\n\n  \w", name)

    def test_unknown(self) -> None:
        """Named."""
        self.assertExit(self.run_cli("help", "fly"), 64, "has no command 'fly'")
        self.assertExit(self.run_cli("help", "tail", "x"), 64, "tail has no command 'x'")


class CompletionTests(CliCase):
    """C{dledger completion}."""

    def test_printed(self) -> None:
        """For each shell; bash takes it."""
        for shell in ("bash", "zsh", "fish"):
            self.assertIn(f"_DLEDGER_COMPLETE={shell}_complete", self.run_cli("completion", shell).stdout)
        self.assertExit(self.run_cli("completion", "ksh"), 64, "'bash', 'fish', 'zsh'")
        bash = shutil.which("bash")
        assert bash is not None
        text = self.run_cli("completion", "bash").stdout
        done = subprocess.run([bash, "-n"], input=text, text=True, capture_output=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_installed(self) -> None:
        """Where the shell looks; a place that cannot be written is one line."""
        home = Path(self.mktemp())
        home.mkdir()
        env = {"HOME": str(home), "XDG_DATA_HOME": "", "XDG_CONFIG_HOME": "", "ZDOTDIR": ""}
        for shell, path in (
            ("bash", ".local/share/bash-completion/completions/dledger"), ("zsh", ".zfunc/_dledger"),
            ("fish", ".config/fish/completions/dledger.fish"),
        ):
            self.assertExit(self.run_cli("completion", shell, "--install", env=env), 0, path)
            self.assertIn("_DLEDGER_COMPLETE", (home / path).read_text())
        (home / ".zfunc/_dledger").write_text("my own")
        self.assertExit(self.run_cli("completion", "zsh", "--install", env=env), 1, "move it away")
        self.assertEqual((home / ".zfunc/_dledger").read_text(), "my own")
        elsewhere = {**env, "XDG_CONFIG_HOME": str(home / "xdg")}
        self.assertExit(self.run_cli("completion", "fish", "--install", env=elsewhere), 0, "xdg/fish")
        self.assertTrue((home / "xdg/fish/completions/dledger.fish").exists())
        shutil.rmtree(home / ".zfunc")
        (home / ".zfunc").write_text("")
        self.assertExit(self.run_cli("completion", "zsh", "--install", env=env), 1, "_dledger")
