# -*- test-case-name: tests.twistd.test_supervisor -*-
"""The signs that a supervisor gets."""

from __future__ import annotations

import os
import socket
from typing import Any

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from dledger.daemons.settings.supervisor import Supervisor


class SupervisorTests(SynchronousTestCase):
    """A socket, and a process that names it."""

    def setUp(self) -> None:
        self.name = f"\0dledger-{os.getpid()}-{id(self)}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(self.name)
        self.addCleanup(self.socket.close)
        self.reactor: Any = MemoryReactorClock()

    def serving(self, **environ: str) -> dict[str, str]:
        """A process that serves. @return: its environment then."""
        found = {"NOTIFY_SOCKET": "@" + self.name[1:], **environ}
        Supervisor(self.reactor, found).serving()
        return found

    def received(self) -> list[str]:
        """What has come."""
        found = []
        while True:
            try:
                found.append(self.socket.recv(1000).decode())
            except BlockingIOError:
                return found

    def stop(self) -> None:
        """The reactor ends."""
        for function, args, kwargs in self.reactor.triggers["before"]["shutdown"]:
            function(*args, **kwargs)

    def test_life(self) -> None:
        """It serves, lives, stops; children find nothing of it."""
        environ = self.serving(WATCHDOG_USEC="3000000", WATCHDOG_PID=str(os.getpid()), HOME="/")
        self.assertEqual((self.received(), environ), (["READY=1", "WATCHDOG=1"], {"HOME": "/"}))
        self.reactor.advance(0.9)
        self.assertEqual(self.received(), [])
        self.reactor.pump([0.2, 1.0])
        self.assertEqual(self.received(), ["WATCHDOG=1"] * 2)
        self.stop()
        self.assertEqual(self.received(), ["STOPPING=1"])

    def test_without_a_watchdog(self) -> None:
        """Of another process, or none, or no number."""
        periods = [{"WATCHDOG_USEC": text} for text in ("x", "\u00b2", "9" * 400)]
        for environ in ({}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, *periods):
            self.serving(**environ)
            self.reactor.advance(10)
            self.assertEqual(self.received(), ["READY=1"])

    def test_nobody_listens(self) -> None:
        """The process goes on; it is said once. Without a supervisor nothing is sent."""
        self.socket.close()
        self.serving(WATCHDOG_USEC="1000000")
        self.reactor.advance(10)
        self.stop()
        Supervisor(self.reactor, {}).serving()
        self.assertEqual(len(self.reactor.triggers["before"]["shutdown"]), 1)
