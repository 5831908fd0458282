# -*- test-case-name: tests.sim.test_leases -*-
"""Leases of named readers under leaders that change again and again."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.readers import NamedReader
from dledger.testing.group.checks.readers import ReaderRules
from dledger.testing.group.members.cluster import SECOND_US, GroupOptions, SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.group.sim_readers import ReaderLoad, SimReader
from dledger.values.errors import DLedgerError
from protocols.wire.ledger.own.own_entries import READER_CHANNEL

LEASE_S = 6.0
TIMING = {
    "tick_ms": 20, "heart_beat_time_interval_ms": 200, "max_heart_beat_leak": 3, "min_vote_interval_ms": 50,
    "max_vote_interval_ms": 200, "pre_vote": True,
}


class Process(SimReader):
    """
    A process that reads on and on.

    @ivar tokens: of its leases. @ivar error: why it reads no more.
    """

    def __init__(self, cluster: SimCluster, rules: ReaderRules, name: str, reader: str) -> None:
        super().__init__(cluster, rules, name, reader, ReaderLoad(lease_s=LEASE_S), cluster.random(name))
        self.tokens: list[int] = []
        self.error: DLedgerError | None = None
        self._cluster = cluster

    def begin(self) -> None:
        """Take a lease, or wait for it, and read."""
        self._process.run(self, lambda: Deferred.fromCoroutine(self._read_on(self.open(follow=True))))

    async def _read_on(self, reader: NamedReader) -> None:
        try:
            async for _ in reader:
                if reader.token not in self.tokens:
                    self.tokens.append(reader.token)
        except DLedgerError as error:
            self.error = error

    def die(self) -> None:
        """For ever."""
        self._process.end()
        self._cluster.network.died(self.name, self._process, silently=True)


class StormTests(SynchronousTestCase):
    """A process that dies, one that waits for its entries, and another reader's, which lives."""

    def setUp(self) -> None:
        self.cluster = cluster = SimCluster(GroupOptions(settings=TIMING), 1)
        rules = cluster.world.readers = ReaderRules(cluster.invariants, lambda: cluster.clock.now_us)
        cluster.start()
        cluster.run(3)
        assert cluster.leader is not None
        cluster.leader.call(lambda node: node.append([b"a", b"b"]).addErrback(lambda _: None))
        self.dead, self.waiting = (Process(cluster, rules, f"10.1.0.{at}", "dead") for at in (1, 2))
        self.living = Process(cluster, rules, "10.1.0.3", "living")
        self.dead.begin()
        self.living.begin()
        cluster.run(3)

    def storm(self, every_s: float, seconds: float, *, kills: bool) -> float:
        """
        Another leader comes now and then.

        @return: after how many seconds the dead process had lost its lease.
        """
        cluster, clock = self.cluster, self.cluster.clock
        begin_us = clock.now_us
        self.dead.die()
        self.waiting.begin()
        lost_s = -1.0
        next_us = clock.now_us
        while clock.now_us < begin_us + seconds * SECOND_US:
            if clock.now_us >= next_us:
                next_us += int(every_s * SECOND_US)
                self.depose(cluster.leader, kills=kills)
            cluster.run(0.05)
            if self.waiting.tokens and lost_s < 0:
                lost_s = (clock.now_us - begin_us) / SECOND_US
        self.assertEqual((len(self.living.tokens), self.living.error), (1, None))
        return lost_s

    def depose(self, leader: SimMember | None, *, kills: bool) -> None:
        """It hands over, or its process ends."""
        if leader is None:
            return
        if kills:
            leader.kill()
            self.cluster.restart_later(leader, SECOND_US // 4)
            return
        ids = sorted(self.cluster.members)
        self.cluster.transfer(ids[(ids.index(leader.member_id) + 1) % len(ids)])

    def test_leases_of_the_dead_end(self) -> None:
        """Within twice their time, whether leaders hand over or die; those of the living stay."""
        for every_s, kills in ((30.0, False), (3.0, False), (1.5, False), (3.0, True)):
            self.setUp()
            lost_s = self.storm(every_s, 24, kills=kills)
            self.assertTrue(LEASE_S - 2.1 < lost_s <= 2 * LEASE_S, f"{lost_s} {every_s} {kills}")

    def test_an_idle_group_writes_nothing(self) -> None:
        """However long processes renew."""
        self.storm(1000, 20, kills=False)
        before = self.reader_entries()
        self.cluster.run(60)
        self.assertEqual(self.reader_entries(), before)

    def reader_entries(self) -> int:
        """Number of those in the log."""
        records = self.cluster.invariants.records
        return sum(int.from_bytes(record[32:36], "big", signed=True) == READER_CHANNEL
                   for record, _ in records.values())
