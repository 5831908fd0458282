# -*- test-case-name: tests.broker.ha.test_offers -*-
"""
A slave offers its master sound copies of records that are damaged there::

    master: which are damaged? --> offsets --> ours is sound? --> offer --> taken, or refused with a reason

The master cannot ask: it knows its slaves by connections that only carry reports. So a slave asks every
L{ROUND_TICKS} ticks for the offsets of damaged records. If replication has stopped because a record of the
master is not sound, the slave offers that record without being asked, and compares again when it was taken.

Rule 1: only a record whose checksum is right here is offered. The master decides whether the copy fits.
Rule 2: a copy that was refused is not offered again for L{PATIENCE_TICKS} ticks, and a master that does not
know the question is not asked again for as long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.rocketmq.replication.ports import LogPort
from dledger.rocketmq.replication.slave import DecisionUnderWay, HAFollower
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START, START_SIZE

ROUND_TICKS = 10
PATIENCE_TICKS = 3600
#: Most records that are offered in one round.
OFFERS_MAX = 16


class OfferRefused(Exception):
    """The master does not take the copy; the text says why."""


class RecordsOfMaster(Protocol):
    """Asks the master."""

    def damaged(self) -> Awaitable[Sequence[int] | None]:
        """
        @return: offsets of its damaged records; None: it does not know the question. Fails if it cannot be
            asked.
        """

    def offer(self, offset: int, record: bytes) -> Awaitable[None]:
        """Offer a copy of the record at C{offset}. Fails with L{OfferRefused}, or if it cannot be asked."""


class RecordOffers:
    """
    Invariant: at most one round is under way.

    @ivar taken: number of copies that masters took.
    """

    log = Logger()

    def __init__(self, commit_log: LogPort, follower: HAFollower, handler: RecordsOfMaster) -> None:
        self._log = commit_log
        self._follower = follower
        self._handler = handler
        self._ticks = self._silent_until = 0
        self._refused: dict[int, int] = {}
        self._is_asking = False
        self._problem = ""
        self.taken = 0

    def tick(self) -> None:
        """Called once a second."""
        self._ticks += 1
        if self._is_asking or self._ticks % ROUND_TICKS or self._ticks < self._silent_until:
            return
        self._is_asking = True
        Deferred.fromCoroutine(self._round()).addErrback(self._failed).addBoth(self._done)

    async def _round(self) -> None:
        self._refused = {at: until for at, until in self._refused.items() if until > self._ticks}
        found = await self._handler.damaged()
        if found is None:
            self._silent_until = self._ticks + PATIENCE_TICKS
            return
        await self._settle_difference()
        for offset in [one for one in found if one not in self._refused][:OFFERS_MAX]:
            await self._offer(offset)
        self._problem = ""

    async def _settle_difference(self) -> None:
        """Replication has stopped at a record of the master that is not sound: offer ours."""
        difference = self._follower.to_decide()
        if difference is None or not difference.master_problem or difference.our_problem:
            return
        if difference.common_end in self._refused or not await self._offer(difference.common_end):
            return
        if self._follower.to_decide() is difference:
            try:
                self._follower.try_again(why="the master took our copy of its damaged record")
            except DecisionUnderWay:
                pass  # an operator was faster

    async def _offer(self, offset: int) -> bool:
        record = self._sound_record(offset)
        if not record:
            return False
        try:
            await self._handler.offer(offset, record)
        except OfferRefused as refused:
            self._refused[offset] = self._ticks + PATIENCE_TICKS
            self.log.warn(
                "the master's record at {offset} is damaged, and it does not take our sound copy: {reason}",
                offset=offset, reason=str(refused),
            )
            return False
        self.taken += 1
        self.log.info("the master took our copy of its damaged record at {offset}", offset=offset)
        return True

    def _sound_record(self, offset: int) -> bytes:
        """Our record at C{offset}; empty if we have no sound one."""
        log = self._log
        if not log.begin_offset <= offset < log.end_offset or log.problem_at(offset) != "":
            return b""
        size, magic = START.unpack(log.read(offset, START_SIZE))
        return b"" if magic == MAGIC_BLANK else log.read(offset, size)

    def _failed(self, failure: Failure) -> None:
        """
        The master cannot be asked, or our log cannot be read: reported once, the next round tries again.
        """
        problem = failure.getErrorMessage() or str(failure.type)
        if problem != self._problem:
            self.log.info("damaged records of the master: {reason}", reason=problem)
        self._problem = problem

    def _done(self, _: object) -> None:
        self._is_asking = False
