# -*- test-case-name: tests.broker.consuming.test_producers -*-
"""The producers that a broker may ask."""

from __future__ import annotations

from time import process_time
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.consuming.producers import EXPIRED_MS, UNSENT_BYTES_MAX, ProducerTable, reads


class ProducerTests(SynchronousTestCase):
    """Registered, expired, lost, and too many."""

    def setUp(self) -> None:
        self.table = ProducerTable(members_max=3)
        self.one, self.two = _Member(), _Member()

    def test_last_heard(self) -> None:
        """The member that was heard last is asked: most likely it lives."""
        self.assertIsNone(self.table.one_of("g"))
        self.table.register(self.one, _id_of(self.one), "g", 1)
        self.table.register(self.two, _id_of(self.two), "g", 2)
        self.assertIs(self.table.one_of("g"), self.two)
        self.table.register(self.one, _id_of(self.one), "g", 3)
        self.assertIs(self.table.one_of("g"), self.one)
        self.assertEqual(len(self.table), 2)

    def test_gone(self) -> None:
        """Unregistered, lost, silent."""
        for member in (self.one, self.two):
            self.table.register(member, _id_of(member), "g", 1)
        self.table.register(self.one, _id_of(self.one), "h", 1)
        self.table.unregister(self.one, "g")
        self.table.unregister(self.one, "g")
        self.assertIs(self.table.one_of("g"), self.two)
        self.table.lost(self.one)
        self.assertIsNone(self.table.one_of("h"))
        self.table.expire(1 + EXPIRED_MS)
        self.assertIs(self.table.one_of("g"), self.two)
        self.table.expire(2 + EXPIRED_MS)
        self.assertIsNone(self.table.one_of("g"))
        self.assertEqual(len(self.table), 0)

    def test_clients(self) -> None:
        """By its id, as long as it is a producer of any group; the newest connection of a client counts."""
        self.table.register(self.one, "c", "g", 1)
        self.table.register(self.one, "c", "h", 1)
        self.assertIs(self.table.client("c"), self.one)
        self.table.unregister(self.one, "g")
        self.assertIs(self.table.client("c"), self.one)
        self.table.register(self.two, "c", "g", 2)
        self.table.lost(self.one)
        self.assertIs(self.table.client("c"), self.two)
        self.table.register(self.two, "d", "g", 3)
        self.assertIsNone(self.table.client("c"))
        self.table.lost(self.two)
        self.assertIsNone(self.table.client("d"))

    def test_many_groups(self) -> None:
        """The end of a connection costs time for its own groups only."""
        table = ProducerTable()
        for number in range(20_000):
            table.register(self.one if number % 2 else self.two, "c", f"g{number}", 1)
        began = process_time()
        table.lost(self.one)
        table.lost(self.two)
        self.assertLess(process_time() - began, 2)
        self.assertEqual(len(table), 0)

    def test_not_reading(self) -> None:
        """A client that does not read learns nothing more."""
        self.assertTrue(reads(self.one))
        self.one.is_congested = True
        self.assertTrue(reads(self.one))
        self.one.unsent_bytes = UNSENT_BYTES_MAX
        self.assertFalse(reads(self.one))

    def test_full(self) -> None:
        """Known ones stay; what does not fit is not known."""
        for number in range(5):
            self.table.register(self.one, _id_of(self.one), f"g{number}", number)
        self.assertEqual(len(self.table), 3)
        self.assertIsNone(self.table.one_of("g3"))
        self.table.register(self.one, _id_of(self.one), "g0", 9)
        self.assertEqual(len(self.table), 3)


def _id_of(member: _Member) -> str:
    return f"client {id(member)}"


class _Member:
    """A connection."""

    address = "10.0.0.1:1"
    is_congested = False
    unsent_bytes = 0

    def notify(self, command: Any) -> None:
        """See L{Member.notify}."""
