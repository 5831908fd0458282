# -*- test-case-name: tests.commands.test_json -*-
"""Every command that prints facts prints them as JSON, too."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from dledger.cli.console.command import loaded
from dledger.cli.main import cli
from tests.commands.fakes import CliCase
from tests.test_docs import DOCS

#: Commands without --json, and the reason; docs/operations.md has them, too.
WITHOUT: Mapping[str, str] = {
    "certs": "writes files", "completion": "is a script for a shell", "context remove": "only does it",
    "context set": "only does it", "context use": "only does it", "dashboard": "serves pages",
    "help": "is text for people", "token": "prints the token alone",
}


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""
    command = loaded(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from commands(inner, (*path, name))
    if path and (not isinstance(command, click.Group) or command.invoke_without_command):
        yield " ".join(path), command


class WalkTests(CliCase):
    """All of them."""

    def test_every_command(self) -> None:
        """Each has the option, or a reason not to have it."""
        with_json = {
            name for name, command in commands() if any("--json" in one.opts for one in command.params)
        }
        names = {name for name, _ in commands()}
        self.assertGreater(len(names), 40)
        self.assertEqual(names - with_json, WITHOUT.keys())

    def test_documented(self) -> None:
        """The document names those without it."""
        text = (DOCS / "reference.md").read_text("utf-8")
        (line,) = [one for one in text.split("\n\n") if one.startswith("Every command takes `--json`")]
        self.assertEqual(sorted(re.findall(r"`([a-z -]+)`", line.split("except", 1)[1])), sorted(WITHOUT))


class OutputTests(CliCase):
    """What those print that changed something."""

    def document(self, *arguments: str, status: int = 0) -> object:
        """It is one document."""
        result = self.run_cli(*arguments, "--json")
        self.assertEqual(result.exit_code, status, result.output)
        return json.loads(result.stdout)

    def test_small_ones(self) -> None:
        """One document each."""
        self.assertEqual(self.document("machine", "skip", "7"), {"index": 7, "order_index": 17})
        self.assertEqual(self.document("transfer", "n1"), {"leader_id": "n1", "term": 4})
        found = self.document("version")
        assert isinstance(found, dict)
        self.assertEqual(set(found), {"dledger", "native_wire", "twisted", "python"})

    def test_group(self) -> None:
        """The directory of a member."""
        base, peers = self.mktemp(), "n0-127.0.0.1:1;n1-127.0.0.1:2"
        options = ("--store", base, "--node-id", "n0", "--peers", peers)
        found = self.document("group", "create", *options)
        assert isinstance(found, dict)
        self.assertEqual((found["member_id"], found["members"]), ("n0", ["n0", "n1"]))
        self.assertTrue(found["group_id"])
        self.assertTrue(Path(found["path"]).is_dir())
        found = self.document("group", "join", "--store", self.mktemp(), *options[2:])
        assert isinstance(found, dict)
        self.assertIsNone(found["group_id"])
