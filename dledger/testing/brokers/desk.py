# -*- test-case-name: tests.sim.test_ha -*-
"""
A simulated slave's way to ask its master about damaged records.

The network of these requests is not simulated: they arrive at once. The master may die while it mends, and
the slave while it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.rocketmq.broker.ha.offers import OfferRefused
from dledger.testing.brokers.invariants import HAInvariants
from dledger.testing.brokers.member import SimBroker
from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import MemberDied

#: A slave gives up an answer after this time.
TIMEOUT_US = 3_000_000


class SimDesk:
    """See L{dledger.rocketmq.broker.ha.offers.MasterDesk}."""

    def __init__(
        self, clock: SimClock, master: SimBroker, slave: SimBroker, invariants: HAInvariants, *,
        note: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._master = master
        self._slave = slave
        self._invariants = invariants
        self._note = note

    async def damaged(self) -> Sequence[int]:
        """See L{MasterDesk.damaged}. The master's scrub is not simulated: it knows of no damage."""
        if not self._master.is_open:
            raise OSError("the master is not up")
        return ()

    def offer(self, offset: int, record: bytes) -> Deferred[None]:
        """See L{MasterDesk.offer}."""
        answered: Deferred[None] = Deferred()
        life = self._slave.life

        def answer(error: Exception | None) -> None:
            self._clock.after(1, self._slave.run, life, _fire, answered, error)

        self._clock.after(TIMEOUT_US, answer, TimeoutError("no answer"))
        self._clock.after(1, self._master.run, self._master.life, self._mend, offset, record, answer)
        return answered

    def _mend(self, offset: int, record: bytes, answer: Callable[[Exception | None], None]) -> None:
        self._invariants.offered(offset, record)

        def mended(kept: str) -> None:
            if kept:
                self._note(f"the master's record at {offset} was mended")
                self._invariants.mended += 1
                self._invariants.forget_mended()
            answer(None)

        def refused(failure: Failure) -> None:
            if not isinstance(failure.value, MemberDied):
                answer(OfferRefused(failure.getErrorMessage()))

        taking = Deferred.fromCoroutine(self._master.mending.take(offset, record, source=self._slave.host))
        taking.addCallbacks(mended, refused)


def _fire(waiting: Deferred[None], error: Exception | None) -> None:
    """The slave hears the answer, or gives it up; the first of the two counts."""
    if waiting.called:
        return
    if error is None:
        waiting.callback(None)
    else:
        waiting.errback(error)
