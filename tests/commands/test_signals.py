# -*- test-case-name: tests.commands.test_signals -*-
"""Ctrl-C and SIGTERM while a command runs."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from dledger.cli.console.signals import interrupted_by_sigterm, stopped_by
from dledger.cli.entry import main
from dledger.client.values import AppendInterrupted
from tests.commands.fakes import CliCase


class SignalTests(CliCase):
    """Of this process."""

    def setUp(self) -> None:
        super().setUp()
        self.heard: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            self.addCleanup(signal.signal, number, signal.signal(number, self.hear))

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Outside a command."""
        self.heard.append(number)

    def send(self, number: int) -> None:
        """To this process."""
        os.kill(os.getpid(), number)

    def test_sigterm_is_interruption(self) -> None:
        """Inside; outside all is as before."""
        with self.assertRaises(KeyboardInterrupt), interrupted_by_sigterm():
            self.send(signal.SIGTERM)
        self.send(signal.SIGTERM)
        self.assertEqual(self.heard, [signal.SIGTERM])

    def test_second_signal_interrupts(self) -> None:
        """The first one asks for an end in order."""
        stop = threading.Event()
        with self.assertRaises(KeyboardInterrupt), stopped_by((signal.SIGTERM, signal.SIGINT), stop):
            self.send(signal.SIGINT)
            self.assertTrue(stop.is_set())
            self.send(signal.SIGTERM)
        self.assertEqual(self.heard, [])

    def test_ignored_stays_ignored(self) -> None:
        """As nohup wants it."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with interrupted_by_sigterm():
            self.send(signal.SIGTERM)
        self.assertEqual(signal.getsignal(signal.SIGTERM), signal.SIG_IGN)

    def test_other_threads_left_alone(self) -> None:
        """Only the main thread may change what a signal does."""
        def work() -> None:
            with interrupted_by_sigterm():
                self.heard.append(0)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self.assertEqual(self.heard, [0])

    def test_interrupted_while_loading(self) -> None:
        """No traceback: the modules of the commands take a while."""
        class Loading:
            def __getattr__(self, name: str) -> object:
                os.kill(os.getpid(), signal.SIGTERM)
                return None

        self.addCleanup(sys.modules.__setitem__, "dledger.cli.main", sys.modules["dledger.cli.main"])
        sys.modules["dledger.cli.main"] = Loading()  # type: ignore[assignment]
        self.assertEqual(self.assertRaises(SystemExit, main).code, 130)

    def test_command_by_sigterm(self) -> None:
        """The counts are said, as for Ctrl-C."""
        def append_many(*_source: object, **_how: object) -> None:
            try:
                self.send(signal.SIGTERM)
            except KeyboardInterrupt:
                raise AppendInterrupted(2, 0) from None

        self.patch(self.log, "append_many", append_many)
        self.assertExit(self.run_cli("append", "a", "b"), 130, "interrupted; 2 entries were acknowledged")
        self.patch(self.log, "tail", lambda *_words, **_how: self.send(signal.SIGTERM))
        self.assertExit(self.run_cli("tail"), 130)
        self.assertEqual(self.heard, [])
