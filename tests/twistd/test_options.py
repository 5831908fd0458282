# -*- test-case-name: tests.twistd.test_options -*-
"""The common parts of the services of C{twistd}."""

from __future__ import annotations

import os
import signal
import sys
from io import StringIO
from typing import Any

from twisted.application.app import ServerOptions
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from dledger.daemons.settings import rereading
from dledger.daemons.settings.options import (
    ConfigurationOptions,
    end_process,
    own_options,
    service_tables,
    tables_in,
)
from dledger.daemons.settings.rereading import prepare_process, survive_signals


class EndProcessTests(SynchronousTestCase):
    """A service that failed ends its process."""

    def test_end_process(self) -> None:
        """The reason is recorded, and the reactor stopped once it runs."""
        reactor: Any = MemoryReactorClock()
        recorded: list[str] = []
        calls: list[Any] = []
        reactor.callWhenRunning = lambda call, *args: calls.append((call, args))
        reactor.running = True
        stops: list[str] = []
        reactor.stop = lambda: stops.append("stop")
        end_process(reactor, lambda: recorded.append("1"))("no room")
        self.assertEqual((recorded, stops), (["1"], []))
        ((call, args),) = calls
        call(*args)
        self.assertEqual(stops, ["stop"])
        reactor.running = False
        call(*args)
        self.assertEqual(stops, ["stop"])


class DescriptorTests(SynchronousTestCase):
    """Too few open files."""

    def test_refused(self) -> None:
        """The message names the limit, the need and the way out."""
        self.patch(rereading, "raise_limit", lambda: rereading.LEAST - 1)
        error = self.assertRaises(SystemExit, prepare_process, MemoryReactorClock())
        self.assertRegex(str(error), r"63 files, at least 64 are needed.*ulimit -n")


class SignalTests(SynchronousTestCase):
    """Signals that operators send for the log's sake."""

    def test_harmless(self) -> None:
        """SIGHUP and SIGUSR1 are noted; a handler that is there stays."""

        def other(number: int, frame: object) -> None:
            pass

        for number in (signal.SIGHUP, signal.SIGUSR1):
            self.addCleanup(signal.signal, number, signal.getsignal(number))
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.signal(signal.SIGUSR1, other)
        survive_signals()
        self.assertIs(signal.getsignal(signal.SIGUSR1), other)
        with capturedLogs() as events:
            os.kill(os.getpid(), signal.SIGHUP)
        self.assertEqual([event["name"] for event in events], ["SIGHUP"])


class TablesTests(SynchronousTestCase):
    """A file for several services."""

    def test_found(self) -> None:
        """In the order of the services; a file without them is for one service."""
        self.assertEqual(service_tables({"namesrv": {}, "member": {}}), ("member", "namesrv"))
        self.assertEqual(service_tables({"tick_ms": 1, "tls": {}}), ())

    def test_own(self) -> None:
        """A service sees its own table only; one that is not there is not taken for an empty one."""
        values = {"member": {"tls": {}, "x": 1}, "broker": {"y": 2}}
        self.assertEqual(own_options(values, "broker", ()), {"y": 2})
        self.assertEqual(own_options(values, "member", ("tls",)), {"tls": {}, "x": 1})
        self.assertEqual(own_options({"y": 2}, "broker", ()), {"y": 2})
        for table, words in (("namesrv", "only [member] and [broker]: write [namesrv]"),
                             ("member", "[member.tls] is a table; write options into [member] itself")):
            self.assertIn(words, str(self.assertRaises(ValueError, own_options, values, table, ())))

    def test_refused(self) -> None:
        """Everything beside the tables, a line each."""
        error = self.assertRaises(
            ValueError, service_tables, {"x": 1, "member": {}, "brokr": {}, "namesrv": [{}], "election": {}}
        )
        found = str(error).splitlines()
        self.assertEqual(len(found), 4)
        for words, line in zip(
            ("option 'x' is outside of all tables: [member], [broker] and [namesrv] are",
             "unknown table [brokr]", "namesrv is not a table: write [namesrv]", "unknown table [election]"),
            found, strict=True,
        ):
            self.assertTrue(line.startswith(words), line)
        self.assertTrue(found[1].endswith("; did you mean [broker]?"))

    def test_in_file(self) -> None:
        """Of a file that is no TOML its service says what is wrong."""
        for text, end, tables in (
            ("[broker]\n[member]\n", ".toml", ("member", "broker")), ("x = 1\n", ".toml", ()),
            ("=", ".toml", ()), ("[broker]\n", ".conf", ()),
        ):
            path = self.mktemp() + end
            with open(path, "w") as file:
                file.write(text)
            self.assertEqual(tables_in(path), tables)
        self.assertEqual(tables_in("/no/file"), ())


class WrongOptionTests(SynchronousTestCase):
    """A wrong option is answered by its reason, not by a page of help."""

    def test_called_by_twistd(self) -> None:
        """One line of reason, one that names the help, and the exit status 1."""
        said = StringIO()
        self.patch(sys, "stderr", said)
        options = ConfigurationOptions()
        options.parent = ServerOptions()
        options.parent.subCommand = "dledger"
        error = self.assertRaises(SystemExit, options.parseOptions, ["--nonsense"])
        self.assertEqual(error.code, 1)
        lines = said.getvalue().splitlines()
        self.assertEqual(len(lines), 2)
        self.assertIn("nonsense", lines[0])
        self.assertIn("twistd dledger --help", lines[1])

    def test_called_by_a_program(self) -> None:
        """The error itself."""
        self.assertRaises(UsageError, ConfigurationOptions().parseOptions, ["--nonsense"])
