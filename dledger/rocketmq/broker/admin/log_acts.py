# -*- test-case-name: tests.broker.admin.test_log_acts -*-
"""
What an operator can let a broker do with its commit log by its pages. A broker on a raft log has none of it:
there the member decides.
"""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime

from dledger.rocketmq.answering.refusals import Refused
from dledger.rocketmq.broker.admin.ha_resolve import HAResolve
from dledger.rocketmq.broker.options.operators import NotDone
from dledger.rocketmq.replication.slave import DecisionUnderWay
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.fastjson import JsonObject

#: Seconds within which a flush must end.
FLUSH_S = 10.0


class LogActs:
    """The acts of one broker."""

    def __init__(self, log: CommitLog, resolve: HAResolve, clock: IReactorTime) -> None:
        self._log = log
        self._resolve = resolve
        self._clock = clock

    async def flush(self) -> int:
        """
        Put on stable storage what is in the log now.

        @return: the flushed offset.
        @raise NotDone: it fails, or takes longer than L{FLUSH_S}.
        """
        flushed: Deferred[int] = self._log.flush()
        try:
            return await flushed.addTimeout(FLUSH_S, self._clock, lambda *_: _late())
        except (StoreError, DLedgerError, CancelledError) as error:
            raise NotDone(f"not on stable storage: {error}") from error

    async def stopped(self) -> JsonObject:
        """
        Why the replication of a slave has stopped, if it has; as request 90907 shows it.

        @raise NotDone: it is a master.
        """
        try:
            return await self._resolve.show()
        except Refused as error:
            raise NotDone(error.remark) from error

    async def resolve(self, how: str, *, common_end: int, our_end: int) -> JsonObject:
        """
        Decide how a slave goes on.

        @param how: C{take-master} or C{try-again}.
        @param common_end, our_end: as L{stopped} has shown them.
        @return: the C{directory} with the files of before, if some were moved.
        @raise NotDone: the state is another one, or the files cannot be moved.
        """
        said = {"commonEnd": common_end, "ourEnd": our_end}
        try:
            return await self._resolve.decide("an operator", how, said.__getitem__)
        except Refused as error:
            raise NotDone(error.remark) from error
        except (DecisionUnderWay, DLedgerError, StoreError, OSError) as error:
            raise NotDone(str(error)) from error


def _late() -> int:
    raise NotDone(f"not on stable storage after {FLUSH_S:g} s")
