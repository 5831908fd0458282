# -*- test-case-name: tests.base.test_threads -*-
"""A thread whose calls may never return."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.base import threads
from dledger.base.threads import LoneThread


class CallingReactor:
    """Remembers what threads ask of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.came = Event()

    def callFromThread(self, call: Callable[..., None], *arguments: Any) -> None:
        """As a reactor has it."""
        self.calls.append((call, arguments))
        self.came.set()

    def run(self) -> None:
        """One thing that a thread has asked for."""
        self.came.wait()
        self.came.clear()
        call, arguments = self.calls.pop(0)
        call(*arguments)


class LoneThreadTests(SynchronousTestCase):
    """Calls in order; an exception becomes a failure; its end is not waited for without end."""

    def setUp(self) -> None:
        self.reactor: Any = CallingReactor()
        self.thread = LoneThread(self.reactor, name="test")
        self.thread.start()

    def test_calls(self) -> None:
        """A result, an exception, one that is no Exception."""
        seen: list[int] = []
        done = self.thread.run(lambda: seen.append(1))
        self.reactor.run()
        self.successResultOf(done)
        self.assertEqual(seen, [1])
        for kind in (ValueError, SystemExit):
            def fails(kind: type[BaseException] = kind) -> None:
                raise kind

            done = self.thread.run(fails)
            self.reactor.run()
            self.failureResultOf(done, kind)
        self.thread.stop()
        self.assertFalse(self.thread.thread.is_alive())

    def test_hangs(self) -> None:
        """A call that does not return holds up neither the stop nor the process."""
        self.patch(threads, "END_S", 0.0)
        end = Event()
        self.thread.run(lambda: end.wait() and None)
        self.thread.stop()
        self.assertTrue(self.thread.thread.is_alive() and self.thread.thread.daemon)
        end.set()
        self.thread.thread.join()
