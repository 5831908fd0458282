# -*- test-case-name: tests.machine.test_calls -*-
"""
Calls to the state machine of one member, one after the other, in a thread of their own: a slow call costs
those who wait for the machine, and never the log. A long call is reported while it lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twisted.internet.defer import Deferred, execute
from twisted.logger import Logger

from dledger.machine.guarded import GuardedMachine
from dledger.node.host import MachineHost

_Result = TypeVar("_Result")

#: A call is logged when it has lasted for this time, and each time that it has doubled, seconds.
LONG_S = 1.0


class MachineCalls:
    """
    Invariant: one call runs at a time; C{_now} is its name, and when it began.

    @ivar busy_with, busy_s: the call that lasts for L{LONG_S} or more, with its entry, and how long it has;
        empty and 0 without one.
    """

    log = Logger()

    def __init__(self, host: MachineHost) -> None:
        self._run = host.run_machine
        self._clock = host.clock
        self._self_id = host.self_id
        self._now: tuple[str, float] | None = None
        self._reported: tuple[float, float] = (-1.0, 0.0)
        self.busy_with = ""
        self.busy_s = 0.0

    def call(self, what: str, call: Callable[[], _Result]) -> Deferred[_Result]:
        """@param what: for people. @return: fires with the result of C{call}, or its exception."""
        results: list[_Result] = []

        def run() -> None:
            self._now = (what, self._clock.seconds())
            try:
                results.append(call())
            finally:
                self._now = None

        done: Deferred[None] = execute(run) if self._run is None else self._run(run)
        return done.addCallback(lambda _: results[0])

    def watch(self, machine: GuardedMachine) -> None:
        """Look how long the present call lasts."""
        now = self._now
        busy_s = 0.0 if now is None else self._clock.seconds() - now[1]
        if now is None or busy_s < LONG_S:
            self.busy_with = ""
            self.busy_s = 0.0
            return
        entry = f" at the entry {machine.entry}" if now[0] == "apply()" else ""
        self.busy_with = f"{now[0]}{entry}"
        self.busy_s = busy_s
        began_s, reported_s = self._reported
        if began_s != now[1] or busy_s >= 2 * reported_s:
            self._reported = now[1], busy_s
            self.log.warn(
                "the state machine {machine} of member {self_id} is in {call} for {busy_s:.1f} s; commands "
                "and queries wait, the log goes on",
                machine=machine.name, self_id=self._self_id, call=self.busy_with, busy_s=busy_s,
            )
