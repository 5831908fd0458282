# -*- test-case-name: tests.broker.ha.test_acks -*-
"""Acknowledgements of slaves, and what a put needs of them."""

from __future__ import annotations

import itertools
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication.acks import Acks, needed_for, refusal
from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.put_status import PutStatus


def acks_of(*slaves: tuple[str, int], per_host: int = 1) -> Acks:
    """Connections in the order in which they were made, each with its host and mark; -2: silent."""
    acks = Acks(slaves_per_host=per_host)
    for serial, (host, offset) in enumerate(slaves, 1):
        acks.add(serial, host)
        if offset >= 0:
            acks.record(serial, offset)
    return acks


class MarkTests(SynchronousTestCase):
    """One mark for each slave."""

    def test_a_mark_never_falls(self) -> None:
        """A lower report changes nothing."""
        acks = acks_of(("a", 10))
        self.assertFalse(acks.record(1, 9))
        self.assertFalse(acks.record(1, 10))
        self.assertTrue(acks.record(1, 11))
        self.assertEqual(acks.marks(), [11])

    def test_only_living_ones_count(self) -> None:
        """What a lost connection said is forgotten."""
        acks = acks_of(("a", 1 << 40), ("b", 5))
        acks.remove(1)
        acks.remove(1)
        self.assertEqual(acks.held(1), 5)
        acks.remove(2)
        self.assertEqual((acks.held(1), len(acks)), (-1, 0))

    def test_held_bytes_need_enough_slaves(self) -> None:
        """The needed-th largest, whatever the order; -1 while there are too few."""
        for marks in itertools.permutations((3, 7, 9)):
            acks = acks_of(*zip("abc", marks, strict=True))
            self.assertEqual([acks.held(needed) for needed in (1, 2, 3, 4)], [9, 7, 3, -1])

    def test_returns_with_more_than_this_master_had(self) -> None:
        """It may have followed a log that the master has lost: a put below its report waits for others."""
        acks = acks_of()
        acks.add(1, "a")
        acks.returns_at(1, 12288, vouched_offset=0)
        acks.record(1, 12290)
        self.assertEqual(acks.held(1), -1)
        acks.settle(5845)
        self.assertEqual(acks.held(1), -1, "a put waits at 5845")
        acks.settle(20000)
        self.assertEqual(acks.held(1), 12290)

    def test_returns_with_what_it_was_sent(self) -> None:
        """It holds the bytes that the master had at its start, or sent it since."""
        acks = acks_of(("a", 500))
        acks.remove(1)
        for serial, offset in ((2, 500), (3, 90)):
            acks.add(serial, "a")
            acks.returns_at(serial, offset, vouched_offset=100)
            acks.record(serial, offset)
            self.assertEqual(acks.held(1), offset)
            acks.remove(serial)
        acks.add(4, "b")
        acks.returns_at(4, 100, vouched_offset=100)
        acks.record(4, 100)
        self.assertEqual(acks.held(1), 100)

    def test_connections_of_one_slave_count_once(self) -> None:
        """Two connections from one address are one slave where two are needed; the newest counts."""
        acks = acks_of(("a", 9), ("a", 5))
        self.assertEqual(acks.held(2), -1)
        acks = acks_of(("a", 9), ("b", 3), ("a", 5))
        self.assertEqual((acks.held(1), acks.held(2), acks.held(3)), (9, 3, -1))

    def test_several_on_one_host(self) -> None:
        """The configured number of slaves of one host counts."""
        acks = acks_of(("a", 9), ("a", 5), ("a", 4), per_host=2)
        self.assertEqual((acks.held(2), acks.held(3)), (4, -1))

    def test_a_silent_connection_is_no_slave(self) -> None:
        """Somebody who has not reported is not a slave, and hides none."""
        acks = acks_of(("a", 9), ("a", -2))
        self.assertEqual((len(acks), acks.marks(), acks.held(1)), (2, [9], 9))

    def test_a_slave_that_begins_higher_does_not_count(self) -> None:
        """A slave whose log begins at 50 answers for no put that ends there or below, by any connection."""
        acks = acks_of(("a", 9), ("b", -2))
        acks.begins_at(2, 50)
        acks.record(2, 100)
        self.assertEqual((acks.held(1), acks.marks(), acks.in_sync(110, 20)), (9, [9], 1))
        acks.add(3, "b")
        acks.record(3, 120)
        self.assertEqual((acks.held(1), acks.held(2)), (9, -1))
        acks.settle(50)
        self.assertEqual(acks.held(1), 9)
        acks.settle(51)
        self.assertEqual((acks.held(1), acks.held(2), acks.has_young), (120, 9, False))

    def test_what_a_host_proved_stays_known(self) -> None:
        """What the slave of a host has proved stays known; not of a young one, or of one in doubt."""
        acks = acks_of(("a", 9), ("b", -2), ("c", 5))
        acks.record(1, 4)
        acks.begins_at(2, 50)
        acks.record(2, 100)
        acks.record(2, 100)
        acks.doubt(3)
        acks.record(3, 30)
        acks.record(3, 30)
        for serial, host, proved in ((4, "a", 9), (5, "b", 0), (6, "c", 5), (7, "d", 0)):
            acks.add(serial, host)
            self.assertEqual(acks.proved(serial), proved, host)

    def test_begins_at_zero(self) -> None:
        """A slave that was sent everything has everything."""
        acks = acks_of(("a", 9))
        acks.begins_at(1, 0)
        self.assertEqual((acks.held(1), acks.has_young), (9, False))

    def test_a_claim_acknowledges_nothing(self) -> None:
        """A claimed offset shows who is in sync, and acknowledges nothing."""
        acks = acks_of(("a", -2))
        acks.record(1, 0, 100)
        self.assertEqual((acks.claimed, acks.held(1)), (100, 0))
        self.assertEqual((acks.in_sync(120, 20), acks.in_sync(120, 21)), (0, 1))


