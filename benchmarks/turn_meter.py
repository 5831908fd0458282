# -*- test-case-name: tests.processes.test_load -*-
"""
C{twistd} with a meter: how long each turn of the reactor took, from one wait for events to the next.

The file that C{DLEDGER_TURNS} names is replaced twice a second; it has one JSON list per clock, C{wall} and
C{cpu} (processor time of the reactor's thread, which other programs on the machine do not lengthen): how many
turns took up to L{bound_ms} of each place.
"""

from __future__ import annotations

import json
import os
import threading
import time
from math import log
from pathlib import Path
from typing import Any

from twisted.internet import epollreactor
from twisted.scripts.twistd import run as run_twistd

_PLACES = 200
_FACTOR = 1.1
_LEAST_MS = 0.01


def bound_ms(place: int) -> float:
    """The longest turn of a place, milliseconds."""
    return float(_LEAST_MS * _FACTOR**place)


def place_of(seconds: float) -> int:
    """The place of a turn."""
    ms = seconds * 1000
    return 0 if ms <= _LEAST_MS else min(_PLACES - 1, 1 + int(log(ms / _LEAST_MS) / log(_FACTOR)))


class _Meter:
    """Replaces the poller of an epoll reactor."""

    def __init__(self, poller: Any) -> None:
        self._poller = poller
        self.wall = [0] * _PLACES
        self.cpu = [0] * _PLACES
        self._wall_s, self._cpu_s = time.monotonic(), time.thread_time()

    def poll(self, *arguments: Any) -> Any:
        """A turn ends, and after the wait another one begins."""
        self.wall[place_of(time.monotonic() - self._wall_s)] += 1
        self.cpu[place_of(time.thread_time() - self._cpu_s)] += 1
        found = self._poller.poll(*arguments)
        self._wall_s, self._cpu_s = time.monotonic(), time.thread_time()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)


def run() -> None:
    """Run C{twistd} with a metered reactor."""
    reactor = epollreactor.EPollReactor()
    meter = _Meter(reactor._poller)
    reactor._poller = meter
    from twisted.internet.main import installReactor

    installReactor(reactor)
    path = Path(os.environ["DLEDGER_TURNS"])

    def write() -> None:
        while True:
            aside = path.with_suffix(".tmp")
            aside.write_text(json.dumps({"wall": meter.wall, "cpu": meter.cpu}))
            aside.replace(path)
            time.sleep(0.5)

    threading.Thread(target=write, daemon=True).start()
    run_twistd()
