# -*- test-case-name: tests.twistd.test_logs -*-
"""Options of the log, and what twistd is given for them."""

from __future__ import annotations

import io
import signal
import sys
from pathlib import Path
from typing import Any

from twisted.python.reflect import namedAny
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from dledger.daemons.ledger.member import Options
from dledger.daemons.rocketmq.namesrv import Options as NameServerOptions
from dledger.daemons.settings import logs, options
from dledger.daemons.settings.logs import LogOptions
from dledger.daemons.settings.options import ConfigurationOptions
from tests.base.test_log_lines import event


class OptionsTests(SynchronousTestCase):
    """On the command line and in files."""

    def parsed(self, *arguments: str, of: type[ConfigurationOptions] = Options) -> ConfigurationOptions:
        """The options."""
        options = of()
        options.parseOptions(list(arguments))
        return options

    def file(self, text: str) -> str:
        """A configuration file."""
        path = self.mktemp() + ".toml"
        Path(path).write_text(text)
        return path

    def test_places(self) -> None:
        """The command line counts before the file; C{/config} reports value and place, of each service."""
        for of, table in ((Options, "member"), (NameServerOptions, "namesrv")):
            path = self.file(f'[{table}]\nlog_level = "warn"\nlog_format = "json"\n')
            options = self.parsed("--config", path, "--log-level", "error,a=debug", of=of)
            reported = {one.name: (one.value, one.origin) for one in options.in_force}
            self.assertEqual(reported["log_level"], ("error,a=debug", "command line"))
            self.assertEqual(reported["log_format"], ("json", "file"))
        usual = {one.name: (one.value, one.origin) for one in self.parsed().in_force}
        self.assertEqual(usual["log_level"], ("info", "default"))

    def test_environment(self) -> None:
        """Above the file, below the command line; an empty one counts as none."""
        path = self.file("max_heart_beat_leak = 4\nfile_reserved_hours = 7\nlog_level = 'warn'\n")
        self.patch(ConfigurationOptions, "environ", {
            "DLEDGER_MEMBER__CONFIG": path, "DLEDGER_MEMBER__MAX_HEART_BEAT_LEAK": "30",
            "DLEDGER_MEMBER__LISTEN": "7",
            "DLEDGER_MEMBER__LOG_LEVEL": "error", "DLEDGER_MEMBER__GROUP": "",
            "DLEDGER_MEMBER_PORT": "tcp://1",
            "DLEDGER_MEMBER__SELF_ID": "n0", "DLEDGER_NAMESRV__LISTEN": "9", "DLEDGER_PEERS": "n7-x:1",
            "DLEDGER_NAMESRV__LOG_FORMAT": "json", "DLEDGER_NAMESRV__CHANGE_HOSTS": "10.0.0.1",
        })
        reported = {one.name: (one.value, one.origin) for one in self.parsed("--group", "g").in_force}
        for name, expected in (
            ("max_heart_beat_leak", (30, "environment")), ("file_reserved_hours", (7, "file")),
            ("group", ("g", "command line")), ("listen", ("tcp:7", "environment")),
            ("log_level", ("error", "environment")), ("self_id", ("n0", "environment")),
        ):
            self.assertEqual(reported[name], expected, name)
        reported = {one.name: (one.value, one.origin) for one in self.parsed(of=NameServerOptions).in_force}
        self.assertEqual(reported["listen"], ("tcp:9", "environment"))
        self.assertEqual(reported["log_format"], ("json", "environment"))
        self.assertEqual(reported["change_hosts"], (("10.0.0.1",), "environment"))
        self.assertEqual(self.parsed("--listen", "8", of=NameServerOptions)["listen"], "tcp:8")

    def test_environment_is_refused(self) -> None:
        """An option that there is not, or a value that does not fit, as anywhere else."""
        for name, value, said in (
            ("DLEDGER_MEMBER__TICKS", "1", "unknown option 'ticks'"),
            ("DLEDGER_MEMBER__MAX_HEART_BEAT_LEAK", "x",
             "max_heart_beat_leak='x'.*from the environment: DLEDGER_MEMBER__MAX_HEART_BEAT_LEAK"),
            ("DLEDGER_MEMBER__ADMIN", "tcp:x", "--admin.*from the environment: DLEDGER_MEMBER__ADMIN"),
            ("DLEDGER_MEMBER__LOG_LEVEL", "loud", "loud.*from the environment: DLEDGER_MEMBER__LOG_LEVEL"),
        ):
            self.patch(ConfigurationOptions, "environ", {name: value})
            with self.assertRaisesRegex(UsageError, said):
                self.parsed()

    def test_refused(self) -> None:
        """With what is allowed."""
        for arguments, said in (
            (("--log-level", "loud"), "log_level='loud': the level 'loud' is not one of debug, info"),
            (("--log-format", "xml"), "log_format='xml': write text or json"),
            (("--config", self.file("log_level = 7\n")), "log_level=7"),
        ):
            with self.assertRaisesRegex(UsageError, said):
                self.parsed(*arguments)

    def test_given_to_twistd(self) -> None:
        """By the name of a function; the options of twistd itself count, and not both."""
        twistd: dict[str, Any] = {"nodaemon": True, "logfile": None}
        options = LogOptions.of({"log_format": "json"})
        options.give_to(twistd, is_given=True)
        stream = io.StringIO()
        self.patch(sys, "stdout", stream)
        namedAny(twistd["logger"])()(event(format="hello"))
        self.assertIn('"text": "hello"', stream.getvalue())
        self.assertTrue(options.is_in_force)
        for name in ("logger", "syslog"):
            other = LogOptions()
            other.give_to({name: "x"}, is_given=False)
            self.assertFalse(other.is_in_force)
            with self.assertRaisesRegex(UsageError, f"do not go with twistd --{name}"):
                other.give_to({name: "x"}, is_given=True)

    def test_file_of_twistd(self) -> None:
        """It is rotated by SIGUSR1 if nobody else wants that signal; a daemon has no standard output."""
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.getsignal(signal.SIGUSR1))
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        path = self.mktemp()
        writer = LogOptions().observer(path, is_foreground=False)
        self.addCleanup(writer._stream.close)
        writer(event(format="hello"))
        self.assertIn("hello", Path(path).read_text())
        self.assertIsNot(signal.getsignal(signal.SIGUSR1), signal.SIG_DFL)
        self.assertRaises(SystemExit, LogOptions().observer, "-", is_foreground=False)

    def test_names(self) -> None:
        """Each option has its name in a file."""
        self.assertEqual({row[0] for row in logs.LOG_PARAMETERS}, set(options.LOG_OPTIONS))
