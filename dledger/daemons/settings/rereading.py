# -*- test-case-name: tests.twistd.test_rereading -*-
"""
What a service of C{twistd} does with signals: SIGHUP reads the options again.

Levels of the log change at once; the service takes those options that may change while it runs; the log names
these, and those that need a restart. Rule: of options that are not sound none is taken, and the log has one
line that says why.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from twisted.logger import Logger
from twisted.python.usage import UsageError

from dledger.base.descriptors import LEAST, raise_limit
from dledger.base.log_lines import ANSWERS_OPERATOR
from dledger.base.reactor import Reactor, make_reactor_monotonic
from dledger.base.serving.accept_lines import fold_accept_lines
from dledger.base.tuning import keep_freed_memory, spare_the_collector
from dledger.daemons.settings.options import ConfigurationOptions

_Options = TypeVar("_Options", bound=ConfigurationOptions)
#: From the options as they are now, and those values that are others, to the names that the service takes.
Take = Callable[[_Options, Mapping[str, object]], frozenset[str]]


class Rereading(Generic[_Options]):
    """@ivar take: of the service; None before it is made. May raise C{ValueError}: it takes none."""

    log = Logger()

    def __init__(self, options: _Options) -> None:
        self._options = options
        self.take: Take[_Options] | None = None

    def now(self) -> None:
        """Read the options again."""
        options = self._options
        known = {one.name: one.value for one in options.in_force}
        try:
            again = options.again()
            changed = {one.name: one.value for one in again.in_force if one.value != known.get(one.name)}
            taken = self._taken(again, changed)
        except (UsageError, ValueError) as error:
            self.log.error(
                "SIGHUP: the options are not sound, and none is taken: {reason}",
                reason="; ".join(str(error).splitlines()), **{ANSWERS_OPERATOR: True},
            )
            return
        before, after = options.log_options.levels.text, again.log_options.levels.text
        options.log_options.levels.replace(after)
        options.taken_again(again, taken)
        waiting = ", ".join(name for name in changed if name != "log_level" and name not in taken)
        now = {one.name: one.value for one in again.in_force}
        shown = ", ".join(
            f"{name}={now.get(name)} (before: {known.get(name)})" for name in sorted(taken)
        )
        self.log.info(
            "SIGHUP: the options were read again: log_level={now} (before: {before}); taken: {taken}; "
            "needs a restart: {waiting}", now=after, before=before, taken=shown or "nothing",
            waiting=waiting or "nothing", **{ANSWERS_OPERATOR: True},
        )

    def _taken(self, again: _Options, changed: Mapping[str, object]) -> frozenset[str]:
        """@raise ValueError: the service takes none."""
        return frozenset() if self.take is None else self.take(again, changed)


def prepare_process(reactor: Reactor, reread: Callable[[], None] | None = None) -> None:
    """
    Set up reactor, descriptors, allocator and garbage collector for a long-lived server.

    @param reread: what SIGHUP does.
    @raise SystemExit: the system allows too few descriptors.
    """
    make_reactor_monotonic(reactor)
    allowed = raise_limit()
    if allowed < LEAST:
        raise SystemExit(
            f"dledger: this process may open {allowed} files, at least {LEAST} are needed, and some thousand "
            "for many clients: raise the limit (ulimit -n, LimitNOFILE= of a systemd unit)"
        )
    fold_accept_lines(reactor.seconds)
    keep_freed_memory()
    reactor.callWhenRunning(spare_the_collector)
    reactor.callWhenRunning(survive_signals, reactor, reread)


def survive_signals(reactor: Reactor | None = None, reread: Callable[[], None] | None = None) -> None:
    """
    Let SIGHUP and SIGUSR1 do no harm: their default ends a process at once, without any hand-over, and
    operators send them to have a log rotated or options read again. Handlers of others stay.

    @param reread: what SIGHUP does, in the reactor; None: nothing.
    """
    for number in (signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) is not signal.SIG_DFL:
            continue
        if number == signal.SIGHUP and reactor is not None and reread is not None:
            signal.signal(number, lambda _number, _frame: reactor.callFromThread(reread))
        else:
            signal.signal(number, _ignore_signal)


def _ignore_signal(number: int, _frame: object) -> None:
    Logger().info(
        "{name} does nothing here: options are read at the start; the log goes to standard output, or is "
        "rotated by twistd --logfile", name=signal.Signals(number).name,
    )
