# -*- test-case-name: tests.base -*-
"""
The type of a whole reactor.

Most parts need only timers and ask for C{IReactorTime}, which simulated reactors have, too. L{Reactor} is for
parts that listen, connect, resolve names or come back from threads.
"""

from __future__ import annotations

import time
from typing import cast

from twisted.internet.interfaces import (
    IReactorCore,
    IReactorPluggableNameResolver,
    IReactorTCP,
    IReactorThreads,
    IReactorTime,
)


class Reactor(IReactorCore, IReactorTime, IReactorTCP, IReactorThreads, IReactorPluggableNameResolver):
    """All that a process needs. Twisted's reactors have it, but declare each interface for itself."""

    def run(installSignalHandlers: bool = True) -> None:
        """See C{IReactorCore.run}. @param installSignalHandlers: false in any thread but the main one."""


def whole_reactor(reactor: IReactorTime) -> Reactor:
    """
    C{reactor} itself, as a whole one. A type checker sees only a part of the interfaces of Twisted's global
    reactor. A simulated reactor has only the parts that its simulation needs.
    """
    return cast(Reactor, reactor)


def make_reactor_monotonic(reactor: Reactor) -> None:
    """
    Let the reactor's timers use a monotonic clock.

    Twisted's timers use the time of day. When that is set back, no timer fires until it has caught up,
    and a member that does not tick loses its leadership or never looks for another leader.
    """
    if not reactor.getDelayedCalls():
        reactor.seconds = time.monotonic  # type: ignore[method-assign]
