# -*- test-case-name: tests.sim.test_process -*-
"""
Hears of bugs: whatever the code under test logs as a failure, because Deferreds and drivers catch everything.

A Deferred whose error nobody took logs it when Python collects it. That time is not a function of the seed,
and the process may be dead by then: such failures do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from twisted.logger import ILogObserver, LogEvent, globalLogBeginner, globalLogPublisher
from zope.interface import implementer

_COLLECTED = "twisted.internet.defer"


def be_quiet() -> None:
    """Drop the log of simulated processes; the trace has the same events. Called once in a program."""
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)


@implementer(ILogObserver)
class BugWatch:
    """
    Remembers the first failure since it was last asked.

    @ivar expects: whether a logged failure is right, as a disk was made to fail.
    """

    def __init__(self) -> None:
        self.expects: Callable[[BaseException], bool] = lambda error: False
        self._first: BaseException | None = None

    def __call__(self, event: LogEvent) -> None:
        failure = event.get("log_failure")
        if failure is None or event.get("log_namespace") == _COLLECTED:
            return
        if not self.expects(failure.value):
            self.note(failure.value)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within, failures are heard."""
        globalLogPublisher.addObserver(self)
        try:
            yield
        finally:
            globalLogPublisher.removeObserver(self)

    def note(self, error: BaseException) -> None:
        """A check has failed where the code under test would catch it."""
        if self._first is None:
            self._first = error

    def forget(self) -> None:
        """What has failed was the end of a process that died."""
        self._first = None

    def notify(self) -> None:
        """Raise what has failed, if anything has."""
        if self._first is not None:
            error, self._first = self._first, None
            raise error
