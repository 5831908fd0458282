# -*- test-case-name: tests.twistd.test_rereading -*-
"""SIGHUP: which options are taken, which need a restart, and that a wrong file changes nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.log_lines import LogLevels
from dledger.daemons.ledger.member import Options
from dledger.daemons.rocketmq.broker import Options as BrokerOptions
from dledger.daemons.rocketmq.namesrv import Options as NameServerOptions
from dledger.daemons.settings import option_files
from dledger.daemons.settings.options import ConfigurationOptions, tables_in
from dledger.daemons.settings.rereading import Rereading, survive_signals


class SignalReactor(MemoryReactorClock):
    """Has the part of a reactor's threads that handlers of signals use."""

    def callFromThread(self, called: Callable[[], None]) -> None:
        """In the next turn."""
        self.callLater(0, called)


class RereadCase(SynchronousTestCase):
    """A file that changes."""

    def parsed(self, text: str, of: type[Any] = Options) -> Any:
        """The options of this file."""
        self.path = Path(self.mktemp() + ".toml")
        self.path.write_text(text)
        options = of()
        options.parseOptions(["--config", str(self.path)])
        return options

    def reread(self, rereading: Rereading[Any], text: str) -> dict[str, Any]:
        """The file has this text now. @return: the one line of the log."""
        self.path.write_text(text)
        with capturedLogs() as events:
            rereading.now()
        (line,) = events
        self.assertTrue(LogLevels("critical").shows(line))
        return dict(line)


class SignalTests(RereadCase):
    """By the signal itself."""

    def test_hung_up(self) -> None:
        """SIGHUP takes the levels, names what needs a restart, and takes nothing of a file that is wrong."""
        options = self.parsed('log_level = "info"\nmax_heart_beat_leak = 20\n')
        rereading = Rereading(options)
        reactor = SignalReactor()
        for number in (signal.SIGHUP, signal.SIGUSR1):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
            signal.signal(number, signal.SIG_DFL)
        survive_signals(reactor, rereading.now)
        self.path.write_text('log_level = "warn,dledger.node=debug"\nmax_heart_beat_leak = 40\n')
        with capturedLogs() as events:
            os.kill(os.getpid(), signal.SIGHUP)
            reactor.advance(0)
        self.assertEqual(options.log_options.levels.text, "warn,dledger.node=debug")
        found = [(one["before"], one["waiting"]) for one in events]
        self.assertEqual(found, [("info", "max_heart_beat_leak")])
        reported = {one.name: (one.value, one.origin) for one in options.settings_now}
        self.assertEqual(reported["log_level"], ("warn,dledger.node=debug", "changed since the start"))
        self.assertEqual(reported["max_heart_beat_leak"], (20, "file"))
        line = self.reread(rereading, 'log_level = "error"\nmax_heart_beat_leak = 0\n')
        self.assertIn("max_heart_beat_leak=0", line["reason"])
        self.assertEqual(options.log_options.levels.text, "warn,dledger.node=debug")


