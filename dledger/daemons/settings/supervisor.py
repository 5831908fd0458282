# -*- test-case-name: tests.twistd.test_supervisor -*-
"""
Informs the supervisor that started this process, systemd or one like it: when the process serves, that it is
alive, and when it stops. (The protocol of C{sd_notify(3)}: datagrams to the socket in C{NOTIFY_SOCKET}.)

Rule: without such a supervisor nothing is sent. One that does not listen any more stops nobody.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import MutableMapping

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from dledger.base.reactor import Reactor

_SOCKET, _WATCHDOG, _WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
#: Microseconds. Anything else counts as none, and stops no start.
_PERIOD = re.compile(r"[0-9]{1,18}")
#: Signs of life within the time that the supervisor waits for one.
_SIGNS = 3
#: Seconds between two of them, at least.
_LEAST_S = 0.1


class Supervisor:
    """
    The supervisor of this process.

    A sign of life shows that the reactor turns: a process that stands still for the time that the unit names
    (C{WatchdogSec}) is ended and started again.
    """

    log = Logger()

    def __init__(self, reactor: Reactor, environ: MutableMapping[str, str] = os.environ) -> None:
        """@param environ: loses its words for this process alone, so that no child sends in its name."""
        self._reactor = reactor
        self._address = environ.pop(_SOCKET, "")
        period, process = environ.pop(_WATCHDOG, ""), environ.pop(_WATCHDOG_PID, "")
        is_ours = process in ("", str(os.getpid()))
        self._watchdog_s = int(period) / 1_000_000 if _PERIOD.fullmatch(period) and is_ours else 0.0
        self._has_failed = False

    def serving(self) -> None:
        """The process listens."""
        if not self._address:
            return
        self._send("READY=1")
        self._reactor.addSystemEventTrigger("before", "shutdown", self._send, "STOPPING=1")
        if self._watchdog_s > 0:
            alive = LoopingCall(self._send, "WATCHDOG=1")
            alive.clock = self._reactor
            alive.start(max(self._watchdog_s / _SIGNS, _LEAST_S))

    def _send(self, text: str) -> None:
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(text.encode(), address)
        except OSError as error:
            if not self._has_failed:
                self.log.warn("the supervisor at {address} hears nothing: {reason}",
                              address=self._address, reason=str(error))
            self._has_failed = True
