# -*- test-case-name: tests.commands.test_documents -*-
"""
The command lines in the documents: each names a command and options that there are, with as many arguments as
it takes. They are parsed, not run; tests of real processes run some of them.
"""

from __future__ import annotations

import getopt
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
from twisted.trial.unittest import SynchronousTestCase

from dledger.cli.console.command import loaded
from dledger.cli.console.contexts import KEYS, parse_contexts
from dledger.cli.main import cli
from dledger.daemons.data import export
from dledger.daemons.ledger import member
from dledger.daemons.rocketmq import broker, namesrv
from tests.commands.test_contexts import ContextCase

ROOT = Path(__file__).resolve().parents[2]
SERVICES = {
    "dledger": member.Options, "dledger-broker": broker.Options, "dledger-namesrv": namesrv.Options,
    "dledger-export": export.Options,
}
_ENDS = ("|", ">", "<", "&", "&&", "||", ";")


def pages() -> list[Path]:
    """Documents with command lines."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("examples/*/*.md"))]


def lines_of(text: str, program: str) -> Iterator[list[str]]:
    """The words after C{program} of each line that begins with it, without what is the shell's."""
    for line in re.sub(r"\\\n *", " ", text).splitlines():
        found = re.match(rf"    +(?:[A-Z_]+=\S+ +)*{program} (.*)", line)
        if found is None:
            continue
        words = shlex.split(found[1], comments=True)
        end = next((number for number, word in enumerate(words) if word in _ENDS), len(words))
        # (A value may be left out as "...".)
        yield [word for before, word in zip(["", *words], words[:end], strict=False)
               if word not in ("$SIZES", "...") or before.startswith("-")]


def problem_of(words: list[str]) -> str:
    """Why C{dledger} would not take these words; empty if it would."""
    command: click.Command = cli
    while True:
        context = click.Context(command, info_name="dledger")
        try:
            given, rest, _ = command.make_parser(context).parse_args(list(words))
            for param in command.params:
                if isinstance(param.type, click.Choice) and isinstance(given.get(param.name or ""), str):
                    param.type_cast_value(context, given[param.name or ""])
        except click.UsageError as error:
            return error.format_message()
        if not isinstance(command, click.Group):
            return f"{rest} are too many" if rest and not command.allow_extra_args else ""
        if not rest:
            return "" if command is cli else "no command"
        found = command.get_command(context, rest[0])
        if found is None:
            return f"no command {rest[0]}"
        command, words = loaded(found), rest[1:]


class LinesTests(SynchronousTestCase):
    """All documents."""

    def test_dledger(self) -> None:
        """C{dledger}."""
        count, wrong = 0, []
        for page in pages():
            for words in lines_of(page.read_text("utf-8"), "dledger"):
                count += 1
                if problem := problem_of(words):
                    wrong.append(f"{page.name}: dledger {shlex.join(words)}: {problem}")
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        self.assertGreater(count, 50)

    def test_twistd(self) -> None:
        """C{twistd}, with the services of this package."""
        count, wrong = 0, []
        for page in pages():
            for words in lines_of(page.read_text("utf-8"), "twistd"):
                at = next((number for number, word in enumerate(words) if word in SERVICES), None)
                if at is None:
                    continue
                count += 1
                options = SERVICES[words[at]]()
                try:
                    _, rest = getopt.getopt(words[at + 1 :], options.shortOpt, options.longOpt)
                except getopt.GetoptError as error:
                    rest = [error.msg]
                if rest:
                    wrong.append(f"{page.name}: twistd {shlex.join(words)}: {rest}")
        self.assertEqual(wrong, [], "\n" + "\n".join(wrong))
        self.assertGreater(count, 30)

    def test_finds(self) -> None:
        """The findings of the check."""
        text = (
            "    dledger tail -f \\\n        --jason | jq .   # all\n    X=1 dledger get 0 > out\n"
            "  dledger no\n"
        )
        self.assertEqual(list(lines_of(text, "dledger")), [["tail", "-f", "--jason"], ["get", "0"]])
        for words, said in (
            ("tail -f --jason", "No such option"), ("get 0 1", "too many"), ("gett", "no command gett"),
            ("--gruop g get 0", "No such option"), ("group", "no command"),
            ("bench --size", "requires an argument"),
            ("get 0 --consistency some", "is not one of"), ("get 0", ""), ("-h", ""),
        ):
            self.assertIn(said, problem_of(words.split()), words)
        self.assertEqual(problem_of(["get", "0"]), "")


class ContextsTests(ContextCase):
    """The section "Contexts" of docs/reference.md."""

    def test_steps(self) -> None:
        """Its commands make a file that says what its example says; the example has no unknown key."""
        text = (ROOT / "docs" / "reference.md").read_text("utf-8")
        section = text.split("\n### Contexts\n")[1].split("\n### ")[0]
        for words in lines_of(section, "dledger"):
            if words[0] == "context":
                self.assertExit(self.run_cli(*words), 0)
        made = parse_contexts(self.path.read_text(), "made")
        (example,) = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)
        reported = parse_contexts(example, "example")
        self.assertEqual(made.current, reported.current)
        self.assertEqual(set(made.by_name["prod"]), set(reported.by_name["prod"]))
        for key in ("peers", "admin", "group"):
            self.assertEqual(made.by_name["prod"][key], reported.by_name["prod"][key])
        for key in KEYS:
            self.assertIn(f"`{key}`", section)
