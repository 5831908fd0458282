# -*- test-case-name: tests.sim.test_process -*-
"""
One process of a simulated machine: its events, its reactor's clock and timers, its thread for the disk.

Rule 1: every event of a process runs through L{SimProcess.run}. The events of a process that has ended are
dropped; those of a frozen one are kept, and handled when it goes on: of one source in order, the sources
mixed at random.
Rule 2: nothing that a dead process holds has an effect any more, whenever Python collects it.
Rule 3: a timer of no delay costs one turn (C{turn_us}); all else in a turn costs no time.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVarTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure
from zope.interface import implementer

from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import MemberDied, SimDisk

#: The source of events that come from no connection.
TIMERS = "timers"


class ProcessOwner(Protocol):
    """The machine on which a process runs."""

    @property
    def is_dying(self) -> bool:
        """Whether the process has died inside the present event, so that its actions have no effect."""

    def event_ended(self) -> None:
        """An event of the process has been handled."""

_Ts = TypeVarTuple("_Ts")


class SimProcess:
    """
    A process, from its start to its end.

    Invariant: C{is_alive} is never set again. C{_backlog} is empty while the process is not frozen.
    """

    def __init__(self, clock: SimClock, rng: random.Random, owner: ProcessOwner) -> None:
        self.clock = clock
        self.is_alive = True
        self.is_frozen = False
        self._rng = rng
        self._owner = owner
        self._backlog: dict[object, deque[tuple[Callable[..., object], tuple[object, ...]]]] = {}

    @property
    def acts(self) -> bool:
        """Whether its actions have an effect."""
        return self.is_alive and not self._owner.is_dying

    def run(self, source: object, action: Callable[[*_Ts], object], *arguments: *_Ts) -> None:
        """Handle an event of C{source}, now or when the process goes on."""
        if not self.is_alive:
            return
        if self.is_frozen:
            self._backlog.setdefault(source, deque()).append((action, arguments))
            return
        self._handle(action, arguments)

    def _handle(self, action: Callable[..., object], arguments: tuple[object, ...]) -> None:
        try:
            action(*arguments)
        except MemberDied:
            pass
        except Exception:
            if not self._owner.is_dying:
                raise
        self._owner.event_ended()

    def end(self) -> None:
        """Drop all events, now and later."""
        self.is_alive = False
        self._backlog.clear()

    def freeze(self) -> None:
        """SIGSTOP."""
        self.is_frozen = True

    def thaw(self) -> None:
        """SIGCONT: the events that were kept are handled now."""
        self.is_frozen = False
        backlog, self._backlog = self._backlog, {}
        sources = list(backlog)
        while sources and self.is_alive:
            at = int(self._rng.random() * len(sources))
            action, arguments = backlog[sources[at]].popleft()
            if not backlog[sources[at]]:
                del sources[at]
            self._handle(action, arguments)


@implementer(IDelayedCall)
class ProcessTimer:
    """
    A timer.

    Invariant: while it is active, the clock has an event for it, at its time or earlier. C{_when_us} is its
    time in the world, had no time been lost.
    """

    __slots__ = ("_arguments", "_call", "_is_active", "_keywords", "_reactor", "_when_us")

    def __init__(
        self, reactor: ProcessReactor, when_us: int, call: Callable[..., object],
        arguments: tuple[object, ...], keywords: dict[str, object],
    ) -> None:
        self._reactor = reactor
        self._when_us = when_us
        self._call = call
        self._arguments = arguments
        self._keywords = keywords
        self._is_active = True

    def getTime(self) -> float:
        """When it will run, seconds of its reactor."""
        reactor = self._reactor
        return reactor.seconds_at(self._when_us + reactor.lost_us)

    def active(self) -> bool:
        """Whether the call is still to come."""
        return self._is_active

    def cancel(self) -> None:
        """Cancel the call."""
        self._is_active = False

    def reset(self, secondsFromNow: float) -> None:
        """Let it run in C{secondsFromNow}."""
        reactor = self._reactor
        when_us = reactor.us_from_now(secondsFromNow)
        self._when_us = when_us - reactor.lost_us
        reactor.expect(self, when_us)

    def delay(self, secondsLater: float) -> None:
        """Let it run C{secondsLater} later."""
        self.reset(self.getTime() - self._reactor.seconds() + secondsLater)

    def come(self) -> None:
        """The clock has come to one of its events."""
        if self._is_active:
            self._reactor.process.run(TIMERS, self.fire)

    def fire(self) -> None:
        """Run it, if its time has come."""
        if not self._is_active:
            return
        when_us = self._when_us + self._reactor.lost_us
        if when_us > self._reactor.process.clock.now_us:
            self._reactor.expect(self, when_us)
            return
        self._is_active = False
        self._call(*self._arguments, **self._keywords)


@implementer(IReactorTime)
class ProcessReactor:
    """
    The reactor of one process.

    @ivar rate: seconds of its clock in a second of the world.
    @ivar turn_us: time of a turn: of a timer without delay.
    @ivar lost_us: for this time of the world its clock stood still.
    """

    running = True

    def __init__(
        self, process: SimProcess, *, boot_s: float = 1000.0, rate: float = 1.0, turn_us: int = 1
    ) -> None:
        """@param boot_s: what its clock shows now."""
        self.process = process
        self.turn_us = max(turn_us, 1)
        self.lost_us = 0
        self._boot_s = boot_s
        self._boot_us = process.clock.now_us
        self._us = 1e6 / rate
        self._s = rate * 1e-6

    def seconds(self) -> float:
        """Monotonic time of this process, seconds."""
        return self._boot_s + (self.process.clock.now_us - self.lost_us - self._boot_us) * self._s

    def seconds_at(self, us: int) -> float:
        """Its clock at a time of the world."""
        return self._boot_s + (us - self.lost_us - self._boot_us) * self._s

    def us_from_now(self, seconds: float) -> int:
        """The time of the world when this clock has gone on by C{seconds}."""
        return self.process.clock.now_us + max(int(seconds * self._us), self.turn_us)

    def expect(self, call: ProcessTimer, when_us: int) -> None:
        """Let the clock come to C{call} then."""
        self.process.clock.at(when_us, call.come)

    def callLater(
        self, delay: float, callable: Callable[..., object], *args: object, **kw: object
    ) -> ProcessTimer:
        clock = self.process.clock
        when_us = clock.now_us + max(int(delay * self._us), self.turn_us)
        call = ProcessTimer(self, when_us - self.lost_us, callable, args, kw)
        clock.at(when_us, call.come)
        return call

    def getDelayedCalls(self) -> list[ProcessTimer]:
        """Not simulated."""
        raise NotImplementedError


class ProcessThread:
    """
    The thread of a process that waits for the disk: see L{dledger.base.threads.DiskRunner}.

    @ivar took_us: mean time of a call.
    @ivar slow_us: the same on top of it, while the disk is slow.
    """

    def __init__(
        self, process: SimProcess, disk: SimDisk, rng: random.Random, *, took_us: int, slow_us: int = 0
    ) -> None:
        self.took_us = took_us
        self.slow_us = slow_us
        self._process = process
        self._disk = disk
        self._rng = rng
        self._last_us = 0

    def start(self) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to do: the caller has waited for what runs."""

    def run(self, call: Callable[[], None]) -> Deferred[None]:
        """@return: fires when C{call} has returned."""
        done: Deferred[None] = Deferred()
        took_us = 1 + int((self.took_us + self.slow_us) * 2 * self._rng.random())
        # An fsync covers all writes before its beginning; it may miss later ones.
        barrier = self._disk.begin_sync() if self._rng.random() < 0.7 else None
        clock = self._process.clock
        self._last_us = max(self._last_us + 1, clock.now_us + took_us)
        clock.at(self._last_us, self._process.run, self, self._run, call, barrier, done)
        return done

    def _run(self, call: Callable[[], None], barrier: int | None, done: Deferred[None]) -> None:
        reported: Callable[..., None] = done.callback
        outcome: Failure | None = None
        try:
            with self._disk.syncing_up_to(barrier):
                call()
        except Exception:
            reported, outcome = done.errback, Failure()
        self._process.clock.after(
            1 + int(self._rng.random() * 300), self._process.run, self, reported, outcome
        )
