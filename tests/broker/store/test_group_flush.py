# -*- test-case-name: tests.broker.store.test_group_flush -*-
"""One flush at a time; all who ask meanwhile share the next one; a failed one is the end."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.log import log_flush
from dledger.rocketmq.store.log.log_flush import GroupFlush
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.codes import ResponseCode


class Captured:
    """A flush of everything up to C{end}."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.runs = 0

    def run(self) -> None:
        """Count."""
        self.runs += 1


class CountingStore:
    """A store whose content is a number."""

    def __init__(self) -> None:
        self.written = self.flushed = 0
        self.broken = ""
        self.refuses_to_finish = False

    def prepare_flush(self) -> Captured | None:
        """Everything that was written."""
        if self.broken:
            raise StoreError(f"failed before: {self.broken}")
        return Captured(self.written) if self.written > self.flushed else None

    def finish_flush(self, job: Captured) -> None:
        """It counts."""
        if self.refuses_to_finish:
            raise StoreError("the mark")
        self.flushed = job.end

    def flush_failed(self, reason: str) -> StoreError:
        """It is over."""
        self.broken = reason
        return StoreError(reason)


class GroupFlushTests(SynchronousTestCase):
    """L{GroupFlush}."""

    def setUp(self) -> None:
        self.store = CountingStore()
        self.calls: list[tuple[Callable[[], None], Deferred[None]]] = []
        self.order: list[str] = []
        self.group: GroupFlush[Captured] = GroupFlush(self.store, self.run_in_thread)

    def run_in_thread(self, call: Callable[[], None]) -> Deferred[None]:
        """Later, in L{finish}."""
        done: Deferred[None] = Deferred()
        self.calls.append((call, done))
        return done

    def finish(self, error: Exception | None = None) -> None:
        """The oldest call ends."""
        call, done = self.calls.pop(0)
        if error is not None:
            done.errback(Failure(error))
            return
        call()
        done.callback(None)

    def ask(self, name: str = "") -> Deferred[Captured | None]:
        """Write, and ask for a flush."""
        self.store.written += 1
        return self.note(name)

    def note(self, name: str) -> Deferred[Captured | None]:
        """Ask for a flush, and note when it is done."""
        done = self.group.flush()
        done.addBoth(self._reported, name)
        return done

    def _reported(self, result: Captured | None | Failure, name: str) -> Captured | None | Failure:
        self.order.append(name)
        return result

    def test_nothing_to_do(self) -> None:
        """It fires at once, and no thread is troubled."""
        self.assertIsNone(self.successResultOf(self.group.flush()))
        self.assertEqual(self.calls, [])

    def test_reported_when_it_counts(self) -> None:
        """The store finishes the job before the caller hears of it; the job has run once."""
        done = self.ask()
        self.assertNoResult(done)
        self.assertTrue(self.group.is_running)
        self.finish()
        job = self.successResultOf(done)
        assert job is not None
        self.assertEqual((job.end, job.runs, self.store.flushed), (1, 1, 1))
        self.assertFalse(self.group.is_running)

    def test_shared(self) -> None:
        """
        All who ask during one flush share the next one, and are informed in the order in which they asked.
        """
        self.ask("a")
        for name in "bcd":
            self.ask(name)
        self.assertEqual(len(self.calls), 1)
        self.finish()
        self.assertEqual((self.order, len(self.calls)), (["a"], 1))
        self.finish()
        self.assertEqual((self.order, self.calls, self.store.flushed), (["a", "b", "c", "d"], [], 4))

    def test_nothing_new_since_it_began(self) -> None:
        """
        A caller whose bytes are all in the running flush waits for it alone, and is informed after it.
        """
        self.ask("a")
        self.note("b")
        self.assertEqual(self.order, [])
        self.finish()
        self.assertEqual((self.order, self.calls), (["a", "b"], []))

    def test_failed(self) -> None:
        """A failed flush fails all who wait, also those of the next, which never begins."""
        asked = [self.ask("a"), self.ask("b")]
        self.finish(OSError(5, "Input/output error"))
        self.assertEqual((self.order, self.calls), (["a", "b"], []))
        for done in asked:
            self.assertIn("fsync: [Errno 5] Input", str(self.failureResultOf(done, StoreError).value))
        self.failureResultOf(self.ask("c"), StoreError)
        self.assertEqual((self.calls, self.store.flushed), ([], 0))

    def test_store_breaks_afterwards(self) -> None:
        """A store that cannot finish a flush is as broken as one that cannot flush."""
        done = self.ask()
        self.store.refuses_to_finish = True
        self.finish()
        self.failureResultOf(done, StoreError)
        self.assertIn("the mark", self.store.broken)

    def test_store_breaks_meanwhile(self) -> None:
        """The next flush cannot begin: those who waited for it fail, those of the flush that ended do not."""
        first, second = self.ask("a"), self.ask("b")
        self.store.broken = "EIO"
        self.finish()
        self.assertIsNotNone(self.successResultOf(first))
        self.failureResultOf(second, StoreError)
        self.assertEqual(self.order, ["a", "b"])

    def test_cancelled(self) -> None:
        """A caller that cancels is forgotten; the flush goes on for the others."""
        first, second, third = self.ask(), self.ask(), self.ask()
        for cancelled in (first, second):
            cancelled.cancel()
            self.failureResultOf(cancelled)
        self.finish()
        self.assertNoResult(third)
        self.finish()
        self.assertIsNotNone(self.successResultOf(third))

    def test_bounded(self) -> None:
        """Too many callers are refused, with a code that says so."""
        self.patch(log_flush, "WAITERS_MAX", 2)
        waiting = [self.ask(), self.ask()]
        refused = self.failureResultOf(self.ask(), DLedgerError)
        self.assertIs(refused.value.code, ResponseCode.LEADER_PENDING_FULL)
        self.finish()
        self.finish()
        for done in waiting:
            self.successResultOf(done)

    def test_asked_from_within(self) -> None:
        """A caller may ask for the next flush as soon as it hears of the last; idle waits for that, too."""
        again: list[Deferred[Captured | None]] = []
        self.ask().addCallback(lambda _: again.append(self.ask()))
        idle = self.group.idle()
        self.finish()
        self.assertNoResult(idle)
        self.finish()
        self.successResultOf(again[0])
        self.successResultOf(idle)

    def test_idle(self) -> None:
        """Fires at once when no flush runs, else when it has ended, badly too."""
        self.successResultOf(self.group.idle())
        done = self.ask()
        idle = self.group.idle()
        self.assertNoResult(idle)
        self.finish(OSError(5, "Input/output error"))
        self.successResultOf(idle)
        self.failureResultOf(done, StoreError)