class TakeTests(RereadCase):
    """The service's part of it."""

    def test_taken(self) -> None:
        """Changed options are in force, with the value of before in the log; the rest needs a restart."""
        options = self.parsed("retention_bytes = 1000\nmax_heart_beat_leak = 20\n")
        rereading, asked = Rereading(options), []

        def take(again: Options, changed: Mapping[str, object]) -> frozenset[str]:
            asked.append((again.member.retention_bytes, dict(changed)))
            return frozenset({"retention_bytes"})

        rereading.take = take
        line = self.reread(rereading, "retention_bytes = 2000\nmax_heart_beat_leak = 40\n")
        self.assertEqual(asked, [(2000, {"retention_bytes": 2000, "max_heart_beat_leak": 40})])
        self.assertEqual(line["taken"], "retention_bytes=2000 (before: 1000)")
        self.assertEqual(line["waiting"], "max_heart_beat_leak")
        reported = {one.name: one.value for one in options.settings_now}
        self.assertEqual((reported["retention_bytes"], reported["max_heart_beat_leak"]), (2000, 20))
        rereading.take = lambda again, changed: frozenset(changed)
        line = self.reread(rereading, "retention_bytes = 2000\nmax_heart_beat_leak = 20\n")
        self.assertEqual((line["taken"], line["waiting"]), ("nothing", "nothing"))

    def test_refused(self) -> None:
        """A service that takes none says why; levels stay as they were."""
        options = self.parsed("max_heart_beat_leak = 20\n")
        rereading = Rereading(options)

        def take(again: Options, changed: Mapping[str, object]) -> frozenset[str]:
            raise ValueError("disk_full_ratio is below\nanother")

        rereading.take = take
        line = self.reread(rereading, 'log_level = "error"\n')
        self.assertEqual(line["reason"], "disk_full_ratio is below; another")
        self.assertEqual(options.log_options.levels.text, "info")

    def test_services(self) -> None:
        """Each service is asked with options of its own kind, and a file that has gone changes nothing."""
        for of, text in (
            (BrokerOptions, "fileReservedTime = 5\n"), (NameServerOptions, "connections_max = 50\n"),
        ):
            options = self.parsed("# none", of)
            rereading: Rereading[Any] = Rereading(options)
            rereading.take = lambda again, changed: frozenset(changed)
            line = self.reread(rereading, text)
            self.assertIn(str(text.split()[2]), line["taken"])
            self.path.unlink()
            with capturedLogs() as events:
                rereading.now()
            self.assertIn("No such file", events[0]["reason"])


class FileTests(SynchronousTestCase):
    """What is read as a file with options."""

    def test_no_file(self) -> None:
        """A pipe, which would block for ever, a directory, an empty and too large a file are refused."""
        pipe, folder, large = self.mktemp(), self.mktemp(), self.mktemp()
        os.mkfifo(pipe)
        os.mkdir(folder)
        self.patch(option_files, "FILE_BYTES_MAX", 9)
        Path(large).write_text("# 123456789")
        empty = self.mktemp()
        Path(empty).write_text(" \n\n")
        for path, said in (
            (pipe, "a pipe or a device"), (folder, "a directory"), (large, "more than 9 bytes"),
            ("/dev/null", "a pipe or a device"), (empty, "empty: write the options"),
        ):
            error = self.assertRaises(UsageError, Options().parseOptions, ["--config", path])
            self.assertRegex(str(error), f"--config {path}: it .*{said}")
            self.assertEqual(tables_in(path), ())

    def test_engines(self) -> None:
        """Variables that a container engine made of the name of a service are no options; ours stay."""
        service = {
            "DLEDGER_MEMBER__X_SERVICE_HOST": "10.0.0.1", "DLEDGER_MEMBER__X_SERVICE_PORT": "80",
            "DLEDGER_MEMBER__X_SERVICE_PORT_HTTP": "80", "DLEDGER_MEMBER__X_PORT": "tcp://10.0.0.1:80",
            "DLEDGER_MEMBER__X_PORT_80_TCP": "tcp://10.0.0.1:80",
            "DLEDGER_MEMBER__X_PORT_80_TCP_PROTO": "tcp",
            "DLEDGER_MEMBER__X_PORT_80_TCP_PORT": "80", "DLEDGER_MEMBER__X_PORT_80_TCP_ADDR": "10.0.0.1",
        }
        self.assertEqual(option_files.variables_of_engines(service), service.keys())
        ours = {"DLEDGER_BROKER__LISTEN_PORT": "10911", "DLEDGER_MEMBER__TICK_MS": "30"}
        self.assertEqual(option_files.variables_of_engines(ours), frozenset())
        self.patch(ConfigurationOptions, "environ", {**service, **ours})
        options = Options()
        options.parseOptions([])
        self.assertEqual(options.environment, {"tick_ms": "30"})

    def test_whole(self) -> None:
        """A file of the largest size is read."""
        path = self.mktemp()
        self.patch(option_files, "FILE_BYTES_MAX", 9)
        Path(path).write_text("#23456789")
        ConfigurationOptions.parseOptions(Options(), ["--config", path])
