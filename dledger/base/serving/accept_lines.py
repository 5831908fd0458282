# -*- test-case-name: tests.base.test_accept_lines -*-
"""
Folds the lines that Twisted's ports log when the process has no descriptor for a new connection.

Without this, whoever opens connections writes our log: some thousand lines and tracebacks in a second. Our
servers leave descriptors free (L{dledger.base.descriptors}); others in the process, or a low limit,
may not.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet import tcp
from twisted.logger import ILogObserver, LogEvent, Logger
from zope.interface import implementer

from dledger.base.serving.folding import Folding

#: Twisted's loggers about descriptors, by class and attribute; what another version lacks is left out.
_LOGGERS = (("_FileDescriptorReservation", "_log"), ("Port", "_logger"))


@implementer(ILogObserver)
class AcceptLines:
    """Passes on the first event of each kind, then one a minute with the number of its repetitions."""

    def __init__(self, inner: ILogObserver, folding: Folding) -> None:
        self._inner = inner
        self._folding = folding

    def __call__(self, event: LogEvent) -> None:
        """See L{ILogObserver}. An error is reported in one line, without its traceback."""
        event = dict(event)
        failure = event.pop("log_failure", None)
        text = event.get("log_format") or ""
        repeated = self._folding.happened((text, event.get("acceptError"), getattr(failure, "type", None)))
        if repeated is None:
            return
        if failure is not None:
            text, event["reason"] = f"{text} {{reason}}", failure.getErrorMessage()
        if repeated:
            text += " ({times} times in {since_s} s)"
        event.update(repeated, log_format=f"{text}; see ulimit -n, LimitNOFILE=")
        self._inner(event)


def fold_accept_lines(seconds: Callable[[], float]) -> None:
    """Called once, when the process starts. @param seconds: a monotonic clock."""
    folding = Folding(seconds)
    for owner, name in _LOGGERS:
        logger = vars(getattr(tcp, owner, object)).get(name)
        if isinstance(logger, Logger):
            logger.observer = AcceptLines(logger.observer, folding)
