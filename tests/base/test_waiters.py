# -*- test-case-name: tests.base.test_waiters -*-
"""Tokens that wait for a number."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.waiters import ThresholdWaiters


class DumbWaiters:
    """The same with one dict and scans."""

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[int, int]] = {}

    def reached(self, number: int) -> list[int]:
        """Scan for thresholds."""
        return self._take(sorted((found[0], token) for token, found in self.waiting.items()), number)

    def expired(self, now_ms: int) -> list[int]:
        """Scan for deadlines."""
        return self._take(sorted((found[1], token) for token, found in self.waiting.items()), now_ms)

    def _take(self, ordered: list[tuple[int, int]], number: int) -> list[int]:
        tokens = [token for key, token in ordered if key <= number]
        for token in tokens:
            del self.waiting[token]
        return tokens


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
        st.tuples(st.just("reached"), st.integers(0, 9)),
        st.tuples(st.just("expired"), st.integers(0, 9)),
        st.tuples(st.just("remove"), st.integers(0, 9)),
        st.tuples(st.just("take_all")),
    ),
    max_size=40,
)


class TwinTests(SynchronousTestCase):
    """The two heaps do what one dict and scans do."""

    @settings(derandomize=True, max_examples=500)
    @given(OPERATIONS)
    def test_any_operations(self, operations: list[tuple[object, ...]]) -> None:
        """Any sequence of operations, tokens used again included, has the same answers."""
        real, twin = ThresholdWaiters(capacity=10), DumbWaiters()
        for name, *numbers in operations:
            args: list[int] = [number for number in numbers if isinstance(number, int)]
            if name == "add":
                token, threshold, deadline_ms = args
                if token not in twin.waiting:
                    real.add(token, threshold=threshold, deadline_ms=deadline_ms)
                    twin.waiting[token] = (threshold, deadline_ms)
            elif name == "reached":
                self.assertEqual(real.reached(*args), twin.reached(*args))
            elif name == "expired":
                self.assertEqual(real.expired(*args), twin.expired(*args))
            elif name == "remove":
                self.assertEqual(real.remove(*args), twin.waiting.pop(args[0], None) is not None)
            else:
                self.assertEqual(real.take_all(), list(twin.waiting))
                twin.waiting.clear()
            self.assertEqual(len(real), len(twin.waiting))
            self.assertEqual([token in real for token in range(10)],
                             [token in twin.waiting for token in range(10)])


class BoundTests(SynchronousTestCase):
    """Neither the table nor its parts grow without a bound."""

    def test_full(self) -> None:
        """One token more than the capacity is our bug."""
        waiters = ThresholdWaiters(capacity=2)
        waiters.add(1, threshold=1, deadline_ms=1)
        waiters.add(2, threshold=1, deadline_ms=1)
        with self.assertRaises(AssertionError):
            waiters.add(3, threshold=1, deadline_ms=1)
        waiters.remove(1)
        waiters.add(3, threshold=1, deadline_ms=1)

    def test_same_token_twice(self) -> None:
        """A token that waits cannot begin to wait."""
        waiters = ThresholdWaiters(capacity=2)
        waiters.add(1, threshold=1, deadline_ms=1)
        with self.assertRaises(AssertionError):
            waiters.add(1, threshold=2, deadline_ms=2)

    def test_reached_tokens_leave_no_deadlines_behind(self) -> None:
        """However many came and were reached, and nobody ever asks for expiry: a few items remain."""
        waiters = ThresholdWaiters(capacity=10)
        for token in range(10_000):
            waiters.add(token, threshold=token, deadline_ms=1 << 62)
            waiters.reached(token)
        self.assertLess(len(waiters._by_deadline), 100)

    def test_expired_tokens_leave_no_thresholds_behind(self) -> None:
        """However many came and expired, after one that stays: a few items remain."""
        waiters = ThresholdWaiters(capacity=10)
        waiters.add(0, threshold=0, deadline_ms=1 << 62)
        for token in range(1, 10_000):
            waiters.add(token, threshold=token, deadline_ms=token)
            waiters.expired(token)
        self.assertLess(len(waiters._by_threshold), 100)

    def test_compaction_keeps_who_waits(self) -> None:
        """Those that wait are found after the rest was thrown out."""
        waiters = ThresholdWaiters(capacity=1_000)
        waiters.add(0, threshold=5, deadline_ms=70)
        waiters.add(1, threshold=3, deadline_ms=80)
        for token in range(2, 900):
            waiters.add(token, threshold=1, deadline_ms=1)
            waiters.remove(token)
        self.assertEqual(waiters.expired(70), [0])
        self.assertEqual(waiters.reached(5), [1])


class OrderTests(SynchronousTestCase):
    """Who leaves when."""

    def test_far_threshold_does_not_hide_a_near_deadline(self) -> None:
        """No head-of-line blocking."""
        waiters = ThresholdWaiters(capacity=10)
        waiters.add(1, threshold=1, deadline_ms=100)
        waiters.add(2, threshold=9, deadline_ms=10)
        self.assertEqual(waiters.expired(10), [2])
        self.assertEqual(waiters.reached(1), [1])

    def test_token_that_waits_again_waits_for_the_new_number(self) -> None:
        """What is left over from its first wait ends nothing."""
        for forget in (lambda waiters: waiters.remove(1), lambda waiters: waiters.take_all()):
            waiters = ThresholdWaiters(capacity=10)
            waiters.add(1, threshold=1, deadline_ms=10)
            forget(waiters)
            waiters.add(1, threshold=9, deadline_ms=90)
            self.assertEqual((waiters.reached(5), waiters.expired(50)), ([], []))
            self.assertEqual(waiters.reached(9), [1])

    def test_order_survives_compaction(self) -> None:
        """Whatever order they came in."""
        waiters = ThresholdWaiters(capacity=1_000)
        for token in range(30):
            waiters.add(token, threshold=100 - token, deadline_ms=1_000 - token)
        for token in range(100, 400):
            waiters.add(token, threshold=1, deadline_ms=1)
            waiters.remove(token)
        self.assertEqual(waiters.expired(1_000 - 28), [29, 28])
        self.assertEqual(waiters.reached(100 - 26), [27, 26])

    def test_by_threshold_then_token(self) -> None:
        """Reached tokens come in the order of the log."""
        waiters = ThresholdWaiters(capacity=10)
        for token, threshold in ((4, 2), (3, 1), (5, 1), (6, 3)):
            waiters.add(token, threshold=threshold, deadline_ms=100)
        self.assertEqual(waiters.reached(2), [3, 5, 4])
