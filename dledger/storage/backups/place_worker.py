# -*- test-case-name: tests.storage.test_place_worker -*-
"""Calls that may never return, such as those of a store behind a network, each with a deadline."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

_Result = TypeVar("_Result")


class DeadlineMissed(TimeoutError):
    """A call has not returned in time; see L{CallWorker}."""


class CallWorker:
    """
    Runs calls in a thread, one at a time.

    Rule: a call that has missed its deadline may still do its work later. So none is begun after it: the
    program has to end.
    """

    def __init__(self, deadline_s: float) -> None:
        """@param deadline_s: seconds in which each call has to return."""
        self._deadline_s = deadline_s
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.is_late = False

    def run(self, what: str, call: Callable[[], _Result]) -> _Result:
        """
        The result of C{call}.

        @param what: the call, for an error.
        @raise DeadlineMissed: it has not returned in time.
        @raise OSError: it failed in any way.
        """
        if self.is_late:
            raise DeadlineMissed(errno.ETIMEDOUT, "an earlier call has missed its deadline", what)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="remote store", daemon=True)
            self._thread.start()
        answers: queue.SimpleQueue[tuple[_Result] | BaseException] = queue.SimpleQueue()

        def work() -> None:
            try:
                answers.put((call(),))
            except BaseException as error:
                answers.put(error)

        self._calls.put(work)
        try:
            answer = answers.get(timeout=self._deadline_s)
        except queue.Empty:
            self.is_late = True
            raise DeadlineMissed(
                errno.ETIMEDOUT, f"the store has not answered within {self._deadline_s:g} s", what
            ) from None
        if isinstance(answer, tuple):
            return answer[0]
        if isinstance(answer, OSError):
            raise answer
        if isinstance(answer, Exception):  # each kind of store has errors of its own
            raise OSError(errno.EIO, f"{type(answer).__name__}: {answer}", what) from answer
        raise answer

    def close(self) -> None:
        """End the thread, after the call under way. No call may follow."""
        self.is_late = True
        self._calls.put(None)

    def _work(self) -> None:
        while True:
            work = self._calls.get()
            if work is None:
                return
            work()
            del work
