# -*- test-case-name: tests.base.test_accept_lines -*-
"""Twisted's lines about descriptors are folded."""

from __future__ import annotations

import errno
from typing import Any

from twisted.internet import tcp
from twisted.internet.task import Clock
from twisted.logger import LogEvent, Logger, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving.accept_lines import AcceptLines, fold_accept_lines
from dledger.base.serving.folding import AGAIN_S, Folding


class Listener:
    """A socket, in a process without a free descriptor."""

    def accept(self) -> Any:
        """No."""
        raise OSError(errno.EMFILE, "Too many open files")


def opens() -> Any:
    """A file, in the same process."""
    raise OSError(errno.EMFILE, "Too many open files")


class AcceptLinesTests(SynchronousTestCase):
    """The log lines of many failed accepts."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.events: list[LogEvent] = []
        self.loggers = [vars(tcp._FileDescriptorReservation)["_log"], vars(tcp.Port)["_logger"]]
        for logger in self.loggers:
            self.patch(logger, "observer", self.events.append)

    def accept(self, times: int) -> None:
        """As a port does."""
        reserve = tcp._FileDescriptorReservation(opens)
        for _ in range(times):
            with tcp._BuffersLogs("tcp", tcp.Port._logger.observer) as logger:
                self.assertEqual(list(tcp._accept(logger, range(1), Listener(), reserve)), [])
            reserve.reserve()

    def test_folded(self) -> None:
        """One line of each kind, without a traceback; a minute later one with the number."""
        fold_accept_lines(self.clock.seconds)
        self.accept(1000)
        self.assertEqual([formatEvent(event) for event in self.events], [
            "Could not accept new connection (EMFILE); see ulimit -n, LimitNOFILE=",
            "Could not reserve EMFILE recovery file descriptor. [Errno 24] Too many open files; "
            "see ulimit -n, LimitNOFILE=",
        ])
        self.assertFalse(any("log_failure" in event for event in self.events))
        self.events.clear()
        self.clock.advance(AGAIN_S)
        self.accept(1)
        self.assertEqual(
            formatEvent(self.events[0]),
            "Could not accept new connection (EMFILE) (1001 times in 60 s); see ulimit -n, LimitNOFILE=",
        )
        self.assertEqual(len(self.events), 2)

    def test_another_twisted(self) -> None:
        """Loggers that are not there are left out."""
        self.patch(tcp, "_FileDescriptorReservation", object)
        self.patch(tcp.Port, "_logger", None)
        fold_accept_lines(self.clock.seconds)

    def test_kinds(self) -> None:
        """Different errors are different lines."""
        logger = Logger(observer=AcceptLines(self.events.append, Folding(self.clock.seconds)))
        for name in ("EMFILE", "ENFILE", "EMFILE"):
            logger.info("Could not accept new connection ({acceptError})", acceptError=name)
        self.assertEqual([event["acceptError"] for event in self.events], ["EMFILE", "ENFILE"])
