# -*- test-case-name: tests.commands.test_contexts -*-
"""Contexts: the file, the commands that change it, and what counts before what."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import click
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as some

import dledger
from dledger.cli import main as cli_main
from dledger.cli.console.command import loaded
from dledger.cli.console.contexts import (
    FILES,
    Contexts,
    FromContext,
    contexts_path,
    parse_contexts,
    with_context,
    with_current,
    without_context,
)
from dledger.cli.ledger import status as cli_status
from dledger.cli.rocketmq import broker as broker_log
from dledger.cli.rocketmq import ha
from tests.commands.fakes import CliCase

#: The characters that C{str.isprintable} allows.
_PRINTABLE = some.characters(exclude_categories=("C", "Z"), include_characters=" ")

TEXT = """\
# who is where
current = "prod"

[contexts.prod]
peers = "n0-a:1;n1-b:2"   # the two in the cellar
admin = ["http://a:8080", "https://b:8080"]
group = "orders"

# for tests
[contexts.test]
peers = "n0-t:1"
"""


class ContextCase(CliCase):
    """Commands with a file of contexts."""

    def setUp(self) -> None:
        super().setUp()
        self.path = Path(self.mktemp()).absolute() / "contexts.toml"
        self.path.parent.mkdir()
        self.log.bodies = [b"a"]

    def run_cli(self, *args: str, stdin: bytes | None = None, env: dict[str, str] | None = None) -> Result:
        """One command; without C{--peers}."""
        return super().run_cli(
            *args, stdin=stdin, env={"DLEDGER_CONTEXTS": str(self.path), "DLEDGER_PEERS": "", **(env or {})}
        )

    def meant(self, *args: str, env: dict[str, str] | None = None) -> tuple[str, str]:
        """Peers and group of a command's log."""
        self.assertExit(self.run_cli(*args, "get", "0", env=env), 0)
        peers, options = self.opened[-1]
        return peers, options["group"]


