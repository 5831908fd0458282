# -*- test-case-name: tests.base.test_keeper -*-
"""One connection at a time, for all who want it."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.keeper import Keeper


class KeeperTests(SynchronousTestCase):
    """L{Keeper} of connections that are numbers."""

    def setUp(self) -> None:
        self.attempts: list[Deferred[int]] = []
        self.keeper: Keeper[int] = Keeper(self.make)

    def make(self) -> Deferred[int]:
        """An attempt that the test ends."""
        self.attempts.append(Deferred())
        return self.attempts[-1]

    def test_shared(self) -> None:
        """One attempt for all callers, then one connection; after its loss, another attempt."""
        first, second = self.keeper.ready(), self.keeper.ready()
        (attempt,) = self.attempts
        attempt.callback(7)
        self.assertEqual((self.successResultOf(first), self.successResultOf(second)), (7, 7))
        self.assertEqual(self.successResultOf(self.keeper.ready()), 7)
        self.assertEqual(self.keeper.connection, 7)
        self.assertFalse(self.keeper.lost(8))
        self.assertTrue(self.keeper.lost(7))
        self.assertIsNone(self.keeper.connection)
        self.assertNoResult(self.keeper.ready())
        self.assertEqual(len(self.attempts), 2)

    def test_failed(self) -> None:
        """All callers are informed; the next one begins another attempt."""
        callers = [self.keeper.ready() for _ in range(3)]
        self.attempts[0].errback(OSError("planted"))
        for caller in callers:
            self.failureResultOf(caller, OSError)
        self.assertNoResult(self.keeper.ready())
        self.assertEqual(len(self.attempts), 2)

    def test_at_once(self) -> None:
        """An attempt may have its outcome before it is returned."""
        made: Deferred[int] = Deferred()
        made.callback(3)
        keeper = Keeper(lambda: made)
        self.assertEqual(self.successResultOf(keeper.ready()), 3)

    def test_cancelled(self) -> None:
        """A caller that stops waiting leaves the attempt to the others, and to those that come."""
        first, second = self.keeper.ready(), self.keeper.ready()
        for caller in (first, second):
            caller.cancel()
            self.failureResultOf(caller, CancelledError)
        third = self.keeper.ready()
        (attempt,) = self.attempts
        attempt.callback(7)
        self.assertEqual(self.successResultOf(third), 7)

    def test_stops_alone(self) -> None:
        """If asked to, the last caller that stops waiting ends the attempt."""
        keeper = Keeper(self.make, stops_alone=True)
        first, second = keeper.ready(), keeper.ready()
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.assertFalse(self.attempts[0].called)
        second.cancel()
        self.failureResultOf(second, CancelledError)
        self.assertTrue(self.attempts[0].called)
        self.assertNoResult(keeper.ready())

    def test_cancelled_by_another(self) -> None:
        """A caller that is informed may cancel another one that is next."""
        first, second = self.keeper.ready(), self.keeper.ready()
        first.addCallback(lambda _: second.cancel())
        self.attempts[0].callback(7)
        self.failureResultOf(second, CancelledError)

    def test_closed(self) -> None:
        """The attempt is cancelled. Callers get the reason, also those that wait: they cancelled nothing."""
        caller = self.keeper.ready()
        self.keeper.close(ValueError("closed"))
        self.assertTrue(self.attempts[0].called)
        self.failureResultOf(caller, ValueError)
        self.failureResultOf(self.keeper.ready(), ValueError)
