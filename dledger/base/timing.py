# -*- test-case-name: tests.base.test_timing -*-
"""
Waiting: for many answers up to a deadline, and with growing pauses between attempts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

_T = TypeVar("_T")


class Gathering(Generic[_T]):
    """
    Collects the outcomes of several Deferreds by name; late ones are left out.

    @ivar outcome: fires once with the collected outcomes, when all have come or when time is up.
    @param answered: called with every success as it arrives.
    """

    def __init__(
        self,
        clock: IReactorTime,
        asked: Mapping[str, Deferred[_T]],
        *,
        deadline_s: float,
        answered: Callable[[Gathering[_T], str, _T], None] | None = None,
    ) -> None:
        self.outcome: Deferred[dict[str, _T | Failure]] = Deferred()
        self._clock = clock
        self._answered = answered
        self._outcomes: dict[str, _T | Failure] = {}
        self._expected = len(asked)
        self._timer: IDelayedCall | None = clock.callLater(deadline_s, self.close)
        for name, answer in asked.items():
            answer.addCallbacks(
                self._succeeded, self._failed, callbackArgs=(name,), errbackArgs=(name,)
            )
        if not asked:
            self.close()

    def hurry(self, deadline_s: float) -> None:
        """Wait no longer than C{deadline_s} seconds from now."""
        if self._timer is not None and self._timer.getTime() > self._clock.seconds() + deadline_s:
            self._timer.reset(deadline_s)

    def _succeeded(self, result: _T, name: str) -> None:
        self._outcomes[name] = result
        if self._answered is not None:
            self._answered(self, name, result)
        self._maybe_done()

    def _failed(self, failure: Failure, name: str) -> None:
        self._outcomes[name] = failure
        self._maybe_done()

    def _maybe_done(self) -> None:
        if len(self._outcomes) == self._expected:
            self.close()

    def close(self) -> None:
        """End the wait; C{outcome} fires with the outcomes collected before."""
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()
        if not self.outcome.called:
            self.outcome.callback(dict(self._outcomes))


class Alarm:
    """
    One timed call, set again and again.

    @ivar is_set: the call is to come.
    """

    def __init__(self, clock: IReactorTime, call: Callable[[], object]) -> None:
        self._clock = clock
        self._call = call
        self._timer: IDelayedCall | None = None
        self.is_set = False

    def set(self, wait_s: float) -> None:
        """Call after C{wait_s} seconds; nothing happens if a call is to come."""
        if not self.is_set:
            self.is_set = True
            self._timer = self._clock.callLater(wait_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.is_set = False
        self._call()

    def cancel(self) -> None:
        """Forget the call, if one is to come."""
        timer, self._timer = self._timer, None
        self.is_set = False
        if timer is not None:
            timer.cancel()


@attrs.define(kw_only=True)
class Backoff:
    """
    Waits that grow from C{first_s} to C{most_s}, each multiplied by a random factor of 0.5 to 1.5, so
    that clients that were refused together do not retry together.

    @ivar growth: a wait by the one before it.
    """

    rng: random.Random
    first_s: float = 0.02
    most_s: float = 1.0
    growth: float = 2.0
    _attempts: int = attrs.field(default=0, init=False)

    @property
    def attempts(self) -> int:
        """Number of calls of L{next_s} since the last L{reset}."""
        return self._attempts

    def reset(self) -> None:
        """After a success: the next wait is short again."""
        self._attempts = 0

    def next_s(self) -> float:
        """Seconds to wait before the next attempt."""
        wait_s = min(self.most_s, self.first_s * self.growth ** min(self._attempts, 20))
        self._attempts += 1
        return wait_s * self.rng.uniform(0.5, 1.5)


def within(ended: Deferred[None], seconds: float, clock: IReactorTime) -> Deferred[bool]:
    """
    Wait for C{ended}, at most for C{seconds}.

    @return: fires with whether C{ended} fired in time, otherwise C{ended} is cancelled.
    """
    in_time: Deferred[bool] = Deferred()

    def notify(_: object) -> None:
        if not in_time.called:
            if time_out.active():
                time_out.cancel()
            in_time.callback(True)

    def too_late() -> None:
        in_time.callback(False)
        ended.cancel()

    time_out = clock.callLater(seconds, too_late)
    ended.addBoth(notify)
    return in_time
