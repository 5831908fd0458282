# -*- test-case-name: tests.commands.test_local_paths -*-
"""URLs on the command line, where only paths of this machine work."""

from __future__ import annotations

import os

import click
from twisted.python.usage import UsageError

from dledger.cli.console.local_paths import LocalFile, LocalPath
from dledger.cli.main import cli
from dledger.daemons.ledger import member
from dledger.daemons.rocketmq import broker, namesrv
from tests.commands.fakes import CliCase
from tests.commands.test_numbers import parameters

#: Metavars, and words in names, of options and arguments that name a place.
_PLACES = ("PEM", "FILE", "DIR", "PATH", "TARGET", "SOURCE", "FILENAME", "MEMBER TARGET", "FROM TO")
_WORDS = ("file", "path", "dir", "directory", "store", "certificate", "authority", "credentials")
#: These take a URL, too: of an archive; or check MEMBER themselves; or are options of a store.
_WITH_URLS = {("names", "MEMBER TARGET"), ("verified", "TARGET"), ("expired", "TARGET"),
              ("source", "SOURCE"), ("source", "TARGET"), ("backups", "TARGET"),
              ("store_option", None)}
URL = "s3://bucket/log"


class EveryOptionTests(CliCase):
    """All commands."""

    def test_every_place_is_one_of_this_machine(self) -> None:
        """What names a place is a path that is no URL, or one of the few that take URLs."""
        found = 0
        for one in parameters(cli):
            if isinstance(one.type, LocalPath | LocalFile):
                found += 1
                with self.assertRaisesRegex(click.UsageError, "is a URL, and only a path of this machine"):
                    one.type.convert(URL, one, None)
                continue
            self.assertFalse(isinstance(one.type, click.Path | click.File), one.name)
            is_place = one.metavar in _PLACES or (
                isinstance(one.type, click.types.StringParamType)
                and any(word in (one.name or "").split("_") for word in _WORDS))
            if is_place:
                self.assertIn((one.name, one.metavar), _WITH_URLS)
        self.assertGreater(found, 25)

    def test_commands(self) -> None:
        """Exit status 64, a sentence, and nothing is made."""
        place = self.mktemp()
        os.mkdir(place)
        of_member = ("--node-id", "n0", "--peers", "n0-h:1")
        for words in (
            ("backup", URL, place),
            ("backup", place, "x", "--data", URL), ("archive", URL, place),
            ("archive", place, "x", "--data", URL),
            ("restore", place, "--store", URL, *of_member), ("group", "show", "--store", URL, *of_member),
            ("group", "show", "--store", "x", "--set", f"data_store_path={URL}", *of_member),
            ("verify", URL), ("verify", place, "--data", URL), ("readfile", URL),
            ("certs", URL, "--members", "n0"), ("token", URL, "me"), ("append", "--file", URL),
            ("--tls-authority", URL, "status"), ("--token-file", URL, "status"),
            ("--broker-credentials", URL, "ha-status"), ("context", "set", "a", "--tls-key", URL),
            ("ha-resolve", "--copy-log", URL, place),
        ):
            self.assertExit(self.run_cli(*words), 64, f"{URL!r} is a URL", "a path of this machine")
        self.assertEqual([os.path.exists(one) for one in ("s3:", "x")], [False, False])

    def test_context(self) -> None:
        """A file of contexts, and the paths in it."""
        path = self.mktemp()
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'[contexts.a]\npeers = "n0-h:1"\ntls_key = "{URL}"\n')
        for value in (path, URL):
            os.environ["DLEDGER_CONTEXTS"] = value
            self.addCleanup(os.environ.pop, "DLEDGER_CONTEXTS", None)
            self.assertExit(self.run_cli("--context", "a", "status"), 64, f"{URL!r} is a URL")
        self.assertExit(self.run_cli("context", "list"), 1, f"DLEDGER_CONTEXTS={URL!r} is a URL")


class ServiceTests(CliCase):
    """The services of twistd."""

    def test_options(self) -> None:
        """Each option that names a place."""
        for options, name in (
            (member.Options, "--store"), (member.Options, "--config"), (broker.Options, "--store"),
            (broker.Options, "--config"), (namesrv.Options, "--kv"), (namesrv.Options, "--config"),
        ):
            with self.assertRaisesRegex(UsageError, "'s3://bucket/log' is a URL, and only a path"):
                options().parseOptions([name, URL])