class OrderTests(ContextCase):
    """What counts before what."""

    def setUp(self) -> None:
        super().setUp()
        self.path.write_text(TEXT)

    def test_order(self) -> None:
        """Option, named context, environment, context of the environment, current context, default."""
        self.assertEqual(self.meant(), ("n0-a:1;n1-b:2", "orders"))
        self.assertEqual(self.meant(env={"DLEDGER_CONTEXT": "test"}), ("n0-t:1", "default"))
        self.assertEqual(self.meant("--context", "prod", env={"DLEDGER_CONTEXT": "test"})[0], "n0-a:1;n1-b:2")
        env = {"DLEDGER_PEERS": "n0-e:1", "DLEDGER_GROUP": "e"}
        self.assertEqual(self.meant(env=env), ("n0-e:1", "e"))
        self.assertEqual(self.meant(env=env | {"DLEDGER_CONTEXT": "test"}), ("n0-e:1", "e"))
        self.assertEqual(self.meant("--context", "prod", env=env), ("n0-a:1;n1-b:2", "orders"))
        self.assertEqual(self.meant("--context", "prod", "--peers", "n0-o:1", env=env), ("n0-o:1", "orders"))
        self.assertEqual(self.meant("--group", "o"), ("n0-a:1;n1-b:2", "o"))

    def asked(self, *args: str, env: dict[str, str] | None = None) -> tuple[tuple[str, ...], str, str]:
        """What C{status} asks: administrations, peers, and the token for administrations."""
        found: list[Any] = []

        def gather(target: Any, urls: tuple[str, ...], **_options: object) -> None:
            found.append((urls, target.peers, target.admin.token))
            raise click.ClickException("enough")

        self.patch(cli_status, "gather_reports", gather)
        self.assertExit(self.run_cli(*args, env=env), 1, "enough")
        return found[0]  # type: ignore[no-any-return]

    def test_addresses_are_one(self) -> None:
        """Who names members or administrations gets neither of the context: two groups do not mix."""
        both = ("http://a:8080", "https://b:8080")
        self.assertEqual(self.asked("status"), (both, "n0-a:1;n1-b:2", ""))
        self.assertEqual(self.asked("--peers", "n0-o:1", "status"), ((), "n0-o:1", ""))
        self.assertEqual(self.asked("status", "--admin", "http://o:1"), (("http://o:1",), "", ""))
        self.assertEqual(self.asked("--context", "prod", "status", "--admin", "http://o:1")[1], "")
        env = {"DLEDGER_ADMIN": "http://e:1"}
        self.assertEqual(self.asked("status", env=env), (("http://e:1",), "", ""))
        self.assertEqual(self.asked("--context", "prod", "status", env=env)[:2], (both, "n0-a:1;n1-b:2"))

    def test_tokens(self) -> None:
        """The current context's go to its own addresses only; files count from the directory of the file."""
        (self.path.parent / "ops.token").write_text("secret\n")
        (self.path.parent / "app.token").write_text("hidden\n")
        self.path.write_text(
            TEXT.replace("group", 'admin_token_file = "ops.token"\ntoken_file = "app.token"\ngroup')
        )
        self.assertEqual(self.asked("status")[2], "secret")
        self.assertEqual(self.asked("status", "--admin", "https://o:1")[2], "")
        self.assertEqual(self.asked("--context", "prod", "status", "--admin", "https://o:1")[2], "secret")
        self.assertEqual(self.asked("--peers", "n0-o:1", "status")[2], "")
        self.meant()
        self.assertEqual(self.opened[-1][1]["token"], dledger.ClientToken("hidden", False))
        self.meant("--peers", "n0-o:1")
        self.assertIsNone(self.opened[-1][1]["token"])

    def test_no_such_file(self) -> None:
        """A file that the current context names and is not there stops only who needs the context."""
        self.path.write_text(TEXT.replace("group", 'token_file = "app.token"\ngroup'))
        said = f"a file of the context: --token-file {self.path.parent}/app.token"
        for words in (["get", "0"], ["status"]):
            self.assertExit(self.run_cli(*words), 64, said)
        self.assertExit(self.run_cli("context", "set", "prod", "--token-file", ""), 0)
        self.meant()
        self.assertExit(self.run_cli("--token-file", "x", "context", "list"), 64, "--token-file x")

    def test_keys(self) -> None:
        """Files of TLS go to the client, from the directory of the file."""
        self.path.write_text(
            '[contexts.a]\npeers = "n0-a:1"\n'
            'tls_certificate = "a.pem"\ntls_key = "/k/a.key"\ntls_authority = "ca.pem"\n'
        )
        self.meant("--context", "a")
        here = str(self.path.parent)
        self.assertEqual(
            self.opened[-1][1]["tls"],
            dledger.TlsFiles(certificate=f"{here}/a.pem", key="/k/a.key", authority=f"{here}/ca.pem"),
        )

    def test_brokers(self) -> None:
        """C{tail} shows a broker where the context has no group; C{ha-status} asks the name server first."""
        shown: list[str] = []
        self.patch(broker_log, "tail_broker", lambda broker, *_: shown.append(broker))
        asked: list[Any] = []
        self.patch(ha, "_fetch", lambda broker, namesrv, *_: asked.append((broker, namesrv)) or [])
        self.path.write_text(
            '[contexts.b]\nbroker = "m:1"\n'
            '[contexts.all]\npeers = "n0-a:1"\nbroker = "m:2"\nnamesrv = "ns:1"\n'
        )
        self.assertExit(self.run_cli("--context", "b", "tail"), 0)
        self.assertExit(self.run_cli("--context", "all", "tail"), 0)
        self.assertExit(self.run_cli("--context", "all", "tail", "--broker", "o:1"), 0)
        self.assertEqual(shown, ["m:1", "o:1"])
        for words, env in (
            (("b", "ha-status"), {}), (("all", "ha-status"), {}),
            (("all", "ha-status", "--broker", "o:1"), {}),
            (("b", "ha-status"), {"NAMESRV_ADDR": "e:1"}),
        ):
            self.assertExit(self.run_cli("--context", *words, env=env), 0)
        env = {"NAMESRV_ADDR": "e:1", "DLEDGER_CONTEXT": "b"}
        self.assertExit(self.run_cli("ha-status", env=env), 0)
        self.assertExit(self.run_cli("ha-status", "--broker", "o:1", env=env), 0)
        self.assertEqual(
            asked,
            [("m:1", ""), (None, "ns:1"), ("o:1", ""), ("m:1", ""), (None, "e:1"), ("o:1", "")],
        )

    def test_all_options(self) -> None:
        """Every option that names an administration takes it from the context, in one place."""
        options = [
            (name, option) for name, command in cli_main.cli.commands.items()
            for option in loaded(command).params
            # (The pages of an export are its own: it listens there.)
            if "--admin" in option.opts and name != "export"
        ]
        self.assertGreaterEqual(len(options), 7)
        for name, option in options:
            self.assertIsInstance(option, FromContext, name)

    def test_not_sound(self) -> None:
        """Commands that need a place say what is wrong; the others work, and so does C{DLEDGER_CONTEXTS=}."""
        self.path.write_text(TEXT.replace("peers", "pears", 1))
        said = f"{self.path}: line 5: [contexts.prod] unknown 'pears'; did you mean 'peers'?"
        for words in (["get", "0"], ["status"], ["--peers", "n0-o:1", "get", "0"],
                      ["--context", "test", "get", "0"], ["context", "list"], ["ha-status"]):
            result = self.run_cli(*words)
            self.assertIn(said, result.stderr, words)
            self.assertNotEqual(result.exit_code, 0)
        self.assertExit(self.run_cli("version"), 0)
        self.assertExit(self.run_cli("--peers", "n0-o:1", "get", "0", env={"DLEDGER_CONTEXTS": ""}), 0)
        result = self.run_cli("--context", "x", "get", "0", env={"DLEDGER_CONTEXTS": ""})
        self.assertExit(result, 64, "DLEDGER_CONTEXTS is empty")

    def test_no_such(self) -> None:
        """Said with the nearest name, or with all."""
        result = self.run_cli("--context", "prd", "get", "0")
        self.assertExit(result, 64, "no context 'prd'; did you mean 'prod'?")
        result = self.run_cli("get", "0", env={"DLEDGER_CONTEXT": "x"})
        self.assertExit(result, 64, "no context 'x'; there are prod, test")
        self.path.unlink()
        self.assertExit(self.run_cli("get", "0"), 0, "no members named", "dledger context")

    def test_path(self) -> None:
        """C{DLEDGER_CONTEXTS}, then XDG's directory, then the home."""
        home = {"HOME": "/h", "XDG_CONFIG_HOME": "/x"}
        for env, path in (
            ({"DLEDGER_CONTEXTS": "/d"}, "/d"), ({}, "/x/dledger/contexts.toml"),
            ({"XDG_CONFIG_HOME": "relative"}, "/h/.config/dledger/contexts.toml"),
        ):
            self.patch(os, "environ", home | env)
            self.assertEqual(contexts_path(), Path(path))
        os.environ["DLEDGER_CONTEXTS"] = ""
        self.assertIsNone(contexts_path())


