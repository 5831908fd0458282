# -*- test-case-name: tests.client.test_blocking_tail -*-
"""Tails of a program without a reactor that are interrupted, fail, and are left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.defer import fail
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.forks import OpenedHere
from dledger.base.reactor_thread import Outcome
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from tests.client.test_blocking import LiveGroup, interrupted_at


def _take(tail: Any, found: deque[Any]) -> None:
    """One more."""
    found.append(next(tail))


class BlockingTailTests(SynchronousTestCase):
    """The next call, after the end of a wait."""

    def setUp(self) -> None:
        self.group = LiveGroup()
        self.log = self.group.open()
        self.addCleanup(self.log.close)

    def test_an_interrupted_tail_goes_on(self) -> None:
        """Ctrl-C, or a signal's handler, ends the wait; the next call has what the wait was for."""
        self.group.log = [b"%d" % number for number in range(7)]
        tails: list[Any] = [self.log.tail(0), self.log.tail_batches(0)]
        for tail in tails:
            waited, is_hit = Outcome.result, [True]

            def result(
                outcome: Any, timeout: float | None = None, *, waited: Any = waited, is_hit: Any = is_hit
            ) -> Any:
                found = waited(outcome, timeout)
                is_hit[0] = not is_hit[0]
                if not is_hit[0]:
                    raise KeyboardInterrupt
                return found

            found = []
            patch = self.patch(Outcome, "result", result)
            while True:
                try:
                    one = next(tail)
                except KeyboardInterrupt:
                    continue
                except StopIteration:
                    break
                found += [one.body] if hasattr(one, "body") else one.bodies
            patch.restore()
            self.assertEqual(found, self.group.log)
            self.assertEqual(list(tail), [])

    def test_an_interrupt_leaves_no_entry_out(self) -> None:
        """Wherever Ctrl-C meets the reading thread."""
        self.group.log = [b"%d" % number for number in range(5)]
        opens: list[Callable[[int], Any]] = [self.log.tail, self.log.tail_batches]
        for opened in opens:
            step, is_interrupted = 0, True
            while is_interrupted:
                tail, found = opened(0), deque[Any]()
                is_interrupted = interrupted_at(step, partial(_take, tail, found))
                found += tail
                bodies = [body for one in found for body in getattr(one, "bodies", None) or [one.body]]
                self.assertEqual(bodies, self.group.log, f"after step {step}")
                step += 1
            self.assertGreater(step, 10)

    def test_a_tail_goes_on_after_an_error(self) -> None:
        """As when no member serves for a while."""
        self.group.log = [b"a", b"b", b"c"]
        tail = self.log.tail(0, timeout=0.05)
        reading, failing = tail.batches.source.next_batch, [True]

        def next_batch() -> Any:
            if failing.pop() if failing else False:
                return fail(DLedgerError(ResponseCode.NETWORK_ERROR))
            return reading()

        self.patch(tail.batches.source, "next_batch", next_batch)
        self.assertRaises(DLedgerError, next, tail)
        self.assertEqual([entry.body for entry in tail], self.group.log)

    def test_a_tail_that_is_left_is_closed(self) -> None:
        """Whoever drops it leaves no request behind; one that is closed stays at its end."""
        self.group.log = [b"a", b"b", b"c"]
        for is_dropped in (True, False):
            entries = self.log.tail(0, follow=True)
            next(entries)
            tail = entries.batches.source
            if is_dropped:
                del entries
            else:
                entries.close()
                self.assertEqual(list(entries), [])
            self.log.metadata()
            self.assertTrue(tail.is_closed)

    def test_a_copy_in_another_process_is_dropped_silently(self) -> None:
        """A child that was forked closes nothing: the tail is its parent's."""
        self.group.log = [b"a", b"b", b"c"]
        tail = self.log.tail(0, follow=True)
        next(tail)
        here = self.patch(OpenedHere, "is_here", False)
        tail.batches.__del__()
        tail.close()
        here.restore()
        self.log.metadata()
        self.assertFalse(tail.batches.source.is_closed)
