# -*- test-case-name: tests.twistd.test_common -*-
"""What the services of C{twistd} share."""

from __future__ import annotations

from typing import Any

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from dledger.twistd.common import end_process


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