class FileTests(ContextCase):
    """The keys of the file."""

    def test_refused(self) -> None:
        """With the line, and what is allowed."""
        for text, said in (
            ("current = \n", "x: not TOML: Invalid value (at line 1, column 11)"),
            ("\ncurent = 'a'\n", "x: line 2: unknown 'curent': write current = NAME"),
            ("current = 'b'\n[contexts.a]\ngroup = 'g'\n", "x: line 1: no context 'b'; there are a"),
            ("contexts = 3\n", "x: line 1: write a table [contexts.NAME]"),
            ("[contexts]\na = 3\n", "x: 'a' is not a context"),
            ("[contexts.'a b']\n", "x: line 1: 'a b' is not a context"),
            ("[contexts.a]\n\npeers = 'n0'\n", "x: line 3: [contexts.a] peers: 'n0' is not"),
            ("[contexts.a]\nbroker = 'n0'\n", "x: line 2: [contexts.a] broker: 'n0' is not an address:"),
            ("[contexts.a]\ngroup = 3\n", "x: line 2: [contexts.a] group: write text in quotes"),
            ("[contexts.a]\ngroup = ''\n", "x: line 2: [contexts.a] group: write text in quotes"),
            ("[contexts.a]\nadmin = []\n", "x: line 2: [contexts.a] admin: write one URL, or a list"),
            ("[contexts.a]\nadmin = ['a:8080']\n", "is not a URL of an administration: write http://"),
            ("[contexts.a]\nadmin = 'http://me:pw@a'\n", "secrets are not kept here, see admin_token_file"),
            ("[contexts.a]\ntoken = 's3cr'\n", "x: line 2: [contexts.a] token: secrets are not kept here:"),
            ("[contexts.a]\ngroup = 'g'\n[contexts.b]\ngroup = 'g'\nx = 1\n", "x: line 5: [contexts.b] un"),
        ):
            error = self.assertRaises(ValueError, parse_contexts, text, "x")
            self.assertIn(said, str(error), text)
            self.assertNotIn("s3cr", str(error))

    def test_kept(self) -> None:
        """What is not changed stays as it is written, comments too."""
        changed = with_context(TEXT, "test", {"peers": "n0-t:2", "group": "g"})
        self.assertEqual(changed, TEXT.replace('peers = "n0-t:1"', 'group = "g"\npeers = "n0-t:2"'))
        self.assertEqual(with_current(TEXT, "test"), TEXT.replace('current = "prod"', 'current = "test"'))
        left = without_context(TEXT, "prod")
        self.assertEqual(left, '# who is where\n\n# for tests\n[contexts.test]\npeers = "n0-t:1"\n')
        self.assertEqual(with_current(left, "test"), f'current = "test"\n\n{left}')
        odd = "contexts.a.group = 'g'\n"
        for change in (lambda: with_context(odd, "a", {"group": "h"}), lambda: without_context(odd, "a")):
            self.assertIn("edit it by hand", str(self.assertRaises(ValueError, change)))
        several = '[contexts.a]\nadmin = [\n "http://a",\n]\n'
        self.assertRaises(ValueError, with_context, several, "a", {"admin": ("http://b",)})
        more = with_context(several, "a", {"admin": ("http://a",), "group": "g"})
        self.assertIn('[\n "http://a",\n]', more)

    @settings(max_examples=40, derandomize=True)
    @given(some.lists(some.tuples(
        some.sampled_from(["a", "b-1", "c_2"]),
        some.dictionaries(
            some.sampled_from(["group", *FILES]),
            some.text(_PRINTABLE, min_size=1).filter(str.strip),
            min_size=1, max_size=3,
        ),
    ), max_size=6))
    def test_any_changes(self, changes: list[tuple[str, dict[str, str]]]) -> None:
        """The file has the changes, of any values."""
        text, wanted = "", {}
        for name, values in changes:
            text = with_context(text, name, values)
            wanted[name] = values
            self.assertEqual(parse_contexts(text, "x").by_name, wanted)
        for name in list(wanted):
            text = without_context(with_current(text, name), name)
            del wanted[name]
            self.assertEqual(parse_contexts(text, "x"), Contexts("", wanted))