class AnySlaveTests(SynchronousTestCase):
    """The rule of 4.9."""

    def needed(self, acks: Acks, end_offset: int = 1000, **options: Any) -> int | PutStatus:
        """For a put that ends at C{end_offset}."""
        return needed_for(HAConfig(broker_role="SYNC_MASTER", **options), acks, end_offset)

    def test_an_async_master_waits_for_nobody(self) -> None:
        """An ASYNC_MASTER waits for nobody."""
        self.assertIs(needed_for(HAConfig(), acks_of(), 1000), PutStatus.PUT_OK)

    def test_a_put_without_slaves_is_stored(self) -> None:
        """Without a slave the put is stored, and said to be alone."""
        self.assertIs(self.needed(acks_of()), PutStatus.SLAVE_NOT_AVAILABLE)

    def test_one_slave_is_waited_for(self) -> None:
        """One is waited for; one that has not said anything yet as well."""
        self.assertEqual(self.needed(acks_of(("a", 10), ("b", 20))), 1)
        self.assertEqual(self.needed(acks_of(("a", -2))), 1)

    def test_too_far_behind(self) -> None:
        """A slave that lacks too much is not waited for; the limit itself is too much."""
        for mark, answer in ((900, PutStatus.SLAVE_NOT_AVAILABLE), (901, 1)):
            self.assertEqual(self.needed(acks_of(("a", mark)), ha_max_gap_not_in_sync=100), answer)

    def test_puts_are_never_refused(self) -> None:
        """4.9 stores whatever happens."""
        self.assertIsNone(refusal(HAConfig(broker_role="SYNC_MASTER"), acks_of(), 0))


class InSyncReplicasTests(SynchronousTestCase):
    """The rule of 5.x."""

    def config(self, **options: Any) -> HAConfig:
        """A SYNC_MASTER of 5.x."""
        return HAConfig(broker_role="SYNC_MASTER", sync_rule="in_sync_replicas", **options)

    def test_default_waits_for_nobody(self) -> None:
        """The master counts itself, and one is enough."""
        self.assertIs(needed_for(self.config(), acks_of(), 10), PutStatus.PUT_OK)

    def test_a_fixed_number_is_waited_for(self) -> None:
        """A fixed number, whether they are there or not: the put times out if they are not."""
        self.assertEqual(needed_for(self.config(in_sync_replicas=3), acks_of(), 10), 2)

    def test_the_number_follows_the_slaves(self) -> None:
        """No more than are in sync, no fewer than the minimum."""
        config = self.config(
            in_sync_replicas=3, min_in_sync_replicas=2, enable_auto_in_sync_replicas=True,
            ha_max_gap_not_in_sync=100,
        )
        for slaves, answer in (
            ((), 1), ((("a", 1000),), 1), ((("a", 1000), ("b", 950)), 2), ((("a", 1000), ("b", 900)), 1),
            ((("a", 1000), ("b", 990), ("c", 980)), 2), ((("a", 1000), ("a", 990)), 1),
        ):
            self.assertEqual(needed_for(config, acks_of(*slaves), 1000), answer, slaves)
        config = self.config(in_sync_replicas=3, enable_auto_in_sync_replicas=True)
        self.assertIs(needed_for(config, acks_of(), 1000), PutStatus.PUT_OK)

    def test_too_few_replicas_refuse_puts(self) -> None:
        """Too few replicas in sync: refused before it is stored."""
        config = self.config(in_sync_replicas=2, min_in_sync_replicas=2, ha_max_gap_not_in_sync=100)
        self.assertIs(refusal(config, acks_of(), 1000), PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
        self.assertIs(refusal(config, acks_of(("a", 900)), 1000), PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
        self.assertIsNone(refusal(config, acks_of(("a", 901)), 1000))
        self.assertIsNone(refusal(self.config(in_sync_replicas=2), acks_of(), 1000))
