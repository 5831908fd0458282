# -*- test-case-name: tests.node.test_redial -*-
"""
The attempts to reach one member: one after the other while there is no connection, with growing waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum

from twisted.application.internet import ClientService
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IReactorTime, IStreamClientEndpoint
from twisted.logger import ILogObserver, LogEvent, Logger
from twisted.python.failure import Failure
from zope.interface import implementer

#: Waits between attempts to connect grow from the first bound to the second, in seconds.
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
RETRY_FACTOR = 1.6

#: A member that is spoken for, and not connected, is tried at once, but not sooner than this after the last
#: time, seconds.
HURRY_S = 0.2


def retry_policy(rng: random.Random) -> Callable[[int], float]:
    """
    A function from the attempt's number to the wait before it, in seconds: growing, jittered, at most
    L{RETRY_MAX_S}.
    """

    def wait_s(attempt: int) -> float:
        longest = min(RETRY_MAX_S, RETRY_FIRST_S * RETRY_FACTOR ** min(attempt, 32))
        return longest * rng.uniform(0.5, 1.0)

    return wait_s


@implementer(ILogObserver)
def _drop(event: LogEvent) -> None:
    pass


class _QuietClientService(ClientService):
    """A ClientService that does not log: it would write two lines for each failed attempt."""

    _log = Logger(observer=_drop)


@implementer(IStreamClientEndpoint)
class _WatchedEndpoint:
    """An endpoint that reports attempts to connect, and those that failed."""

    def __init__(
        self, endpoint: IStreamClientEndpoint, begins: Callable[[], None], failed: Callable[[Failure], None]
    ) -> None:
        self._endpoint = endpoint
        self._begins = begins
        self._failed = failed

    def connect(self, factory: IProtocolFactory) -> Deferred[IProtocol]:

        def notify(failure: Failure) -> Failure:
            self._failed(failure)
            return failure

        self._begins()
        attempt: Deferred[IProtocol] = self._endpoint.connect(factory)
        return attempt.addErrback(notify)


class _Phase(Enum):
    CONNECTED = "connected"
    TRYING = "an attempt is under way"
    HURRIED = "an attempt is under way, and the next one follows at once"
    WAITING = "waits for the next attempt"


class Redial:
    """
    The way to one member.

    Invariant: C{_phase} is C{CONNECTED} only while there is a connection, or before the first attempt.

    @ivar unheard: connections since the last answer; its owner sets it to 0 with each answer. A port that
        accepts but never answers (a proxy whose member is down) is retried with the same growing waits as a
        port that refuses.
    """

    log = Logger()

    def __init__(
        self, peer_id: str, endpoint: IStreamClientEndpoint, clock: IReactorTime, rng: random.Random
    ) -> None:
        self._peer_id = peer_id
        self._endpoint = _WatchedEndpoint(endpoint, self._trying, self._cannot_connect)
        self._clock = clock
        self._policy = retry_policy(rng)
        self._service: ClientService | None = None
        self._is_reported = False
        self._phase = _Phase.CONNECTED
        self._hurried_s = 0.0
        self.unheard = 0

    def start(self, factory: IProtocolFactory) -> None:
        """Connect from now on. @param factory: makes the protocols, the same with each call."""
        if self._service is None:
            self._service = _QuietClientService(
                self._endpoint, factory, clock=self._clock, retryPolicy=self._wait_s
            )
        self._service.startService()

    def stop(self) -> Deferred[None]:
        """@return: fires when the connection has ended."""
        stopping: Deferred[None] | None = None if self._service is None else self._service.stopService()
        if stopping is None:
            return succeed(None)
        done: Deferred[None] = Deferred()
        stopping.chainDeferred(done)
        return done

    def hurry(self, now_s: float) -> None:
        """Do not wait with the next attempt to connect, nor with the one after an attempt under way."""
        if self._service is None or now_s - self._hurried_s < HURRY_S:
            return
        if self._phase is _Phase.WAITING:
            self._hurried_s = now_s
            self._service.stopService()
            self._service.startService()
        elif self._phase is _Phase.TRYING:
            self._hurried_s = now_s
            self._phase = _Phase.HURRIED

    def connected(self) -> bool:
        """There is a connection. @return: whether it is the first since the last answer."""
        self._is_reported = False
        self._phase = _Phase.CONNECTED
        self.unheard += 1
        return self.unheard == 1

    def lost(self) -> bool:
        """The connection has ended. @return: whether it was answered, or the first since the last answer."""
        self._phase = _Phase.WAITING
        return self.unheard <= 1

    def _wait_s(self, attempt: int) -> float:
        is_hurried = self._phase is _Phase.HURRIED
        self._phase = _Phase.WAITING
        return 0.0 if is_hurried else self._policy(attempt + self.unheard)

    def _trying(self) -> None:
        self._phase = _Phase.TRYING

    def _cannot_connect(self, failure: Failure) -> None:
        """Log the first failed attempt since the last connection; the attempts continue."""
        if self._phase is _Phase.TRYING:
            self._phase = _Phase.WAITING
        if not self._is_reported and failure.check(CancelledError) is None:
            self._is_reported = True
            self.log.warn(
                "peer {peer_id} cannot be reached, retrying: {reason}",
                peer_id=self._peer_id, reason=failure.getErrorMessage(),
            )
