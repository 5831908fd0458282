# -*- test-case-name: tests.twistd.test_common -*-
"""What the services of C{twistd} share."""

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

from dledger.twistd import common
from dledger.twistd.common import ConfigurationOptions, end_process, prepare_process, survive_signals


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
        self.patch(common, "raise_limit", lambda: common.LEAST - 1)
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