class CommandTests(ContextCase):
    """C{dledger context}."""

    def test_life(self) -> None:
        """Set, listed, shown, used, changed, removed."""
        self.path = self.path.parent / "new" / "contexts.toml"
        said = self.run_cli("context", "set", "prod", "--peers", "n0-a:1", "--admin", "http://a:1", "--admin",
                            "http://b:1", "--token-file", "app.token")
        self.assertExit(said, 0, "dledger context use prod")
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), 0o600)
        self.assertExit(self.run_cli("context", "set", "test", "--broker", "m:1"), 0)
        self.assertExit(self.run_cli("context", "list"), 0, "  prod\tn0-a:1\n  test\tm:1\n")
        self.assertExit(self.run_cli("context", "show"), 1, "no context is current")
        self.assertExit(self.run_cli("context", "use", "prod"), 0, "prod is the current context")
        self.assertExit(self.run_cli("context", "list"), 0, "* prod\tn0-a:1\n  test\tm:1\n")
        token_file = os.path.abspath("app.token")
        reported = f"admin\thttp://a:1 http://b:1\ntoken_file\t{token_file}"
        self.assertExit(self.run_cli("context", "show"), 0, reported)
        shown = json.loads(self.run_cli("context", "show", "prod", "--json").stdout)
        self.assertEqual(shown, {"name": "prod", "is_current": True, "peers": "n0-a:1",
                                 "token_file": token_file, "admin": ["http://a:1", "http://b:1"]})
        changed = self.run_cli("context", "set", "prod", "--group", "g", "--admin", "")
        self.assertExit(changed, 0, "is changed")
        listed = json.loads(self.run_cli("context", "list", "--json").stdout)
        self.assertEqual(listed[0], {"name": "prod", "is_current": True, "group": "g", "peers": "n0-a:1",
                                     "token_file": token_file})
        self.assertExit(self.run_cli("context", "remove", "prod"), 0)
        self.assertExit(self.run_cli("context", "list"), 0, "  test\tm:1")
        self.assertEqual(os.listdir(self.path.parent), ["contexts.toml"])

    def test_refused(self) -> None:
        """And the file stays as it is."""
        self.path.write_text(TEXT)
        for words, status, said in (
            (["use", "x"], 1, "no context 'x'"), (["remove", "tst"], 1, "did you mean 'test'?"),
            (["show", "x"], 1, "no context 'x'"),
            (["set", "a b", "--group", "g"], 64, "not a name of a context"),
            (["set", "new"], 64, "needs a value"), (["set", "test", "--peers", ""], 64, "needs a value"),
            (["set", "test", "--peers", "nonsense"], 64, "peers: 'nonsense'"),
            (["set", "test", "--token", "secret"], 64, "--token"),
        ):
            self.assertExit(self.run_cli("context", *words), status, said)
        self.assertEqual(self.path.read_text(), TEXT)
        self.assertExit(self.run_cli("context", "list", env={"DLEDGER_CONTEXTS": ""}), 1, "is empty")
        odd = "contexts.a.group = 'g'\n"
        self.path.write_text(odd)
        self.assertExit(self.run_cli("context", "set", "a", "--group", "h"), 1, "edit it by hand")
        self.assertEqual(self.path.read_text(), odd)
