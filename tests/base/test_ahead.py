# -*- test-case-name: tests.base.test_ahead -*-
"""One batch is read ahead of the questions, and a reading that is closed ends."""

from __future__ import annotations

import gc

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.sending.ahead import ReadingAhead


class Numbers(ReadingAhead[list[int]]):
    """Batches that the test hands out."""

    def __init__(self) -> None:
        super().__init__(list)
        self.asked: list[Deferred[list[int]]] = []
        self.given_up: list[Deferred[list[int]]] = []

    async def _read_on(self) -> list[int]:
        asked: Deferred[list[int]] = Deferred(self.given_up.append)
        self.asked.append(asked)
        return await asked

    def next_batch(self) -> Deferred[list[int]]:
        """The next one."""
        return self._next_batch()

    def last(self, batch: list[int]) -> None:
        """Hand it out, and there are no more."""
        self._is_done = True
        self.asked[-1].callback(batch)


class ReadingAheadTests(SynchronousTestCase):
    """How many are asked for, and how it ends."""

    def setUp(self) -> None:
        self.numbers = Numbers()

    def test_one_ahead(self) -> None:
        """The next is asked for when one is there, and no other before that is taken."""
        first = self.numbers.next_batch()
        self.assertEqual(len(self.numbers.asked), 1)
        self.numbers.asked[0].callback([1])
        self.assertEqual(self.successResultOf(first), [1])
        self.assertEqual(len(self.numbers.asked), 2)
        self.numbers.asked[1].callback([2])
        self.assertEqual(len(self.numbers.asked), 2)
        self.assertEqual(self.successResultOf(self.numbers.next_batch()), [2])
        self.assertEqual(len(self.numbers.asked), 3)

    def test_nothing_behind_the_last(self) -> None:
        """Neither after the last batch nor after an empty one is anything read ahead."""
        first = self.numbers.next_batch()
        self.numbers.last([1])
        self.assertEqual(self.successResultOf(first), [1])
        self.assertEqual(len(self.numbers.asked), 1)
        other = Numbers()
        empty = other.next_batch()
        other.asked[0].callback([])
        self.assertEqual(self.successResultOf(empty), [])
        self.assertEqual(len(other.asked), 1)

    def test_closed(self) -> None:
        """A reader that waits gets an empty batch, and its request is given up."""
        waits = self.numbers.next_batch()
        self.numbers.close()
        self.assertEqual(self.successResultOf(waits), [])
        self.assertEqual(self.numbers.given_up, self.numbers.asked)

    def test_cancelled(self) -> None:
        """Who gives up without closing hears that, not an end."""
        waits = self.numbers.next_batch()
        waits.cancel()
        self.failureResultOf(waits, CancelledError)

    def test_failed(self) -> None:
        """A failure is that of the batch, ahead or not; closing is no excuse for another than its own."""
        waits = self.numbers.next_batch()
        self.numbers.last([])
        self.assertEqual(self.successResultOf(waits), [])
        waits = self.numbers.next_batch()
        self.numbers.asked[1].errback(ValueError("no"))
        self.failureResultOf(waits, ValueError)

    def test_nobody_asks_how_it_ended(self) -> None:
        """A failure ahead of who closes is nobody's, and is not complained of."""
        first = self.numbers.next_batch()
        self.numbers.asked[0].callback([1])
        self.successResultOf(first)
        self.numbers.asked[1].errback(ValueError("no"))
        self.numbers.close()
        del self.numbers
        gc.collect()
        self.assertEqual(self.flushLoggedErrors(), [])
