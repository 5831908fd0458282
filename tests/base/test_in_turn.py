# -*- test-case-name: tests.base.test_in_turn -*-
"""Calls one after the other."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.in_turn import InTurn


class InTurnTests(SynchronousTestCase):
    """Calls whose ends the test decides."""

    def setUp(self) -> None:
        self.turns = InTurn()
        self.begun: list[int] = []
        self.ends: dict[int, Deferred[int]] = {}

    def ask(self, number: int) -> Deferred[int]:
        """A call that ends when the test says so."""
        def call() -> Deferred[int]:
            self.begun.append(number)
            self.ends[number] = Deferred()
            return self.ends[number]

        return self.turns.run(call)

    def test_order(self) -> None:
        """A call begins when the one before has ended, well or badly; each caller has its own result."""
        first, second, third = (self.ask(number) for number in range(3))
        self.assertEqual((self.begun, self.turns.outstanding), ([0], 3))
        self.ends[0].callback(10)
        self.assertEqual((self.successResultOf(first), self.begun), (10, [0, 1]))
        self.ends[1].errback(ValueError("no"))
        self.failureResultOf(second, ValueError)
        self.ends[2].callback(12)
        self.assertEqual((self.successResultOf(third), self.turns.outstanding), (12, 0))
        self.ask(3)
        self.assertEqual(self.begun, [0, 1, 2, 3])

    def test_thousands_without_a_wait(self) -> None:
        """Calls that end at once are run in a loop, in their order; the stack is no deeper for them."""
        self.ask(0)
        ended: list[int] = []
        for number in range(5000):
            self.turns.run(lambda number=number: succeed(number)).addCallback(ended.append)
        self.ends[0].callback(0)
        self.assertEqual((ended, self.turns.outstanding), (list(range(5000)), 0))

    def test_raises(self) -> None:
        """A call that raises has failed; the next one runs."""
        def call() -> Deferred[int]:
            raise ValueError("at once")

        self.failureResultOf(self.turns.run(call), ValueError)
        self.ask(1)
        self.assertEqual(self.begun, [1])

    def test_asked_again_at_the_end(self) -> None:
        """The end of a call may ask for another one; nothing is outstanding when the last has ended."""
        seen: list[int] = []
        self.ask(0).addCallback(lambda _: (seen.append(self.turns.outstanding), self.ask(1))[0])
        self.ends[0].callback(0)
        self.assertEqual((seen, self.begun), ([0], [0, 1]))

    def test_cancelled(self) -> None:
        """A call that was given up before it began does not begin."""
        self.ask(0)
        given_up, third = self.ask(1), self.ask(2)
        given_up.cancel()
        self.failureResultOf(given_up, CancelledError)
        self.ends[0].callback(0)
        self.assertEqual((self.begun, self.turns.outstanding), ([0, 2], 1))
        self.ends[2].callback(2)
        self.assertEqual(self.successResultOf(third), 2)
