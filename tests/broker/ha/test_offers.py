# -*- test-case-name: tests.broker.ha.test_offers -*-
"""A slave offers its master sound copies of damaged records."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs

from dledger.rocketmq.replication.offers import (
    OFFERS_MAX,
    PATIENCE_TICKS,
    ROUND_TICKS,
    OfferRefused,
    RecordOffers,
)
from tests.broker.ha.fakes import MemoryLog, record, stream
from tests.broker.ha.test_slave import ClientCase


class FakeRecords:
    """
    A master.

    @ivar bad: its damaged records; None: it does not know the question.
    @ivar takes: offsets of the copies that it takes.
    @ivar offered: the records that it was offered.
    """

    def __init__(self) -> None:
        self.bad: Sequence[int] | None = []
        self.takes: set[int] = set()
        self.offered: list[tuple[int, bytes]] = []
        self.asked = 0
        self.fails: Exception | None = None
        self.waits: Deferred[None] | None = None

    async def damaged(self) -> Sequence[int] | None:
        """See L{RecordsOfMaster}."""
        self.asked += 1
        if self.fails is not None:
            raise self.fails
        return self.bad

    async def offer(self, offset: int, copy: bytes) -> None:
        """See L{RecordsOfMaster}."""
        self.offered.append((offset, copy))
        if self.waits is not None:
            await self.waits
        if offset not in self.takes:
            raise OfferRefused("not the same")


class OffersCase(ClientCase):
    """A slave with eleven records."""

    def setUp(self) -> None:
        self.make(MemoryLog(stream(1000)))
        self.handler = FakeRecords()
        self.offers = RecordOffers(self.commit_log, self.slave, self.handler)
        self.size = len(record(0))

    def rounds(self, count: int = 1) -> None:
        """C{count} rounds pass."""
        for _ in range(count * ROUND_TICKS):
            self.offers.tick()


class OffersTests(OffersCase):
    """The master reports damaged records."""

    def test_offers_what_is_damaged(self) -> None:
        """The whole record, once in a round."""
        self.rounds()
        self.assertEqual((self.handler.asked, self.handler.offered), (1, []))
        self.handler.bad = [self.size]
        self.handler.takes = {self.size}
        self.rounds()
        self.assertEqual(self.handler.offered, [(self.size, record(self.size))])
        self.assertEqual(self.offers.taken, 1)

    def test_only_sound_records(self) -> None:
        """No record begins there, ours is damaged, it is a blank, or it is outside."""
        self.commit_log.data[self.size + 90] ^= 1
        self.commit_log.data += stream(4096)[len(self.commit_log.data) :]
        blank = self.commit_log.record_end_below(4095)
        self.handler.bad = [1, self.size, blank, 4096, 10**12]
        self.rounds()
        self.assertEqual(self.handler.offered, [])

    def test_a_round_offers_a_bounded_number(self) -> None:
        """A bounded number in a round."""
        log = MemoryLog(stream(8000))
        places = [at for at in range(0, 8000, self.size) if log.problem_at(at) == ""][: OFFERS_MAX + 2]
        self.make(log)
        self.offers = RecordOffers(log, self.slave, self.handler)
        self.handler.bad, self.handler.takes = places, set(places)
        self.rounds()
        self.assertEqual([at for at, _ in self.handler.offered], places[:OFFERS_MAX])

    def test_refused_is_not_repeated(self) -> None:
        """A refusal is reported, and holds for an hour."""
        self.handler.bad = [0]
        with capturedLogs() as events:
            self.rounds(PATIENCE_TICKS // ROUND_TICKS)
        self.assertEqual([event["reason"] for event in events], ["not the same"])
        self.assertEqual(len(self.handler.offered), 1)
        self.rounds(2)
        self.assertEqual(len(self.handler.offered), 2)

    def test_other_masters_are_asked_rarely(self) -> None:
        """A master that does not know the question is asked hourly; an unreachable one each round."""
        self.handler.bad = None
        self.rounds(PATIENCE_TICKS // ROUND_TICKS)
        self.assertEqual(self.handler.asked, 1)
        self.handler.fails = OSError("no way")
        with capturedLogs() as events:
            self.rounds(4)
        self.assertEqual((self.handler.asked, len(events)), (5, 1))

    def test_one_round_at_a_time(self) -> None:
        """A slow master is not asked again meanwhile."""
        self.handler.bad, self.handler.waits = [0], Deferred()
        self.rounds(5)
        self.assertEqual(self.handler.asked, 1)
        self.handler.waits.callback(None)
        self.rounds()
        self.assertEqual(self.handler.asked, 2)


class StoppedTests(OffersCase):
    """Replication has stopped because the master's record is not sound."""

    def setUp(self) -> None:
        super().setUp()
        rotten = bytearray(stream(1000))
        rotten[3 * self.size + 90] ^= 1
        client, transport = self.endpoint.succeed()
        start = int.from_bytes(transport.take(), "big")
        self.send(client, start, bytes(rotten[start:]))
        self.assertTrue(self.slave.is_stopped)
        self.endpoint.attempts.clear()

    def test_a_mended_record_starts_replication_again(self) -> None:
        """The record is offered although the master has not found it; then the slave compares again."""
        self.handler.takes = {3 * self.size}
        self.rounds()
        self.assertEqual(self.handler.offered, [(3 * self.size, record(3 * self.size))])
        self.assertFalse(self.slave.is_stopped)
        client, transport = self.endpoint.succeed()
        start = int.from_bytes(transport.take(), "big")
        self.send(client, start, stream(2000)[start:])
        self.assertEqual(self.commit_log.data, stream(2000))

    def test_a_refused_record_needs_an_operator(self) -> None:
        """An operator decides."""
        self.rounds(3)
        self.assertEqual((len(self.handler.offered), self.slave.is_stopped), (1, True))

    def test_operator_was_faster(self) -> None:
        """While the master takes the copy, an operator lets the slave compare again."""
        self.handler.takes, self.handler.waits = {3 * self.size}, Deferred()
        self.rounds()
        self.slave.try_again()
        self.handler.waits.callback(None)
        self.assertFalse(self.slave.is_stopped)
        self.assertEqual(len(self.endpoint.attempts), 1)


class BothSoundTests(OffersCase):
    """Replication has stopped although both records are sound."""

    def test_nothing_to_offer(self) -> None:
        """An operator decides: nothing is offered."""
        self.make(MemoryLog(stream(1000, at=9)))
        self.offers = RecordOffers(self.commit_log, self.slave, self.handler)
        client, transport = self.endpoint.succeed()
        start = int.from_bytes(transport.take(), "big")
        self.send(client, start, stream(1000)[start:])
        self.assertTrue(self.slave.is_stopped)
        self.rounds(2)
        self.assertEqual((self.handler.offered, self.slave.is_stopped), ([], True))
